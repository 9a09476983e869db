"""The proof by mutants: each patch in turn, and how many seeds until the simulation sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog.chaos.sim.mutants.mutant import Mutant
from tidelog.chaos.sim.pool import RUN_S_MAX, Finished, Job, Pool, WorkerRefused

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
"""What comes out of a run with these is no rule broken but a patch that is no sound Python."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What became of one mutant."""

    mutant: Mutant
    caught: bool
    seeds: int
    """How many seeds it took, in the order of the campaign, or how many did not see it."""
    seed: int | None
    """The seed that saw it."""
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
) -> Proof:
    """Run seeds with the mutant until one fails.

    Args:
        mutant: What is taken out.
        seeds: In order; the earliest that fails counts.
        workers: How many processes.
        clean: Runs the unchanged code, which must hold for the seed that failed; ``None``: not asked.
        file: A user's file of scenarios.
        run_s_max: Wall-clock bound of a run.
    """
    place = {seed: number for number, seed in enumerate(seeds, 1)}
    first: Finished | None = None
    never_loaded: set[str] | None = None

    def while_none_failed() -> Iterator[Job]:
        for seed in seeds:
            if first is not None:
                return
            yield Job(mutant.scenario, seed)

    try:
        with Pool([mutant.scenario], workers, mutant=mutant, file=file, run_s_max=run_s_max) as pool:
            for finished in pool.run(while_none_failed()):
                if finished is None:
                    continue
                missing = set(finished.never_loaded)
                never_loaded = missing if never_loaded is None else never_loaded & missing
                if not finished.outcome.held and (first is None or place[finished.job.seed] < place[first.job.seed]):
                    first = finished
    except WorkerRefused as trouble:
        return Proof(mutant, False, 0, None, f"does not run: {trouble}")
    unloaded = f"no run imported {', '.join(sorted(never_loaded))}" if never_loaded else ""
    if first is None:
        return Proof(mutant, False, len(seeds), None, unloaded or "not caught")
    seed = first.job.seed
    by = first.outcome.violations[0].partition("\n")[0]
    if first.raised in _SIGNS_OF_A_BROKEN_PATCH:
        return Proof(mutant, False, place[seed], seed, f"the patch is no sound Python: {by}")
    if unloaded:
        return Proof(mutant, False, place[seed], seed, unloaded)
    if clean is not None:
        for finished in clean.run([Job(mutant.scenario, seed)]):
            if finished is not None and not finished.outcome.held:
                was = finished.outcome.violations[0].partition("\n")[0]
                return Proof(mutant, False, place[seed], seed, f"the unchanged code fails on that seed too: {was}")
    return Proof(mutant, True, place[seed], seed, by)


def table_head(width: int) -> str:
    return f"      {'mutant':<{width}}  {'scenario':<12} {'seeds':>6}  caught by"


def table_line(proof: Proof, width: int) -> str:
    """Return one line of the table."""
    mark = "ok   " if proof.caught else "FAIL "
    seeds = f"{proof.seeds:,}" if proof.caught or proof.seed is not None else f">{proof.seeds:,}"
    return f"{mark} {proof.mutant.id:<{width}}  {proof.mutant.scenario:<12} {seeds:>6}  {proof.by[:160]}"
