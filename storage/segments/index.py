"""The two sparse indexes of a segment: offset → position, and timestamp → offset.

Formats are Kafka's (``OffsetIndex``, ``TimeIndex``), big-endian, entries in rising order:

- ``.index``: 8 bytes: offset relative to the segment's base (i32), position of that batch in the log (i32); the offset
  is the *last* one of the batch at that position;
- ``.timeindex``: 12 bytes, highest timestamp up to here (i64), last offset of the batch that holds it,
  relative to the base (i32).

Unlike Kafka's, the files are neither mapped nor preallocated: the newest entries wait in memory (at most
:data:`PENDING_MAX`) and are written together; older ones are read from the file on demand. An index is a hint: a reader
checks an entry against the log, and rebuilds the index if the entry is wrong.
"""

from __future__ import annotations

import struct
from typing import ClassVar, Final

from tidelog.storage.disk.handles import HandlePool, PooledFile

PENDING_MAX: Final = 512
"""Entries that may wait in memory; with Kafka's interval of 4 KiB that is 2 MiB of log or more."""
_UNKNOWN: Final = -1
_PAGE: Final = 512
"""Entries that a lookup reads at a time."""
RELATIVE_MAX: Final = 0x7FFF_FFFF
"""Largest offset relative to a segment's base, and largest position, that an entry can hold."""


