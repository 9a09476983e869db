"""Time, as something that is handed in."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The two clocks a node has. A simulation hands in its own."""

    def now_ms(self) -> int:
        """Wall-clock time, milliseconds since the epoch; may jump. For timestamps and retention."""

    def monotonic_ms(self) -> int:
        """Never runs backwards; its zero means nothing. For timeouts, leases and lag."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
