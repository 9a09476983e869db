"""Records as columns: both codecs give the same buffers, and Arrow reads them as the records that went in."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.proto.records import columns as record_columns
from tidelog.proto.records import compiled_codec
from tidelog.proto.records.batches import Batch, CorruptBatch, patch_batch, set_log_append_time, sign, split_batches
from tidelog.proto.records.columns import Blobs, ColumnBuffer, Columns, add_batch, column_buffer, taken
from tidelog.proto.records.compression import Compression
from tidelog.proto.records.decoder import decode_fields
from tidelog.proto.records.encoder import BatchBuilder

T = 1_700_000_000_000
Headers = tuple[tuple[str, bytes | None], ...]
Given = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]

blobs = st.none() | st.binary(max_size=9) | st.integers(55, 140).map(lambda size: b"x" * size)
records = st.lists(
    st.tuples(
        st.integers(T - 99, T + 99) | st.sampled_from([-1, 0, (1 << 60), -(1 << 60)]),
        blobs,
        blobs,
        st.lists(st.tuples(st.text("abé", max_size=2), blobs), max_size=2),
    ),
    min_size=1,
    max_size=70,
)
batches = st.lists(st.tuples(records, st.sampled_from(Compression), st.booleans()), min_size=1, max_size=4)

BUFFERS: list[Callable[..., ColumnBuffer]] = [ColumnBuffer, column_buffer]


def batch_of(content: list[Given], kind: Compression = Compression.NONE, *, base: int, append_time: bool) -> Batch:
    builder = BatchBuilder(kind)
    for timestamp, key, value, headers in content:
        builder.append(timestamp, key, value, headers)
    raw = builder.build()
    patch_batch(raw, 0, base_offset=base, leader_epoch=3)
    (batch,) = split_batches(bytes(raw))
    if append_time:
        (batch,) = split_batches(bytes(set_log_append_time(batch, T + 5_000)))
    return batch


def strings(column: Blobs) -> list[bytes | None]:
    """Read by the rule of the format, byte by byte."""
    ends = struct.unpack(f"={column.length + 1}i", column.ends)
    found: list[bytes | None] = [column.data[ends[n] : ends[n + 1]] for n in range(column.length)]
    if column.valid is not None:
        assert len(column.valid) == (column.length + 7) // 8
        found = [item if column.valid[n >> 3] >> (n & 7) & 1 else None for n, item in enumerate(found)]
    assert column.nulls == found.count(None)
    return found


def rows(columns: Columns) -> list[tuple[int, int, int, bytes | None, bytes | None, Headers]]:
    count = columns.rows
    headers: list[Headers] = [()] * count
    if columns.headers is not None:
        ends = struct.unpack(f"={count + 1}i", columns.headers.ends)
        names = [(name or b"").decode() for name in strings(columns.headers.names)]
        every = list(zip(names, strings(columns.headers.contents), strict=True))
        headers = [tuple(every[ends[n] : ends[n + 1]]) for n in range(count)]
        assert columns.headers.without == headers.count(())
    return list(
        zip(
            struct.unpack(f"={count}q", columns.offsets),
            struct.unpack(f"={count}q", columns.timestamps),
            struct.unpack(f"={count}i", columns.kinds),
            strings(columns.keys),
            strings(columns.values),
            headers,
            strict=True,
        )
    )


@given(batches, st.booleans(), st.integers(0, 80), st.integers(0, 300))
@settings(max_examples=150, deadline=None)
def test_columns_hold_what_the_records_hold(
    content: list[tuple[list[Given], Compression, bool]], headers: bool, first: int, end: int
) -> None:
    made = [column(headers=headers) for column in BUFFERS]
    expected = []
    base = 0
    for given_records, kind, append_time in content:
        batch = batch_of(given_records, kind, base=base, append_time=append_time)
        base = batch.next_offset + 3
        for buffer in made:
            add_batch(buffer, batch, first, end)
        for offset, time, key, value, found in decode_fields(batch):
            if first <= offset < end:
                micros = max(-(1 << 63), min(time * 1_000, (1 << 63) - 1))
                expected.append((offset, micros, int(append_time), key, value, found if headers else ()))
    assert len({buffer.size for buffer in made}) == 1
    pure, other = (taken(buffer) for buffer in made)
    assert rows(pure) == expected
    assert pure == other
    assert [(buffer.count, buffer.size) for buffer in made] == [(0, 0), (0, 0)]


@pytest.mark.parametrize("headers", [False, True])
def test_a_buffer_begins_anew_after_it_was_taken(headers: bool) -> None:
    for make in BUFFERS:
        buffer = make(headers=headers)
        for turn in range(3):
            content: list[Given] = [(T, b"k" if turn == 1 else None, b"v%d" % turn, [("h", None)])] * (turn + 1)
            add_batch(buffer, batch_of(content, base=turn, append_time=False), 0, 99)
            assert buffer.count == turn + 1
            found = rows(taken(buffer))
            assert [row[4] for row in found] == [b"v%d" % turn] * (turn + 1)
            assert [row[3] for row in found] == [b"k" if turn == 1 else None] * (turn + 1)
        assert rows(taken(buffer)) == []


@given(records, st.data())
@settings(max_examples=150, deadline=None)
def test_of_a_damaged_batch_nothing_is_added(content: list[Given], data: st.DataObject) -> None:
    """Either both codecs read it alike, or both refuse it and keep what they had."""
    good = batch_of([(T, b"k", b"v", [("h", b"1")]), (T, None, None, [])], base=0, append_time=False)
    raw = bytearray(batch_of(content, base=2, append_time=False).view)
    at = data.draw(st.integers(61, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    sign(raw)
    (bad,) = split_batches(bytes(raw))
    outcomes: list[object] = []
    for make in BUFFERS:
        buffer = make(headers=True)
        add_batch(buffer, good, 0, 1 << 40)
        before = buffer.size
        try:
            add_batch(buffer, bad, 0, 1 << 40)
        except CorruptBatch as error:
            outcomes.append(str(error))
            assert (buffer.count, buffer.size) == (2, before)
            add_batch(buffer, batch_of([(T, None, b"after", [])], base=90, append_time=False), 0, 99)
        outcomes.append(taken(buffer))
    assert outcomes[: len(outcomes) // 2] == outcomes[len(outcomes) // 2 :]


def test_a_column_has_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_columns, "INT32_MAX", 10)
    buffer = ColumnBuffer()
    add_batch(buffer, batch_of([(T, None, b"123456", [])] * 2, base=0, append_time=False), 0, 9)
    with pytest.raises(OverflowError, match="below 2 GiB"):
        taken(buffer)


def test_the_compiled_buffer_is_the_one_that_is_used() -> None:
    assert (compiled_codec.COMPILED is None) == (type(column_buffer()) is ColumnBuffer)
