"""Whole runs by the command: judged from the file, repeated from it, interrupted, refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tidelog.chaos.laboratory.command import EXIT_BROKEN, EXIT_HELD, EXIT_INTERRUPTED, EXIT_REFUSED, main
from tidelog.chaos.laboratory.history.history_file import read_history
from tidelog.chaos.laboratory.judge.compaction_judgement import cleaned
from tidelog.chaos.laboratory.judge.objectives import CONTROLLER, LEADER, samples
from tidelog.chaos.proc import commands

pytestmark = pytest.mark.timeout(600)  # the first test of a machine builds the server


def descendants_that_serve(directory: Path) -> list[str]:
    """Processes whose command line names a directory."""
    found = (" ".join(words) for words in commands())
    return [line for line in found if str(directory) in line]


def schedule(path: Path, *rows: tuple[float, int, str, str]) -> Path:
    """A history that holds nothing but a schedule."""
    steps = [{"at": at, "episode": n, "act": act, "target": whom, "options": {}} for at, n, act, whom in rows]
    path.write_text(json.dumps({"kind": "run", "version": 1, "schedule": steps}) + "\n")
    return path


def test_a_run_under_three_faults_holds(toxiproxy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The short form of the laboratory: a leader is killed, the active controller is killed, the coordinator of the
    group is cut off; judged, reported, and no process is left."""
    plan = schedule(
        tmp_path / "plan.jsonl",
        (1.5, 1, "kill", "leader:0"),
        (2.5, 1, "start", "leader:0"),
        (5.0, 2, "kill", "controller"),
        (6.5, 2, "start", "controller"),
    )
    steps = json.loads(plan.read_text())
    cut = {"topology": "isolate", "kind": "cut"}
    steps["schedule"] += [
        {"at": 8.5, "episode": 3, "act": "impair", "target": "group", "options": cut},
        {"at": 10.0, "episode": 3, "act": "heal", "target": "group", "options": {}},
    ]
    plan.write_text(json.dumps(steps) + "\n")
    asked = ["run", "--seconds", "10.5", "--replay", str(plan), "--dir", str(tmp_path / "runs"), "--rate", "150"]
    assert main([*asked, "--report"]) == EXIT_HELD
    said = capsys.readouterr().out
    assert "held: nothing illegal" in said
    (path,) = (tmp_path / "runs").glob("*.jsonl")
    recorded = read_history(path)
    assert [fault["act"] for fault in recorded.faults] == ["kill", "start", "kill", "start", "impair", "heal"]
    assert not any(fault["trouble"] for fault in recorded.faults)
    assert len(recorded.history.sends) > 300
    assert len(recorded.standings) > 2
    assert recorded.elections
    assert [len(row["copies"]) for row in recorded.replicas] == [3, 3, 3, 3]
    assert {step.consumer for step in recorded.history.reads} == {"r0", "r1", "readers.1", "readers.2"}
    assert recorded.machine["processors"] >= 1
    assert recorded.phases["mending"] - recorded.phases["faults"] > 10
    recoveries = samples(recorded, path.name)
    killed = [one for one in recoveries if one.objective == LEADER.name]
    assert recorded.faults[0]["at"] in [pytest.approx(one.at_s, abs=0.001) for one in killed]
    assert all(one.waited_s is not None for one in killed)
    assert [one.waited_s is not None for one in recoveries if one.objective == CONTROLLER.name]
    assert main(["judge", str(path)]) == EXIT_HELD
    page = path.with_suffix(".html").read_text()
    assert "held: nothing illegal in the history" in page
    assert page.count("<svg") == 6
    assert "--seconds 10.5" in page
    assert descendants_that_serve(tmp_path) == []
    assert not list((tmp_path / "runs").glob("*/cluster"))


def test_transactions_hold_when_their_coordinator_dies(toxiproxy: Path, tmp_path: Path) -> None:
    plan = schedule(tmp_path / "plan.jsonl", (0.5, 1, "kill", "transactions:2"), (1.5, 1, "start", "transactions:2"))
    asked = ["run", "--workload", "transactions", "--seconds", "3", "--replay", str(plan)]
    assert main([*asked, "--dir", str(tmp_path / "runs")]) == EXIT_HELD
    (path,) = (tmp_path / "runs").glob("*.jsonl")
    recorded = read_history(path)
    assert [fault["trouble"] for fault in recorded.faults] == ["", ""]
    assert len(recorded.faults[0]["nodes"]) == 1
    assert {each.transactional_id for each in recorded.history.transactions} == {"w0", "w1", "b0"}
    assert recorded.snapshots


