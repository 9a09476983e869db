"""The workload of a pipeline: a Structured Streaming query of a real Spark copies one topic to another; its driver is
killed now and then, and another one continues from the checkpoint.

A run of the query copies the records that exist at its start (``availableNow``) in batches; another run follows it,
also after a failure because the cluster was unreachable for too long.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidelog.chaos.laboratory.workloads.client_world import Surroundings
from tidelog.chaos.laboratory.workloads.workload import ClientWork
from tidelog.chaos.workloads.reading import Reader
from tidelog.chaos.workloads.world import partitions_of
from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.watch import WatchFailed

if TYPE_CHECKING:
    from tidelog.chaos.spark_kills.drivers import Driver

SOURCE: Final = "pipe-in"
SINK: Final = "pipe-out"
PARTITIONS: Final = 2
PIPELINE: Final = "pipeline"
KILLS_S: Final = (1.0, 15.0)
"""From the first rows that a driver has copied to its kill."""
START_S: Final = 200.0
FIRST_S: Final = 150.0
POLL_S: Final = 0.1
SOURCE_OPTIONS: Final = {"maxOffsetsPerTrigger": "400", "tidelog.request.timeout.ms": "5000"}
SINK_OPTIONS: Final = {"tidelog.request.timeout.ms": "5000"}


class SparkWork(ClientWork):
    """A producer, the pipeline, a reader of its output."""

    topics: Mapping[str, int] = {SOURCE: PARTITIONS, SINK: PARTITIONS}
    derived: Mapping[str, str] = {SINK: SOURCE}

    def __init__(self, surroundings: Surroundings) -> None:
        from tidelog.chaos.spark_kills.query import Kind, Query
        from tidelog.spark_connector import runtime

        try:
            runtime.prepare()
        except (ImportError, runtime.NoJava) as missing:
            raise CommandFailed(f"the workload spark: {missing}; pip install 'tidelog[spark]'") from None
        super().__init__(surroundings, "spark", ("sp0",), to=SOURCE, rates=2)
        self._history = surroundings.history
        self._directory = surroundings.directory
        self._rng = surroundings.rng("spark")
        security = {f"tidelog.{name.replace('_', '.')}": str(value) for name, value in surroundings.security.items()}
        self._query = Query(
            Kind.COPY,
            surroundings.bootstrap,
            SOURCE,
            SINK,
            str(surroundings.directory / "checkpoint"),
            str(surroundings.directory),
            {**SOURCE_OPTIONS, **security},
            {**SINK_OPTIONS, **security},
        )
        self._driver: Driver | None = None
        self._drivers = 0
        self._calm = False
        self._all_sent = False
        self._all_copied = asyncio.Event()

    @property
    def _seen(self) -> int:
        """Return the position of the sink's reader, all partitions together."""
        return sum(sum(reader.positions.values()) for reader in self.readers)

    async def begin(self) -> None:
        """Start; return when a driver has copied something: its first query takes a while, above all on a busy
        machine."""
        try:
            await self._start_driver()
        except WatchFailed as failed:
            raise CommandFailed(f"the workload spark: {failed}") from None
        await super().begin()
        sink = partitions_of({SINK: PARTITIONS})
        self.readers.append(Reader("sr0", self.world, sink, committed=True))
        self.world.process(PIPELINE).run(self._run())
        for _ in range(round(FIRST_S / POLL_S)):
            if self._seen:
                break
            await asyncio.sleep(POLL_S)

    def heard(self) -> Mapping[str, int]:
        return {**super().heard(), PIPELINE: self._seen}

    def calm(self) -> None:
        self._calm = True

    async def finish(self, bound_s: float) -> None:
        await super().finish(bound_s)
        self._all_sent = True
        try:
            await asyncio.wait_for(self._all_copied.wait(), 3 * bound_s)  # a driver may have to start first
        except TimeoutError:
            self._history.wrong(
                f"{3 * bound_s:g} s after everything was mended the pipeline has not copied all there is"
            )

    async def close(self) -> None:
        await super().close()
        if self._driver is not None:
            await asyncio.to_thread(self._driver.end)

    async def _start_driver(self) -> Driver:
        from tidelog.chaos.spark_kills.drivers import Driver

        self._drivers += 1
        # From this thread, which lives as long as the workload: the driver is tied to it.
        launcher = (sys.executable, "-P", "-m", "tidelog.chaos.laboratory.processes.parent_death", str(os.getpid()))
        self._driver = driver = Driver(self._directory, f"driver-{self._drivers}", launcher)
        await asyncio.to_thread(driver.wait_ready, START_S)
        return driver

    async def _run(self) -> None:
        """Run one driver after the other, until one has copied everything."""
        while self._driver is not None and not self._all_copied.is_set():
            try:
                await self._run_queries(self._driver)
            except (WatchFailed, BrokenPipeError) as failed:
                self._history.note(f"{self._driver.name}: {failed}")
            await asyncio.to_thread(self._driver.end)
            if not self._all_copied.is_set():
                await self._start_driver()

    async def _run_queries(self, driver: Driver) -> None:
        """Run queries until the driver is killed or has ended by itself, or everything is copied."""
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
