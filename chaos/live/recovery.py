"""How long recovery took, as a history shows it: until records were acknowledged again, until there was another
controller, until every copy was in sync."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from tidelog.chaos.checkers.history import Outcome
from tidelog.chaos.live.history_file import Recorded
from tidelog.chaos.live.schedule import ENDS
from tidelog.model.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a fault cost those partitions whose leader it hit: from the fault to the next acknowledgement of a record
    that was sent after it, in seconds; ``None`` where none came any more."""

    act: str
    target: str
    at_s: float
    worst_s: float | None
    episode: int = 0
    nodes: tuple[int, ...] = ()
    controlled: bool = False
    """Whether it hit the active controller as well."""


@dataclass(frozen=True, slots=True)
class Wait:
    """From ``at_s`` on the cluster did without something for ``waited_s`` seconds, in the wake of an episode."""

    episode: int
    at_s: float
    waited_s: float


def recoveries(recorded: Recorded) -> list[Recovery]:
    """How long those who sent to partitions that a fault hit had to wait."""
    began: dict[TopicPartition, list[tuple[float, float]]] = {}
    for sent in recorded.history.sends:
        if sent.outcome is Outcome.OK:
            began.setdefault(sent.partition, []).append((sent.began_s, sent.ended_s))
    for sends in began.values():
        sends.sort()
    found = []
    for fault in recorded.faults:
        if fault["act"] in ENDS or fault["trouble"] or not fault["leads"]:
            continue
        waits: list[float] = []
        lost = False
        for topic, partition in fault["leads"]:
            sends = began.get(TopicPartition(topic, partition), [])
            after = sends[bisect_left(sends, (fault["at"], 0.0)) :]
            if after:
                waits.append(min(ended for _, ended in after) - fault["at"])
            lost = lost or not after
        worst_s = None if lost else max(waits)
        nodes, controlled = tuple(fault["nodes"]), bool(fault["controls"])
        found.append(Recovery(fault["act"], fault["target"], fault["at"], worst_s, fault["episode"], nodes, controlled))
    return found


def elections(recorded: Recorded) -> list[Wait]:
    """How long the cluster was without a controller after each kill of the active one, by what the nodes logged."""
    found = []
    for fault in recorded.faults:
        if fault["act"] == "kill" and fault["controls"] and not fault["trouble"]:
            after = [one["at"] for one in recorded.elections if one["at"] > fault["at"]]
            if after:
                found.append(Wait(fault["episode"], fault["at"], min(after) - fault["at"]))
    return found


def wholes(recorded: Recorded) -> list[Wait]:
    """How long copies took to be in sync again after each episode, as precise as the cluster was asked, where the
    next fault did not come before."""
    copies = min(3, recorded.run["nodes"])
    standings = [(row["at"], _whole(row, copies)) for row in recorded.standings]
    ends = {fault["episode"]: fault["until"] for fault in recorded.faults}
    found = []
    for episode, end in ends.items():
        following = [fault["at"] for fault in recorded.faults if fault["at"] > end]
        before = [whole for at, whole in standings if at <= end]
        after = [at for at, whole in standings if at > end and whole]
        if before and not before[-1] and after and after[0] <= min(following, default=after[0]):
            found.append(Wait(episode, end, after[0] - end))
    return found


def _whole(row: Any, copies: int) -> bool:
    return row["controller"] >= 0 and all(len(isr) == copies for *_, isr in row["partitions"])
