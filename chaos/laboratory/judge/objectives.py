"""Recovery objectives, and whether they were met: over one run or many.

They judge the cluster's own recovery: from the kill of a leader while nothing else was wrong, for clients that send all
the time. If links were slow or cut as well, or nobody was sending, the time is shown and not judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final, NamedTuple

from tidelog.chaos.checkers.history import Outcome
from tidelog.chaos.laboratory.history.history_file import Recorded
from tidelog.chaos.laboratory.history.machine import stalled_s
from tidelog.chaos.laboratory.judge.recovery import elections, recoveries, whole_at, wholes
from tidelog.chaos.laboratory.judge.timeline import LINKS, PROCESS, FaultSpan, fault_spans

PROGRESS_AFTER_S: Final = 5.0
"""During a fault of one node that lasts this long, some records must be acknowledged."""
AT_ONCE_S: Final = 1.0
"""Faults within this time of a kill belong to it."""
NODES_LEAST: Final = 3
"""With fewer nodes, one is no minority."""


class Objective(NamedTuple):
    """Bounds in seconds; ``None`` for no bound."""

    name: str
    what: str
    median_s: float | None = None
    worst_s: float | None = None


LEADER: Final = Objective(
    "leader", "leader of a partition killed (-9) → next record acknowledged, on every partition it led", 1.0, 3.0
)
TRANSACTED: Final = Objective(
    "leader, in transactions", "leader of a partition killed (-9) → next record within a transaction acknowledged"
)
"""Shown and not judged: a producer with an open transaction ends it, on all its partitions, before the next record."""
CONTROLLER: Final = Objective("controller", "active controller killed (-9) → another one elected", 0.3)
WHOLE: Final = Objective("whole", "end of a fault → every copy in sync", None, 10.0)
PROGRESS: Final = Objective(
    "progress",
    f"one node lost for {PROGRESS_AFTER_S:g} s or longer → longest time without any acknowledgement",
    None,
    PROGRESS_AFTER_S,
)
OBJECTIVES: Final = (LEADER, TRANSACTED, CONTROLLER, WHOLE, PROGRESS)


class Sample(NamedTuple):
    """One recovery. ``waited_s`` is ``None`` if it never came."""

    objective: str
    run: str
    """The history that it is from, by file name."""
    at_s: float
    waited_s: float | None
    what: str
    judged: bool = True
    """Whether the objective covers this case."""
    stalled_s: float = 0.0
    """For how much of the wait the laboratory itself was kept from running."""

    def as_json(self) -> dict[str, Any]:
        return dict(self._asdict())


@dataclass(frozen=True, slots=True)
class Result:
    """An objective over all its samples."""

    objective: Objective
    count: int
    median_s: float | None
    worst_s: float | None
    missed: tuple[Sample, ...]
    """Recoveries over the bound for the worst, or that never came."""
    excused: tuple[Sample, ...]
    """Those among ``missed`` in which the laboratory itself was stalled for at least the excess."""

    @property
    def held(self) -> bool:
        """Return whether every miss is excused. Holds without samples."""
        within = self.objective.median_s is None or self.median_s is None or self.median_s <= self.objective.median_s
        return within and len(self.missed) == len(self.excused)

    @property
    def bounds(self) -> str:
        """Describe the bounds."""
        parts = []
        if self.objective.median_s is not None:
            parts.append(f"median ≤ {self.objective.median_s:g} s")
        if self.objective.worst_s is not None:
            parts.append(f"worst ≤ {self.objective.worst_s:g} s")
        return ", ".join(parts) or "no bound"

    def as_json(self) -> dict[str, Any]:
        return {
            "objective": self.objective.name,
            "what": self.objective.what,
            "bounds": self.bounds,
            "count": self.count,
            "median_s": self.median_s,
            "worst_s": self.worst_s,
            "held": self.held,
            "missed": [sample.as_json() for sample in self.missed],
            "excused": [sample.as_json() for sample in self.excused],
        }


def samples(recorded: Recorded, run: str) -> list[Sample]:
    """Return every recovery of a run."""
    spans = fault_spans(recorded.faults, float("inf"))
    found = []

    def sample(objective: Objective, at: float, waited: float | None, what: str, *, judged: bool = True) -> None:
        stalled = 0.0 if waited is None else stalled_s(recorded.stalls, at, at + waited)
        found.append(Sample(objective.name, run, round(at, 3), waited, what, judged, round(stalled, 3)))

    for each in recoveries(recorded):
        if each.act == "kill":
            whole = whole_at(recorded, each.at_s)
            kinds = [(TRANSACTED, each.transacted_s)] * (each.transacted > 0)
            if each.steady or not kinds:
                kinds.append((LEADER, each.steady_s if each.steady else each.worst_s))
            for objective, waited_s in kinds:
                alone = _alone(spans, each.episode, each.at_s, waited_s)
                steady = objective is TRANSACTED or each.steady > 0
                what = f"{each.target}: node {', '.join(map(str, each.nodes))}"
                what += ", the active controller too" if each.controlled else ""
                what += "" if alone else ", something else was wrong"
                what += "" if whole else ", the cluster was not whole before"
                what += "" if steady else ", nobody sent to it steadily"
                sample(objective, each.at_s, waited_s, what, judged=alone and whole and steady)
    for wait in elections(recorded):
        alone = _alone(spans, wait.episode, wait.at_s, wait.waited_s)
        sample(
            CONTROLLER, wait.at_s, wait.waited_s, "kill" if alone else "kill, something else was wrong", judged=alone
        )
    for wait in wholes(recorded):
        acts = dict.fromkeys(span.act for span in spans if span.episode == wait.episode)
        others = [span for span in spans if span.begin_s < wait.at_s < span.end_s]
        if wait.cut_short:
            if wait.waited_s is None or WHOLE.worst_s is None or wait.waited_s <= WHOLE.worst_s:
                continue  # it has not had its full time yet
            acts["not when the next fault came"] = None
        sample(WHOLE, wait.at_s, wait.waited_s, ", ".join(acts), judged=not others)
    for span in spans:
        if (silence := _silence(recorded, span)) is not None:
            sample(PROGRESS, silence[0], silence[1], f"{span.words} ({span.target})")
    return found


def results(found: Iterable[Sample]) -> list[Result]:
    """Return each objective's result over the samples."""
    every = list(found)
    made = []
    for objective in OBJECTIVES:
        mine = [sample for sample in every if sample.objective == objective.name and sample.judged]
        waits = [sample.waited_s for sample in mine if sample.waited_s is not None]
        missed = [sample for sample in mine if _over_s(objective, sample) > 0]
        excused = [sample for sample in missed if sample.stalled_s >= _over_s(objective, sample)]
        made.append(
            Result(
                objective,
                len(mine),
                round(median(waits), 4) if waits else None,
                round(max(waits), 4) if waits else None,
                tuple(missed),
                tuple(excused),
            )
        )
    return made


