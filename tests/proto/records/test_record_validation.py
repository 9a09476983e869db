"""Batches that a leader refuses, with Kafka's codes."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.proto.records.batches import Batch, set_log_append_time, sign, split_batches
from tidelog.proto.records.compression import Compression
from tidelog.proto.records.control_batches import ControlKind, encode_control_batch
from tidelog.proto.records.encoder import BatchBuilder, encode_values
from tidelog.proto.records.validation import validate_for_append

T = 1_700_000_000_000
FIELDS = {
    "base_offset": (0, ">q"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "record_count": (57, ">i"),
}


def batch(*, sign_again: bool = True, changes: dict[str, int] | None = None, **producer: Any) -> Batch:
    raw = encode_values([b"one", b"two"], T, **producer)
    for name, number in (changes or {}).items():
        at, form = FIELDS[name]
        struct.pack_into(form, raw, at, number)
    if sign_again:
        sign(raw)
    return split_batches(raw)[0]


def code_of(found: Batch, **options: Any) -> ErrorCode | None:
    refusal = validate_for_append(found, **{"message_max_bytes": 1 << 20, **options})
    if refusal is None:
        return None
    assert "expected" in refusal.message
    return refusal.code


@pytest.mark.parametrize("kind", Compression)
def test_what_a_client_writes_is_taken(kind: Compression) -> None:
    assert code_of(batch(compression=kind)) is None
    assert code_of(batch(compression=kind, producer_id=0, producer_epoch=0, base_sequence=0)) is None
    transactional = batch(compression=kind, producer_id=9, producer_epoch=1, base_sequence=4, is_transactional=True)
    assert code_of(transactional) is None


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (batch(changes={"base_offset": 1}), ErrorCode.INVALID_RECORD),
        (batch(changes={"base_offset": -1}), ErrorCode.INVALID_RECORD),
        (batch(changes={"record_count": 0, "last_offset_delta": -1}), ErrorCode.INVALID_RECORD),
        (batch(changes={"record_count": -1}), ErrorCode.INVALID_RECORD),
        (batch(changes={"record_count": 3}), ErrorCode.INVALID_RECORD),
        (batch(changes={"last_offset_delta": 2}), ErrorCode.INVALID_RECORD),
        (batch(changes={"last_offset_delta": -1}), ErrorCode.INVALID_RECORD),
        (batch(changes={"attributes": 0x20}), ErrorCode.INVALID_RECORD),
        (batch(changes={"attributes": 0x10}), ErrorCode.INVALID_RECORD),
        (batch(changes={"attributes": 5}), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (batch(changes={"attributes": 7}), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (batch(changes={"attributes": 8}), ErrorCode.INVALID_TIMESTAMP),
        (batch(producer_id=9), ErrorCode.INVALID_RECORD),
        (batch(producer_id=9, producer_epoch=0), ErrorCode.INVALID_RECORD),
        (batch(producer_id=9, base_sequence=0), ErrorCode.INVALID_RECORD),
        (batch(changes={"record_count": 1}, sign_again=False), ErrorCode.CORRUPT_MESSAGE),
    ],
    ids=repr,
)
def test_refused_with_kafkas_code(found: Batch, code: ErrorCode) -> None:
    assert code_of(found) is code


def test_markers_are_for_brokers_alone() -> None:
    raw = encode_control_batch(ControlKind.COMMIT, timestamp=T, producer_id=1, producer_epoch=0, coordinator_epoch=0)
    assert code_of(split_batches(raw)[0]) is ErrorCode.INVALID_RECORD


def test_log_append_time_is_set_by_leaders_alone() -> None:
    assert code_of(split_batches(set_log_append_time(batch(), T))[0]) is ErrorCode.INVALID_TIMESTAMP


def test_every_flipped_bit_is_refused() -> None:
    raw = encode_values([b"value"], T)
    for bit in range(17 * 8, len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        assert code_of(split_batches(flipped)[0]) is ErrorCode.CORRUPT_MESSAGE, bit


def test_size_bound_is_exact() -> None:
    found = batch()
    assert code_of(found, message_max_bytes=found.size) is None
    assert code_of(found, message_max_bytes=found.size - 1) is ErrorCode.MESSAGE_TOO_LARGE


def test_times_beyond_the_topics_bounds() -> None:
    builder = BatchBuilder()
    builder.append(T - 100, None, b"")
    builder.append(T + 100, None, b"")
    found = split_batches(builder.build())[0]
    assert code_of(found, now_ms=T) is None
    assert code_of(found, now_ms=T, timestamp_before_max_ms=100, timestamp_after_max_ms=100) is None
    assert code_of(found, now_ms=T, timestamp_before_max_ms=99) is ErrorCode.INVALID_TIMESTAMP
    assert code_of(found, now_ms=T, timestamp_after_max_ms=99) is ErrorCode.INVALID_TIMESTAMP
    assert code_of(found, timestamp_before_max_ms=0, timestamp_after_max_ms=0) is None, "no time to compare with"
