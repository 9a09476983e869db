"""Columns as records: both codecs write the same batches, foreign clients read in them the rows that went in, and a
column that lies about its buffers is told, not believed."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from aiokafka.partitioner import murmur2 as murmur2_of_aiokafka
from aiokafka.record import MemoryRecords as RecordsOfAiokafka
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.proto.records import compiled_codec, row_writer
from tidelog.proto.records.batches import Batch, split_batches
from tidelog.proto.records.compression import Compression
from tidelog.proto.records.decoder import decode_records
from tidelog.proto.records.encoder import BatchBuilder, encode_rows
from tidelog.proto.records.row_writer import RowWriter
from tidelog.proto.records.sent_columns import BlobView, Fault, HeaderView, NumberView, RecordColumns, flattened

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas the old way
    from kafka.record import MemoryRecords as RecordsOfKafkaPython

NOW = 1_700_000_000_000
COUNT = 3
Blob = bytes | None
WRITERS: list[Callable[[RecordColumns], RowWriter]] = [RowWriter, row_writer.row_writer]


class Row(NamedTuple):
    key: Blob = None
    value: Blob = None
    headers: tuple[tuple[bytes, Blob], ...] | None = None
    partition: int | None = None
    micros: int | None = None


blobs = st.none() | st.binary(max_size=9) | st.integers(55, 140).map(lambda size: b"x" * size)
headers = st.none() | st.lists(st.tuples(st.text("abé", max_size=3).map(str.encode), blobs), max_size=3).map(tuple)
times = st.none() | st.integers(0, 1 << 60) | st.integers(NOW * 1000 - 99_999, NOW * 1000 + 99_999)
rows_of = st.lists(
    st.builds(Row, blobs, blobs, headers, st.none() | st.integers(0, COUNT - 1), times), min_size=1, max_size=90
)


# --- tables, laid out by the rule of the format --------------------------------------------------------


class Layout(NamedTuple):
    """How a table is cut out of a larger one: rows before and after, and the width of places."""

    before: int = 0
    after: int = 0
    wide: bool = False
    bitmaps: bool = False


PLAIN = Layout()
layouts = st.builds(Layout, st.integers(0, 9), st.integers(0, 3), st.booleans(), st.booleans())


def bitmap(flags: Sequence[bool], layout: Layout) -> bytes | None:
    if all(flags) and not layout.bitmaps:
        return None
    whole = [True] * layout.before + list(flags) + [False] * layout.after
    return sum(1 << n for n, flag in enumerate(whole) if flag).to_bytes((len(whole) + 7) // 8, "little")


def places(sizes: Sequence[int], layout: Layout, unit: int = 1) -> bytes:
    whole = [unit] * layout.before + list(sizes) + [unit] * layout.after
    ends = [0]
    for size in whole:
        ends.append(ends[-1] + size)
    return struct.pack(f"={len(ends)}{'q' if layout.wide else 'i'}", *ends)


def blob_view(column: Sequence[Blob], layout: Layout = PLAIN) -> BlobView:
    data = b"~" * layout.before + b"".join(item or b"" for item in column) + b"~" * layout.after
    valid = bitmap([item is not None for item in column], layout)
    return BlobView(places([len(i or b"") for i in column], layout), data, valid, layout.before, layout.wide)


def number_view(column: Sequence[int | None], code: str, layout: Layout = PLAIN) -> NumberView:
    whole = [7] * layout.before + [item or 0 for item in column] + [7] * layout.after
    data = struct.pack(f"={len(whole)}{code}", *whole)
    return NumberView(data, bitmap([item is not None for item in column], layout), layout.before)


def header_view(column: Sequence[Any], layout: Layout = PLAIN) -> HeaderView:
    pairs = [pair for item in column for pair in item or ()]
    inner = layout._replace(before=layout.before + 1)
    return HeaderView(
        places([len(item or ()) for item in column], layout, unit=0),
        blob_view([name for name, _ in pairs], layout._replace(wide=False)),
        blob_view([content for _, content in pairs], inner),
        bitmap([item is not None for item in column], layout),
        layout.before,
        layout.wide,
        bitmap([True] * len(pairs), inner),
        inner.before,
    )


def columns_of(rows: Sequence[Row], layout: Layout = PLAIN) -> RecordColumns:
    return RecordColumns(
        len(rows),
        blob_view([row.value for row in rows], layout),
        blob_view([row.key for row in rows], layout._replace(wide=not layout.wide)),
        header_view([row.headers for row in rows], layout),
        number_view([row.partition for row in rows], "i", layout),
        number_view([row.micros for row in rows], "q", layout),
    )


# --- what is written ---------------------------------------------------------------------------------


def written(
    writer: RowWriter, picks: Sequence[int], step: int, bytes_max: int, kind: Compression = Compression.NONE
) -> dict[int, list[bytes]]:
    """Each partition's batches."""
    fault, row, free = writer.plan(COUNT, -1, False, 1 << 20)
    assert (fault, row) == (Fault.NONE, 0)
    assert free or not fault
    found: dict[int, list[bytes]] = {}
    for partition, start, stop in writer.group(picks, step):
        batches = found.setdefault(partition, [])
        while start < stop:
            batch, start, size = encode_rows(writer, start, stop, bytes_max, NOW, compression=kind)
            assert size <= bytes_max or Batch(memoryview(batch)).record_count == 1
            batches.append(bytes(batch))
    return found


