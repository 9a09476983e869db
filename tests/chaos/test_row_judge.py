"""The demo's judge must reject every kind of bad history, and nothing but bad ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.demo.log.flights import row_digest
from tidelog.demo.log.row_judge import LogRecord, Source, Verdict, judge

ROWS = 40
KEYS = [b"UA%d" % (row % 7) for row in range(ROWS)]
VALUES = [b'{"row":%d}' % row for row in range(ROWS)]
SOURCE = Source(KEYS, [row_digest(key, value) for key, value in zip(KEYS, VALUES, strict=True)])
Places = dict[int, tuple[int, int]]
History = tuple[Places, list[LogRecord]]


def history() -> History:
    """A flawless run over three partitions."""
    ends = [0, 0, 0]
    places: Places = {}
    log = []
    for row, key in enumerate(KEYS):
        partition = (row % 7) % 3
        places[row] = (partition, ends[partition])
        log.append(LogRecord(partition, ends[partition], row, key, SOURCE.digests[row]))
        ends[partition] += 1
    return places, log


def ends_of(log: list[LogRecord]) -> dict[int, tuple[int, int]]:
    return {number: (0, 1 + max(found.offset for found in log if found.partition == number)) for number in range(3)}


def verdict_of(change: Callable[[Places, list[LogRecord]], None] = lambda places, log: None) -> Verdict:
    places, log = history()
    ends = ends_of(log)
    change(places, log)
    grown = {number: (0, max(end, ends_of(log)[number][1])) for number, (_, end) in ends.items()}
    return judge(SOURCE, ROWS, places, log, grown)


def test_accepts_a_flawless_run() -> None:
    verdict = verdict_of()
    assert verdict.passed
    assert (verdict.sent, verdict.acknowledged, verdict.read) == (ROWS, ROWS, ROWS)
    assert verdict.source_digest == verdict.log_digest
    assert verdict.examples == ()


def lose(places: Places, log: list[LogRecord]) -> None:
    del log[11]


def lose_at_the_end(places: Places, log: list[LogRecord]) -> None:
    log.pop()


def duplicate(places: Places, log: list[LogRecord]) -> None:
    last = max((found for found in log if found.partition == log[5].partition), key=lambda found: found.offset)
    log.append(log[5]._replace(offset=last.offset + 1))


def duplicate_beside(places: Places, log: list[LogRecord]) -> None:
    """Twice in a row: no order is broken, only the count."""
    tail = max((found for found in log if found.partition == 1), key=lambda found: found.offset)
    log.append(tail._replace(offset=tail.offset + 1))


def swap(places: Places, log: list[LogRecord]) -> None:
    """Rows 3 and 10 have the same key; each is found at the other's offset, and acknowledged so."""
    first, second = log[3], log[10]
    assert first.key == second.key
    log[3], log[10] = first._replace(offset=second.offset), second._replace(offset=first.offset)
    places[3], places[10] = places[10], places[3]


def misplace(places: Places, log: list[LogRecord]) -> None:
    places[8] = (places[8][0], places[8][1] + 1)


def change_content(places: Places, log: list[LogRecord]) -> None:
    log[20] = log[20]._replace(digest=row_digest(KEYS[20], b"something else"))


def change_key(places: Places, log: list[LogRecord]) -> None:
    log[20] = log[20]._replace(key=b"XX1")


def invent(places: Places, log: list[LogRecord]) -> None:
    log.append(LogRecord(0, 1 + max(found.offset for found in log if found.partition == 0), -1, b"k", bytes(16)))


def split(places: Places, log: list[LogRecord]) -> None:
    """The last row of a key went to another partition; the one it left is shorter for it."""
    row = ROWS - 1
    moved = 1 + max(found.offset for found in log if found.partition == (log[row].partition + 1) % 3)
    log[row] = log[row]._replace(partition=(log[row].partition + 1) % 3, offset=moved)
    places[row] = (log[row].partition, moved)


def unacknowledged(places: Places, log: list[LogRecord]) -> None:
    del places[0]


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (lose, {"lost": 1, "unread": 1}),
        (lose_at_the_end, {"lost": 1, "unread": 1}),
        (duplicate, {"duplicated": 1, "out_of_order": 1}),
        (duplicate_beside, {"duplicated": 1}),
        (swap, {"out_of_order": 1}),
        (misplace, {"misplaced": 1}),
        (change_content, {"changed": 1}),
        (change_key, {"changed": 1}),
        (invent, {"foreign": 1}),
        (split, {"split_keys": 1, "unread": 1}),
        (unacknowledged, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_rejects(change: Callable[[Places, list[LogRecord]], None], fields: dict[str, int]) -> None:
    verdict = verdict_of(change)
    assert not verdict.passed
    counted = ("lost", "duplicated", "out_of_order", "misplaced", "changed", "foreign", "split_keys", "unread")
    assert {name: getattr(verdict, name) for name in counted if getattr(verdict, name)} == fields
    assert bool(verdict.examples) == bool(fields)


def test_rejects_an_empty_run() -> None:
    assert not judge(SOURCE, 0, {}, [], {}).passed


def test_a_changed_content_shows_in_the_checksum() -> None:
    verdict = verdict_of(change_content)
    assert verdict.source_digest != verdict.log_digest


@given(st.data())
def test_any_single_row_lost_or_doubled_is_found(data: st.DataObject) -> None:
    places, log = history()
    ends = ends_of(log)
    at = data.draw(st.integers(0, ROWS - 1))
    if data.draw(st.booleans()):
        del log[at]
    else:
        partition = data.draw(st.integers(0, 2))
        log.append(log[at]._replace(partition=partition, offset=ends[partition][1]))
        ends[partition] = (0, ends[partition][1] + 1)
    assert not judge(SOURCE, ROWS, places, log, ends).passed
