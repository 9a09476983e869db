"""Histories as files: they are read back as written, a run that was cut short is reported, and errors are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.chaos.checkers.history import Outcome, Polled, Positioned, Sent, TransactionKey
from tidelog.chaos.laboratory.history.history_file import BadHistory, HistoryFile, read_history
from tidelog.chaos.laboratory.judge.judgement import Verdict, judge, shown
from tidelog.model.ids import TopicPartition

AT = TopicPartition("log", 0)
OTHER = TopicPartition("log", 1)
RUN = {"version": 1, "seed": 3, "workload": "append", "nodes": 3, "topics": {"log": 2}, "schedule": []}


def sent(number: int, outcome: Outcome = Outcome.OK, offset: int = -1, transaction: int | None = None) -> Sent:
    key = None if transaction is None else TransactionKey("p0", transaction)
    value = b"p0:%d:" % number
    return Sent("p0", number, AT, value, outcome, offset, number * 0.1, number * 0.1 + 0.05, key)


def value(number: int) -> bytes:
    return b"p0:%d:" % number


class Story:
    """A run as it should be: ten records, all acknowledged and read; one fault. Each test spoils it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sends = [sent(number, offset=number) for number in range(10)]
        self.polled = [(number, value(number)) for number in range(10)]
        self.final = list(self.polled)
        self.copies = [[1, 700, "ab"], [2, 700, "ab"], [3, 700, "ab"]]
        self.wrong: list[str] = []
        self.ends = True

    def judged(self) -> Verdict:
        history = HistoryFile(self.path)
        history.write("run", **RUN)
        for each in self.sends:
            history.send(each)
        fault = {"options": {}, "nodes": [1], "controls": True, "trouble": ""}
        history.write(
            "fault", episode=1, act="kill", target="leader:0", at=0.42, until=0.43, leads=[["log", 0]], **fault
        )
        history.write("fault", episode=1, act="start", target="leader:0", at=0.6, until=0.6, leads=[], **fault)
        history.position(Positioned("r0", AT, 0))
        history.poll(Polled("r0", AT, self.polled, 1.0, 1.1))
        history.final(AT, 0, len(self.final), self.final)
        history.final(OTHER, 0, 0, [])
        history.write("standing", at=0.1, controller=1, partitions=[["log", 0, 1, [1, 2, 3]], ["log", 1, 2, [1, 2, 3]]])
        history.write("standing", at=0.5, controller=2, partitions=[["log", 0, 2, [2, 3]], ["log", 1, 2, [2, 3]]])
        history.write("standing", at=1.0, controller=2, partitions=[["log", 0, 2, [1, 2, 3]], ["log", 1, 2, [1, 2, 3]]])
        history.write("replicas", topic="log", partition=0, copies=self.copies)
        history.write("elected", at=-2.0, node=1, epoch=1)
        history.write("elected", at=0.55, node=2, epoch=2)
        for text in self.wrong:
            history.wrong(text)
        if self.ends:
            history.close()
        history.abandon()
        return judge(read_history(self.path))


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path / "history.jsonl")


def test_what_is_as_it_should_be_holds(story: Story) -> None:
    verdict = story.judged()
    assert verdict.violations == []
    assert verdict.sends == {Outcome.OK: 10}
    assert (verdict.records, verdict.reads, verdict.faults) == (10, 10, 1)
    (recovery,) = verdict.recoveries
    assert recovery.worst_s == pytest.approx(0.55 - 0.42)
    assert verdict.elections_s == pytest.approx([0.13])
    assert verdict.whole_s == pytest.approx([0.4])
    text = shown(verdict, RUN)
    assert "held" in text
    assert "after kill" in text


def test_a_lost_record_is_found(story: Story) -> None:
    del story.final[9], story.polled[9]
    assert any("unseen" in text and "p0:9:" in text for text in story.judged().violations)


def test_a_record_that_was_read_and_is_gone_is_found(story: Story) -> None:
    story.sends[9] = sent(9, Outcome.UNKNOWN)
    del story.final[9]
    assert any("vanished" in text for text in story.judged().violations)


def test_a_duplicate_is_found(story: Story) -> None:
    story.final.append((10, value(4)))
    assert any("duplicate" in text for text in story.judged().violations)


def test_what_failed_and_shows_is_found(story: Story) -> None:
    story.sends[5] = sent(5, Outcome.FAILED)
    assert any("G1a" in text for text in story.judged().violations)


def test_a_reader_that_skips_is_found(story: Story) -> None:
    del story.polled[5]
    assert any("poll-skip" in text for text in story.judged().violations)


def test_replicas_that_differ_are_found(story: Story) -> None:
    story.copies[2] = [3, 690, "cd"]
    assert any("replicas of log-0 differ" in text for text in story.judged().violations)


def test_a_replica_that_is_not_there_is_found(story: Story) -> None:
    del story.copies[2]
    assert story.judged().violations == ["log-0: expected 3 copies, found 2"]


def test_what_a_client_saw_counts(story: Story) -> None:
    story.wrong.append("r0: the end of log-0 went back")
    assert story.judged().violations == ["r0: the end of log-0 went back"]


def test_a_run_without_an_end_does_not_hold(story: Story) -> None:
    story.ends = False
    assert any("no end" in text for text in story.judged().violations)


