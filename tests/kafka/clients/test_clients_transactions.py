"""Transactions and idempotence of foreign clients, and what either protocol sees of the other's transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.kafka.kafka_clients import confluent_read
from tidelog.testing.cluster import Cluster

COMMITTED: dict[str, Any] = {"isolation.level": "read_committed"}


@contextmanager
def transactional(bootstrap: str, transactional_id: str) -> Iterator[Any]:
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "transaction.timeout.ms": 20_000}
    )
    producer.init_transactions(20)
    yield producer


def values(found: list[Any]) -> list[bytes | None]:
    return [one.value for one in found]


def sdk_values(cluster: Cluster, topic: str, last: bytes) -> list[bytes | None]:
    """A reader's committed records up to the value ``last``."""
    from tidelog import TopicPartition

    found: list[bytes | None] = []
    with cluster.consumer(isolation_level="read_committed") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning(TopicPartition(topic, 0))
        while last not in found:
            records = consumer.poll(timeout=20)
            assert records, found
            found += values(records)
    return found


def test_what_a_foreign_transaction_commits_is_read_and_what_it_aborts_is_not(
    kafka_cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    topic, bootstrap = topic_name("transactions"), kafka_cluster.kafka_bootstrap
    kafka_cluster.create_topic(topic)
    with transactional(bootstrap, topic) as producer:
        for number, commits in enumerate((True, False, True, False, True)):
            producer.begin_transaction()
            for part in range(3):
                producer.produce(topic, b"%d-%d" % (number, part), partition=0)
            if commits:
                producer.commit_transaction(20)
            else:
                producer.flush(20)
                producer.abort_transaction(20)
    wanted = [b"%d-%d" % (number, part) for number in (0, 2, 4) for part in range(3)]
    assert values(confluent_read(bootstrap, topic, 0, len(wanted), **COMMITTED)) == wanted
    assert sdk_values(kafka_cluster, topic, wanted[-1]) == wanted
    everything = [b"%d-%d" % (number, part) for number in range(5) for part in range(3)]
    assert values(confluent_read(bootstrap, topic, 0, len(everything), **{"isolation.level": "read_uncommitted"})) == (
        everything
    )


def test_what_the_sdk_commits_a_foreign_reader_sees_and_nothing_else(
    kafka_cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    topic, bootstrap = topic_name("transactions"), kafka_cluster.kafka_bootstrap
    kafka_cluster.create_topic(topic)
    with kafka_cluster.producer(transactional_id=topic) as producer:
        producer.init_transactions()
        for number in range(4):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number, partition=0).result(20)
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    assert values(confluent_read(bootstrap, topic, 0, 2, **COMMITTED)) == [b"0", b"2"]


def test_a_newer_producer_of_either_protocol_fences_the_older_one(
    kafka_cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    from confluent_kafka import KafkaError, KafkaException

    from tidelog.client.errors import InvalidProducerEpochError, ProducerFencedError

    topic, bootstrap = topic_name("fenced"), kafka_cluster.kafka_bootstrap
    kafka_cluster.create_topic(topic)
    with transactional(bootstrap, topic) as foreign:
        foreign.begin_transaction()
        foreign.produce(topic, b"fenced", partition=0)
        foreign.flush(20)
        with kafka_cluster.producer(transactional_id=topic) as ours:
            ours.init_transactions()
            with pytest.raises(KafkaException) as refused:
                foreign.commit_transaction(20)
            assert refused.value.args[0].code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
            ours.begin_transaction()
            ours.send(topic, b"ours", partition=0).result(20)
            ours.commit_transaction()
            ours.begin_transaction()
            ours.send(topic, b"lost", partition=0).result(20)
            with transactional(bootstrap, topic) as newer:
                with pytest.raises((InvalidProducerEpochError, ProducerFencedError)):
                    ours.commit_transaction()
                newer.begin_transaction()
                newer.produce(topic, b"newer", partition=0)
                newer.commit_transaction(20)
    assert values(confluent_read(bootstrap, topic, 0, 2, **COMMITTED)) == [b"ours", b"newer"]


def test_offsets_go_with_the_transaction(kafka_cluster: Cluster, topic_name: Callable[..., str]) -> None:
    from confluent_kafka import Consumer, TopicPartition

    topic, group, bootstrap = topic_name("moves"), topic_name("movers"), kafka_cluster.kafka_bootstrap
    kafka_cluster.create_topic(topic)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        with transactional(bootstrap, group) as producer:

            def committed() -> int:
                return int(consumer.committed([TopicPartition(topic, 0)], timeout=20)[0].offset)

            for offset, commits, seen in ((5, True, 5), (9, False, 5), (12, True, 12)):
                producer.begin_transaction()
                producer.produce(topic, b"%d" % offset, partition=0)
                producer.send_offsets_to_transaction(
                    [TopicPartition(topic, 0, offset)], consumer.consumer_group_metadata(), 20
                )
                if commits:
                    producer.commit_transaction(20)
                else:
                    producer.abort_transaction(20)
                assert committed() == seen
    finally:
        consumer.close()


def test_transactions_of_python_clients(kafka_cluster: Cluster, topic_name: Callable[..., str]) -> None:
    import asyncio

    from aiokafka import AIOKafkaProducer
    from kafka import KafkaProducer

    topic, bootstrap = topic_name("transactions"), kafka_cluster.kafka_bootstrap
    kafka_cluster.create_topic(topic)
    plain = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{topic}-plain")
    try:
        plain.init_transactions()
        for value, commits in ((b"plain-1", True), (b"plain-2", False), (b"plain-3", True)):
            plain.begin_transaction()
            plain.send(topic, value, partition=0).get(20)
            if commits:
                plain.commit_transaction()
            else:
                plain.abort_transaction()
    finally:
        plain.close()

    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{topic}-aio") as producer:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"aio-1", partition=0)
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"aio-2", partition=0)
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_and_wait(topic, b"aio-3", partition=0)

    asyncio.run(run())
    wanted = [b"plain-1", b"plain-3", b"aio-1", b"aio-3"]
    assert values(confluent_read(bootstrap, topic, 0, len(wanted), **COMMITTED)) == wanted
    assert sdk_values(kafka_cluster, topic, wanted[-1]) == wanted
