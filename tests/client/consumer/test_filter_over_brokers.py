"""A consumer with a header filter reads from several brokers whose leaders move and die meanwhile: it gets all that it
wants, once, and brokers go on leaving out the rest."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tidelog import Consumer, HeaderFilter, Producer, TopicPartition
from tidelog.testing import Cluster

TOPIC = "over-brokers"
PLACES = [TopicPartition(TOPIC, number) for number in range(3)]
VALUE = b"x" * 40_000
OFTEN, RARE = [("kind", b"often")], [("kind", b"rare")]
ROUNDS = 8
ROUND = 8
"""So many records of 40 KB that nobody wants come before each that is wanted."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    config = {"replica.high.watermark.checkpoint.interval.ms": "100", "log.flush.offset.checkpoint.interval.ms": "100"}
    with Cluster(3, transport="grpc", config=config) as made:
        made.create_topic(
            TOPIC,
            partitions=3,
            config={"filter.header": "kind", "segment.bytes": str(1 << 20), "min.insync.replicas": "2"},
        )
        yield made


def write(producer: Producer, rounds: int) -> list[tuple[int, int]]:
    """Return the places of what is wanted."""
    wanted = []
    for _ in range(rounds):
        for at in PLACES:
            for _ in range(ROUND):
                producer.send(TOPIC, VALUE, partition=at.partition, headers=OFTEN)
        producer.flush()
        for at in PLACES:
            sent = producer.send(TOPIC, VALUE, partition=at.partition, headers=RARE).result(60)
            wanted.append((at.partition, sent.offset))
    return wanted


def indexed(cluster: Cluster) -> bool:
    """Whether each replica has indexed its full segments."""
    for node in (1, 2, 3):
        for at in PLACES:
            directory = cluster.node_directory(node) / f"{at.topic}-{at.partition}"
            names = [path.suffix for path in directory.iterdir()]
            if names.count(".filterindex") < names.count(".log") - 1 or names.count(".log") < 3:
                return False
    return True


def test_leaders_on_several_nodes_that_move_and_die(cluster: Cluster) -> None:
    with cluster.producer(acks="all") as producer:
        wanted = write(producer, ROUNDS)
        until = time.monotonic() + 60
        while not indexed(cluster):
            assert time.monotonic() < until
            time.sleep(0.05)
        leaders = {at: cluster.leader_of(TOPIC, at.partition) for at in PLACES}
        assert set(leaders.values()) == {1, 2, 3}
        with cluster.consumer(
            auto_offset_reset="earliest",
            header_filter=HeaderFilter("kind", ["rare"]),
            max_poll_records=1,
            max_partition_fetch_bytes=50_000,
        ) as consumer:
            consumer.assign(PLACES)
            found: list[tuple[int, int]] = []
            read(consumer, found, 6)
            cluster.stop_node(2)  # its leadership goes to another node
            read(consumer, found, 12)
            wanted += write(producer, 1)
            cluster.restart(2)
            cluster.kill(3)
            read(consumer, found, 18)
            cluster.restart(3)
            wanted += write(producer, 1)
            read(consumer, found, len(wanted))
            ends = consumer.end_offsets(PLACES)
            while any(consumer.position(at) < end for at, end in ends.items()):
                assert time.monotonic() < until
                assert consumer.poll(0.1) == []
            fetched = consumer.metrics()["bytes-consumed-total"]
    assert {at: cluster.leader_of(TOPIC, at.partition) for at in PLACES} != leaders
    for at in PLACES:
        mine = [offset for partition, offset in found if partition == at.partition]
        assert mine == [offset for partition, offset in wanted if partition == at.partition]
    written = sum(ends.values()) * len(VALUE)
    assert fetched < written / 2, "brokers leave out what is indexed"


def read(consumer: Consumer, found: list[tuple[int, int]], count: int) -> None:
    """Read on, until ``count`` records were found."""
    until = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < until
        found += [(record.partition, record.offset) for record in consumer.poll(0.1)]
