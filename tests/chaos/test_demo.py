"""The demo itself, on fewer rows: real processes, three kill -9, everything judged."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tidelog.cli.local.cluster import LocalCluster


@pytest.mark.timeout(170)
def test_a_short_demo_passes_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Exit code 0, and a verdict in which every count of wrong things is 0."""
    directory = tmp_path / "demo"
    command = [
        sys.executable,
        "-P",
        "-m",
        "tidelog.cli.main",
        "demo",
        "--part",
        "log",
        "--rows",
        "30000",
        "--seconds",
        "6",
        "--json",
    ]
    done = subprocess.run([*command, "--dir", str(directory)], capture_output=True, text=True, timeout=160)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert told["passed"] is True
    result = told["log"]
    assert result["passed"] is True
    verdict = result["verdict"]
    assert verdict["sent"] == verdict["acknowledged"] == verdict["read"] == 30_000
    assert [verdict[name] for name in ("lost", "duplicated", "out_of_order", "changed", "foreign", "unread")] == [0] * 6
    assert verdict["source_digest"] == verdict["log_digest"]
    assert len(result["kills"]) == 2
    assert all(kill["pending"] > 0 for kill in result["kills"])
    assert result["kills"][1]["controller_s"] is not None
    group = result["group"]
    assert group["passed"] is True
    assert (group["verdict"]["lost"], group["verdict"]["stray"], group["failures"]) == (0, 0, [])
    assert group["verdict"]["handed"] == 30_000 + group["verdict"]["redelivered"]
    assert group["verdict"]["redelivered"] <= group["verdict"]["uncommitted"]
    assert group["verdict"]["handed_to_dead"] > 0
    layout = json.loads((directory / "cluster" / "cluster.json").read_text())
    assert len(layout["nodes"]) == 3
    assert not list((directory / "cluster").glob("node-*/process.json")), "a node still runs"
    shutil.rmtree(directory)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_takes_its_nodes_with_it(
    tmp_path: Path, number: signal.Signals, interruptible: Callable[[Sequence[str]], list[str]]
) -> None:
    """An earlier version left three nodes running when it was ended with SIGTERM."""
    directory = tmp_path / "demo"
    command = [sys.executable, "-P", "-m", "tidelog.cli.main", "demo", "--part", "log"]
    command += ["--dir", str(directory)]
    with subprocess.Popen(interruptible(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as demo:
        try:
            deadline = time.monotonic() + 40
            assert demo.stdout is not None
            while b"rows sent" not in demo.stdout.readline():
                assert time.monotonic() < deadline
                assert demo.poll() is None
            running = [node.mark for node in LocalCluster.open(directory / "cluster").nodes.values()]
            assert None not in running
            demo.send_signal(number)
            assert demo.wait(40) == 130
            assert [node.mark for node in LocalCluster.open(directory / "cluster").nodes.values()] == [None] * 3
        finally:
            demo.kill()
            for node_id in (1, 2, 3):
                LocalCluster.open(directory / "cluster").kill(node_id)
