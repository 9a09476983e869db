"""Many seeds of one or several scenarios: which faults and events occurred, which seeds failed, and the verdict.

A campaign fails on a violation, and on silence: if a kind of fault never took effect or an event never occurred, the
runs did not test what they claim to.
"""

from __future__ import annotations

import shlex
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import tidelog
from tidelog.chaos.simulated.runner.pool import Finished, Job, Pool
from tidelog.chaos.simulated.world.scenario import Outcome, Scenario

RUNS_JUDGED_MIN = 200
"""From this many runs of a scenario, a kind of fault or event that never occurred fails the campaign."""
FAILURES_MAX = 5
"""The campaign stops after this many failing seeds."""
_PROGRESS_S_TERMINAL = 0.25
_PROGRESS_S = 15.0


@dataclass(slots=True)
class Tally:
    """Sums over the runs of one scenario."""

    scenario: Scenario
    runs: int = 0
    operations: int = 0
    virtual_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        self.runs += 1
        self.operations += outcome.operations
        self.virtual_s += outcome.virtual_s
        self.faults.update(outcome.faults)
        self.events.update(outcome.events)

    @property
    def long_enough(self) -> bool:
        return self.runs >= RUNS_JUDGED_MIN

    @property
    def missing(self) -> list[str]:
        """Return the expected faults and events that no run showed."""
        return [
            *(f"fault {kind}" for kind in sorted(self.scenario.faults_expected) if self.faults[kind] == 0),
            *(f"event {kind}" for kind in sorted(self.scenario.events_expected) if self.events[kind] == 0),
        ]


@dataclass(slots=True)
class Verdict:
    """The result of a campaign."""

    tallies: dict[str, Tally]
    failures: list[Finished] = field(default_factory=list)
    wall_s: float = 0.0
    interrupted: bool = False

    @property
    def runs(self) -> int:
        return sum(tally.runs for tally in self.tallies.values())

    @property
    def silent(self) -> list[Tally]:
        """Return the scenarios with enough runs that never showed something they expect."""
        return [tally for tally in self.tallies.values() if tally.long_enough and tally.missing]

    @property
    def exit_code(self) -> int:
        """Return 0: held; 1: a violation, something that never occurred, or no run at all; 130: interrupted."""
        if self.failures or self.silent:
            return 1
        if self.interrupted:
            return 130
        return 0 if self.runs else 1


def jobs_of(scenarios: Sequence[Scenario], seeds: Iterable[int]) -> Iterator[Job]:
    """Yield every scenario with every seed, in turn, so that a campaign cut short has run each equally often."""
    return (Job(scenario.name, seed) for seed in seeds for scenario in scenarios)


def run_campaign(
    pool: Pool,
    scenarios: Sequence[Scenario],
    jobs: Iterable[Job],
    *,
    runs_total: int | None = None,
    budget_s: float | None = None,
    failures_max: int = FAILURES_MAX,
    file: Path | None = None,
    out: TextIO | None = None,
) -> Verdict:
    """Run jobs until they are done, the budget is spent, too many failed or the user interrupts.

    Args:
        pool: Where they run.
        scenarios: Those that the jobs name.
        jobs: May be endless if there is a budget.
        runs_total: How many jobs there are, for the progress display.
        budget_s: Wall-clock seconds after which no further run starts.
        failures_max: Failing runs after which no further run starts.
        file: A user's file of scenarios, for the command that repeats a seed.
        out: Where progress and violations are printed; stdout if not given.
    """
    started = time.monotonic()
    verdict = Verdict({scenario.name: Tally(scenario) for scenario in scenarios})
    progress = _Progress(out or sys.stdout, runs_total, budget_s)

    def while_it_lasts() -> Iterator[Job]:
        for job in jobs:
            if len(verdict.failures) >= failures_max:
                return
            if budget_s is not None and time.monotonic() - started >= budget_s:
                return
            yield job

    try:
        for finished in pool.run(while_it_lasts()):
            if finished is not None:
                verdict.tallies[finished.job.scenario].add(finished.outcome)
                if not finished.outcome.held:
                    verdict.failures.append(finished)
                    progress.say(failure_text(finished, file))
            progress.show(verdict)
    except KeyboardInterrupt:
        verdict.interrupted = True
    verdict.wall_s = time.monotonic() - started
    progress.end()
    return verdict


