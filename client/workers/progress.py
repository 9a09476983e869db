"""One partition shared by several workers: what is in progress, what is finished, what may be committed. Pure.

Records finish in any order. The offset that a group commits says that everything below it is finished, so it stays at
the lowest unfinished record. What is finished above goes into the commit's metadata as run lengths: ``w1,2,5,1,3``
means, from the committed offset on, 2 offsets unfinished, 5 finished, 1 unfinished, 3 finished. The partition's next
owner skips the finished ones. (Confluent's Parallel Consumer stores the same in the same place.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from tidelog.client.group_types import OffsetAndMetadata

METADATA_MAX: Final = 4_096
"""Maximum characters of a commit's metadata, as the broker's ``offset.metadata.max.bytes`` allows by default."""
_MARK: Final = "w1"


class Progress:
    """``committed``: where the group's last owner stopped, ``None`` if unknown; ``metadata``: what it wrote there. Text
    from another program is ignored."""

    __slots__ = ("_before", "_end", "_epoch", "_finished", "_open", "_passed", "_told")

    def __init__(self, committed: int | None = None, metadata: str = "") -> None:
        self._open: deque[tuple[int, int]] = deque()
        """Offset and leader epoch of each record from the lowest unfinished one on, in order."""
        self._finished: set[int] = set()
        """The finished ones among them."""
        self._before = [] if committed is None else list(finished_runs(committed, metadata))
        self._end = committed
        self._epoch = -1
        self._passed = -1, -1
        """Up to where a filter has left everything out since the last record, and the leader epoch there."""
        self._told = committed, metadata

    def __len__(self) -> int:
        """Return how many records lie between the lowest unfinished one and the end."""
        return len(self._open)

    @property
    def unfinished(self) -> int:
        return len(self._open) - len(self._finished)

    def admit(self, offset: int, epoch: int) -> bool:
        """Admit the next record. Returns False if a former owner has finished it, so there is nothing to do."""
        while self._before and self._before[0][1] <= offset:
            self._before.pop(0)
        done = bool(self._before) and self._before[0][0] <= offset
        self._open.append((offset, epoch))
        self._end = offset + 1
        if done:
            self.finish(offset)
        return not done

    def passed(self, offset: int, epoch: int) -> None:
        """Note that there is nothing for this program between the last record and ``offset``."""
        self._passed = offset, epoch

    def finish(self, offset: int) -> None:
        """Note that an admitted record needs no more work."""
        self._finished.add(offset)
        while self._open and self._open[0][0] in self._finished:
            first, self._epoch = self._open.popleft()
            self._finished.discard(first)

    def news(self, also: Iterable[int] = ()) -> OffsetAndMetadata | None:
        """Return what to commit, as if the records ``also`` were finished; ``None`` if that has already been
        committed."""
        more = set(also)
        done = self._finished | more
        epoch, entries = self._epoch, self._open
        if more:
            rest = deque(entries)
            while rest and rest[0][0] in done:
                epoch = rest.popleft()[1]
            entries = rest
        offset = entries[0][0] if entries else self._end
        if not entries and self._passed[0] > (offset or 0):
            offset, epoch = self._passed
        if offset is None:
            return None
        metadata = _encoded(entries, done, self._end or offset)
        return None if (offset, metadata) == self._told else OffsetAndMetadata(offset, epoch, metadata)

    def committed(self, what: OffsetAndMetadata) -> None:
        """Note that the group has this now."""
        self._told = what.offset, what.metadata


def says(what: OffsetAndMetadata, offset: int) -> bool:
    """Return whether a commit says that this record is finished."""
    runs = finished_runs(what.offset, what.metadata)
    return offset < what.offset or any(start <= offset < end for start, end in runs)


def _encoded(entries: deque[tuple[int, int]], done: set[int], end: int) -> str:
    """Return run lengths up to the last finished record; what does not fit is left out, and the next owner repeats
    it."""
    runs: list[str] = [_MARK]
    size, start, state = len(_MARK), entries[0][0] if entries else end, False
    kept = 1
    for offset, _ in entries:
        if (offset in done) is state:
            continue
        runs.append(str(offset - start))
        size += len(runs[-1]) + 1
        if size > METADATA_MAX:
            return ",".join(runs[:kept]) if kept > 1 else ""
        start, state = offset, not state
        if not state:
            kept = len(runs)
    if state and size + len(str(end - start)) < METADATA_MAX:
        runs.append(str(end - start))
        kept = len(runs)
    return ",".join(runs[:kept]) if kept > 1 else ""


def finished_runs(committed: int, metadata: str) -> Iterator[tuple[int, int]]:
    """Yield the ranges of offsets, first and end, that a commit's metadata says are finished."""
    mark, *rest = metadata.split(",")
    if mark != _MARK or not all(run.isascii() and run.isdigit() for run in rest):
        return
    at = committed
    for index, run in enumerate(rest):
        start, at = at, at + int(run)
        if index % 2:
            yield start, at
