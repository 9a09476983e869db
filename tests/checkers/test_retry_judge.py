"""The judge of retries: one history that is right, and each way in which it can be wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidelog.chaos.checkers.history import Outcome
from tidelog.chaos.checkers.patterns.retries import Call, Found, Place, RetryJudge, Task, TaskSend, Topics

TOPICS = Topics("tasks", "again", "dead")
OWN = (("own", b"1"), ("own", None))
TASKS = (
    Task(b"good", 0, "done"),
    Task(b"late", 1, "done"),
    Task(b"worst", 2, "done"),
    Task(b"bad", 0, "rejected"),
    Task(b"odd", 0, "invalid"),
    Task(b"lost", 0, "done"),
)


def copy(mark: bytes, at: int, attempt: int, origin: int) -> Found:
    told = {"attempt": attempt, "topic": "tasks", "partition": 0, "offset": origin}
    added = tuple((f"tidelog-retry-{name}", str(value).encode()) for name, value in told.items())
    return Found(mark, Place("again", 0, at), b"key", (*OWN, *added))


def letter(mark: bytes, at: int, reason: str, count: int, origin: int) -> Found:
    errors = {"topic": "tasks", "partition": 0, "offset": origin, "group": "g", "delivery.count": count, "message": "m"}
    told = {f"__dlq.errors.{name}": str(value) for name, value in errors.items()}
    told |= {"tidelog-dlq-reason": reason, "tidelog-dlq-exception": "e", "tidelog-dlq-stack": "s"}
    added = tuple((name, value.encode()) for name, value in told.items())
    return Found(mark, Place("dead", 0, at), b"key", (*OWN, *added))


def history() -> RetryJudge:
    made = RetryJudge(TOPICS, 2, "g")
    for task in TASKS:
        outcome = Outcome.UNKNOWN if task.mark == b"lost" else Outcome.OK
        made.sends[task.mark] = TaskSend(task, outcome, b"key", OWN)
    made.found = [
        Found(task.mark, Place("tasks", 0, offset), b"key", OWN)
        for offset, task in enumerate(TASKS)
        if task.mark != b"lost"
    ]
    made.found += [copy(b"late", 0, 1, 1), copy(b"worst", 1, 1, 2)]
    made.found += [letter(b"worst", 0, "attempts", 2, 2), letter(b"bad", 1, "rejected", 1, 3)]
    made.found += [letter(b"odd", 2, "invalid", 1, 4)]
    made.calls = [Call(task.mark, Place("tasks", 0, offset), not offset) for offset, task in enumerate(TASKS[:4])]
    made.calls += [Call(b"late", Place("again", 0, 0), True), Call(b"worst", Place("again", 0, 1), False)]
    made.calls += [Call(b"good", Place("tasks", 0, 0), True)]  # at least once
    return made


def test_what_is_right_is_right() -> None:
    judge = history()
    assert judge.judge() == []
    assert judge.missing() == set()


def drop(number: int) -> Callable[[RetryJudge], None]:
    return lambda judge: judge.found.pop(number) and None


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (drop(0), "b'good' was acknowledged, and is not there"),
        (drop(5), "came again after failure none, expected 1"),
        (drop(7), "has 0 dead letters, expected 1"),
        (lambda judge: judge.found.append(copy(b"late", 9, 1, 1)), "came again after failure 1 1, expected 1"),
        (lambda judge: judge.found.append(copy(b"late", 9, 2, 1)), "came again after failure 1 2, expected 1"),
        (lambda judge: judge.found.append(letter(b"worst", 9, "attempts", 2, 2)), "has 2 dead letters"),
        (lambda judge: judge.found.append(letter(b"good", 9, "attempts", 2, 0)), "has 1 dead letters, expected 0"),
        (lambda judge: judge.found.append(judge.found[0]), "was written 2 times"),
        (lambda judge: judge.found.append(copy(b"lost", 9, 1, 0)), "is not there, and came again or died"),
        (lambda judge: judge.found.append(copy(b"new", 9, 1, 0)), "b'new' was never sent"),
        (lambda judge: judge.found.__setitem__(5, copy(b"late", 0, 1, 3)), "as its origin"),
        (lambda judge: judge.found.__setitem__(7, letter(b"worst", 0, "rejected", 2, 2)), "says tidelog-dlq-reason"),
        (lambda judge: judge.found.__setitem__(7, letter(b"worst", 0, "attempts", 1, 2)), "delivery.count '1'"),
        (lambda judge: judge.found.__setitem__(5, judge.found[5]._replace(key=None)), "has the key None"),
        (
            lambda judge: judge.found.__setitem__(5, judge.found[5]._replace(headers=judge.found[5].headers[1:])),
            "has the headers (('own', None),)",
        ),
        (lambda judge: judge.calls.pop(4), "b'late', failures=1, end='done') was done at 0 places"),
        (lambda judge: judge.calls.pop(2), "was never handled at"),
        (lambda judge: judge.calls.append(Call(b"bad", Place("tasks", 0, 3), True)), "done at 1 places, expected 0"),
        (lambda judge: judge.calls.append(Call(b"odd", Place("tasks", 0, 4), False)), "though it cannot be read"),
        (lambda judge: judge.calls.append(Call(b"late", Place("again", 0, 7), False)), "committed find nothing"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(spoil: Callable[[RetryJudge], object], wrong: str) -> None:
    judge = history()
    spoil(judge)
    assert [text for text in judge.judge() if wrong in text], judge.judge()


def test_what_is_missing_is_waited_for() -> None:
    judge = history()
    judge.found = judge.found[:7]
    judge.calls = judge.calls[:-2]
    assert judge.missing() == {b"worst", b"bad", b"odd"}
    judge.found = []
    judge.calls = []
    assert judge.missing() == {task.mark for task in TASKS} - {b"lost"}
