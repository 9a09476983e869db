"""Sinks at work in a simulated cluster: two programs that write numbered batches, whose drivers and tasks die, stand
still and come back, two drivers at a time on what one of them has noted."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidelog.chaos.checkers.sinks import Batch, Row, judge_batches
from tidelog.chaos.checkers.transactions import all_stable, one_decision, visible
from tidelog.chaos.sim.scenario import Fault
from tidelog.chaos.sim.sink_clients import BATCHES, PARTITIONS, TASKS, Driver, Life, Task
from tidelog.chaos.sim.transaction_watch import TransactionWatch
from tidelog.client.sinks import SinkJob, SinkMessage, SinkOutcome
from tidelog.model.ids import NodeId
from tidelog.model.sinks import NO_BATCH
from tidelog.proto.sink_api import CommitBatchRequest

if TYPE_CHECKING:
    from tidelog.chaos.sim.simulation import Simulation

SINKS: Final = ("s0", "s1")
PREPARED_TIMEOUT_S: Final = 6.0
STABLE_S: Final = PREPARED_TIMEOUT_S + 2.5
"""When all is mended and nobody writes any more, nothing is undecided after so long."""


class SinkWork:
    """The drivers and tasks of a run."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.events: Counter[str] = Counter()
        self.noted = dict.fromkeys(SINKS, NO_BATCH)
        """The last batch that a program has noted as done: outside the cluster, and never lost."""
        self.noted_s: dict[str, float] = {}
        self._batches: dict[tuple[str, int], Batch] = {}
        self._commits = 0
        self._lives = 0
        self._drivers: dict[str, Driver] = {}
        self._everyone: list[Life] = []
        self._last: Mapping[str, int] = {}
        self._stopping = False
        self._rng = random.Random(f"sinks-{sim.world.seed}")
        self._outside = contextvars.Context()
        self.watch = TransactionWatch(sim.world, {BATCHES: PARTITIONS})
        self._deciding: dict[str, None] = {}
        """Sinks whose drivers have asked for a decision, until somebody takes them out."""
        sim.cluster.fabric.sent.append(self._sent)
        hand = sim.hand
        hand.roles |= {
            "sink": lambda: self.watch.coordinator(SINKS[0]),
            "place": lambda: sim.cluster.leader_of(BATCHES, 0),
        }
        hand.acts |= {
            "kill-producer": lambda number, seconds: self._kill(int(number), seconds),
            "pause-producer": self._pause,
            "second-producer": self._second,
            "at-step": self._at_step,
            "at-commit": self._at_commit,
            "kill-later": self._kill_later,
        }

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
            self._fill(sink)

    def _fill(self, sink: str) -> None:
        """Start a driver; who was there before goes on, if it does."""
        self._lives += 1
        driver = Driver(sink, f"{sink}.{self._lives}", self)
        driver.stopping = self._stopping
        self._everyone.append(driver)
        self._drivers[sink] = driver
        driver.task.add_done_callback(lambda _: self._gone(sink, driver), context=self._outside)

    def _gone(self, sink: str, driver: Driver) -> None:
        if not self._stopping and self._drivers.get(sink) is driver and not driver.killed:
            self._later(sink, driver, self._rng.choice((0.05, 0.5, 2.0)))

    def _later(self, sink: str, driver: Driver, seconds: float) -> None:
        def again() -> None:
            if self._drivers.get(sink) is driver and not self._stopping:
                self._fill(sink)

        loop = self.sim.cluster.loop
        loop.at(loop.now + seconds, again, context=self._outside)

    # --- Faults -----------------------------------------------------------------------------------------

    def _at(self, number: int) -> Life | None:
        """A driver, or a task that is at work."""
        if number % 2:
            tasks = [life for life in self._everyone if isinstance(life, Task) and life.at_work]
            return tasks[number % len(tasks)] if tasks else None
        driver = self._drivers.get(SINKS[number // 2 % len(SINKS)])
        return driver if driver is not None and driver.at_work else None

    def _kill(self, number: int, seconds: float) -> bool:
        found = self._at(number)
        if found is None:
            return False
        found.kill()
        if isinstance(found, Driver):
            self._later(found.sink, found, seconds)
        return True

    def _pause(self, number: int, seconds: float) -> bool:
        found = self._at(number)
        if found is None:
            return False
        life = found
        self.sim.cluster.loop.pause(life.process)

        def resume() -> None:
            if life.process.paused and not life.killed:
                self.sim.cluster.loop.resume(life.process)

        self.sim.hand.later(seconds, resume)
        return True

    def _second(self, number: int, seconds: float) -> bool:
        """Start another driver of a sink while the first runs, or stands still for a while."""
        driver = self._drivers.get(SINKS[number % len(SINKS)])
        if driver is None or not driver.at_work:
            return False
        if seconds > 0.5:
            self._pause(2 * (number % len(SINKS)), seconds)
        self._fill(driver.sink)
        return True

    def _at_step(self, step: str, messages: int, within_s: float, *acts: str | float) -> bool:
        """As that of transactions: when a request of some kind has reached a node, ``u``, and so many messages more."""
        self.watch.reached.pop(step, None)
        passed = 0

        def involved() -> dict[str, NodeId | None]:
            nonlocal passed
            server = self.watch.reached.get(step)
            passed += server is not None
            return {} if server is None or passed <= messages else {"u": NodeId(int(server.removeprefix("node")))}

        self.sim.hand.wait_for("at-step", involved, within_s, acts)
        return True

    def _sent(self, client: str, request: Any) -> None:
        if isinstance(request, CommitBatchRequest):
            self._deciding[request.sink] = None

    def _at_commit(self, number: int, within_s: float, *acts: str | float) -> bool:
        """When a driver next asks for a decision, do something to the sink's coordinator, ``u``."""
        sink = SINKS[number]
        self._deciding.pop(sink, None)

        def involved() -> dict[str, NodeId | None]:
            node = self.watch.coordinator(sink) if sink in self._deciding else None
            return {} if node is None else {"u": node}

        self.sim.hand.wait_for("at-commit", involved, within_s, acts)
        return True

    def _kill_later(self, target: str, seconds: float) -> bool:
        """After a moment, end a node, which comes back."""
        hand = self.sim.hand
        hand.later(seconds, lambda: hand.act(Fault(0.0, "kill", (target, 1.0))))
        return True

    # --- The end ----------------------------------------------------------------------------------------

    async def settle(self, bound_s: float) -> None:
        cluster = self.sim.cluster
        began = cluster.loop.now
        await cluster.wait_for(
            lambda: all(self.noted_s.get(sink, -1.0) > began for sink in SINKS), "another batch of each sink", bound_s
        )
        self._stopping = True
        for life in self._everyone:
            life.stopping = True
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

    async def finish(self) -> None:
        for life in self._everyone:
            if not life.task.done() and not life.killed:
                life.kill()

    def failures(self) -> list[tuple[str, BaseException | None]]:
        return [(life.name, life.failure()) for life in self._everyone]
