"""Keeps what a background task moves to a rate, on average."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

PAUSE_MIN_S: Final = 0.02
"""A task pauses once it is this far ahead of its rate."""
LOOK_S: Final = 0.2
"""A task that waits looks this often whether its rate has changed."""


class IoPace:
    """What was moved is paid for with time; a task that was idle has saved up none.

    ``rate``: bytes a second, as it is now. What is owed is owed in bytes, so a new rate holds for a wait under way too.
    """

    __slots__ = ("_owed", "_owed_at", "_rate")

    def __init__(self, rate: Callable[[], float]) -> None:
        self._rate = rate
        self._owed = 0.0
        """Bytes that were moved ahead of the rate, at the loop's time ``_owed_at``."""
        self._owed_at = 0.0

    @property
    def ahead_s(self) -> float:
        """How long to wait now; 0: not at all, or for so little that the loop's clock would not show it."""
        self.pay(0)
        wait_s, now = self._owed / self._rate(), asyncio.get_running_loop().time()
        return wait_s if now + wait_s > now else 0.0

    def pay(self, size: int) -> None:
        """So many bytes were moved."""
        now = asyncio.get_running_loop().time()
        if now > self._owed_at:
            self._owed = max(0.0, self._owed - (now - self._owed_at) * self._rate())
            self._owed_at = now
        self._owed += size

    async def keep(self, size: int) -> None:
        """Pay, and wait until that is in keeping with the rate."""
        self.pay(size)
        ahead_s = self.ahead_s
        while ahead_s >= PAUSE_MIN_S:
            await asyncio.sleep(min(ahead_s, LOOK_S))
            ahead_s = self.ahead_s
