"""Progress within a bound of 2 s: operations and intervals that are stalls, and such that are not."""

from __future__ import annotations

import pytest

from tidelog.chaos.checkers.history import Outcome
from tidelog.chaos.checkers.progress import Interval, Operation, no_progress, stalls, whole_intervals

OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN
BOUND_S = 2.0
WHOLE = [Interval(0.0, 10.0)]


def operations(*each: tuple[float, float, Outcome]) -> list[Operation]:
    return [Operation(*one) for one in each]


STALLED = {
    "never answered well": (operations((1, 9, UNKNOWN)), WHOLE, [(1, 9)]),
    "answered late": (operations((1, 4, OK)), WHOLE, [(1, 4)]),
    "one after another comes to nothing": (operations((1, 2, FAILED), (2.5, 3.5, UNKNOWN)), WHOLE, [(1, 3.5)]),
    "nothing after the first": (operations((1, 2, OK), (2.5, 5, FAILED)), WHOLE, [(2.5, 5)]),
    "after healing": (operations((1, 9, UNKNOWN)), [Interval(6.0, 9.5)], [(6, 9)]),
    "in one of two intervals": (operations((0, 9, UNKNOWN)), [Interval(0, 1), Interval(5, 8)], [(5, 8)]),
}
FLOWING = {
    "answered within the bound": (operations((1, 2, OK), (2, 3, OK)), WHOLE),
    "one fails, the next is done": (operations((1, 1.5, FAILED), (1.6, 2.5, OK)), WHOLE),
    "nobody asks for anything": (operations((1, 2, OK), (8, 9, OK)), WHOLE),
    "asked within the bound after a pause": (operations((1, 2, OK), (3.9, 5.8, OK)), WHOLE),
    "another client's is done meanwhile": (operations((1, 4, UNKNOWN), (2, 3, OK)), WHOLE),
    "no majority": (operations((1, 9, UNKNOWN)), []),
    "too short an interval": (operations((1, 9, UNKNOWN)), [Interval(3.0, 4.5)]),
}


@pytest.mark.parametrize(
    ("given", "intervals", "expected"), [pytest.param(*each, id=name) for name, each in STALLED.items()]
)
def test_stalls(given: list[Operation], intervals: list[Interval], expected: list[tuple[float, float]]) -> None:
    assert [(stall.begin_s, stall.end_s) for stall in stalls(given, intervals, BOUND_S)] == expected
    (text,) = no_progress(given, intervals, BOUND_S)
    assert text.startswith("progress: nothing was acknowledged from")


@pytest.mark.parametrize(("given", "intervals"), [pytest.param(*each, id=name) for name, each in FLOWING.items()])
def test_flows(given: list[Operation], intervals: list[Interval]) -> None:
    assert no_progress(given, intervals, BOUND_S) == []


def test_intervals_in_which_a_majority_was_whole() -> None:
    changes = [(1.0, True), (3.0, False), (4.0, False), (5.0, True), (6.0, True), (7.0, False), (8.5, True)]
    spans = [(each.begin_s, each.end_s) for each in whole_intervals(changes, 9.0)]
    assert spans == [(1.0, 3.0), (5.0, 7.0), (8.5, 9.0)]
    settled = [(each.begin_s, each.end_s) for each in whole_intervals(changes, 9.0, settle_s=1.0)]
    assert settled == [(2.0, 3.0), (6.0, 7.0)]
    assert whole_intervals([], 9.0) == []
