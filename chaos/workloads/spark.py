"""A model of Spark: the driver of a streaming query, and the attempts at the tasks of its batches.

A driver follows Spark's ``MicroBatchExecution`` step by step. It writes a batch's range to the offset log before it
reads any of it, and writes the commit log once the sink has confirmed that the batch is committed. Files of both logs
are written whole and never replaced: a driver that finds one in its place ends. A new driver reads both, and reruns a
batch that is planned but not in the commit log. Tasks run as in ``TaskSetManager``: another attempt follows a failed
one, up to four in all; a slow one gets a second one beside it; the first message of a task counts. Attempts are
numbered from 0 in each job. When a job is over, the state of its attempts is unknown; some continue.

The sink is called in the same way as by Spark: planning a batch makes a job, tasks write under it, and commit and abort
know of the job only what the messages say.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from pyspark.sql.streaming.datasource import ReadAllAvailable

from tidelog.aio import SinkLedger
from tidelog.chaos.checkers.spark import Copy, RangeRead
from tidelog.chaos.workloads.sinks import NOTED_S, Driver, TaskAttempt
from tidelog.chaos.workloads.spark_source import Planner, read_range
from tidelog.chaos.workloads.world import World
from tidelog.client.consumer.range_consumer import RANGE_SETTINGS
from tidelog.client.errors import LogTruncationError, OffsetOutOfRangeError, TidelogError
from tidelog.client.sinks import SinkJob, SinkMessage, SinkOutcome
from tidelog.model.ids import TopicPartition
from tidelog.spark_connector.offsets import SourceOffset
from tidelog.spark_connector.options import SourceOptions
from tidelog.spark_connector.reading import RangePartition

INPUTS: Final = "inputs"
INPUT_PARTITIONS: Final = 2
OUTPUTS: Final = "outputs"
OUTPUT_PARTITIONS: Final = 2
CORES: Final = 2
FAILURES_MAX: Final = 4
"""``spark.task.maxFailures``."""
TRIGGERS_S: Final = (0.0, 0.2, 0.6)
"""Pauses before a driver looks for data again; the last one if there was none."""


class Stopped(Exception):
    """The query was stopped, or found another one working on its checkpoint."""


class Checkpoint:
    """A query's directory: text of offsets by batch, and the batches that are done. Outlives every driver."""

    def __init__(self, starting: str) -> None:
        self.starting = starting
        self.offsets: dict[int, str] = {}
        self.commits: dict[int, str] = {}

    def offset(self, batch: int) -> SourceOffset:
        """Return where a batch ends."""
        return SourceOffset.from_json(json.loads(self.offsets[batch]))

    def latest(self) -> tuple[int, int]:
        """Return the last planned batch and the last completed one; -1: none."""
        return max(self.offsets, default=-1), max(self.commits, default=-1)


class Books(Protocol):
    """The scenario as drivers and tasks see it."""

    world: World
    checkpoints: dict[str, Checkpoint]
    reads: list[RangeRead]
    noted_s: dict[str, float]
    calm: bool
    """Nobody dies or fails by its own choice any more."""

    def options(self, query: str, rng: random.Random) -> dict[str, str]: ...

    def start_attempt(self, job: SinkJob, task: int, attempt: int, one: RangePartition) -> RangeTask: ...

    def attempts_of(self, job: SinkJob) -> list[RangeTask]: ...

    def planned(self, query: str, end: Mapping[str, Any]) -> None: ...

    def reached(self, driver: QueryDriver, point: str) -> None: ...

    def asked(self, job: SinkJob) -> None: ...

    def decided(self, job: SinkJob, outcome: SinkOutcome) -> None: ...

    def gone(self, job: SinkJob) -> None: ...


