"""Pages of runs: self-contained, escaped, and with the operations behind each finding."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tidelog.chaos.checkers.history import Outcome, Polled, Positioned, Sent, TransactionKey
from tidelog.chaos.laboratory.command import EXIT_BROKEN, EXIT_HELD, EXIT_REFUSED, main
from tidelog.chaos.laboratory.history.history_file import HistoryFile, read_history
from tidelog.chaos.laboratory.report.evidence import OPERATIONS_MAX, Witness
from tidelog.chaos.laboratory.report.page import joined, page, tag
from tidelog.chaos.laboratory.report_command import EXIT_SLOW
from tidelog.model.ids import TopicPartition

AT = TopicPartition("log", 0)
HOSTILE = '<script>alert("x")</script>&\'"'
VOID = {"meta", "br"}


class Page(HTMLParser):
    """Reads a page strictly: every element that begins ends, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data if not self.open or self.open[-1] != "style" else ""

    def count(self, name: str) -> int:
        return sum(found == name for found, _ in self.elements)


def written(path: Path, *, lost: bool = False, slow: bool = False, **head: Any) -> Path:
    """A run of twelve records and one kill of their leader; one record is lost, or the next one late, if asked."""
    history = HistoryFile(path)
    run = {"version": 1, "seed": 3, "workload": "append", "nodes": 3, "topics": {"log": 1}, "seconds": 20.0}
    history.write("run", **{**run, "schedule": [], "settings": {}, "mutant": "", **head})
    history.write("phase", at=0.5, name="faults")
    values = [b"p0:%d:" % number + HOSTILE.encode() for number in range(12)]
    for number, value in enumerate(values):
        began = 1.0 + number * 0.1
        ended = began + (9.0 if slow and number >= 8 else 0.01)
        history.send(Sent("p0", number, AT, value, Outcome.OK, number, began, ended))
    kill = {"act": "kill", "target": "leader:0", "options": {}, "nodes": [1], "controls": True, "trouble": ""}
    history.write("fault", episode=1, at=1.75, until=1.76, leads=[["log", 0]], **kill)
    history.write("fault", episode=1, at=3.0, until=3.1, leads=[], **{**kill, "act": "start"})
    history.write("fault", episode=2, at=4.0, until=4.0, leads=[], **{**kill, "trouble": HOSTILE})
    history.write("standing", at=0.5, controller=1, partitions=[["log", 0, 1, [1, 2, 3]]])
    history.write("standing", at=2.0, controller=2, partitions=[["log", 0, -1, [2, 3]]])
    history.write("standing", at=2.2, controller=2, partitions=[["log", 0, 2, [2, 3]]])
    history.write("standing", at=4.0, controller=2, partitions=[["log", 0, 2, [1, 2, 3]]])
    kept = [(number, value) for number, value in enumerate(values) if not (lost and number == 5)]
    history.position(Positioned("r0", AT, 0))
    for _ in range(3):
        history.poll(Polled("r0", AT, kept, 5.0, 5.1))
        history.position(Positioned("r0", AT, 0))
    history.final(AT, 0, 12, kept)
    history.write("replicas", topic="log", partition=0, copies=[[1, 7, "ab"], [2, 7, "ab"], [3, 7, "ab"]])
    history.write("elected", at=1.85, node=2, epoch=2)
    history.phase("mending")
    history.close()
    return path


def test_a_page_stands_by_itself_and_escapes_what_it_tells(tmp_path: Path) -> None:
    head: dict[str, Any] = {"settings": {"name": HOSTILE}, "again": HOSTILE, "made_by": {"python": HOSTILE}}
    history = written(tmp_path / "run.jsonl", lost=True, **head)
    assert main(["report", str(history)]) == EXIT_BROKEN
    text = (tmp_path / "run.html").read_text()
    found = Page(text)
    assert found.count("script") == found.count("link") == found.count("img") == found.count("iframe") == 0
    assert not [
        value for _, attributes in found.elements for name, value in attributes.items() if name.startswith("on")
    ]
    assert "http" not in text
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text
    assert HOSTILE in found.text
    assert found.count("svg") == 6


