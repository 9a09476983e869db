"""Damaged batches: a decoder answers with records or with CorruptBatch, whatever it is given.

Mutated records are signed anew and judged against a slow, plain reader of the format, so that an answer
is not only no crash but the right one.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.proto.records.batches import HEADER, HEADER_SIZE, Batch, CorruptBatch, split_batches
from tidelog.proto.records.compression import Compression, compress, decompress
from tidelog.proto.records.control_batches import decode_control
from tidelog.proto.records.decoder import (
    decode_fields,
    decode_records,
    decode_values,
    record_bytes,
)
from tidelog.proto.records.encoder import BatchBuilder, encode_values
from tidelog.proto.records.varint import encode_varint
from tidelog.proto.records.walk import RecordFields, fields, values

T = 1_700_000_000_000


class Bad(Exception):
    """The model's verdict."""


class Reader:
    """The model: reads a record body one byte at a time and checks everything where it stands."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise Bad
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self, bits: int) -> int:
        number = 0
        for index in range(-(-bits // 7)):
            (byte,) = self.take(1)
            number |= (byte % 128) << (7 * index)
            if byte < 128:
                number %= 1 << bits
                return -(number + 1) // 2 if number % 2 else number // 2
        raise Bad

    def sized(self) -> bytes | None:
        size = self.varint(32)
        return None if size < 0 else self.take(size)


def model_decode(body: bytes, header: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    base_offset, last_delta, base_timestamp, count = header[0], header[6], header[7], header[12]
    reader = Reader(body)
    records: list[tuple[Any, ...]] = []
    previous = -1
    if count < 0:
        raise Bad
    for _ in range(count):
        length = reader.varint(32)
        if length < 0:
            raise Bad
        end = reader.at + length
        reader.take(1)
        timestamp = base_timestamp + reader.varint(64)
        delta = reader.varint(32)
        if not previous < delta <= last_delta:
            raise Bad
        previous = delta
        key, value = reader.sized(), reader.sized()
        header_count = reader.varint(32)
        if not 0 <= header_count <= max(0, end - reader.at):
            raise Bad
        headers = []
        for _ in range(header_count):
            name = reader.sized()
            if name is None:
                raise Bad
            headers.append((name.decode("utf-8", "replace"), reader.sized()))
        if reader.at != end:
            raise Bad
        records.append((base_offset + delta, timestamp, key, value, tuple(headers)))
    if reader.at != len(body):
        raise Bad
    return records


def plain_fields(batch: Batch) -> list[RecordFields]:
    """The plain Python twin, also where the compiled one is in use."""
    return list(fields(record_bytes(batch), batch))


def plain_values(batch: Batch) -> list[bytes | None]:
    return values(record_bytes(batch), batch)


DECODERS: list[Callable[[Batch], Any]] = [decode_fields, decode_records, decode_values, plain_fields, plain_values]


def judge(raw: bytes) -> bool:
    """Hold the decoders to the model for one uncompressed batch; return whether it was good."""
    batch = Batch(memoryview(raw))
    try:
        expected = model_decode(raw[HEADER_SIZE:], HEADER.unpack_from(raw))
    except Bad:
        for decode in DECODERS:
            with pytest.raises(CorruptBatch, match=r"expected .*found"):
                decode(batch)
        return False
    assert decode_fields(batch) == expected
    assert decode_records(batch) == expected
    assert decode_values(batch) == [record[3] for record in expected]
    assert plain_fields(batch) == expected
    assert plain_values(batch) == [record[3] for record in expected]
    return True


blobs = st.none() | st.binary(max_size=12) | st.integers(60, 140).map(lambda size: b"x" * size)
headers = st.just(()) | st.lists(st.tuples(st.text("ab", max_size=3), blobs), max_size=3)
record_lists = st.lists(st.tuples(st.integers(T - 99, T + 99), blobs, blobs, headers), min_size=1, max_size=5)
value_lists = st.lists(st.binary(min_size=3, max_size=3), min_size=1, max_size=70)
MEAN_BYTES = [0x00, 0x01, 0x02, 0x03, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF]


@st.composite
def batches(draw: st.DrawFn) -> bytearray:
    if draw(st.booleans()):
        return encode_values(draw(value_lists), T)
    builder = BatchBuilder()
    for timestamp, key, value, header in draw(record_lists):
        builder.append(timestamp, key, value, header)
    return builder.build()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    raw = draw(batches())
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.integers(0, 5))
        at = draw(st.integers(HEADER_SIZE, max(HEADER_SIZE, len(raw) - 1)))
        if kind <= 1 and at < len(raw):
            raw[at] = draw(st.sampled_from(MEAN_BYTES) | st.integers(0, 255))
        elif kind == 2:
            raw[at:at] = draw(st.binary(min_size=1, max_size=6))
        elif kind == 3:
            del raw[at : at + draw(st.integers(1, 6))]
        elif kind == 4:
            struct.pack_into(">i", raw, 57, draw(st.integers(-2, 80) | st.just((1 << 31) - 1)))
        else:
            struct.pack_into(">i", raw, 23, draw(st.integers(-2, 80)))
    return bytes(raw)


@given(damaged())
@settings(max_examples=600)
def test_damaged_records_are_judged_as_the_model_judges(raw: bytes) -> None:
    judge(raw)


@given(st.binary(max_size=120), st.integers(-3, 20))
@settings(max_examples=500)
def test_random_records_are_judged_as_the_model_judges(body: bytes, count: int) -> None:
    judge(HEADER.pack(0, HEADER_SIZE + len(body) - 12, 0, 2, 0, 0, 20, T, T, -1, -1, -1, count) + body)


@pytest.mark.parametrize(
    "uniform", [[b"abc"], [b"abc"] * 3, [b"abc"] * 66, [b"x" * 70] * 66], ids=["one", "few", "many", "long"]
)
def test_each_byte_of_a_uniform_batch_damaged_is_judged_as_the_model_judges(uniform: list[bytes]) -> None:
    """The decoder's fast form for such batches compares columns: no column may go unseen."""
    raw = encode_values(uniform, T)
    verdicts = set()
    for at in range(HEADER_SIZE, min(len(raw), HEADER_SIZE + 800)):
        for byte in {0, 1, 2, raw[at] ^ 1, raw[at] ^ 128, 255}:
            changed = bytearray(raw)
            changed[at] = byte
            verdicts.add(judge(bytes(changed)))
    for size in {*range(HEADER_SIZE, len(raw))[:200], *range(HEADER_SIZE, len(raw))[-200:]}:
        verdicts.add(judge(bytes(raw[:size])))
    assert not judge(bytes(raw) + b"\0")
    assert verdicts == {True, False}


