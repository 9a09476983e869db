"""The nemesis and the workload that the documentation shows are run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidelog.chaos.laboratory.command import EXIT_HELD, main
from tidelog.chaos.laboratory.faults import nemesis
from tidelog.chaos.laboratory.history.history_file import read_history
from tidelog.chaos.laboratory.workloads import workloads

PAGE = Path(__file__).resolve().parents[3] / "docs" / "chaos.md"

pytestmark = pytest.mark.timeout(600)  # the first test of a machine builds the server


def test_the_documented_nemesis_and_workload_run(
    toxiproxy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"```python no-run\n(.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.setattr(nemesis, "NEMESES", dict(nemesis.NEMESES))
    monkeypatch.setattr(workloads, "WORKLOADS", dict(workloads.WORKLOADS))
    for block in blocks:
        exec(block, {"__name__": "documented"})
    steps = nemesis.plan(1, 8.0, ["stutter"])
    assert [step.act for step in steps][:6] == ["pause", "resume"] * 3
    asked = ["run", "--nodes", "1", "--seconds", "7", "--nemesis", "stutter", "--workload", "pair", "--name", "run"]
    assert main([*asked, "--dir", str(tmp_path)]) == EXIT_HELD
    recorded = read_history(tmp_path / "run.jsonl")
    assert [fault["act"] for fault in recorded.faults] == ["pause", "resume"] * 3
    assert {sent.producer for sent in recorded.history.sends} == {"pair-w"}
    assert {step.consumer for step in recorded.history.reads} == {"pair-r"}
