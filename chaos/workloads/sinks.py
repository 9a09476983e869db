"""Clients of sinks: drivers that run numbered batches in order, and the tasks that write them. Each incarnation has its
own process.

A driver keeps what a streaming program stores outside the cluster: which batches it has recorded as done. It reads that
at its start, and reruns a batch that is not recorded, with the same rows.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from tidelog.aio import SinkLedger, SinkWriter
from tidelog.chaos.checkers.sinks import Batch, Row
from tidelog.chaos.workloads.incarnation import Incarnation, Roster
from tidelog.chaos.workloads.world import World
from tidelog.client.errors import RequestTimedOutError, SinkJobFencedError, SinkTransactionLostError, TidelogError
from tidelog.client.sinks import SinkJob, SinkMessage, SinkOutcome
from tidelog.model.sinks import NO_BATCH

BATCHES: Final = "batches"
PARTITIONS: Final = 3
TASKS: Final = (0, 1, 2)
NOTED_S: Final = 0.05
"""How long after learning of a decision a driver records it."""


class Driver(Incarnation):
    """An incarnation of the program that runs the batches of a sink."""

    def __init__(self, sink: str, name: str, world: World) -> None:
        self.sink = sink
        super().__init__(name, world)

    async def _ledger(self) -> SinkLedger:
        """Return a ledger with random settings."""
        rng = self._rng
        ledger = self.process.has(
            SinkLedger(
                self.world.bootstrap,
                self.sink,
                **self.process.seams(),
                request_timeout_ms=rng.choice((200, 1_000, 3_000)) * self.world.scale,
                default_api_timeout_ms=rng.choice((200, 1_000, 6_000)) * self.world.scale,
                retry_backoff_ms=rng.choice((10, 100)),
            )
        )
        await ledger.start()
        return ledger


class TaskAttempt(Incarnation):
    """Writes some rows of a batch and prepares them; ``message`` is what its driver gets, if anything."""

    def __init__(self, name: str, world: World, job: SinkJob, attempt: str) -> None:
        self.job = job
        self.attempt = attempt
        self.message: asyncio.Future[SinkMessage | Exception] = asyncio.get_running_loop().create_future()
        super().__init__(name, world)

    def _deliver(self, message: SinkMessage | Exception) -> None:
        if not self.message.done():
            self.message.set_result(message)

    def _writer(self) -> SinkWriter:
        """Return a writer with random settings."""
        rng, scale = self._rng, self.world.scale
        return self.process.has(
            SinkWriter(
                self.world.bootstrap,
                self.job,
                attempt=self.attempt,
                **self.process.seams(),
                linger_ms=rng.choice((0, 5, 50)),
                batch_size=rng.choice((100, 16_384)),
                request_timeout_ms=rng.choice((500, 1_000, 3_000)) * scale,
                delivery_timeout_ms=rng.choice((4_000, 20_000)) * scale,
                max_block_ms=rng.choice((2_000, 8_000)) * scale,
            )
        )


class SinkBooks:
    """Programs, each with its own sink: one driver after another, occasionally two at a time; and the answers about
    their batches."""

    def __init__(
        self, world: World, rng: random.Random, sinks: Sequence[str], start: Callable[[str, str], Driver]
    ) -> None:
        self.world = world
        self.roster = Roster(world, rng, sinks, start)
        self.noted_s: dict[str, float] = {}
        """When a driver of each sink last recorded a batch as done."""
        self.told: dict[tuple[str, int], list[str]] = {}
        """Sink and batch → the jobs that answers to drivers called decided."""
        self.told_s: dict[tuple[str, int], float] = {}
        """When a driver was first told so."""
        self.aborted: dict[tuple[str, int], list[str]] = {}

    def decided(self, job: SinkJob, outcome: SinkOutcome) -> None:
        """Note that an answer to a driver called a batch decided."""
        key = (job.sink, job.batch)
        told = self.told.setdefault(key, [])
        if not outcome.already_committed:
            told.append(job.job)
            self.world.events["decided"] += 1
        elif outcome.last_batch == job.batch:
            told.append(outcome.last_job)
        self.told_s.setdefault(key, self.world.now())
        if outcome.last_batch < job.batch:
            self.world.violated(f"batch {job.batch} of {job.sink} is reported as decided, the last is {outcome}")

    def gone(self, job: SinkJob) -> None:
        """Note that an answer to a driver called the job aborted."""
        self.aborted.setdefault((job.sink, job.batch), []).append(job.job)


class RowsTask(TaskAttempt):
    """Writes given rows."""

    def __init__(self, name: str, world: World, job: SinkJob, rows: Sequence[tuple[int, bytes]]) -> None:
        self.rows = rows
        super().__init__(name, world, job, name.replace("#", "-"))

    async def _run(self) -> None:
        rng = self._rng
        writer = self._writer()
        try:
            for partition, value in self.rows:
                await writer.send(BATCHES, value, partition=partition)
                if rng.random() < 0.1:
                    await asyncio.sleep(rng.choice((0.05, 0.3, 2.0)))
            self._deliver(await writer.prepare())
        except TidelogError as error:
            self._deliver(error)
        if rng.random() < 0.05:
            await self._abort(writer)
        await writer.close(2.0)

    async def _abort(self, writer: SinkWriter) -> None:
        """Abort: a task may change its mind, whatever its driver does."""
        await asyncio.sleep(self._rng.choice((0.0, 0.05, 0.5)))
        self.world.events["task-aborted"] += 1
        try:
            await writer.abort(timeout=1.0)
        except TidelogError:
            self.world.events["task-abort-failed"] += 1


class BatchBooks(SinkBooks):
    """Programs that write batches of rows: what they must write, what they have recorded, what they requested."""

    seed: int
    """Determines the rows of each batch."""

    def __init__(
        self, world: World, rng: random.Random, sinks: Sequence[str], start: Callable[[str, str], Driver]
    ) -> None:
        super().__init__(world, rng, sinks, start)
        self.noted = dict.fromkeys(sinks, NO_BATCH)
        """The last batch that a program has recorded as done: outside the cluster, and never lost."""
        self.commits = 0
        self._asked: dict[tuple[str, int], dict[str, int]] = {}

    def plan(self, job: SinkJob) -> list[list[tuple[int, bytes]]]:
        """Return the rows of a batch by task, with their partitions: the same for each of its jobs, except for their
        writer."""
        rng = random.Random(f"{self.seed}-{job.sink}-{job.batch}")
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
        """Note that a driver is about to commit this."""
        self.commits += 1
        rows = sum(message.rows for message in messages)
        self._asked.setdefault((job.sink, job.batch), {}).setdefault(job.job, rows)

    def batches(self) -> list[Batch]:
        """Return what is known about each batch."""
        keys = dict.fromkeys((*self._asked, *self.told, *self.aborted))
        return [self._batch(key) for key in keys]

    def _batch(self, key: tuple[str, int]) -> Batch:
        rows = sum(map(len, self.plan(SinkJob(*key, "any"))))
        return Batch(*key, rows, self._asked.get(key, {}), self.told.get(key, []), self.aborted.get(key, []))


class BatchDriver(Driver):
    """Runs the batches of a sink until it dies, or has done enough."""

    def __init__(self, sink: str, name: str, work: BatchBooks) -> None:
        self._work = work
        self._tasks = 0
        super().__init__(sink, name, work.world)

    async def _run(self) -> None:
        rng, work = self._rng, self._work
        ledger = await self._ledger()
        batch = work.noted[self.sink] + 1
        while not self.stopping:
            if not await self._batch(ledger, batch):
                continue
            if rng.random() < 0.1:
                break  # it dies, and nobody has recorded the decision
            await asyncio.sleep(NOTED_S)
            if work.noted[self.sink] >= batch:
                self.world.events["noted-by-another"] += 1
                break  # another driver is at work here
            work.noted[self.sink] = batch
            work.noted_s[self.sink] = self.world.now()
            batch += 1
            await asyncio.sleep(rng.choice((0.0, 0.3, 1.5)))
        await ledger.close()

    async def _batch(self, ledger: SinkLedger, batch: int) -> bool:
        """Run a batch once. Returns whether it is decided. Raises if this driver must end."""
        rng, work = self._rng, self._work
        job = ledger.new_job(batch)
        messages: list[SinkMessage] = []
        for rows in work.plan(job):
            message = await self._task(job, rows)
            if message is None:
                await self._give_up(ledger, messages)
                return False
            messages.append(message)
        if rng.random() < 0.05:
            await self._give_up(ledger, messages)
            return False
        work.asked(job, messages)
        while True:
            try:
                outcome = await ledger.commit_batch(messages)
            except RequestTimedOutError:
                self.world.events["commit-unknown"] += 1
                if rng.random() < 0.5:
                    continue
                return await self._give_up(ledger, messages)
            except SinkTransactionLostError:
                self.world.events["transaction-lost"] += 1
                return False
            if outcome.already_committed:
                self.world.events["already-committed"] += 1
            work.decided(job, outcome)
            return True

    async def _give_up(self, ledger: SinkLedger, messages: Sequence[SinkMessage]) -> bool:
        """Abort, or leave that to the successor. Returns whether the batch is decided."""
        if self._rng.random() < 0.3:
            return False
        try:
            outcome = await ledger.abort_job(messages)
        except RequestTimedOutError:
            return False
        if outcome is None:
            return False
        if outcome.already_committed:
            self.world.events["decided-before-abort"] += 1
            self._work.decided(messages[0].of, outcome)
            return True
        self.world.events["aborted"] += 1
        self._work.gone(messages[0].of)
        return False

    async def _task(self, job: SinkJob, rows: Sequence[tuple[int, bytes]]) -> SinkMessage | None:
        """Get one task's rows written: by another attempt if one dies or takes too long. None: not this time."""
        for _ in range(3):
            self._tasks += 1
            task = self._work.start_task(f"{self.name}#{self._tasks}", job, rows)
            patience_s = self._rng.choice((1.0, 5.0, 12.0)) * self.world.scale
            found = await self._within(patience_s, task)
            if isinstance(found, SinkMessage):
                if self._rng.random() < 0.95:
                    return found
                self.world.events["speculative"] += 1
            elif isinstance(found, SinkJobFencedError):
                raise found
        return None

    async def _within(self, seconds: float, task: RowsTask) -> SinkMessage | Exception | None:
        waiting: Coroutine[Any, Any, Any] = asyncio.wait({task.message}, timeout=seconds)
        await waiting
        return task.message.result() if task.message.done() else None