def expected(rows: Sequence[Row], picks: Sequence[int], step: int) -> dict[int, list[tuple[Any, ...]]]:
    """The rule, in plain words: Kafka's choice, free rows dealt out by the bytes before them, the order kept."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    free = 0
    for row in rows:
        target = row.partition
        if target is None and row.key is not None:
            target = (murmur2_of_aiokafka(row.key) & 0x7FFF_FFFF) % COUNT
        if target is None:
            target = picks[min(free // step, len(picks) - 1)]
            free += 12 + len(row.key or b"") + len(row.value or b"")
            free += sum(10 + len(name) + len(content or b"") for name, content in row.headers or ())
        time = NOW if row.micros is None else row.micros // 1000
        pairs = tuple((name.decode(), content) for name, content in row.headers or ())
        found.setdefault(target, []).append((time, row.key, row.value, pairs))
    return found


def read(batches: Sequence[bytes]) -> list[tuple[Any, ...]]:
    found = []
    for raw in batches:
        (batch,) = split_batches(raw)
        assert batch.crc_ok()
        records = decode_records(batch)
        assert batch.max_timestamp == max(record.timestamp for record in records)
        found += [(record.timestamp, record.key, record.value, record.headers) for record in records]
    return found


@given(
    rows_of,
    layouts,
    st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=4),
    st.integers(1, 300),
    st.integers(0, 900),
    st.sampled_from(Compression),
)
@settings(max_examples=120)
def test_both_write_the_same_batches_of_the_rows_that_went_in(
    rows: list[Row], layout: Layout, picks: list[int], step: int, bytes_max: int, kind: Compression
) -> None:
    columns = columns_of(rows, layout)
    plain, other = (written(make(columns), picks, step, bytes_max, kind) for make in WRITERS)
    assert other == plain
    assert {partition: read(batches) for partition, batches in plain.items()} == expected(rows, picks, step)


@given(rows_of)
@settings(max_examples=50)
def test_a_batch_is_what_the_builder_makes_of_the_same_records(rows: list[Row]) -> None:
    builder = BatchBuilder()
    for row in rows:
        pairs = [(name.decode(), content) for name, content in row.headers or ()]
        builder.append(NOW if row.micros is None else row.micros // 1000, row.key, row.value, pairs)
    for make in WRITERS:
        writer = make(columns_of(rows)._replace(partitions=number_view([1] * len(rows), "i")))
        assert written(writer, [], 1, 1 << 20) == {1: [bytes(builder.build())]}


@pytest.mark.parametrize("make", WRITERS, ids=["plain", "as built"])
@pytest.mark.parametrize("foreign", [RecordsOfAiokafka, RecordsOfKafkaPython])
def test_foreign_clients_read_it(make: Callable[[RecordColumns], RowWriter], foreign: Any) -> None:
    rows = [
        Row(b"k", b"v", ((b"name", b"content"), (b"n", None)), 0, 5_000),
        Row(None, None, None, 0, 999),
        Row(b"", b"x" * 300, (), 0, 7_999_999),
    ]
    ((raw,),) = written(make(columns_of(rows)), [], 1, 1 << 20).values()
    batch = foreign(raw).next_batch()
    assert batch.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in batch] == [
        (0, 5, b"k", b"v", [("name", b"content"), ("n", None)]),
        (1, 0, None, None, []),
        (2, 7999, b"", b"x" * 300, []),
    ]


@pytest.mark.parametrize("make", WRITERS, ids=["plain", "as built"])
def test_columns_that_are_not_there_are_null(make: Callable[[RecordColumns], RowWriter]) -> None:
    found = written(make(RecordColumns(2)), [2], 1, 1 << 20)
    assert {partition: read(batches) for partition, batches in found.items()} == {2: [(NOW, None, None, ())] * 2}
    nothing = BlobView(b"", None)
    empty = make(
        RecordColumns(0, nothing, nothing, HeaderView(b"", nothing, nothing), NumberView(b""), NumberView(b""))
    )
    assert empty.plan(1, -1, False, 100) == (Fault.NONE, 0, 0)
    assert empty.group([], 1) == []


@pytest.mark.parametrize("make", WRITERS, ids=["plain", "as built"])
def test_who_chooses_the_partition(make: Callable[[RecordColumns], RowWriter]) -> None:
    writer = make(columns_of([Row(key=b"key", partition=1), Row(key=b"key"), Row(value=b"v")]))
    by_key = (murmur2_of_aiokafka(b"key") & 0x7FFF_FFFF) % COUNT
    assert by_key != 2
    assert writer.plan(COUNT, -1, False, 1000) == (Fault.NONE, 0, 13)
    assert writer.group([2], 1) == [(by_key, 0, 2 if by_key == 1 else 1), (2, 2, 3)] or by_key == 0
    assert writer.plan(COUNT, -1, True, 1000) == (Fault.NONE, 0, 28)
    assert writer.group([0, 2], 15) == [(0, 0, 1), (1, 1, 2), (2, 2, 3)]
    assert writer.plan(COUNT, 2, False, 1000) == (Fault.NONE, 0, 0)
    assert writer.group([], 1) == [(2, 0, 3)]


# --- what is refused ---------------------------------------------------------------------------------


def bad(fault: Fault, number: int = 0, **change: Any) -> Any:
    return pytest.param(Row(key=b"k", value=b"v")._replace(**change), fault, number, id=fault.name)


@pytest.mark.parametrize("make", WRITERS, ids=["plain", "as built"])
@pytest.mark.parametrize(
    ("row", "fault", "number"),
    [
        bad(Fault.NEGATIVE_PARTITION, -7, partition=-7),
        bad(Fault.UNKNOWN_PARTITION, COUNT, partition=COUNT),
        bad(Fault.NEGATIVE_TIMESTAMP, -1, micros=-1),
        bad(Fault.NAMELESS_HEADER, headers=((b"a", b"b"), (None, b"c"))),
        bad(Fault.TOO_LARGE, 301, value=b"v" * 200, headers=((b"name", b"cont"),)),
    ],
)
def test_the_first_bad_row_is_named(
    make: Callable[[RecordColumns], RowWriter], row: Row, fault: Fault, number: int
) -> None:
    writer = make(columns_of([Row(value=b"v" * 218), row, row], Layout(before=3)))
    assert writer.plan(COUNT, -1, False, 300) == (fault, 1, number)
    with pytest.raises(ValueError, match="before a plan without faults"):
        writer.group([0], 1)
    with pytest.raises(ValueError, match="rows that were grouped"):
        writer.write(0, 1, 100, NOW)


def outcome(make: Callable[[RecordColumns], RowWriter], columns: RecordColumns) -> Any:
    try:
        writer = make(columns)
        findings = writer.plan(COUNT, -1, False, 1 << 20)
        if findings[0]:
            return findings
        groups = writer.group([0], 1 << 30)
        return findings, groups, [writer.write(start, stop, 1 << 20, NOW) for _, start, stop in groups]
    except ValueError:
        return ValueError


damage = st.tuples(st.integers(0, 6), st.integers(0, 200), st.binary(min_size=1, max_size=4))


@given(rows_of, layouts, st.lists(damage, min_size=1, max_size=3), st.integers(-1, 3), st.integers(0, 40))
@settings(max_examples=150)
def test_damaged_columns_have_the_same_outcome_and_nothing_beyond_their_buffers_is_read(
    rows: list[Row], layout: Layout, wounds: list[tuple[int, int, bytes]], shift: int, cut: int
) -> None:
    value, key, head = (
        blob_view([row.value for row in rows], layout),
        blob_view([row.key for row in rows], layout),
        header_view([row.headers for row in rows], layout),
    )
    buffers = [bytearray(b or b"") for b in (value.ends, key.ends, head.ends, head.names.ends, head.contents.ends)]
    buffers += [bytearray(value.data or b""), bytearray(head.contents.data or b"")]
    for which, at, new in wounds:
        if buffers[which]:
            at %= len(buffers[which])
            buffers[which][at : at + len(new)] = new[: len(buffers[which]) - at]
    data = bytes(buffers[5])[: max(len(buffers[5]) - cut, 0)]
    columns = RecordColumns(
        len(rows),
        value._replace(ends=buffers[0], data=data, first=value.first + shift),
        key._replace(ends=buffers[1]),
        head._replace(
            ends=buffers[2],
            names=head.names._replace(ends=buffers[3]),
            contents=head.contents._replace(ends=buffers[4], data=buffers[6]),
        ),
    )
    assert outcome(WRITERS[1], columns) == outcome(RowWriter, columns)


@pytest.mark.parametrize("make", WRITERS, ids=["plain", "as built"])
@pytest.mark.parametrize(
    "columns",
    [
        RecordColumns(-1),
        RecordColumns(1 << 31),
        RecordColumns(2, values=BlobView(b"\0" * 8, b"")),
        RecordColumns(2, values=BlobView(b"\0" * 12, b"", wide=True)),
        RecordColumns(2, values=BlobView(b"\0" * 12, b"", first=1)),
        RecordColumns(2, values=BlobView(b"\0" * 12, b"", first=-1)),
        RecordColumns(2, values=BlobView(b"\0" * 12, b"", first=1 << 61)),
        RecordColumns(9, values=BlobView(b"\0" * 40, b"", b"\xff")),
        RecordColumns(2, partitions=NumberView(b"\0" * 7)),
        RecordColumns(2, timestamps=NumberView(b"\0" * 15)),
        RecordColumns(1, headers=HeaderView(b"\0" * 4, BlobView(b"", b""), BlobView(b"", b""))),
        RecordColumns(1, headers=HeaderView(struct.pack("=2i", 0, 2), blob_view([b"n"]), blob_view([b"c"]))),
    ],
)
def test_columns_that_have_less_than_they_say_are_refused(
    make: Callable[[RecordColumns], RowWriter], columns: RecordColumns
) -> None:
    with pytest.raises(ValueError, match="expected"):
        make(columns)


@pytest.mark.parametrize("make", WRITERS, ids=["plain", "as built"])
def test_calls_out_of_turn_are_refused(make: Callable[[RecordColumns], RowWriter]) -> None:
    writer = make(columns_of([Row(value=b"v"), Row(value=b"w")]))
    with pytest.raises(ValueError, match="before a plan"):
        writer.group([0], 1)
    with pytest.raises(ValueError, match="1 or more, found 0"):
        writer.plan(0, -1, False, 100)
    assert writer.plan(COUNT, -1, False, 100)[0] == Fault.NONE
    for picks, step in (([], 1), ([COUNT], 1), ([-1], 1), ([0], 0)):
        with pytest.raises(ValueError, match="expected"):
            writer.group(picks, step)
    assert writer.group([0], 1) == [(0, 0, 2)]
    for start, stop, now in ((0, 3, NOW), (1, 1, NOW), (-1, 1, NOW), (0, 1, -1)):
        with pytest.raises(ValueError, match="expected"):
            writer.write(start, stop, 100, now)
    with pytest.raises(TypeError):
        make(RecordColumns(1, values=BlobView("no bytes", b"")))  # type: ignore[arg-type]


@pytest.mark.parametrize("make", WRITERS, ids=["plain", "as built"])
def test_columns_that_change_under_way_are_refused(make: Callable[[RecordColumns], RowWriter]) -> None:
    ends = bytearray(struct.pack("=3i", 0, 1, 2))
    writer = make(RecordColumns(2, values=BlobView(ends, b"vw")))
    assert writer.plan(COUNT, -1, False, 100)[0] == Fault.NONE
    writer.group([0], 1)
    struct.pack_into("=3i", ends, 0, 0, 1, 1 << 30)
    with pytest.raises(ValueError, match="that were planned"):
        writer.write(0, 2, 1000, NOW)


@pytest.mark.skipif(compiled_codec.COMPILED is None, reason="the optional compiled codec is not built")
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=50), st.integers(1, 1000))
@settings(max_examples=50)
def test_the_compiled_hash_is_that_of_another_client(keys: list[bytes], count: int) -> None:
    columns = RecordColumns(len(keys), keys=blob_view([*keys]))
    assert compiled_codec.COMPILED is not None
    writer = compiled_codec.COMPILED.RowWriter(*flattened(columns))
    writer.plan(count, -1, False, 1000)
    found = {partition for partition, _, _ in writer.group([], 1)}
    assert found == {(murmur2_of_aiokafka(key) & 0x7FFF_FFFF) % count for key in keys}
