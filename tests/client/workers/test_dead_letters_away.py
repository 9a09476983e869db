"""Workers whose topic for dead letters is away: nothing is lost, the error says what is wrong, and they go on once it is
back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tidelog import AclBinding, AclOperation, ConsumerRecord, NewTopic, PatternType, PermissionType, ResourceType
from tidelog.client.errors import TidelogError
from tidelog.client.workers import plan
from tidelog.testing import Cluster

from .test_workers import Running, committed, fill, letters, workers

WAITS = {"max_block_ms": 500, "request_timeout_ms": 500, "delivery_timeout_ms": 1_000}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    config = {"auto.create.topics.enable": "false"}
    with Cluster(2, controllers=1, transport="grpc", security="scram", config=config) as made:
        yield made


@pytest.mark.parametrize("away", ["deleted", "forbidden", "without a leader"])
def test_explore(cluster: Cluster, away: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "ABORTS_MAX", 2)
    topic, dead = f"t-{away[:3]}", f"dlq-{away[:3]}"
    user = "admin"
    cluster.create_topic(topic, partitions=2)
    if away == "forbidden":
        user = "teller"
        cluster.add_user(user)
        with cluster.admin() as admin:
            def allow(kind, name, *operations):
                admin.create_acls([AclBinding(kind, name, PatternType.PREFIXED, "User:teller", "*", op, PermissionType.ALLOW) for op in operations])
            allow(ResourceType.TOPIC, topic, AclOperation.READ)
            allow(ResourceType.GROUP, topic, AclOperation.READ)
            allow(ResourceType.TRANSACTIONAL_ID, topic, AclOperation.WRITE)
    with cluster.admin() as admin:
        admin.create_topics([NewTopic(dead, assignments={0: [2]})])
    fill(cluster, topic, 10)
    with cluster.admin() as admin:
        if away == "deleted":
            admin.delete_topics([dead])
    if away[:3] == "wit":
        cluster.stop_node(2)

    def handler(record: ConsumerRecord) -> None:
        if record.value == b"3":
            raise ValueError("three")

    began = time.monotonic()
    print(cluster.client_settings(user))
    try:
        Running(workers(cluster, topic, handler, dead_letters=dead, producer_settings=WAITS | cluster.client_settings(user), consumer_settings=dict(cluster.client_settings(user)))).ended()
    except BaseException as e:
        print(away, time.monotonic() - began, type(e), e, getattr(e, "__notes__", None), e.__cause__)
    assert 0
