"""The report of a drill, for people, for programs and as a picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from tidelog.chaos.drill import picture, report
from tidelog.chaos.drill.evidence import Acknowledged, Committed, Evidence
from tidelog.chaos.drill.objectives import Objective, judged
from tidelog.chaos.drill.run import HeldDrill
from tidelog.chaos.drill.stage import FAULT, HEAL, SEEN, STEP, Moment

MOMENTS = [
    Moment(0.1, STEP, "topic made"),
    Moment(1.0, FAULT, "node 1: kill -9"),
    Moment(1.5, SEEN, "fenced"),
    Moment(2.0, HEAL, "node 1 started"),
    Moment(2.5, FAULT, "node 2: kill -9"),
]


def held(lost: int) -> HeldDrill:
    evidence = Evidence(
        sent=40,
        places={number: (0, number) for number in range(40)},
        acknowledgements=[Acknowledged(number / 10, number / 10 + 0.05, 0) for number in range(40)],
        commits=[Committed(0.5, 0.52), Committed(1.1, 1.9)],
        handed=[(0.3, 0, 10), (3.0, 0, 30)],
    )
    evidence.trouble(1.2, "reader", ValueError("no"))
    measures = {"whole_s": 1.25, "errors": 1, "sent": 40, "acknowledged": 40, "lost": lost, "commit_s": None}
    objectives = [Objective("whole_s", 10.0), Objective("lost", 0)]
    return HeldDrill(
        "leader-loss", "id", "t", ("kill it",), dict(measures), judged(objectives, measures), MOMENTS, evidence, 4.0
    )


def test_a_person_is_told_the_verdict_last(capsys: pytest.CaptureFixture[str]) -> None:
    report.print_held(held(0))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "MET: leader-loss, 2 objectives"
    (row,) = [line for line in lines if line.startswith("every replica in sync after the start")]
    assert " ".join(row.split()).endswith("1.25 s at most 10 s met")
    assert any("first metadata change committed" in line and "it did not happen" in line for line in lines)
    assert "reader was told after 1.20 s: ValueError: no" in lines
    report.print_held(held(2))
    assert capsys.readouterr().out.splitlines()[-1] == "MISSED: lost"


def test_a_program_is_told_everything() -> None:
    told = json.loads(json.dumps(report.as_json(held(2))))
    assert told["met"] is False
    assert told["objectives"][1] == {"measure": "lost", "limit": 0, "found": 2, "met": False}
    assert told["measures"]["commit_s"] is None
    assert told["timeline"][1] == {"at_s": 1.0, "kind": "fault", "text": "node 1: kill -9"}
    assert told["errors"] == [{"at_s": 1.2, "client": "reader", "error": "ValueError: no"}]


def test_the_time_line_names_faults_and_their_ends() -> None:
    assert [report.moment_line(moment).split()[2] for moment in MOMENTS] == [
        "topic",
        "fault",
        "fenced",
        "heal",
        "fault",
    ]


def test_what_is_drawn() -> None:
    assert picture.outages(MOMENTS, 4.0) == [(1.0, 2.0), (2.5, 4.0)]
    assert picture.rates([(0.1, 1), (0.2, 2), (0.8, 5), (9.0, 1)], 1.0) == [
        (0.125, 12.0), (0.375, 0.0), (0.625, 0.0), (0.875, 20.0)
    ]  # fmt: skip


def test_the_picture_has_the_fault_in_it(tmp_path: Path) -> None:
    path = tmp_path / "drill.png"
    picture.draw(path, held(0))
    with Image.open(path) as image:
        assert image.width == picture.WIDTH
        pixels = image.convert("RGB").tobytes()
    reds = zip(pixels[::3], pixels[1::3], pixels[2::3], strict=True)
    assert any(red > 180 and green < 80 and blue < 80 for red, green, blue in reds)
