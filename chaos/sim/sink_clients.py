"""Clients of a sink in a simulated cluster: drivers that run one numbered batch after the other, and the tasks that
write them, each life of one in a process of its own.

A driver keeps what a streaming program keeps outside the cluster: which batches it has noted as done. It reads that as
it begins, and a batch that is not noted it runs again, with the same rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidelog.aio import SinkLedger, SinkWriter
from tidelog.chaos.sim import lives
from tidelog.chaos.sim.lives import NOTED_S, Attempt, ledger_settings, writer_settings
from tidelog.client.errors import RequestTimedOutError, SinkJobFencedError, SinkTransactionLostError, TidelogError
from tidelog.client.sinks import SinkJob, SinkMessage

if TYPE_CHECKING:
    from tidelog.chaos.sim.sink_work import SinkWork

BATCHES: Final = "batches"
PARTITIONS: Final = 3
TASKS: Final = (0, 1, 2)


class Task(Attempt):
    """Writes rows that are given to it."""

    def __init__(self, name: str, work: SinkWork, job: SinkJob, rows: Sequence[tuple[int, bytes]]) -> None:
        self.job = job
        self.attempt = name.replace("#", "-")
        self.rows = rows
        super().__init__(name, work)

    async def _run(self) -> None:
        rng = self._rng
        writer = SinkWriter(
            self._cluster.bootstrap,
            self.job,
            attempt=self.attempt,
            **self._cluster._seams(self.process),
            **writer_settings(rng),
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
        self._events["task-aborted"] += 1
        try:
            await writer.abort(timeout=1.0)
        except TidelogError:
            self._events["task-abort-failed"] += 1


class Driver(lives.Driver):
    """Runs the batches of a sink until it dies, or has done enough."""

    def __init__(self, sink: str, name: str, work: SinkWork) -> None:
        self._work = work
        self._tasks = 0
        super().__init__(sink, name, work)

    async def _run(self) -> None:
        rng, work = self._rng, self._work
        ledger = SinkLedger(
            self._cluster.bootstrap,
            self.sink,
            **self._cluster._seams(self.process),
            **ledger_settings(rng),
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

    async def _within(self, seconds: float, task: Task) -> SinkMessage | Exception | None:
        waiting: Coroutine[Any, Any, Any] = asyncio.wait({task.message}, timeout=seconds)
        await waiting
        return task.message.result() if task.message.done() else None
