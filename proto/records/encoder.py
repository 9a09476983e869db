"""Writers of record batches: one record at a time, or a whole list in one call.

A record (Kafka's ``DefaultRecord``) is: varint length of the rest, attributes byte 0, varint timestamp
delta, varint offset delta, key, value, headers; key and value as varint length (-1 for null) and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final

from tidelog.model.buffer import Buffer
from tidelog.model.hashes.crc32c import crc32c
from tidelog.model.ids import NO_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.proto.records.batches import (
    CRC_AT,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    SIGNED_FROM,
    TRANSACTIONAL,
)
from tidelog.proto.records.buffer import EMPTY_HEADER, Headers
from tidelog.proto.records.compiled_codec import COMPILED
from tidelog.proto.records.compression import Compression, compress
from tidelog.proto.records.row_writer import RowWriter
from tidelog.proto.records.varint import TABLE_SIZE, VARINTS, encode_varint, varint_list

if TYPE_CHECKING or COMPILED is None:
    from tidelog.proto.records.buffer import RecordBuffer
else:
    RecordBuffer = COMPILED.RecordBuffer

NO_SEQUENCE: Final = -1


class BatchBuilder(RecordBuffer):
    """Collects the records of one batch and writes the batch.

    ``append``, ``size`` and ``count`` are :class:`tidelog.proto.records.buffer.RecordBuffer`'s, or those of
    its compiled twin.
    """

    __slots__ = ("compression",)

    compression: Compression

    def __init__(self, compression: Compression = Compression.NONE, *, bytes_max: int | None = None) -> None:
        super().__init__(bytes_max)
        self.compression = compression

    def build(
        self,
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        is_transactional: bool = False,
    ) -> bytearray:
        """Return the finished batch at base offset 0. May be called again, also after more records.

        Raises ``ValueError`` without records: Kafka has no empty batches from producers.
        """
        if not self.count:
            raise ValueError("expected at least one record in a batch, found none")
        out = self.taken()
        if self.compression is not Compression.NONE:
            out = _compressed(out, self.compression)
        finish_batch(
            out,
            attributes=self.compression | (TRANSACTIONAL if is_transactional else 0),
            count=self.count,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
        return out


def encode_values(
    values: Sequence[bytes],
    timestamp: int,
    *,
    compression: Compression = Compression.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
) -> bytearray:
    """Return a batch of values without keys and headers, with one timestamp: the fast bulk form.

    Byte for byte equal to :class:`BatchBuilder`'s result for the same records. Raises ``ValueError`` without values,
    ``TypeError`` for a value that is not bytes.
    """
    if not values:
        raise ValueError("expected at least one value in a batch, found none")
    out: bytearray | None = None
    if COMPILED is not None:
        out = COMPILED.values_body(values if values.__class__ is list else list(values))
    if out is None:
        out = values_body(values)
    if compression is not Compression.NONE:
        out = _compressed(out, compression)
    finish_batch(
        out,
        attributes=compression | (TRANSACTIONAL if is_transactional else 0),
        count=len(values),
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    return out


def encode_columns(
    timestamps: Sequence[int],
    keys: Sequence[Buffer | None] | None,
    values: Sequence[Buffer | None],
    headers: Sequence[Headers] | None = None,
    *,
    compression: Compression = Compression.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
) -> bytearray:
    """Return a batch of records from columns of equal length; None for an empty column.

    Byte for byte equal to :class:`BatchBuilder`'s result for the same records, with the same errors.
    """
    builder = BatchBuilder(compression)
    append = builder.append
    nothing = repeat(None, len(values))
    if headers is None:
        for timestamp, key, value in zip(timestamps, nothing if keys is None else keys, values, strict=True):
            append(timestamp, key, value)
    else:
        columns = zip(timestamps, nothing if keys is None else keys, values, headers, strict=True)
        for timestamp, key, value, header in columns:
            append(timestamp, key, value, header)
    return builder.build(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
    )


def encode_rows(
    writer: RowWriter,
    start: int,
    stop: int,
    bytes_max: int,
    now_ms: int,
    *,
    compression: Compression = Compression.NONE,
    is_transactional: bool = False,
) -> tuple[bytearray, int, int]:
    """Return a batch of rows in ``writer``'s order, of at most ``bytes_max`` bytes before compression (at least one
    row), without a producer's identity; the position of the next row; and the size before compression.

    Raises the errors of :meth:`RowWriter.write`.
    """
    out, after, base, highest = writer.write(start, stop, bytes_max, now_ms)
    size = len(out)
    if compression is not Compression.NONE:
        out = _compressed(out, compression)
    finish_batch(
        out,
        attributes=compression | (TRANSACTIONAL if is_transactional else 0),
        count=after - start,
        base_timestamp=base,
        max_timestamp=highest,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
    )
    return out, after, size


def finish_batch(
    out: bytearray,
    *,
    attributes: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> None:
    """Write the header, CRC included, before the records that ``out`` already holds from byte 61 on."""
    HEADER.pack_into(
        out,
        0,
        0,
        len(out) - LENGTH_OVERHEAD,
        NO_LEADER_EPOCH,
        MAGIC,
        0,
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    with memoryview(out) as view:
        crc = crc32c(view[SIGNED_FROM:])
    out[CRC_AT:SIGNED_FROM] = crc.to_bytes(4, "big")


def _compressed(uncompressed: bytearray, kind: Compression) -> bytearray:
    with memoryview(uncompressed) as view:
        return bytearray().join((EMPTY_HEADER, compress(kind, view[HEADER_SIZE:])))


def values_body(values: Sequence[bytes]) -> bytearray:
    """Return 61 zero bytes and a record for each value: the Python twin of the compiled function."""
    lengths = list(map(len, values))
    # The leading zero of each record's pieces is the header count of the previous record; the first one is the batch
    # header's last byte.
    uniform = len(set(lengths)) == 1 and len(values) <= TABLE_SIZE
    pieces = _uniform_pieces(values, lengths[0]) if uniform else _mixed_pieces(values, lengths)
    return bytearray().join(chain((EMPTY_HEADER[:-1],), pieces, (b"\0",)))


@lru_cache(maxsize=8)
def _uniform_table(length: int, count: int) -> list[bytes]:
    """Return everything before each value, for ``count`` records with values of ``length`` bytes."""
    table: list[bytes] = []
    size = encode_varint(length)
    while len(table) < count:
        start = len(table)
        width = len(VARINTS[start])
        stop = min(count, 1 << (7 * width - 1))
        head, tail = _around_delta(length, size, width)
        table += [head + delta + tail for delta in varint_list()[start:stop]]
    return table


def _around_delta(length: int, size: bytes, width: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after an offset delta of ``width`` bytes, before a value of ``length``."""
    body = 1 + 1 + width + 1 + len(size) + length + 1
    return b"\0" + encode_varint(body) + b"\0\0", b"\x01" + size


