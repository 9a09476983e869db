"""Records go in and come out unchanged: by every client, in every codec, through either protocol."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kafka.conftest import CODECS
from tests.kafka.kafka_clients import PRODUCERS, READERS, Sent
from tidelog.testing.cluster import Cluster

BASE_MS = 1_700_000_000_000
COUNT = 120


def sample(sign: str, count: int = COUNT) -> list[Sent]:
    """Records with nulls and empties in every place, headers of the same name, and times that go back and forth."""
    made = []
    for number in range(count):
        key = None if number % 5 == 0 else b"" if number % 7 == 0 else b"key-%d" % number
        value = (
            None
            if key is not None and number % 11 == 3
            else b""
            if number % 13 == 5
            else sign.encode() + b"-%d" % number * (number % 40)
        )
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if number % 3 == 0:
            headers = (("trace", b"%d" % number), ("trace", b""), ("größe", bytes(range(20))))
        made.append(Sent(key, value, headers, BASE_MS + (number * 37) % 1000))
    return made


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_what_a_kafka_client_sends_every_client_reads(
    kafka_cluster: Cluster, topic_name: Callable[..., str], producer: str, codec: str
) -> None:
    topic = topic_name()
    kafka_cluster.create_topic(topic)
    records = sample(f"{producer}-{codec}")
    PRODUCERS[producer](kafka_cluster.kafka_bootstrap, topic, 0, records, codec)
    for name, read in READERS.items():
        assert read(kafka_cluster.kafka_bootstrap, topic, 0, COUNT) == records, name
    assert sdk_read(kafka_cluster, topic, COUNT) == records


@pytest.mark.parametrize("codec", CODECS)
def test_what_the_sdk_sends_every_kafka_client_reads(
    kafka_cluster: Cluster, topic_name: Callable[..., str], codec: str
) -> None:
    topic = topic_name()
    kafka_cluster.create_topic(topic)
    records = sample(f"sdk-{codec}")
    with kafka_cluster.producer(compression_type=codec) as producer:
        futures = [
            producer.send(
                topic, sent.value, key=sent.key, headers=sent.headers, timestamp_ms=sent.timestamp, partition=0
            )
            for sent in records
        ]
        for future in futures:
            future.result(30)
    for name, read in READERS.items():
        assert read(kafka_cluster.kafka_bootstrap, topic, 0, COUNT) == records, name


def sdk_read(cluster: Cluster, topic: str, count: int) -> list[Sent]:
    from tidelog import TopicPartition

    found: list[Sent] = []
    with cluster.consumer() as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        while len(found) < count:
            records = consumer.poll(timeout=30)
            assert records, f"{len(found)} of {count} records"
            found += [Sent(one.key, one.value, tuple(one.headers), one.timestamp) for one in records]
    return found
