"""Which records of a delay topic's partition are not delivered yet, in the order in which they are due. Pure.

All that is kept of the past is a :class:`Mark`: everything below ``position`` that is due at ``done`` or earlier has
been dealt with, and nothing else. It is committed in the transaction of the deliveries that make it true; everything
here can be found again from it and the log. It has a fixed size because deliveries follow the order of due times.

So does the memory: of many records that wait, only the first ``entries_max`` are remembered, and the log is read again
before they are used up.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from typing import Final, NamedTuple

from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import Offset

ENTRIES_MAX: Final = 200_000
"""Most records that one partition remembers; each takes some 50 bytes."""
_BITS: Final = 63
_OFFSET: Final = (1 << _BITS) - 1


class Mark(NamedTuple):
    """See the module. ``done``: a due time and an offset."""

    done_ms: int
    done_offset: Offset
    position: Offset

    @property
    def done(self) -> int:
        return key_of(self.done_ms, self.done_offset)

    @property
    def text(self) -> str:
        """For a committed offset's metadata; the offset is the position."""
        return f"{self.done_ms},{self.done_offset}"

    @classmethod
    def read(cls, position: int, text: str) -> Mark | None:
        """``None`` for what no leader of a delay topic wrote."""
        done_ms, _, done_offset = text.partition(",")
        if not (done_ms.isdigit() and done_offset.isdigit()):
            return None
        return cls(int(done_ms), Offset(int(done_offset)), Offset(position))


START: Final = Mark(0, Offset(0), Offset(0))


@dataclass(frozen=True, slots=True)
class Step:
    """What one transaction deals with: ``keys`` in the order of their deliveries, and the mark afterwards."""

    keys: tuple[int, ...]
    mark: Mark

    @property
    def offsets(self) -> list[Offset]:
        return [offset_of(key) for key in self.keys]


def key_of(due_ms: int, offset: int) -> int:
    """One number that sorts by due time, then by offset, and takes less memory than two."""
    return due_ms << _BITS | offset


def offset_of(key: int) -> Offset:
    return Offset(key & _OFFSET)


def due_of(key: int) -> int:
    return key >> _BITS