@pytest.mark.parametrize(
    ("length", "good"),
    [
        (b"\x0e", True),
        (b"\x8e\0", True),
        (b"\x8e\x80\x80\x80\0", True),
        (b"\x8e\x80\x80\x80\x10", True),  # what is over 32 bits falls off, as in Java
        (b"\x8e\x80\x80\x80\x80\0", False),
        (b"\x8e\x80\x80\x80\x70", True),
        (b"\x8e\x80\x80\x80\x78", False),
        (b"\x0f", False),
    ],
)
def test_long_forms_of_a_varint(length: bytes, good: bool) -> None:
    body = length + b"\0\0\0\x01\x02v\0"
    raw = HEADER.pack(0, HEADER_SIZE + len(body) - 12, 0, 2, 0, 0, 0, T, T, -1, -1, -1, 1) + body
    assert judge(raw) is good


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_random_bytes_are_no_batches_or_read(data: bytes) -> None:
    plausible = struct.pack(">qiib", 0, max(49, len(data) - 17 + 5), 0, 2) + data
    for raw in (data, plausible):
        for partial in (False, True):
            try:
                found = split_batches(raw, allow_partial_tail=partial)
            except CorruptBatch:
                continue
            for batch in found:
                for decode in (decode_values, decode_fields, decode_control):
                    try:
                        decode(batch)
                    except CorruptBatch:
                        pass


@given(st.sampled_from(Compression), st.binary(max_size=200))
@settings(max_examples=400)
def test_random_bytes_are_not_compressed_data_or_are(kind: Compression, data: bytes) -> None:
    magics = {
        Compression.NONE: b"",
        Compression.GZIP: b"\x1f\x8b\x08\0",
        Compression.SNAPPY: b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01",
        Compression.LZ4: b"\x04\x22\x4d\x18",
        Compression.ZSTD: b"\x28\xb5\x2f\xfd",
    }
    for raw in (data, magics[kind] + data):
        try:
            assert len(decompress(kind, raw, bytes_max=10_000)) <= 10_000
        except CorruptBatch as refused:
            assert "expected" in str(refused)


@given(st.sampled_from(list(Compression)[1:]), st.data())
@settings(max_examples=400)
def test_damaged_compressed_data_is_refused_or_read(kind: Compression, data: st.DataObject) -> None:
    plain = data.draw(st.binary(max_size=100) | st.integers(0, 100_000).map(lambda size: b"ab" * size))
    raw = bytearray(compress(kind, plain))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert len(decompress(kind, raw, bytes_max=300_000)) <= 300_000
    except CorruptBatch:
        pass


@pytest.mark.parametrize("kind", list(Compression)[1:])
def test_a_record_count_that_the_content_denies_is_corrupt(kind: Compression) -> None:
    for count in (1, 3, 1 << 30):
        raw = encode_values([b"one", b"two"], T, compression=kind)
        struct.pack_into(">i", raw, 57, count)
        for decode in (decode_values, decode_records):
            with pytest.raises(CorruptBatch, match=f"expected {count} records"):
                decode(Batch(memoryview(raw)))


@pytest.mark.parametrize("kind", list(Compression)[1:])
def test_a_bomb_takes_no_more_memory_than_the_bound(kind: Compression) -> None:
    """50 MB of zeros, which pack to between 50 kB and 3 MB, may not unfold beyond 1 MB."""
    raw = compress(kind, bytes(50_000_000))
    head = HEADER.pack(0, HEADER_SIZE + len(raw) - 12, 0, 2, 0, kind, 0, T, T, -1, -1, -1, 1)
    (batch,) = split_batches(head + raw)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch, match="at most 1000000 bytes"):
            decode_values(batch, bytes_max=1_000_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000


@pytest.mark.parametrize("count", [1 << 30, 1_000_000])
def test_a_header_count_beyond_the_record_is_refused_before_memory_is_taken(count: int) -> None:
    inner = b"\0\0\0\x01\x01" + encode_varint(count)
    body = encode_varint(len(inner)) + inner
    raw = HEADER.pack(0, HEADER_SIZE + len(body) - 12, 0, 2, 0, 0, 0, T, T, -1, -1, -1, 1) + body
    with pytest.raises(CorruptBatch, match="expected at most 0 headers"):
        decode_records(Batch(memoryview(raw)))
