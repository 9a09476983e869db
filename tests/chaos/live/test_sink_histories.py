"""The judgement of sinks by a history: what holds, and each thing that must not be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.chaos.checkers.history import Polled, Positioned
from tidelog.chaos.checkers.sinks import Row
from tidelog.chaos.laboratory.history.history_file import HistoryFile, read_history
from tidelog.chaos.laboratory.judge.judgement import judge
from tidelog.chaos.workloads.sinks import BATCHES
from tidelog.model.ids import TopicPartition

AT = TopicPartition(BATCHES, 0)


def rows(batch: int, job: str, count: int) -> list[bytes]:
    return [Row("sink0", batch, job, 0, number).encoded for number in range(count)]


class Written:
    """Batch 0 of two rows by job b, after job a was aborted; batch 1 of one row. Each test spoils it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values = [*rows(0, "b", 2), *rows(1, "c", 1)]
        self.told = {0: ["b", "b"], 1: ["c"]}
        self.noted = 1
        self.ledger: dict[str, dict[str, int]] | None = {"last": {"sink0": 1}}

    def judged(self) -> list[str]:
        history = HistoryFile(self.path)
        history.write("run", version=1, seed=1, workload="sinks", nodes=1, topics={BATCHES: 1}, schedule=[])
        records = list(enumerate(self.values))
        history.position(Positioned("skr0", AT, 0))
        history.poll(Polled("skr0", AT, records, 0.5, 0.6, read_committed=True))
        asked = {"a": 2, "b": 2}
        history.write("batch", sink="sink0", number=0, rows=2, asked=asked, told=self.told[0], aborted=["a"])
        history.write("batch", sink="sink0", number=1, rows=1, asked={"c": 1}, told=self.told[1], aborted=[])
        if self.ledger is not None:
            history.write("sinks", noted={"sink0": self.noted}, **self.ledger)
        history.final(AT, 0, len(records), records)
        history.close()
        return judge(read_history(self.path)).violations


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "history.jsonl")


def test_what_was_decided_once_holds(written: Written) -> None:
    assert written.judged() == []


def test_a_row_that_is_gone(written: Written) -> None:
    del written.values[1]
    assert written.judged() == ["whole: batch 0 of sink0: 1 rows of 2 are seen of job b"]


def test_a_job_that_was_told_to_be_aborted(written: Written) -> None:
    written.values[:2] = rows(0, "a", 2)
    written.told[0] = []
    assert written.judged() == ["decided: batch 0 of sink0 is seen of job a, which was told to be aborted"]


def test_a_batch_of_two_jobs(written: Written) -> None:
    written.values += rows(0, "a", 2)
    assert "once: batch 0 of sink0 is seen of jobs a, b" in written.judged()


def test_two_decisions(written: Written) -> None:
    written.told[1].append("d")
    assert written.judged() == ["one decision: batch 1 of sink0 was told to be decided for c, d"]


def test_a_decision_that_its_ledger_has_forgotten(written: Written) -> None:
    written.ledger = {"last": {"sink0": 0}}
    assert "kept: sink0 has noted batch 1, but the ledger's last is 0" in written.judged()


def test_a_history_that_says_nothing_of_ledgers(written: Written) -> None:
    written.ledger = None
    assert written.judged() == ["sinks: expected a line of what their ledgers say in the end, found none"]
