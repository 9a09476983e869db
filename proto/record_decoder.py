"""Reading the records of a batch.

Every reader here checks what it walks over: lengths, offsets in rising order within the batch's range,
record count, no bytes left over. A batch whose content denies its header raises :class:`CorruptBatch`
and nothing else; the broker never looks inside, so this is where a consumer is told. The CRC is the
caller's business (``Batch.crc_ok``).
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from tidelog.proto.compiled_codec import COMPILED
from tidelog.proto.compression import DECOMPRESSED_BYTES_MAX, Compression, decompress
from tidelog.proto.corrupt_batch import CorruptBatch
from tidelog.proto.record_walk import RecordFields, RecordHeaders, fields, values
from tidelog.proto.records import HEADER_SIZE, Batch


class Record(NamedTuple):
    """One record. ``timestamp`` in ms; a header's name may occur several times."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders


_new_record: Final = partial(tuple.__new__, Record)


def decode_records(batch: Batch, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[Record]:
    """Return the records of a batch, of a control batch too. Raises :class:`CorruptBatch`.

    ``bytes_max`` bounds what the batch may unfold to. The list takes some thirty times that at worst (7
    bytes may be a record), so a caller that reads from strangers sets it.
    """
    body = record_bytes(batch, bytes_max=bytes_max)
    if COMPILED is not None:
        found: list[Record] | None = COMPILED.decode(*_frame(body, batch), Record)
        if found is not None:
            return found
    return list(map(_new_record, fields(body, batch)))


def decode_fields(batch: Batch, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[RecordFields]:
    """As :func:`decode_records`, as plain tuples, for a caller that makes its own record of them."""
    body = record_bytes(batch, bytes_max=bytes_max)
    if COMPILED is not None:
        found: list[RecordFields] | None = COMPILED.decode(*_frame(body, batch), tuple)
        if found is not None:
            return found
    return list(fields(body, batch))


def decode_values(batch: Batch, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[bytes | None]:
    """Return the values alone, in order: several times as fast. Raises :class:`CorruptBatch`."""
    body = record_bytes(batch, bytes_max=bytes_max)
    if COMPILED is not None:
        found: list[bytes | None] | None = COMPILED.decode(*_frame(body, batch), None)
        if found is not None:
            return found
    return values(body, batch)


def _frame(body: bytes, batch: Batch) -> tuple[bytes, int, int, int | None, int, int]:
    """What the compiled twin asks of a batch."""
    return (
        body,
        batch.base_offset,
        batch.base_timestamp,
        batch.max_timestamp if batch.is_log_append_time else None,
        batch.record_count,
        batch.last_offset_delta,
    )


def record_bytes(batch: Batch, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Return the bytes of a batch's records, unpacked. Raises :class:`CorruptBatch`."""
    if batch.record_count < 0:
        raise CorruptBatch(f"expected a record count of 0 or more, found {batch.record_count}")
    kind = batch.compression
    if kind is Compression.NONE:
        return bytes(batch.view[HEADER_SIZE:])
    if not batch.record_count:
        return b""
    return decompress(kind, batch.view[HEADER_SIZE:], bytes_max=bytes_max)


def offset_of_timestamp(
    batch: Batch, timestamp: int, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> tuple[int, int] | None:
    """Return time and offset of the first record at or after ``timestamp``, None if there is none.

    Raises :class:`CorruptBatch`. Source: Kafka's ``FileRecords.searchForTimestamp``.
    """
    if batch.max_timestamp < timestamp:
        return None
    for offset, found, _, _, _ in decode_fields(batch, bytes_max=bytes_max):
        if found >= timestamp:
            return found, offset
    return None
