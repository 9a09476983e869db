"""Reads a batch's records in plain Python.

:mod:`tidelog.proto.records._codec` has a compiled twin, which leaves everything unusual to this one; so this one
decides what is corrupt, and words the error.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat
from typing import Final, cast

from tidelog.proto.records.batches import Batch
from tidelog.proto.records.corrupt_batch import CorruptBatch
from tidelog.proto.records.varint import TABLE_SIZE, varint_list

RecordHeaders = tuple[tuple[str, bytes | None], ...]
RecordFields = tuple[int, int, bytes | None, bytes | None, RecordHeaders]
"""Offset, timestamp (ms), key, value, headers."""

_INT_BITS: Final = 32
_LONG_BITS: Final = 64


def fields(body: bytes, batch: Batch) -> Iterable[RecordFields]:
    """Return all fields of the records in ``body``, which is decompressed. Raises :class:`CorruptBatch`."""
    found = uniform_values(body, batch)
    if found is None:
        return walk(body, batch)
    offsets = range(batch.base_offset, batch.base_offset + len(found))
    timestamp = batch.max_timestamp if batch.is_log_append_time else batch.base_timestamp
    return zip(offsets, repeat(timestamp), repeat(None), found, repeat(()))


def values(body: bytes, batch: Batch) -> list[bytes | None]:
    """Return only the values. Raises :class:`CorruptBatch`."""
    uniform = uniform_values(body, batch)
    if uniform is not None:
        return cast("list[bytes | None]", uniform)
    return [record[3] for record in walk(body, batch)]


def walk(body: bytes, batch: Batch) -> list[RecordFields]:
    """Read all fields of all records. One- and two-byte varints, nearly all of them, are read inline."""
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
    if out and last_delta > batch.last_offset_delta:
        raise CorruptBatch(f"expected offset deltas up to {batch.last_offset_delta}, found {last_delta}")
    if batch.is_log_append_time:
        timestamp = batch.max_timestamp
        return [(offset, timestamp, key, value, headers) for offset, _, key, value, headers in out]
    return out


def uniform_values(body: bytes, batch: Batch) -> list[bytes] | None:
    """Return the values of records that differ only in offset and value, None if they differ otherwise.

    :func:`tidelog.proto.records.encoder.encode_values` writes such records for values of one length. Records with
    equally long offset deltas are then evenly spaced, so that each byte around the values is a column, compared by one
    strided slice.
    """
    count = batch.record_count
    if count != batch.last_offset_delta + 1 or not 0 < count <= TABLE_SIZE:
        return None
    varints = varint_list()
    found: list[bytes] = []
    position = 0
    while len(found) < count:
        start = len(found)
        width = len(varints[start])
        stop = min(count, 1 << (7 * width - 1))
        try:
            number, inner = _read_varint(body, position, _INT_BITS)
            delta_at = inner + 2
            size, value_at = _read_varint(body, delta_at + width + 1, _INT_BITS)
        except (IndexError, CorruptBatch):
            return None
        step = inner - position + (number >> 1)
        end = position + step * (stop - start)
        if end > len(body) or (number | size) & 1 or value_at + (size >> 1) + 1 != position + step:
            return None
        if body[inner : inner + 2] != b"\0\0" or body[delta_at + width] != 1:
            return None
        if body[position + step - 1]:
            return None
        for column in chain(range(position, delta_at), range(delta_at + width, value_at), (position + step - 1,)):
            if body[column:end:step] != body[column : column + 1] * (stop - start):
                return None
        deltas = b"".join(varints[start:stop])
        for column in range(width):
            if body[delta_at + column : end : step] != deltas[column::width]:
                return None
        size >>= 1
        found += [body[at : at + size] for at in range(value_at, end, step)]
        position = end
    return found if position == len(body) else None


def _read_varint(body: bytes, position: int, bits: int) -> tuple[int, int]:
    """Return the unsigned form of a zigzag varint and its end. Raises as Kafka's ``ByteUtils`` does."""
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
