"""Records as columns: the buffers of a columnar table, without a Python object per record.

The buffers have Arrow's columnar layout, so that they become a table without another copy: variable-size values as one
run of bytes with end offsets, nulls as a validity bitmap (lowest bit first), numbers in the machine's byte order.
Source: "Arrow Columnar Format", Variable-size Binary Layout.

:mod:`tidelog.proto.records._codec` has the same :class:`ColumnBuffer`, compiled; tests keep the two equal.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from tidelog.proto.records.batches import Batch
from tidelog.proto.records.compiled_codec import COMPILED
from tidelog.proto.records.compression import DECOMPRESSED_BYTES_MAX
from tidelog.proto.records.decoder import record_bytes
from tidelog.proto.records.walk import fields

INT32_MAX: Final = (1 << 31) - 1
_RawBlobs = tuple[int, int, bytes | None, bytes, bytes]
_RawHeaders = tuple[int, bytes | None, bytes, _RawBlobs, _RawBlobs]
_RawColumns = tuple[int, bytes, bytes, bytes, _RawBlobs, _RawBlobs, _RawHeaders | None]

_MICROS_MAX: Final = (1 << 63) - 1
_MICROS_MIN: Final = -(1 << 63)


class Blobs(NamedTuple):
    """A column of byte strings. ``valid`` is the bitmap of non-null values, None without nulls; ``ends`` are ``length +
    1`` numbers of 4 bytes, the first of them 0; ``data`` is at most 2 GiB less one byte."""

    length: int
    nulls: int
    valid: bytes | None
    ends: bytes
    data: bytes


class HeaderColumns(NamedTuple):
    """The headers of all records in sequence; ``ends`` as in :class:`Blobs`, ``without`` the number of records without
    headers, which ``valid`` marks as null."""

    without: int
    valid: bytes | None
    ends: bytes
    names: Blobs
    contents: Blobs


class Columns(NamedTuple):
    """``rows`` records. ``offsets`` and ``timestamps`` (microseconds) have 8 bytes each, ``kinds`` 4: 0 for a
    producer's timestamp, 1 for the leader's (Kafka's ``TimestampType``)."""

    rows: int
    offsets: bytes
    timestamps: bytes
    kinds: bytes
    keys: Blobs
    values: Blobs
    headers: HeaderColumns | None


class ColumnBuffer:
    """Collects records until :meth:`take`. Not thread-safe. Unbounded: the code that fills it checks :attr:`count` and
    :attr:`size` after each batch, which adds at most its decompression bound."""

    __slots__ = ("_headers", "_keys", "_kinds", "_offsets", "_timestamps", "_values", "count", "size")

    count: int
    """Records so far."""
    size: int
    """Bytes of keys, values and headers so far."""

    def __init__(self, *, headers: bool = False) -> None:
        """Start empty. ``headers``: whether to collect headers."""
        self._headers: list[Sequence[tuple[str, bytes | None]]] | None = [] if headers else None
        self._begin()

    def _begin(self) -> None:
        self.count = self.size = 0
        self._offsets = array("q")
        self._timestamps = array("q")
        self._kinds = array("i")
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []

    def add(
        self,
        body: bytes,
        base_offset: int,
        base_timestamp: int,
        fixed_timestamp: int | None,
        count: int,
        last_delta: int,
        first: int,
        end: int,
    ) -> bool:
        """Add a batch's records if it has the simple form. For this class it never does."""
        return False

    def append(
        self,
        offset: int,
        timestamp: int,
        kind: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...],
    ) -> None:
        """Add one record; ``timestamp`` in ms. Times beyond 64 bits of microseconds become their bound."""
        self._offsets.append(offset)
        self._timestamps.append(max(_MICROS_MIN, min(timestamp * 1_000, _MICROS_MAX)))
        self._kinds.append(kind)
        self._keys.append(key)
        self._values.append(value)
        self.size += len(key or b"") + len(value or b"")
        if self._headers is not None:
            self._headers.append(headers)
            self.size += sum(len(name.encode()) + len(content or b"") for name, content in headers)
        self.count += 1

    def take(self) -> _RawColumns:
        """Return the parts for :func:`taken`, and start again."""
        header_columns: _RawHeaders | None = None
        if self._headers is not None:
            every = [header for headers in self._headers for header in headers]
            header_columns = (
                sum(not headers for headers in self._headers),
                None if all(self._headers) else _bitmap([bool(headers) for headers in self._headers]),
                _ends([len(headers) for headers in self._headers]),
                _blobs([name.encode() for name, _ in every]),
                _blobs([content for _, content in every]),
            )
            self._headers = []
        found = (
            self.count,
            self._offsets.tobytes(),
            self._timestamps.tobytes(),
            self._kinds.tobytes(),
            _blobs(self._keys),
            _blobs(self._values),
            header_columns,
        )
        self._begin()
        return found


def column_buffer(*, headers: bool = False) -> ColumnBuffer:
    """Return an empty buffer, the compiled one if available."""
    if COMPILED is not None:
        compiled: ColumnBuffer = COMPILED.ColumnBuffer(headers=headers)
        return compiled
    return ColumnBuffer(headers=headers)


def add_batch(
    buffer: ColumnBuffer, batch: Batch, first: int, end: int, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> None:
    """Add a batch's records with offsets from ``first`` to before ``end``.

    Raises :class:`CorruptBatch` without adding anything. ``bytes_max`` bounds the decompressed batch.
    """
    body = record_bytes(batch, bytes_max=bytes_max)
    fixed = batch.max_timestamp if batch.is_log_append_time else None
    if buffer.add(
        body,
        batch.base_offset,
        batch.base_timestamp,
        fixed,
        batch.record_count,
        batch.last_offset_delta,
        first,
        end,
    ):
        return
    kind = int(batch.is_log_append_time)
    for offset, timestamp, key, value, headers in fields(body, batch):
        if first <= offset < end:
            buffer.append(offset, timestamp, kind, key, value, headers)


def taken(buffer: ColumnBuffer) -> Columns:
    """Return the columns of the records so far; the buffer is empty then."""
    count, offsets, timestamps, kinds, keys, values, headers = buffer.take()
    named = None
    if headers is not None:
        without, valid, ends, names, contents = headers
        named = HeaderColumns(without, valid, ends, Blobs(*names), Blobs(*contents))
    return Columns(count, offsets, timestamps, kinds, Blobs(*keys), Blobs(*values), named)


def _blobs(column: Sequence[bytes | None]) -> _RawBlobs:
    nulls = sum(item is None for item in column)
    return (
        len(column),
        nulls,
        _bitmap([item is not None for item in column]) if nulls else None,
        _ends([len(item or b"") for item in column]),
        b"".join(item or b"" for item in column),
    )


def _bitmap(flags: Sequence[bool]) -> bytes:
    whole = sum(1 << index for index, flag in enumerate(flags) if flag)
    return whole.to_bytes((len(flags) + 7) // 8, "little")


def _ends(sizes: Sequence[int]) -> bytes:
    ends = array("i", [0])
    total = 0
    for size in sizes:
        total += size
        if total > INT32_MAX:
            raise OverflowError("expected a column below 2 GiB, found more")
        ends.append(total)
    return ends.tobytes()