class QueryDriver(Driver):
    """One incarnation of a query's driver."""

    def __init__(self, sink: str, name: str, work: Books) -> None:
        self._work = work
        self.checkpoint: Final = work.checkpoints[sink]
        self._asked_to_stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        super().__init__(sink, name, work.world)

    @property
    def asked_to_stop(self) -> bool:
        return self._asked_to_stop.done()

    def stop_query(self) -> None:
        """Model ``query.stop()``: tasks are ended; a commit in progress is not, but nothing follows it."""
        if not self.asked_to_stop:
            self._asked_to_stop.set_result(None)

    async def _guarded(self) -> None:
        try:
            await super()._guarded()
        except Stopped as why:
            self.world.note(f"{self.name} ends: {why}")
            self.world.events[str(why)] += 1

    async def _run(self) -> None:
        rng, checkpoint = self._rng, self.checkpoint
        options = SourceOptions.of(self._work.options(self.sink, rng), streaming=True)
        settings = {"default_api_timeout_ms": rng.choice((2_000, 6_000)), "request_timeout_ms": 1_000}
        admin = self.process.admin(**settings)
        await admin.start()
        planner = Planner(options, admin, lambda: self.world.now() * 1_000)
        ledger = await self._ledger()
        planned, done = checkpoint.latest()
        batch = done + 1 if planned == done else planned
        if planned > done:
            self.world.events["replayed"] += 1
        while not self.stopping:
            if not await self._batch(planner, ledger, batch):
                await asyncio.sleep(TRIGGERS_S[-1])
                continue
            batch += 1
            await asyncio.sleep(rng.choice(TRIGGERS_S) * (not self._work.calm))
            if not self._work.calm and rng.random() < 0.03:
                raise Stopped("restarted")
        await ledger.close()
        await admin.close()

    async def _batch(self, planner: Planner, ledger: SinkLedger, batch: int) -> bool:
        """Run a batch. Return false if there is nothing to read. Raises errors that end the query."""
        checkpoint = self.checkpoint
        if batch > 0:
            start = json.loads(checkpoint.offsets[batch - 1])
        else:
            start = await planner.call(lambda reader: reader.initialOffset())
        if batch not in checkpoint.offsets:
            limit = ReadAllAvailable() if self._work.calm else planner.reader.getDefaultReadLimit()
            end = await planner.call(lambda reader: reader.latestOffset(start, limit))
            if end == start:
                return False
            await self._point("planned")
            await self._write(checkpoint.offsets, batch, json.dumps(end))
            self._work.planned(self.sink, end)
            await self._point("logged")
        end = json.loads(checkpoint.offsets[batch])
        ranges = await planner.call(lambda reader: reader.partitions(start, end))
        job = ledger.new_job(batch)
        messages = await self._stage(ledger, job, [one for one in ranges if isinstance(one, RangePartition)])
        if batch == 0 and not self._work.calm and self._rng.random() < 0.2:
            raise Stopped("first-batch-left")
        await self._point("written")
        await self._commit(ledger, job, messages)
        await self._point("decided")
        if self.asked_to_stop:
            raise Stopped("stopped-in-commit")
        await self._write(checkpoint.commits, batch, job.job)
        self._work.noted_s[self.sink] = self.world.now()
        await self._point("noted")
        return True

    async def _write(self, log: dict[int, str], batch: int, text: str) -> None:
        """Create a file of a log. Source: ``HDFSMetadataLog.add``, ``concurrentStreamLogUpdate``."""
        await asyncio.sleep(NOTED_S)
        if batch in log:
            raise Stopped("concurrent-update")
        log[batch] = text
        await asyncio.sleep(0)

    async def _commit(self, ledger: SinkLedger, job: SinkJob, messages: Sequence[SinkMessage]) -> None:
        work = self._work
        if not messages:
            return  # no task had anything to read
        work.asked(job)
        await self._point("deciding")
        try:
            outcome = await ledger.commit_batch(messages, batch=job.batch)
        except TidelogError as error:
            self.world.events[f"commit-{type(error).__name__}"] += 1
            await self._abort(ledger, messages)
            raise
        if outcome.already_committed:
            self.world.events["already-committed"] += 1
        work.decided(job, outcome)

    async def _abort(self, ledger: SinkLedger, messages: Sequence[SinkMessage]) -> None:
        """Abort, as Spark does when a batch has failed; a failure of this changes nothing."""
        try:
            outcome = await ledger.abort_job(messages)
        except TidelogError as error:
            self.world.events[f"abort-{type(error).__name__}"] += 1
            return
        if outcome is None:
            return
        if outcome.already_committed:
            self.world.events["decided-before-abort"] += 1
            self._work.decided(messages[0].of, outcome)
        else:
            self.world.events["aborted"] += 1
            self._work.gone(messages[0].of)

    async def _point(self, name: str) -> None:
        """Where the driver may be ended, or held: one of
        :data:`~tidelog.chaos.simulated.faults.fault_plots.DRIVER_POINTS`."""
        self._work.reached(self, name)
        await asyncio.sleep(0)

    # --- tasks ------------------------------------------------------------------------------------------

    async def _stage(self, ledger: SinkLedger, job: SinkJob, ranges: Sequence[RangePartition]) -> list[SinkMessage]:
        """Get every task's rows written. Returns one message of each. Raises the error of the last attempt at a failed
        task."""
        free = asyncio.Semaphore(CORES)
        arrived: list[tuple[int, SinkMessage]] = []
        tasks = [
            asyncio.ensure_future(self._task(job, number, one, free, arrived)) for number, one in enumerate(ranges)
        ]
        if tasks:
            await self._point("begun")
        waiting = {self._asked_to_stop, *tasks}
        while not self.asked_to_stop and not all(task.done() for task in tasks):
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            waiting -= done
            if any(task in done and task.exception() is not None for task in tasks):
                break
        failed = [error for task in tasks if task.done() and (error := task.exception()) is not None]
        messages = one_of_each(arrived)
        if not failed and not self.asked_to_stop:
            return messages
        for task in tasks:
            task.cancel()
        for attempt in self._work.attempts_of(job):
            if self._rng.random() < 0.5:
                attempt.kill()
        await self._abort(ledger, messages)
        if failed:
            raise failed[0]
        raise Stopped("stopped")

    async def _task(
        self,
        job: SinkJob,
        number: int,
        one: RangePartition,
        free: asyncio.Semaphore,
        arrived: list[tuple[int, SinkMessage]],
    ) -> None:
        """Get one task's rows written: return when an attempt has reported success."""
        async with free:
            running: list[RangeTask] = []
            begun = failures = 0
            while True:
                if not running or (len(running) < 2 and begun <= FAILURES_MAX):
                    attempt = self._work.start_attempt(job, number, begun, one)
                    running.append(attempt)
                    attempt.message.add_done_callback(lambda told: _take(number, told.result(), arrived))
                    begun += 1
                    self.world.events["speculative"] += len(running) > 1
                patience_s = self._rng.choice((0.5, 2.0, 6.0)) if len(running) < 2 else None
                told = {attempt.message for attempt in running}
                await asyncio.wait(told, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                if any(isinstance(attempt.told, SinkMessage) for attempt in running):
                    for loser in running:
                        if loser.told is None and self._rng.random() < 0.3:
                            loser.kill()
                    return
                for attempt in [attempt for attempt in running if attempt.told is not None]:
                    running.remove(attempt)
                    failures += 1
                    if failures >= FAILURES_MAX:
                        assert isinstance(attempt.told, Exception)
                        raise attempt.told


def _take(number: int, told: SinkMessage | Exception, arrived: list[tuple[int, SinkMessage]]) -> None:
    if isinstance(told, SinkMessage):
        arrived.append((number, told))


def one_of_each(arrived: Sequence[tuple[int, SinkMessage]]) -> list[SinkMessage]:
    """Return the first message of each task, ignoring later ones."""
    first: dict[int, SinkMessage] = {}
    for number, message in arrived:
        first.setdefault(number, message)
    return [first[number] for number in sorted(first)]


class Lost(TidelogError):
    """The task's executor is gone, or the task failed by itself."""

    abortable = True


class RangeTask(TaskAttempt):
    """One attempt at a task: reads its range, writes what it read, and reports to its driver."""

    def __init__(self, name: str, work: Books, job: SinkJob, attempt: str, one: RangePartition) -> None:
        self._work = work
        self._one = one
        super().__init__(name, work.world, job, attempt)

    @property
    def told(self) -> SinkMessage | Exception | None:
        return self.message.result() if self.message.done() else None

    def kill(self) -> None:
        super().kill()
        self._deliver(Lost(f"{self.name} was killed"))

    async def _run(self) -> None:
        rng, calm = self._rng, self._work.calm
        writer = self._writer()
        try:
            rows = await self._read()
            at = TopicPartition(self._one.topic, self._one.partition)
            self._work.reads.append(RangeRead(self.name, *self.job[:2], at, self._one.start, self._one.end, rows))
            fails = len(rows) if not calm and rng.random() < 0.06 else -1
            for number, (offset, value) in enumerate(rows):
                if number == fails - 1:
                    raise Lost("it fails by itself")
                row = Copy(*self.job, at.partition, offset, value)
                await writer.send(OUTPUTS, row.encoded, partition=rng.randrange(OUTPUT_PARTITIONS))
                if not calm and rng.random() < 0.04:
                    await asyncio.sleep(rng.choice((0.05, 0.5, 3.0, 8.0)))
            message = await writer.prepare()
            if not calm and rng.random() < 0.04:
                self.world.events["message-lost"] += 1
                raise Lost("its executor is gone, with what it has prepared")
            if not calm and rng.random() < 0.03:
                await asyncio.sleep(rng.choice((1.0, 4.0)))
            self._deliver(message)
        except TidelogError as error:
            self.world.events["task-failed"] += 1
            if isinstance(error, OffsetOutOfRangeError | LogTruncationError):
                self.world.violated(f"{self.name}: what it is to read is refused: {error}")
            self._deliver(error)
            if rng.random() < 0.5:
                return  # like a worker that dies: its open transaction stays open
        await writer.close(2.0)

    async def _read(self) -> list[tuple[int, bytes]]:
        consumer = self.process.consumer(
            **RANGE_SETTINGS, request_timeout_ms=self._rng.choice((500, 2_000)), fetch_max_wait_ms=200
        )
        await consumer.start()
        try:
            return await read_range(consumer, self._one)
        finally:
            await consumer.close(1.0)
