"""The ``.txnindex`` of a segment: the aborted transactions whose markers lie in it.

Format is Kafka's (``TransactionIndex``, ``AbortedTxn``), 34 bytes an entry, big-endian: version i16 = 0, producer id
i64, first offset i64, last offset i64 (the marker's), last stable offset i64 (the first offset that was undecided once
the marker was there). Last and last stable offsets rise from entry to entry, within a segment and across segments, so a
binary search by offset works and knows when to end.

A segment without an aborted transaction has no such file. An entry is written when its marker is appended, and is as
durable as the marker; recovery rebuilds the entries after the recovery point.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from tidelog.storage.disk.handles import HandlePool, PooledFile

VERSION: Final = 0
ENTRY: Final = struct.Struct(">hqqqq")
_CHUNK: Final = 240
"""Entries read at a time: 8 KiB."""


class AbortedTransaction(NamedTuple):
    """A producer's batches from ``first_offset`` on were aborted by the marker at ``last_offset``."""

    first_offset: int
    producer_id: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """One segment's entries. Everything raises ``OSError``.

    The file's size gives the number of entries at first use; a torn last entry does not count.
    """

    __slots__ = ("_count", "file")

    def __init__(self, pool: HandlePool, path: str, count: int = -1) -> None:
        """``count``: the number of the file's entries to read; -1 for all."""
        self.file = PooledFile(pool, path)
        self._count = count

    def __len__(self) -> int:
        if self._count < 0:
            self._load()
        return self._count

    def start_empty(self) -> None:
        """Begin with no entries. The file need not be there."""
        self._count = 0

    def append(self, entry: AbortedTransaction) -> bool:
        """Append an entry. Returns whether this created the file."""
        count = len(self)
        made = not count
        file = self.file.get(create=True)
        if made and file.size():
            file.truncate(0)
        file.pwritev((pack_entry(entry),), count * ENTRY.size)
        self._count = count + 1
        return made

    def write(self, entries: Sequence[AbortedTransaction]) -> None:
        """Replace the file's content with these entries, even if there are none."""
        file = self.file.get(create=True)
        file.truncate(0)
        if entries:
            file.pwritev((b"".join(map(pack_entry, entries)),), 0)
        self._count = len(entries)

    def cut(self, offset: int) -> bool:
        """Drop the entries with markers at or after ``offset``, and invalid ones. Returns whether there were any.

        The change is durable once the file is synced.
        """
        if not len(self):
            return False
        keep = self._sound(offset)
        if keep == self._count:
            return False
        self.file.get().truncate(keep * ENTRY.size)
        self._count = keep
        return True

    def drop_last(self) -> None:
        """Drop the last entry, as :meth:`cut` does."""
        self._count = len(self) - 1
        self.file.get().truncate(self._count * ENTRY.size)

    def entries(self, number: int = 0) -> Iterator[AbortedTransaction]:
        """Yield all entries from that number on. Stops at damage."""
        size = ENTRY.size
        count = len(self)
        while number < count:
            raw = self.file.get().pread(min(_CHUNK, count - number) * size, number * size)
            if len(raw) < size:
                return
            for version, producer_id, first, last, stable in ENTRY.iter_unpack(raw[: len(raw) // size * size]):
                if version != VERSION:
                    return
                yield AbortedTransaction(first, producer_id, last, stable)
                number += 1

    def first_behind(self, offset: int) -> int:
        """Return the number of the first entry with a marker at or after ``offset``; the number of entries if there is
        none."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            raw = self.file.get().pread(ENTRY.size, middle * ENTRY.size)
            if len(raw) < ENTRY.size:
                high = middle
            elif ENTRY.unpack(raw)[3] < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _sound(self, offset: int) -> int:
        """Return how many entries from the first on are valid, rise, and end before ``offset``."""
        keep, before = 0, -1
        for entry in self.entries():
            if not (0 <= entry.first_offset < entry.last_offset and before < entry.last_offset < offset):
                break
            keep, before = keep + 1, entry.last_offset
        return keep

    def _load(self) -> None:
        try:
            self._count = self.file.get().size() // ENTRY.size
        except FileNotFoundError:
            self._count = 0


class OpenIndex(NamedTuple):
    """An index without its segment."""

    transactions: TransactionIndex


class Indexed(Protocol):
    """The part of a segment that a search for aborted transactions uses."""

    @property
    def transactions(self) -> TransactionIndex: ...


def pack_entry(entry: AbortedTransaction) -> bytes:
    return ENTRY.pack(VERSION, entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset)


def aborted_within(segments: Sequence[Indexed], start: int, end: int) -> list[AbortedTransaction]:
    """Return the aborted transactions with a batch between ``start`` and ``end`` (exclusive), in the order of their
    ends.

    ``segments``: from the one that holds ``start`` on, including those after ``end``: a marker may be there. All
    transactions that begin before ``end`` must be decided. Raises ``OSError``. Source: Kafka's
    ``UnifiedLog.collectAbortedTransactions`` and ``TransactionIndex.collectAbortedTxns``.
    """
    found: list[AbortedTransaction] = []
    for segment in segments:
        index = segment.transactions
        if not len(index):
            continue
        for entry in index.entries(index.first_behind(start)):
            if entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return found
    return found
