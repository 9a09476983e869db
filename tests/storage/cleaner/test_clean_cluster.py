"""Compaction in a cluster: every replica compacts by itself, and consumers and new replicas read the rest."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tidelog.client.errors import InvalidRecordError
from tidelog.model.ids import TopicPartition
from tidelog.storage.log.log import Log
from tidelog.testing.cluster import Cluster

RECORDS = 4_000
SETTINGS = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20), "min.cleanable.dirty.ratio": "0.1"}
KEYS = [b"key %d" % n for n in range(60)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3, config={"log.cleaner.backoff.ms": "100"}) as made:
        made.create_topic("t", replication_factor=3, config=SETTINGS)
        yield made


def write(cluster: Cluster, count: int = RECORDS) -> dict[bytes, bytes]:
    """Returns the last value of each key."""
    rng = random.Random(1)
    last: dict[bytes, bytes] = {}
    with cluster.producer(compression_type="lz4") as producer:
        for number in range(count):
            key, value = rng.choice(KEYS), rng.randbytes(1_000) + b"%d" % number
            producer.send("t", value, key=key)
            last[key] = value
        producer.flush()
    return last


def read(cluster: Cluster, end: int) -> tuple[dict[bytes | None, bytes | None], int]:
    """The result for a consumer that reads from the start to offset ``end``, and the number of records it read."""
    found: dict[bytes | None, bytes | None] = {}
    count = 0
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([("t", 0)])
        while consumer.position(TopicPartition("t", 0)) < end:
            for record in consumer.poll(1.0):
                found[record.key] = record.value
                count += 1
    return found, count


def log_on(cluster: Cluster, node_id: int) -> Log:
    broker = cluster.node(node_id).broker
    assert broker is not None
    return next(log for log in broker.logs.logs() if log.topic == "t")


def cleaned(cluster: Cluster, node_id: int) -> bool:
    broker = cluster.node(node_id).broker
    return broker is not None and broker.logs.clean_offset(log_on(cluster, node_id)) > RECORDS // 2


def test_replicas_compact_by_themselves_and_a_new_one_copies_what_is_left(cluster: Cluster) -> None:
    last = write(cluster)
    cluster.wait_for(lambda: all(cleaned(cluster, node) for node in (1, 2, 3)), "every replica to be compacted")
    found, count = read(cluster, RECORDS)
    assert found == last
    assert count < RECORDS // 2
    leader = cluster.leader_of("t", 0)
    assert leader is not None
    other = next(node for node in (1, 2, 3) if node != leader)
    cluster.stop_node(other)
    cluster.wipe_logs(other)
    cluster.restart(other)
    cluster.wait_for_isr("t", 0, 3)
    assert log_on(cluster, other).log_end_offset == RECORDS
    assert log_on(cluster, other).size_bytes < 1_100 * RECORDS // 2
    cluster.stop_node(leader)
    cluster.wait_for_leader("t", 0, other_than=leader)
    assert read(cluster, RECORDS)[0] == last


def test_a_record_without_a_key_is_the_producers_error(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        refused = producer.send("t", b"no key")
        with pytest.raises(InvalidRecordError, match="compacted"):
            refused.result(timeout=20)
        producer.send("t", b"with a key", key=b"k").result(timeout=20)
