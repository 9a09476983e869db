"""Queries of a modelled Spark working in a simulated cluster: two of them copy a topic that is written with and without
transactions, while drivers, tasks and nodes die, pause and return."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidelog.chaos.checkers.history import History
from tidelog.chaos.checkers.sinks import Batch, judge_batches
from tidelog.chaos.checkers.spark import Batches, Copy, RangeRead, each_once, only_decided, same_rows
from tidelog.chaos.checkers.transactions import one_decision, only_what_counts, visible
from tidelog.chaos.simulated.workloads.programs import Programs
from tidelog.chaos.simulated.workloads.sink_work import OPEN_S, STABLE_S
from tidelog.chaos.workloads.incarnation import Incarnation
from tidelog.chaos.workloads.reading import Reader
from tidelog.chaos.workloads.spark import (
    INPUT_PARTITIONS,
    INPUTS,
    OUTPUT_PARTITIONS,
    OUTPUTS,
    Checkpoint,
    QueryDriver,
    RangeTask,
)
from tidelog.chaos.workloads.spark_inputs import TIMEOUT_MS, InputWriter
from tidelog.chaos.workloads.world import partitions_of
from tidelog.client.sinks import SinkJob
from tidelog.model.ids import NodeId, TopicPartition
from tidelog.model.sinks import NO_BATCH
from tidelog.proto.calls.api import ListOffsetsRequest
from tidelog.spark_connector.offsets import SourceOffset
from tidelog.spark_connector.reading import RangePartition

if TYPE_CHECKING:
    from tidelog.chaos.simulated.simulation.simulation import Simulation

QUERIES: Final = ("q0", "q1")
TOPICS: Final = {INPUTS: INPUT_PARTITIONS, OUTPUTS: OUTPUT_PARTITIONS}
WRITERS: Final = (None, "source-0", "source-1")
"""Transactional ids of the source's writers; None: one without transactions."""
INPUTS_STABLE_S: Final = TIMEOUT_MS / 1_000 + 2.5


