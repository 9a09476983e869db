"""The workload of a pipeline: a Structured Streaming query of a real Spark copies one topic to another; its driver is
killed now and then, and another one goes on from the checkpoint.

A run of the query copies what is there when it begins (``availableNow``) in batches, and is followed by another one.
One that fails, because the cluster was out of reach for too long, is followed by another one too.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidelog.chaos.live.hand import Aims
from tidelog.chaos.live.recording import Appender, Reader
from tidelog.chaos.live.workload import ClientTasks, Stage, finish_sending, partitions_of
from tidelog.cli.cluster_watch import WatchFailed
from tidelog.cli.failure import CommandFailed
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog.chaos.spark.drivers import Driver

SOURCE: Final = "pipe-in"
SINK: Final = "pipe-out"
PARTITIONS: Final = 2
PIPELINE: Final = "pipeline"
KILLS_S: Final = (1.0, 15.0)
"""From the first rows that a driver has copied to its death."""
START_S: Final = 200.0
FIRST_S: Final = 150.0
POLL_S: Final = 0.1
SOURCE_OPTIONS: Final = {"maxOffsetsPerTrigger": "400", "tidelog.request.timeout.ms": "5000"}
SINK_OPTIONS: Final = {"tidelog.request.timeout.ms": "5000"}


class SparkWork:
    """A producer, the pipeline, a reader of what it makes."""

    topics: Mapping[str, int] = {SOURCE: PARTITIONS, SINK: PARTITIONS}
    derived: Mapping[str, str] = {SINK: SOURCE}

    def __init__(self, stage: Stage) -> None:
        from tidelog.chaos.spark.query import Kind, Query
        from tidelog.spark_connector import runtime

        try:
            runtime.prepare()
        except (ImportError, runtime.NoJava) as missing:
            raise CommandFailed(f"the workload spark: {missing}; pip install 'tidelog[spark]'") from None
        places = partitions_of(self.topics)
        self.aims = Aims(places)
        self._history = stage.history
        self._directory = stage.directory
        self._rng = stage.rng("spark")
        self._query = Query(
            Kind.COPY,
            stage.bootstrap,
            SOURCE,
            SINK,
            str(stage.directory / "checkpoint"),
            str(stage.directory),
            SOURCE_OPTIONS,
            SINK_OPTIONS,
        )
        self._tasks = ClientTasks(stage.history)
        source, sink = [[at for at in places if at.topic == topic] for topic in (SOURCE, SINK)]
        self._appender = Appender(
            "sp0", stage.bootstrap, source, stage.history, stage.rng("spark-sp0"), stage.per_s / 2, stage.budget
        )
        self._reader = Reader(
            "sr0", stage.bootstrap, sink, stage.history, stage.rng("spark-sr0"), committed=True, seeks=False
        )
        self._sending: list[asyncio.Task[None]] = []
        self._driver: Driver | None = None
        self._lives = 0
        self._calm = False
        self._all_sent = False
        self._all_copied = asyncio.Event()

    @property
    def _seen(self) -> int:
        """Where the reader of the sink stands, all partitions together."""
        return sum(self._reader.positions.values())

    async def begin(self) -> None:
        """Returns when a driver has copied something: its first query takes a while, on a busy machine above all."""
        try:
            await self._start_driver()
        except WatchFailed as failed:
            raise CommandFailed(f"the workload spark: {failed}") from None
        self._sending.append(self._tasks.start(self._appender.name, self._appender.run()))
        self._tasks.start(self._reader.name, self._reader.run())
        self._tasks.start(PIPELINE, self._run())
        for _ in range(round(FIRST_S / POLL_S)):
            if self._seen:
                break
            await asyncio.sleep(POLL_S)

    def heard(self) -> Mapping[str, int]:
        return {self._appender.name: self._appender.acknowledged, PIPELINE: self._seen}

    def calm(self) -> None:
        self._calm = True

    async def finish(self, bound_s: float) -> None:
        await finish_sending([self._appender], self._sending, bound_s)
        self._all_sent = True
        try:
            await asyncio.wait_for(self._all_copied.wait(), 3 * bound_s)  # a driver may have to start first
        except TimeoutError:
            self._history.wrong(
                f"{3 * bound_s:g} s after everything was mended the pipeline has not copied all there is"
            )

    def behind(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        return [] if self._reader.is_at(ends) else [self._reader.name]

    async def close(self) -> None:
        await self._tasks.end()
        if self._driver is not None:
            await asyncio.to_thread(self._driver.end)
        await self._reader.close()
        await self._appender.abandon()

    async def _start_driver(self) -> Driver:
        from tidelog.chaos.spark.drivers import Driver

        self._lives += 1
        # From this thread, which lives as long as the workload does: the driver is tied to it.
        leash = (sys.executable, "-P", "-m", "tidelog.chaos.live.leash", str(os.getpid()))
        self._driver = driver = Driver(self._directory, f"driver-{self._lives}", leash)
        await asyncio.to_thread(driver.wait_ready, START_S)
        return driver

    async def _run(self) -> None:
        """One driver after the other, until one has copied everything."""
        while self._driver is not None and not self._all_copied.is_set():
            try:
                await self._run_queries(self._driver)
            except (WatchFailed, BrokenPipeError) as failed:
                self._history.note(f"{self._driver.name}: {failed}")
            await asyncio.to_thread(self._driver.end)
            if not self._all_copied.is_set():
                await self._start_driver()

    async def _run_queries(self, driver: Driver) -> None:
        """Until the driver is killed or has ended by itself, or everything is copied."""
        before, killed_at_s = self._seen, math.inf
        self._history.note(f"{driver.name} begins")
        while not (driver.dead or self._all_copied.is_set()):
            last = self._all_sent
            driver.run(self._query)
            while not driver.ended:
                await asyncio.sleep(POLL_S)
                if self._seen > before and killed_at_s == math.inf:
                    killed_at_s = self._history.now() + self._rng.uniform(*KILLS_S)
                if self._history.now() > killed_at_s and not (self._calm or driver.dead):
                    self._history.note(f"{driver.name} is killed")
                    driver.kill()
            if driver.error is not None and not driver.dead:
                self._history.note(f"{driver.name}: {driver.error[:500]}")
                await asyncio.sleep(POLL_S)
            elif last and not driver.dead:
                self._all_copied.set()
