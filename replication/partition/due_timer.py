"""One timer for many deadlines: it is set to the earliest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class DueTimer:
    """Calls ``act`` once, at its time; ``act`` sets it again if there is another deadline.

    It stores the time itself, because uvloop's ``call_at`` returns a handle without a time if that is in the past.
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
        """Call ``act`` at ``due_s`` of the running loop's clock, or earlier if it is already set to an earlier time."""
        if self._timer is not None:
            if self._due_s <= due_s:
                return
            self._timer.cancel()
        self._due_s = due_s
        self._timer = asyncio.get_running_loop().call_at(due_s, self._come)

    def cancel(self) -> None:
        """Cancel the call. May be called twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _come(self) -> None:
        self._timer = None
        self._act()
