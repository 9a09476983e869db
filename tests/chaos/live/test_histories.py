"""Histories as files: what is written is read again, a run that was cut short is told, and what is wrong is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.chaos.checkers.history import Outcome, Polled, Positioned, Sent, TransactionKey
from tidelog.chaos.live.history_file import BadHistory, HistoryFile, read_history
from tidelog.chaos.live.judgement import Verdict, judge, shown
from tidelog.model.ids import TopicPartition

AT = TopicPartition("log", 0)
OTHER = TopicPartition("log", 1)
RUN = {"version": 1, "seed": 3, "workload": "append", "topics": {"log": 2}, "schedule": []}


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
        self.wrong: list[str] = []
        self.ends = True

    def judged(self) -> Verdict:
        history = HistoryFile(self.path)
        history.write("run", **RUN)
        for each in self.sends:
            history.send(each)
        fault = {"options": {}, "nodes": [1], "controls": False, "trouble": ""}
        history.write(
            "fault", episode=1, act="kill", target="leader:0", at=0.42, until=0.43, leads=[["log", 0]], **fault
        )
        history.write("fault", episode=1, act="start", target="leader:0", at=0.6, until=0.6, leads=[], **fault)
        history.position(Positioned("r0", AT, 0))
        history.poll(Polled("r0", AT, self.polled, 1.0, 1.1))
        history.final(AT, 0, len(self.final), self.final)
        history.final(OTHER, 0, 0, [])
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


def test_a_torn_transaction_is_found(story: Story) -> None:
    story.sends = [sent(number, offset=number, transaction=1) for number in range(2)]
    story.polled, story.final = [], [(0, value(0))]
    history = HistoryFile(story.path)
    history.write("run", **RUN)
    for each in story.sends:
        history.send(each)
    history.transaction(TransactionKey("p0", 1), "t", Outcome.UNKNOWN, 0.0, 0.3, 0.4)
    history.final(AT, 0, 3, story.final)
    history.final(OTHER, 0, 0, [])
    history.close()
    assert any("torn" in text for text in judge(read_history(story.path)).violations)


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