class SparkWork(Programs):
    """The queries of a run, the writers of their source, and a reader of their output."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim, QUERIES, TOPICS, {INPUTS: INPUTS_STABLE_S, OUTPUTS: OPEN_S}, OUTPUTS)
        self.reads: list[RangeRead] = []
        self.calm = False
        """Nobody dies or fails by its own choice any more."""
        chance = random.Random(f"spark-{sim.world.seed}")
        self.checkpoints = {query: Checkpoint(chance.choice(("earliest", "latest"))) for query in QUERIES}
        self._asked_s: dict[tuple[str, int, str], float] = {}
        self._decided: dict[TopicPartition, int] = {}
        """How far each input was decided at its leader, by that leader's latest answer."""
        self._told = History()
        self._armed: dict[str, tuple[str, str, float]] = {}
        self._writers: list[InputWriter] = []
        self._readers: list[Reader] = []
        sim.cluster.fabric.answered.append(self._answered)
        sim.injector.roles["source"] = lambda: sim.cluster.leader_of(INPUTS, 0)
        sim.injector.acts |= {
            "driver-dies-at": lambda number, point, seconds: self._arm(number, point, "dies", seconds),
            "driver-freezes-at": lambda number, point, seconds: self._arm(number, point, "freezes", seconds),
            "driver-stops-at": lambda number, point, seconds: self._arm(number, point, "stops", seconds),
        }

    @property
    def operations(self) -> int:
        return len(self._asked_s)

    def _driver(self, sink: str, name: str) -> QueryDriver:
        return QueryDriver(sink, name, self)

    # --- reports of clients -------------------------------------------------------------------------------

    def options(self, query: str, rng: random.Random) -> dict[str, str]:
        """Return the source's options for one incarnation of a query's driver: the next may have other rates and
        shares."""
        found = {
            "tidelog.bootstrap.servers": self.sim.cluster.bootstrap,
            "subscribe": INPUTS,
            "startingOffsets": self.checkpoints[query].starting,
        }
        for name, values in (
            ("maxOffsetsPerTrigger", (None, "3", "10", "40")),
            ("minOffsetsPerTrigger", (None, None, "3")),
            ("minPartitions", (None, None, "3")),
            ("maxRecordsPerPartition", (None, None, "20")),
        ):
            value = rng.choice(values)
            if value is not None:
                found[name] = value
        return found | {"maxTriggerDelay": "2s"}

    def start_attempt(self, job: SinkJob, task: int, attempt: int, one: RangePartition) -> RangeTask:
        name = self.roster.name_of(f"{job.sink}.{job.batch}.{task}.{attempt}#")
        made = RangeTask(name, self, job, f"task-{task}-attempt-{attempt}", one)
        self.roster.everyone.append(made)
        return made

    def attempts_of(self, job: SinkJob) -> list[RangeTask]:
        """Return the attempts that are working."""
        tasks = [each for each in self.roster.everyone if isinstance(each, RangeTask)]
        return [task for task in tasks if task.job == job and task.at_work]

    def planned(self, query: str, end: Mapping[str, Any]) -> None:
        """Note that a driver has written the end of a batch to the checkpoint."""
        for at, offset in SourceOffset.from_json(end).offsets.items():
            if offset > self._decided.get(at, 0):
                self.sim.world.violated(
                    f"decided ranges: a batch of {query} is to end at {offset} of {at}, which is decided up to "
                    f"{self._decided.get(at, 0)}"
                )

    def asked(self, job: SinkJob) -> None:
        """Note that a driver is about to commit this."""
        self._asked_s.setdefault((job.sink, job.batch, job.job), self.sim.cluster.loop.now)

    def _answered(self, server: str, request: object, response: object, asked_s: float) -> None:
        if not isinstance(request, ListOffsetsRequest):
            return
        node = self.sim.cluster.nodes.get(NodeId(int(server.removeprefix("node"))))
        if node is None or node.broker is None:
            return
        for replica in node.broker.replicas.replicas.values():
            partition = replica.partition
            at = TopicPartition(partition.state.topic, partition.state.partition)
            if at.topic == INPUTS and not partition.offline and not partition.log.closed:
                self._decided[at] = max(self._decided.get(at, 0), partition.last_stable_offset)

    async def begin(self) -> None:
        sim = self.sim
        for topic, count in TOPICS.items():
            await sim.cluster.create_topic(topic, count, sim.replication_factor, sim.setting.topic_config)
        self.watch.begin()
        for slot in range(len(WRITERS)):
            self._write_inputs(slot)
        self.roster.begin()
        outputs = partitions_of({OUTPUTS: OUTPUT_PARTITIONS})
        self._readers.append(Reader("rc0", self.world, outputs, committed=True, history=self._told))

    def _write_inputs(self, slot: int) -> None:
        if self.roster.stopping or self.calm:
            return
        writer = InputWriter(self.roster.name_of(f"w{slot}."), self.world, WRITERS[slot])
        self._writers.append(writer)
        self.world.when_done(writer.task, lambda: self.world.at(0.5, lambda: self._write_inputs(slot)))

    # --- faults -----------------------------------------------------------------------------------------

    def _arm(self, number: int, point: str, how: str, seconds: float) -> bool:
        self._armed[QUERIES[number % len(QUERIES)]] = (point, how, seconds)
        return True

    def reached(self, driver: QueryDriver, point: str) -> None:
        """Note that a driver is at a point of its batch."""
        armed = self._armed.get(driver.sink)
        if armed is None or armed[0] != point or self.calm:
            return
        del self._armed[driver.sink]
        _, how, seconds = armed
        if point != "deciding" or how == "stops":
            self._befall(driver, point, how, seconds)
            return
        late_s = self.roster.rng.choice((0.0, 0.001, 0.003, 0.01))
        self.world.at(late_s, lambda: self._befall(driver, point, how, seconds))

    def _befall(self, driver: QueryDriver, point: str, how: str, seconds: float) -> None:
        if not driver.at_work:
            return
        self.events[f"{how}-{point}"] += 1
        if how == "stops":
            driver.stop_query()
        elif how == "dies":
            self._end(driver, seconds)
        else:
            self.roster.freeze(driver, seconds)
            self.roster.refill(driver.sink, driver, 0.3)  # somebody considers it dead

    # --- the end ----------------------------------------------------------------------------------------

    async def settle(self, bound_s: float) -> None:
        cluster = self.sim.cluster
        self.calm = True
        for writer in self._writers:
            writer.stopping = True
        await self._ended(self._writers, bound_s)
        await cluster.wait_for(lambda: self._stable(INPUTS), "all that is read decided", INPUTS_STABLE_S)
        await cluster.wait_for(self._all_copied, "every query at the end", bound_s)
        self.roster.stop()
        await self._ended(self.roster.everyone, bound_s)
        await self._settle_sinks(STABLE_S)
        ends = {at: high for at, (_, high) in self.watch.marks().items() if at.topic == OUTPUTS}
        await cluster.wait_for(
            lambda: all(reader.is_at(ends) for reader in self._readers),
            "readers of what is committed at the end",
            bound_s,
        )

    async def _ended(self, clients: Sequence[Incarnation], bound_s: float) -> None:
        """Wait until each of them has ended, by itself or killed meanwhile."""

        def left() -> list[str]:
            return [each.name for each in clients if each.at_work]

        try:
            await self.sim.cluster.wait_for(lambda: not left(), "clients ended", bound_s)
        except (TimeoutError, AssertionError) as error:
            raise TimeoutError(f"{error}: {', '.join(left())}") from None

    def _stable(self, topic: str) -> bool:
        marks = [mark for at, mark in self.watch.marks().items() if at.topic == topic]
        return len(marks) == TOPICS[topic] and all(low == high for low, high in marks)

    def _all_copied(self) -> bool:
        """Return whether everything was copied. A writer that was killed may leave a transaction without records, whose
        end marker comes late and lengthens the log: so the end is looked up each time."""
        ends = {at: high for at, (_, high) in self.watch.marks().items() if at.topic == INPUTS}
        return all(self._done(query) == ends for query in QUERIES)

    def _done(self, query: str) -> dict[TopicPartition, int]:
        """Return how far the finished batches go."""
        checkpoint = self.checkpoints[query]
        _, done = checkpoint.latest()
        return {} if done < 0 else dict(checkpoint.offset(done).offsets)

    def judge(self) -> None:
        logs = self.watch.logs(tuple(TOPICS))
        counts = {at: visible(log) for at, log in logs.items()}
        source = {at: rows for at, rows in counts.items() if at.topic == INPUTS}
        outputs = {at: rows for at, rows in counts.items() if at.topic == OUTPUTS}
        copies = [Copy.decoded(value) for rows in outputs.values() for _, value in rows]
        queries = [self._batches(query, at) for query in QUERIES for at in sorted(source)]
        asked = {(sink, batch) for sink, batch, _ in self._asked_s}
        noted = {
            query: max((batch for batch in checkpoint.commits if (query, batch) in asked), default=NO_BATCH)
            for query, checkpoint in self.checkpoints.items()
        }
        found = [
            *one_decision(logs),
            *judge_batches([copy.row.encoded for copy in copies], self._told_of(source, queries), noted, self._last),
            *each_once(source, queries, copies),
            *same_rows(source, self.reads),
            *only_decided(self._told.polls, self._asked_s),
            *only_what_counts([], self._told.polls, outputs, complete=True),
        ]
        for text in found[:20]:
            self.sim.world.violated(text)
        self.events["copied"] += len(copies)

    def _batches(self, query: str, at: TopicPartition) -> Batches:
        checkpoint = self.checkpoints[query]
        planned, _ = checkpoint.latest()
        first = checkpoint.offset(0)
        begin = 0 if first.begin is None else first.begin.offsets[at]
        return Batches(query, at, begin, [checkpoint.offset(batch).offsets[at] for batch in range(planned + 1)])

    def _told_of(self, source: Mapping[TopicPartition, list[tuple[int, bytes]]], queries: list[Batches]) -> list[Batch]:
        """Return what drivers asked for and were told about each batch, and its number of rows."""
        rows: dict[tuple[str, int], int] = {}
        for query in queries:
            for offset, _ in source[query.at]:
                if (number := query.of(offset)) is not None:
                    rows[query.sink, number] = rows.get((query.sink, number), 0) + 1
        asked: dict[tuple[str, int], dict[str, int]] = {}
        for sink, number, job in self._asked_s:
            asked.setdefault((sink, number), {})[job] = rows.get((sink, number), 0)
        return [
            Batch(
                sink,
                number,
                rows.get((sink, number), 0),
                asked.get((sink, number), {}),
                self.told.get((sink, number), []),
                self.aborted.get((sink, number), []),
            )
            for sink, checkpoint in self.checkpoints.items()
            for number in sorted(checkpoint.offsets)
        ]

    async def finish(self) -> None:
        await super().finish()
        for client in (*self._writers, *self._readers):
            if not client.task.done():
                client.kill()

    def failures(self) -> list[tuple[str, BaseException | None]]:
        others = ((client.name, client.failure()) for client in (*self._readers, *self._writers))
        return [*super().failures(), *others]
