"""Writes a table's columns as records, and chooses each record's partition; in plain Python.

:mod:`tidelog.proto.records._codec` has the same :class:`RowWriter`, compiled; tests keep the two equal.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, Literal

from tidelog.model.buffer import Buffer
from tidelog.model.hashes.key_partition import partition_for_key
from tidelog.proto.records.batches import HEADER_SIZE
from tidelog.proto.records.buffer import EMPTY_HEADER, TIME_MAX
from tidelog.proto.records.compiled_codec import COMPILED
from tidelog.proto.records.sent_columns import (
    ROWS_MAX,
    BlobView,
    Fault,
    HeaderView,
    NumberView,
    RecordColumns,
    flat,
    flattened,
)
from tidelog.proto.records.varint import VARINTS

RECKONED: Final = 12
"""Estimated bytes of a record besides key, value and headers, for distributing records without a key."""
RECKONED_MAX: Final = 21
"""``DefaultRecord.MAX_RECORD_OVERHEAD``: the maximum for a record's framing."""
RECKONED_HEADER: Final = 10
"""Estimated bytes of a header besides name and content: two varints."""

Findings = tuple[int, int, int]
"""A fault, the row, and the number found: a partition, a size in bytes, a timestamp in microseconds. Without a fault:
the bytes of records that may go to any partition."""
Headers = list[tuple[bytes, bytes | None]]


class _Blobs:
    __slots__ = ("_data", "_ends", "_first", "_size", "_valid")

    def __init__(self, view: BlobView, rows: int) -> None:
        self._ends = _numbers(view.ends, "q" if view.wide else "i", view.first, rows and rows + 1)
        self._data = flat(view.data)
        self._size = len(self._data)
        self._valid = _bits(view.valid, view.first, rows)
        self._first = view.first

    def sound(self, row: int) -> bool:
        return not _set(self._valid, self._first + row) or 0 <= self._ends[row] <= self._ends[row + 1] <= self._size

    def __getitem__(self, row: int) -> bytes | None:
        if not _set(self._valid, self._first + row):
            return None
        return bytes(self._data[self._ends[row] : self._ends[row + 1]])


class _Numbers:
    __slots__ = ("_data", "_first", "_valid")

    def __init__(self, view: NumberView, code: Literal["i", "q"], rows: int) -> None:
        self._data: memoryview[int] = _numbers(view.data, code, view.first, rows)
        self._valid = _bits(view.valid, view.first, rows)
        self._first = view.first

    def __getitem__(self, row: int) -> int | None:
        return self._data[row] if _set(self._valid, self._first + row) else None


class _Headers:
    __slots__ = ("_contents", "_ends", "_first", "_names", "_pairs", "_pairs_first", "_pairs_valid", "_valid")

    def __init__(self, view: HeaderView, rows: int) -> None:
        self._ends = _numbers(view.ends, "q" if view.wide else "i", view.first, rows + 1)
        self._valid = _bits(view.valid, view.first, rows)
        self._first = view.first
        self._pairs = pairs = max(self._ends[rows], 0)
        self._names = _Blobs(view.names, pairs)
        self._contents = _Blobs(view.contents, pairs)
        self._pairs_valid = _bits(view.pairs_valid, view.pairs_first, pairs)
        self._pairs_first = view.pairs_first

    def span(self, row: int) -> range | None:
        """Return its pairs; None if they are out of range."""
        if not _set(self._valid, self._first + row):
            return range(0)
        start, stop = self._ends[row], self._ends[row + 1]
        return range(start, stop) if 0 <= start <= stop <= self._pairs else None

    def fault(self, row: int) -> Fault:
        span = self.span(row)
        if span is None:
            return Fault.LAYOUT
        for pair in span:
            if not (self._names.sound(pair) and self._contents.sound(pair)):
                return Fault.LAYOUT
            if not _set(self._pairs_valid, self._pairs_first + pair) or self._names[pair] is None:
                return Fault.NAMELESS_HEADER
        return Fault.NONE

    def __getitem__(self, row: int) -> Headers:
        return [(self._names[pair] or b"", self._contents[pair]) for pair in self.span(row) or ()]


