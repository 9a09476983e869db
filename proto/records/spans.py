"""The start and end of each record in a batch, with what compaction needs: its key, and whether it has a value.

For code that drops records or changes a batch without re-encoding the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from tidelog.model.buffer import Buffer
from tidelog.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.proto.records.batches import (
    COMPRESSION_MASK,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    Batch,
    patch_batch,
    sign,
)
from tidelog.proto.records.compiled_codec import COMPILED
from tidelog.proto.records.compression import Compression, compress
from tidelog.proto.records.corrupt_batch import CorruptBatch
from tidelog.proto.records.encoder import NO_SEQUENCE, finish_batch
from tidelog.proto.records.varint import encode_varint

Span = tuple[int, int, bytes | None, bool, int, int]
"""Offset, timestamp (ms), key, whether it has a value, and its first byte and the one after it in the body."""

_INT_BITS = 32
_LONG_BITS = 64


def record_spans(body: bytes, batch: Batch) -> list[Span]:
    """Return the records in ``body`` (see ``record_bytes``). Raises :class:`CorruptBatch`.

    Checked: lengths, rising offsets within the batch's range, the count, no bytes left over. Headers are skipped
    unread.
    """
    if COMPILED is not None:
        quick: list[Span] | None = COMPILED.spans(
            body,
            batch.base_offset,
            batch.base_timestamp,
            batch.max_timestamp if batch.is_log_append_time else None,
            batch.record_count,
            batch.last_offset_delta,
        )
        if quick is not None:
            return quick
    return walk_spans(body, batch)


def walk_spans(body: bytes, batch: Batch) -> list[Span]:
    """Do the same in plain Python, which decides what is corrupt and words the error."""
    found: list[Span] = []
    append = found.append
    base_offset, base_timestamp = batch.base_offset, batch.base_timestamp
    fixed = batch.max_timestamp if batch.is_log_append_time else None
    position, last_delta = 0, -1
    try:
        for _ in range(batch.record_count):
            start = position
            length, position = _varint(body, position, _INT_BITS)
            end = position + length
            if length < 1 or end > len(body):
                raise CorruptBatch(f"expected a record within {len(body)} bytes, found one of {length} at {start}")
            time, position = _varint(body, position + 1, _LONG_BITS)
            delta, position = _varint(body, position, _INT_BITS)
            if delta <= last_delta:
                raise CorruptBatch(f"expected an offset delta over {last_delta}, found {delta}")
            last_delta = delta
            size, position = _varint(body, position, _INT_BITS)
            key = None
            if size >= 0:
                key = body[position : position + size]
                position += size
            size, position = _varint(body, position, _INT_BITS)
            if position + max(size, 0) >= end:  # the header count takes at least one byte
                raise CorruptBatch(f"expected a record to end at byte {end}, found its value to end later")
            timestamp = base_timestamp + time if fixed is None else fixed
            append((base_offset + delta, timestamp, key, size >= 0, start, end))
            position = end
    except IndexError:
        raise CorruptBatch(f"expected {batch.record_count} records, found {len(found)} and a part") from None
    if position != len(body):
        raise CorruptBatch(f"expected {batch.record_count} records in {position} bytes, found {len(body)} bytes")
    if last_delta > batch.last_offset_delta:
        raise CorruptBatch(f"expected offset deltas up to {batch.last_offset_delta}, found {last_delta}")
    return found


def keyless_record(body: bytes, batch: Batch) -> int:
    """Return the position of the first record without a key, -1 if each has one. Raises :class:`CorruptBatch`."""
    if COMPILED is not None:
        quick: int | None = COMPILED.keyless(body, batch.record_count, batch.last_offset_delta)
        if quick is not None:
            return quick
    for number, span in enumerate(walk_spans(body, batch)):
        if span[2] is None:
            return number
    return -1


def keyless_records(body: bytes, batch: Batch, count_max: int) -> tuple[int, ...]:
    """Return the positions of the first ``count_max`` records without a key. Raises :class:`CorruptBatch`."""
    keyless = (number for number, span in enumerate(walk_spans(body, batch)) if span[2] is None)
    return tuple(islice(keyless, count_max))


def rewritten(batch: Batch, body: bytes, kept: Sequence[Span], *, delete_horizon_ms: int | None = None) -> bytearray:
    """Return the batch with only the records ``kept`` (at least one), with a new CRC.

    All else stays: offsets and timestamps of records, the range of offsets, producer, codec. The highest timestamp
    becomes that of the kept records. ``delete_horizon_ms`` replaces the base timestamp (KIP-534), and the records'
    distances to it are adjusted.
    """
    base_timestamp, attributes = batch.base_timestamp, batch.attributes
    pieces: Iterable[Buffer]
    if delete_horizon_ms is None:
        pieces = _runs(body, kept)
    else:
        shift = base_timestamp - delete_horizon_ms
        pieces = [_shifted(body, span, shift) for span in kept]
        base_timestamp, attributes = delete_horizon_ms, attributes | DELETE_HORIZON
    records = b"".join(pieces)
    kind = batch.compression
    if kind is not Compression.NONE:
        records = compress(kind, records)
    max_timestamp = batch.max_timestamp if batch.is_log_append_time else max(span[1] for span in kept)
    return _with_header(batch, records, attributes, base_timestamp, max_timestamp, len(kept))


def emptied(batch: Batch) -> bytearray:
    """Return the batch without records, with its offsets and producer (Kafka's ``writeEmptyHeader``)."""
    attributes = batch.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON)
    return _with_header(batch, b"", attributes, batch.max_timestamp, batch.max_timestamp, 0)


