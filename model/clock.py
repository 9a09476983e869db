"""Time as an injected dependency."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The two clocks of a node. A simulation supplies its own."""

    def now_ms(self) -> int:
        """Return wall-clock time, milliseconds since the epoch; may jump. For timestamps and retention."""

    def monotonic_ms(self) -> int:
        """Return monotonic milliseconds; the zero point is arbitrary. For timeouts, leases and lag."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
