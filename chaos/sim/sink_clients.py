"""Clients of a sink in a simulated cluster: drivers that run one numbered batch after the other, and the tasks that
write them, each life of one in a process of its own.

A driver keeps what a streaming program keeps outside the cluster: which batches it has noted as done. It reads that as
it begins, and a batch that is not noted it runs again, with the same rows.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidelog.aio import SinkLedger, SinkWriter
from tidelog.client.errors import RequestTimedOutError, SinkJobFencedError, SinkTransactionLostError, TidelogError
from tidelog.client.sinks import SinkJob, SinkMessage

if TYPE_CHECKING:
    from tidelog.chaos.sim.sink_work import SinkWork

BATCHES: Final = "batches"
PARTITIONS: Final = 3
TASKS: Final = (0, 1, 2)
NOTED_S: Final = 0.05
"""A driver that has heard of a decision has noted it so long after."""


class Life:
    """One life of one client."""

    def __init__(self, name: str, work: SinkWork) -> None:
        self.name = name
        self.stopping = False
        self.killed = False
        self._work = work
        self._cluster = work.sim.cluster
        self._rng = random.Random(work.sim.rng.random())
        self.process = self._cluster.client_process(name)
        self.task = self._cluster.run_in(self.process, self._guarded())

    @property
    def at_work(self) -> bool:
        return not (self.killed or self.task.done() or self.process.paused)

    async def _guarded(self) -> None:
        try:
            await self._run()
        except TidelogError as error:
            self._work.sim.world.note(f"{self.name} ends: {type(error).__name__}: {error}")
            self._work.events[f"ended-{type(error).__name__}"] += 1
            if not (error.retriable or error.abortable or isinstance(error, SinkJobFencedError)):
                self._work.sim.world.violated(f"{self.name} was refused: {type(error).__name__}: {error}")

    async def _run(self) -> None:
        raise AssertionError(f"{self.name} has nothing to do")

    def kill(self) -> None:
        """End the client's process."""
        self.killed = True
        self.task.cancel()
        self._cluster.fabric.drop_node(self.name)
        self._cluster.loop.pause(self.process)  # what is left of it never runs again

    def failure(self) -> BaseException | None:
        return self.task.exception() if self.task.done() and not self.task.cancelled() else None


class Task(Life):
    """Writes some rows of a batch and prepares them; ``message`` is what its driver gets, if it gets anything."""

    def __init__(self, name: str, work: SinkWork, job: SinkJob, rows: Sequence[tuple[int, bytes]]) -> None:
        self.job = job
        self.attempt = name.replace("#", "-")
        self.rows = rows
        self.message: asyncio.Future[SinkMessage | TidelogError] = asyncio.get_running_loop().create_future()
        super().__init__(name, work)

    async def _run(self) -> None:
        rng = self._rng
        writer = SinkWriter(
            self._cluster.bootstrap,
            self.job,
            attempt=self.attempt,
            **self._cluster._seams(self.process),
            linger_ms=rng.choice((0, 5, 50)),
            batch_size=rng.choice((100, 16_384)),
            request_timeout_ms=rng.choice((500, 1_000, 3_000)),
            delivery_timeout_ms=rng.choice((4_000, 20_000)),
            max_block_ms=rng.choice((2_000, 8_000)),
        )
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
        """A task may think better of it, whatever its driver does."""
        await asyncio.sleep(self._rng.choice((0.0, 0.05, 0.5)))
        self._work.events["task-aborted"] += 1
        try:
            await writer.abort(timeout=1.0)
        except TidelogError:
            self._work.events["task-abort-failed"] += 1

    def _deliver(self, message: SinkMessage | TidelogError) -> None:
        if not self.message.done():
            self.message.set_result(message)


class Driver(Life):
    """Runs the batches of a sink until it dies, or has done enough."""

    def __init__(self, sink: str, name: str, work: SinkWork) -> None:
        self.sink = sink
        self._tasks = 0
        super().__init__(name, work)

    async def _run(self) -> None:
        rng, work = self._rng, self._work
        ledger = SinkLedger(
            self._cluster.bootstrap,
            self.sink,
            **self._cluster._seams(self.process),
            request_timeout_ms=rng.choice((200, 1_000, 3_000)),
            default_api_timeout_ms=rng.choice((200, 1_000, 6_000)),
            retry_backoff_ms=rng.choice((10, 100)),
        )
        await ledger.start()
        batch = work.noted[self.sink] + 1
        while not self.stopping:
            if not await self._batch(ledger, batch):
                continue
            if rng.random() < 0.1:
                break  # it dies, and nobody has noted what was decided
            await asyncio.sleep(NOTED_S)
            if work.noted[self.sink] >= batch:
                work.events["noted-by-another"] += 1
                break  # another driver is at work here
            work.noted[self.sink] = batch
            work.noted_s[self.sink] = self._cluster.loop.now
            batch += 1
            await asyncio.sleep(rng.choice((0.0, 0.3, 1.5)))
        await ledger.close()

    async def _batch(self, ledger: SinkLedger, batch: int) -> bool:
        """Run a batch once; whether it is decided. Raises where this driver is at its end."""
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
                work.events["commit-unknown"] += 1
                if rng.random() < 0.5:
                    continue
                return await self._give_up(ledger, messages)
            except SinkTransactionLostError:
                work.events["transaction-lost"] += 1
                return False
            if outcome.already_committed:
                work.events["already-committed"] += 1
            work.decided(job, outcome)
            return True

    async def _give_up(self, ledger: SinkLedger, messages: Sequence[SinkMessage]) -> bool:
        """Abort, or leave that to whoever takes over; whether the batch is decided."""
        if self._rng.random() < 0.3:
            return False
        try:
            outcome = await ledger.abort_job(messages)
        except RequestTimedOutError:
            return False
        if outcome is None:
            return False
        if outcome.already_committed:
            self._work.events["decided-before-abort"] += 1
            self._work.decided(messages[0].of, outcome)
            return True
        self._work.events["aborted"] += 1
        self._work.gone(messages[0].of)
        return False

    async def _task(self, job: SinkJob, rows: Sequence[tuple[int, bytes]]) -> SinkMessage | None:
        """Have one task's rows written: by another attempt where one dies or takes too long. None: not this time."""
        for _ in range(3):
            self._tasks += 1
            task = self._work.start_task(f"{self.name}#{self._tasks}", job, rows)
            patience_s = self._rng.choice((1.0, 5.0, 12.0))
            found = await self._within(patience_s, task)
            if isinstance(found, SinkMessage):
                if self._rng.random() < 0.95:
                    return found
                self._work.events["speculative"] += 1
            elif isinstance(found, SinkJobFencedError):
                raise found
        return None

    async def _within(self, seconds: float, task: Task) -> SinkMessage | TidelogError | None:
        waiting: Coroutine[Any, Any, Any] = asyncio.wait({task.message}, timeout=seconds)
        await waiting
        return task.message.result() if task.message.done() else None
