"""Fetch by hand against kio's readers and writers, every version."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, NodeId, Offset, ProducerId, TopicId
from tidelog.proto.kafka.endpoints import NodeEndpoint
from tidelog.proto.kafka.fetch_codec import (
    API_KEY,
    BY_ID,
    LEAST,
    MOST,
    PARTITIONS_MAX,
    decode_fetch,
    encode_fetch_refused,
    encode_fetched,
)
from tidelog.proto.kafka.messages import decode_response, encode_request
from tidelog.proto.kafka.wire import BadMessage
from tidelog.proto.transport.frames import FetchedPartition

VERSIONS = range(LEAST, MOST + 1)


def request_values(rng: random.Random) -> dict[str, Any]:
    def topics(item: Any) -> list[dict[str, Any]]:
        return [
            {
                "topic": "tä" * rng.randint(1, 80),
                "topic_id": rng.randbytes(16),
                "partitions": [item() for _ in range(rng.randint(0, 3))],
            }
            for _ in range(rng.randint(0, 3))
        ]

    return {
        "replica_id": -1,
        "max_wait": rng.randrange(1 << 31),
        "min_bytes": rng.randrange(1 << 31),
        "max_bytes": rng.randrange(1 << 31),
        "isolation_level": rng.randint(0, 1),
        "session_id": rng.randrange(1 << 31),
        "session_epoch": rng.randint(-1, 100),
        "rack_id": "r" * rng.randint(0, 200),
        "topics": topics(
            lambda: {
                "partition": rng.randrange(1 << 31),
                "current_leader_epoch": rng.randint(-1, 100),
                "fetch_offset": rng.randrange(1 << 62),
                "last_fetched_epoch": rng.randint(-1, 100),
                "log_start_offset": rng.randint(-1, 100),
                "partition_max_bytes": rng.randrange(1 << 31),
            }
        ),
        "forgotten_topics_data": topics(lambda: rng.randrange(1 << 31)),
        "cluster_id": rng.choice([None, "c"]),
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", range(10))
def test_requests_are_read_as_written_from_the_schema(version: int, seed: int) -> None:
    values = request_values(random.Random(seed))
    found = decode_fetch(version, memoryview(encode_request(API_KEY, version, values)))
    assert (found.replica_id, found.wait_ms_max, found.bytes_min, found.bytes_max, found.isolation_level) == (
        -1,
        values["max_wait"],
        values["min_bytes"],
        values["max_bytes"],
        values["isolation_level"],
    )
    session = (values["session_id"], values["session_epoch"]) if version >= 7 else (0, -1)
    assert (found.session_id, found.session_epoch) == session
    assert [(name, list(dropped)) for name, dropped in found.forgotten] == [
        (topic["topic_id"] if version >= BY_ID else topic["topic"].encode(), topic["partitions"])
        for topic in values["forgotten_topics_data"]
        if version >= 7
    ]
    assert found.rack == (values["rack_id"] if version >= 11 else "")
    assert list(found.topics) == [
        (topic["topic_id"] if version >= BY_ID else topic["topic"].encode(), len(topic["partitions"]))
        for topic in values["topics"]
    ]
    since = {"current_leader_epoch": 9, "last_fetched_epoch": 12, "log_start_offset": 5}
    names = (
        "partition", "current_leader_epoch", "fetch_offset", "last_fetched_epoch", "log_start_offset",
        "partition_max_bytes",
    )  # fmt: skip
    assert [tuple(part) for part in found.parts] == [
        tuple(item[name] if version >= since.get(name, 0) else -1 for name in names)
        for topic in values["topics"]
        for item in topic["partitions"]
    ]


def test_a_followers_state_is_found_where_later_versions_put_it() -> None:
    body = encode_request(API_KEY, 15, {"replica_state": {"replica_id": 3, "replica_epoch": 9}})
    assert decode_fetch(15, memoryview(body)).replica_id == 3


@pytest.mark.parametrize("version", VERSIONS)
def test_responses_are_read_by_the_schema_as_they_were_meant(version: int) -> None:
    ids = [TopicId(b"i" * 16), TopicId(b"j" * 16)]
    results = [
        FetchedPartition(
            ids[0],
            0,
            ErrorCode.NONE,
            Offset(20),
            Offset(18),
            Offset(2),
            aborted=[(ProducerId(7), Offset(11)), (ProducerId(8), Offset(12))],
            records=(b"first", memoryview(b"second")),
        ),
        FetchedPartition(ids[0], 300, ErrorCode.NONE, Offset(5), Offset(5), Offset(0)),
        FetchedPartition(
            ids[1],
            1,
            ErrorCode.FENCED_LEADER_EPOCH,
            current_leader=NodeId(4),
            current_leader_epoch=LeaderEpoch(9),
            diverging_epoch=LeaderEpoch(6),
            diverging_end_offset=Offset(99),
        ),
    ]
    names = [("a" * 200, 2), ("b", 1)]
    wire = [
        (topic_id if version >= BY_ID else name.encode(), count)
        for topic_id, (name, count) in zip(ids, names, strict=True)
    ]
    endpoint = NodeEndpoint(4, "host", 9096, None)
    pieces = encode_fetched(version, b"HEAD", wire, results, [endpoint])
    whole = b"".join(
        b"".join(piece.records) if isinstance(piece, FetchedPartition) else bytes(piece) for piece in pieces
    )
    assert whole[:4] == b"HEAD"
    found = decode_response(API_KEY, version, whole[4:])
    if version >= 7:
        assert (found.error_code, found.session_id) == (0, 0)
    if version >= BY_ID:
        assert [topic.topic_id for topic in found.responses] == ids
    else:
        assert [topic.topic for topic in found.responses] == [name for name, _ in names]
    first, second, third = (item for topic in found.responses for item in topic.partitions)
    assert (first.partition_index, first.high_watermark, first.last_stable_offset) == (0, 20, 18)
    assert [tuple(each) for each in first.aborted_transactions] == [(7, 11), (8, 12)]
    assert first.records == b"firstsecond"
    assert (second.partition_index, second.records) == (300, b"")
    assert (third.error_code, third.records) == (ErrorCode.FENCED_LEADER_EPOCH, b"")
    if version >= 5:
        assert first.log_start_offset == 2
    if version >= 11:
        assert first.preferred_read_replica == -1
    if version >= 12:
        assert tuple(third.current_leader) == (4, 9)
        assert tuple(third.diverging_epoch) == (6, 99)
        assert first.current_leader.leader_id == -1
    if version >= 16:
        assert [tuple(node) for node in found.node_endpoints] == [tuple(endpoint)]


@pytest.mark.parametrize("version", range(7, MOST + 1))
def test_a_refusal_of_the_whole_request(version: int) -> None:
    found = decode_response(API_KEY, version, encode_fetch_refused(version, b"", 70))
    assert (found.error_code, found.session_id, found.responses) == (70, 0, ())


def test_a_request_of_too_many_partitions_is_refused() -> None:
    body = encode_request(API_KEY, 4, {})[:-4] + (PARTITIONS_MAX + 1).to_bytes(4, "big")
    with pytest.raises(BadMessage, match=f"at most {PARTITIONS_MAX}"):
        decode_fetch(4, memoryview(body))


@given(st.integers(LEAST, MOST), st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(version: int, data: bytes) -> None:
    try:
        decode_fetch(version, memoryview(data))
    except BadMessage as bad:
        assert "expected" in str(bad) or "ends early" in str(bad)


@given(st.integers(LEAST, MOST), st.integers(0), st.integers(0), st.integers(0, 255))
def test_a_request_with_one_byte_changed_is_a_request_or_refused(version: int, seed: int, at: int, byte: int) -> None:
    data = bytearray(encode_request(API_KEY, version, request_values(random.Random(seed))))
    data[at % len(data)] = byte
    try:
        found = decode_fetch(version, memoryview(data))
    except BadMessage:
        return
    assert sum(count for _, count in found.topics) == len(found.parts)
