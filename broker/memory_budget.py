"""A bound on the bytes that a node holds for its clients, as Kafka's ``queued.max.request.bytes``.

Counted are produce frames from arrival to answer and fetch answers from reading to sending. While the
budget is used up no data stream reads its next frame, so the carrier's flow control reaches the
clients: they slow down instead of the node growing. The bound may be overshot by one frame a stream.
"""

from __future__ import annotations

import asyncio
from collections import deque


class MemoryBudget:
    """Counts bytes in use and lets streams wait while none are left."""

    __slots__ = ("_waiters", "bytes_max", "bytes_used", "bytes_used_peak", "waits")

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self.bytes_used_peak = 0
        self.waits = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    def use(self, size: int) -> None:
        """Count ``size`` bytes as held."""
        self.bytes_used += size
        if self.bytes_used > self.bytes_used_peak:
            self.bytes_used_peak = self.bytes_used

    def give(self, size: int) -> None:
        """Count ``size`` bytes as free again; wakes the streams that wait once there is room."""
        self.bytes_used -= size
        assert self.bytes_used >= 0, "more bytes returned than used"
        if self._waiters and self.bytes_used < self.bytes_max:
            waiters, self._waiters = self._waiters, deque()
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def room(self) -> asyncio.Future[None] | None:
        """Return ``None`` where there is room, else a future that is done once there is some again.

        Who wakes asks again, since others were woken too.
        """
        if self.bytes_used < self.bytes_max:
            return None
        self.waits += 1
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    @property
    def waiting(self) -> int:
        """How many streams wait."""
        return sum(not waiter.done() for waiter in self._waiters)
