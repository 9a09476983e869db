"""Nodes that replicate over TCP: with all security, through kills, and beside nodes that do not."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from tidelog.client.admin.types import NewTopic
from tidelog.testing import Cluster

TCP = {"replication.transport": "tcp"}


def values(cluster: Cluster, count: int) -> set[bytes | None]:
    """The topic's records, once there are as many."""
    found: set[bytes | None] = set()
    deadline = time.monotonic() + 60
    with cluster.consumer(group_id=None, auto_offset_reset="earliest") as consumer:
        consumer.assign([("t", number) for number in range(4)])
        while len(found) < count and time.monotonic() < deadline:
            found |= {record.value for record in consumer.poll(0.5)}
    return found


@pytest.mark.parametrize("security", [None, "tls+scram"])
def test_acknowledged_records_survive_their_leader(security: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidelog.proto.transport.tcp_streams")
    sent = set()
    with Cluster(nodes=3, transport="grpc", security=security, config=TCP) as cluster:
        with cluster.admin() as admin:
            admin.create_topics([NewTopic("t", 4, 3, configs={"min.insync.replicas": "2"})])
        with cluster.producer() as producer:
            for number in range(600):
                if number in (200, 400):
                    leader = cluster.leader_of("t", 0)
                    assert leader is not None
                    cluster.kill(leader)
                    cluster.restart(leader)
                value = str(number).encode()
                producer.send("t", value, partition=number % 4).result(60)
                sent.add(value)
        assert values(cluster, len(sent)) == sent
    assert sum("a stream over TCP" in line for line in caplog.messages) >= 6, "each node follows both others"
