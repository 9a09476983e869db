"""The most telling cases of the kill matrix, with real Spark: two drivers are started, one of them is killed.
The others: `./dev kills`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidelog.chaos.spark_kills import processes
from tidelog.chaos.spark_kills.cases import CASES
from tidelog.chaos.spark_kills.command import kills, run_cases
from tidelog.chaos.spark_kills.spark_cluster import SparkCluster
from tidelog.cli.failure import CommandFailed

SHORT = ("worker-prepared", "answers-lost-then-abort", "driver-decided")
"""The last one is that which ends a driver."""


@pytest.mark.timeout(400)  # of two starts of Spark and three cases, each of which has its own bounds
def test_each_row_is_there_once_whatever_died(tmp_path: Path) -> None:
    results = run_cases([CASES[name] for name in SHORT], tmp_path, lambda result: None)
    assert {result.name: result.faults for result in results} == {name: [] for name in SHORT}
    assert all(result.rows == 720 for result in results)


@pytest.mark.timeout(400)
def test_a_standalone_cluster_of_spark_starts_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with SparkCluster(tmp_path) as cluster:
        assert cluster.url.startswith("spark://127.0.0.1:")
        registered = (tmp_path / "master.log").read_text()
        assert (
            registered.count("Registering worker 127.0.0.1:") == registered.count("Registering worker 127.0.0.2:") == 1
        )
        sessions = [process.pid for process in cluster._processes]
        assert len(sessions) == 3
        assert all(processes.members(one) for one in sessions)
    assert [one for session in sessions for one in processes.members(session)] == []


@contextmanager
def sleeper(code: str, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own that says when it is up."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True, env={**os.environ, **environ}
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
    finally:
        assert process.stdout is not None
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.skipif(sys.platform != "linux", reason="comes back on Linux: processes are found in /proc")
def test_executors_are_known_by_their_environment_and_their_workers_by_their_parent() -> None:
    """The word in the command is what an executor of Spark has in its own."""
    worker = "import time; print('up', flush=True); time.sleep(300)"
    executor = (
        "import subprocess, sys\n"
        "CoarseGrainedExecutorBackend = subprocess.Popen([sys.executable, '-c', sys.argv[0] and "
        f"{worker!r}])\nCoarseGrainedExecutorBackend.wait()"
    )
    driver = 4_190_001  # no process has it: above the highest pid of Linux
    with sleeper(executor, **{processes.EXECUTES_FOR: str(driver)}) as found, sleeper(worker) as other:
        members = processes.members(driver)
        assert other.pid not in [one.pid for one in members]
        assert {one.pid for one in members} > {found.pid}
        (child,) = (one for one in members if one.parent == found.pid)
        try:
            assert [one.is_executor for one in members if one.pid == found.pid] == [True]
            assert processes.executor_of(child.pid, driver) == found.pid
            assert processes.executor_of(other.pid, driver) is None
            assert processes.members(driver + 1) == []
        finally:
            os.kill(child.pid, 9)


def test_cases_that_take_executors_are_not_for_one_process() -> None:
    clustered = [case.name for case in CASES.values() if case.clustered]
    assert "executor-writing" in clustered
    result = CliRunner().invoke(kills, ["executor-writing"])
    assert isinstance(result.exception, CommandFailed)
    assert "case executor-writing takes executors: give --cluster" in str(result.exception)
