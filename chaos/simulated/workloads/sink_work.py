"""Sinks at work in a simulated cluster: two programs that write numbered batches, whose drivers and tasks die, stand
still and come back, two drivers at a time on what one of them has noted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidelog.chaos.checkers.sinks import Batch, Row, judge_batches
from tidelog.chaos.checkers.transactions import one_decision, visible
from tidelog.chaos.simulated.workloads.programs import Programs
from tidelog.chaos.workloads.sinks import BATCHES, PARTITIONS, TASKS, BatchDriver, RowsTask
from tidelog.client.sinks import SinkJob, SinkMessage
from tidelog.model.sinks import NO_BATCH

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

SINKS: Final = ("s0", "s1")
TIMEOUT_S: Final = 4.0
PREPARED_TIMEOUT_S: Final = 6.0
OPEN_S: Final = TIMEOUT_S + PREPARED_TIMEOUT_S + 2.5
"""For so long a transaction may hold back readers while nothing is in the way: open first, then prepared."""
STABLE_S: Final = PREPARED_TIMEOUT_S + 2.5
"""When all is mended and nobody writes any more, nothing is undecided after so long."""


class SinkWork(Programs):
    """The drivers and tasks of a run."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim, SINKS, {BATCHES: PARTITIONS}, {BATCHES: OPEN_S}, BATCHES)
        self.noted = dict.fromkeys(SINKS, NO_BATCH)
        """The last batch that a program has noted as done: outside the cluster, and never lost."""
        self._asked: dict[tuple[str, int], dict[str, int]] = {}
        self._commits = 0

    @property
    def operations(self) -> int:
        return self._commits

    # --- what clients tell ------------------------------------------------------------------------------

    def plan(self, job: SinkJob) -> list[list[tuple[int, bytes]]]:
        """The rows of a batch by task, with their partitions: the same for each of its jobs, but for who wrote them."""
        rng = random.Random(f"{self.sim.world.seed}-{job.sink}-{job.batch}")
        plan: list[list[tuple[int, bytes]]] = []
        for task in TASKS[: rng.randrange(1, len(TASKS) + 1)]:
            count = rng.choice((0, 1, 3, 8))
            plan.append([(rng.randrange(PARTITIONS), Row(*job, task, number).encoded) for number in range(count)])
        return plan

    def start_task(self, name: str, job: SinkJob, rows: Sequence[tuple[int, bytes]]) -> RowsTask:
        task = RowsTask(name, self.world, job, rows)
        self.roster.everyone.append(task)
        return task

    def asked(self, job: SinkJob, messages: Sequence[SinkMessage]) -> None:
        """A driver is about to commit this."""
        self._commits += 1
        rows = sum(message.rows for message in messages)
        self._asked.setdefault((job.sink, job.batch), {}).setdefault(job.job, rows)

    def _batch(self, key: tuple[str, int]) -> Batch:
        rows = sum(map(len, self.plan(SinkJob(*key, "any"))))
        return Batch(*key, rows, self._asked.get(key, {}), self.told.get(key, []), self.aborted.get(key, []))

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
        batches = [self._batch(key) for key in dict.fromkeys((*self._asked, *self.told, *self.aborted))]
        for text in [*one_decision(logs), *judge_batches(rows, batches, self.noted, self._last)][:20]:
            self.sim.world.violated(text)
