"""One timer for many times: it is set to the earliest of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class DueTimer:
    """Calls ``act`` once, when its time comes; ``act`` sets it anew if there is another time.

    It keeps the time itself, because uvloop's ``call_at`` gives a handle without one for a time in the past.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._timer: asyncio.Handle | None = None
        self._due_s = 0.0

    @property
    def is_set(self) -> bool:
        """Whether it will act."""
        return self._timer is not None

    def set(self, due_s: float) -> None:
        """Make it act at ``due_s`` of the running loop's clock, or earlier if it is already set to an earlier time."""
        if self._timer is not None:
            if self._due_s <= due_s:
                return
            self._timer.cancel()
        self._due_s = due_s
        self._timer = asyncio.get_running_loop().call_at(due_s, self._come)

    def cancel(self) -> None:
        """Do not act. May be called twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _come(self) -> None:
        self._timer = None
        self._act()
