"""Crash points, as data: at which step of which call what dies, freezes or is lost.

Every step of the sink's protocol, and of reading its source, is a call to a broker. So a step is named by a
call, by how far the broker is with it, and by the how-manieth such call it is; there is no hook in the connector.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Call(enum.Enum):
    """The kinds of calls to a broker."""

    BEGIN = "begin"
    PRODUCE = "produce"
    PREPARE = "prepare"
    COMMIT = "commit"
    ABORT = "abort"
    END = "end"
    """By a writer that gives its transaction up."""
    MARKERS = "markers"
    """Not asked by anybody: the coordinator, about to tell partitions of a transaction that it has committed."""
    FETCH = "fetch"
    """Of the source, by a task."""


class When(enum.Enum):
    """How far the broker is with a call."""

    BEFORE = "before"
    """It has arrived, nothing was done."""
    STARTED = "started"
    """Its record is in the broker's own log, and replicated at best by chance."""
    RAN = "ran"
    """It is done, and replicated; the answer has not left."""


class Action(enum.Enum):
    """The acts at a crash point. The driver and worker are those of the process that made the call."""

    KILL_DRIVER = "driver killed"
    """kill -9 of the JVM and of the Python program that drives it."""
    KILL_DRIVER_TOLD = "driver killed once it was told"
    """The JVM is stopped, the answer is delivered to the Python process that waits for it, and when that has passed it
    on, unread, all are killed: Spark never hears of it."""
    KILL_WORKER = "worker killed"
    """kill -9 of the Python process that made the call."""
    KILL_EXECUTOR = "executor killed"
    """On a cluster: the JVM of the executor whose Python worker made the call."""
    KILL_NODE = "broker killed"
    """Kill the called broker, as kill -9 does; it comes back when others have taken its place."""
    FREEZE_DRIVER = "driver frozen"
    """SIGSTOP for the JVM and every Python process of the driver; they thaw when another has done everything."""
    ORPHAN_WORKER = "driver killed, its worker frozen"
    """The Python process that made the call is stopped, what would end it is killed with the driver. Thaws as above."""
    ANOTHER_DRIVER = "another driver started"
    """On the same checkpoint; this one is alive."""
    LOSE = "message lost"
    """BEFORE: the call is never looked at. Else: its answer never leaves."""
    HOLD = "message held"
    """The call (its answer) goes on when another point releases it, or when another driver has done everything."""
    RELEASE = "what was held goes on"
    SIGN = "query told"
    """By a file in the directory of signs, named by the batch."""
    CHECK_LOGGED = "batch before is in the commit log"
    """The case fails if the batch before this one is not in Spark's commit log: the point is not where it says."""
    CHECK_UNLOGGED = "batch is not in the commit log"


_OUT = frozenset(
    (
        Action.KILL_DRIVER,
        Action.KILL_DRIVER_TOLD,
        Action.FREEZE_DRIVER,
        Action.ORPHAN_WORKER,
        Action.ANOTHER_DRIVER,
    )
)


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """``nth``: the how-manieth call that fits, from 1. ``batch``: of which batch of the query, None for any; ``run``:
    of which of the jobs that began that batch, from 1, None for any. ``times``: at how many calls from the ``nth`` on.
    """

    call: Call
    when: When
    do: tuple[Action, ...]
    batch: int | None = None
    run: int | None = None
    nth: int = 1
    times: int = 1

    @property
    def takes_driver_out(self) -> bool:
        """Whether another driver has to go on from here."""
        return not _OUT.isdisjoint(self.do)

    def __str__(self) -> str:
        which = "" if self.batch is None else f" of batch {self.batch}"
        which += "" if self.run is None else f", run {self.run}"
        nth = "" if self.nth == 1 else f" {self.nth}"
        times = "" if self.times == 1 else f", {self.times} times"
        return f"{self.when.value} {self.call.value}{nth}{which}{times}: {', '.join(one.value for one in self.do)}"
