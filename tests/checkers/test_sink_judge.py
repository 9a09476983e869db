"""The judge of sinks accepts legal histories, and rejects each illegal one."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.chaos.checkers.sinks import Batch, Row, judge_batches


def rows(batch: int, job: str, count: int = 2) -> list[bytes]:
    return [Row("s", batch, job, 0, number).encoded for number in range(count)]


def batches() -> list[Batch]:
    return [
        Batch("s", 0, 2, {"i": 2, "j": 2}, ["j"], ["i"]),
        Batch("s", 1, 0, {"k": 0}, ["k"]),
        Batch("s", 2, 2, {"l": 2, "m": 2}, []),
    ]


def judged(seen: list[bytes], known: list[Batch] | None = None, noted: int = 1, last: int = 2) -> list[str]:
    return judge_batches(seen, batches() if known is None else known, {"s": noted}, {"s": last})


def test_rows_are_read_as_they_were_written() -> None:
    row = Row("s", 3, "j-1", 2, 7)
    assert Row.decoded(row.encoded) == row


@pytest.mark.parametrize("job", ["l", "m"])
def test_whichever_job_was_decided_when_nobody_was_told(job: str) -> None:
    assert judged([*rows(0, "j"), *rows(2, job)]) == []
    assert judged(rows(0, "j"), last=1) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"seen": [*rows(0, "j"), *rows(0, "j")[:1]]}, "once: batch 0 of s: "),
        ({"seen": [*rows(0, "j"), *rows(0, "i")]}, "once: batch 0 of s is seen of jobs i, j"),
        ({"seen": rows(0, "j", 1)}, "whole: batch 0 of s: 1 rows of 2"),
        ({"seen": []}, "whole: batch 0 of s was decided for j, but is seen of nobody"),
        ({"seen": rows(0, "i")}, "whole: batch 0 of s was decided for j"),
        ({"seen": rows(0, "i")}, "decided: batch 0 of s is seen of job i, which was told to be aborted"),
        ({"seen": rows(0, "x")}, "of job x, which nobody asked"),
        ({"seen": [*rows(0, "j"), *rows(2, "l")], "last": 1}, "decided: batch 2 of s is seen, but the last"),
        ({"seen": rows(0, "j"), "last": 2}, "whole: batch 2 of s is decided, but none of its 2 rows"),
        ({"seen": rows(0, "j"), "last": 0}, "kept: batch 1 of s was decided, but the ledger's last is 0"),
        ({"seen": rows(0, "j"), "last": 1, "noted": 2}, "kept: s has noted batch 2"),
        ({"seen": [], "known": [Batch("s", 0, 0, {}, ["j", "k"])], "last": 0, "noted": 0}, "for j, k"),
    ],
)
def test_what_may_not_be(change: dict[str, Any], text: str) -> None:
    assert [found for found in judged(**change) if text in found]
