"""Shrinking: the kept faults are enough, all of them are needed, and no more runs than allowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.chaos.simulated.runner.command import main
from tidelog.chaos.simulated.runner.shrink import BudgetSpent, FirstFailing, Indexes, Shrunk, ddmin

FILE = Path(__file__).with_name("counting_scenario.py")


def judge(fails: Callable[[Indexes], bool], asked: list[Indexes], runs_max: int = 100_000) -> FirstFailing:
    """A judge like that over a pool: runs one after the other, and stops where it may make no more."""

    def first_failing(candidates: Sequence[Indexes]) -> int | None:
        for index, candidate in enumerate(candidates):
            if len(asked) >= runs_max:
                raise BudgetSpent
            asked.append(candidate)
            if fails(candidate):
                return index
        return None

    return first_failing


def test_two_faults_of_twenty() -> None:
    asked: list[Indexes] = []
    assert ddmin(range(20), judge(lambda kept: {3, 7} <= set(kept), asked)) == Shrunk((3, 7), True)
    assert len(asked) < 40


def test_a_run_that_fails_without_any_fault_keeps_none() -> None:
    assert ddmin(range(20), judge(lambda kept: True, [])) == Shrunk((), True)
    assert ddmin((), judge(lambda kept: True, [])) == Shrunk((), True)


@settings(max_examples=100)
@given(st.integers(1, 60), st.data())
def test_exactly_what_is_needed_is_kept(count: int, data: st.DataObject) -> None:
    needed = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=8))
    asked: list[Indexes] = []
    shrunk = ddmin(range(count), judge(lambda kept: needed <= set(kept), asked))
    assert shrunk == Shrunk(tuple(sorted(needed)), True)
    assert len(asked) == len(set(asked)), "no schedule is run twice"


@settings(max_examples=100)
@given(st.integers(1, 30), st.integers(0, 2**32))
def test_where_fewer_faults_may_hold_again_none_that_is_kept_can_be_left_out(count: int, salt: int) -> None:
    whole = tuple(range(count))

    def fails(kept: Indexes) -> bool:
        return kept == whole or hash((kept, salt)) % 3 == 0

    shrunk = ddmin(whole, judge(fails, []))
    assert shrunk.minimal
    if fails(()):
        assert shrunk.keep == ()
        return
    assert fails(shrunk.keep)
    if len(shrunk.keep) > 1:
        assert not any(fails(shrunk.keep[:index] + shrunk.keep[index + 1 :]) for index in range(len(shrunk.keep)))


@pytest.mark.parametrize("runs_max", [0, 1, 5, 12])
def test_a_spent_budget_gives_the_smallest_so_far(runs_max: int) -> None:
    asked: list[Indexes] = []

    def fails(kept: Indexes) -> bool:
        return {3, 17, 29} <= set(kept)

    shrunk = ddmin(range(40), judge(fails, asked, runs_max))
    assert not shrunk.minimal
    assert fails(shrunk.keep)
    assert len(asked) == runs_max


def test_a_campaign_shrinks_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--file", str(FILE), "--scenario", "counting", "--seeds", "998-1002", "--shrink"]
    assert main(arguments) == 1
    out = capsys.readouterr().out
    assert "shrink counting, seed 1000: from 20 faults\n      2 faults are enough, all of them are needed" in out
    assert "\n         3  3.000 tick 3\n         7  7.000 tick 7\n      3 and 7 both happened\n" in out
    assert out.rstrip().endswith("--scenario counting --seed 1000 --keep 3,7")


def test_a_seed_shrinks_from_what_is_kept_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--file", str(FILE), "--scenario", "counting", "--seed", "1000", "--keep", "1,3,5,7", "--shrink"]
    assert main(arguments) == 1
    assert "from 4 faults\n      2 faults are enough" in capsys.readouterr().out


def test_shrinking_ends_after_so_many_runs(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--file", str(FILE), "--scenario", "counting", "--seed", "1000", "--shrink", "--shrink-runs", "3"]
    assert main(arguments) == 1
    assert "perhaps not the fewest: the budget is spent; 3 runs" in capsys.readouterr().out