class _Progress:
    """Progress: one line that is overwritten on a terminal; elsewhere a new line every few seconds."""

    def __init__(self, out: TextIO, runs_total: int | None, budget_s: float | None) -> None:
        self._out = out
        self._terminal = out.isatty()
        self._of_runs = f" of {runs_total:,}" if runs_total is not None else ""
        self._of_time = f" of {budget_s:.0f}" if budget_s is not None else ""
        self._started = time.monotonic()
        self._next = self._started + (0 if self._terminal else _PROGRESS_S)
        self._shown = False

    def show(self, verdict: Verdict) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (_PROGRESS_S_TERMINAL if self._terminal else _PROGRESS_S)
        wall_s = now - self._started
        text = (
            f"      {verdict.runs:,}{self._of_runs} runs, {len(verdict.failures)} failed, "
            f"{per_minute(verdict.runs, wall_s):,.0f} runs a minute, {wall_s:.0f}{self._of_time} s"
        )
        self._out.write(f"\r\x1b[2K{text}" if self._terminal else text + "\n")
        self._out.flush()
        self._shown = self._terminal

    def say(self, text: str) -> None:
        self.end()
        self._out.write(text + "\n")
        self._out.flush()

    def end(self) -> None:
        if self._shown:
            self._out.write("\r\x1b[2K")
            self._out.flush()
            self._shown = False


def per_minute(runs: int, wall_s: float) -> float:
    return 60 * runs / wall_s if wall_s > 0 else 0.0


def replay_command(scenario: str, seed: int, keep: Sequence[int] | None = None, file: Path | None = None) -> str:
    """Return the command that runs a seed again."""
    root = Path(tidelog.__file__).resolve().parents[2]
    words = ["./dev", "sim"] if (root / "dev").is_file() else ["python", "-m", "tidelog.chaos.simulated"]
    if file is not None:
        words += ["--file", str(file)]
    words += ["--scenario", scenario, "--seed", str(seed)]
    if keep is not None:
        words += ["--keep", ",".join(map(str, keep)) or "none"]
    return shlex.join(words)


def failure_text(finished: Finished, file: Path | None = None) -> str:
    """Say what a failing run violated and how to run it again."""
    job, outcome = finished.job, finished.outcome
    lines = [line for violation in outcome.violations[:3] for line in violation.splitlines()[:8]]
    more = len(outcome.violations) - 3
    if more > 0:
        lines.append(f"and {more} more")
    return "\n      ".join(
        [
            f"FAIL  {job.scenario}, seed {job.seed}: {lines[0]}",
            *lines[1:],
            f"again: {replay_command(job.scenario, job.seed, job.keep, file)}",
        ]
    )


def counts_text(counts: Counter[str], expected: frozenset[str]) -> str:
    """Return ``kind count`` for every kind that occurred or should have, by name."""
    kinds = sorted(counts.keys() | expected)
    return ", ".join(f"{kind} {counts[kind]:,}" for kind in kinds) or "none"


def _folded(text: str) -> str:
    """Fold the text at its commas, so that a kind and its count stay together."""
    tied = text.replace(" ", "\0").replace(",\0", ", ")
    lines = textwrap.wrap(tied, 112, subsequent_indent=" " * 8, break_on_hyphens=False, break_long_words=False)
    return "\n".join(f"      {line}" for line in lines).replace("\0", " ")


def verdict_text(verdict: Verdict) -> str:
    """Return the totals of each scenario and the verdict, as lines of text."""
    lines = []
    for name, tally in verdict.tallies.items():
        lines += [
            f"{name}: {tally.runs:,} runs, {tally.operations:,} operations, {tally.virtual_s:,.0f} s of virtual time",
            _folded(f"faults: {counts_text(tally.faults, tally.scenario.faults_expected)}"),
            _folded(f"events: {counts_text(tally.events, tally.scenario.events_expected)}"),
        ]
        if tally.missing and tally.long_enough:
            lines.append(f"FAIL  {name}: in {tally.runs:,} runs never showed: {', '.join(tally.missing)}")
        elif not tally.long_enough:
            never = f" (so far missing: {', '.join(tally.missing)})" if tally.missing else ""
            lines.append(
                _folded(
                    f"{tally.runs:,} runs are too few to judge what never showed, which takes {RUNS_JUDGED_MIN}{never}"
                )
            )
    rate = f"{verdict.wall_s:.1f} s, {per_minute(verdict.runs, verdict.wall_s):,.0f} runs a minute"
    if verdict.interrupted:
        lines.append(f"      interrupted after {verdict.runs:,} runs, {rate}")
    if verdict.failures:
        lines.append(f"FAIL  {len(verdict.failures):,} of {verdict.runs:,} runs failed, {rate}")
    elif verdict.silent:
        lines.append(f"FAIL  {verdict.runs:,} runs held, but did not test what they are there to test, {rate}")
    elif not verdict.runs:
        lines.append("FAIL  no run was finished")
    elif not verdict.interrupted:
        lines.append(f"ok    {verdict.runs:,} runs held, {rate}")
    return "\n".join(lines)