class Pending:
    """The undelivered records between the log's start and :attr:`scanned`. See the module."""

    def __init__(self, mark: Mark, start: Offset, entries_max: int = ENTRIES_MAX) -> None:
        """``start``: where the log is read from."""
        self.mark = mark
        self.scanned = start
        """Up to where the log has been read."""
        self._entries_max = entries_max
        self._room = entries_max
        self._heap: list[int] = []
        self._cancelled: set[int] = set()
        self.horizon: int | None = None
        """The first key that was forgotten, if any was."""
        self._forgotten_first = Offset(_OFFSET)
        """The lowest offset of those."""
        self.cancels = 0

    def __len__(self) -> int:
        return len(self._heap)

    # --- What the log says --------------------------------------------------------------------------

    def take(self, records: list[tuple[int, int]]) -> None:
        """Records stand at these offsets, in order, with these due times."""
        if not records:
            return
        keys = [due_ms << _BITS | offset for offset, due_ms in records]
        done, position = self.mark.done, self.mark.position
        if records[0][0] < position:
            keys = [key for key in keys if key > done or key & _OFFSET >= position]
        horizon = self.horizon
        if horizon is not None:
            forgotten = next((key & _OFFSET for key in keys if key >= horizon), _OFFSET)
            self._forgotten_first = Offset(min(self._forgotten_first, forgotten))
            keys = [key for key in keys if key < horizon]
        heap = self._heap
        for key in keys:
            heapq.heappush(heap, key)
        if len(heap) > self._room:
            self._forget()

    def cancel(self, offset: int) -> None:
        """A record that stands further on cancels this one. It has no effect on what was delivered."""
        self._cancelled.add(offset)
        if len(self._cancelled) > max(1_000, len(self._heap)):
            self._sweep()

    def _forget(self) -> None:
        """Keep the half that is due first, and whatever the mark alone would take for done."""
        kept = sorted(self._heap)
        cut = max(len(kept) // 2, bisect_right(kept, self.mark.done))
        forgotten = kept[cut:]
        del kept[cut:]
        self._heap = kept
        self._room = max(self._entries_max, 2 * len(kept))
        if forgotten:
            self.horizon = forgotten[0]
            self._forgotten_first = Offset(min(self._forgotten_first, *map(offset_of, forgotten)))

    def _sweep(self) -> None:
        """Take out what was cancelled. Of the forgotten ones, the cancels are found again with them."""
        if not self._cancelled:
            return
        left = [key for key in self._heap if offset_of(key) not in self._cancelled]
        self.cancels += len(self._heap) - len(left)
        heapq.heapify(left)
        self._heap = left
        self._cancelled.clear()

    @property
    def runs_dry(self) -> bool:
        """Whether the log should be read again, from its start: few are left of those that were not forgotten."""
        return self.horizon is not None and len(self._heap) < self._entries_max // 4

    # --- What is to be done -------------------------------------------------------------------------

    def soonest(self, count_max: int) -> list[int]:
        """The keys of those that are due first, in order."""
        self._sweep()
        return heapq.nsmallest(count_max, self._heap)

    @property
    def next_due_ms(self) -> int | None:
        """When the first one is due; perhaps a cancelled one."""
        return due_of(self._heap[0]) if self._heap else None

    def choose(self, now_ms: int, count_max: int) -> Step | None:
        """Take out what to deliver now. Give it back, or confirm it, before asking again.

        Nothing while the clock is before the last delivery's due time (it went back, or this leader's is slower): what
        is appended from now on may be due before that, and would be taken for something that is late.
        """
        if now_ms < self.mark.done_ms:
            return None
        done = self.mark.done
        late = self._pop_up_to(done, len(self._heap))
        position = self.scanned
        if len(late) > count_max:
            # They cannot be told from what is done except by their position: those that stand first go first.
            late.sort(key=offset_of)
            for key in late[count_max:]:
                heapq.heappush(self._heap, key)
            position = offset_of(late[count_max])
            taken = sorted(late[:count_max])
        else:
            taken = late + self._pop_up_to(key_of(now_ms, _OFFSET), count_max - len(late))
            done = max(done, taken[-1]) if taken else done
        if not taken:
            return None
        return Step(tuple(taken), Mark(due_of(done), offset_of(done), position))

    def _pop_up_to(self, key_max: int, count_max: int) -> list[int]:
        heap, cancelled = self._heap, self._cancelled
        taken: list[int] = []
        while heap and heap[0] <= key_max and len(taken) < count_max:
            key = heapq.heappop(heap)
            if offset_of(key) in cancelled:
                cancelled.discard(offset_of(key))
                self.cancels += 1
            else:
                taken.append(key)
        return taken

    def committed(self, step: Step) -> None:
        """The step's transaction is committed."""
        self.mark = step.mark

    def given_back(self, step: Step) -> None:
        """It is aborted, or was never begun."""
        for key in step.keys:
            heapq.heappush(self._heap, key)

    # --- Reading again ------------------------------------------------------------------------------

    def moved(self, mark: Mark) -> None:
        """Another reading of the same log has come as far as ``mark``: leave out what is done."""
        self.mark = mark
        self._sweep()
        left = [key for key in self._heap if key > mark.done or offset_of(key) >= mark.position]
        heapq.heapify(left)
        self._heap = left

    def first_live(self) -> Offset:
        """Everything before this offset is done, by the mark that is committed."""
        self._sweep()
        first = min(map(offset_of, self._heap), default=self.mark.position)
        return Offset(min(first, self._forgotten_first, self.mark.position))

    def idle_step(self) -> Step | None:
        """Nothing to deliver, but a mark further on: what is read again after a failure becomes less."""
        if self.mark.position >= self.scanned or (self._heap and self._heap[0] <= self.mark.done):
            return None
        return Step((), self.mark._replace(position=self.scanned))
