"""The judge of readers with a filter: one history that is right, and each way in which it can be wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidelog.chaos.checkers.history import Outcome, Sent
from tidelog.chaos.checkers.patterns.filters import FilteredReading, judge_filters, tag_of
from tidelog.model.ids import TopicPartition

P = TopicPartition("t", 0)
OFTEN, RARE, LATER, LOST, REFUSED = b"t0:0:", b"t0:75:", b"t0:76:", b"t0:77:", b"t0:78:"
SENDS = [
    Sent("t0", 0, P, OFTEN, Outcome.OK, 3),
    Sent("t0", 75, P, RARE, Outcome.OK, 4),
    Sent("t0", 76, P, LATER, Outcome.OK, 7),
    Sent("t0", 77, P, LOST, Outcome.UNKNOWN),
    Sent("t0", 78, P, REFUSED, Outcome.FAILED),
]
LOG = [(3, OFTEN), (4, RARE), (7, LATER)]
READING = FilteredReading("r", P, (b"rare",), 2, 8, [(4, RARE), (7, LATER)])


def judge(*records: tuple[int, bytes], start: int = 2, end: int = 8, compacted: bool = False) -> list[str]:
    reading = replace(READING, records=list(records), start=start, end=end)
    return list(judge_filters(SENDS, [reading], {P: LOG}, [P] if compacted else ()))


def test_what_is_right_is_right() -> None:
    assert [tag_of(value) for value in (OFTEN, RARE, LATER, LOST, b"p1:0:")] == [b"often", *[b"rare"] * 3, None]
    assert judge(*READING.records) == []
    assert judge((7, LATER), start=5) == []
    assert judge((4, RARE), end=7) == []
    assert judge((4, RARE), (6, LOST), (7, LATER)) == [], "it may have been written, and have expired since"


def test_a_compacted_log_owes_the_last_of_each_key() -> None:
    log = {P: [(4, RARE), (9, b"t0:87:")]}  # of one key
    reading = replace(READING, records=[], end=9)
    assert list(judge_filters(SENDS, [reading], log, [P])) == []
    assert "did not get b't0:75:' at 4" in next(judge_filters(SENDS, [reading], log))


@pytest.mark.parametrize(
    ("records", "wrong"),
    [
        (((4, RARE),), "did not get b't0:76:' at 7, and read on to 8"),
        (((4, RARE), (5, RARE), (7, LATER)), "got b't0:75:' at 4 and again at 5"),
        (((4, RARE), (7, LATER), (4, RARE)), "got offset 4 after 7"),
        (((3, OFTEN), (4, RARE), (7, LATER)), "got b't0:0:' at 3, which it does not want"),
        (((4, RARE), (6, REFUSED), (7, LATER)), "got b't0:78:' at 6, which nobody wrote"),
        (((4, RARE), (6, b"t0:79:"), (7, LATER)), "got b't0:79:' at 6, which nobody wrote"),
        (((4, RARE), (7, LATER), (8, LOST)), "got offset 8, and has read only to 8"),
    ],
)
def test_what_is_wrong_is_found(records: tuple[tuple[int, bytes], ...], wrong: str) -> None:
    found = judge(*records)
    assert len(found) == 1, found
    assert wrong in found[0]


def test_an_acknowledged_record_is_where_it_was_acknowledged() -> None:
    assert "got b't0:76:' at 6, which was acknowledged at 7" in judge((4, RARE), (6, LATER))[0]
