"""The options of ``./dev sim`` (``python -m tidelog.chaos.simulated``) and what each does."""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tidelog.chaos.simulated import mutants
from tidelog.chaos.simulated.runner import proof
from tidelog.chaos.simulated.runner.campaign import (
    FAILURES_MAX,
    counts_text,
    failure_text,
    jobs_of,
    replay_command,
    run_campaign,
    verdict_text,
)
from tidelog.chaos.simulated.runner.determinism import HASH_SEEDS, differences
from tidelog.chaos.simulated.runner.pool import RUN_S_MAX, Job, Pool, WorkerRefused, processors
from tidelog.chaos.simulated.runner.shrink import RUNS_MAX, SECONDS_MAX, PoolJudge, ddmin
from tidelog.chaos.simulated.runner.worker import select
from tidelog.chaos.simulated.scenarios.registry import Registry, ScenarioError, summary
from tidelog.chaos.simulated.world.scenario import Outcome, Scenario

SEEDS = 200
"""Seeds of a campaign if neither a number nor a duration is given."""
MUTANT_SEEDS = 500
_FRESH_BITS = 40


class UsageError(Exception):
    """The user asked for something impossible; the text says what was expected."""


def seed_range(text: str) -> range:
    """Read ``N`` (the seeds 1 to N) or ``A-B`` (both included); raise :class:`UsageError` for anything else."""
    first, dash, last = text.partition("-")
    try:
        start, end = (int(first), int(last)) if dash else (1, int(text))
    except ValueError:
        raise UsageError(f"--seeds {text!r}: expected how many (2000) or a range (1-2000)") from None
    if start < 0 or end < start:
        raise UsageError(f"--seeds {text}: expected at least one seed, and a range that rises")
    return range(start, end + 1)


def kept(text: str) -> tuple[int, ...]:
    """Read ``0,3,7`` or ``none``; raise :class:`UsageError` for anything else."""
    if text == "none":
        return ()
    try:
        found = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        found = (-1,)
    if found[0] < 0:
        raise UsageError(f"--keep {text!r}: expected places in the schedule, 0,3,7, or none")
    return found


