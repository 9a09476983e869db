"""Deadlines by key, in one heap.

Postponing a deadline, which each heartbeat does, does not touch the heap: the old entry stays and is checked again when
its time comes. So each key has one entry, and a second one only if a deadline was moved nearer. Entries of cancelled
keys are removed once they outnumber the others.
"""

from __future__ import annotations

import heapq
from typing import Final, Generic, TypeVar

K = TypeVar("K")

_SWEEP_FROM: Final = 64


class Timers(Generic[K]):
    """Deadlines by key; ``due`` returns the expired keys in order of deadline, then of scheduling."""

    __slots__ = ("_deadlines", "_entries", "_heap", "_sequence")

    def __init__(self) -> None:
        self._deadlines: dict[K, int] = {}
        self._entries: dict[K, int] = {}  # the time of each key's earliest entry in the heap
        self._heap: list[tuple[int, int, K]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: K) -> bool:
        return key in self._deadlines

    def set(self, key: K, deadline: int) -> None:
        """Set or move a deadline."""
        self._deadlines[key] = deadline
        entry = self._entries.get(key)
        if entry is None or entry > deadline:
            self._push(key, deadline)
            if len(self._heap) > 2 * len(self._deadlines) + _SWEEP_FROM:
                self._sweep()

    def cancel(self, key: K) -> None:
        """Forget a deadline, if there is one."""
        self._deadlines.pop(key, None)

    def clear(self) -> None:
        self._deadlines.clear()
        self._entries.clear()
        self._heap.clear()

    def next_deadline(self) -> int | None:
        """Return the earliest deadline, or an earlier time at which :meth:`due` finds nothing; None without
        deadlines."""
        while self._heap:
            at, _, key = self._heap[0]
            if self._entries.get(key) == at and key in self._deadlines:
                return at
            self._drop()
        return None

    def due(self, now: int) -> list[K]:
        """Remove and return the keys due at ``now``."""
        found: list[K] = []
        while self._heap and self._heap[0][0] <= now:
            at, key = self._drop()
            if self._entries.get(key) != at:
                continue
            del self._entries[key]
            deadline = self._deadlines.get(key)
            if deadline is None:
                continue
            if deadline <= now:
                del self._deadlines[key]
                found.append(key)
            else:
                self._push(key, deadline)
        return found

    def _push(self, key: K, deadline: int) -> None:
        self._sequence += 1
        self._entries[key] = deadline
        heapq.heappush(self._heap, (deadline, self._sequence, key))

    def _drop(self) -> tuple[int, K]:
        at, _, key = heapq.heappop(self._heap)
        if self._entries.get(key) == at and key not in self._deadlines:
            del self._entries[key]
        return at, key

    def _sweep(self) -> None:
        self._heap.clear()
        self._entries.clear()
        for key, deadline in self._deadlines.items():
            self._push(key, deadline)
