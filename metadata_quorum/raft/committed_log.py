"""The committed entries that brokers may still fetch individually, in memory on the event loop."""

from __future__ import annotations

from collections import deque
from typing import Final

from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import ControllerEpoch, Offset

RETAINED_BYTES_MAX: Final = 64 * 1024 * 1024
RETAINED_ENTRIES_MAX: Final = 200_000
_ENTRY_OVERHEAD: Final = 100


@dataclass(frozen=True, slots=True)
class CommittedEntry:
    """``payload`` is ``b""`` for an entry without metadata."""

    offset: Offset
    epoch: ControllerEpoch
    payload: bytes


@dataclass(frozen=True, slots=True)
class SnapshotNeeded:
    """The requested entries are gone, or the broker's last epoch is not ours at that offset."""


class CommittedLog:
    """A window of consecutive committed entries, ending at the commit offset.

    Bounded by bytes and entries: the oldest go first; a broker that needs them loads a snapshot instead.
    """

    def __init__(self) -> None:
        self._entries: deque[CommittedEntry] = deque()
        self._bytes = 0
        self._before = (Offset(1), ControllerEpoch(0))
        """Offset and epoch of the entry before the window."""

    @property
    def end(self) -> Offset:
        """The offset that the next committed entry will have."""
        return Offset((self._entries[-1].offset if self._entries else self._before[0]) + 1)

    def restart(self, offset: Offset, epoch: ControllerEpoch) -> None:
        """Drop all entries; the next entry follows ``offset``."""
        self._entries.clear()
        self._bytes = 0
        self._before = (offset, epoch)

    def append(self, entry: CommittedEntry) -> None:
        assert entry.offset == self.end, f"expected committed offset {self.end}, found {entry.offset}"
        self._entries.append(entry)
        self._bytes += len(entry.payload) + _ENTRY_OVERHEAD
        while self._bytes > RETAINED_BYTES_MAX or len(self._entries) > RETAINED_ENTRIES_MAX:
            self._drop_oldest()

    def trim_before(self, offset: Offset) -> None:
        """Drop entries below an offset."""
        while self._entries and self._entries[0].offset < offset:
            self._drop_oldest()

    def read(
        self, from_offset: Offset, last_epoch: ControllerEpoch, bytes_max: int
    ) -> tuple[CommittedEntry, ...] | SnapshotNeeded:
        """Return entries from an offset on, at least one if there is any, none at the end.

        ``last_epoch`` is that of the entry before ``from_offset``; a broker without entries passes offset 0 and any
        epoch.
        """
        first = self._before[0] + 1
        if from_offset < first and not (from_offset <= 0 and first == 2):
            return SnapshotNeeded()
        start = max(0, from_offset - first)
        if from_offset > self.end or (from_offset > 0 and self._epoch_before(start) != last_epoch):
            return SnapshotNeeded()
        found: list[CommittedEntry] = []
        size = 0
        for position in range(start, len(self._entries)):
            entry = self._entries[position]
            size += len(entry.payload) + _ENTRY_OVERHEAD
            if found and size > bytes_max:
                break
            found.append(entry)
        return tuple(found)

    def _epoch_before(self, position: int) -> ControllerEpoch:
        return self._before[1] if position == 0 else self._entries[position - 1].epoch

    def _drop_oldest(self) -> None:
        entry = self._entries.popleft()
        self._bytes -= len(entry.payload) + _ENTRY_OVERHEAD
        self._before = (entry.offset, entry.epoch)
