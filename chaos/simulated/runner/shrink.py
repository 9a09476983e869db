"""Shrinks a failing schedule: finds a few faults that suffice for a violation.

Delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002) over the indexes of
the schedule. Any violation counts as failing, not only the one that was seen first: the aim is a smaller schedule that
breaks something.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidelog.chaos.simulated.runner.pool import Finished, Job, Pool

RUNS_MAX = 500
SECONDS_MAX = 300.0

Indexes = tuple[int, ...]
FirstFailing = Callable[[Sequence[Indexes]], int | None]
"""Returns which of several schedules, the earliest in the order given, fails; ``None`` if none does."""


class BudgetSpent(Exception):
    """No further run may be made."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest failing schedule found."""

    keep: Indexes
    minimal: bool
    """Whether every kept fault is necessary; unknown if the budget ran out."""


def ddmin(indexes: Sequence[int], first_failing: FirstFailing) -> Shrunk:
    """Shrink a failing schedule.

    If ``first_failing`` raises :class:`BudgetSpent`, the smallest schedule so far is returned. It gets several
    schedules per call, which it may try in parallel; no schedule is passed twice.
    """
    keep = tuple(indexes)
    tried = {keep}

    def pick(candidates: Sequence[Indexes]) -> Indexes | None:
        fresh = [candidate for candidate in dict.fromkeys(candidates) if candidate not in tried]
        found = first_failing(fresh) if fresh else None
        tried.update(fresh)
        return None if found is None else fresh[found]

    try:
        if not keep or pick([()]) is not None:
            return Shrunk((), True)
        parts = 2
        while len(keep) > 1:
            parts = min(parts, len(keep))
            bounds = [len(keep) * part // parts for part in range(parts + 1)]
            chunks = [keep[start:end] for start, end in pairwise(bounds)]
            if (smaller := pick(chunks)) is not None:
                keep, parts = smaller, 2
                continue
            rests = [keep[:start] + keep[end:] for start, end in pairwise(bounds)]
            if (smaller := pick(rests)) is not None:
                keep, parts = smaller, max(parts - 1, 2)
                continue
            if parts == len(keep):
                break
            parts *= 2
    except BudgetSpent:
        return Shrunk(keep, False)
    return Shrunk(keep, True)


class PoolJudge:
    """A :data:`FirstFailing` that runs one seed on a pool, within a number of runs and a time limit."""

    def __init__(
        self, pool: Pool, scenario: str, seed: int, *, runs_max: int = RUNS_MAX, seconds_max: float = SECONDS_MAX
    ) -> None:
        self._pool, self._scenario, self._seed = pool, scenario, seed
        self._runs_max = runs_max
        self._until = time.monotonic() + seconds_max
        self.runs = 0
        self.failed: dict[Indexes, Finished] = {}
        """The violations of each failing schedule."""

    def __call__(self, candidates: Sequence[Indexes]) -> int | None:
        order = {candidate: index for index, candidate in enumerate(candidates)}
        best: int | None = None
        spent = False

        def while_it_lasts() -> Iterator[Job]:
            nonlocal spent
            for candidate in candidates:
                if best is not None:
                    return
                if self.runs >= self._runs_max or time.monotonic() >= self._until:
                    spent = True
                    return
                self.runs += 1
                yield Job(self._scenario, self._seed, candidate)

        for finished in self._pool.run(while_it_lasts()):
            if finished is None or finished.outcome.held:
                continue
            assert finished.job.keep is not None
            self.failed[finished.job.keep] = finished
            index = order[finished.job.keep]
            best = index if best is None else min(best, index)
        if best is None and spent:
            raise BudgetSpent
        return best
