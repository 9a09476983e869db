"""One case of the kill matrix, from its topics to its verdict."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tidelog.chaos.spark_kills import checkpoints
from tidelog.chaos.spark_kills.cases import SINK_OPTIONS, SOURCE_OPTIONS, Case
from tidelog.chaos.spark_kills.drivers import Driver, DriverPool
from tidelog.chaos.spark_kills.judge import judge
from tidelog.chaos.spark_kills.points import Call
from tidelog.chaos.spark_kills.query import Query
from tidelog.chaos.spark_kills.readers import Watcher, read_all, settled_ends
from tidelog.chaos.spark_kills.rows import PARTITIONS, expected, source_rows
from tidelog.chaos.spark_kills.stage import ALREADY, OK, KillStage, Seen
from tidelog.chaos.spark_kills.staged_cluster import StagedCluster
from tidelog.cli.local.watch import WatchFailed, wait_until
from tidelog.client.background import BackgroundLoop
from tidelog.client.errors import TidelogError
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition

SINK_PARTITIONS: Final = 3
SOURCE_BATCH_BYTES: Final = 1024
"""Small, so that a task needs several fetches if each may fetch little."""
CASE_TIMEOUT_S: Final = 120.0
"""Bound for the queries of a case to end, including restarts, but without the time to start Spark. A case that takes
longer has failed."""
THAWED_TIMEOUT_S: Final = 30.0
"""Bound for frozen processes to end, or to send requests, after the thaw."""
RUNS_MAX: Final = 8
TRIES: Final = 5
_POLL_S: Final = 0.01
_RETRIABLE: Final = frozenset(
    ("COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "CONCURRENT_TRANSACTIONS")
)
"""Errors that are retried; any other error of a sink's call is a refusal."""


@dataclass(slots=True)
class CaseResult:
    """The result of a case: ``faults`` is empty if all is well."""

    name: str
    faults: list[str]
    seconds: float
    runs: int = 0
    """How often the query was started."""
    batches: int = 0
    rows: int = 0
    attempts: int = 0
    """Transactions that writers began."""
    losers: int = 0
    already: int = 0
    refused: int = 0
    errors: list[str] = field(default_factory=list)
    """The errors that ended runs of the query, in Spark's words."""


class KillRun:
    """Runs cases on one cluster, with drivers from one pool. ``patience`` multiplies time bounds."""

    def __init__(
        self,
        cluster: StagedCluster,
        loop: BackgroundLoop,
        pool: DriverPool,
        directory: Path,
        *,
        patience: float = 1.0,
    ) -> None:
        self._patience = patience
        self._cluster = cluster
        self._loop = loop
        self._pool = pool
        self._directory = directory

    def run(self, case: Case) -> CaseResult:
        """Run one case and judge it. The result contains all errors."""
        started = time.monotonic()
        result = CaseResult(case.name, [], 0.0)
        one = _Course(case, self._cluster, self._loop, self._pool, self._directory / case.name, result, self._patience)
        try:
            one.run()
        except (WatchFailed, TimeoutError) as failed:
            result.faults.append(str(failed))
        finally:
            one.close()
        try:
            self._loop.run(self._cluster.whole())
        except TimeoutError as broken:
            result.faults.append(str(broken))
        result.faults += one.stage.faults + self._cluster.faults
        self._cluster.faults.clear()
        result.seconds = time.monotonic() - started
        return result


