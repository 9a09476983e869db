"""Writing record batches: one record at a time, or a whole list of values at once.

A record (Kafka's ``DefaultRecord``) is: varint length of the rest, attributes byte 0, varint timestamp
delta, varint offset delta, key, value, headers; key and value as varint length (-1 for null) and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final

from crc32c import crc32c

from tidelog.model.ids import NO_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.proto.compression import Compression, compress
from tidelog.proto.network import Buffer
from tidelog.proto.records import CRC_AT, HEADER, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, SIGNED_FROM, TRANSACTIONAL
from tidelog.proto.varint import TABLE_SIZE, VARINT_LIST, VARINTS, encode_varint

NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1

Headers = Iterable[tuple[str, Buffer | None]]

_EMPTY_HEADER: Final = bytes(HEADER_SIZE)
_DELTA_AND_NULL_KEY: Final = [varint + b"\x01" for varint in VARINT_LIST]


class BatchBuilder:
    """Collects the records of one batch. Not thread-safe.

    ``bytes_max`` bounds the batch before compression, header included; a single record may exceed it
    (the caller holds records to ``max_request_size`` itself).
    """

    __slots__ = ("_base_timestamp", "_bytes_max", "_max_timestamp", "_pieces", "compression", "count", "size")

    compression: Compression
    count: int
    """Records so far."""
    size: int
    """Bytes of the batch so far, without compression."""

    def __init__(self, compression: Compression = Compression.NONE, *, bytes_max: int | None = None) -> None:
        self.compression = compression
        self.count = 0
        self.size = HEADER_SIZE
        self._bytes_max = 1 << 62 if bytes_max is None else bytes_max
        self._pieces: list[bytes] = [_EMPTY_HEADER]
        self._base_timestamp = NO_TIMESTAMP
        self._max_timestamp = NO_TIMESTAMP

    def append(self, timestamp: int, key: Buffer | None, value: Buffer | None, headers: Headers = ()) -> int:
        """Add a record; return :attr:`size`, or -1 if it does not fit, in which case nothing changed.

        ``timestamp`` in ms, of any order. The bytes are taken as they are now. The first record always
        fits. Raises ``TypeError`` for a key or value that is no bytes, changing nothing.
        """
        count = self.count
        if not count:
            self._base_timestamp = self._max_timestamp = timestamp
        if key is None and value.__class__ is bytes and not headers:
            size = len(value)
            body = b"\0%b%b\x01%b%b\0" % (
                VARINTS[timestamp - self._base_timestamp],
                VARINTS[count],
                VARINTS[size],
                value,
            )
        else:
            body = b"\0%b%b%b%b%b" % (
                VARINTS[timestamp - self._base_timestamp],
                VARINTS[count],
                b"\x01" if key is None else _sized(key),
                b"\x01" if value is None else _sized(value),
                _encode_headers(headers) if headers else b"\0",
            )
        length = VARINTS[len(body)]
        size = self.size + len(length) + len(body)
        if size > self._bytes_max and count:
            return -1
        self._pieces += (length, body)
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        self.count = count + 1
        self.size = size
        return size

    def build(
        self,
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        is_transactional: bool = False,
    ) -> bytearray:
        """Return the finished batch at base offset 0. May be called again, also after more records.

        Raises ``ValueError`` without records: Kafka has no use for a batch of none.
        """
        if not self.count:
            raise ValueError("expected at least one record in a batch, found none")
        if self.compression is Compression.NONE:
            out = bytearray().join(self._pieces)
        else:
            out = _compressed(b"".join(self._pieces[1:]), self.compression)
        finish_batch(
            out,
            attributes=self.compression | (TRANSACTIONAL if is_transactional else 0),
            count=self.count,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
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
    """Return a batch of values without keys and headers, all of one timestamp: the fast bulk form.

    Equal byte for byte to what :class:`BatchBuilder` makes of the same records. Raises ``ValueError``
    without values, ``TypeError`` for a value that is no bytes.
    """
    if not values:
        raise ValueError("expected at least one value in a batch, found none")
    lengths = list(map(len, values))
    # The leading zero of each record's pieces is the header count of the record before; the first one
    # stands in the place of the batch header's last byte, which is written afterwards.
    uniform = len(set(lengths)) == 1 and len(values) <= TABLE_SIZE
    pieces = _uniform_pieces(values, lengths[0]) if uniform else _mixed_pieces(values, lengths)
    if compression is Compression.NONE:
        out = bytearray().join(chain((_EMPTY_HEADER[:-1],), pieces, (b"\0",)))
    else:
        out = _compressed(b"".join(chain(pieces, (b"\0",)))[1:], compression)
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


def _compressed(records: bytes, kind: Compression) -> bytearray:
    return bytearray().join((_EMPTY_HEADER, compress(kind, records)))


def _sized(data: Buffer) -> bytes:
    """Return length and bytes of a key, a value or a header's value."""
    if data.__class__ is not bytes:
        data = bytes(memoryview(data))
    return VARINTS[len(data)] + data


def _encode_headers(headers: Headers) -> bytes:
    pieces = []
    count = 0
    for name, value in headers:
        raw = name.encode()
        pieces.append(VARINTS[len(raw)])
        pieces.append(raw)
        pieces.append(b"\x01" if value is None else _sized(value))
        count += 1
    return VARINTS[count] + b"".join(pieces)


@lru_cache(maxsize=8)
def _uniform_table(length: int, count: int) -> list[bytes]:
    """For ``count`` records with values of ``length`` bytes: all that stands before each value."""
    table: list[bytes] = []
    size = encode_varint(length)
    while len(table) < count:
        start = len(table)
        width = len(VARINT_LIST[start])
        stop = min(count, 1 << (7 * width - 1))
        head, tail = _around_delta(length, size, width)
        table += [head + delta + tail for delta in VARINT_LIST[start:stop]]
    return table


def _around_delta(length: int, size: bytes, width: int) -> tuple[bytes, bytes]:
    """What stands before and after an offset delta of ``width`` bytes, before a value of ``length``."""
    body = 1 + 1 + width + 1 + len(size) + length + 1
    return b"\0" + encode_varint(body) + b"\0\0", b"\x01" + size


def _uniform_pieces(values: Sequence[bytes], length: int) -> Iterable[bytes]:
    count = len(values)
    heads = _uniform_table(length, min(TABLE_SIZE, 1 << (count - 1).bit_length()))
    return chain.from_iterable(zip(heads, values, strict=False))


class _HeadsByLength(dict[int, bytes]):
    """Value's length → what stands before the offset delta; lives as long as one batch is encoded."""

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
        deltas = _DELTA_AND_NULL_KEY[:count]
    else:
        deltas = [VARINTS[delta] + b"\x01" for delta in range(count)]
    pieces: list[bytes] = [b""] * (4 * count)
    pieces[0::4] = heads
    pieces[1::4] = deltas
    pieces[2::4] = map(VARINTS.__getitem__, lengths)
    pieces[3::4] = values
    return pieces
