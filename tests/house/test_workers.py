"""Two workers share the tests: each runs once, what belongs together in one process, the longest first."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

PROGRAM = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(4))
def test_it(number):
    with pathlib.Path({out!r}).open("a") as out:
        out.write(f"{{os.environ.get('PYTEST_XDIST_WORKER')}} {name} {{number}}\\n")
    {deed}
"""
UNUSED = ("-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:hypothesispytest", "-p", "no:timeout")
MEASURED = """
import pathlib
from dev import quick
quick.DURATIONS = pathlib.Path(__file__).with_name("durations.json")
"""

FILES = {
    "tests/a/test_short.py": 1.0,
    "tests/a/test_unmeasured.py": None,
    "tests/b/test_long.py": 90.0,
    "tests/b/test_longer.py": 95.0,
    "tests/b/test_middle.py": 20.0,
    "tests/spark/test_read.py": 50.0,
    "tests/spark/test_write.py": 60.0,
}
"""Test files, of four tests each, and the seconds that were measured."""
GROUPS = [
    "tests/spark/",
    "tests/b/test_longer.py",
    "tests/b/test_long.py",
    "tests/b/test_middle.py",
    "tests/a/test_unmeasured.py",
    "tests/a/test_short.py",
]
"""The longest first."""


class Ran:
    """What a run of pytest printed, and which tests began, by worker."""

    def __init__(self, printed: str, lines: list[str]) -> None:
        self.printed = printed
        self.began = [tuple(line.split()) for line in lines]
        self.tests = [f"{file} {number}" for _, file, number in self.began]
        in_order = sorted(self.began, key=lambda one: one[0])  # stable: within a worker as they came
        self.groups = {
            worker: [name for name, _ in groupby(self._group(file) for _, file, _ in ran)]
            for worker, ran in groupby(in_order, key=lambda one: one[0])
        }

    def _group(self, file: str) -> str:
        return "tests/spark/" if file.startswith("tests/spark/") else file


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Ran]:
    """Runs :data:`FILES` in a process as ``./dev test`` runs the real ones; ``deed``: what tests of one file do."""

    def do(*options: str, at: str = "", deed: str = "pass") -> Ran:
        out = tmp_path / "out.txt"
        for name in FILES:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(
                PROGRAM.format(name=name, out=str(out), deed=deed if name.endswith(at or name) else "pass")
            )
        tests = tmp_path / "tests"
        (tests / "durations.json").write_text(json.dumps({name: s for name, s in FILES.items() if s is not None}))
        (tests / "conftest.py").write_text((TESTS / "conftest.py").read_text() + MEASURED)
        (tests / "workers.py").write_text((TESTS / "workers.py").read_text())
        (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {TESTS.parent / 'tools'}\n")
        command = [sys.executable, "-P", "-m", "pytest", "-n", "2", "--import-mode=importlib", *UNUSED]
        done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=100)
        return Ran(done.stdout + done.stderr, out.read_text().splitlines())

    return do


def test_each_test_runs_once_in_whole_groups_and_the_longest_first(run: Callable[..., Ran]) -> None:
    ran = run()
    assert "28 passed" in ran.printed, ran.printed
    assert sorted(ran.tests) == sorted(f"{name} {number}" for name in FILES for number in range(4))
    first, second = ran.groups.values()
    assert sorted(first + second) == sorted(GROUPS), "a group is run by one worker, without another in between"
    assert [name for name in GROUPS if name in first] == first
    assert [name for name in GROUPS if name in second] == second
    assert {first[0], second[0]} == set(GROUPS[:2])


def test_named_files_keep_their_order(run: Callable[..., Ran]) -> None:
    """``--quick`` names the nearest first."""
    named = ["tests/a/test_short.py", "tests/b/test_long.py", "tests/b/test_longer.py", "tests/b/test_middle.py"]
    ran = run(*named, "--no-loadscope-reorder")
    assert "16 passed" in ran.printed, ran.printed
    for groups in ran.groups.values():
        assert [name for name in named if name in groups] == groups
    assert {groups[0] for groups in ran.groups.values()} == set(named[:2])


def test_the_rest_runs_after_a_failure_and_after_a_crash(run: Callable[..., Ran]) -> None:
    ran = run(at="test_long.py", deed="assert number != 1; number != 2 or os._exit(3)")
    assert "2 failed, 26 passed" in ran.printed, ran.printed
    assert re.search(r"FAILED tests/b/test_long.py::test_it\[1\]", ran.printed)
    assert re.search(r"worker 'gw\d' crashed while running 'tests/b/test_long.py::test_it\[2\]'", ran.printed)
    assert sorted(ran.tests) == sorted(f"{name} {number}" for name in FILES for number in range(4))


def test_it_stops_at_the_first_failure_if_told_to(run: Callable[..., Ran]) -> None:
    ran = run("-x", at="test_longer.py", deed="assert False")
    assert "1 failed" in ran.printed, ran.printed
    assert len(ran.tests) < 28


def test_another_way_to_deal_is_left_to_xdist(run: Callable[..., Ran]) -> None:
    ran = run("--dist", "each", "tests/a/test_short.py")
    assert "8 passed" in ran.printed, ran.printed
