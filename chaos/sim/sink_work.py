"""Sinks at work in a simulated cluster: two programs that write numbered batches, whose drivers and tasks die, stand
still and come back, two drivers at a time on what one of them has noted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidelog.chaos.checkers.sinks import Batch, Row, judge_batches
from tidelog.chaos.checkers.transactions import all_stable, one_decision, visible
from tidelog.chaos.sim.programs import Programs
from tidelog.chaos.sim.sink_clients import BATCHES, PARTITIONS, TASKS, Driver, Task
from tidelog.client.sinks import SinkJob, SinkMessage, SinkOutcome
from tidelog.model.sinks import NO_BATCH

if TYPE_CHECKING:
    from tidelog.chaos.sim.simulation import Simulation

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
        self.noted_s: dict[str, float] = {}
        self._batches: dict[tuple[str, int], Batch] = {}
        self._commits = 0
        self._last: Mapping[str, int] = {}

    @property
    def operations(self) -> int:
        return self._commits

    # --- What clients tell ------------------------------------------------------------------------------

    def plan(self, job: SinkJob) -> list[list[tuple[int, bytes]]]:
        """The rows of a batch by task, with their partitions: the same for each of its jobs, but for who wrote them."""
        rng = random.Random(f"{self.sim.world.seed}-{job.sink}-{job.batch}")
        plan: list[list[tuple[int, bytes]]] = []
        for task in TASKS[: rng.randrange(1, len(TASKS) + 1)]:
            count = rng.choice((0, 1, 3, 8))
            plan.append([(rng.randrange(PARTITIONS), Row(*job, task, number).encoded) for number in range(count)])
        return plan

    def start_task(self, name: str, job: SinkJob, rows: Sequence[tuple[int, bytes]]) -> Task:
        task = Task(name, self, job, rows)
        self._everyone.append(task)
        return task

    def asked(self, job: SinkJob, messages: Sequence[SinkMessage]) -> None:
        """A driver is about to commit this."""
        self._commits += 1
        rows = sum(message.rows for message in messages)
        self._batch(job.sink, job.batch).asked.setdefault(job.job, rows)

    def decided(self, job: SinkJob, outcome: SinkOutcome) -> None:
        """A driver was told."""
        if not outcome.already_committed:
            self._batch(job.sink, job.batch).told.append(job.job)
            self.events["decided"] += 1
        elif outcome.last_batch == job.batch:
            self._batch(job.sink, job.batch).told.append(outcome.last_job)
        self.told(job.sink, job.batch)
        if outcome.last_batch < job.batch:
            self.sim.world.violated(f"batch {job.batch} of {job.sink} is told to be decided, the last is {outcome}")

    def gone(self, job: SinkJob) -> None:
        """A driver was told that the job is aborted."""
        self._batch(job.sink, job.batch).aborted.append(job.job)

    def _batch(self, sink: str, batch: int) -> Batch:
        found = self._batches.get((sink, batch))
        if found is None:
            rows = sum(map(len, self.plan(SinkJob(sink, batch, "any"))))
            found = self._batches[sink, batch] = Batch(sink, batch, rows)
        return found

    # --- Lives ------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        sim = self.sim
        await sim.cluster.create_topic(BATCHES, PARTITIONS, sim.replication_factor, sim.setting.topic_config)
        self.watch.begin()
        for sink in SINKS:
            self.fill(sink)

    def _driver(self, sink: str, name: str) -> Driver:
        return Driver(sink, name, self)

    # --- The end ----------------------------------------------------------------------------------------

    async def settle(self, bound_s: float) -> None:
        cluster = self.sim.cluster
        began = cluster.loop.now
        await cluster.wait_for(
            lambda: all(self.noted_s.get(sink, -1.0) > began for sink in SINKS), "another batch of each sink", bound_s
        )
        self.stop()
        left = {life.task for life in self._everyone if not life.killed and not life.process.paused}
        if left:
            _, late = await asyncio.wait(left, timeout=bound_s)
            if late:
                names = [life.name for life in self._everyone if life.task in late]
                raise TimeoutError(f"expected within {bound_s:g} s: {', '.join(names)} ended")
        await cluster.wait_for(lambda: not self.watch.undecided(), "nothing undecided", STABLE_S)
        for text in all_stable(self.watch.marks()):
            self.sim.world.violated(text)
        async with cluster.admin() as admin:
            found = await admin.describe_sinks(SINKS, timeout=10)
        self._last = {sink: NO_BATCH if one.last is None else one.last.batch for sink, one in found.items()}
        for sink, one in found.items():
            if one.transactions:
                self.sim.world.violated(f"{sink} has transactions though nobody writes: {one.transactions[:3]}")

    def judge(self) -> None:
        logs = self.watch.logs((BATCHES,))
        rows = [value for log in logs.values() for _, value in visible(log)]
        found = [
            *one_decision(logs),
            *judge_batches(rows, list(self._batches.values()), self.noted, self._last),
        ]
        for text in found[:20]:
            self.sim.world.violated(text)
