"""The judgement of compacted topics by a history: what holds, and each thing that must not be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidelog.chaos.checkers.compaction import KeyedRecord
from tidelog.chaos.checkers.history import Outcome
from tidelog.chaos.checkers.keyed_history import KeyedWrite, ReadRecord, Scan
from tidelog.chaos.laboratory.history.history_file import HistoryFile, read_history
from tidelog.chaos.laboratory.history.keyed_lines import write_kept, write_scan, write_sent
from tidelog.chaos.laboratory.judge.judgement import judge
from tidelog.chaos.laboratory.workloads.keyed_work import CONFIG
from tidelog.model.ids import TopicPartition

AT = TopicPartition("keyed", 0)
NOW_MS = 1_000_000_000
END = 5


def mark(number: int) -> bytes:
    return b"keyed-w0:%d" % number


class Cleaned:
    """Key a three times, b once, c deleted; node 2 has been cleaned, node 1 has not. Each test spoils it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        contents: list[tuple[bytes, bytes | None]] = [
            (b"a", b"1"),
            (b"b", b"2"),
            (b"a", b"3"),
            (b"a", b"4"),
            (b"c", None),
        ]
        self.records = [
            KeyedRecord(number, NOW_MS + number, 1, key, value, mark(number))
            for number, (key, value) in enumerate(contents)
        ]
        self.read = self.left(1, 3, 4)
        self.kept = {1: self.left(0, 1, 2, 3, 4), 2: self.left(1, 3, 4)}
        self.ahead_s = 0.0

    def left(self, *offsets: int) -> list[KeyedRecord]:
        return [self.records[offset] for offset in offsets]

    def judged(self) -> list[str]:
        history = HistoryFile(self.path)
        run: dict[str, Any] = {"version": 1, "seed": 3, "workload": "keyed", "nodes": 2, "schedule": []}
        history.write("run", **run, topics={"keyed": 1}, configs={"keyed": dict(CONFIG)})
        for offset, timestamp, _, key, value, name, _ in self.records:
            assert key is not None
            write_sent(history, KeyedWrite(name, AT, key, value, timestamp, Outcome.OK, offset, 0.1))
        if self.ahead_s:
            more = {
                "target": "any:0",
                "nodes": [1],
                "leads": [],
                "controls": False,
                "trouble": "",
                "at": 0.1,
                "until": 0.1,
            }
            history.write("fault", episode=1, act="clock", options={"ahead_s": self.ahead_s}, **more)
        seen = [ReadRecord(r.offset, r.timestamp, r.key, r.value, r.mark) for r in self.read]
        write_scan(history, Scan("keyed-r0", AT, seen, END, 0.2))
        history.final(AT, 0, END, [(r.offset, r.value or b"") for r in self.read])
        for node, records in self.kept.items():
            write_kept(history, AT, node, [(0, END - 1, 1)], records, NOW_MS + 10_000)
        copies = [[node, len(records), str(node)] for node, records in self.kept.items()]
        history.write("replicas", topic="keyed", partition=0, copies=copies)
        history.close()
        return judge(read_history(self.path)).violations


@pytest.fixture
def cleaned(tmp_path: Path) -> Cleaned:
    return Cleaned(tmp_path / "history.jsonl")


def test_copies_that_were_cleaned_at_different_times_hold(cleaned: Cleaned) -> None:
    assert cleaned.judged() == []
    verdict = judge(read_history(cleaned.path))
    assert (verdict.cleaned, verdict.reads, verdict.sends) == (2, 3, {Outcome.OK: 5})


def test_a_reader_without_the_latest_value_is_found(cleaned: Cleaned) -> None:
    cleaned.read = cleaned.left(0, 1, 4)
    (found,) = cleaned.judged()
    assert "latest value: keyed-r0 read keyed-0 up to 5 and ends with offset 0 for key b'a'" in found


def test_a_record_that_was_read_otherwise_than_written_is_found(cleaned: Cleaned) -> None:
    cleaned.read[0] = cleaned.read[0]._replace(value=b"9")
    (found,) = cleaned.judged()
    assert "as written: keyed-r0 read b'keyed-w0:1'" in found


def test_a_copy_without_the_latest_value_is_found(cleaned: Cleaned) -> None:
    del cleaned.kept[2][0]
    found = cleaned.judged()
    assert any("latest value: a reader of node 2's copy" in text for text in found)
    assert any("latest stays: node 2's keyed-0 has no b'2' of key b'b'" in text for text in found)
    assert any("latest stays: nodes 1 and 2 differ" in text for text in found)


def test_a_tombstone_that_is_gone_too_early_is_found_unless_clocks_jumped(cleaned: Cleaned) -> None:
    del cleaned.kept[2][-1]
    assert any("tombstones: node 2's keyed-0 has no a tombstone of key b'c'" in text for text in cleaned.judged())
    cleaned.ahead_s = 1_800.0
    assert cleaned.judged() == []


def test_cleaners_that_take_nothing_are_found(cleaned: Cleaned) -> None:
    cleaned.read = list(cleaned.records)
    cleaned.kept[2] = list(cleaned.records)
    assert cleaned.judged() == ["progress: no cleaner has taken anything"]
