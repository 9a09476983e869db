"""Recovery times in a history: until records were acknowledged again, until there was another controller, until every
replica was in sync."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final, NamedTuple

from tidelog.chaos.checkers.history import Outcome
from tidelog.chaos.laboratory.faults.schedule import ENDS
from tidelog.chaos.laboratory.history.history_file import Recorded
from tidelog.model.ids import TopicPartition

STEADY_S: Final = 2.0
STEADY_SENDS: Final = 5
"""A partition that got this many records in the seconds before a fault counts as steadily written."""
SOON_S: Final = 2.0
"""The effects of a fault appear within this time of its end: a killed node is noticed when its session expires."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """A fault's cost for the partitions whose leader it hit: seconds from the fault to the next acknowledgement of a
    record that was sent after it; ``None`` if none came."""

    act: str
    target: str
    at_s: float
    worst_s: float | None
    episode: int = 0
    nodes: tuple[int, ...] = ()
    controlled: bool = False
    """Whether it hit the active controller as well."""
    steady: int = 0
    """How many of those partitions received records steadily before: for others the wait includes that of their
    senders."""
    steady_s: float | None = None
    """Like ``worst_s``, but only for steady partitions and records outside transactions."""
    transacted: int = 0
    """How many were steadily written within transactions. A producer with an open one must end it before the next
    record."""
    transacted_s: float | None = None
    """Like ``worst_s``, for those and for records within transactions."""


@dataclass(frozen=True, slots=True)
class Wait:
    """After an episode, from ``at_s`` on, the cluster lacked something for ``waited_s`` seconds."""

    episode: int
    at_s: float
    waited_s: float | None
    """``None`` if it did not come any more."""
    cut_short: bool = False
    """Something else happened before it came."""


def recoveries(recorded: Recorded) -> list[Recovery]:
    """Return how long producers of the affected partitions had to wait."""
    plain, transacted = _sends(recorded, within=False), _sends(recorded, within=True)
    found = []
    for fault in recorded.faults:
        if fault["act"] in ENDS or fault["trouble"] or not fault["leads"]:
            continue
        at = fault["at"]
        led = [TopicPartition(topic, partition) for topic, partition in fault["leads"]]
        waits = [min(_wait(plain.get(each, []), at), _wait(transacted.get(each, []), at)) for each in led]
        steady, inside = (
            [_wait(sends[each], at) for each in led if _is_steady(sends.get(each, []), at)]
            for sends in (plain, transacted)
        )
        found.append(
            Recovery(
                fault["act"],
                fault["target"],
                at,
                _worst(waits),
                fault["episode"],
                tuple(fault["nodes"]),
                bool(fault["controls"]),
                len(steady),
                _worst(steady),
                len(inside),
                _worst(inside),
            )
        )
    return found


Sends = list[tuple[float, float]]
"""Send and acknowledgement times of acknowledged records, in order of the former."""


def _sends(recorded: Recorded, *, within: bool) -> dict[TopicPartition, Sends]:
    """Return the sends within transactions, or those outside."""
    found: dict[TopicPartition, Sends] = {}
    for sent in recorded.history.sends:
        if sent.outcome is Outcome.OK and (sent.transaction is not None) is within:
            found.setdefault(sent.partition, []).append((sent.began_s, sent.ended_s))
    for sends in found.values():
        sends.sort()
    return found


def _wait(sends: Sends, at_s: float) -> float:
    return min((ended for _, ended in sends[bisect_left(sends, (at_s, 0.0)) :]), default=inf) - at_s


def _is_steady(sends: Sends, at_s: float) -> bool:
    return bisect_left(sends, (at_s, 0.0)) - bisect_left(sends, (at_s - STEADY_S, 0.0)) >= STEADY_SENDS


class Elected(NamedTuple):
    """A node became the active controller."""

    at_s: float
    node: int
    epoch: int


def elected(recorded: Recorded) -> list[Elected]:
    """Return each active controller, and when it became active, by the nodes' logs, which carry the machine's time even
    if the laboratory shifts their clocks."""
    return sorted(Elected(row["at"], int(row["node"]), int(row["epoch"])) for row in recorded.elections)


def elections(recorded: Recorded) -> list[Wait]:
    """Return how long the cluster was without a controller after each kill of the active one."""
    found = []
    elected_at = [one.at_s for one in elected(recorded)]
    for fault in recorded.faults:
        if fault["act"] == "kill" and fault["controls"] and not fault["trouble"]:
            after = [at for at in elected_at if at > fault["at"]]
            if after:
                found.append(Wait(fault["episode"], fault["at"], min(after) - fault["at"]))
    return found


def whole_at(recorded: Recorded, at_s: float) -> bool:
    """Return whether the cluster was whole at a time, as far as it had been asked: a controller, and every replica in
    sync."""
    copies = min(3, recorded.run["nodes"])
    before = [row for row in recorded.standings if row["at"] <= at_s]
    return bool(before) and _whole(before[-1], copies)


def wholes(recorded: Recorded) -> list[Wait]:
    """Return how long replicas took to be in sync again after each episode, as precisely as the cluster was polled; if
    the next fault came first, the time until then (``cut_short``)."""
    copies = min(3, recorded.run["nodes"])
    standings = [(row["at"], _whole(row, copies)) for row in recorded.standings]
    ends = {fault["episode"]: fault["until"] for fault in recorded.faults}
    found = []
    for episode, end in ends.items():
        following = min((fault["at"] for fault in recorded.faults if fault["at"] > end), default=inf)
        before = [whole for at, whole in standings if at <= end]
        begins = [end] if before and not before[-1] else [
            at for at, whole in standings if end < at <= min(end + SOON_S, following) and not whole
        ]  # fmt: skip
        if not begins or not before:
            continue
        after = [at for at, whole in standings if at > begins[0] and whole]
        if after and after[0] <= following:
            found.append(Wait(episode, end, after[0] - end))
        elif following < inf:
            found.append(Wait(episode, end, following - end, cut_short=True))
        else:
            found.append(Wait(episode, end, None))
    return found


def _worst(waits: list[float]) -> float | None:
    return max(waits) if waits and max(waits) < inf else None


def _whole(row: Mapping[str, Any], copies: int) -> bool:
    return row["controller"] >= 0 and all(len(isr) == copies for *_, isr in row["partitions"])
