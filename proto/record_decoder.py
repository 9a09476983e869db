"""Reading the records of a batch.

Every reader here checks what it walks over: lengths, offsets in rising order within the batch's range,
record count, no bytes left over. A batch whose content denies its header raises :class:`CorruptBatch`
and nothing else; the broker never looks inside, so this is where a consumer is told. The CRC is the
caller's business (``Batch.crc_ok``).
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from tidelog.model.ids import Offset
from tidelog.proto.compression import DECOMPRESSED_BYTES_MAX, Compression, decompress
from tidelog.proto.corrupt_batch import CorruptBatch
from tidelog.proto.records import HEADER_SIZE, Batch

RecordHeaders = tuple[tuple[str, bytes | None], ...]
RecordFields = tuple[Offset, int, bytes | None, bytes | None, RecordHeaders]
"""Offset, timestamp (ms), key, value, headers."""


class Record(NamedTuple):
    """One record. ``timestamp`` in ms; a header's name may occur several times."""

    offset: Offset
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders


_new_record: Final = partial(tuple.__new__, Record)
_INT_BITS: Final = 32
_LONG_BITS: Final = 64


def decode_records(batch: Batch, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[Record]:
    """Return the records of a batch, of a control batch too. Raises :class:`CorruptBatch`.

    ``bytes_max`` bounds what the batch may unfold to.
    """
    return list(map(_new_record, decode_fields(batch, bytes_max=bytes_max)))


def decode_fields(batch: Batch, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[RecordFields]:
    """As :func:`decode_records`, as plain tuples, for a caller that makes its own record of them."""
    body = record_bytes(batch, bytes_max=bytes_max)
    return _walk(body, batch)


def decode_values(batch: Batch, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[bytes | None]:
    """Return the values alone, in order: several times as fast. Raises :class:`CorruptBatch`."""
    body = record_bytes(batch, bytes_max=bytes_max)
    return [fields[3] for fields in _walk(body, batch)]


def record_bytes(batch: Batch, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Return the bytes of a batch's records, unpacked. Raises :class:`CorruptBatch`."""
    kind = batch.compression
    if kind is Compression.NONE:
        return bytes(batch.view[HEADER_SIZE:])
    if not batch.record_count:
        return b""
    return decompress(kind, batch.view[HEADER_SIZE:], bytes_max=bytes_max)


def offset_of_timestamp(
    batch: Batch, timestamp: int, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> tuple[int, Offset] | None:
    """Return time and offset of the first record at or after ``timestamp``, None if there is none.

    Raises :class:`CorruptBatch`. Source: Kafka's ``FileRecords.searchForTimestamp``.
    """
    if batch.max_timestamp < timestamp:
        return None
    for offset, found, _, _, _ in decode_fields(batch, bytes_max=bytes_max):
        if found >= timestamp:
            return found, offset
    return None


def _walk(body: bytes, batch: Batch) -> list[RecordFields]:
    out: list[RecordFields] = []
    append = out.append
    base = batch.base_offset
    base_timestamp = batch.base_timestamp
    fixed_timestamp = batch.max_timestamp if batch.is_log_append_time else None
    last_delta = -1
    position = 0
    try:
        for _ in range(batch.record_count):
            byte = body[position]
            position += 1
            if byte > 127:
                byte, position = _read_varint(body, position - 1, _INT_BITS)
            if byte & 1:
                raise CorruptBatch(f"expected a record length of 0 or more, found {_signed(byte)}")
            end = position + (byte >> 1)
            position += 1
            byte = body[position]
            position += 1
            if byte > 127:
                byte, position = _read_varint(body, position - 1, _LONG_BITS)
            timestamp = base_timestamp + ((byte >> 1) ^ -(byte & 1))
            byte = body[position]
            position += 1
            if byte > 127:
                byte, position = _read_varint(body, position - 1, _INT_BITS)
            delta = byte >> 1
            if delta <= last_delta or byte & 1:
                raise CorruptBatch(f"expected an offset delta over {last_delta}, found {_signed(byte)}")
            last_delta = delta
            byte = body[position]
            position += 1
            if byte > 127:
                byte, position = _read_varint(body, position - 1, _INT_BITS)
            if byte & 1:
                key = None
            else:
                start = position
                position += byte >> 1
                key = body[start:position]
            byte = body[position]
            position += 1
            if byte > 127:
                byte, position = _read_varint(body, position - 1, _INT_BITS)
            if byte & 1:
                value = None
            else:
                start = position
                position += byte >> 1
                value = body[start:position]
            headers: RecordHeaders = ()
            if body[position]:
                headers, position = _read_headers(body, position, end)
            else:
                position += 1
            if position != end:
                raise CorruptBatch(f"expected a record to end at byte {end}, found its fields to end at {position}")
            append((Offset(base + delta), timestamp, key, value, headers))
    except IndexError:
        raise CorruptBatch(
            f"expected {batch.record_count} records, found their bytes to end in record {len(out) + 1}"
        ) from None
    if position != len(body):
        raise CorruptBatch(f"expected {batch.record_count} records in {position} bytes, found {len(body)} bytes")
    if last_delta > batch.last_offset_delta:
        raise CorruptBatch(f"expected offset deltas up to {batch.last_offset_delta}, found {last_delta}")
    if fixed_timestamp is not None:
        return [(offset, fixed_timestamp, key, value, headers) for offset, _, key, value, headers in out]
    return out


def _read_varint(body: bytes, position: int, bits: int) -> tuple[int, int]:
    """Return the unsigned form of a zigzag varint and where it ends. Raises as Kafka's ``ByteUtils`` does."""
    number = 0
    for shift in range(0, bits, 7):
        byte = body[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number & ((1 << bits) - 1), position
    raise CorruptBatch(f"expected a varint of at most {bits} bits at byte {position}, found more")


def _signed(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _read_headers(body: bytes, position: int, end: int) -> tuple[RecordHeaders, int]:
    number, position = _read_varint(body, position, _INT_BITS)
    count = _signed(number)
    if not 0 <= count <= end - position:
        raise CorruptBatch(f"expected at most {max(0, end - position)} headers, found {count}")
    out: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        number, position = _read_varint(body, position, _INT_BITS)
        if number & 1:
            raise CorruptBatch(f"expected a header name of 0 or more bytes, found {_signed(number)}")
        name = body[position : position + (number >> 1)].decode(errors="replace")
        position += number >> 1
        number, position = _read_varint(body, position, _INT_BITS)
        if number & 1:
            out.append((name, None))
        else:
            out.append((name, body[position : position + (number >> 1)]))
            position += number >> 1
    return tuple(out), position