def gap_batch(start: int, end: int, timestamp: int) -> bytearray:
    """Return a batch without records from ``start`` to before ``end``, in place of records that the log no longer
    has."""
    whole = bytearray(HEADER_SIZE)
    finish_batch(
        whole, attributes=0, count=end - start, base_timestamp=timestamp, max_timestamp=timestamp,
        producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH, base_sequence=NO_SEQUENCE,
    )  # fmt: skip
    empty = emptied(Batch(memoryview(whole)))
    patch_batch(empty, 0, base_offset=start, leader_epoch=0)
    return empty


def _with_header(
    batch: Batch, records: bytes, attributes: int, base_timestamp: int, max_timestamp: int, count: int
) -> bytearray:
    out = bytearray(HEADER_SIZE)
    HEADER.pack_into(
        out,
        0,
        batch.base_offset,
        HEADER_SIZE + len(records) - LENGTH_OVERHEAD,
        batch.leader_epoch,
        MAGIC,
        0,
        attributes,
        batch.last_offset_delta,
        base_timestamp,
        max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        count,
    )
    out += records
    sign(out)
    return out


def _runs(body: bytes, kept: Sequence[Span]) -> list[memoryview]:
    """Return the bytes of the records, adjacent ones as one piece."""
    view = memoryview(body)
    pieces: list[memoryview] = []
    first = end = kept[0][4]
    for span in kept:
        if span[4] != end:
            pieces.append(view[first:end])
            first = span[4]
        end = span[5]
    pieces.append(view[first:end])
    return pieces


def _shifted(body: bytes, span: Span, shift: int) -> bytes:
    """Return a record with its distance to the base timestamp increased by ``shift``."""
    _, at = _varint(body, span[4], _INT_BITS)
    time, after = _varint(body, at + 1, _LONG_BITS)
    content = body[at : at + 1] + encode_varint(time + shift) + body[after : span[5]]
    return encode_varint(len(content)) + content


def _varint(body: bytes, position: int, bits: int) -> tuple[int, int]:
    """Return a zigzag varint and where it ends. Raises ``IndexError`` at the body's end."""
    number = body[position]
    if number < 128:
        return (number >> 1) ^ -(number & 1), position + 1
    number &= 127
    for shift in range(7, bits, 7):
        position += 1
        byte = body[position]
        number |= (byte & 127) << shift
        if byte < 128:
            number &= (1 << bits) - 1
            return (number >> 1) ^ -(number & 1), position + 1
    raise CorruptBatch(f"expected a varint of at most {bits} bits at byte {position}, found more")