def test_a_broken_rule_is_caught(toxiproxy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A leader that hands out what is undecided: seen without any fault, and what the nodes left is kept."""
    plan = schedule(tmp_path / "plan.jsonl")
    asked = ["run", "--workload", "transactions", "--seconds", "2", "--nodes", "1", "--replay", str(plan)]
    asked += ["--mutant", "undecided-is-shown", "--dir", str(tmp_path / "runs")]
    assert main(asked) == EXIT_BROKEN
    said = capsys.readouterr().out
    assert "before its commit was asked for" in said
    assert list((tmp_path / "runs").glob("*/cluster/node-1/data"))


def test_a_compacted_topic_holds_when_its_leader_dies(toxiproxy: Path, tmp_path: Path) -> None:
    plan = schedule(tmp_path / "plan.jsonl", (0.5, 1, "kill", "leader:0"), (1.5, 1, "start", "leader:0"))
    asked = ["run", "--workload", "keyed", "--seconds", "3", "--replay", str(plan), "--dir", str(tmp_path / "runs")]
    assert main(asked) == EXIT_HELD
    (path,) = (tmp_path / "runs").glob("*.jsonl")
    recorded = read_history(path)
    assert [fault["trouble"] for fault in recorded.faults] == ["", ""]
    assert {row["node"] for row in recorded.keyed if row["kind"] == "kept"} == {1, 2, 3}
    assert cleaned(recorded) > 0


def test_a_cleaner_that_takes_the_latest_value_is_caught(
    toxiproxy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = schedule(tmp_path / "plan.jsonl")
    asked = ["run", "--workload", "keyed", "--seconds", "2", "--nodes", "1", "--replay", str(plan)]
    asked += ["--mutant", "cleaner-drops-a-live-key", "--dir", str(tmp_path / "runs")]
    assert main(asked) == EXIT_BROKEN
    assert "latest value: keyed-r" in capsys.readouterr().out


def test_an_interrupt_leaves_no_process(
    toxiproxy: Path, tmp_path: Path, interruptible: Callable[[Sequence[str]], list[str]]
) -> None:
    command = [sys.executable, "-P", "-m", "tidelog.chaos.laboratory", "run", "--nodes", "1", "--dir", str(tmp_path)]
    with subprocess.Popen(interruptible(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        for line in started.stdout:
            if "begins" in line:
                break
        assert descendants_that_serve(tmp_path)
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=240)
    assert started.returncode == EXIT_INTERRUPTED
    assert "interrupted" in said
    assert descendants_that_serve(tmp_path) == []


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["run", "--nemesis", "kil"], "expected nemeses of mixed, kill"),
        (["run", "--seed", "x"], "--seed: expected a number"),
        (["run", "--seed", "1-2", "--name", "x"], "--name: expected one seed, found 2"),
        (["run", "--set", "x"], "--set: expected NAME=VALUE"),
        (["run", "--set", "min.insync.replicas=many"], "min.insync.replicas"),
        (["run", "--mutant", "x"], "--mutant: expected an id that the simulation knows"),
        (["run", "--nodes", "12"], "expected 1 to 9 nodes, found 12"),
        (["run", "--seconds", "0"], "more than 0 seconds"),
        (["judge", "/nowhere/x.jsonl"], "No such file"),
        (["plan", "--nemesis", "x"], "expected nemeses of"),
    ],
)
def test_what_cannot_be_run_is_refused(
    toxiproxy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: list[str], says: str
) -> None:
    more = ["--dir", str(tmp_path)] if asked[0] == "run" else []
    assert main([*asked, *more]) == EXIT_REFUSED
    assert says in capsys.readouterr().err


def test_without_the_proxies_driver_it_says_what_to_install() -> None:
    program = (
        "import runpy, sys; sys.modules['toxiproxy'] = None; "
        "runpy.run_module('tidelog.chaos.laboratory', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == EXIT_REFUSED
    assert "pip install 'tidelog[chaos]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_nemeses_and_plans_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nemeses"]) == EXIT_HELD
    assert "kill -9" in capsys.readouterr().out
    assert main(["plan", "--seed", "3"]) == EXIT_HELD
    once = capsys.readouterr().out
    assert main(["plan", "--seed", "3"]) == EXIT_HELD
    assert capsys.readouterr().out == once
    assert len(once.splitlines()) > 5
