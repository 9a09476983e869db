"""Sinks working in a simulated cluster: two programs that write numbered batches, whose drivers and tasks die, pause
and return, sometimes two drivers at a time from the same stored state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.chaos.checkers.sinks import judge_batches
from tidelog.chaos.checkers.transactions import one_decision, visible
from tidelog.chaos.simulated.workloads.programs import Programs
from tidelog.chaos.workloads.sinks import BATCHES, PARTITIONS, BatchBooks, BatchDriver

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

SINKS: Final = ("s0", "s1")
TIMEOUT_S: Final = 4.0
PREPARED_TIMEOUT_S: Final = 6.0
OPEN_S: Final = TIMEOUT_S + PREPARED_TIMEOUT_S + 2.5
"""How long a transaction may hold back readers while nothing is disturbed: open first, then prepared."""
STABLE_S: Final = PREPARED_TIMEOUT_S + 2.5
"""When all is repaired and nobody writes any more, nothing is undecided after this long."""


class SinkWork(Programs, BatchBooks):
    """The drivers and tasks of a run."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim, SINKS, {BATCHES: PARTITIONS}, {BATCHES: OPEN_S}, BATCHES)
        self.seed = sim.world.seed

    @property
    def operations(self) -> int:
        return self.commits

    async def begin(self) -> None:
        sim = self.sim
        await sim.cluster.create_topic(BATCHES, PARTITIONS, sim.replication_factor, sim.setting.topic_config)
        self.watch.begin()
        self.roster.begin()

    def _driver(self, sink: str, name: str) -> BatchDriver:
        return BatchDriver(sink, name, self)

    # --- the end ----------------------------------------------------------------------------------------

    async def settle(self, bound_s: float) -> None:
        cluster = self.sim.cluster
        began = cluster.loop.now
        await cluster.wait_for(
            lambda: all(self.noted_s.get(sink, -1.0) > began for sink in SINKS), "another batch of each sink", bound_s
        )
        self.roster.stop()
        await self.roster.ended(bound_s)
        await self._settle_sinks(STABLE_S)

    def judge(self) -> None:
        logs = self.watch.logs((BATCHES,))
        rows = [value for log in logs.values() for _, value in visible(log)]
        for text in [*one_decision(logs), *judge_batches(rows, self.batches(), self.noted, self._last)][:20]:
            self.sim.world.violated(text)
