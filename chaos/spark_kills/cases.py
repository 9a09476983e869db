"""The kill matrix, as data: what runs, what dies where, and what must have happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog.chaos.spark_kills.points import Action, Call, CrashPoint, When
from tidelog.chaos.spark_kills.query import Kind

PER_TRIGGER: Final = 240
SOURCE_OPTIONS: Final = {"maxOffsetsPerTrigger": str(PER_TRIGGER), "fetchOffset.retryIntervalMs": "200"}
SINK_OPTIONS: Final = {"tidelog.batch.size": "1024", "tidelog.linger.ms": "0"}
"""Small batches: a task needs some ten requests for its rows, so that writing has a middle."""
SMALL_FETCHES: Final = {"tidelog.max.partition.fetch.bytes": "2000", "tidelog.fetch.max.bytes": "2000"}


@dataclass(frozen=True, slots=True)
class Expect:
    """The minimum numbers of calls; with fewer, the case has not shown what it claims."""

    losers: int = 0
    """Attempts that have written rows, and were not committed."""
    already: int = 0
    """Answers to a writer or a driver that a batch is already decided."""
    refused: int = 0
    """Calls of a sink that were permanently refused: for a superseded job, or a finished transaction."""
    aborts: int = 0
    """Calls to abort a job."""
    jobs: int = 0
    """Jobs that began the same batch."""
    late: bool = False
    """The frozen worker has sent requests again."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case. ``shows``: one line about what is tried. ``then``: the source's options from the second run of the
    query on. ``together``: two drivers begin together. ``clustered``: it needs executors, on a Spark cluster."""

    name: str
    shows: str
    points: tuple[CrashPoint, ...] = ()
    expect: Expect = field(default_factory=Expect)
    kind: Kind = Kind.COPY
    source: Mapping[str, str] = field(default_factory=dict)
    sink: Mapping[str, str] = field(default_factory=dict)
    then: Mapping[str, str] = field(default_factory=dict)
    together: bool = False
    clustered: bool = False

    @property
    def drivers_out(self) -> int:
        """Return how many drivers need a successor."""
        return sum(point.takes_driver_out for point in self.points) + self.together


def _at(call: Call, when: When, *do: Action, batch: int | None = 1, **more: int) -> CrashPoint:
    return CrashPoint(call, when, do, batch, **more)


_DRIVER: Final = (
    Case(
        "driver-writing",
        "driver killed in the middle of writing a batch",
        (_at(Call.PRODUCE, When.STARTED, Action.KILL_DRIVER, nth=4),),
        Expect(losers=1, jobs=2),
    ),
    Case(
        "driver-first-batch",
        "driver killed in the middle of the very first batch",
        (_at(Call.PRODUCE, When.STARTED, Action.KILL_DRIVER, batch=0, nth=4),),
        Expect(losers=1, jobs=2),
    ),
    Case(
        "driver-prepared",
        "driver killed when everything is prepared; its request to commit never arrives",
        (_at(Call.COMMIT, When.BEFORE, Action.KILL_DRIVER, Action.LOSE),),
        Expect(losers=2, jobs=2),
    ),
    Case(
        "driver-one-prepared",
        "driver killed when one task has prepared",
        (_at(Call.PREPARE, When.RAN, Action.KILL_DRIVER),),
        Expect(losers=1, jobs=2),
    ),
    Case(
        "driver-deciding",
        "driver killed while its batch is decided: the decision is not replicated yet",
        (_at(Call.COMMIT, When.STARTED, Action.KILL_DRIVER),),
        Expect(already=1),
    ),
    Case(
        "driver-decided",
        "driver killed after the decision, before the answer",
        (_at(Call.COMMIT, When.RAN, Action.CHECK_UNLOGGED, Action.KILL_DRIVER),),
        Expect(already=1, jobs=2),
    ),
    Case(
        "driver-told",
        "driver killed when it has its answer, before Spark records it",
        (_at(Call.COMMIT, When.RAN, Action.CHECK_UNLOGGED, Action.KILL_DRIVER_TOLD),),
        Expect(already=1, jobs=2),
    ),
    Case(
        "driver-logged",
        "driver killed when Spark has recorded the batch, at the first request of the next one",
        (_at(Call.BEGIN, When.BEFORE, Action.CHECK_LOGGED, Action.KILL_DRIVER, Action.LOSE),),
    ),
    Case(
        "driver-late-commit",
        "driver killed; its request to commit arrives when its successor has begun the batch again",
        (
            _at(Call.COMMIT, When.BEFORE, Action.KILL_DRIVER, Action.HOLD, run=1),
            _at(Call.BEGIN, When.RAN, Action.RELEASE, run=2),
        ),
        Expect(losers=2, refused=1, jobs=2),
    ),
    Case(
        "driver-twice",
        "driver killed after a decision; its successor too, in the middle of the next batch",
        (
            _at(Call.COMMIT, When.RAN, Action.KILL_DRIVER, batch=1),
            _at(Call.PRODUCE, When.STARTED, Action.KILL_DRIVER, batch=2, nth=4),
        ),
        Expect(already=1, losers=1, jobs=2),
    ),
)

_WORKER: Final = (
    Case(
        "worker-writing",
        "Python worker killed in the middle of writing",
        (_at(Call.PRODUCE, When.STARTED, Action.KILL_WORKER, nth=4),),
        Expect(losers=1),
    ),
    Case(
        "worker-prepared",
        "Python worker killed when it has prepared, before it tells its driver",
        (_at(Call.PREPARE, When.RAN, Action.KILL_WORKER),),
        Expect(losers=1),
    ),
    Case(
        "worker-committing",
        "the committing Python process killed after the decision: Spark aborts, the query fails and is restarted",
        (_at(Call.COMMIT, When.RAN, Action.KILL_WORKER),),
        Expect(already=1),
    ),
    Case(
        "worker-late-write",
        "Python worker killed; its last write arrives when its batch is committed",
        (
            _at(Call.PRODUCE, When.BEFORE, Action.KILL_WORKER, Action.HOLD, nth=4),
            _at(Call.COMMIT, When.RAN, Action.RELEASE),
        ),
        Expect(losers=1),
    ),
    Case(
        "worker-late-prepare",
        "Python worker killed; its request to prepare arrives when its batch is committed",
        (
            _at(Call.PREPARE, When.BEFORE, Action.KILL_WORKER, Action.HOLD),
            _at(Call.COMMIT, When.RAN, Action.RELEASE),
        ),
        Expect(losers=1, refused=1),
    ),
)

_ATTEMPTS: Final = (
    Case(
        "task-fails",
        "the first attempts of the tasks of every batch fail when they have written some of their rows",
        (_at(Call.PRODUCE, When.RAN, Action.SIGN, batch=None, times=1_000_000),),
        Expect(losers=2),
        Kind.FAIL_FIRST,
        source={"maxOffsetsPerTrigger": "360"},
    ),
    Case(
        "task-stalls-writing",
        "driver killed, a worker frozen in the middle of writing comes back when others have committed everything",
        (_at(Call.PRODUCE, When.RAN, Action.ORPHAN_WORKER, nth=4),),
        Expect(losers=1, refused=1, jobs=2, late=True),
    ),
    Case(
        "task-stalls-prepared",
        "the same with a worker that has asked to prepare",
        (_at(Call.PREPARE, When.BEFORE, Action.ORPHAN_WORKER, Action.HOLD),),
        Expect(losers=1, refused=1, jobs=2),
    ),
)

_DRIVERS: Final = (
    Case(
        "driver-freezes-writing",
        "driver and workers frozen while they write, thawed when another driver has finished the query",
        (_at(Call.PRODUCE, When.RAN, Action.FREEZE_DRIVER, nth=4),),
        Expect(losers=1, jobs=2),
    ),
    Case(
        "driver-freezes-deciding",
        "driver frozen when it asks to commit, thawed when another has finished the query",
        (_at(Call.COMMIT, When.BEFORE, Action.FREEZE_DRIVER, Action.HOLD),),
        Expect(losers=2, already=1, jobs=2),
    ),
    Case(
        "driver-freezes-decided",
        "driver frozen after the decision, before its answer; thawed when another has finished the query",
        (_at(Call.COMMIT, When.RAN, Action.FREEZE_DRIVER),),
        Expect(already=1, jobs=2),
    ),
    Case(
        "two-drivers",
        "two drivers on one checkpoint at the same time, from the first batch on; the one that fails is restarted",
        (
            # The faster one waits: otherwise it may be done before the other has begun anything.
            _at(Call.BEGIN, When.BEFORE, Action.HOLD, batch=0, run=1, times=1000),
            _at(Call.BEGIN, When.BEFORE, Action.RELEASE, batch=0, run=2),
        ),
        Expect(jobs=2),
        together=True,
    ),
    Case(
        "two-drivers-both-commit",
        "two drivers on one checkpoint: the answer to the first one's commit arrives when the second has finished",
        (_at(Call.COMMIT, When.RAN, Action.ANOTHER_DRIVER, Action.HOLD, run=1),),
        Expect(already=1, jobs=2),
    ),
    Case(
        "two-drivers-overtaken",
        "two drivers on one checkpoint: the first one's request to commit arrives when the second has begun its batch",
        (
            _at(Call.COMMIT, When.BEFORE, Action.ANOTHER_DRIVER, Action.HOLD, run=1),
            _at(Call.BEGIN, When.RAN, Action.RELEASE, run=2),
        ),
        Expect(losers=2, refused=1, jobs=2),
    ),
)

_BROKERS: Final = (
    Case(
        "coordinator-before-append",
        "the coordinator's broker killed when it is asked to commit",
        (_at(Call.COMMIT, When.BEFORE, Action.KILL_NODE, Action.LOSE),),
    ),
    Case(
        "coordinator-appended",
        "the coordinator's broker killed when the decision is in its own log",
        (_at(Call.COMMIT, When.STARTED, Action.KILL_NODE),),
    ),
    Case(
        "coordinator-before-markers",
        "the coordinator's broker killed when the decision is replicated, before any marker",
        (_at(Call.MARKERS, When.BEFORE, Action.KILL_NODE),),
    ),
    Case(
        "coordinator-decided",
        "the coordinator's broker killed when it is about to answer",
        (_at(Call.COMMIT, When.RAN, Action.KILL_NODE, Action.LOSE),),
        Expect(already=1),
    ),
    Case(
        "coordinator-and-driver",
        "the coordinator's broker and the driver killed when the decision is replicated, before any marker",
        (
            _at(Call.COMMIT, When.STARTED, Action.KILL_DRIVER),
            _at(Call.MARKERS, When.BEFORE, Action.KILL_NODE),
        ),
        Expect(already=1),
    ),
    Case(
        "leader-writing",
        "a broker that leads partitions of the sink killed in the middle of writing",
        (_at(Call.PRODUCE, When.STARTED, Action.KILL_NODE, nth=4),),
    ),
    Case(
        "leader-reading",
        "a broker that leads partitions of the source killed in the middle of reading, the answer lost",
        (_at(Call.FETCH, When.RAN, Action.KILL_NODE, Action.LOSE, batch=None, nth=7),),
        source=SMALL_FETCHES,
    ),
)

_OTHERS: Final = (
    Case(
        "other-limits",
        "driver killed in a batch, the checkpoint resumed with other rate limits and more tasks",
        (_at(Call.COMMIT, When.BEFORE, Action.KILL_DRIVER, Action.LOSE),),
        Expect(losers=2, jobs=2),
        then={"maxOffsetsPerTrigger": "130", "minPartitions": "5"},
    ),
    Case(
        "other-limits-decided",
        "driver killed after a decision, the checkpoint resumed without limits",
        (_at(Call.COMMIT, When.RAN, Action.KILL_DRIVER),),
        Expect(already=1, jobs=2),
        then={"maxOffsetsPerTrigger": "100000", "maxRecordsPerPartition": "50"},
    ),
    Case(
        "answer-lost",
        "the answer to a commit is lost, and the driver asks again",
        (_at(Call.COMMIT, When.RAN, Action.LOSE),),
        Expect(already=1),
        sink={"tidelog.request.timeout.ms": "500"},
    ),
    Case(
        "answers-lost-then-abort",
        "every answer to a commit is lost until the driver gives up and aborts; the batch is and remains decided",
        (_at(Call.COMMIT, When.RAN, Action.LOSE, run=1, times=1000),),
        Expect(already=1, aborts=1, jobs=2),
        sink={"tidelog.request.timeout.ms": "400", "tidelog.default.api.timeout.ms": "1500"},
    ),
    Case(
        "requests-lost-then-abort",
        "no request to commit arrives until the driver gives up and aborts; the batch is written again",
        (_at(Call.COMMIT, When.BEFORE, Action.LOSE, run=1, times=1000),),
        Expect(losers=2, aborts=1, jobs=2),
        sink={"tidelog.request.timeout.ms": "400", "tidelog.default.api.timeout.ms": "1500"},
    ),
    Case(
        "counts-complete",
        "a count in Complete mode: driver killed after a decision, and again in the middle of the next batch",
        (
            _at(Call.COMMIT, When.RAN, Action.KILL_DRIVER),
            _at(Call.BEGIN, When.RAN, Action.KILL_DRIVER, batch=2),
        ),
        Expect(already=1, jobs=2),
        Kind.COUNT,
    ),
    Case(
        "counts-append",
        "a count by time in Append mode with a watermark: driver killed before a decision",
        (_at(Call.COMMIT, When.BEFORE, Action.KILL_DRIVER, Action.LOSE),),
        Expect(jobs=2),
        Kind.APPEND_COUNT,
    ),
    Case(
        "foreach-batch",
        "the helper for foreachBatch: driver killed after a decision, and in the middle of writing the next batch",
        (
            _at(Call.COMMIT, When.RAN, Action.CHECK_UNLOGGED, Action.KILL_DRIVER),
            _at(Call.PRODUCE, When.STARTED, Action.KILL_DRIVER, batch=2, nth=4),
        ),
        Expect(already=1, losers=1, jobs=2),
        Kind.FOREACH_BATCH,
    ),
)

_NOT_ASKED_AGAIN: Final = {"tidelog.request.timeout.ms": "90000"}
_EXECUTORS: Final = (
    Case(
        "executor-writing",
        "executor killed in the middle of writing: its task runs again on another",
        (_at(Call.PRODUCE, When.STARTED, Action.KILL_EXECUTOR, nth=4),),
        Expect(losers=1),
        clustered=True,
    ),
    Case(
        "executor-prepared",
        "executor killed when its task has prepared, before it has told the driver",
        (_at(Call.PREPARE, When.RAN, Action.KILL_EXECUTOR),),
        Expect(losers=1),
        clustered=True,
    ),
    Case(
        "executor-twice",
        "executor killed in the middle of writing, and the one that runs its task again when it has prepared",
        (
            _at(Call.PRODUCE, When.STARTED, Action.KILL_EXECUTOR, nth=4),
            _at(Call.PREPARE, When.RAN, Action.KILL_EXECUTOR, nth=2),
        ),
        Expect(losers=2),
        clustered=True,
    ),
    Case(
        "executor-and-driver",
        "executor killed when its task has prepared; driver killed when it learns that the batch is decided",
        (
            _at(Call.PREPARE, When.RAN, Action.KILL_EXECUTOR),
            _at(Call.COMMIT, When.RAN, Action.CHECK_UNLOGGED, Action.KILL_DRIVER),
        ),
        Expect(losers=1, already=1, jobs=2),
        clustered=True,
    ),
    Case(
        "speculation",
        "a task that hangs when it prepares: Spark runs it a second time beside the first, and that one is committed",
        (_at(Call.PREPARE, When.BEFORE, Action.HOLD),),
        Expect(losers=1),
        sink=_NOT_ASKED_AGAIN,
        clustered=True,
    ),
    Case(
        "speculation-late",
        "the same, but the first attempt prepares after all, when the second is committed",
        (
            _at(Call.PREPARE, When.BEFORE, Action.HOLD),
            _at(Call.COMMIT, When.RAN, Action.RELEASE),
        ),
        Expect(losers=1, refused=1),
        sink=_NOT_ASKED_AGAIN,
        clustered=True,
    ),
)
"""On a cluster every batch has two tasks, each in its own executor."""

CASES: Final = {
    case.name: case for case in (*_DRIVER, *_WORKER, *_ATTEMPTS, *_DRIVERS, *_BROKERS, *_OTHERS, *_EXECUTORS)
}
