"""Checks that a seed gives the same run twice: in two processes, with different hash seeds, in another order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from tidelog.chaos.simulated.runner.pool import RUN_S_MAX, Finished, Job, Pool
from tidelog.chaos.simulated.world.scenario import Outcome

HASH_SEEDS = ("1", "4242")
"""``PYTHONHASHSEED`` of the first and of the second run, so that the order of string sets differs."""

_LINES_SHOWN_MAX = 5
"""Differing seeds that run once more to find where their traces diverge."""


class Difference(NamedTuple):
    """A seed that gave two different runs."""

    job: Job
    what: str


def differences(
    scenarios: Sequence[str],
    seeds: Sequence[int],
    *,
    workers: int,
    file: Path | None = None,
    run_s_max: float = RUN_S_MAX,
    first_run: Callable[[Outcome], object] = lambda outcome: None,
) -> list[Difference]:
    """Run every seed of every scenario twice and return those whose two runs differ.

    The second time the seeds run in reverse order, which exposes state that a run leaves behind in its process.
    ``first_run`` is called with the outcome of each seed's first run.
    """
    jobs = [Job(name, seed) for seed in seeds for name in scenarios]
    count = min(workers, len(jobs))
    with (
        Pool(scenarios, count, file=file, hash_seed=HASH_SEEDS[0], run_s_max=run_s_max) as pool,
        Pool(scenarios, count, file=file, hash_seed=HASH_SEEDS[1], run_s_max=run_s_max) as other,
    ):
        pool.start()
        other.start()  # start now: the sources may be edited while the first runs are under way
        first = {finished.job: finished for finished in pool.run(jobs) if finished is not None}
        again = {finished.job: finished for finished in other.run(reversed(jobs)) if finished is not None}
        for finished in first.values():
            first_run(finished.outcome)
        apart = [Difference(job, what) for job in jobs if (what := _difference(first[job], again[job]))]
        return [
            entry._replace(what=f"{entry.what}; {_first_line_apart(pool, other, entry.job)}")
            if index < _LINES_SHOWN_MAX
            else entry
            for index, entry in enumerate(apart)
        ]


def _difference(one: Finished, other: Finished) -> str:
    if not one.outcome.digest and one.outcome.held:
        return "the scenario gives no digest of its trace"
    for name in ("digest", "violations", "faults", "events", "operations", "virtual_s"):
        was, now = getattr(one.outcome, name), getattr(other.outcome, name)
        if was != now:
            return f"{name} {was!s:.100} and then {now!s:.100}"
    return ""


def _first_line_apart(pool: Pool, other: Pool, job: Job) -> str:
    """Run the seed once more in each pool and return the first line at which their traces diverge."""
    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name) / "one", Path(name) / "other"]
        for where, path in zip((pool, other), paths, strict=True):
            for _ in where.run([job._replace(trace_path=str(path))]):
                pass
        texts = [path.read_text(encoding="utf-8").splitlines() if path.exists() else [] for path in paths]
    for number, (was, now) in enumerate(zip_longest(*texts), 1):
        if was != now:
            return f"the traces part at line {number}: {was!s:.200} | {now!s:.200}"
    return f"the traces of a third run are alike ({len(texts[0])} lines)"
