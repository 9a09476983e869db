"""The figures of a judged run, for a table of many runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tidelog.chaos.checkers.history import Outcome
from tidelog.chaos.laboratory.history.history_file import Recorded
from tidelog.chaos.laboratory.judge.judgement import SHOWN_MAX, Verdict
from tidelog.chaos.laboratory.judge.objectives import Sample, samples
from tidelog.chaos.laboratory.judge.timeline import Timeline, covered_s

TEXT_MAX: Final = 400
"""Characters of a violation that a table keeps."""


@dataclass(slots=True)
class RunSummary:
    """Counts are operations. ``trouble``: why there is no verdict, if the run could not be done or judged."""

    history: str
    seed: int
    workload: str
    held: bool = False
    trouble: str = ""
    began: str = ""
    again: str = ""
    seconds: float = 0.0
    fault_phase_s: float = 0.0
    """From the start of the schedule until everything was repaired."""
    wrong_s: float = 0.0
    """For how much of that at least one fault was active."""
    faults: int = 0
    not_done: int = 0
    acts: dict[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    unknown: int = 0
    failed: int = 0
    records: int = 0
    reads: int = 0
    transactions: dict[str, int] = field(default_factory=dict)
    cleaned: int = 0
    violations: int = 0
    """Illegal events; an incomplete run is trouble, and no anomaly."""
    examples: list[str] = field(default_factory=list)
    stalled_s: float = 0.0
    worst_stall_s: float = 0.0
    made_by: Mapping[str, str] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    report: str = ""
    """The report's file beside the table, empty if there is none."""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "samples": [sample.as_json() for sample in self.samples]}


def summary(path: Path, recorded: Recorded, verdict: Verdict, line: Timeline) -> RunSummary:
    """Return the figures of a judged history."""
    run = recorded.run
    sends = verdict.sends
    spans = [(fault.begin_s, min(fault.end_s, line.end_s)) for fault in line.faults if not fault.trouble]
    begin_s = recorded.phases.get("faults", min((begin for begin, _ in spans), default=0.0))
    mended_s = recorded.phases.get("mending", max((end for _, end in spans), default=begin_s))
    return RunSummary(
        history=path.name,
        seed=int(run["seed"]),
        workload=str(run["workload"]),
        held=verdict.held,
        began=str(run.get("began", "")),
        again=str(run.get("again", "")),
        seconds=float(run["seconds"]),
        fault_phase_s=round(mended_s - begin_s, 3),
        wrong_s=round(covered_s(spans), 3),
        faults=verdict.faults,
        not_done=verdict.not_done,
        acts=dict(Counter(fault.act for fault in line.faults if not fault.trouble)),
        acknowledged=sends.get(Outcome.OK, 0),
        unknown=sends.get(Outcome.UNKNOWN, 0),
        failed=sends.get(Outcome.FAILED, 0),
        records=verdict.records,
        reads=verdict.reads,
        transactions={outcome.value: count for outcome, count in verdict.transactions.items()},
        cleaned=verdict.cleaned,
        violations=len(verdict.violations) - (not recorded.complete),
        examples=[text[:TEXT_MAX] for text in verdict.violations[:SHOWN_MAX]],
        stalled_s=float(recorded.machine.get("stalled_s", 0.0)),
        worst_stall_s=float(recorded.machine.get("worst_s", 0.0)),
        made_by=dict(run.get("made_by", {})),
        samples=samples(recorded, path.name),
    )
