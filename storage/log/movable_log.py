"""A move's steps on a log, on the log's own thread: the copy follows the log, and then the log continues in the copy's
files.

The *copy* is a separate log in another directory (Kafka: the future log). It appends what it reads from the log, as a
follower would, so it may be behind after a restart, or ahead of a truncated log: :func:`agreed_end` returns the offset
up to which the two are equal.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from tidelog.model.ids import NO_LEADER_EPOCH
from tidelog.storage.log.log_compaction import CompactableLog
from tidelog.storage.log.log_state import LogOwner
from tidelog.storage.segments.leader_epochs import LeaderEpochs

Entries = Sequence[tuple[int, int]]
"""(leader epoch, first offset), rising."""

_NONE: Final = (NO_LEADER_EPOCH, 0)


def agreed_end(one: Entries, other: Entries, start: int, end: int) -> int:
    """Return the offset before which two logs are equal, from ``start`` to the first one's ``end``.

    Pure. Records with the same leader epoch and offset are equal, and so is everything before them (KIP-101).
    """
    while end > start:
        mine, others = _entry_at(one, end - 1), _entry_at(other, end - 1)
        if mine[0] == others[0] != NO_LEADER_EPOCH:
            return end
        end = max(start, mine[1], others[1])
        if mine == others == _NONE:
            break
    return start


def _entry_at(entries: Entries, offset: int) -> tuple[int, int]:
    found = bisect_right(entries, offset, key=lambda entry: entry[1])
    return entries[found - 1] if found else _NONE


class MovableLog(CompactableLog):
    """The part of :class:`tidelog.storage.log.log.Log` that a move between directories uses."""

    __slots__ = ()

    @property
    def cuts(self) -> int:
        """How often the log's end was truncated."""
        return self._cuts

    @property
    def is_sparse(self) -> bool:
        """Whether its offsets have gaps."""
        return self._sparse

    def hold_still(self, *, moving: bool) -> None:
        """Pause or resume compaction for a move: a tombstone could go before it is copied, and the records that it
        deletes would come back. (Kafka: ``LogManager.abortAndPauseCleaning``.)"""
        self.moving = moving
        if moving:
            self._cuts += 1  # invalidates a running pass

    def become_copy_of(self, log: MovableLog) -> None:
        """Take over all state of ``log``, which ends at the same offset, and make it durable.

        Producers and epochs without remaining records cannot be learned from the copied data. Raises
        :class:`LogDirFailed`.
        """
        assert (self.log_start_offset, self.log_end_offset) == (log.log_start_offset, log.log_end_offset)
        self._check_usable()
        self.producers = log.producers
        self._epochs = LeaderEpochs(log.epoch_entries)
        self._epochs.dirty = True
        chain, end = self._chain, self.log_end_offset
        try:
            while chain.snapshots and chain.snapshots[-1] >= end:
                chain.remove_snapshot(chain.snapshots.pop())
            chain.store_snapshot(end, self._producers_snapshot())
        except OSError as error:
            raise self._failed(error) from error
        if log.is_sparse and not self._sparse:
            self._become_sparse()
        self._flush(whole=True)
        assert self.recovery_point == end, f"{self.name} is not durable up to {end}"

    def go_on_as(self, copy: MovableLog, owner: LogOwner) -> None:
        """Switch to the files of a copy, which is void from now on. Readers keep the old ones open."""
        former = self._chain
        self._hints.clear()
        self._suspects.clear()
        self._cuts += 1
        self._chain = copy._chain
        self._chain.delete_later = self._delete_later
        self._flushes = copy._flushes
        self._sparse = copy._sparse
        self._epochs = copy._epochs
        self._owner = owner
        self.directory = copy.directory
        copy._closed = True
        former.close()

    def renamed_to(self, directory: str) -> None:
        """Note that the owner renamed the directory of this log, which stays in service."""
        self.directory = directory
        self._chain.renamed_to(directory)
