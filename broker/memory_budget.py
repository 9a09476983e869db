"""A limit on the bytes that a node holds for its clients, as Kafka's ``queued.max.request.bytes``.

It counts produce frames from arrival to answer, and fetch answers from reading to sending. While the budget is used up,
produce streams read no further frame and fetches queue without being read, so the transport's flow control slows the
clients down instead of letting the node grow. The limit may be exceeded by one produce frame per stream, which has
already arrived, and by one fetch answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class MemoryBudget:
    """Counts bytes in use. While none are left, work queues and streams pause."""

    __slots__ = ("_line", "_pauses", "bytes_max", "bytes_used", "bytes_used_peak", "waits")

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self.bytes_used_peak = 0
        self.waits = 0
        self._line: deque[Callable[[], None]] = deque()
        self._pauses: dict[asyncio.Future[None], None] = {}

    @property
    def full(self) -> bool:
        """Whether to take nothing more in, or whether others are already queued."""
        return self.bytes_used >= self.bytes_max or bool(self._line)

    @property
    def waiting(self) -> int:
        """How many are queued or paused."""
        return len(self._line) + sum(not pause.done() for pause in self._pauses)

    def use(self, size: int) -> None:
        """Count ``size`` bytes as held."""
        self.bytes_used += size
        if self.bytes_used > self.bytes_used_peak:
            self.bytes_used_peak = self.bytes_used

    def give(self, size: int) -> None:
        """Release ``size`` bytes, and let others continue as far as there is room."""
        self.bytes_used -= size
        assert self.bytes_used >= 0, "more bytes returned than taken"
        while self._line and self.bytes_used < self.bytes_max:
            self._line.popleft()()
        if self._pauses and not self.full:
            pauses, self._pauses = self._pauses, {}
            for pause in pauses:
                if not pause.done():
                    pause.set_result(None)

    def line_up(self, start: Callable[[], None]) -> None:
        """Call ``start`` once there is room: first come, first served, one at a time."""
        assert self.full
        self.waits += 1
        self._line.append(start)

    def leave(self, start: Callable[[], None]) -> None:
        """Leave the queue. Does nothing if ``start`` is not queued."""
        if start in self._line:
            self._line.remove(start)

    def pause(self) -> asyncio.Future[None] | None:
        """Return ``None`` if there is room, else a future that completes when there is room again.

        A woken task must ask again, because others were woken too.
        """
        if not self.full:
            return None
        self.waits += 1
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pauses[waiter] = None
        waiter.add_done_callback(self._gone)
        return waiter

    def _gone(self, waiter: asyncio.Future[None]) -> None:
        """Remove a stream that ended while it was paused."""
        self._pauses.pop(waiter, None)
