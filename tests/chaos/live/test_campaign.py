"""Campaigns: runs that hold, break, fail, die or hang, one after the other; and impossible requests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tidelog.chaos.laboratory.command import EXIT_INTERRUPTED, EXIT_REFUSED, main
from tidelog.chaos.laboratory.links.toxiproxy_build import VARIABLE
from tidelog.chaos.laboratory.report.campaign import Campaign, planned
from tidelog.chaos.proc import commands
from tidelog.cli.failure import CommandFailed

RUN = """
    import json, os, signal, sys, time
    named = dict(zip(sys.argv[2::2], sys.argv[3::2]))
    seed, path = int(named["--seed"]), os.path.join(named["--dir"], named["--name"] + ".jsonl")
    lines = [
        {"kind": "run", "version": 1, "seed": seed, "workload": named["--workload"], "nodes": 3, "seconds": 1.0,
         "settings": {}, "topics": {}, "mutant": "", "schedule": [], "began": "2026-01-01T00:00:00+00:00"},
        {"kind": "phase", "at": 0.0, "name": "faults"},
        {"kind": "phase", "at": 60.0, "name": "mending"},
    ]
    what = os.environ["RUNS"].split(",")[seed - 1]
    print("seed", seed, "does", what, flush=True)
    if what == "wrong":
        lines.append({"kind": "wrong", "at": 1.0, "text": "r0: its position was refused"})
    if what in ("held", "wrong"):
        lines.append({"kind": "end", "at": 61.0})
    if what != "refused":
        with open(path, "w") as file:
            file.writelines(json.dumps(line) + "\\n" for line in lines)
    if what == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hangs":
        time.sleep(100)
    if what in ("refused", "fails"):
        print("chaos: the port is taken", file=sys.stderr)
    sys.exit({"held": 0, "wrong": 1}.get(what, 2))
"""


@pytest.fixture
def program(tmp_path: Path) -> Sequence[str]:
    path = tmp_path / "run.py"
    path.write_text(textwrap.dedent(RUN))
    return (sys.executable, str(path))


def campaign(
    place: Path, program: Sequence[str], whats: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[Campaign, list[str]]:
    monkeypatch.setenv("RUNS", whats)
    seeds = range(1, len(whats.split(",")) + 1)
    said: list[str] = []
    place.mkdir(exist_ok=True)
    runs = planned(seeds, ["append", "transactions,groups"], 1.0, ["--nemesis", "mixed"])
    return Campaign(runs, place, "./dev chaos campaign", said.append, program=program, margin_s=2.0), said


def test_what_fails_does_not_end_the_rest(
    tmp_path: Path, program: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "runs"
    asked, said = campaign(place, program, "held,wrong,fails,dies,hangs,refused,held", monkeypatch)
    done = asked.run()
    assert [run.held for run in done] == [True, False, False, False, False, False, True]
    assert [run.workload for run in done][:3] == ["append", "transactions,groups", "append"]
    troubles = [run.trouble for run in done]
    assert troubles == [
        "", "", "chaos: the port is taken", "ended by signal 9", "not over 2 s after the end of its faults",
        "chaos: the port is taken", "",
    ]  # fmt: skip
    assert done[1].examples == ["r0: its position was refused"]
    assert done[0].fault_phase_s == 60.0
    assert [run.violations for run in done] == [0, 1, 0, 0, 0, 0, 0]
    assert any("7/7" in line and "min left" in line for line in said)
    assert (place / "002-transactions+groups-2.out").read_text() == "seed 2 does wrong\n"
    told = json.loads((place / "campaign.json").read_text())
    assert [run["history"] for run in told["runs"]][-1] == "007-append-7.jsonl"
    assert told["held"] is False
    assert told["totals"]["fault_phase_s"] == 6 * 60.0
    table = (place / "campaign.md").read_text()
    assert table.count("| not done |") == 4
    assert (place / "001-append-1.html").is_file()
    assert done[5].again == "./dev chaos run --seed 6 --workload transactions,groups --seconds 1 --nemesis mixed"


def test_a_campaign_whose_first_run_does_not_begin_is_refused(
    tmp_path: Path, program: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, _ = campaign(tmp_path / "runs", program, "refused,held", monkeypatch)
    with pytest.raises(CommandFailed, match="the first run was refused: chaos: the port is taken"):
        asked.run()


def test_histories_of_an_earlier_campaign_are_not_written_over(
    tmp_path: Path, program: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, _ = campaign(tmp_path / "runs", program, "held", monkeypatch)
    asked.run()
    with pytest.raises(CommandFailed, match=r"holds 001-append-1\.jsonl already; name a directory without"):
        campaign(tmp_path / "runs", program, "held", monkeypatch)


def test_an_interrupt_ends_the_run_and_leaves_a_table(
    tmp_path: Path, program: Sequence[str], interruptible: Callable[[Sequence[str]], list[str]]
) -> None:
    place = tmp_path / "runs"
    place.mkdir()
    script = f"""
        from pathlib import Path
        from tidelog.chaos.laboratory.report.campaign import Campaign, planned
        runs = planned([1, 2], ["append"], 50.0, [])
        Campaign(runs, Path({str(place)!r}), "asked", lambda text: print(text, flush=True), program={program!r}).run()
    """
    command = interruptible([sys.executable, "-P", "-c", textwrap.dedent(script)])
    with subprocess.Popen(command, env={**os.environ, "RUNS": "held,hangs"}, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as started:  # fmt: skip
        assert started.stdout is not None
        for line in started.stdout:
            if line.startswith("[2/2]"):
                break
        while not (place / "002-append-2.jsonl").exists():
            assert started.poll() is None
        started.send_signal(signal.SIGINT)
        started.communicate(timeout=240)
    assert started.returncode in (-signal.SIGINT, EXIT_INTERRUPTED)
    assert json.loads((place / "campaign.json").read_text())["totals"]["runs"] == 1
    assert [words for words in commands() if str(program[1]) in " ".join(words)] == []


@pytest.mark.parametrize("name", ["campaign", "night"])
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--seeds", "3-1"], "--seeds: expected a number, or first-last, found '3-1'"),
        (["--seconds", "0"], "--seconds: expected more than 0"),
        (["--nemesis", "kil"], "expected nemeses of mixed, kill"),
        (["--workload", "apend"], "--workload: expected one or more of append"),
        (["--set", "x"], "--set: expected NAME=VALUE"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, asked: list[str], says: str
) -> None:
    assert main([name, *asked, "--dir", str(tmp_path / "new")]) == EXIT_REFUSED
    assert says in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_server_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "toxiproxy"
    other.write_text("#!/bin/sh\necho toxiproxy-server version 2.1.0\n")
    other.chmod(0o755)
    monkeypatch.setenv(VARIABLE, str(other))
    for command in ("run", "campaign"):
        assert main([command, "--dir", str(tmp_path / "new")]) == EXIT_REFUSED
        said = capsys.readouterr().err
        assert "expected toxiproxy-server 2.12.0, found version 2.1.0" in said
        assert f"unset {VARIABLE}" in said
    assert not (tmp_path / "new").exists()
