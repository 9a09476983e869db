"""Many runs in one table: as a page, as Markdown, as text for a terminal, as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from tidelog.chaos.laboratory.judge.objectives import LEADER, Result, Sample, results
from tidelog.chaos.laboratory.judge.run_summary import RunSummary
from tidelog.chaos.laboratory.report.page import Child, Html, page, table, tag
from tidelog.chaos.laboratory.report.report import figure_list, recovery_section, verdict_box

HEAD: Final = (
    "seed",
    "workload",
    "faults, s",
    "faults",
    "acknowledged",
    "unknown",
    "failed",
    "anomalies",
    "leader: median, worst, s",
    "verdict",
)
SUMMARY_VERSION: Final = 1


def held(runs: Sequence[RunSummary]) -> bool:
    """Return whether every run was done and nothing illegal was found. Recovery is judged separately
    (:func:`objectives`)."""
    return bool(runs) and all(run.held and not run.trouble for run in runs)


def objectives(runs: Sequence[RunSummary]) -> list[Result]:
    """Return the recovery objectives over all runs."""
    return results(_samples(runs))


def summary_page(runs: Sequence[RunSummary], command: str) -> Html:
    """Return the page of many runs. ``command`` is how they were started, empty if unknown."""
    judged = objectives(runs)
    broken = [run for run in runs if not run.held]
    more = f"{len(broken)} of {len(runs)} runs are broken or were not done" if broken else ""
    rows: list[list[Child]] = []
    for run in runs:
        name: Child = tag("a", run.history, href=run.report) if run.report else run.history
        verdict = tag("span", "held", class_="good") if run.held else tag("span", "BROKEN", class_="bad")
        if run.trouble:
            verdict = tag("span", f"not done: {run.trouble}", class_="bad")
        *cells, _ = _cells(run)
        rows.append([*cells, verdict, name])
    rows.append([tag("b", cell) for cell in (*_totals(runs), "")])
    found: list[Child] = []
    for run in broken:
        found.append(tag("h3", f"{run.history} (seed {run.seed}, {run.workload})"))
        found += [tag("pre", text) for text in (run.trouble, *run.examples) if text]
        found.append(tag("pre", run.again))
    return page(
        f"Laboratory: {len(runs)} runs, {'held' if held(runs) else 'BROKEN'}",
        tag("h1", f"The laboratory: {len(runs)} runs"),
        tag("p", f"{runs[0].began} and later" if runs and runs[0].began else "", class_="faint"),
        verdict_box(held(runs), more),
        _figures(runs),
        *recovery_section(_samples(runs), several=True),
        tag("h2", "Runs"),
        table([*HEAD, "report"], rows, frozenset({0, *range(2, 8)})),
        tag("h2", "What was found") if broken else None,
        *found,
        tag("h2", "Faults by act"),
        table(["act", "times"], [[act, count] for act, count in _acts(runs).most_common()], frozenset({1})),
        tag("h2", "Made with"),
        table(["", ""], [[name, value] for name, value in (runs[0].made_by if runs else {}).items()]),
        tag("h2", "Again") if command else None,
        tag("pre", command) if command else None,
        _worst_note(judged),
    )


def summary_markdown(runs: Sequence[RunSummary], command: str) -> str:
    """Return the same as Markdown: for a page of documentation."""
    lines = [f"`{command}`", ""] if command else []
    lines += ["| objective | cases | median | worst | bound | |", "|---|---|---|---|---|---|"]
    for result in objectives(runs):
        verdict = ("held" if result.held else f"missed {len(result.missed)} times") if result.count else "no case"
        if result.held and result.missed:
            verdict += f", but for {len(result.excused)} while the machine stood still"
        cells = (result.objective.what, result.count, _s(result.median_s), _s(result.worst_s), result.bounds, verdict)
        lines.append(_row(cells))
    lines += ["", _row(HEAD), "|---" * len(HEAD) + "|"]
    lines += [_row(_cells(run)) for run in runs]
    lines.append(_row([f"**{cell}**" if cell else "" for cell in _totals(runs)]))
    return "\n".join(lines) + "\n"


def summary_text(runs: Sequence[RunSummary]) -> str:
    """Return the same in a few lines."""
    lines = [
        f"{_sum(runs, 'held')} of {len(runs)} runs held; {_sum(runs, 'fault_phase_s') / 60:.1f} min of faults "
        f"({_sum(runs, 'wrong_s') / 60:.1f} min with something wrong), {_sum(runs, 'faults')} faults; "
        f"{_sum(runs, 'acknowledged')} acknowledged, {_sum(runs, 'unknown')} unknown, {_sum(runs, 'failed')} failed; "
        f"{_sum(runs, 'violations')} anomalies"
    ]
    for result in objectives(runs):
        verdict = ("held" if result.held else "MISSED") if result.count else "no case"
        figures = f"median {_s(result.median_s)}, worst {_s(result.worst_s)} of {result.count}" if result.count else ""
        lines.append(f"  {result.objective.what}: {figures or 'none'} ({result.bounds}): {verdict}")
        for sample in result.missed:
            excuse = f", the machine stood still for {sample.stalled_s:.2f} s of it" if sample.stalled_s else ""
            took = "never" if sample.waited_s is None else f"{sample.waited_s:.2f} s"
            lines.append(f"    {sample.run} at {sample.at_s:.2f}: {took}, {sample.what}{excuse}")
    lines += [f"  {run.history}: {run.trouble or run.examples[0]}" for run in runs if not run.held]
    return "\n".join(lines)


def summary_json(runs: Sequence[RunSummary], command: str) -> dict[str, Any]:
    """Return the same for programs."""
    return {
        "version": SUMMARY_VERSION,
        "command": command,
        "held": held(runs),
        "objectives": [result.as_json() for result in objectives(runs)],
        "objectives_held": all(result.held for result in objectives(runs)),
        "totals": {
            "runs": len(runs),
            **{
                name: round(_sum(runs, name), 3)
                for name in (
                    "fault_phase_s",
                    "wrong_s",
                    "faults",
                    "acknowledged",
                    "unknown",
                    "failed",
                    "reads",
                    "records",
                    "violations",
                )
            },
        },
        "runs": [run.as_json() for run in runs],
    }


def _figures(runs: Sequence[RunSummary]) -> Html:
    return figure_list(
        [
            (f"{_sum(runs, 'fault_phase_s') / 60:.1f} min", "of faults"),
            (f"{_sum(runs, 'wrong_s') / 60:.1f} min", "with something wrong"),
            (f"{_sum(runs, 'faults'):,}", "faults"),
            (f"{_sum(runs, 'acknowledged'):,}", "acknowledged"),
            (f"{_sum(runs, 'unknown'):,}", "unknown"),
            (f"{_sum(runs, 'failed'):,}", "failed"),
            (f"{_sum(runs, 'reads'):,}", "read"),
            (f"{_sum(runs, 'violations'):,}", "anomalies"),
        ]
    )


def _cells(run: RunSummary) -> list[str]:
    waits = [
        one.waited_s for one in run.samples if one.objective == "leader" and one.judged and one.waited_s is not None
    ]
    waits.sort()
    leader = f"{waits[(len(waits) - 1) // 2]:.2f}, {waits[-1]:.2f}" if waits else ""
    verdict = "not done" if run.trouble else "held" if run.held else "BROKEN"
    return [
        str(run.seed),
        run.workload,
        f"{run.fault_phase_s:.0f}",
        str(run.faults),
        f"{run.acknowledged}",
        str(run.unknown),
        str(run.failed),
        str(run.violations),
        leader,
        verdict,
    ]


def _totals(runs: Sequence[RunSummary]) -> list[str]:
    times = _leader(objectives(runs))
    sums = [
        f"{_sum(runs, name):.0f}"
        for name in ("fault_phase_s", "faults", "acknowledged", "unknown", "failed", "violations")
    ]
    return [f"{len(runs)} runs", "", *sums, times, "held" if held(runs) else "BROKEN"]


def _leader(judged: Sequence[Result]) -> str:
    """Return median and worst recovery time of killed leaders."""
    (result,) = [one for one in judged if one.objective is LEADER]
    return "" if result.median_s is None or result.worst_s is None else f"{result.median_s:.2f}, {result.worst_s:.2f}"


def _worst_note(judged: Sequence[Result]) -> Html | None:
    missed = [sample for result in judged for sample in result.missed]
    if not missed:
        return None
    rows: list[list[Child]] = [
        [one.objective, one.run, f"{one.at_s:.2f}", _s(one.waited_s) or "never", one.what, f"{one.stalled_s:.2f}"]
        for one in missed
    ]
    heads = ["objective", "run", "at, s", "took", "after", "the machine stood still, s"]
    return tag("section", tag("h2", "Over the bound"), table(heads, rows, frozenset({2, 3, 5})))


def _samples(runs: Sequence[RunSummary]) -> list[Sample]:
    return [sample for run in runs for sample in run.samples]


def _acts(runs: Sequence[RunSummary]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run.acts)
    return counts


def _sum(runs: Sequence[RunSummary], name: str) -> float:
    total: float = sum(getattr(run, name) for run in runs)
    return total


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _s(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3f} s"
