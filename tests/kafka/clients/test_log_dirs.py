"""kafka-python's admin client moves replicas between log directories (KIP-113)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidelog.proto.calls.api import ConfigResource
from tidelog.testing import Cluster

TIMEOUT_S = 60
BROKER = ConfigResource("broker", "1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, transport="grpc", log_dirs=2) as found:
        yield found


def test_kafka_python_moves_a_replica_and_sees_it(cluster: Cluster) -> None:
    from kafka import KafkaAdminClient, TopicPartitionReplica
    from kafka.errors import LogDirNotFoundError, NoError, UnknownTopicOrPartitionError

    with cluster.producer() as producer:
        for number in range(50):
            producer.send("moved", b"%d" % number * 1_000, partition=0)
        producer.flush()
    admin = KafkaAdminClient(bootstrap_servers=cluster.kafka_bootstrap)
    throttle = "replica.alter.log.dirs.io.max.bytes.per.second"
    with cluster.admin() as ours:
        ours.alter_configs({BROKER: {throttle: "1"}})
        until(lambda: ours.describe_configs([BROKER])[BROKER][throttle].value == "1", "the throttle is known")
        try:
            here, there = sorted(places(admin), key=lambda path: ("moved", 0) not in places(admin)[path])
            refused = admin.alter_replica_log_dirs({("moved", 0, 1): "/nowhere", ("unknown", 0, 1): there})
            assert refused == {
                TopicPartitionReplica("moved", 0, 1): LogDirNotFoundError,
                TopicPartitionReplica("unknown", 0, 1): UnknownTopicOrPartitionError,
            }
            assert set(admin.alter_replica_log_dirs({("moved", 0, 1): there}).values()) == {NoError}
            shown = places(admin)
            assert shown[here]["moved", 0]["is_future_key"] is False
            assert shown[there]["moved", 0]["is_future_key"] is True
            ours.alter_configs({BROKER: {throttle: None}})
            until(lambda: ("moved", 0) not in places(admin)[here], "it has moved")
            shown = places(admin)
            assert (shown[there]["moved", 0]["is_future_key"], shown[there]["moved", 0]["offset_lag"]) == (False, 0)
            assert shown[there]["moved", 0]["partition_size"] > 50_000
        finally:
            admin.close()
    found: list[bytes | None] = []
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([("moved", 0)])
        end = time.monotonic() + TIMEOUT_S
        while len(found) < 50:
            assert time.monotonic() < end, "records are missing"
            found += [record.value for record in consumer.poll(0.2)]
    assert found == [b"%d" % number * 1_000 for number in range(50)]


def places(admin: Any) -> dict[str, dict[tuple[str, int], dict[str, Any]]]:
    """What lies in each directory."""
    (broker,) = admin.describe_log_dirs()
    return {
        directory["log_dir"]: {
            (topic["name"], partition["partition_index"]): partition
            for topic in directory["topics"]
            for partition in topic["partitions"]
        }
        for directory in broker["log_dirs"]
    }


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)
