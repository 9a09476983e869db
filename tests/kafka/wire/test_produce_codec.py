"""Produce by hand against kio's readers and writers, every version."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, NodeId, Offset, TopicId
from tidelog.proto.kafka.endpoints import NodeEndpoint
from tidelog.proto.kafka.messages import decode_response, encode_request
from tidelog.proto.kafka.produce_codec import API_KEY, BY_ID, MOST, PARTITIONS_MAX, decode_produce, encode_produced
from tidelog.proto.kafka.wire import BadMessage, write_compact_length
from tidelog.proto.transport.frames import ProducedPartition

VERSIONS = range(3, MOST + 1)
ID = TopicId(bytes(16))


def request_values(rng: random.Random) -> dict[str, Any]:
    return {
        "transactional_id": rng.choice([None, "", "t" * 200]),
        "acks": rng.choice([-1, 0, 1]),
        "timeout": rng.randrange(1 << 31),
        "topic_data": [
            {
                "name": "tä" * rng.randint(1, 80),
                "topic_id": rng.randbytes(16),
                "partition_data": [
                    {"index": rng.randrange(1 << 31), "records": rng.choice([None, b"", rng.randbytes(300)])}
                    for _ in range(rng.randint(0, 3))
                ],
            }
            for _ in range(rng.randint(0, 3))
        ],
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", range(10))
def test_requests_are_read_as_written_from_the_schema(version: int, seed: int) -> None:
    values = request_values(random.Random(seed))
    body = memoryview(encode_request(API_KEY, version, values))
    found = decode_produce(version, body)
    assert (found.transactional_id, found.acks, found.timeout_ms) == (
        values["transactional_id"],
        values["acks"],
        values["timeout"],
    )
    assert found.topics == [
        (topic["topic_id"] if version >= BY_ID else topic["name"].encode(), len(topic["partition_data"]))
        for topic in values["topic_data"]
    ]
    assert [(partition, records) for partition, records in found.parts] == [
        (item["index"], item["records"]) for topic in values["topic_data"] for item in topic["partition_data"]
    ]
    for _, records in found.parts:
        assert records is None or records.obj is body.obj, "the records were copied"


def test_the_versions_before_record_batches_are_read_too() -> None:
    """Their body is that of version 3 without the transactional id."""
    values = request_values(random.Random(3)) | {"transactional_id": None}
    body = memoryview(encode_request(API_KEY, 3, values))[2:]
    for version in range(3):
        found = decode_produce(version, body)
        assert (found.acks, len(found.topics)) == (values["acks"], len(values["topic_data"]))


@pytest.mark.parametrize("version", VERSIONS)
def test_responses_are_read_by_the_schema_as_they_were_meant(version: int) -> None:
    results = [
        ProducedPartition(ID, 0, ErrorCode.NONE, Offset(17), 1234, Offset(3)),
        ProducedPartition(
            ID,
            1,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            current_leader=NodeId(4),
            current_leader_epoch=LeaderEpoch(9),
            error_message="elsewhere",
        ),
        ProducedPartition(ID, 300, ErrorCode.NONE, Offset(1 << 40)),
    ]
    names = (b"a" * 200, b"b", b"c") if version < BY_ID else (b"A" * 16, b"B" * 16, b"C" * 16)
    topics = list(zip(names, (2, 1, 0), strict=True))
    endpoint = NodeEndpoint(4, "host", 9096, "rack")
    out = encode_produced(version, b"HEAD", topics, results, [endpoint])
    assert out[:4] == b"HEAD"
    found = decode_response(API_KEY, version, bytes(out[4:]))
    assert [
        (topic.topic_id if version >= BY_ID else topic.name.encode(), len(topic.partition_responses))
        for topic in found.responses
    ] == topics
    items = [item for topic in found.responses for item in topic.partition_responses]
    assert [(item.index, item.error_code, item.base_offset) for item in items] == [
        (0, 0, 17),
        (1, 6, -1),
        (300, 0, 1 << 40),
    ]
    assert items[0].log_append_time == 1234
    if version >= 5:
        assert items[0].log_start_offset == 3
    if version >= 8:
        assert [item.error_message for item in items] == [None, "elsewhere", None]
    if version >= 10:
        assert (items[1].current_leader.leader_id, items[1].current_leader.leader_epoch) == (4, 9)
        assert items[0].current_leader.leader_id == -1
        assert [tuple(node) for node in found.node_endpoints] == [tuple(endpoint)]


@pytest.mark.parametrize("version", [3, 9])
def test_a_request_of_too_many_partitions_is_refused(version: int) -> None:
    head = encode_request(API_KEY, version, {"acks": 1, "timeout": 1})
    count = bytearray()
    write_compact_length(count, PARTITIONS_MAX + 1)
    body = head[:-2] + count if version == 9 else head[:-4] + (PARTITIONS_MAX + 1).to_bytes(4, "big")
    with pytest.raises(BadMessage, match=f"at most {PARTITIONS_MAX}"):
        decode_produce(version, memoryview(body))


@given(st.integers(0, MOST), st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(version: int, data: bytes) -> None:
    try:
        decode_produce(version, memoryview(data))
    except BadMessage as bad:
        assert "expected" in str(bad) or "ends early" in str(bad)


@given(st.integers(3, MOST), st.integers(0), st.integers(0), st.integers(0, 255))
def test_a_request_with_one_byte_changed_is_a_request_or_refused(version: int, seed: int, at: int, byte: int) -> None:
    data = bytearray(encode_request(API_KEY, version, request_values(random.Random(seed))))
    data[at % len(data)] = byte
    try:
        found = decode_produce(version, memoryview(data))
    except BadMessage:
        return
    assert sum(count for _, count in found.topics) == len(found.parts)
