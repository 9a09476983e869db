"""Three nodes, a foreign producer under load, its leaders killed: every record once and in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tidelog.testing.cluster import Cluster

PARTITIONS = 3
COUNT = 6_000


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[Cluster]:
    config = {"group.initial.rebalance.delay.ms": "0", "min.insync.replicas": "2"}
    with Cluster(nodes=3, transport="grpc", config=config) as cluster:
        yield cluster


def test_an_idempotent_producer_and_a_group_go_on_while_leaders_are_killed(three_nodes: Cluster) -> None:
    from confluent_kafka import Consumer, Producer

    cluster, topic = three_nodes, "load"
    cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    producer = Producer(
        {"bootstrap.servers": cluster.kafka_bootstrap, "enable.idempotence": True, "linger.ms": 2,
         "topic.metadata.refresh.interval.ms": 1000, "reconnect.backoff.max.ms": 200, "retry.backoff.max.ms": 100}
    )  # fmt: skip
    failures: list[object] = []
    acknowledged = threading.Event()
    count = 0

    def taken(error: object, message: object) -> None:
        nonlocal count
        if error is not None:
            failures.append(error)
        count += 1
        if count >= COUNT // 10:
            acknowledged.set()

    def produce() -> None:
        for number in range(COUNT):
            producer.produce(topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=taken)
            producer.poll(0)
            if number % 20 == 0:
                time.sleep(0.01)

    sender = threading.Thread(target=produce)
    sender.start()
    try:
        for _ in range(2):
            assert acknowledged.wait(30)
            victim = cluster.leader_of(topic, 0)
            assert victim is not None
            cluster.kill(victim)
            cluster.restart(victim)
            acknowledged.clear()
    finally:
        sender.join()
    assert producer.flush(60) == 0
    assert failures == []
    consumer = Consumer(
        {"bootstrap.servers": cluster.kafka_bootstrap, "group.id": "readers", "auto.offset.reset": "earliest",
         "session.timeout.ms": 6000, "isolation.level": "read_committed"}
    )  # fmt: skip
    try:
        consumer.subscribe([topic])
        found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        while sum(map(len, found.values())) < COUNT:
            message = consumer.poll(30)
            assert message is not None, {partition: len(seen) for partition, seen in found.items()}
            if message.error() is None:
                found[message.partition() or 0].append(int(message.value() or b""))
        assert found == {partition: list(range(partition, COUNT, PARTITIONS)) for partition in range(PARTITIONS)}
        assert consumer.poll(0.5) is None
    finally:
        consumer.close()
