"""Offsets by time are exact to the record, also within a batch; the log's ends; deleting records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from tests.kafka.conftest import CODECS
from tests.kafka.kafka_clients import Sent, confluent_produce, confluent_read
from tidelog.testing.cluster import Cluster

BASE_MS = 1_700_000_000_000
TIMES = tuple(BASE_MS + offset for offset in (10, 20, 20, 35, 30, 50, 45, 80, 80, 75))
"""Of the records of one batch: not in order, some twice, with gaps between."""
ASKED = tuple(BASE_MS + at for at in (0, 10, 11, 20, 21, 31, 35, 36, 46, 51, 76, 80, 81))

Lookup = Callable[[str, str, Sequence[int]], list[int | None]]


def expected(time_ms: int) -> int | None:
    """The first record whose time is not before: Kafka's rule (ListOffsets)."""
    return next((offset for offset, found in enumerate(TIMES) if found >= time_ms), None)


def by_confluent(bootstrap: str, topic: str, times: Sequence[int]) -> list[int | None]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "times"})
    try:
        found = [consumer.offsets_for_times([TopicPartition(topic, 0, time)], timeout=20)[0].offset for time in times]
        return [None if offset < 0 else offset for offset in found]
    finally:
        consumer.close()


def by_kafka_python(bootstrap: str, topic: str, times: Sequence[int]) -> list[int | None]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    try:
        asked = TopicPartition(topic, 0)
        found = [consumer.offsets_for_times({asked: time})[asked] for time in times]
        return [None if one is None else one.offset for one in found]
    finally:
        consumer.close()


def by_aiokafka(bootstrap: str, topic: str, times: Sequence[int]) -> list[int | None]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def run() -> list[int | None]:
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            asked = TopicPartition(topic, 0)
            found = [(await consumer.offsets_for_times({asked: time}))[asked] for time in times]
            return [None if one is None else one.offset for one in found]

    return asyncio.run(run())


@pytest.mark.parametrize("codec", CODECS)
def test_an_offset_by_time_is_that_of_the_very_record(
    kafka_cluster: Cluster, topic_name: Callable[..., str], codec: str
) -> None:
    topic, bootstrap = topic_name("times"), kafka_cluster.kafka_bootstrap
    kafka_cluster.create_topic(topic)
    confluent_produce(bootstrap, topic, 0, [Sent(None, b"v" * 50, (), time) for time in TIMES], codec)
    wanted = [expected(time) for time in ASKED]
    assert [one.timestamp for one in confluent_read(bootstrap, topic, 0, len(TIMES))] == list(TIMES)
    for lookup in (by_confluent, by_kafka_python, by_aiokafka):
        assert lookup(bootstrap, topic, ASKED) == wanted, lookup.__name__


def test_the_ends_of_a_log_and_the_record_of_the_latest_time(
    kafka_cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    topic, bootstrap = topic_name("ends"), kafka_cluster.kafka_bootstrap
    kafka_cluster.create_topic(topic)
    confluent_produce(bootstrap, topic, 0, [Sent(None, b"v", (), time) for time in TIMES], "none")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partition = TopicPartition(topic, 0)

    def offset(spec: OffsetSpec) -> int:
        return int(admin.list_offsets({partition: spec})[partition].result(20).offset)

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == len(TIMES)
    assert offset(OffsetSpec.max_timestamp()) == TIMES.index(max(TIMES))
    deleted = admin.delete_records([TopicPartition(topic, 0, 4)])
    assert next(iter(deleted.values())).result(20).low_watermark == 4
    assert offset(OffsetSpec.earliest()) == 4
    assert offset(OffsetSpec.for_timestamp(BASE_MS)) == 4
