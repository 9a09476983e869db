"""The wall clock of a simulated process, which drifts with the process and may jump."""

from __future__ import annotations

from typing import Final

from tidelog.chaos.sim.loop import Process, SimulatedLoop

EPOCH_MS: Final = 1_750_000_000_000
"""Wall-clock time at which simulated worlds begin."""


class SimulatedClock:
    """Implements :class:`tidelog.model.clock.Clock` for one host; ``process`` is the one that runs there now."""

    def __init__(self, loop: SimulatedLoop, process: Process) -> None:
        self._loop = loop
        self._began = loop.now
        self.process = process
        self.jumped_ms = 0
        """How far the wall clock is off; jumps add to it. It outlives a process."""

    def now_ms(self) -> int:
        return EPOCH_MS + int((self._loop.now - 1000.0) * 1000) + self.jumped_ms

    def monotonic_ms(self) -> int:
        return int(self.process.local(self._loop.now) * 1000)
