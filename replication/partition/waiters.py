"""Waiters for an offset: produce calls that wait until their batches are replicated or flushed.

The event that reaches the needed offset wakes the waiter; nothing polls.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tidelog.model.ids import Offset
from tidelog.proto.transport.frames import ProducedPartition

Produced = list[ProducedPartition] | asyncio.Future[list[ProducedPartition]]
"""One answer per partition of a produce call, in its order, available now or later. A future for answers that are
already available would cost a small call a tenth of its time."""


class OffsetQueue:
    """Pending appends of one partition, in order of the offset that each needs.

    Offsets arrive in the order of appending, except those of duplicates (an idempotent producer sent a batch again),
    which are inserted in order.
    """

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: list[PendingAppend] = []
        """Others may check whether it is empty; only this class changes it."""

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, entry: PendingAppend) -> None:
        entries = self.entries
        if not entries or entries[-1].required <= entry.required:
            entries.append(entry)
        else:
            entries.insert(bisect_right(entries, entry.required, key=_required), entry)

    def reached(self, offset: Offset) -> Sequence[PendingAppend]:
        """Remove and return the waiters that need at most ``offset``."""
        entries = self.entries
        if not entries or entries[0].required > offset:
            return ()
        count = bisect_right(entries, offset, key=_required)
        taken = entries[:count]
        del entries[:count]
        return taken

    def discard(self, entry: PendingAppend) -> None:
        """Remove a waiter whose caller gave up."""
        self.entries.remove(entry)

    def drain(self) -> Sequence[PendingAppend]:
        """Remove and return all waiters."""
        taken = self.entries
        self.entries = []
        return taken


class AppendQueue(Protocol):
    """A queue of pending appends."""

    def add(self, entry: PendingAppend) -> None: ...

    def discard(self, entry: PendingAppend) -> None: ...


@dataclass(slots=True, eq=False)
class PendingAppend:
    """One partition of a produce call that was appended and must not be acknowledged yet.

    ``required`` is the offset after its last record. ``success`` is the answer when that offset is reached;
    ``timed_out`` builds the answer if it takes too long.
    """

    required: Offset
    success: ProducedPartition
    wait: ProduceWait
    index: int
    queue: AppendQueue
    timed_out: Callable[[PendingAppend], ProducedPartition]

    def answer(self, result: ProducedPartition) -> None:
        """Report the result of an entry that has left its queue."""
        self.wait.settle(self, result)


def _required(entry: PendingAppend) -> Offset:
    return entry.required


class ProduceBudget:
    """Counts the waiting appends of the whole node."""

    __slots__ = ("maximum", "waiting")

    def __init__(self, maximum: int) -> None:
        self.waiting = 0
        self.maximum = maximum


class ProduceWait:
    """One produce call with all its partitions: one future, resolved once, when the last is answered.

    At the call's timeout, open entries are answered by their ``timed_out``. If a caller cancels the future, the call is
    forgotten immediately.
    """

    __slots__ = ("_budget", "_pending", "_results", "_timer", "future")

    def __init__(self, results: list[ProducedPartition], budget: ProduceBudget) -> None:
        """``results`` holds a final answer for each partition that will have no pending entry."""
        self._results = results
        self._pending: list[PendingAppend] = []
        self._timer: asyncio.TimerHandle | None = None
        self._budget = budget
        self.future: asyncio.Future[list[ProducedPartition]] = asyncio.get_running_loop().create_future()

    def begin(self, pending: list[PendingAppend], timeout_ms: int) -> None:
        """Queue every pending entry and start the timer."""
        self._pending = pending
        self._budget.waiting += len(pending)
        for entry in pending:
            entry.queue.add(entry)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(timeout_ms, 0) / 1000, self._expire)
        self.future.add_done_callback(self._on_done)

    def settle(self, entry: PendingAppend, result: ProducedPartition) -> None:
        self._results[entry.index] = result
        self._pending.remove(entry)
        self._budget.waiting -= 1
        if not self._pending and not self.future.done():
            self.future.set_result(self._results)

    def _expire(self) -> None:
        for entry in tuple(self._pending):
            entry.queue.discard(entry)
            self.settle(entry, entry.timed_out(entry))

    def _on_done(self, future: asyncio.Future[list[ProducedPartition]]) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if future.cancelled():
            for entry in self._pending:
                entry.queue.discard(entry)
            self._budget.waiting -= len(self._pending)
            self._pending = []
