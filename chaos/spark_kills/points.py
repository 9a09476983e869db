"""Crash points, as data: at which step of which call what dies, freezes or is lost.

Every step of the sink's protocol, and of reading its source, is a call to a broker. So a step is identified by a call,
by the broker's progress with it, and by the ordinal number of such calls; the connector has no hook.
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
    """By a writer that abandons its transaction."""
    MARKERS = "markers"
    """Not a client's call: the coordinator is about to tell partitions that a transaction is committed."""
    FETCH = "fetch"
    """Of the source, by a task."""


class When(enum.Enum):
    """The broker's progress with a call."""

    BEFORE = "before"
    """It has arrived, and nothing was done."""
    STARTED = "started"
    """Its record is in the broker's own log, and replicated only by chance."""
    RAN = "ran"
    """It is done and replicated; the answer has not been sent."""


class Action(enum.Enum):
    """The actions at a crash point. The driver and worker are those of the process that made the call."""

    KILL_DRIVER = "driver killed"
    """kill -9 for the JVM and the Python program that drives it."""
    KILL_DRIVER_TOLD = "driver killed once it was told"
    """The JVM is stopped, the answer is delivered to the Python process that waits for it, and when that has passed it
    on, unread, all are killed: Spark never receives it."""
    KILL_WORKER = "worker killed"
    """kill -9 for the Python process that made the call."""
    KILL_EXECUTOR = "executor killed"
    """On a cluster: the JVM of the executor whose Python worker made the call."""
    KILL_NODE = "broker killed"
    """Kill the called broker with kill -9; it returns when others have taken its place."""
    FREEZE_DRIVER = "driver frozen"
    """SIGSTOP for the JVM and every Python process of the driver; they thaw when another driver has done everything."""
    ORPHAN_WORKER = "driver killed, its worker frozen"
    """The Python process that made the call is stopped, and the driver is killed with the daemon that would end the
    worker. Thaws as above."""
    ANOTHER_DRIVER = "another driver started"
    """On the same checkpoint; this one is alive."""
    LOSE = "message lost"
    """BEFORE: the call is never processed. Otherwise: its answer is never sent."""
    HOLD = "message held"
    """The call (or its answer) continues when another point releases it, or when another driver has done everything."""
    RELEASE = "what was held goes on"
    """And nothing is held any more."""
    SIGN = "query told"
    """By a file in the directory of signs, named after the batch."""
    CHECK_LOGGED = "batch before is in the commit log"
    """The case fails if the batch before this one is not in Spark's commit log: then the point is not where it claims
    to be."""
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
    """A crash point. ``nth``: the number of the matching call, from 1. ``batch``: of which batch of the query, None for
    any; ``run``: of which of the jobs that began that batch, from 1, None for any. ``times``: at how many calls from
    the ``nth`` on."""

    call: Call
    when: When
    do: tuple[Action, ...]
    batch: int | None = None
    run: int | None = None
    nth: int = 1
    times: int = 1

    @property
    def takes_driver_out(self) -> bool:
        """Return whether another driver must continue from here."""
        return not _OUT.isdisjoint(self.do)

    def __str__(self) -> str:
        which = "" if self.batch is None else f" of batch {self.batch}"
        which += "" if self.run is None else f", run {self.run}"
        nth = "" if self.nth == 1 else f" {self.nth}"
        times = "" if self.times == 1 else f", {self.times} times"
        return f"{self.when.value} {self.call.value}{nth}{which}{times}: {', '.join(one.value for one in self.do)}"
