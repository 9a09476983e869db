"""The judges of queries accept legal histories, and reject each illegal one."""

from __future__ import annotations

import pytest

from tidelog.chaos.checkers.history import Polled
from tidelog.chaos.checkers.spark import Batches, Copy, RangeRead, each_once, only_decided, same_rows
from tidelog.model.ids import TopicPartition

AT = TopicPartition("inputs", 1)
SOURCE = {AT: [(2, b"a"), (4, b"b"), (5, b"c"), (9, b"d")]}
QUERY = Batches("q", AT, 3, (5, 5, 9))
"""It began at 3; batch 1 has nothing of this partition, and offset 9 is of no batch yet."""


def copies() -> list[Copy]:
    return [Copy("q", 0, "i", 1, 4, b"b"), Copy("q", 2, "j", 1, 5, b"c")]


def test_a_copy_is_read_as_it_was_written() -> None:
    copy = Copy("q", 3, "j-1", 2, 7, b"w0.1:5")
    assert Copy.decoded(copy.encoded) == copy


@pytest.mark.parametrize(("offset", "batch"), [(2, None), (3, 0), (4, 0), (5, 2), (8, 2), (9, None)])
def test_an_offset_belongs_to_the_batch_whose_range_has_it(offset: int, batch: int | None) -> None:
    assert QUERY.of(offset) == batch


def test_each_row_once() -> None:
    assert each_once(SOURCE, [QUERY], copies()) == []
    other = QUERY._replace(sink="r", begin=0, ends=())
    assert each_once(SOURCE, [QUERY, other], copies()) == []


@pytest.mark.parametrize(
    ("there", "text"),
    [
        (copies()[:1], "each once: q has 0 copies of b'c'"),
        ([*copies(), copies()[0]], "each once: q has 2 copies of b'b'"),
        ([*copies(), Copy("q", 0, "k", 1, 4, b"b")], "batch 0 of job i, batch 0 of job k"),
        ([copies()[0]._replace(batch=1), copies()[1]], "by batch 1; 0 is due"),
        ([copies()[0]._replace(value=b"x"), copies()[1]], "has b'x' as its copy of b'b'"),
        ([*copies(), Copy("q", 0, "i", 1, 2, b"a")], "due by no batch of its range"),
        ([*copies(), Copy("q", 2, "j", 1, 9, b"d")], "due by no batch of its range"),
        ([*copies(), Copy("q", 2, "j", 1, 6, b"aborted")], "has b'aborted' of partition 1 offset 6: no such row"),
        ([*copies(), Copy("other", 2, "j", 1, 5, b"c")], "other has b'c' of partition 1 offset 5: no such row"),
    ],
)
def test_anything_else_is_told(there: list[Copy], text: str) -> None:
    found = each_once(SOURCE, [QUERY], there)
    assert len(found) == 1
    assert text in found[0]


def test_who_reads_a_range_finds_what_counts_in_it() -> None:
    whole = RangeRead("t", "q", 0, AT, 3, 9, [(4, b"b"), (5, b"c")])
    assert same_rows(SOURCE, [whole, whole, whole._replace(start=6, rows=[])]) == []


@pytest.mark.parametrize("rows", [[], [(4, b"b")], [(5, b"c"), (4, b"b")], [(4, b"b"), (5, b"c"), (9, b"d")]])
def test_who_reads_something_else_is_told(rows: list[tuple[int, bytes]]) -> None:
    (text,) = same_rows(SOURCE, [RangeRead("t", "q", 0, AT, 3, 9, rows)])
    assert text.startswith(f"same rows: t read {len(rows)} rows of inputs-1 [3, 9) in batch 0; 2 are due")


def test_nobody_is_shown_what_nobody_asked_to_be_committed() -> None:
    poll = Polled("rc", TopicPartition("outputs", 0), [(0, copies()[0].encoded)], 1.0, 2.0)
    assert only_decided([poll], {("q", 0, "i"): 1.9}) == []
    (late,) = only_decided([poll], {("q", 0, "i"): 2.1})
    assert late.startswith("only decided: rc was shown ")
    assert len(only_decided([poll], {("q", 0, "j"): 1.0})) == 1