def test_a_partition_that_nobody_read_at_the_end_does_not_hold(story: Story) -> None:
    story.judged()
    text = story.path.read_text()
    lines = [line for line in text.splitlines(keepends=True) if '"final"' not in line or '"partition":1' not in line]
    story.path.write_text("".join(lines))
    assert judge(read_history(story.path)).violations == ["not read at the end: log-1"]


class Bank:
    """Two transfers, the second of which nobody heard of, and a reader of what counts. Each test spoils it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes = [Outcome.OK, Outcome.UNKNOWN]
        self.records = [[(0, b"0=90;b0.1:1"), (1, b"1=110;b0.1:1")], [(3, b"0=80;b0.1:2"), (4, b"1=120;b0.1:2")]]
        self.final = [record for records in self.records for record in records]
        self.shown = [(record, 1.5) for record in self.final]
        self.snapshot = {"0": 90, "1": 110, "2": 100, "3": 100, "4": 100, "5": 100}
        self.asked = [0.3, 1.2]

    def judged(self) -> list[str]:
        history = HistoryFile(self.path)
        at, number = TopicPartition("bank", 0), 0
        history.write("run", **{**RUN, "topics": {"bank": 1}})
        for index, records in enumerate(self.records):
            key = TransactionKey("b0.1", index + 1)
            for offset, text in records:
                history.send(Sent("b0.1", number, at, text, Outcome.OK, offset, index + 0.1, index + 0.2, key))
                number += 1
            history.transaction(key, "b0", self.outcomes[index], index + 0.0, self.asked[index], index + 0.4)
        history.position(Positioned("r0", at, 0))
        for record, ended in self.shown:
            history.poll(Polled("r0", at, [record], ended - 0.1, ended, read_committed=True))
        history.write("snapshot", who="b0.2", balances=self.snapshot, at=0.9)
        history.final(at, 0, 6, self.final)
        history.close()
        return judge(read_history(self.path)).violations


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    return Bank(tmp_path / "history.jsonl")


def test_a_bank_as_it_should_be_holds(bank: Bank) -> None:
    assert bank.judged() == []


def test_what_nobody_heard_of_may_be_there_whole_or_not_at_all(bank: Bank) -> None:
    del bank.final[2:], bank.shown[2:]
    assert bank.judged() == []


def test_a_torn_transaction_is_found(bank: Bank) -> None:
    del bank.final[3], bank.shown[3]
    found = bank.judged()
    assert any("torn" in text for text in found)
    assert any("the sum: the read at the end found 590" in text for text in found)


def test_an_aborted_transaction_that_counts_is_found(bank: Bank) -> None:
    bank.outcomes[1] = Outcome.FAILED
    assert any("was aborted, and 2 of 2 records count" in text for text in bank.judged())


def test_a_committed_transaction_that_does_not_count_is_found(bank: Bank) -> None:
    bank.outcomes[1] = Outcome.OK
    del bank.final[2:], bank.shown[2:]
    assert any("was committed, and" in text for text in bank.judged())


def test_what_is_shown_before_its_commit_is_found(bank: Bank) -> None:
    bank.asked[1] = 1.6
    assert any("before its commit was asked for" in text for text in bank.judged())


def test_a_reader_that_is_not_shown_what_counts_is_found(bank: Bank) -> None:
    del bank.shown[1]
    assert any("only what counts" in text for text in bank.judged())


def test_a_teller_that_finds_another_sum_is_found(bank: Bank) -> None:
    bank.snapshot["5"] = 90
    assert any("the sum: b0.2 found 590" in text for text in bank.judged())


def test_a_tellers_sign_is_no_balance(bank: Bank) -> None:
    sign = (5, b"sign=b0.2:1:0")
    bank.records[1].append(sign)
    bank.final.append(sign)
    bank.shown.append((sign, 1.5))
    assert bank.judged() == []
    del bank.final[-1]
    assert any("torn" in text for text in bank.judged())


def test_a_line_that_was_being_written_is_left_out(story: Story) -> None:
    story.judged()
    whole = story.path.read_text()
    story.path.write_text(whole[: whole.index('"send"') + 60])
    recorded = read_history(story.path)
    assert not recorded.complete
    assert recorded.history.sends == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "found an empty file"),
        ("hello\n", "line 1: expected JSON"),
        ("[]\n", "line 1: expected an object"),
        ('{"kind":"send"}\n', "line 1: expected a line of kind run"),
        ('{"kind":"run","version":9}\n', "expected a history of version 1, found 9"),
        ('{"kind":"run","version":1}\n{"kind":"cake"}\n', "line 2: ValueError: expected a kind of line, found 'cake'"),
        ('{"kind":"run","version":1}\n{"kind":"send"}\n', "line 2: KeyError"),
    ],
)
def test_what_is_no_history_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(text)
    with pytest.raises(BadHistory, match=says):
        read_history(path)


def test_a_history_is_bounded(tmp_path: Path) -> None:
    history = HistoryFile(tmp_path / "history.jsonl", lines_max=3)
    history.write("run", **RUN)
    for _ in range(5):
        history.note("x")
    history.abandon()
    assert history.dropped == 3
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 3
