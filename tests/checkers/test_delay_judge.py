"""The judge of delay topics: one history that is right, and each way in which it can be wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidelog.chaos.checkers.delays import Arrival, DelayedSend, judge_delays
from tidelog.chaos.checkers.history import Outcome

SENDS = [
    DelayedSend(b"a", Outcome.OK, 10),
    DelayedSend(b"b", Outcome.OK, 10),
    DelayedSend(b"lost", Outcome.UNKNOWN, 10),
    DelayedSend(b"gone", Outcome.OK, 10),
    DelayedSend(b"cancel", Outcome.OK, 20, cancels=b"gone"),
    DelayedSend(b"refused", Outcome.FAILED, 10),
]
A = Arrival(b"a", ("bills", 0), 0, (0, 0), 10_000, 10_000, 10_050)
B = Arrival(b"b", ("bills", 0), 1, (0, 1), 20_000, 20_000, 20_050)


def judge(*arrivals: Arrival, ahead_ms: int = 0) -> list[str]:
    return judge_delays(SENDS, arrivals, ahead_ms, ahead_ms)


def test_what_is_right_is_right() -> None:
    assert judge(A, B) == []
    assert judge(A, B, replace_mark(B, b"lost", offset=2)) == [], "nobody knows whether it was written"


def replace_mark(arrival: Arrival, mark: bytes, **changed: int) -> Arrival:
    return arrival._replace(mark=mark, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arrivals", "wrong"),
    [
        ((A,), "b'b' was acknowledged, and never came"),
        ((A, B, B._replace(offset=2)), "b'b' came 2 times"),
        ((A, B, replace_mark(B, b"x", offset=2)), "b'x' was never sent"),
        ((A, B, replace_mark(B, b"refused", offset=2)), "b'refused' was refused, and came"),
        ((A, B, replace_mark(B, b"gone", offset=2)), "b'gone' came although it was cancelled"),
        ((A, B._replace(seen_ms=19_000)), "b'b' came 1000 ms early"),
        ((A._replace(offset=5), B), "b'a' came after b'b'; they were due at 10000 and 20000"),
    ],
)
def test_what_is_wrong_is_found(arrivals: tuple[Arrival, ...], wrong: str) -> None:
    found = judge(*arrivals)
    assert len(found) == 1, found
    assert wrong in found[0]


def test_what_was_put_off_comes_by_its_later_time() -> None:
    put_off = A._replace(offset=5, moved_ms=20_000, seen_ms=30_000)
    tied = B._replace(origin=(0, 0)), put_off._replace(origin=(0, 1))
    assert judge(B, put_off) == judge(*tied) == []
    assert "10000 ms early" in judge(B, put_off._replace(seen_ms=10_000))[0]
    assert "b'a' came after b'b'" in judge(B._replace(moved_ms=30_000, seen_ms=30_000), put_off)[0]
    cancelled = Arrival(b"gone", ("bills", 0), 3, (0, 3), 3_000, 9_000, 9_000)
    assert judge(A, B._replace(offset=7), cancelled) == [], "it was due, and put off, when its cancel came"


def test_a_clock_that_was_ahead_excuses_as_much() -> None:
    early = B._replace(seen_ms=19_000)
    assert judge(A, early, ahead_ms=1_000) == []


def test_what_came_to_the_log_late_may_be_out_of_order() -> None:
    sends = [replace(SENDS[0], ended_ms=19_000), *SENDS[1:]]
    assert judge_delays(sends, [A._replace(offset=5, seen_ms=30_000), B], 0, 0) == []
