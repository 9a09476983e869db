"""The compiled record codec against its plain Python twin: equal answers, or none."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.client.record import ConsumerRecord
from tidelog.model.buffer import Buffer
from tidelog.proto.records import buffer as record_buffer
from tidelog.proto.records import compiled_codec
from tidelog.proto.records import encoder as record_encoder
from tidelog.proto.records import walk as record_walk
from tidelog.proto.records.batches import Batch, CorruptBatch, split_batches
from tidelog.proto.records.decoder import Record, record_bytes

_codec = pytest.importorskip(
    "tidelog.proto.records._codec",
    reason="the optional compiled codec is not built; 'pip install -e .' with a C compiler builds it",
)

T = 1_700_000_000_000
blobs = st.none() | st.binary(max_size=8) | st.integers(55, 140).map(lambda size: b"x" * size)
buffers: st.SearchStrategy[Buffer | None] = (
    blobs | st.binary(max_size=8).map(bytearray) | st.binary(max_size=8).map(lambda data: memoryview(data))
)
odd = buffers | st.sampled_from(["text", 7, 1.5, [b"x"]])
names = st.text(max_size=4) | st.sampled_from(["größe", "\ud800", b"raw"])
times = st.integers(T - 99, T + 99) | st.integers(-(1 << 65), 1 << 65) | st.sampled_from([(1 << 62) - 1, 1 << 62])
header_lists = st.just(()) | st.lists(st.tuples(names, odd), max_size=3)
appends = st.lists(st.tuples(times, odd, odd, header_lists), max_size=30)
good_appends = st.lists(
    st.tuples(
        st.integers(T - 99, T + 99), blobs, blobs, st.lists(st.tuples(st.text("abü", max_size=3), blobs), max_size=3)
    ),
    min_size=1,
    max_size=90,
)


def outcome(buffer: Any, arguments: tuple[Any, ...]) -> Any:
    try:
        result = buffer.append(*arguments)
    except Exception as error:
        result = next(kind for kind in (TypeError, OverflowError, UnicodeEncodeError) if isinstance(error, kind))
    return result, buffer.count, buffer.size, buffer.max_timestamp if buffer.count else None


@given(appends, st.none() | st.integers(0, 400))
@settings(max_examples=500)
def test_every_append_has_the_same_outcome(records: list[tuple[Any, ...]], bytes_max: int | None) -> None:
    plain, compiled = record_buffer.RecordBuffer(bytes_max), _codec.RecordBuffer(bytes_max)
    for record in records:
        assert outcome(compiled, record) == outcome(plain, record)
    assert compiled.taken() == plain.taken()


@pytest.mark.parametrize("size", [0, 62, 63, 64, 900, 1023, 1024, 8191, 8192, 1 << 20, (1 << 20) + 1])
def test_the_buffer_grows_as_needed(size: int) -> None:
    plain, compiled = record_buffer.RecordBuffer(), _codec.RecordBuffer()
    for number in range(70):
        record = (T + number, b"k" * (number % 3), b"v" * size, [("h" * number, b"w" * (size // 7))])
        assert compiled.append(*record) == plain.append(*record)
        if size > 10_000 and number > 3:
            break
    assert compiled.taken() == plain.taken()


@given(st.lists(st.binary(max_size=9) | st.integers(55, 140).map(bytes), min_size=1, max_size=150))
def test_the_bulk_form_writes_the_same(values: list[bytes]) -> None:
    assert _codec.values_body(values) == record_encoder.values_body(values)


@pytest.mark.parametrize("count", [64, 65, 8192, 8193, 20_000])
def test_the_bulk_form_writes_the_same_at_the_edges_of_offset_deltas(count: int) -> None:
    assert _codec.values_body([b"v"] * count) == record_encoder.values_body([b"v"] * count)


def test_the_bulk_form_leaves_what_is_no_bytes_to_its_twin() -> None:
    for value in (bytearray(b"v"), "v", None, memoryview(b"v")):
        assert _codec.values_body([b"v", value]) is None


def both(batch: Batch, body: bytes) -> None:
    """Hold the compiled reader to the plain one for one body, good or not."""
    fixed = batch.max_timestamp if batch.is_log_append_time else None
    frame = (body, batch.base_offset, batch.base_timestamp, fixed, batch.record_count, batch.last_offset_delta)
    try:
        expected = list(record_walk.walk(body, batch))
    except CorruptBatch:
        assert [_codec.decode(*frame, kind) for kind in (tuple, Record, None)] == [None, None, None]
        return
    for kind, wanted in ((tuple, expected), (Record, expected), (None, [record[3] for record in expected])):
        found: Sequence[Any] | None = _codec.decode(*frame, kind)
        assert found is None or found == wanted
    tail = ("topic", 7, 1 << 40)
    assert _codec.decode(*frame, ConsumerRecord, tail) in (None, [record + tail for record in expected])


def made(records: list[tuple[Any, ...]]) -> bytearray:
    builder = record_encoder.BatchBuilder()
    for record in records:
        builder.append(*record)
    return builder.build()


@given(good_appends, st.booleans())
@settings(max_examples=200)
def test_good_records_are_read_the_same(records: list[tuple[Any, ...]], append_time: bool) -> None:
    raw = made(records)
    raw[22] |= 8 if append_time else 0
    (batch,) = split_batches(raw)
    body = record_bytes(batch)
    both(batch, body)
    found = _codec.decode(body, 0, T, None, batch.record_count, batch.last_offset_delta, Record)
    assert found is not None, "the compiled reader leaves nothing usual to its twin"
    assert {type(record) for record in found} == {Record}


@given(good_appends.filter(lambda records: len(records) < 6), st.data())
@settings(max_examples=500)
def test_damaged_records_are_left_to_the_twin_or_read_the_same(
    records: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    (batch,) = split_batches(made(records))
    body = bytearray(record_bytes(batch))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        kind = data.draw(st.integers(0, 2))
        if kind == 0:
            body[at:at] = data.draw(st.binary(min_size=1, max_size=5))
        elif kind == 1:
            del body[at : at + data.draw(st.integers(1, 5))]
        elif at < len(body):
            body[at] = data.draw(st.sampled_from([0, 1, 2, 127, 128, 255]) | st.integers(0, 255))
    batch.record_count += data.draw(st.sampled_from([0, 0, 0, 1, -1, 1 << 20]))
    batch.last_offset_delta += data.draw(st.sampled_from([0, 0, 0, 1, -1]))
    both(batch, bytes(body))


@given(st.binary(max_size=60), st.integers(0, 6))
@settings(max_examples=500)
def test_random_records_are_left_to_the_twin_or_read_the_same(body: bytes, count: int) -> None:
    (batch,) = split_batches(made([(T, None, None, ())]))
    batch.record_count, batch.last_offset_delta = count, 100
    both(batch, body)


def test_numbers_at_the_edge_of_64_bits_are_left_to_the_twin() -> None:
    (batch,) = split_batches(made([(T, None, b"v", ()), (T + 5, None, b"w", ())]))
    for base_offset, base_timestamp in (((1 << 63) - 1, T), (0, (1 << 63) - 1), (0, -(1 << 63)), (-5, T)):
        batch.base_offset, batch.base_timestamp = base_offset, base_timestamp  # type: ignore[assignment]
        both(batch, record_bytes(batch))


def test_records_are_not_visited_by_the_collector_and_are_freed() -> None:
    """A consumer that keeps many would otherwise have the collector walk over all of them again and again."""
    (batch,) = split_batches(made([(T, b"k", b"v", [("h", b"w")])] * 2000))
    topic = "".join(["a", "topic"])  # no other reference to it
    before = sys.getrefcount(topic)
    found = _codec.decode(record_bytes(batch), 0, T, None, 2000, 1999, ConsumerRecord, (topic, 0, 3))
    assert found is not None
    assert not any(map(gc.is_tracked, found))
    assert found[7] == ConsumerRecord(7, T, b"k", b"v", (("h", b"w"),), "atopic", 0, 3)
    assert sys.getrefcount(topic) == before + 2000
    gc.collect()
    assert found[1999].headers == (("h", b"w"),)
    del found
    assert sys.getrefcount(topic) == before


def test_records_survive_the_collector_and_are_real_tuples() -> None:
    (batch,) = split_batches(made([(T, b"k", b"v", [("h", b"w")])] * 2000))
    found = _codec.decode(record_bytes(batch), 0, T, None, 2000, 1999, Record)
    gc.collect()
    assert found[1999] == Record(1999, T, b"k", b"v", (("h", b"w"),))
    assert found[5].headers == (("h", b"w"),)
    assert found[5]._replace(offset=1).offset == 1
    assert hash(found[5]) == hash(Record(5, T, b"k", b"v", (("h", b"w"),)))


def test_a_build_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = (_codec.__name__, compiled_codec.VERSION)
    assert compiled_codec.find_compiled(*wanted) is _codec or os.environ.get("TIDELOG_PURE_CODEC")
    monkeypatch.setattr(_codec, "VERSION", -1)
    assert compiled_codec.find_compiled(*wanted) is None


@pytest.mark.parametrize(
    ("wanted", "module"), [("1", "tidelog.proto.records.buffer"), ("", "tidelog.proto.records._codec")]
)
def test_the_environment_chooses_the_plain_twin(wanted: str, module: str) -> None:
    program = "from tidelog.proto.records.encoder import BatchBuilder; print(BatchBuilder.__mro__[1].__module__)"
    environment = {**os.environ, "TIDELOG_PURE_CODEC": wanted}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == module
