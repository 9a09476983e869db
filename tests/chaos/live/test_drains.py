"""Nodes that are drained, and racks that die, under other faults: real processes, judged as every run is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tidelog.chaos.laboratory.command import EXIT_HELD, EXIT_REFUSED, main
from tidelog.chaos.laboratory.history.history_file import Recorded, read_history

pytestmark = pytest.mark.timeout(900)  # the first test of a machine builds the server


def run(tmp_path: Path, steps: Sequence[tuple[float, int, str, str, dict[str, Any]]], *options: str) -> Recorded:
    """A run of 10 s with this schedule, that holds."""
    plan = tmp_path / "plan.jsonl"
    rows = [{"at": at, "episode": n, "act": act, "target": whom, "options": more} for at, n, act, whom, more in steps]
    plan.write_text(json.dumps({"kind": "run", "version": 1, "schedule": rows}) + "\n")
    asked = ["run", "--seconds", "10", "--replay", str(plan), "--dir", str(tmp_path / "runs"), *options]
    assert main(asked) == EXIT_HELD
    (path,) = (tmp_path / "runs").glob("*.jsonl")
    return read_history(path)


def test_one_of_four_nodes_is_drained_while_others_die(toxiproxy: Path, tmp_path: Path) -> None:
    """The command is throttled so that it is not done when a leader dies, nor when the node itself stands still."""
    recorded = run(
        tmp_path,
        [
            (2.0, 1, "drain", "any:3", {"throttle": 20_000}),
            (3.0, 2, "kill", "leader:0", {}),
            (4.5, 2, "start", "leader:0", {}),
            (6.0, 3, "pause", "any:3", {}),
            (7.5, 3, "resume", "any:3", {}),
            (9.0, 1, "undrain", "any:3", {}),
        ],
        "--nodes",
        "4",
    )
    assert [fault["trouble"] for fault in recorded.faults] == [""] * 6
    assert recorded.faults[0]["nodes"] == recorded.faults[-1]["nodes"] == [4]
    assert [len(row["copies"]) for row in recorded.replicas] == [3, 3, 3, 3]
    assert len(recorded.history.sends) > 300


def test_five_nodes_in_three_racks_lose_one(toxiproxy: Path, tmp_path: Path) -> None:
    recorded = run(
        tmp_path,
        [(2.0, 1, "kill-rack", "leader:0", {}), (5.0, 1, "start-all", "leader:0", {})],
        "--nodes",
        "5",
        "--racks",
        "3",
    )
    lost = set(recorded.faults[0]["nodes"])
    assert lost in ({1, 4}, {2, 5}, {3})
    for row in recorded.replicas:
        nodes = [copy[0] for copy in row["copies"]]
        assert len({(node - 1) % 3 for node in nodes}) == 3, "a replica in each rack"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--nemesis", "drain"), "--nodes: expected 4 or more for a drain, one more than there are replicas, found 3"),
        (("--nemesis", "rack", "--nodes", "5"), "--racks: expected 3 (one for each replica) to 5 (the nodes), found n"),
        (("--racks", "2"), "--racks: expected 3 (one for each replica) to 3 (the nodes), found 2"),
    ],
)
def test_too_few_nodes_or_racks_are_refused(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], text: str
) -> None:
    assert main(["run", "--seconds", "60", *options]) == EXIT_REFUSED
    assert text in capsys.readouterr().err
