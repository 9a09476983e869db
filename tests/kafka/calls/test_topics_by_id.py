"""The newest versions, in which requests name topics by id (KIP-516, KIP-848), and what else they brought."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.kafka.wire_client import WireClient
from tidelog.model.errors import ErrorCode
from tidelog.proto.records.encoder import encode_values
from tidelog.testing.cluster import Cluster

PRODUCE, FETCH, LIST_OFFSETS, COMMIT, FETCH_OFFSETS, LIST_TRANSACTIONS = 0, 1, 2, 8, 9, 66
BOUND_S = 60.0
UNKNOWN_ID = bytes(range(16))
RECORDS = bytes(encode_values([b"x"] * 3, 0))


def test_records_and_offsets_by_id(kafka_cluster: Cluster, topic_name: Callable[..., str]) -> None:
    topic = topic_name("by-id")
    kafka_cluster.create_topic(topic)
    with kafka_cluster.admin() as admin:
        (described,) = admin.describe_topics([topic])
    topic_id = described.topic_id
    with WireClient(kafka_cluster.kafka_bootstrap) as wire:
        topics = [
            {"topic_id": each, "partition_data": [{"index": 0, "records": RECORDS}]} for each in (UNKNOWN_ID, topic_id)
        ]
        done = wire.ask(PRODUCE, 13, transactional_id=None, acks=1, timeout=9_000, topic_data=topics).responses
        assert [(each.topic_id, each.partition_responses[0].error_code) for each in done] == [
            (UNKNOWN_ID, ErrorCode.UNKNOWN_TOPIC_ID),
            (topic_id, 0),
        ]
        wanted = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "high_watermark": 5}
        (found,) = wire.ask(
            FETCH, 18, max_wait=9_000, min_bytes=1, topics=[{"topic_id": topic_id, "partitions": [wanted]}]
        ).responses
        assert (found.partitions[0].error_code, found.partitions[0].high_watermark) == (0, 3)
        times = [{"partition_index": 0, "timestamp": timestamp} for timestamp in (-1, -6)]
        for version, errors in ((10, [0, ErrorCode.UNSUPPORTED_VERSION]), (11, [0, 0])):
            listed = [
                wire.ask(LIST_OFFSETS, version, replica_id=-1, topics=[{"name": topic, "partitions": [each]}])
                for each in times
            ]
            assert [each.topics[0].partitions[0].error_code for each in listed] == errors
        group = f"g-{topic}"
        deadline = time.monotonic() + BOUND_S
        while _committed(wire, group, topic_id):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        asked = [{"topic_id": each, "partition_indexes": [0]} for each in (topic_id, UNKNOWN_ID)]
        (answer,) = wire.ask(FETCH_OFFSETS, 10, groups=[{"group_id": group, "topics": asked}]).groups
        assert {each.topic_id: each.partitions[0].committed_offset for each in answer.topics} == {
            topic_id: 2,
            UNKNOWN_ID: -1,
        }


def _committed(wire: WireClient, group: str, topic_id: bytes) -> int:
    """The error."""
    wire.ask(10, 3, key=group)
    item = {"partition_index": 0, "committed_offset": 2}
    topics = [{"topic_id": topic_id, "partitions": [item]}]
    return int(wire.ask(COMMIT, 10, group_id=group, topics=topics).topics[0].partitions[0].error_code)


def test_transactions_by_a_pattern_of_their_ids(kafka_cluster: Cluster) -> None:
    with WireClient(kafka_cluster.kafka_bootstrap) as wire:
        answer = wire.ask(LIST_TRANSACTIONS, 2, transactional_id_pattern="(?=a)")
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