def parser() -> argparse.ArgumentParser:
    """Return the parser for the options."""
    made = argparse.ArgumentParser(
        prog="./dev sim",
        description="Run the cluster in simulated time under seeded faults and judge the outcome.",
        epilog="Exit code: 0 all held; 1 something did not; 2 wrong usage; 130 interrupted.",
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--list", action="store_true", help="list the scenarios")
    add("--scenario", metavar="NAME[,NAME]", default="", help="scenarios to run (default: all, or all in --file)")
    add("--file", metavar="FILE.py", type=Path, help="a Python file that defines scenarios of your own")
    add("--seeds", metavar="N|A-B", help=f"seeds 1 to N, or A to B (default {SEEDS}; endless with a time limit)")
    add("--seed", metavar="N", type=int, help="replay one seed")
    add("--fresh", action="store_true", help="start at a random seed and print it")
    add("--seconds", metavar="S", type=float, help="start no run after this many seconds (with --mutants: of each)")
    add("--minutes", metavar="M", type=float, help="the same in minutes")
    add("--keep", metavar="I,J,…", help="with --seed: keep only these faults of its schedule (or: none)")
    add("--trace", action="store_true", help="with --seed: print the run line by line")
    add("--shrink", action="store_true", help="find the few faults that make a seed fail")
    add("--shrink-runs", metavar="N", type=int, default=RUNS_MAX, help=f"use at most this many runs ({RUNS_MAX})")
    add(
        "--shrink-seconds", metavar="S", type=float, default=SECONDS_MAX, help=f"take at most so long ({SECONDS_MAX:g})"
    )
    add("--failures", metavar="N", type=int, default=FAILURES_MAX, help=f"stop after N failures ({FAILURES_MAX})")
    add("--workers", metavar="N", type=int, default=processors(), help="processes (default: one per processor)")
    add(
        "--run-seconds",
        metavar="S",
        type=float,
        default=RUN_S_MAX,
        help=f"fail a run that takes longer ({RUN_S_MAX:g})",
    )
    add(
        "--mutants",
        metavar="ID,…",
        nargs="?",
        const="",
        help=f"check that --seeds catch each mutant ({MUTANT_SEEDS}); those named, in --scenario if it is given",
    )
    add("--check-determinism", metavar="N", type=int, help="run N seeds twice and compare the runs")
    return made


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments ask for; return the exit code."""
    options = parser().parse_args(arguments)
    try:
        return _run(options)
    except (UsageError, ScenarioError) as trouble:
        print(f"./dev sim: {trouble}", file=sys.stderr)
        return 2
    except WorkerRefused as trouble:
        print(f"FAIL  the simulation does not start: {trouble}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\n      interrupted", flush=True)
        return 130


def _run(options: argparse.Namespace) -> int:
    if options.workers < 1 or options.failures < 1:
        raise UsageError("--workers and --failures: expected at least 1")
    if options.keep is not None and options.seed is None:
        raise UsageError("--keep: expected --seed with it, whose schedule it takes from")
    if options.trace and options.seed is None:
        raise UsageError("--trace: expected --seed with it")
    if options.seed is not None and (options.seeds or options.fresh):
        raise UsageError("--seed: expected neither --seeds nor --fresh with it")
    if options.seed is not None and options.seed < 0:
        raise UsageError(f"--seed {options.seed}: expected 0 or more")
    if options.mutants is not None:
        return _mutants(options)
    registry = Registry(options.file)
    if options.list:
        return _list(registry)
    chosen = registry.choose(name for name in options.scenario.split(",") if name)
    if options.check_determinism is not None:
        return _determinism(options, chosen)
    if options.seed is not None:
        return _replay(options, chosen)
    return _campaign(options, chosen)


def _list(registry: Registry) -> int:
    width = max((len(name) for name in registry.names), default=0)
    for name in registry.names:
        print(f"{name:<{width}}  {summary(registry.get(name))}")
    return 0


def _seeds(options: argparse.Namespace, count: int | None) -> Iterable[int]:
    """Return the seeds asked for; ``count`` seeds without ``--seeds``, endless for ``None``."""
    chosen = seed_range(options.seeds) if options.seeds else range(1, count + 1) if count is not None else None
    if not options.fresh:
        return itertools.count(1) if chosen is None else chosen
    if options.seeds and "-" in options.seeds:
        raise UsageError("--fresh: expected a number of --seeds with it, not a range")
    first = random.SystemRandom().getrandbits(_FRESH_BITS)
    return itertools.count(first) if chosen is None else range(first, first + len(chosen))


def _budget_s(options: argparse.Namespace) -> float | None:
    budget_s: float | None = options.seconds if options.minutes is None else 60 * options.minutes
    if budget_s is not None and budget_s <= 0:
        raise UsageError("--seconds, --minutes: expected more than 0")
    return budget_s


def _campaign(options: argparse.Namespace, chosen: Sequence[Scenario]) -> int:
    budget_s = _budget_s(options)
    seeds = _seeds(options, SEEDS if budget_s is None else None)
    total: int | None = None
    if isinstance(seeds, range):
        total = len(seeds) * len(chosen)
        said = f"seeds {seeds.start}-{seeds.stop - 1}"
    else:
        first = next(iter(seeds))
        seeds = itertools.count(first)
        said = f"seeds from {first}"
    if budget_s is not None:
        said += f", {budget_s:g} s"
    names = [scenario.name for scenario in chosen]
    workers = options.workers if total is None else min(options.workers, total)
    print(f"sim   {', '.join(names)}: {said}, {workers} processes", flush=True)
    with Pool(names, workers, file=options.file, run_s_max=options.run_seconds) as pool:
        verdict = run_campaign(
            pool,
            chosen,
            jobs_of(chosen, seeds),
            runs_total=total,
            budget_s=budget_s,
            failures_max=options.failures,
            file=options.file,
        )
        print(verdict_text(verdict), flush=True)
        if options.shrink and not verdict.interrupted:
            for name in dict.fromkeys(failure.job.scenario for failure in verdict.failures):
                job = next(failure.job for failure in verdict.failures if failure.job.scenario == name)
                _shrink(options, pool, next(one for one in chosen if one.name == name), job)
    return verdict.exit_code


def _one(chosen: Sequence[Scenario]) -> Scenario:
    if len(chosen) != 1:
        raise UsageError(f"--seed: expected one --scenario with it: {', '.join(one.name for one in chosen)}")
    return chosen[0]


def _replay(options: argparse.Namespace, chosen: Sequence[Scenario]) -> int:
    scenario = _one(chosen)
    keep = None if options.keep is None else kept(options.keep)
    whole = scenario.schedule(options.seed)
    try:
        schedule = select(whole, keep)
    except ValueError as trouble:
        raise UsageError(f"--keep: {trouble}") from None
    job = Job(scenario.name, options.seed, keep)
    if options.trace:
        print(f"sim   {scenario.name}, seed {options.seed}: {len(schedule)} of {len(whole)} faults", flush=True)
        outcome = scenario.run(options.seed, None if keep is None else schedule, trace=print)
        print(_short(outcome))
        for line in outcome.violations:
            print(f"FAIL  {line}")
        return 0 if outcome.held else 1
    print(f"sim   {scenario.name}, seed {options.seed}: {len(schedule)} of {len(whole)} faults", flush=True)
    workers = options.workers if options.shrink else 1
    with Pool([scenario.name], workers, file=options.file, run_s_max=options.run_seconds) as pool:
        for finished in pool.run([job]):
            if finished is None:
                continue
            outcome = finished.outcome
            print(_short(outcome))
            if outcome.held:
                print("ok    it held")
                return 0
            print(failure_text(finished, options.file), flush=True)
        if options.shrink:
            _shrink(options, pool, scenario, job)
    return 1


def _short(outcome: Outcome) -> str:
    counts = f"{outcome.operations:,} operations, {outcome.virtual_s:.1f} s of virtual time"
    faults, events = (counts_text(counted, frozenset()) for counted in (outcome.faults, outcome.events))
    return f"      {counts}, trace {outcome.digest[:16] or 'none'}\n      faults: {faults}\n      events: {events}"


def _shrink(options: argparse.Namespace, pool: Pool, scenario: Scenario, job: Job) -> None:
    schedule = scenario.schedule(job.seed)
    before = tuple(range(len(schedule))) if job.keep is None else job.keep
    judge = PoolJudge(pool, scenario.name, job.seed, runs_max=options.shrink_runs, seconds_max=options.shrink_seconds)
    print(f"shrink {scenario.name}, seed {job.seed}: from {len(before)} faults", flush=True)
    shrunk = ddmin(before, judge)
    sure = "all of them are needed" if shrunk.minimal else "perhaps not the fewest: the budget is spent"
    print(f"      {len(shrunk.keep)} faults are enough, {sure}; {judge.runs} runs")
    for index in shrunk.keep:
        print(f"      {index:>4}  {schedule[index]}")
    if (failed := judge.failed.get(shrunk.keep)) is not None:
        print(f"      {failed.outcome.violations[0]}")
    print(f"      {replay_command(scenario.name, job.seed, shrunk.keep, options.file)}", flush=True)


def _mutants(options: argparse.Namespace) -> int:
    wanted = [name for name in options.mutants.split(",") if name]
    known = {mutant.id: mutant for mutant in mutants.ALL}
    if unknown := [name for name in wanted if name not in known]:
        raise UsageError(f"--mutants: no {', '.join(unknown)}. There are: {', '.join(known) or 'none'}")
    scenarios = {name for name in options.scenario.split(",") if name}
    if wanted and len(scenarios) > 1:
        raise UsageError(f"--mutants ID: expected one --scenario for them, found {', '.join(sorted(scenarios))}")
    if wanted:
        chosen = [replace(known[name], scenario=min(scenarios, default=known[name].scenario)) for name in wanted]
    else:
        chosen = [mutant for mutant in mutants.ALL if not scenarios or mutant.scenario in scenarios]
    if not chosen:
        of = f" of {', '.join(sorted(scenarios))}" if scenarios else ""
        raise UsageError(f"--mutants: there are none{of}")
    seeds = list(_seeds(options, MUTANT_SEEDS))
    print(f"sim   {len(chosen)} mutants, seeds {seeds[0]}-{seeds[-1]}, {options.workers} processes")
    table = proof.Table(chosen)
    print(table.head(), flush=True)
    caught = 0
    clean: dict[str, Pool] = {}
    with ExitStack() as pools:
        for mutant in chosen:
            name = mutant.scenario
            if name not in clean:
                clean[name] = pools.enter_context(Pool([name], 1, file=options.file, run_s_max=options.run_seconds))
            found = proof.prove(
                mutant,
                seeds,
                workers=options.workers,
                clean=clean[name],
                file=options.file,
                run_s_max=options.run_seconds,
                budget_s=_budget_s(options),
            )
            caught += found.caught
            print(table.line(found), flush=True)
    print(f"{'ok   ' if caught == len(chosen) else 'FAIL '} {caught} of {len(chosen)} mutants caught")
    return 0 if caught == len(chosen) else 1


def _determinism(options: argparse.Namespace, chosen: Sequence[Scenario]) -> int:
    if options.check_determinism < 1:
        raise UsageError("--check-determinism: expected at least 1 seed")
    seeds = [options.seed] if options.seed is not None else list(_seeds(options, options.check_determinism))
    seeds = seeds[: options.check_determinism]
    names = [scenario.name for scenario in chosen]
    print(
        f"sim   {', '.join(names)}: seeds {seeds[0]}-{seeds[-1]}, each in two processes, "
        f"PYTHONHASHSEED {' and '.join(HASH_SEEDS)}",
        flush=True,
    )
    apart = differences(names, seeds, workers=options.workers, file=options.file, run_s_max=options.run_seconds)
    for job, what in apart[: options.failures]:
        print(f"FAIL  {job.scenario}, seed {job.seed}: {what}")
    same = len(seeds) * len(names) - len(apart)
    print(f"{'FAIL ' if apart else 'ok   '} {same} runs were the same twice, {len(apart)} were not")
    return 1 if apart else 0
