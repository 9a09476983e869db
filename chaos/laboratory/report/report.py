"""The report of one run: its faults, the state of its clients, the findings, and how to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tidelog.chaos.laboratory.history.history_file import Recorded
from tidelog.chaos.laboratory.judge.judgement import SHOWN_MAX, Verdict
from tidelog.chaos.laboratory.judge.objectives import OBJECTIVES, Result, Sample, results
from tidelog.chaos.laboratory.judge.recovery import Elected
from tidelog.chaos.laboratory.judge.run_summary import RunSummary
from tidelog.chaos.laboratory.judge.timeline import (
    CLOCK,
    DISK,
    KINDS,
    LINKS,
    OTHER,
    PROCESS,
    REPLICAS,
    FaultSpan,
    LeaderSpan,
    Span,
    Timeline,
)
from tidelog.chaos.laboratory.report.charts import Bar, Curve, Dots, curves, dots, lanes, node_colour
from tidelog.chaos.laboratory.report.evidence import Evidence, Witness
from tidelog.chaos.laboratory.report.page import Child, Html, joined, page, table, tag

STALLS_DRAWN_MAX: Final = 400
PARTITIONS_DRAWN_MAX: Final = 64
OPEN_MAX: Final = 5
"""Violations that a page shows unfolded."""
VIOLATION_MAX: Final = 2_000
"""Characters of a violation that a page shows."""
_COLOURS: Final[Mapping[str, str]] = {
    PROCESS: "var(--bad)",
    LINKS: "var(--odd)",
    DISK: "var(--n4)",
    REPLICAS: "var(--n1)",
    CLOCK: "var(--n7)",
    OTHER: "var(--faint)",
}
_GAP: Final = "·"


def run_page(path: Path, recorded: Recorded, verdict: Verdict, line: Timeline, figures: RunSummary) -> Html:
    """Return the page of one judged history."""
    run = recorded.run
    name = f"{figures.workload}, seed {figures.seed}"
    again = str(run.get("again", "")) or f"./dev chaos run --seed {figures.seed} --workload {figures.workload}"
    replay = f"./dev chaos run --replay {shlex.quote(path.name)} --workload {shlex.quote(figures.workload)}"
    return page(
        f"{name}: {'held' if verdict.held else 'BROKEN'}",
        tag("h1", f"Run of the laboratory: {name}"),
        tag("p", f"{figures.began or 'begin unknown'} {_GAP} {run['nodes']} nodes {_GAP} {path.name}", class_="faint"),
        tag("p", f"With a rule of the nodes broken on purpose: {run['mutant']}", class_="odd")
        if run.get("mutant")
        else None,
        verdict_box(verdict.held, f"{len(verdict.violations)} violations" if not verdict.held else ""),
        _figures(figures),
        *_anomalies(recorded, verdict, line),
        *_over_time(recorded, line),
        *recovery_section(figures.samples, several=False),
        *_steps(line),
        tag("h2", "Run it again"),
        tag("p", "The same schedule, by its seed or out of the history; what real processes make of it differs."),
        tag("pre", f"{again}\n{replay}\n./dev chaos judge {shlex.quote(path.name)}"),
        *_circumstances(recorded),
    )


def verdict_box(held: bool, more: str) -> Html:
    """Return the verdict in a prominent box."""
    words = tag("span", "held: nothing illegal in the history", class_="good")
    if not held:
        words = tag("span", "BROKEN", class_="bad")
    return tag("div", words, f": {more}" if more else None, class_="verdict" if held else "verdict broken")


def figure_list(pairs: Sequence[tuple[str, str]]) -> Html:
    """Return large figures in a row, each with its label."""
    return tag("ul", *(tag("li", tag("b", value), tag("span", what)) for value, what in pairs), class_="figures")


def recovery_section(found: Sequence[Sample], *, several: bool) -> list[Child]:
    """Return recovery against the objectives: table and distribution; every single recovery too, unless the page covers
    many runs."""
    judged = results(found)
    rows = []
    for result in judged:
        mine = [sample for sample in found if sample.objective == result.objective.name]
        values = [
            (sample.waited_s, f"{sample.waited_s:.3f} s: {sample.what}; {_where(sample, several)}", sample.judged)
            for sample in mine
            if sample.waited_s is not None and sample.waited_s > 0
        ]
        kinds = (("median", result.objective.median_s), ("worst", result.objective.worst_s))
        bounds = [(bound, f"{kind} ≤ {bound:g} s") for kind, bound in kinds if bound is not None]
        rows.append(Dots(result.objective.name, values, bounds, result.median_s))
    body: list[Child] = [
        tag("h2", "Recovery"),
        _objectives(judged),
        tag(
            "figure",
            dots(rows, "distribution of recovery times"),
            tag("figcaption", "Each dot is a recovery (hollow: not judged), the stroke the median, dashed the bounds."),
        ),
    ]
    if not several:
        lines: list[list[Child]] = [
            [f"{one.at_s:.2f}", one.objective, _waited(one), one.what, _note(one)]
            for one in sorted(found, key=lambda one: one.at_s)
        ]
        if lines:
            whole = table(["at, s", "objective", "took", "after", ""], lines, frozenset({0, 2}))
            body.append(tag("details", tag("summary", f"Every recovery ({len(lines)})"), whole))
    return body


def _objectives(judged: Sequence[Result]) -> Html:
    rows: list[list[Child]] = []
    for result in judged:
        verdict = tag("span", "held", class_="good") if result.held else tag("span", "missed", class_="bad")
        if not result.count:
            verdict = tag("span", "no case", class_="faint")
        missed = f"{len(result.missed)} over the bound" if result.missed else ""
        if result.excused:
            missed += f", {len(result.excused)} of them while the machine itself stood still"
        rows.append(
            [
                result.objective.what,
                result.count,
                _s(result.median_s),
                _s(result.worst_s),
                result.bounds,
                verdict,
                missed,
            ]
        )
    return table(["objective", "cases", "median", "worst", "bound", "", ""], rows, frozenset({1, 2, 3}))


def _figures(figures: RunSummary) -> Html:
    pairs = [
        (f"{figures.fault_phase_s:.0f} s", f"of faults ({figures.wrong_s:.0f} s with something wrong)"),
        (str(figures.faults), "faults" + (f", {figures.not_done} not done" if figures.not_done else "")),
        (f"{figures.acknowledged:,}", "acknowledged"),
        (f"{figures.unknown:,}", "unknown"),
        (f"{figures.failed:,}", "failed"),
        (f"{figures.reads:,}", "read"),
        (f"{figures.records:,}", "in the logs at the end"),
        (str(figures.violations), "anomalies"),
    ]
    if figures.transactions:
        words = ", ".join(f"{count:,} {outcome}" for outcome, count in figures.transactions.items())
        pairs.append((f"{sum(figures.transactions.values()):,}", f"transactions ({words})"))
    if figures.cleaned:
        pairs.append((f"{figures.cleaned:,}", "taken by cleaners"))
    return figure_list(pairs)


def _anomalies(recorded: Recorded, verdict: Verdict, line: Timeline) -> list[Child]:
    if verdict.held:
        return []
    witness = Witness(recorded, line.faults)
    body: list[Child] = [tag("h2", "What was found")]
    shown = [_evidence(witness.of(violation)) for violation in verdict.violations[:SHOWN_MAX]]
    body += shown[:OPEN_MAX]
    if rest := shown[OPEN_MAX:]:
        body.append(tag("details", tag("summary", f"{len(rest)} more"), *rest))
    if (more := len(verdict.violations) - SHOWN_MAX) > 0:
        body.append(tag("p", f"And {more} more: ./dev chaos judge names them."))
    return body


def _evidence(found: Evidence) -> Html:
    rows: list[list[Child]] = [
        [
            _time(one.began_s),
            _time(one.ended_s),
            one.who,
            one.what,
            one.where,
            "" if one.offset is None else one.offset,
            tag("code", one.value) if one.value else "",
            one.outcome,
        ]
        for one in found.operations
    ]
    parts: list[Child] = [tag("h3", found.violation[:VIOLATION_MAX], class_="bad")]
    if rows:
        head = ["from, s", "to, s", "who", "does", "where", "offset", "value", "outcome"]
        parts.append(table(head, rows, frozenset({0, 1, 5})))
    else:
        parts.append(tag("p", "The history has no single operation of it.", class_="faint"))
    if found.more:
        parts.append(tag("p", f"{found.more} more operations speak of it.", class_="faint"))
    if found.faults:
        words = "; ".join(f"{fault.begin_s:.2f} to {fault.end_s:.2f} s {fault_words(fault)}" for fault in found.faults)
        parts.append(tag("p", f"Faults meanwhile: {words}", class_="faint"))
    return tag("section", *parts)


def _over_time(recorded: Recorded, line: Timeline) -> list[Child]:
    nodes = list(range(1, int(recorded.run["nodes"]) + 1))
    bands = [Span(fault.begin_s, fault.end_s, fault_words(fault)) for fault in line.faults if not fault.trouble]
    bins = line.bins
    per_s = 1 / bins.width_s
    rates = [
        Curve("acknowledged/s", "var(--good)", [count * per_s for count in bins.acknowledged]),
        Curve("unknown/s", "var(--odd)", [count * per_s or None for count in bins.unknown]),
        Curve("failed/s", "var(--bad)", [count * per_s or None for count in bins.failed]),
    ]
    waits = [
        Curve("p50, s", "var(--n1)", bins.median_s),
        Curve("p99, s", "var(--n4)", bins.p99_s),
    ]
    read = [Curve("read/s", "var(--n7)", [count * per_s for count in bins.read])]
    end = line.end_s
    names = list(line.leaders)[:PARTITIONS_DRAWN_MAX]
    leaders = [(name, [_leader(span, len(nodes)) for span in line.leaders[name]]) for name in names]
    controller = [
        ("controller", [_controller(span) for span in line.controller]),
        ("elected", [_elected(one) for one in line.elections]),
    ]
    return [
        tag("h2", "Over time"),
        _figure(
            "What was done to which node, and for how long. Point at it for more.",
            lanes(_fault_lanes(line, nodes), end, "faults over time"),
        ),
        _figure(
            f"Records whose outcome arrived, per second, in bins of {bins.width_s:g} s; faults as bands.",
            curves(rates, bins.width_s, end, "throughput over time", bands),
        ),
        _figure(
            "From send to acknowledgement, by when the acknowledgement came.",
            curves(waits, bins.width_s, end, "latency over time", bands, logarithmic=True),
        ),
        _figure(
            "Records that consumers were given, all of them together.",
            curves(read, bins.width_s, end, "reading over time", bands),
        ),
        _figure(
            "Who led each partition (the number is the node), paler where fewer copies were in sync; and who was "
            "the active controller. Outlined in red: nobody.",
            lanes([*leaders, *controller], end, "leaders over time"),
            _legend(nodes),
        ),
    ]


def _figure(caption: str, picture: Html, more: Html | None = None) -> Html:
    return tag("figure", tag("figcaption", caption), more, picture)


def _legend(nodes: Sequence[int]) -> Html:
    marks = [joined(tag("span", "■", style=f"color: {node_colour(node)}"), f" node {node}  ") for node in nodes]
    return tag("p", *marks)


def _fault_lanes(line: Timeline, nodes: Sequence[int]) -> list[tuple[str, list[Bar]]]:
    """Return a lane for each node and kind of fault that it met."""
    rows = []
    for node in nodes:
        for kind in KINDS:
            mine = [fault for fault in line.faults if fault.kind == kind and node in fault.nodes and not fault.trouble]
            if mine or kind == PROCESS:
                rows.append((f"node {node}: {kind}", [_fault(fault) for fault in mine]))
    stalls = [Bar(one.begin_s, one.end_s, "var(--n9)", "", one.label) for one in line.stalls[:STALLS_DRAWN_MAX]]
    return [*rows, ("the machine stalled", stalls)] if stalls else rows


def _fault(fault: FaultSpan) -> Bar:
    colour = _COLOURS[fault.kind]
    label = str(fault.options.get("kind", fault.act))
    title = f"{fault.begin_s:.2f} to {fault.end_s:.2f} s: {fault_words(fault)}"
    return Bar(fault.begin_s, fault.end_s, colour, label, title, 0.85)


def fault_words(fault: FaultSpan) -> str:
    """Describe a fault in one line."""
    whom = f" ({fault.target})" if fault.target else ""
    hit = f", node {', '.join(map(str, fault.nodes))}" if fault.nodes else ""
    return f"#{fault.episode} {fault.words}{whom}{hit}"


def _leader(span: LeaderSpan, nodes: int) -> Bar:
    title = f"{span.begin_s:.2f} to {span.end_s:.2f} s: leader {span.leader}, in sync {', '.join(map(str, span.isr))}"
    if span.leader < 0:
        return Bar(span.begin_s, span.end_s, "var(--bad)", "", title.replace("leader -1", "no leader"), hollow=True)
    share = len(span.isr) / min(3, nodes)
    return Bar(span.begin_s, span.end_s, node_colour(span.leader), str(span.leader), title, 0.25 + 0.75 * share)


def _controller(span: LeaderSpan) -> Bar:
    if span.leader < 0:
        title = f"{span.begin_s:.2f} to {span.end_s:.2f} s: no controller is known to those that answer"
        return Bar(span.begin_s, span.end_s, "var(--bad)", "", title, hollow=True)
    title = f"{span.begin_s:.2f} to {span.end_s:.2f} s: node {span.leader}"
    return Bar(span.begin_s, span.end_s, node_colour(span.leader), str(span.leader), title)


def _elected(one: Elected) -> Bar:
    return Bar(one.at_s, one.at_s, node_colour(one.node), "", f"{one.at_s:.3f} s: node {one.node}, epoch {one.epoch}")


def _steps(line: Timeline) -> list[Child]:
    rows: list[list[Child]] = [
        [
            f"{fault.begin_s:.2f}",
            f"{fault.end_s:.2f}",
            fault.episode,
            fault.words,
            fault.target,
            ", ".join(map(str, fault.nodes)),
            tag("span", fault.trouble, class_="odd") if fault.trouble else "",
        ]
        for fault in line.faults
    ]
    whole = table(["from, s", "to, s", "episode", "what", "aimed at", "node", ""], rows, frozenset({0, 1, 2}))
    return [tag("h2", "Faults"), tag("details", tag("summary", f"All {len(rows)}, in order"), whole)]


def _circumstances(recorded: Recorded) -> list[Child]:
    run, machine = recorded.run, recorded.machine
    pairs: list[list[Child]] = [[name, str(value)] for name, value in dict(run.get("made_by", {})).items()]
    pairs += [[f"setting {name}", str(value)] for name, value in dict(run.get("settings", {})).items()]
    if run.get("mutant"):
        pairs.append(["mutant", tag("span", str(run["mutant"]), class_="bad")])
    if machine:
        spent = dict(machine["processor_s"])
        busy = sum(seconds for name, seconds in spent.items() if name not in ("idle", "iowait"))
        share = busy / max(1e-9, machine["seconds"] * machine["processors"])
        pairs.append(["processors busy", f"{share:.0%} (taken by the host: {spent.get('steal', 0.0):.1f} s)"])
        worst = f"{machine['stalls']} times, {machine['stalled_s']:.2f} s in all, {machine['worst_s']:.2f} s at worst"
        pairs.append(["the laboratory itself was kept from running", worst])
    return [tag("h2", "Made with"), table(["", ""], pairs)]


def _where(sample: Sample, several: bool) -> str:
    return f"{sample.run} at {sample.at_s:.2f} s" if several else f"at {sample.at_s:.2f} s"


def _note(sample: Sample) -> str:
    notes = [] if sample.judged else ["not judged"]
    if sample.stalled_s:
        notes.append(f"machine stalled for {sample.stalled_s:.2f} s of it")
    return "; ".join(notes)


def _waited(sample: Sample) -> Child:
    bound = next(one.worst_s for one in OBJECTIVES if one.name == sample.objective)
    if sample.waited_s is None:
        return tag("span", "never", class_="bad")
    over = bound is not None and sample.judged and sample.waited_s > bound
    return tag("span", f"{sample.waited_s:.3f} s", class_="bad" if over else None)


def _time(seconds: float | None) -> str:
    return "the end" if seconds is None else f"{seconds:.3f}"


def _s(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3f} s"
