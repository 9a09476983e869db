"""Produce and fetch frames: they survive encoding and decoding, and garbage is refused as garbage."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import BrokerEpoch, LeaderEpoch, NodeId, Offset, TopicId
from tidelog.proto.transport import frames
from tidelog.proto.transport.frames import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
)
from tidelog.proto.transport.network import BadFrame, Frame

i16 = st.integers(-(1 << 15), (1 << 15) - 1)
i32 = st.integers(-(1 << 31), (1 << 31) - 1)
u32 = st.integers(0, (1 << 32) - 1)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
topic_ids = st.binary(min_size=16, max_size=16)
codes = st.sampled_from(ErrorCode)
texts = st.text(st.characters(codec="utf-8"), max_size=40)
pieces = st.binary(max_size=80)

produce_requests = st.builds(
    ProduceRequest,
    acks=i16,
    timeout_ms=u32,
    partitions=st.lists(st.builds(ProducePartition, topic_ids, i32, pieces), max_size=5),
    transactional_id=st.none() | texts.filter(bool),
)
produce_responses = st.lists(
    st.builds(ProducedPartition, topic_ids, i32, codes, i64, i64, i64, i32, i32, texts, refused_records=st.just(())),
    max_size=5,
)
fetch_requests = st.builds(
    FetchRequest,
    replica_id=i32,
    replica_epoch=i64,
    wait_ms_max=u32,
    bytes_min=u32,
    bytes_max=u32,
    read_committed=st.booleans(),
    partitions=st.lists(st.builds(FetchPartition, topic_ids, i32, i32, i64, i32, i64, u32), max_size=5),
    forgotten=st.lists(st.tuples(topic_ids, i32), max_size=5),
    rack=texts,
)
fetch_responses = st.builds(
    FetchResponse,
    codes,
    st.lists(
        st.builds(
            FetchedPartition,
            topic_id=topic_ids,
            partition=i32,
            error=codes,
            high_watermark=i64,
            last_stable_offset=i64,
            log_start_offset=i64,
            diverging_epoch=i32,
            diverging_end_offset=i64,
            current_leader=i32,
            current_leader_epoch=i32,
            preferred_read_replica=i32,
            aborted=st.lists(st.tuples(i64, i64), max_size=3),
            records=st.lists(pieces, max_size=3),
        ),
        max_size=4,
    ),
)

DECODERS: list[Callable[[memoryview], Any]] = [
    frames.decode_produce_request,
    frames.decode_produce_response,
    frames.decode_fetch_request,
    frames.decode_fetch_response,
]


def joined(frame: Frame) -> memoryview:
    return memoryview(b"".join(frame))


@given(u32, produce_requests)
def test_produce_request_round_trip(correlation: int, request: ProduceRequest) -> None:
    frame = joined(frames.encode_produce_request(correlation, request))
    assert frames.correlation_of(frame) == correlation
    assert frames.decode_produce_request(frame) == (correlation, request)


@given(u32, produce_responses)
def test_produce_response_round_trip(correlation: int, response: list[ProducedPartition]) -> None:
    frame = joined(frames.encode_produce_response(correlation, response))
    assert frames.decode_produce_response(frame) == (correlation, response)


@given(u32, fetch_requests)
def test_fetch_request_round_trip(correlation: int, request: FetchRequest) -> None:
    frame = joined(frames.encode_fetch_request(correlation, request))
    assert frames.decode_fetch_request(frame) == (correlation, request)


@given(u32, fetch_responses)
def test_fetch_response_round_trip(correlation: int, response: FetchResponse) -> None:
    frame = joined(frames.encode_fetch_response(correlation, response))
    found_correlation, found = frames.decode_fetch_response(frame)
    assert found_correlation == correlation
    assert found.error == response.error
    for ours, theirs in zip(found.partitions, response.partitions, strict=True):
        assert b"".join(ours.records) == b"".join(theirs.records)
        for name in FetchedPartition.__slots__:
            if name != "records":
                assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize("decode", DECODERS)
@given(data=st.binary(max_size=200))
def test_random_bytes_are_refused_or_read(decode: Callable[[memoryview], Any], data: bytes) -> None:
    for frame in (data, b"\x01" + data):
        try:
            decode(memoryview(frame))
        except BadFrame as refused:
            assert re.search("expected .*found|cannot be read: |ends early: |not UTF-8: ", str(refused))


@settings(max_examples=300)
@given(st.data())
def test_mutated_frames_are_refused_or_read(data: st.DataObject) -> None:
    index = data.draw(st.integers(0, 3))
    encoded = [
        lambda: frames.encode_produce_request(7, data.draw(produce_requests)),
        lambda: frames.encode_produce_response(7, data.draw(produce_responses)),
        lambda: frames.encode_fetch_request(7, data.draw(fetch_requests)),
        lambda: frames.encode_fetch_response(7, data.draw(fetch_responses)),
    ][index]()
    frame = bytearray(joined(encoded))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    del frame[data.draw(st.integers(0, len(frame))) :]
    try:
        DECODERS[index](memoryview(frame))
    except BadFrame:
        pass


@given(st.data())
def test_every_truncation_and_every_extra_byte_is_refused(data: st.DataObject) -> None:
    encoders: list[Callable[[], Frame]] = [
        lambda: frames.encode_produce_request(7, data.draw(produce_requests)),
        lambda: frames.encode_produce_response(7, data.draw(produce_responses)),
        lambda: frames.encode_fetch_request(7, data.draw(fetch_requests)),
        lambda: frames.encode_fetch_response(7, data.draw(fetch_responses)),
    ]
    index = data.draw(st.integers(0, 3))
    frame = joined(encoders[index]())
    with pytest.raises(BadFrame):
        DECODERS[index](memoryview(bytes(frame) + b"\0"))
    for size in range(len(frame)):
        with pytest.raises(BadFrame):
            DECODERS[index](frame[:size])


def test_another_version_is_named() -> None:
    with pytest.raises(BadFrame, match="expected frame version 1, found 9"):
        frames.correlation_of(memoryview(b"\x09\0\0\0\0"))


def test_received_records_are_slices_of_the_frame() -> None:
    request = ProduceRequest(-1, 1000, [ProducePartition(TopicId(bytes(16)), 0, b"records")])
    frame = joined(frames.encode_produce_request(1, request))
    _, found = frames.decode_produce_request(frame)
    records = found.partitions[0].records
    assert isinstance(records, memoryview)
    assert records.obj is frame.obj


def test_error_code_of_a_newer_peer_reads_as_unknown() -> None:
    answer = ProducedPartition(TopicId(bytes(16)), 0, ErrorCode.NONE)
    frame = bytearray(joined(frames.encode_produce_response(1, [answer])))
    at = 5 + 2 + 16 + 4
    frame[at : at + 2] = (32000).to_bytes(2, "big")
    _, (found,) = frames.decode_produce_response(memoryview(frame))
    assert found.error is ErrorCode.UNKNOWN_SERVER_ERROR


def test_long_error_message_is_cut_to_what_the_frame_holds() -> None:
    answer = ProducedPartition(TopicId(bytes(16)), 0, ErrorCode.INVALID_RECORD, error_message="é" * 70_000)
    _, (found,) = frames.decode_produce_response(joined(frames.encode_produce_response(1, [answer])))
    assert found.error_message.startswith("é" * 32_767)
    assert len(found.error_message) <= 32_768


def test_one_fetch_forgets_as_many_partitions_as_followers_name() -> None:
    def fetch(count: int) -> FetchRequest:
        forgotten = [(TopicId(bytes(16)), number) for number in range(count)]
        request = FetchRequest(NodeId(1), BrokerEpoch(1), 500, 1, 1 << 20, False, (), forgotten)
        return frames.decode_fetch_request(joined(frames.encode_fetch_request(1, request)))[1]

    assert len(fetch(frames.FORGOTTEN_MAX).forgotten) == frames.FORGOTTEN_MAX
    with pytest.raises(BadFrame, match="forgotten partitions, found 65536"):
        fetch(frames.FORGOTTEN_MAX + 1)


def test_fetch_positions_keep_their_names() -> None:
    item = FetchPartition(TopicId(b"t" * 16), 3, LeaderEpoch(5), Offset(77), LeaderEpoch(4), Offset(11), 1 << 20)
    request = FetchRequest(NodeId(2), BrokerEpoch(9), 500, 1, 1 << 22, True, [item], (), "rack-a")
    _, found = frames.decode_fetch_request(joined(frames.encode_fetch_request(1, request)))
    assert found.partitions[0] == item
    assert (found.replica_id, found.replica_epoch, found.rack, found.read_committed) == (2, 9, "rack-a", True)