class _Course:
    """One case in progress."""

    def __init__(
        self,
        case: Case,
        cluster: StagedCluster,
        loop: BackgroundLoop,
        pool: DriverPool,
        directory: Path,
        result: CaseResult,
        patience: float,
    ) -> None:
        self._patience = patience
        self._waited_s = 0.0
        """Time spent waiting for Sparks to start."""
        self.case = case
        self.result = result
        self._cluster = cluster
        self._loop = loop
        self._pool = pool
        self._checkpoint = directory / "checkpoint"
        directory.mkdir(parents=True, exist_ok=True)
        self._query = Query(
            case.kind,
            cluster.bootstrap,
            f"{case.name}-source",
            f"{case.name}-sink",
            str(self._checkpoint),
            str(directory),
            {**SOURCE_OPTIONS, **case.source},
            {**SINK_OPTIONS, **case.sink},
        )
        self._sink = [TopicPartition(self._query.sink_topic, number) for number in range(SINK_PARTITIONS)]
        self._drivers: list[Driver] = []
        self._watcher: Watcher | None = None
        self.stage = KillStage(case.points, directory, cluster.kill_for_a_while)

    def run(self) -> None:
        """Run the queries. Raises :class:`WatchFailed`, ``TimeoutError``."""
        self._make_topics()
        self._watcher = Watcher(self._cluster.bootstrap, self._sink)
        self._cluster.stage = self.stage
        deadline = time.monotonic() + CASE_TIMEOUT_S * self._patience
        laggards = self._to_the_end(deadline)
        self._loop.call(self.stage.release)
        for laggard in laggards:
            self._come_back(laggard)
        self._loop.run(self._cluster.whole())
        self._judge()

    def close(self) -> None:
        """Remove everything of the case."""
        if self._watcher is not None:
            self._watcher.close()
        self._cluster.stage = None
        self._loop.run(self.stage.end())
        for driver in self._drivers:
            if not driver.ended or driver.frozen:
                driver.end()
            self._pool.give_back(driver)

    # --- queries ------------------------------------------------------------------------------------

    def _make_topics(self) -> None:
        from tidelog import Producer

        query = self._query
        self._make_topic(query.source_topic, PARTITIONS, {"retention.ms": "-1"})  # rows have old timestamps
        self._make_topic(query.sink_topic, SINK_PARTITIONS, {})
        with Producer(query.bootstrap, batch_size=SOURCE_BATCH_BYTES, linger_ms=0) as producer:
            for row in source_rows():
                producer.send(
                    query.source_topic, row.value, row.key, partition=row.partition, timestamp_ms=row.timestamp_ms
                )
            producer.flush()
        topic = self._cluster.image.topic(query.source_topic)
        assert topic is not None
        self.stage.source = topic.topic_id

    def _make_topic(self, name: str, partitions: int, config: dict[str, str]) -> None:
        """Create a topic, even if the controller moves and the outcome is unknown. Raises :class:`WatchFailed`."""
        for _ in range(TRIES):
            try:
                return self._loop.run(self._cluster.create_topic(name, partitions, config=config))
            except TidelogError as error:
                if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                    for number in range(partitions):
                        self._loop.run(self._cluster.wait_for_leader(name, number))
                    return None
                if not error.retriable:
                    raise
            self._loop.run(self._cluster.wait_for_controller())
        raise WatchFailed(f"topic {name} could not be made in {TRIES} tries")

    def _to_the_end(self, deadline: float) -> list[Driver]:
        """Let drivers run the query, one after the other dies, until it is complete; return those that were replaced
        but are not dead."""
        running = [self._start() for _ in range(2 if self.case.together else 1)]
        laggards: list[Driver] = []
        done = False
        while running:
            if time.monotonic() > deadline + self._waited_s:
                raise WatchFailed(
                    f"the query did not come to its end within {CASE_TIMEOUT_S * self._patience:g} s and "
                    f"{self.result.runs} starts: {self.result.errors[-1:] or 'it runs'}"
                )
            for driver in list(running):
                if driver in self.stage.out:
                    running.remove(driver)
                    self.stage.out.remove(driver)
                    laggards.append(driver)
                    running.append(self._start(again=True))
                elif driver.ended and not driver.dead:
                    running.remove(driver)
                    if driver.error is None:
                        done = True
                    else:
                        self.result.errors.append(driver.error)
                        if not (done and self.case.together):
                            running.append(self._start(driver, again=True))
            time.sleep(_POLL_S)
        return laggards

    def _start(self, driver: Driver | None = None, *, again: bool = False) -> Driver:
        self.result.runs += 1
        if self.result.runs > RUNS_MAX:
            raise WatchFailed(f"the query was started {RUNS_MAX} times: {self.result.errors[-1:]}")
        if driver is None:
            asked = time.monotonic()
            driver = self._pool.take()
            self._waited_s += time.monotonic() - asked
            self._drivers.append(driver)
            self.stage.drivers.append(driver)
        query = self._query
        if again and self.case.then and not self.stage.unfired():  # a run may end by itself before its crash point
            query = replace(query, source={**query.source, **self.case.then})
        driver.run(query)
        return driver

    def _come_back(self, driver: Driver) -> None:
        """Thaw a driver after another has finished the query, and wait for its end, as far as any of it is left."""
        frozen = bool(driver.frozen)
        since, timeout_s = time.monotonic(), THAWED_TIMEOUT_S * self._patience
        driver.thaw()
        if not driver.dead:
            wait_until(f"{driver.name}, overtaken by another, to end its query", lambda: driver.ended, timeout_s)
            if driver.error is not None:
                self.result.errors.append(driver.error)
        elif frozen and self.case.expect.late:
            wait_until("the frozen worker to speak again", lambda: self._spoke(since), timeout_s)

    def _spoke(self, since: float) -> bool:
        return any(
            one.attempt in self.stage.frozen_attempts and one.at > since and one.outcome
            for one in list(self.stage.seen)
        )

    # --- the verdict --------------------------------------------------------------------------------

    def _judge(self) -> None:
        from tidelog import Admin

        case, result = self.case, self.result
        assert self._watcher is not None
        ends = settled_ends(self._cluster.bootstrap, self._sink)
        watched = self._watcher.finish(ends)
        final = read_all(self._cluster.bootstrap, ends)
        planned = checkpoints.ends(self._checkpoint)
        seen = list(self.stage.seen)
        decided: dict[int, float] = {}
        for one in seen:
            if one.call is Call.COMMIT and one.batch is not None and one.begun is not None:
                decided[one.batch] = min(one.begun, decided.get(one.batch, one.begun))
        result.batches, result.rows = len(planned), len(final)
        result.faults += judge(expected(case.kind, planned), final, watched, decided)
        result.faults += [f"never met: {point}" for point in self.stage.unfired()]
        if (logged := checkpoints.logged(self._checkpoint)) != list(planned):
            result.faults.append(f"batches {list(planned)} were planned, {logged} are in the commit log")
        sinks = {one.sink for one in seen if one.sink}
        with Admin(self._cluster.bootstrap) as admin:
            for name, sink in admin.describe_sinks(sorted(sinks)).items():
                if sink.transactions:
                    result.faults.append(f"the ledger of {name} has transactions left: {sink.transactions}")
        self._count(seen)
        for name, least in (
            ("losers", case.expect.losers), ("already", case.expect.already), ("refused", case.expect.refused)
        ):  # fmt: skip
            if getattr(result, name) < least:
                result.faults.append(f"{name}: expected at least {least}, found {getattr(result, name)}")
        aborts = sum(one.call is Call.ABORT for one in seen)
        if aborts < case.expect.aborts:
            result.faults.append(f"calls to abort: expected at least {case.expect.aborts}, found {aborts}")
        jobs = Counter(batch for batch, _ in {(one.batch, one.job) for one in seen if one.job})
        most = max(jobs.values(), default=0)
        if most < case.expect.jobs:
            result.faults.append(f"jobs of one batch: expected {case.expect.jobs}, found {most}")

    def _count(self, seen: list[Seen]) -> None:
        result = self.result
        wrote = {one.attempt for one in seen if one.call is Call.PRODUCE}
        result.attempts = len({one.attempt for one in seen if one.call is Call.BEGIN and one.outcome == OK})
        result.losers = len(wrote - self.stage.winners)
        result.already = sum(one.outcome == ALREADY for one in seen)
        result.refused = sum(
            one.outcome not in ("", OK, ALREADY) and not _RETRIABLE.issuperset(one.outcome.split(", "))
            for one in seen
            if one.call in (Call.BEGIN, Call.PRODUCE, Call.PREPARE, Call.COMMIT)
        )
