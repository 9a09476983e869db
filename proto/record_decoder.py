"""Reading the records of a batch.

Every reader here checks what it walks over: lengths, offsets in rising order within the batch's range,
record count, no bytes left over. A batch whose content denies its header raises :class:`CorruptBatch`
and nothing else; the broker never looks inside, so this is where a consumer is told. The CRC is the
caller's business (``Batch.crc_ok``).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import chain, repeat
from typing import Final, NamedTuple, cast

from tidelog.proto.compression import DECOMPRESSED_BYTES_MAX, Compression, decompress
from tidelog.proto.corrupt_batch import CorruptBatch
from tidelog.proto.records import HEADER_SIZE, Batch
from tidelog.proto.varint import TABLE_SIZE, VARINT_LIST

RecordHeaders = tuple[tuple[str, bytes | None], ...]
RecordFields = tuple[int, int, bytes | None, bytes | None, RecordHeaders]
"""Offset, timestamp (ms), key, value, headers."""


class Record(NamedTuple):
    """One record. ``timestamp`` in ms; a header's name may occur several times."""

    offset: int
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
    return list(map(_new_record, _fields(batch, bytes_max)))


def decode_fields(batch: Batch, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[RecordFields]:
    """As :func:`decode_records`, as plain tuples, for a caller that makes its own record of them."""
    return list(_fields(batch, bytes_max))


def decode_values(batch: Batch, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[bytes | None]:
    """Return the values alone, in order: several times as fast. Raises :class:`CorruptBatch`."""
    body = record_bytes(batch, bytes_max=bytes_max)
    uniform = uniform_values(body, batch)
    if uniform is not None:
        return cast("list[bytes | None]", uniform)
    return [fields[3] for fields in walk(body, batch)]


def _fields(batch: Batch, bytes_max: int) -> Iterable[RecordFields]:
    body = record_bytes(batch, bytes_max=bytes_max)
    values = uniform_values(body, batch)
    if values is None:
        return walk(body, batch)
    offsets = range(batch.base_offset, batch.base_offset + len(values))
    timestamp = batch.max_timestamp if batch.is_log_append_time else batch.base_timestamp
    return zip(offsets, repeat(timestamp), repeat(None), values, repeat(()))


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


def walk(body: bytes, batch: Batch) -> list[RecordFields]:
    """Read all fields of all records. One- and two-byte varints are read in place: they are nearly all."""
    out: list[RecordFields] = []
    append = out.append
    base = batch.base_offset
    base_timestamp = batch.base_timestamp
    last_delta = -1
    position = 0
    try:
        for _ in range(batch.record_count):
            number = body[position]
            if number < 128:
                position += 1
            elif (high := body[position + 1]) < 128:
                number += (high << 7) - 128
                position += 2
            else:
                number, position = _read_varint(body, position, _INT_BITS)
            end = position + (number >> 1)
            odd = number
            position += 1
            number = body[position]
            if number < 128:
                position += 1
            elif (high := body[position + 1]) < 128:
                number += (high << 7) - 128
                position += 2
            else:
                number, position = _read_varint(body, position, _LONG_BITS)
            timestamp = base_timestamp + (number >> 1 if not number & 1 else ~(number >> 1))
            number = body[position]
            if number < 128:
                position += 1
            elif (high := body[position + 1]) < 128:
                number += (high << 7) - 128
                position += 2
            else:
                number, position = _read_varint(body, position, _INT_BITS)
            delta = number >> 1
            if delta <= last_delta or (odd | number) & 1:
                raise CorruptBatch(
                    f"expected a record length of 0 or more and an offset delta over {last_delta}, "
                    f"found {_signed(odd)} and {_signed(number)}"
                )
            last_delta = delta
            number = body[position]
            position += 1
            if number == 1:
                key = None
            else:
                if number > 127:
                    number, position = _read_varint(body, position - 1, _INT_BITS)
                if number & 1:
                    key = None
                else:
                    start = position
                    position += number >> 1
                    key = body[start:position]
            number = body[position]
            if number < 128:
                position += 1
            elif (high := body[position + 1]) < 128:
                number += (high << 7) - 128
                position += 2
            else:
                number, position = _read_varint(body, position, _INT_BITS)
            if number & 1:
                value = None
            else:
                start = position
                position += number >> 1
                value = body[start:position]
            if body[position]:
                headers, position = _read_headers(body, position, end)
            else:
                headers = ()
                position += 1
            if position != end:
                raise CorruptBatch(f"expected a record to end at byte {end}, found its fields to end at {position}")
            append((base + delta, timestamp, key, value, headers))
    except IndexError:
        raise CorruptBatch(
            f"expected {batch.record_count} records, found their bytes to end in record {len(out) + 1}"
        ) from None
    if position != len(body):
        raise CorruptBatch(f"expected {batch.record_count} records in {position} bytes, found {len(body)} bytes")
    if last_delta > batch.last_offset_delta:
        raise CorruptBatch(f"expected offset deltas up to {batch.last_offset_delta}, found {last_delta}")
    if batch.is_log_append_time:
        timestamp = batch.max_timestamp
        return [(offset, timestamp, key, value, headers) for offset, _, key, value, headers in out]
    return out


def uniform_values(body: bytes, batch: Batch) -> list[bytes] | None:
    """Return the values of records that differ in offset and value alone, None if these are not so.

    That is what :func:`tidelog.proto.record_encoder.encode_values` makes of values of one length. Records
    whose offset deltas take equally many bytes then stand at even steps, so that each byte of what stands
    around the values is a column, compared by one strided slice.
    """
    count = batch.record_count
    if count != batch.last_offset_delta + 1 or not 0 < count <= TABLE_SIZE:
        return None
    values: list[bytes] = []
    position = 0
    while len(values) < count:
        start = len(values)
        width = len(VARINT_LIST[start])
        stop = min(count, 1 << (7 * width - 1))
        try:
            number, fields = _read_varint(body, position, _INT_BITS)
            delta_at = fields + 2
            size, value_at = _read_varint(body, delta_at + width + 1, _INT_BITS)
        except (IndexError, CorruptBatch):
            return None
        step = fields - position + (number >> 1)
        end = position + step * (stop - start)
        if end > len(body) or (number | size) & 1 or value_at + (size >> 1) + 1 != position + step:
            return None
        if body[fields : fields + 2] != b"\0\0" or body[delta_at + width] != 1:
            return None
        if body[position + step - 1]:
            return None
        for column in chain(range(position, delta_at), range(delta_at + width, value_at), (position + step - 1,)):
            if body[column:end:step] != body[column : column + 1] * (stop - start):
                return None
        deltas = b"".join(VARINT_LIST[start:stop])
        for column in range(width):
            if body[delta_at + column : end : step] != deltas[column::width]:
                return None
        size >>= 1
        values += [body[at : at + size] for at in range(value_at, end, step)]
        position = end
    return values if position == len(body) else None


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
    number = body[position]
    position += 1
    if number > 127:
        number, position = _read_varint(body, position - 1, _INT_BITS)
    count = _signed(number)
    if not 0 <= count <= end - position:
        raise CorruptBatch(f"expected at most {max(0, end - position)} headers, found {count}")
    out: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        number = body[position]
        position += 1
        if number > 127:
            number, position = _read_varint(body, position - 1, _INT_BITS)
        if number & 1:
            raise CorruptBatch(f"expected a header name of 0 or more bytes, found {_signed(number)}")
        start = position
        position += number >> 1
        name = str(body[start:position], "utf-8", "replace")
        number = body[position]
        position += 1
        if number > 127:
            number, position = _read_varint(body, position - 1, _INT_BITS)
        if number & 1:
            out.append((name, None))
        else:
            start = position
            position += number >> 1
            out.append((name, body[start:position]))
    return tuple(out), position
