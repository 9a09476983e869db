"""Large records, records that are too large, and answers that are larger than a reader asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.kafka.kafka_clients import READERS, Sent, confluent_produce, confluent_read
from tidelog.testing.cluster import Cluster

LARGE = 5 * 2**20


def test_a_record_of_five_mebibytes(kafka_cluster: Cluster, topic_name: Callable[..., str]) -> None:
    from confluent_kafka import Producer

    topic, bootstrap = topic_name("large"), kafka_cluster.kafka_bootstrap
    kafka_cluster.create_topic(topic, config={"max.message.bytes": str(2 * LARGE)})
    value = bytes(range(256)) * (LARGE // 256)
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 2 * LARGE})
    producer.produce(topic, value, b"key", 0, timestamp=1_700_000_000_000)
    assert producer.flush(30) == 0
    for name, read in READERS.items():  # their fetch limits are smaller: the first batch comes whatever its size
        assert read(bootstrap, topic, 0, 1) == [Sent(b"key", value, (), 1_700_000_000_000)], name


def test_a_small_fetch_limit_only_makes_it_slower(kafka_cluster: Cluster, topic_name: Callable[..., str]) -> None:
    topic, bootstrap = topic_name("small"), kafka_cluster.kafka_bootstrap
    kafka_cluster.create_topic(topic)
    records = [Sent(None, b"%d" % number * 500, (), 1_700_000_000_000) for number in range(50)]
    for sent in records[:10]:
        confluent_produce(bootstrap, topic, 0, [sent], "none")
    confluent_produce(bootstrap, topic, 0, records[10:], "none")
    limits = {"fetch.max.bytes": 1000, "max.partition.fetch.bytes": 1000, "message.max.bytes": 1000}
    assert confluent_read(bootstrap, topic, 0, len(records), **limits) == records


@pytest.mark.parametrize("idempotent", [False, True])
def test_too_large_a_record_is_refused_and_costs_the_others_nothing(
    kafka_cluster: Cluster, topic_name: Callable[..., str], idempotent: bool
) -> None:
    from confluent_kafka import KafkaError, Producer

    topic, bootstrap = topic_name("limited"), kafka_cluster.kafka_bootstrap
    kafka_cluster.create_topic(topic, config={"max.message.bytes": "2000"})
    outcomes: dict[bytes, Any] = {}
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": idempotent, "batch.num.messages": 1}
    )
    for number in range(5):
        value = b"%d" % number + b"x" * (3000 if number == 2 else 10)
        producer.produce(
            topic,
            value,
            partition=0,
            on_delivery=lambda error, message: outcomes.update({(message.value() or b"")[:1]: error}),
        )
    assert producer.flush(30) == 0
    assert outcomes[b"2"].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert [outcomes[b"%d" % number] for number in (0, 1, 3, 4)] == [None] * 4
    found = confluent_read(bootstrap, topic, 0, 4)
    assert [one.value[:1] for one in found if one.value is not None] == [b"0", b"1", b"3", b"4"]


def test_a_record_of_the_future_or_past_is_refused_where_the_topic_says_so(
    kafka_cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    from kafka import KafkaProducer
    from kafka.errors import InvalidTimestampError

    topic, bootstrap = topic_name("punctual"), kafka_cluster.kafka_bootstrap
    kafka_cluster.create_topic(topic, config={"message.timestamp.before.max.ms": "60000"})
    producer = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=False)  # it ends with its first refusal
    try:
        with pytest.raises(InvalidTimestampError):
            producer.send(topic, b"old", partition=0, timestamp_ms=1_000_000).get(30)
        assert producer.send(topic, b"new", partition=0).get(30).offset == 0
    finally:
        producer.close()


def test_log_append_time_is_told_to_producer_and_reader(kafka_cluster: Cluster, topic_name: Callable[..., str]) -> None:
    from kafka import KafkaProducer

    topic, bootstrap = topic_name("stamped"), kafka_cluster.kafka_bootstrap
    kafka_cluster.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    try:
        told = producer.send(topic, b"value", partition=0, timestamp_ms=1_700_000_000_000).get(30)
    finally:
        producer.close()
    assert told.timestamp > 1_700_000_000_000
    for name, read in READERS.items():
        assert read(bootstrap, topic, 0, 1) == [Sent(None, b"value", (), told.timestamp)], name