def test_what_was_found_stands_with_its_operations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = written(tmp_path / "run.jsonl", lost=True)
    assert main(["report", str(history), "--out", str(tmp_path / "other.html")]) == EXIT_BROKEN
    said = capsys.readouterr().out
    assert "0 of 1 runs held" in said
    assert "p0:5:" in said
    found = Page((tmp_path / "other.html").read_text())
    assert "BROKEN" in found.text
    assert "lost-write" in found.text
    assert not (tmp_path / "run.html").exists()
    recorded = read_history(history)
    evidence = Witness(recorded, []).of(
        "lost-write: 'p0:5:<script>' of p0, acknowledged at log-0 offset 5, was never read"
    )
    assert [(one.who, one.what, one.offset) for one in evidence.operations] == [("p0", "sends", 5)]


def test_evidence_of_offsets_readers_and_transactions(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    history = HistoryFile(path)
    history.write("run", version=1, seed=1, topics={"log": 1, "log-0": 1}, schedule=[], nodes=3)
    key = TransactionKey("w0.1", 7)
    for number in range(40):
        history.send(Sent("w0.1", number, AT, b"w:%d:" % number, Outcome.OK, number, number, number + 0.5, key))
    history.transaction(key, "w0", Outcome.OK, 0.0, 41.0, 42.0)
    for reader in ("r0", "r1"):
        for again in range(2):
            history.poll(Polled(reader, AT, [(3, b"w:3:"), (4, b"other")], 50.0 + again, 50.1 + again))
    history.close()
    witness = Witness(read_history(path), [])
    places = witness.of("poll-skip: r0 stood after offset 3 of log-0 and was given 4")
    assert {(one.who, one.what, one.offset, one.value) for one in places.operations} == {
        ("w0.1", "sends (transaction 7)", 3, "w:3:"),
        ("w0.1", "sends (transaction 7)", 4, "w:4:"),
        ("w0.1", "transaction 7 of w0", None, ""),
        ("r0", "is given, 2 times", 3, "w:3:"),
        ("r0", "is given, 2 times", 4, "other"),
    }
    torn = witness.of("all or none: w0.1's transaction 7 is torn")
    assert len(torn.operations) == OPERATIONS_MAX
    assert torn.more == 41 - OPERATIONS_MAX
    assert witness.of("nothing of it is in the history").operations == []


def test_many_histories_have_a_table_that_leads_to_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    written(runs / "a.jsonl")
    written(runs / "b.jsonl", seed=4)
    out = tmp_path / "pages"
    out.mkdir()
    assert main(["report", str(runs), "--out", str(out / "all.html")]) == EXIT_HELD
    said = capsys.readouterr().out
    assert "2 of 2 runs held" in said
    assert "24 acknowledged" in said
    found = Page((out / "all.html").read_text())
    links = [attributes["href"] for name, attributes in found.elements if name == "a"]
    assert links == ["a.html", "b.html"]
    assert all((out / str(link)).is_file() for link in links)
    told = json.loads((out / "all.json").read_text())
    assert (told["held"], told["objectives_held"], told["totals"]["acknowledged"]) == (True, True, 24)
    table = (out / "all.md").read_text()
    assert "| 4 | append |" in table
    assert "| **2 runs** |" in table
    (leader, *_) = told["objectives"]
    assert (leader["count"], leader["held"]) == (2, True)


def test_a_missed_objective_has_a_code_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = written(tmp_path / "run.jsonl", slow=True)
    assert main(["report", str(history)]) == EXIT_SLOW
    assert "MISSED" in capsys.readouterr().out
    assert "missed" in Page((tmp_path / "run.html").read_text()).text


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["nothing.jsonl"], "No such file"),
        (["empty.jsonl"], "expected a history, found an empty file"),
        (["none"], "found no *.jsonl"),
        (["run.jsonl", "--out", "x.pdf"], "expected a file that ends in .html"),
        (["run.jsonl", "run.jsonl"], "expected histories of different names"),
        (["run.jsonl", "more.jsonl", "--out", "run.html"], "is the page of a history"),
    ],
)
def test_what_is_no_history_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], asked: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "run.jsonl")
    written(tmp_path / "more.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "none").mkdir()
    assert main(["report", *asked]) == EXIT_REFUSED
    assert says in capsys.readouterr().err


def test_only_tags_are_markup() -> None:
    assert joined("<b>", 1, None, tag("b", "<i>")) == "&lt;b&gt;1<b>&lt;i&gt;</b>"
    assert tag("a", "x", href='"', class_="y", other=None) == '<a href="&quot;" class="y">x</a>'
    Page(page(HOSTILE, tag("p", HOSTILE)))
