"""The workload of sinks: two programs that write numbered batches; their drivers and tasks are killed, pause, and meet
others that do the same work."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from tidelog.aio import Admin
from tidelog.chaos.laboratory.history.history_file import HistoryFile
from tidelog.chaos.laboratory.workloads.client_world import (
    AWAY_S,
    STILL_S,
    Churn,
    LaboratoryWorld,
    Surroundings,
    stopped,
)
from tidelog.chaos.laboratory.workloads.workload import ClientWork
from tidelog.chaos.workloads.incarnation import patiently
from tidelog.chaos.workloads.reading import Reader
from tidelog.chaos.workloads.sinks import BATCHES, PARTITIONS, BatchBooks, BatchDriver, RowsTask
from tidelog.client.sinks import SinkJob
from tidelog.model.sinks import NO_BATCH

SINKS: Final = ("sink0", "sink1")
READERS: Final = ("skr0", "skr1")
DISTURBED: Final = 0.1
"""How often a task is killed or paused while it is working."""
UNDECIDED_S: Final = 0.5
"""How often to ask whether anything is undecided."""


class RecordedBooks(BatchBooks):
    """The answers that drivers got about their batches; written to the history at the end."""

    def __init__(self, surroundings: Surroundings, world: LaboratoryWorld) -> None:
        self._rng = surroundings.rng("sinks-roster")
        super().__init__(world, self._rng, SINKS, lambda sink, name: BatchDriver(sink, name, self))
        self.seed = surroundings.seed
        self.calm = False

    def start_task(self, name: str, job: SinkJob, rows: Sequence[tuple[int, bytes]]) -> RowsTask:
        task = super().start_task(name, job, rows)
        rng = self._rng
        if not self.calm and rng.random() < DISTURBED:
            self.world.at(rng.choice(AWAY_S), lambda: self._disturb(task, rng.choice((0.0, *STILL_S))))
        return task

    def _disturb(self, task: RowsTask, still_s: float) -> None:
        if self.calm or not task.at_work:
            return
        if still_s:
            self.roster.freeze(task, still_s)
        else:
            task.kill()

    def write_down(self, history: HistoryFile, last: Mapping[str, int]) -> None:
        for batch in self.batches():
            history.write(
                "batch",
                sink=batch.sink,
                number=batch.number,
                rows=batch.rows,
                asked=batch.asked,
                told=batch.told,
                aborted=batch.aborted,
            )
        history.write("sinks", noted=self.noted, last=last)


class SinkWork(ClientWork):
    """Two programs, each with its own sink, and two readers of committed data."""

    topics: Mapping[str, int] = {BATCHES: PARTITIONS}

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings, "sinks", rates=len(SINKS))
        self._history = surroundings.history
        self._books = RecordedBooks(surroundings, self.world)
        self._churn = Churn(self.world, self._books.roster, surroundings.rng("sinks-churn"))

    async def begin(self) -> None:
        self._books.roster.begin()
        self.readers += [Reader(name, self.world, self.partitions, committed=True) for name in READERS]
        self._churn.begin()

    def heard(self) -> Mapping[str, int]:
        return {sink: batch - NO_BATCH for sink, batch in self._books.noted.items()}

    def calm(self) -> None:
        self._books.calm = True
        self._churn.calm()

    async def finish(self, bound_s: float) -> None:
        """Wait until nothing is undecided: before that, readers do not see everything that counts."""
        await stopped(self.world, self._books.roster, bound_s)
        process = self.world.process("sinks-described")
        await process.run(self._describe(process.admin(), bound_s))

    async def _describe(self, admin: Admin, bound_s: float) -> None:
        await admin.start()
        deadline = self.world.now() + bound_s
        while True:
            found = await patiently(lambda: admin.describe_sinks(SINKS))
            open_ = [sink for sink, one in found.items() if one.transactions]
            if not open_ or self.world.now() > deadline:
                break
            await asyncio.sleep(UNDECIDED_S)
        if open_:
            self.world.violated(f"{bound_s:g} s after the last driver ended, transactions of {open_} are undecided")
        last = {sink: NO_BATCH if one.last is None else one.last.batch for sink, one in found.items()}
        self._books.write_down(self._history, last)
