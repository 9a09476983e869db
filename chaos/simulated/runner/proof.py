"""The proof by mutants: applies each patch in turn, and counts the seeds until the simulation detects it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog.chaos.simulated.mutants.mutant import Mutant
from tidelog.chaos.simulated.runner.pool import RUN_S_MAX, Finished, Job, Pool, WorkerRefused

_SIGNS_OF_A_BROKEN_PATCH = frozenset(
    {
        "AttributeError",
        "ImportError",
        "ModuleNotFoundError",
        "MutantError",
        "NameError",
        "TypeError",
        "UnboundLocalError",
    }
)
"""These in a run mean that the patch is broken Python, not that a rule was broken."""

_SHOWN_CHARACTERS_MAX = 160


@dataclass(frozen=True, slots=True)
class Proof:
    """The result for one mutant."""

    mutant: Mutant
    caught: bool
    seeds: int
    """How many seeds it took, in the order of the campaign, or how many did not detect it."""
    seed: int | None
    """The seed that detected it."""
    by: str
    """The violation, or why there is no proof."""


def prove(
    mutant: Mutant,
    seeds: Sequence[int],
    *,
    workers: int,
    clean: Pool | None = None,
    file: Path | None = None,
    run_s_max: float = RUN_S_MAX,
    budget_s: float | None = None,
) -> Proof:
    """Run seeds with the mutant until one fails. A run killed at its wall-clock bound proves nothing either way: a busy
    machine causes that too.

    Args:
        mutant: The patch to apply.
        seeds: In order; the earliest that fails counts.
        workers: How many processes.
        clean: Runs the unchanged code, which must hold for the seed that failed; ``None``: skip this check.
        file: A user's file of scenarios.
        run_s_max: Wall-clock bound of a run.
        budget_s: Wall-clock seconds after which no further seed starts.
    """
    index = {seed: number for number, seed in enumerate(seeds, 1)}
    started = time.monotonic()
    runs = 0
    first: Finished | None = None
    timed_out: list[int] = []
    never_loaded: set[str] | None = None

    def while_none_failed() -> Iterator[Job]:
        for seed in seeds:
            if first is not None or (budget_s is not None and time.monotonic() - started >= budget_s):
                return
            yield Job(mutant.scenario, seed)

    try:
        with Pool([mutant.scenario], workers, mutant=mutant, file=file, run_s_max=run_s_max) as pool:
            for finished in pool.run(while_none_failed()):
                if finished is None:
                    continue
                runs += 1
                if finished.timed_out:
                    timed_out.append(finished.job.seed)
                    continue
                missing = set(finished.never_loaded)
                never_loaded = missing if never_loaded is None else never_loaded & missing
                if not finished.outcome.held and (first is None or index[finished.job.seed] < index[first.job.seed]):
                    first = finished
    except WorkerRefused as trouble:
        return Proof(mutant, False, 0, None, f"does not run: {trouble}")
    unloaded = f"no run imported {', '.join(sorted(never_loaded))}" if never_loaded else ""
    if first is None:
        return Proof(mutant, False, runs, None, unloaded or _not_caught(timed_out, run_s_max))
    seed = first.job.seed
    by = first.outcome.violations[0].partition("\n")[0]
    if first.outcome.raised in _SIGNS_OF_A_BROKEN_PATCH:
        return Proof(mutant, False, index[seed], seed, f"the patch is no sound Python: {by}")
    if unloaded:
        return Proof(mutant, False, index[seed], seed, unloaded)
    if clean is not None:
        for finished in clean.run([Job(mutant.scenario, seed)]):
            if finished is not None and not finished.outcome.held:
                was = finished.outcome.violations[0].partition("\n")[0]
                return Proof(mutant, False, index[seed], seed, f"the unchanged code fails on that seed too: {was}")
    return Proof(mutant, True, index[seed], seed, by)


def _not_caught(timed_out: Sequence[int], run_s_max: float) -> str:
    if not timed_out:
        return "not caught"
    return f"not caught; {len(timed_out)} runs did not end within {run_s_max:g} s, the first of seed {min(timed_out)}"


class Table:
    """The proofs as text, one line each."""

    def __init__(self, mutants: Sequence[Mutant]) -> None:
        self._widths = [
            max(len(head), *(len(getattr(mutant, head if head != "mutant" else "id")) for mutant in mutants))
            for head in ("mutant", "rule", "scenario")
        ]

    def head(self) -> str:
        return self._row("", "mutant", "rule", "scenario", "seeds", "caught by")

    def line(self, proof: Proof) -> str:
        found = proof.caught or proof.seed is not None
        return self._row(
            "ok" if proof.caught else "FAIL",
            proof.mutant.id,
            proof.mutant.rule,
            proof.mutant.scenario,
            f"{proof.seeds:,}" if found else f">{proof.seeds:,}",
            proof.by[:_SHOWN_CHARACTERS_MAX],
        )

    def _row(self, mark: str, mutant: str, rule: str, scenario: str, seeds: str, by: str) -> str:
        names = "  ".join(text.ljust(width) for text, width in zip((mutant, rule, scenario), self._widths, strict=True))
        return f"{mark:<5} {names}  {seeds:>6}  {by}"