def _uniform_pieces(values: Sequence[bytes], length: int) -> Iterable[bytes]:
    count = len(values)
    heads = _uniform_table(length, min(TABLE_SIZE, 1 << (count - 1).bit_length()))
    return chain.from_iterable(zip(heads, values, strict=False))


@cache
def _deltas_and_null_keys() -> list[bytes]:
    return [varint + b"\x01" for varint in varint_list()]


class _HeadsByLength(dict[int, bytes]):
    """Value's length → the bytes before the offset delta; lives for the encoding of one batch."""

    def __init__(self, width: int) -> None:
        self._width = width

    def __missing__(self, length: int) -> bytes:
        found = self[length] = _around_delta(length, VARINTS[length], self._width)[0]
        return found


def _mixed_pieces(values: Sequence[bytes], lengths: list[int]) -> Iterable[bytes]:
    count = len(values)
    heads: list[bytes] = []
    while len(heads) < count:
        start = len(heads)
        width = len(VARINTS[start])
        stop = min(count, 1 << (7 * width - 1))
        heads += map(_HeadsByLength(width).__getitem__, lengths[start:stop])
    if count <= TABLE_SIZE:
        deltas = _deltas_and_null_keys()[:count]
    else:
        deltas = [VARINTS[delta] + b"\x01" for delta in range(count)]
    pieces: list[bytes] = [b""] * (4 * count)
    pieces[0::4] = heads
    pieces[1::4] = deltas
    pieces[2::4] = map(VARINTS.__getitem__, lengths)
    pieces[3::4] = values
    return pieces