class SparseIndex:
    """Entries of two integers, both rising, in a file plus a tail in memory.

    The file's size gives the number of entries at first use; a torn last entry does not count. Removed entries stay in
    the file until the next write, and are reused if equal ones are added again: verifying a correct index writes
    nothing.
    """

    ENTRY: ClassVar[struct.Struct]

    __slots__ = ("_count", "_file_count", "_in_file", "_last", "_page", "_pending", "file")

    def __init__(self, pool: HandlePool, path: str) -> None:
        self.file = PooledFile(pool, path)
        self._in_file = -1
        self._count = 0
        self._pending = bytearray()
        self._page = b""
        self._last: tuple[int, int] | None = None
        self._file_count = _UNKNOWN
        """Entries in the file, including those that are no longer valid."""

    def __len__(self) -> int:
        if self._in_file < 0:
            self._load()
        return self._count

    @property
    def waiting(self) -> bool:
        """Whether the file differs from the valid entries."""
        return bool(self._pending) or self._file_count > self._in_file >= 0

    def start_empty(self) -> None:
        """Begin with no entries. The file need not be there."""
        self._pending.clear()
        self._page = b""
        self._in_file = 0
        self._count = 0
        self._last = None

    def entry(self, number: int) -> tuple[int, int]:
        """Return an entry by its number, from 0."""
        if number >= self._in_file:
            first, second = self.ENTRY.unpack_from(self._pending, (number - self._in_file) * self.ENTRY.size)
        else:
            raw = self.file.get().pread(self.ENTRY.size, number * self.ENTRY.size)
            if len(raw) != self.ENTRY.size:
                return (-1, -1)
            first, second = self.ENTRY.unpack(raw)
        return first, second

    def last(self) -> tuple[int, int] | None:
        if not len(self):
            return None
        if self._last is None:
            self._last = self.entry(self._count - 1)
        return self._last

    def add(self, first: int, second: int) -> None:
        """Append an entry that is larger than the last one."""
        if self._in_file < 0:
            self._load()
        self._last = (first, second)
        if self._in_file == self._count < self._file_count:
            self._in_file += 1
            if self.entry(self._count) == self._last:
                self._count += 1
                return
            self._in_file -= 1
        self._pending += self.ENTRY.pack(first, second)
        self._count += 1
        if self._count - self._in_file >= PENDING_MAX:
            self.write_out()

    def floor(self, first: int) -> int:
        """Return the number of the last entry with a first field of at most ``first``, -1 if there is none."""
        if not len(self):
            return -1
        size = self.ENTRY.size
        if self._in_file < self._count and self.entry(self._in_file)[0] <= first:
            return self._in_file + _floor_in(self._pending, self.ENTRY, first)
        low, high = 0, (self._in_file + _PAGE - 1) // _PAGE  # pages; the answer is in [low, high)
        while high - low > 1:
            middle = (low + high) // 2
            if self.entry(middle * _PAGE)[0] <= first:
                low = middle
            else:
                high = middle
        if high == 0:
            return -1
        count = min(_PAGE, self._in_file - low * _PAGE)
        page = self.file.get().pread(count * size, low * _PAGE * size)
        return low * _PAGE + _floor_in(page[: len(page) // size * size], self.ENTRY, first)

    def last_up_to(self, second: int) -> tuple[int, int] | None:
        """Return the last entry with a second field of at most ``second``, if there is one.

        A wrong index may return anything. The last page is cached: readers continue where they were.
        """
        if not len(self):
            return None
        size = self.ENTRY.size
        if self._in_file < self._count and self.entry(self._in_file)[1] <= second:
            return self._up_to(self._pending, second)
        if not self._in_file:
            return None
        page = self._page
        if not page or not (
            self.ENTRY.unpack_from(page)[1] <= second < self.ENTRY.unpack_from(page, len(page) - size)[1]
        ):
            low, high = 0, (self._in_file + _PAGE - 1) // _PAGE  # pages; the answer is in [low, high)
            while high - low > 1:
                middle = (low + high) // 2
                if self.entry(middle * _PAGE)[1] <= second:
                    low = middle
                else:
                    high = middle
            count = min(_PAGE, self._in_file - low * _PAGE)
            page = self.file.get().pread(count * size, low * _PAGE * size)
            page = self._page = page[: len(page) // size * size]
        return self._up_to(page, second)

    def _up_to(self, raw: bytes | bytearray, second: int) -> tuple[int, int] | None:
        number = _floor_in(raw, self.ENTRY, second, 1)
        if number < 0:
            return None
        first, found = self.ENTRY.unpack_from(raw, number * self.ENTRY.size)
        return first, found

    def write_out(self, *, create: bool = False) -> None:
        """Write the waiting entries to the file. ``create``: create the file even if it is empty."""
        if self._in_file < 0 or not (self.waiting or create):
            return
        file = self.file.get(create=True)
        size = self._in_file * self.ENTRY.size
        if self._file_count > self._in_file or (self._file_count == _UNKNOWN and file.size() > size):
            file.truncate(size)
        if self._pending:
            file.pwritev((bytes(self._pending),), size)
            self._in_file = self._count
            self._pending.clear()
        self._file_count = self._in_file

    def cut(self, count: int) -> None:
        """Keep the first ``count`` entries."""
        if count >= len(self):
            return
        self._page = b""
        if count < self._in_file:
            self._in_file = count
            self._pending.clear()
        else:
            del self._pending[(count - self._in_file) * self.ENTRY.size :]
        self._count = count
        self._last = None

    def _load(self) -> None:
        try:
            self._in_file = self.file.get().size() // self.ENTRY.size
        except FileNotFoundError:
            self._in_file = 0
        self._count = self._file_count = self._in_file


class OffsetIndex(SparseIndex):
    """``.index``: first field is the relative offset, second the position."""

    ENTRY = struct.Struct(">ii")
    __slots__ = ()


class TimeIndex(SparseIndex):
    """``.timeindex``: first field is the timestamp, second the relative offset."""

    ENTRY = struct.Struct(">qi")
    __slots__ = ()

    def add_if_later(self, timestamp: int, relative_offset: int) -> None:
        """Append unless the last entry is as late (Kafka's ``TimeIndex.maybeAppend``)."""
        last = self.last()
        if last is None or (timestamp > last[0] and relative_offset >= last[1]):
            self.add(timestamp, relative_offset)


def _floor_in(raw: bytes | bytearray, entry: struct.Struct, value: int, field: int = 0) -> int:
    """Return the number of the last entry in ``raw`` with a ``field`` of at most ``value``, -1 if there is none."""
    low, high = 0, len(raw) // entry.size
    while low < high:
        middle = (low + high) // 2
        if entry.unpack_from(raw, middle * entry.size)[field] <= value:
            low = middle + 1
        else:
            high = middle
    return low - 1
