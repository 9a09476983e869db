"""The judge of the outbox: one history that is right, and each way in which it can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidelog.chaos.checkers.patterns.outbox import OutboxJudge, Row, Sent

ROWS = [Row("1", "order", "a", b"one"), Row("2", "order", "b", b"two"), Row("3", "order", "a", b"three")]
ROWS += [Row("4", "mail", "a", b"four")]


def history() -> OutboxJudge:
    made = OutboxJudge(lambda kind: f"{kind}s")
    made.committed = {row.id: row for row in ROWS}
    places = {"2": ("orders", 0, 0), "1": ("orders", 0, 1), "3": ("orders", 0, 3), "4": ("mails", 0, 0)}
    made.sent = [
        Sent(row_id, *place, made.committed[row_id].key.encode(), made.committed[row_id].value)
        for row_id, place in places.items()
    ]
    return made


def test_what_is_right_is_right() -> None:
    judge = history()
    assert (judge.judge(), judge.missing()) == ([], [])


def change(number: int, **changed: Any) -> Callable[[OutboxJudge], object]:
    return lambda judge: judge.sent.__setitem__(number, judge.sent[number]._replace(**changed))


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (lambda judge: judge.sent.pop(), "b'four') was committed, and never came"),
        (lambda judge: judge.sent.append(judge.sent[0]._replace(offset=9)), "b'two') came again"),
        (lambda judge: judge.committed.pop("2"), "no committed row has its id"),
        (change(1, offset=4), "and was committed before it"),
        (change(0, value=None), "b'two') came as"),
        (change(0, key=b"c"), "b'two') came as"),
        (change(0, topic="mails"), "b'two') came as"),
    ],
)
def test_what_is_wrong_is_told(spoil: Callable[[OutboxJudge], object], wrong: str) -> None:
    judge = history()
    spoil(judge)
    assert [text for text in judge.judge() if wrong in text], judge.judge()
