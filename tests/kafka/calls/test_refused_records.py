"""A refused batch says which of its records are to blame (KIP-467), in every version that can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_OFFSET, TopicId
from tidelog.proto.kafka.messages import decode_response
from tidelog.proto.kafka.produce_codec import encode_produced
from tidelog.proto.transport.frames import ProducedPartition
from tidelog.testing.cluster import Cluster


def test_keyless_records_of_a_compacted_topic_are_told_from_those_that_only_stood_beside_them(
    kafka_cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    from confluent_kafka import KafkaError, Producer

    topic = topic_name("compacted")
    kafka_cluster.create_topic(topic, config={"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": kafka_cluster.kafka_bootstrap, "linger.ms": 200})
    codes: dict[bytes, int] = {}

    def done(error: Any, message: Any) -> None:
        codes[message.value()] = error.code()

    for number in range(20):
        key = None if number % 5 == 0 else b"key"
        producer.produce(topic, b"%d" % number, key, 0, on_delivery=done)
    assert producer.flush(30) == 0
    blamed = {int(value) for value, code in codes.items() if code == KafkaError.INVALID_RECORD}
    beside = {int(value) for value, code in codes.items() if code == KafkaError._INVALID_DIFFERENT_RECORD}
    assert blamed == {0, 5, 10, 15}
    assert beside == set(range(20)) - blamed


@pytest.mark.parametrize("version", range(8, 13))
def test_refused_records_stand_in_the_answer(version: int) -> None:
    answer = ProducedPartition(
        TopicId(bytes(16)), 3, ErrorCode.INVALID_RECORD, NO_OFFSET, error_message="no key", refused_records=(1, 4)
    )
    body = encode_produced(version, b"", [(b"topic", 1)], [answer])
    (topic,) = decode_response(0, version, bytes(body)).responses
    (partition,) = topic.partition_responses
    assert partition.error_code == ErrorCode.INVALID_RECORD
    assert [one.batch_index for one in partition.record_errors] == [1, 4]
    assert partition.error_message == "no key"
