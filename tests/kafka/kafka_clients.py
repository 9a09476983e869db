"""Three foreign clients in one form: produce records to a partition, read a partition's records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

Headers = tuple[tuple[str, bytes | None], ...]


class Sent(NamedTuple):
    """A record as every client can say it."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int


Produce = Callable[[str, str, int, Sequence[Sent], str], None]
"""``(bootstrap, topic, partition, records, codec)``"""
Read = Callable[[str, str, int, int], list[Sent]]
"""``(bootstrap, topic, partition, count)``"""
READ_TIMEOUT_S = 30.0


def confluent_produce(bootstrap: str, topic: str, partition: int, records: Sequence[Sent], codec: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "acks": "all", "linger.ms": 5})
    failures: list[object] = []
    for sent in records:
        producer.produce(
            topic,
            sent.value,
            sent.key,
            partition,
            timestamp=sent.timestamp,
            headers=list(sent.headers),
            on_delivery=lambda error, message: failures.append(error) if error is not None else None,
        )
    assert producer.flush(READ_TIMEOUT_S) == 0
    assert failures == []


def confluent_read(bootstrap: str, topic: str, partition: int, count: int, **options: Any) -> list[Sent]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "readers", "enable.auto.commit": False,
         "auto.offset.reset": "earliest", "check.crcs": True, **options}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[Sent] = []
    try:
        while len(found) < count:
            message = consumer.poll(READ_TIMEOUT_S)
            assert message is not None, f"{len(found)} of {count} records"
            assert message.error() is None, message.error()
            headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
            found.append(Sent(message.key(), message.value(), tuple(headers), message.timestamp()[1]))
        return found
    finally:
        consumer.close()


def kafka_python_produce(bootstrap: str, topic: str, partition: int, records: Sequence[Sent], codec: str) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec, acks="all", linger_ms=5
    )
    try:
        futures = [
            producer.send(
                topic,
                value=sent.value,
                key=sent.key,
                headers=list(sent.headers),
                partition=partition,
                timestamp_ms=sent.timestamp,
            )
            for sent in records
        ]
        producer.flush(READ_TIMEOUT_S)
        for future in futures:
            future.get(timeout=READ_TIMEOUT_S)
    finally:
        producer.close()


def kafka_python_read(bootstrap: str, topic: str, partition: int, count: int) -> list[Sent]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=round(READ_TIMEOUT_S * 1000),
    )
    try:
        consumer.assign([TopicPartition(topic, partition)])
        found: list[Sent] = []
        for message in consumer:
            found.append(Sent(message.key, message.value, tuple(message.headers), message.timestamp))
            if len(found) == count:
                break
        return found
    finally:
        consumer.close()


def aiokafka_produce(bootstrap: str, topic: str, partition: int, records: Sequence[Sent], codec: str) -> None:
    from aiokafka import AIOKafkaProducer

    async def run() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec, acks="all", linger_ms=5
        ) as producer:
            waiting = [
                await producer.send(
                    topic, sent.value, sent.key, partition, timestamp_ms=sent.timestamp, headers=list(sent.headers)
                )
                for sent in records
            ]
            await asyncio.wait_for(asyncio.gather(*waiting), READ_TIMEOUT_S)

    asyncio.run(run())


def aiokafka_read(bootstrap: str, topic: str, partition: int, count: int) -> list[Sent]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def run() -> list[Sent]:
        async with AIOKafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            consumer.assign([TopicPartition(topic, partition)])
            await consumer.seek_to_beginning()
            found: list[Sent] = []
            async with asyncio.timeout(READ_TIMEOUT_S):
                while len(found) < count:
                    message = await consumer.getone()
                    found.append(Sent(message.key, message.value, tuple(message.headers), message.timestamp))
            return found

    return asyncio.run(run())


PRODUCERS: dict[str, Produce] = {
    "confluent-kafka": confluent_produce,
    "kafka-python": kafka_python_produce,
    "aiokafka": aiokafka_produce,
}
READERS: dict[str, Read] = {
    "confluent-kafka": confluent_read,
    "kafka-python": kafka_python_read,
    "aiokafka": aiokafka_read,
}
