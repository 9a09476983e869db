"""Readers of a batch's records.

Every reader here checks lengths, rising offsets within the batch's range, the record count, and that no bytes are left
over. A batch whose content contradicts its header raises only :class:`CorruptBatch`; the broker never looks inside, so
the consumer finds out here. The caller checks the CRC (``Batch.crc_ok``).
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from tidelog.proto.records.batches import HEADER_SIZE, Batch
from tidelog.proto.records.compiled_codec import COMPILED
from tidelog.proto.records.compression import DECOMPRESSED_BYTES_MAX, Compression, decompress
from tidelog.proto.records.corrupt_batch import CorruptBatch
from tidelog.proto.records.walk import RecordFields, RecordHeaders, fields, values

T = TypeVar("T", bound=tuple[Any, ...])


class Record(NamedTuple):
    """One record. ``timestamp`` in ms; a header's name may occur several times."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders


def decode_records(batch: Batch, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[Record]:
    """Return the records of a batch, including a control batch. Raises :class:`CorruptBatch`.

    ``bytes_max`` bounds the decompressed batch. The list takes about thirty times that at worst (a record may have 7
    bytes), so callers set it for untrusted data.
    """
    return decode_as(Record, batch, bytes_max=bytes_max)


def decode_as(
    kind: type[T], batch: Batch, tail: tuple[Any, ...] = (), *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> list[T]:
    """Like :func:`decode_records`, for a caller's own named tuple that begins with the fields of :class:`Record`.
    ``tail``: the fields after these, the same for every record, numbers and strings."""
    body = record_bytes(batch, bytes_max=bytes_max)
    if COMPILED is not None:
        found: list[T] | None = COMPILED.decode(*_frame(body, batch), kind, tail)
        if found is not None:
            return found
    new = tuple.__new__
    return [new(kind, found + tail) for found in fields(body, batch)]


def decode_fields(batch: Batch, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[RecordFields]:
    """Like :func:`decode_records`, but return plain tuples."""
    return decode_as(tuple, batch, bytes_max=bytes_max)


def decode_values(batch: Batch, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[bytes | None]:
    """Return only the values, in order: several times as fast. Raises :class:`CorruptBatch`."""
    body = record_bytes(batch, bytes_max=bytes_max)
    if COMPILED is not None:
        found: list[bytes | None] | None = COMPILED.decode(*_frame(body, batch), None)
        if found is not None:
            return found
    return values(body, batch)


def _frame(body: bytes, batch: Batch) -> tuple[bytes, int, int, int | None, int, int]:
    """Return the compiled twin's arguments for a batch."""
    return (
        body,
        batch.base_offset,
        batch.base_timestamp,
        batch.max_timestamp if batch.is_log_append_time else None,
        batch.record_count,
        batch.last_offset_delta,
    )


def record_bytes(batch: Batch, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Return the bytes of a batch's records, decompressed. Raises :class:`CorruptBatch`."""
    if batch.record_count < 0:
        raise CorruptBatch(f"expected a record count of 0 or more, found {batch.record_count}")
    kind = batch.compression
    if kind is Compression.NONE:
        return bytes(batch.view[HEADER_SIZE:])
    if not batch.record_count:
        return b""
    return decompress(kind, batch.view[HEADER_SIZE:], bytes_max=bytes_max)
