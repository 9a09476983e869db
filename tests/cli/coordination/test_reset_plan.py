"""The plan of ``groups reset-offsets``: each target, the log's ends, files of offsets, and what cannot be right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.failure import CommandFailed
from tidelog.cli.work.reset_plan import (
    Bounds,
    Move,
    ShiftBy,
    Target,
    ToCurrent,
    ToEarliest,
    ToLatest,
    ToListed,
    ToOffset,
    ToTime,
    parse_topic,
    plan_reset,
    read_offsets_file,
)
from tidelog.model.ids import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
BOUNDS = {A: Bounds(10, 100), B: Bounds(0, 50)}
COMMITTED = {A: 60}


@pytest.mark.parametrize(
    ("target", "a", "b", "noted"),
    [
        (ToEarliest(), 10, 0, ()),
        (ToLatest(), 100, 50, ()),
        (ToCurrent(), 60, 50, ("t-1: nothing is committed; using its end, 50",)),
        (ToOffset(40), 40, 40, ()),
        (ToOffset(5), 10, 5, ("t-0: 5 is before the first record; using 10",)),
        (ToOffset(70), 70, 50, ("t-1: 70 is beyond the end; using 50",)),
        (ToTime(1234), 33, 50, ("t-1: no record is that late; using its end, 50",)),
        (ToListed({A: 20, B: 51}), 20, 50, ("t-1: 51 is beyond the end; using 50",)),
    ],
)
def test_where_each_target_leads(target: Target, a: int, b: int, noted: tuple[str, ...]) -> None:
    plan = plan_reset(target, [B, A], COMMITTED, BOUNDS, {A: 33, B: -1})
    assert plan.moves == (Move(A, 60, a), Move(B, None, b))
    assert plan.notes == noted


@pytest.mark.parametrize(("count", "new"), [(5, 65), (-5, 55), (0, 60), (1000, 100), (-1000, 10)])
def test_a_shift_goes_from_what_is_committed_and_no_further_than_the_log(count: int, new: int) -> None:
    plan = plan_reset(ShiftBy(count), [A], COMMITTED, BOUNDS, {})
    assert plan.moves == (Move(A, 60, new),)
    assert bool(plan.notes) == (new in (10, 100))


def test_a_shift_from_nowhere() -> None:
    with pytest.raises(CommandFailed, match="t-1: expected a committed offset to shift, found none; use --to-offset"):
        plan_reset(ShiftBy(1), [A, B], COMMITTED, BOUNDS, {})


@given(
    st.one_of(
        st.sampled_from([ToEarliest(), ToLatest(), ToCurrent(), ToTime(0)]),
        st.builds(ToOffset, st.integers(0, 1 << 63)),
        st.builds(ShiftBy, st.integers(-(1 << 63), 1 << 63)),
    ),
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.integers(0, 3000),
    st.integers(-1, 3000),
)
def test_a_new_offset_is_always_one_that_the_log_has(
    target: Target, first: int, length: int, current: int, found: int
) -> None:
    bounds = Bounds(first, first + length)
    ((_, was, new),) = plan_reset(target, [A], {A: current}, {A: bounds}, {A: found}).moves
    assert was == current
    assert bounds.first <= new <= bounds.end


def test_a_file_of_one_group_and_of_several() -> None:
    assert read_offsets_file("f", ["t,0,5\n", "\n", "t, 1 ,6\n", '"u",0,0\n'], ("g",)) == {
        "g": ToListed({A: 5, B: 6, TopicPartition("u", 0): 0})
    }
    rows = ["g,t,0,5", "h,t,0,6", "other,t,0,7"]
    assert read_offsets_file("f", rows, ("g", "h")) == {"g": ToListed({A: 5}), "h": ToListed({A: 6})}
    assert read_offsets_file("f", rows, ("h",)) == {"h": ToListed({A: 6})}


@pytest.mark.parametrize(
    ("rows", "groups", "words"),
    [
        (["t,0"], ("g",), "f:1: expected topic,partition,offset, found 't,0'"),
        (["t,0,1", "t,0,1,2,3"], ("g",), "f:2: expected topic,partition,offset, found 't,0,1,2,3'"),
        (["t,0,1"], ("g", "h"), "f:1: expected group,topic,partition,offset, found 't,0,1'"),
        (["t,zero,1"], ("g",), "f:1: expected a partition from 0 to 2147483647, found 'zero'"),
        (["t,0,1", "t,1,-1"], ("g",), "f:2: expected an offset from 0 to 9223372036854775807, found '-1'"),
        (["t,0,9223372036854775808"], ("g",), "f:1: expected an offset from 0 to 9223372036854775807"),
        (["t,0," + "9" * 5000], ("g",), "f:1: expected an offset from 0 to 9223372036854775807"),
        (["t,0,1", "t,0,2"], ("g",), "f:2: expected each partition once, found t-0 twice"),
        ([], ("g",), "f: expected rows for group g, found none"),
        (["g,t,0,1"], ("g", "h"), "f: expected rows for group h, found none"),
        (["t,0,1" + "x" * 200_000], ("g",), "f:1: expected rows of CSV: field larger"),
    ],
)
def test_a_file_that_cannot_be_right_is_told_with_its_line(
    rows: list[str], groups: tuple[str, ...], words: str
) -> None:
    with pytest.raises(CommandFailed) as raised:
        read_offsets_file("f", rows, groups)
    assert words in str(raised.value)


def test_topics_with_and_without_partitions() -> None:
    assert parse_topic("t") == ("t", ())
    assert parse_topic("t:0,7,0") == ("t", (0, 7))
    for wrong in ("", ":1", "t:", "t:x", "t:-1", "t:1,", "t:1:2", "t:2147483648"):
        with pytest.raises(ValueError, match="expected NAME or NAME:0,1, found"):
            parse_topic(wrong)