class RowWriter:
    """Writes rows of columns as records: :meth:`plan`, then :meth:`group`, then :meth:`write` piece by piece.

    Raises ``ValueError`` for columns with less data than declared, ``TypeError`` for objects that are not buffers.
    """

    __slots__ = (
        "_headers",
        "_keys",
        "_order",
        "_partition_count",
        "_partitions",
        "_rows",
        "_sizes",
        "_targets",
        "_times",
        "_values",
    )

    def __init__(self, columns: RecordColumns) -> None:
        rows = self._rows = columns.rows
        if not 0 <= rows <= ROWS_MAX:
            raise ValueError(f"rows: expected 0 to {ROWS_MAX}, found {rows}")
        if not rows:  # then its buffers may be empty
            columns = RecordColumns(0)
        self._values = None if columns.values is None else _Blobs(columns.values, rows)
        self._keys = None if columns.keys is None else _Blobs(columns.keys, rows)
        self._headers = None if columns.headers is None else _Headers(columns.headers, rows)
        self._partitions = None if columns.partitions is None else _Numbers(columns.partitions, "i", rows)
        self._times = None if columns.timestamps is None else _Numbers(columns.timestamps, "q", rows)
        self._targets: array[int] | None = None
        self._sizes: array[int] = array("q")
        self._partition_count = 0
        self._order: array[int] | None = None

    def plan(self, partition_count: int, partition: int, ignore_keys: bool, size_max: int) -> Findings:
        """Choose each row's partition: ``partition`` if it is not negative, else the row's own, else by its key's hash
        (unless keys are ignored); other rows are free. Find the first row that cannot be sent: a record may take at
        most ``size_max`` bytes with a batch header."""
        self._targets = self._order = None
        if partition_count < 1:
            raise ValueError(f"partition_count: expected 1 or more, found {partition_count}")
        self._partition_count = partition_count
        targets, sizes = array("i"), array("q")
        free = 0
        for row in range(self._rows):
            for column in (self._values, self._keys):
                if column is not None and not column.sound(row):
                    return Fault.LAYOUT, row, 0
            key = None if self._keys is None else self._keys[row]
            value = None if self._values is None else self._values[row]
            target: int | None = partition
            if partition < 0:
                target = None if self._partitions is None else self._partitions[row]
                if target is not None and target < 0:
                    return Fault.NEGATIVE_PARTITION, row, target
            if target is None and key is not None and not ignore_keys:
                target = partition_for_key(key, partition_count)
            if target is not None and target >= partition_count:
                return Fault.UNKNOWN_PARTITION, row, target
            time = None if self._times is None else self._times[row]
            if time is not None and time < 0:
                return Fault.NEGATIVE_TIMESTAMP, row, time
            size = len(key or b"") + len(value or b"")
            if self._headers is not None:
                fault = self._headers.fault(row)
                if fault:
                    return fault, row, 0
                for name, content in self._headers[row]:
                    size += len(name) + len(content or b"") + RECKONED_HEADER
            if size + HEADER_SIZE + RECKONED_MAX > size_max:
                return Fault.TOO_LARGE, row, size + HEADER_SIZE + RECKONED_MAX
            if target is None:
                free += size + RECKONED
            targets.append(-1 if target is None else target)
            sizes.append(size + RECKONED)
        self._targets, self._sizes = targets, sizes
        return Fault.NONE, 0, free

    def group(self, picks: Sequence[int], step: int) -> list[tuple[int, int, int]]:
        """Give the free rows to the partitions ``picks``, ``step`` bytes to each and the rest to the last, and sort all
        rows by partition, stably. Return each partition with its rows' start and end in that order. Raises
        ``ValueError`` without a faultless plan, or if picks are needed and missing."""
        if self._targets is None:
            raise ValueError("group() before a plan without faults")
        if step < 1:
            raise ValueError(f"step: expected 1 or more, found {step}")
        for pick in picks:
            if not 0 <= pick < self._partition_count:
                raise ValueError(f"expected a partition of 0 to {self._partition_count - 1}, found {pick}")
        self._order = None
        groups: dict[int, list[int]] = {}
        free = 0
        for row, target in enumerate(self._targets):
            if target < 0:
                if not picks:
                    raise ValueError("expected a partition for free rows, found none")
                target = picks[min(free // step, len(picks) - 1)]
                free += self._sizes[row]
            groups.setdefault(target, []).append(row)
        self._order = array("i")
        found = []
        for target in sorted(groups):
            start = len(self._order)
            self._order.extend(groups[target])
            found.append((target, start, len(self._order)))
        return found

    def write(self, start: int, stop: int, bytes_max: int, now_ms: int) -> tuple[bytearray, int, int, int]:
        """Write rows of that order from ``start`` to before ``stop``, as many as fit in ``bytes_max`` bytes with a
        batch header, at least one.

        Returns 61 zero bytes and the records, the position of the next row in the order, and the first and the highest
        timestamp. Raises ``ValueError`` for invalid positions, or buffers that have changed since the plan.
        """
        if self._order is None or not 0 <= start < stop <= len(self._order):
            raise ValueError(f"expected places of rows that were grouped, found {start} to {stop}")
        if not 0 <= now_ms < TIME_MAX:
            raise ValueError(f"now_ms: expected 0 to 2**62, found {now_ms}")
        pieces = [EMPTY_HEADER]
        total = HEADER_SIZE
        base = highest = 0
        at = start
        while at < stop:
            row = self._order[at]
            time, record = self._record(row, now_ms, base if at > start else None, at - start)
            if at > start and total + len(record) > bytes_max:
                break
            if at == start:
                base = highest = time
            highest = max(highest, time)
            pieces.append(record)
            total += len(record)
            at += 1
        return bytearray().join(pieces), at, base, highest

    def _record(self, row: int, now_ms: int, base: int | None, delta: int) -> tuple[int, bytes]:
        for column in (self._values, self._keys):
            if column is not None and not column.sound(row):
                raise ValueError("expected the columns that were planned, found others")
        if self._headers is not None and self._headers.fault(row):
            raise ValueError("expected the columns that were planned, found others")
        micros = None if self._times is None else self._times[row]
        time = now_ms if micros is None else micros // 1_000
        headers = [] if self._headers is None else self._headers[row]
        body = b"\0%b%b%b%b%b%b" % (
            VARINTS[0 if base is None else time - base],
            VARINTS[delta],
            _sized(None if self._keys is None else self._keys[row]),
            _sized(None if self._values is None else self._values[row]),
            VARINTS[len(headers)],
            b"".join(_sized(name) + _sized(content) for name, content in headers),
        )
        return time, VARINTS[len(body)] + body


def row_writer(columns: RecordColumns) -> RowWriter:
    """Return a writer of these columns, the compiled one if available; raises the errors of :class:`RowWriter`."""
    if COMPILED is not None:
        compiled: RowWriter = COMPILED.RowWriter(*flattened(columns))
        return compiled
    return RowWriter(columns)


def _numbers(buffer: Buffer, code: Literal["i", "q"], first: int, count: int) -> memoryview:
    width = 8 if code == "q" else 4
    data = flat(buffer)
    if not count:
        return memoryview(b"")
    if first < 0 or len(data) < width * (first + count):
        raise ValueError(f"expected {count} numbers of {width} bytes from {first} on, found {len(data)} bytes")
    return data[width * first : width * (first + count)].cast(code)


def _bits(buffer: Buffer | None, first: int, count: int) -> memoryview | None:
    if buffer is None:
        return None
    data = flat(buffer)
    if first < 0 or 8 * len(data) < first + count:
        raise ValueError(f"expected a bitmap of {count} from {first} on, found {len(data)} bytes")
    return data


def _set(bits: memoryview | None, at: int) -> bool:
    return bits is None or bool(bits[at >> 3] >> (at & 7) & 1)


def _sized(data: bytes | None) -> bytes:
    return b"\x01" if data is None else VARINTS[len(data)] + data
