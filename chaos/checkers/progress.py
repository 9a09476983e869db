"""Judges progress: while a majority is whole, does something get done within a bound?

A run knows when a majority could work: all nodes of some majority were up, could reach one another, had working disks
and were not paused. Within such an interval, and from the healing to the end of the run, no stretch longer than a bound
may pass without an acknowledged operation. An interval shorter than the bound shows nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from tidelog.chaos.checkers.history import Outcome


class Interval(NamedTuple):
    """From ``begin_s`` to ``end_s``."""

    begin_s: float
    end_s: float
    why: str = "a majority was whole"

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s


class Operation(NamedTuple):
    """A request and its answer."""

    began_s: float
    ended_s: float
    outcome: Outcome


def stalls(operations: Iterable[Operation], intervals: Iterable[Interval], bound_s: float) -> list[Interval]:
    """Return the stretches of the intervals, longer than the bound, in which operations were wanted and none was
    acknowledged.

    A stretch begins when an operation is in progress after the last acknowledgement, and ends with the next one or, if
    successive operations within the bound all fail, with the last of them. Nothing stalls while nobody asks for
    anything.
    """
    known = list(operations)
    done_s = sorted(operation.ended_s for operation in known if operation.outcome is Outcome.OK)
    busy = _joined(known, 0.0)
    wanted = _joined(known, bound_s)
    found = []
    for interval in intervals:
        for begin_s, end_s in wanted:
            begin, end = max(begin_s, interval.begin_s), min(end_s, interval.end_s)
            inside = done_s[bisect_left(done_s, begin) : bisect_right(done_s, end)]
            for earlier, later in pairwise([begin, *inside, end]):
                since = _busy_from(busy, earlier)
                if later - since > bound_s:
                    found.append(Interval(since, later, interval.why))
    return found


def no_progress(operations: Iterable[Operation], intervals: Iterable[Interval], bound_s: float) -> list[str]:
    """Report where nothing was done for longer than the bound, although a majority could have worked."""
    return [
        f"progress: nothing was acknowledged from {stall.begin_s:.3f} s to {stall.end_s:.3f} s, though {stall.why}; "
        f"the bound is {bound_s:g} s"
        for stall in stalls(operations, intervals, bound_s)
    ]


def whole_intervals(changes: Sequence[tuple[float, bool]], end_s: float, settle_s: float = 0.0) -> list[Interval]:
    """Return the intervals in which a majority was whole, from the times at which that changed.

    ``changes`` rise in time and give the state from then on; before the first it is not. The first ``settle_s`` of
    each interval are left out.
    """
    found = []
    begin_s: float | None = None
    for at_s, is_whole in [*changes, (end_s, False)]:
        if is_whole and begin_s is None:
            begin_s = at_s
        elif not is_whole and begin_s is not None:
            if at_s - begin_s > settle_s:
                found.append(Interval(begin_s + settle_s, at_s))
            begin_s = None
    return found


def _joined(operations: Iterable[Operation], tolerance_s: float) -> list[tuple[float, float]]:
    """Return the times in which at least one operation was in progress, joined across short gaps."""
    found: list[tuple[float, float]] = []
    for began_s, ended_s, _ in sorted(operations, key=lambda operation: operation[:2]):
        if found and began_s <= found[-1][1] + tolerance_s:
            found[-1] = (found[-1][0], max(found[-1][1], ended_s))
        else:
            found.append((began_s, ended_s))
    return found


def _busy_from(busy: Sequence[tuple[float, float]], at_s: float) -> float:
    """Return the first moment from a time on at which an operation is in progress."""
    position = bisect_right(busy, at_s, key=lambda each: each[1])
    return max(at_s, busy[position][0]) if position < len(busy) else float("inf")
