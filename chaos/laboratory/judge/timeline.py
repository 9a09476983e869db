"""A history as time series for a report. Pure; times are the history's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tidelog.chaos.checkers.history import Outcome, Polled
from tidelog.chaos.laboratory.faults.schedule import ENDS
from tidelog.chaos.laboratory.history.history_file import Recorded
from tidelog.chaos.laboratory.judge.recovery import Elected, elected

BINS_MAX: Final = 300
WIDTHS_S: Final = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
"""Possible lengths of a bin; a day has at most :data:`BINS_MAX` of the longest."""
PROCESS: Final = "process"
LINKS: Final = "links"
DISK: Final = "disk"
REPLICAS: Final = "replicas"
CLOCK: Final = "clock"
OTHER: Final = "other"
KINDS: Final = (PROCESS, LINKS, DISK, REPLICAS, CLOCK, OTHER)
_KIND: Final[Mapping[str, str]] = {
    **dict.fromkeys(("kill", "pause", "terminate", "roll", "rotate", "kill-all", "kill-rack"), PROCESS),
    **dict.fromkeys(("disk-full", "disk-slow", "disk-fails", "disk-stall", "damage"), DISK),
    **dict.fromkeys(("elect", "reassign", "drain"), REPLICAS),
    "impair": LINKS,
    "clock": CLOCK,
}
_ENDED_BY: Final[Mapping[str, str]] = {
    "kill": "start",
    "terminate": "start",
    "pause": "resume",
    "kill-all": "start-all",
    "kill-rack": "start-all",
    "drain": "undrain",
    "impair": "heal",
    **dict.fromkeys(("disk-full", "disk-slow", "disk-fails", "disk-stall"), "disk-mend"),
    "clock": "clock-mend",
    **dict.fromkeys(("elect", "reassign"), "assign-back"),
}


class Span(NamedTuple):
    """A state that lasted from ``begin_s`` to ``end_s``."""

    begin_s: float
    end_s: float
    label: str


@dataclass(frozen=True, slots=True)
class FaultSpan:
    """A fault from start to undo. ``nodes`` are those that it hit."""

    begin_s: float
    end_s: float
    act: str
    target: str
    nodes: tuple[int, ...]
    options: Mapping[str, Any]
    episode: int
    trouble: str = ""

    @property
    def kind(self) -> str:
        """Return the lane it belongs to, one of :data:`KINDS`."""
        return _KIND.get(self.act, OTHER)

    @property
    def words(self) -> str:
        return " ".join([self.act, *(f"{name}={value}" for name, value in self.options.items())])


class LeaderSpan(NamedTuple):
    """A partition's leader and in-sync replicas during a span. ``leader`` is -1 if there was none."""

    begin_s: float
    end_s: float
    leader: int
    isr: tuple[int, ...]


@dataclass(slots=True)
class Bins:
    """Counts and waits in bins of ``width_s`` from 0 on."""

    width_s: float
    acknowledged: list[int]
    unknown: list[int]
    failed: list[int]
    read: list[int]
    median_s: list[float | None]
    """From the send to its acknowledgement, for records acknowledged in the bin; ``None`` if there were none."""
    p99_s: list[float | None]


@dataclass(slots=True)
class Timeline:
    """All series of a run. ``end_s`` is the time of its last line, as far as lines have times."""

    end_s: float
    bins: Bins
    faults: list[FaultSpan]
    leaders: dict[str, list[LeaderSpan]] = field(default_factory=dict)
    """Topic-partition → its leaders."""
    controller: list[LeaderSpan] = field(default_factory=list)
    elections: list[Elected] = field(default_factory=list)
    stalls: list[Span] = field(default_factory=list)


def timeline(recorded: Recorded) -> Timeline:
    """Return the series of a history."""
    end_s = recorded.last_s()
    leaders, controller = _leaders(recorded.standings, end_s)
    return Timeline(
        end_s,
        _bins(recorded, end_s),
        fault_spans(recorded.faults, end_s),
        leaders,
        controller,
        elected(recorded),
        [Span(row["at"], row["at"] + row["late"], f"stalled for {row['late']:.2f} s") for row in recorded.stalls],
    )


def fault_spans(rows: Sequence[Mapping[str, Any]], end_s: float) -> list[FaultSpan]:
    """Pair each act with the one that undid it, within an episode. An act without a named counterpart ends with the
    first step of the episode that ends none of the others; one that nothing undid ends when it was done."""
    found = []
    for index, row in enumerate(rows):
        if row["act"] in ENDS:
            continue
        later = [other for other in rows[index + 1 :] if other["episode"] == row["episode"] and other["act"] in ENDS]
        ends = {_ENDED_BY[row["act"]]} if row["act"] in _ENDED_BY else ENDS - set(_ENDED_BY.values())
        undone = [other for other in later if other["act"] in ends]
        end = undone[0]["until"] if undone else end_s if row["act"] in _ENDED_BY else row["until"]
        found.append(
            FaultSpan(
                row["at"],
                max(end, row["until"]) if not row["trouble"] else row["until"],
                row["act"],
                row["target"],
                tuple(row["nodes"]),
                row["options"],
                row["episode"],
                row["trouble"],
            )
        )
    return found


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one of the spans lasted."""
    total, reached = 0.0, 0.0
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def quantile(sorted_values: Sequence[float], share: float) -> float:
    """Return the value that a share of the values, sorted and at least one, does not exceed."""
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def _bins(recorded: Recorded, end_s: float) -> Bins:
    width = next((width for width in WIDTHS_S if end_s / width <= BINS_MAX), end_s / BINS_MAX)
    count = int(end_s / width) + 1
    waits: list[list[float]] = [[] for _ in range(count)]
    told = {outcome: [0] * count for outcome in Outcome}
    read = [0] * count
    for sent in recorded.history.sends:
        index = min(count - 1, max(0, int(sent.ended_s / width)))
        told[sent.outcome][index] += 1
        if sent.outcome is Outcome.OK:
            waits[index].append(sent.ended_s - sent.began_s)
    for step in recorded.history.reads:
        if isinstance(step, Polled):
            read[min(count - 1, max(0, int(step.ended_s / width)))] += len(step.records)
    for each in waits:
        each.sort()
    return Bins(
        width,
        told[Outcome.OK],
        told[Outcome.UNKNOWN],
        told[Outcome.FAILED],
        read,
        [quantile(each, 0.5) if each else None for each in waits],
        [quantile(each, 0.99) if each else None for each in waits],
    )


def _leaders(
    standings: Sequence[Mapping[str, Any]], end_s: float
) -> tuple[dict[str, list[LeaderSpan]], list[LeaderSpan]]:
    rows = sorted(standings, key=lambda row: float(row["at"]))
    partitions: dict[str, list[LeaderSpan]] = {}
    controller: list[LeaderSpan] = []
    for index, row in enumerate(rows):
        begin = row["at"]
        end = rows[index + 1]["at"] if index + 1 < len(rows) else max(end_s, begin)
        _append(controller, LeaderSpan(begin, end, row["controller"], ()))
        for topic, partition, leader, isr in row["partitions"]:
            spans = partitions.setdefault(f"{topic}-{partition}", [])
            _append(spans, LeaderSpan(begin, end, leader, tuple(isr)))
    return partitions, controller


def _append(spans: list[LeaderSpan], span: LeaderSpan) -> None:
    """Append a state; an unchanged one continues the span."""
    last = spans[-1] if spans else None
    if last is not None and (last.leader, last.isr, last.end_s) == (span.leader, span.isr, span.begin_s):
        spans[-1] = last._replace(end_s=span.end_s)
    else:
        spans.append(span)
