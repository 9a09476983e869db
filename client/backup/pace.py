"""Limits the speed of backups and restores, and reports progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

TELL_S: Final = 5.0


class Pace:
    """Keeps to a number of bytes per second, and reports progress every :data:`TELL_S`."""

    def __init__(self, rate: int | None, tell: Callable[[int], None] | None = None) -> None:
        """``rate`` None: unlimited. ``tell`` gets the bytes so far."""
        self._rate = rate
        self._tell = tell
        self._free_at = self._told_at = 0.0
        self.moved = 0

    @property
    def is_limited(self) -> bool:
        return self._rate is not None

    async def take(self, size: int) -> None:
        """Wait until ``size`` bytes may be moved; they then count as moved."""
        now = asyncio.get_running_loop().time()
        self.moved += size
        if self._tell is not None and now - self._told_at >= TELL_S:
            if self._told_at:
                self._tell(self.moved)
            self._told_at = now
        if self._rate is not None:
            begins = max(now, self._free_at)
            self._free_at = begins + size / self._rate
            if begins > now:
                await asyncio.sleep(begins - now)


async def all_of(work: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Run all work concurrently. If one fails, the others are ended and its error is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