def _over_s(objective: Objective, sample: Sample) -> float:
    """Return by how much a sample exceeds the bound for the worst."""
    if sample.waited_s is None:
        return float("inf")
    return 0.0 if objective.worst_s is None else sample.waited_s - objective.worst_s


def _alone(spans: Sequence[FaultSpan], episode: int, at_s: float, waited_s: float | None) -> bool:
    """Return whether an episode only hits at that time, and nothing else was wrong then, nor soon after, before the
    cluster had recovered. A fault that comes when it should have recovered is no excuse."""
    until = at_s + min(AT_ONCE_S, float("inf") if waited_s is None else waited_s)
    own = [span for span in spans if span.episode == episode]
    others = [span for span in spans if span.episode != episode and span.begin_s <= until and at_s < span.end_s]
    return len(own) == 1 and not [span for span in others if not span.trouble]


def _silence(recorded: Recorded, span: FaultSpan) -> tuple[float, float] | None:
    """Return the start and length of the longest time without any acknowledgement during a fault of one node; ``None``
    if the cluster need not survive the fault, or it is too short to tell."""
    lasted = span.end_s - span.begin_s
    if len(span.nodes) != 1 or recorded.run["nodes"] < NODES_LEAST or span.trouble or span.kind not in (PROCESS, LINKS):
        return None
    if not PROGRESS_AFTER_S <= lasted < float("inf"):
        return None
    told = [sent.ended_s for sent in recorded.history.sends if sent.outcome is Outcome.OK]
    edges = [span.begin_s, *sorted(at for at in told if span.begin_s < at < span.end_s), span.end_s]
    longest, began = max((after - before, before) for before, after in pairwise(edges))
    return began, longest
