"""Record batches against a plain model of the format, written byte by byte from its description."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidelog.proto.records.batches import (
    HEADER_SIZE,
    Batch,
    CorruptBatch,
    patch_batch,
    patched_header,
    set_log_append_time,
    set_producer_state,
    split_batches,
)
from tidelog.proto.records.compression import Compression
from tidelog.proto.records.control_batches import ControlKind, decode_control, encode_control_batch
from tidelog.proto.records.decoder import (
    Record,
    decode_fields,
    decode_records,
    decode_values,
)
from tidelog.proto.records.encoder import BatchBuilder, encode_columns, encode_values

T = 1_700_000_000_000

# --- The model -----------------------------------------------------------------------------------


def model_varint(number: int) -> bytes:
    zigzag = number * 2 if number >= 0 else -number * 2 - 1
    digits = [zigzag >> shift & 127 for shift in range(0, max(1, zigzag.bit_length()), 7)]
    return bytes([digit + 128 for digit in digits[:-1]] + digits[-1:])


def model_sized(data: bytes | None) -> bytes:
    return model_varint(-1) if data is None else model_varint(len(data)) + data


def model_batch(records: Sequence[tuple[Any, ...]], producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    first = records[0][0]
    body = b""
    for delta, (timestamp, key, value, headers) in enumerate(records):
        inner = b"\0" + model_varint(timestamp - first) + model_varint(delta) + model_sized(key) + model_sized(value)
        inner += model_varint(len(headers))
        for name, content in headers:
            inner += model_sized(name.encode()) + model_sized(content)
        body += model_varint(len(inner)) + inner
    signed = struct.pack(">hiqq", 0, len(records) - 1, first, max(record[0] for record in records))
    signed += struct.pack(">qhi", *producer) + struct.pack(">i", len(records)) + body
    return struct.pack(">qiibI", 0, len(signed) + 9, -1, 2, crc32c(signed)) + signed


# --- Strategies ----------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=12)
blobs = st.none() | st.binary(max_size=20) | st.integers(50, 140).map(lambda size: b"x" * size)
times = st.integers(T - 100, T + 100) | st.integers(0, (1 << 62) - 1)
header_lists = st.just(()) | st.lists(st.tuples(texts, blobs), max_size=4).map(tuple)
records_lists = st.lists(st.tuples(times, blobs, blobs, header_lists), min_size=1, max_size=90)
compressions = st.sampled_from(Compression)


def build(records: Sequence[tuple[Any, ...]], compression: Compression = Compression.NONE) -> bytearray:
    builder = BatchBuilder(compression)
    for timestamp, key, value, headers in records:
        builder.append(timestamp, key, value, headers)
    return builder.build()


def one(data: bytes | bytearray) -> Batch:
    (batch,) = split_batches(data)
    return batch


# --- Encoding ------------------------------------------------------------------------------------


@given(records_lists)
@example([(T, None, b"v" * size, ()) for size in (0, 63, 64, 8191, 8192, 16384, 1 << 20, (1 << 20) + 1)])
@example([(T, None, b"", ())] * 8200)
@example([(-1, None, None, ()), (-1 + (1 << 62) - 1, None, None, ()), (-1 - (1 << 62) + 1, None, None, ())])
def test_builder_writes_what_the_model_writes(records: list[tuple[Any, ...]]) -> None:
    assert build(records) == model_batch(records)


@given(records_lists, compressions)
@settings(max_examples=200)
def test_what_is_encoded_decodes(records: list[tuple[Any, ...]], compression: Compression) -> None:
    batch = one(build(records, compression))
    expected = [Record(index, *record) for index, record in enumerate(records)]
    assert batch.crc_ok()
    assert batch.compression is compression
    assert decode_records(batch) == expected
    assert decode_fields(batch) == expected
    assert decode_values(batch) == [record.value for record in expected]
    assert all(type(record) is Record for record in decode_records(batch))


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=200) | st.integers(1, 9000).map(lambda n: [b"abc"] * n))
@example([b"x"] * 16384)
@example([b"x"] * 16385)
@example([b"x" * (n % 3) for n in range(16500)])
@example([b"y" * 9000] * 70)
def test_bulk_form_writes_what_the_builder_writes(values: list[bytes]) -> None:
    out = encode_values(values, T)
    assert out == build([(T, None, value, ()) for value in values])
    assert decode_values(one(out)) == values
    assert decode_fields(one(out)) == [(index, T, None, value, ()) for index, value in enumerate(values)]


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=30), compressions)
def test_bulk_form_compresses_as_the_builder_does(values: list[bytes], compression: Compression) -> None:
    producer: dict[str, Any] = {"producer_id": 5, "producer_epoch": 1, "base_sequence": 77, "is_transactional": True}
    builder = BatchBuilder(compression)
    for value in values:
        builder.append(T, None, value)
    assert encode_values(values, T, compression=compression, **producer) == builder.build(**producer)


def test_size_is_what_an_uncompressed_batch_takes() -> None:
    builder = BatchBuilder()
    assert builder.size == HEADER_SIZE
    for number in range(200):
        size = builder.append(T + number, b"k" * number, None if number % 3 else b"v", [("h", None)])
        assert size == builder.size == len(builder.build())
        assert builder.count == number + 1


def test_a_record_that_does_not_fit_changes_nothing() -> None:
    builder = BatchBuilder(bytes_max=100)
    assert builder.append(T, None, b"a" * 500) > 500, "the first record always fits"
    before = builder.build()
    assert builder.append(T + 9, None, b"b") == -1
    assert builder.append(T + 9, b"k", b"b") == -1
    assert (builder.count, builder.build()) == (1, before)


def test_bytes_max_is_exact() -> None:
    whole = build([(T, None, b"a", ()), (T, None, b"b", ())])
    for room, fits in ((len(whole), True), (len(whole) - 1, False)):
        builder = BatchBuilder(bytes_max=room)
        builder.append(T, None, b"a")
        assert (builder.append(T, None, b"b") == len(whole)) is fits


@pytest.mark.parametrize("bad", ["text", 7, [1, 2]])
def test_what_is_no_bytes_is_refused_at_once(bad: Any) -> None:
    builder = BatchBuilder()
    builder.append(T, None, b"good")
    for arguments in (
        (T, bad, b"v"),
        (T, b"k", bad),
        (T, None, bad),
        (T, None, b"v", [("h", bad)]),
        (T, None, b"v", [(b"name", b"v")]),
    ):
        with pytest.raises(TypeError):
            builder.append(*arguments)
    assert decode_values(one(builder.build())) == [b"good"]
    with pytest.raises(TypeError):
        encode_values([b"abcd", bad], T)


def test_a_buffer_is_taken_as_it_is_at_the_call() -> None:
    buffer = bytearray(b"before")
    builder = BatchBuilder()
    builder.append(T, buffer, memoryview(buffer), [("h", buffer)])
    buffer[:] = b"after!"
    assert decode_fields(one(builder.build())) == [(0, T, b"before", b"before", (("h", b"before"),))]


def test_nothing_makes_no_batch() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        BatchBuilder().build()
    with pytest.raises(ValueError, match="at least one value"):
        encode_values([], T)


@pytest.mark.parametrize("time", [1 << 62, -(1 << 62), 1 << 63, 1 << 64, -(1 << 64), (1 << 62) + T])
def test_a_time_beyond_62_bits_is_refused(time: int) -> None:
    builder = BatchBuilder()
    if abs(time) != (1 << 62) + T:
        with pytest.raises(OverflowError):
            builder.append(time, None, b"")
    builder.append(T if time > 0 else -1, None, b"")
    if abs(time) > 1 << 62:
        with pytest.raises(OverflowError):
            builder.append(time, None, b"")
        assert builder.count == 1
    assert decode_values(one(builder.build())) == [b""] * builder.count


@given(records_lists, compressions)
def test_columns_write_what_the_builder_writes(records: list[tuple[Any, ...]], compression: Compression) -> None:
    stamps, keys, values, headers = (list(column) for column in zip(*records, strict=True))
    assert encode_columns(stamps, keys, values, headers, compression=compression) == build(records, compression)
    bare = [(stamp, None, value, ()) for stamp, _, value, _ in records]
    found = one(encode_columns(stamps, None, values, producer_id=5, producer_epoch=1, base_sequence=77))
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (5, 1, 77)
    assert encode_columns(stamps, None, values) == build(bare)


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        encode_columns([T], None, [b"a", b"b"])


@given(records_lists, st.integers(0, 1 << 62), st.integers(0, 32767), st.integers(0, (1 << 31) - 1))
def test_producer_state_stamped_later_equals_built_with_it(
    records: list[tuple[Any, ...]], producer_id: int, epoch: int, sequence: int
) -> None:
    out = build(records)
    set_producer_state(out, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    assert out == model_batch(records, (producer_id, epoch, sequence))


# --- Headers -------------------------------------------------------------------------------------


def test_stamps_change_what_the_crc_leaves_out_and_nothing_else() -> None:
    raw = build([(T, b"k", b"v", ())])
    batch = one(bytes(raw))
    head = patched_header(batch, base_offset=1 << 40, leader_epoch=9)
    patch_batch(raw, 0, base_offset=1 << 40, leader_epoch=9)
    assert head + batch.view[16:] == raw
    stamped = one(raw)
    assert (stamped.base_offset, stamped.leader_epoch, stamped.next_offset) == (1 << 40, 9, (1 << 40) + 1)
    assert stamped.crc_ok()
    assert decode_fields(stamped) == [(1 << 40, T, b"k", b"v", ())]


def test_patch_reaches_a_batch_inside_a_larger_buffer() -> None:
    first, second = build([(T, None, b"a", ())]), build([(T, None, b"bb", ())])
    both = first + second
    patch_batch(memoryview(both), len(first), base_offset=5, leader_epoch=2)
    assert [(batch.base_offset, batch.leader_epoch) for batch in split_batches(both)] == [(0, -1), (5, 2)]


def test_log_append_time_replaces_every_time() -> None:
    batch = one(build([(T, None, b"a", ()), (T + 50, None, b"b", ())]))
    stamped = one(set_log_append_time(batch, T + 1000))
    assert stamped.crc_ok()
    assert stamped.is_log_append_time
    assert (stamped.base_timestamp, stamped.max_timestamp) == (T, T + 1000)
    assert [record.timestamp for record in decode_records(stamped)] == [T + 1000, T + 1000]
    assert not batch.is_log_append_time


def test_log_append_time_of_uniform_values() -> None:
    stamped = one(set_log_append_time(one(encode_values([b"a", b"b"], T)), T + 1000))
    assert [record.timestamp for record in decode_records(stamped)] == [T + 1000, T + 1000]


@pytest.mark.parametrize(
    ("base", "count", "last"),
    [
        (0, 1, 0),
        (0, 5, 4),
        ((1 << 31) - 1, 1, (1 << 31) - 1),
        ((1 << 31) - 1, 2, 0),
        ((1 << 31) - 2, 5, 2),
        (-1, 3, -1),
    ],
)
def test_last_sequence_wraps_as_kafkas(base: int, count: int, last: int) -> None:
    assert one(encode_values([b""] * count, T, base_sequence=base)).last_sequence == last


@given(st.lists(records_lists.filter(lambda records: len(records) < 4), min_size=1, max_size=4), st.data())
def test_split_finds_every_batch_and_every_cut(batches: list[list[tuple[Any, ...]]], data: st.DataObject) -> None:
    encoded = [bytes(build(records)) for records in batches]
    whole = b"".join(encoded)
    found = split_batches(memoryview(whole))
    assert [bytes(batch.view) for batch in found] == encoded
    assert [batch.size for batch in found] == [len(raw) for raw in encoded]
    assert all(batch.view.obj is whole and batch.view.readonly for batch in found)
    cut = data.draw(st.integers(0, len(whole) - 1))
    ends = [sum(map(len, encoded[:index])) for index in range(len(encoded) + 1)]
    kept = split_batches(whole[:cut], allow_partial_tail=True)
    assert len(kept) == sum(end <= cut for end in ends) - 1
    if cut not in ends:
        with pytest.raises(CorruptBatch, match=r"expected a batch .*found \d+ bytes"):
            split_batches(whole[:cut])


def test_split_names_what_is_wrong() -> None:
    raw = build([(T, None, b"v", ())])
    old = bytearray(raw)
    old[16] = 1
    with pytest.raises(CorruptBatch, match="expected record batch magic 2 at 0, found 1"):
        split_batches(old)
    for length in (-1, 0, 48, -(1 << 31)):
        short = bytearray(raw)
        short[8:12] = struct.pack(">i", length)
        for partial in (False, True):
            with pytest.raises(CorruptBatch, match=f"expected a batch length of at least 49 at 0, found {length}"):
                split_batches(short, allow_partial_tail=partial)
    assert split_batches(b"") == []


def test_every_flipped_bit_that_the_crc_covers_is_noticed() -> None:
    raw = build([(T, b"key", b"value", [("h", b"x")])])
    for bit in range(17 * 8, len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not one(flipped).crc_ok(), bit


# --- Control batches -----------------------------------------------------------------------------


@given(
    st.sampled_from([ControlKind.ABORT, ControlKind.COMMIT]),
    st.integers(0, 1 << 62),
    st.integers(0, 32767),
    st.integers(0, (1 << 31) - 1),
)
def test_marker_round_trip(kind: ControlKind, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
    batch = one(
        encode_control_batch(
            kind,
            timestamp=T,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
        )
    )
    assert batch.crc_ok()
    assert batch.is_control
    assert batch.is_transactional
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (producer_id, epoch, -1)
    assert decode_control(batch) == (kind, coordinator_epoch)


def control_like(key: bytes | None, value: bytes | None) -> Batch:
    out = build([(T, key, value, ())])
    out[22] |= 0x20
    return one(out)


def test_markers_of_other_kinds_are_unknown_and_odd_ones_corrupt() -> None:
    assert decode_control(control_like(b"\0\0\0\x02", b"anything")).kind is ControlKind.UNKNOWN
    assert decode_control(control_like(b"\0\x05\0\x01more", b"\0\x01\0\0\0\x09more")) == (ControlKind.COMMIT, 9)
    for key, value in (
        (None, b"\0\0\0\0\0\0"),
        (b"\0\0\0", b"\0\0\0\0\0\0"),
        (b"\0\0\0\x01", None),
        (b"\0\0\0\x01", b"\0"),
        (b"\xff\xff\0\x01", b"\0\0\0\0\0\0"),
        (b"\0\0\0\x01", b"\xff\xff\0\0\0\0"),
    ):
        with pytest.raises(CorruptBatch, match=r"expected .* found"):
            decode_control(control_like(key, value))
    with pytest.raises(CorruptBatch, match="expected a control batch"):
        decode_control(one(build([(T, None, b"", ())])))
