"""The acts on a cluster and their times, as plain values: the whole schedule is planned from a seed before the run.

A schedule is a list of steps in order of time. A step names its *target* by a role (the leader of a partition, the
active controller …), which is resolved when the step is due; the steps of one episode mean the same node, resolved
once. So a seed plans the same schedule each time, and a schedule can be stored, shortened by hand and run again; its
effects on real processes differ in detail from run to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

ANY: Final = "any"
CONTROLLER: Final = "controller"
LEADER: Final = "leader"
FOLLOWER: Final = "follower"
GROUP: Final = "group"
TRANSACTIONS: Final = "transactions"
ROLES: Final[Mapping[str, str]] = {
    LEADER: "leads a partition of the workload, the number after the colon (leader:2; modulo how many there are)",
    FOLLOWER: "is in sync of such a partition and does not lead it (follower:2)",
    CONTROLLER: "the active controller",
    GROUP: "coordinates the workload's consumer group; where it has none, the leader of partition 0",
    TRANSACTIONS: "coordinates a transactional id of the workload (transactions:1); else as group",
    ANY: "a node by number (any:1; modulo how many there are)",
}
ACTS: Final[Mapping[str, str]] = {
    "kill": "kill -9",
    "start": "start what was killed or has ended",
    "pause": "stop in its tracks (SIGSTOP)",
    "resume": "let go on (SIGCONT)",
    "terminate": "ask to shut down (SIGTERM); start ends the episode",
    "roll": "shut down and start one node after the other, each when the last one is in sync again",
    "kill-all": "kill -9 all at once",
    "start-all": "start whatever does not run",
    "impair": "impair links: options topology, kind and amounts",
    "heal": "heal what this episode has impaired",
    "disk-full": "let so many bytes onto the disk (room), then none",
    "disk-slow": "let calls take longer (write_ms, sync_ms, read_ms)",
    "disk-fails": "let calls of a kind (call: write, sync, read) fail with EIO",
    "disk-stall": "let every call wait until the disk is mended",
    "disk-mend": "make the disk normal again; start nodes that ended because of it",
    "damage": "flip bytes behind a recovery point of a node that does not run (seed: which)",
    "elect": "other preferred leaders, elected at once (turn: by how many replicas the order is turned)",
    "reassign": "so many replicas (copies) of a partition (number), on nodes from turn on, at most throttle bytes/s",
    "assign-back": "replicas where they were, and no throttle",
    "drain": "begin to move all replicas off a node (tidelog brokers drain), at most throttle bytes/s",
    "undrain": "see the drain to its end, then replicas where they were",
    "rotate": "give nodes other keys and certificates (--security), and see that they show them",
    "kill-rack": "kill -9 all nodes of the node's rack at once",
    "clock": "let the wall clock be ahead, or behind (ahead_s)",
    "clock-mend": "let the wall clock be right",
}
ENDS: Final = frozenset({"start", "start-all", "resume", "heal", "disk-mend", "clock-mend", "assign-back", "undrain"})
"""Acts that are no faults: they end one."""
STEPS_MAX: Final = 10_000
SHIMMED: Final = frozenset({"disk-full", "disk-slow", "disk-fails", "disk-stall", "clock"})
"""Acts that require nodes to run with the shim of :mod:`tidelog.chaos.disk`."""


class BadSchedule(ValueError):
    """An invalid schedule; the text says what was expected and found."""


@dataclass(frozen=True, slots=True)
class Step:
    """One act of a schedule. ``options`` are the parameters of the act: see :data:`ACTS`."""

    at_s: float
    episode: int
    act: str
    target: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        more = " ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.at_s:7.2f}  #{self.episode:<3} {' '.join(filter(None, (self.act, self.target, more)))}"

    def as_json(self) -> dict[str, Any]:
        return {
            "at": self.at_s,
            "episode": self.episode,
            "act": self.act,
            "target": self.target,
            "options": dict(self.options),
        }


def steps_of(rows: Iterable[Mapping[str, Any]]) -> list[Step]:
    """Read steps as :meth:`Step.as_json` writes them, ordered by time. Raises :class:`BadSchedule`."""
    steps = []
    for number, row in enumerate(rows):
        if number >= STEPS_MAX:
            raise BadSchedule(f"expected at most {STEPS_MAX} steps, found more")
        try:
            step = Step(
                float(row["at"]), int(row["episode"]), str(row["act"]), str(row["target"]), dict(row["options"])
            )
        except (KeyError, TypeError, ValueError) as trouble:
            raise BadSchedule(f"step {number}: {type(trouble).__name__}: {trouble}") from None
        check(step)
        steps.append(step)
    return sorted(steps, key=lambda step: step.at_s)


def check(step: Step) -> None:
    """Raise :class:`BadSchedule` for an unknown act or role."""
    if step.act not in ACTS:
        raise BadSchedule(f"expected an act of {', '.join(ACTS)}, found {step.act!r}")
    role, _, number = step.target.partition(":")
    if step.target and role not in ROLES:
        raise BadSchedule(f"expected a target of {', '.join(ROLES)}, found {step.target!r}")
    if number and not number.isdecimal():
        raise BadSchedule(f"expected a number behind {role}:, found {number!r}")
    if step.at_s < 0:
        raise BadSchedule(f"expected a time of 0 or later, found {step.at_s}")


def length_s(steps: Sequence[Step]) -> float:
    """Return the time of the last step."""
    return max((step.at_s for step in steps), default=0.0)
