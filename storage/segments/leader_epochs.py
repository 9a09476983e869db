"""A partition's leader epochs and the offsets where they begin (KIP-101, KIP-279). Pure.

Source of all rules: Kafka's ``LeaderEpochFileCache``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from tidelog.model.ids import NO_LEADER_EPOCH, NO_OFFSET, LeaderEpoch, Offset


class LeaderEpochs:
    """Entries (epoch, first offset), both strictly rising.

    ``latest`` is the last epoch, -1 without any. Every change sets ``dirty``; the caller clears it after storing
    :meth:`entries`.
    """

    __slots__ = ("_epochs", "_starts", "dirty", "latest")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = NO_LEADER_EPOCH
        for epoch, start in entries:
            self.assign(epoch, start)
        self.dirty = False

    def __len__(self) -> int:
        return len(self._epochs)

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start: int) -> bool:
        """Note that ``epoch`` began at ``start``; removes contradicting entries. Returns whether anything changed."""
        epochs, starts = self._epochs, self._starts
        if epochs and epochs[-1] == epoch and starts[-1] <= start:
            return False
        while epochs and (epochs[-1] >= epoch or starts[-1] >= start):
            epochs.pop()
            starts.pop()
        epochs.append(epoch)
        starts.append(start)
        self._changed()
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[LeaderEpoch, Offset]:
        """Return the largest known epoch up to ``epoch``, and its end offset; (-1, -1) if unknown.

        For an epoch below all known ones, return it and the start of the first known one.
        """
        epochs = self._epochs
        if epoch < 0 or not epochs or epoch > epochs[-1]:
            return NO_LEADER_EPOCH, NO_OFFSET
        if epoch == epochs[-1]:
            return LeaderEpoch(epoch), Offset(log_end_offset)
        higher = bisect_right(epochs, epoch)
        known = LeaderEpoch(epochs[higher - 1] if higher else epoch)
        return known, Offset(self._starts[higher])

    def epoch_at(self, offset: int) -> LeaderEpoch:
        """Return the epoch in which the record at ``offset`` was written; -1 if unknown."""
        found = bisect_right(self._starts, offset)
        return LeaderEpoch(self._epochs[found - 1]) if found else NO_LEADER_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that began at ``end_offset`` or later."""
        keep = bisect_left(self._starts, end_offset)
        if keep < len(self._starts):
            del self._starts[keep:]
            del self._epochs[keep:]
            self._changed()

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that ended before ``start_offset``; the epoch that contains it begins there from now on."""
        keep = bisect_right(self._starts, start_offset) - 1
        if keep < 0 or (keep == 0 and self._starts[0] == start_offset):
            return
        del self._starts[:keep]
        del self._epochs[:keep]
        self._starts[0] = start_offset
        self._changed()

    def clear(self) -> None:
        if self._epochs:
            self._epochs.clear()
            self._starts.clear()
            self._changed()

    def _changed(self) -> None:
        self.latest = LeaderEpoch(self._epochs[-1]) if self._epochs else NO_LEADER_EPOCH
        self.dirty = True
