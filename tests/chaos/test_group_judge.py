"""The judge of the demo's group must reject every kind of bad reading, and nothing but bad ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.demo.log.group_judge import GroupVerdict, Handed, judge_group
from tidelog.demo.log.row_judge import LogRecord

LOG = [LogRecord(p, o, p * 100 + o, b"k", bytes([p, o])) for p in range(3) for o in range(10)]
Reading = dict[str, list[Handed]]


def handed(partition: int, first: int, end: int) -> list[Handed]:
    return [
        Handed(partition, offset, partition * 100 + offset, bytes([partition, offset])) for offset in range(first, end)
    ]


def reading() -> Reading:
    """Member "dead" read six of partition 1 and committed four; "b" began anew at the fifth."""
    return {"a": handed(0, 0, 10), "dead": handed(1, 0, 6), "b": handed(2, 0, 10) + handed(1, 4, 10)}


def verdict_of(change: Callable[[Reading], object] = lambda found: None) -> GroupVerdict:
    found = reading()
    change(found)
    return judge_group(LOG, found, "dead", {0: 10, 1: 4})


def test_accepts_redelivery_of_what_was_not_committed() -> None:
    verdict = verdict_of()
    assert verdict.passed
    assert verdict.examples == ()
    assert (verdict.handed, verdict.handed_to_dead, verdict.redelivered, verdict.uncommitted) == (32, 6, 2, 2)


def test_accepts_that_a_commit_came_through_at_the_last_moment() -> None:
    def later(found: Reading) -> None:
        del found["b"][10:12]

    verdict = verdict_of(later)
    assert verdict.passed
    assert (verdict.redelivered, verdict.uncommitted) == (0, 2)


@pytest.mark.parametrize(
    ("count", "change"),
    [
        ("lost", lambda found: found["a"].pop()),
        ("lost", lambda found: found["b"].__delitem__(slice(10, 13))),
        ("stray", lambda found: found["b"].insert(10, handed(1, 3, 4)[0])),
        ("stray", lambda found: found["a"].extend(handed(1, 5, 6))),
        ("stray", lambda found: found["dead"].insert(0, handed(0, 9, 10)[0])),
        ("changed", lambda found: found["a"].__setitem__(3, Handed(0, 3, 3, b"other"))),
        ("changed", lambda found: found["a"].__setitem__(3, Handed(0, 3, 4, bytes([0, 3])))),
        ("changed", lambda found: found["a"].append(Handed(0, 10, 10, b"beyond the end"))),
        ("backwards", lambda found: found["a"].reverse()),
    ],
)
def test_rejects(count: str, change: Callable[[Reading], object]) -> None:
    verdict = verdict_of(change)
    assert getattr(verdict, count) > 0
    assert not verdict.passed
    assert verdict.examples


def test_rejects_a_member_that_was_killed_before_it_had_anything() -> None:
    found = {"dead": [], "b": [*handed(0, 0, 10), *handed(1, 0, 10), *handed(2, 0, 10)]}
    assert not judge_group(LOG, found, "dead", {}).passed


@given(st.integers(0, 10), st.integers(0, 10), st.integers(0, 10))
def test_an_offset_is_allowed_twice_only_from_the_committed_one_on(read: int, committed: int, resumed: int) -> None:
    """A model in two numbers: the next reader may begin anywhere from the committed offset to the read end."""
    found = {"dead": handed(0, 0, read), "b": handed(0, resumed, 10), "c": handed(1, 0, 10) + handed(2, 0, 10)}
    verdict = judge_group(LOG, found, "dead", {0: min(committed, read)})
    assert verdict.lost == max(0, resumed - read)
    assert verdict.redelivered == max(0, read - resumed)
    assert verdict.passed == (read > 0 and min(committed, read) <= resumed <= read)
