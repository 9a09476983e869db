"""Limits a background task's data rate, on average."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

PAUSE_MIN_S: Final = 0.02
"""A task pauses once it is this far ahead of its rate."""
LOOK_S: Final = 0.2
"""How often a waiting task checks whether its rate has changed."""


class IoPace:
    """Data that was moved is paid for with time; an idle task saves none up.

    ``rate``: the current bytes per second. Debt is kept in bytes, so a new rate also applies to a wait in progress.
    """

    __slots__ = ("_owed", "_owed_at", "_rate")

    def __init__(self, rate: Callable[[], float]) -> None:
        self._rate = rate
        self._owed = 0.0
        """Bytes moved ahead of the rate, as of the loop's time ``_owed_at``."""
        self._owed_at = 0.0

    @property
    def ahead_s(self) -> float:
        """How long to wait now; 0 if not at all, or too briefly for the loop's clock."""
        self.pay(0)
        wait_s, now = self._owed / self._rate(), asyncio.get_running_loop().time()
        return wait_s if now + wait_s > now else 0.0

    def pay(self, size: int) -> None:
        """Account for moved bytes."""
        now = asyncio.get_running_loop().time()
        if now > self._owed_at:
            self._owed = max(0.0, self._owed - (now - self._owed_at) * self._rate())
            self._owed_at = now
        self._owed += size

    async def keep(self, size: int) -> None:
        """Account for moved bytes, and wait until the rate is kept."""
        self.pay(size)
        ahead_s = self.ahead_s
        while ahead_s >= PAUSE_MIN_S:
            await asyncio.sleep(min(ahead_s, LOOK_S))
            ahead_s = self.ahead_s
