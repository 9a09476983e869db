"""The wall clock of a simulated process, which drifts with the process and may jump."""

from __future__ import annotations

from typing import Final

from tidelog.chaos.simulated.world.loop import Process, SimulatedLoop

EPOCH_MS: Final = 1_750_000_000_000
"""Wall-clock time at the start of simulated worlds."""


class SimulatedClock:
    """Implements :class:`tidelog.model.clock.Clock` for one host; ``process`` is the current one."""

    def __init__(self, loop: SimulatedLoop, process: Process) -> None:
        self._loop = loop
        self._began = loop.now
        self.process = process
        self.jumped_ms = 0
        """How far the wall clock is off now; survives the process."""
        self.off_ms = (0, 0)
        """The smallest and the largest offset that it ever had."""
        self._furthest_ms = 0

    @property
    def furthest_ms(self) -> int:
        """Return the latest time that the wall clock ever showed."""
        return max(self._furthest_ms, self.now_ms())

    def jump(self, milliseconds: int) -> None:
        """Let the wall clock jump forward, or back if negative."""
        self._furthest_ms = self.furthest_ms
        self.jumped_ms += milliseconds
        low, high = self.off_ms
        self.off_ms = (min(low, self.jumped_ms), max(high, self.jumped_ms))

    def now_ms(self) -> int:
        return EPOCH_MS + int((self._loop.now - 1000.0) * 1000) + self.jumped_ms

    def monotonic_ms(self) -> int:
        return int(self.process.local(self._loop.now) * 1000)
