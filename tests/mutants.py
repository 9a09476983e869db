"""Mutants that a test must catch, where the simulation cannot: with a rule taken out, the test named beside it fails.

One process collects the tests of all mutants of a file and forks for each mutant (:mod:`tests.mutant_session`). To
start pytest and import everything anew for each takes five times as long.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Final, NamedTuple, cast

import pytest

from tidelog.chaos.simulated.mutants.mutant import Mutant

ROOT: Final = Path(__file__).resolve().parents[1]
TIMEOUT_S: Final = 120
"""How long a mutant's test may take."""
WAIT_S: Final = 270
"""How long to wait for the next verdict. The tests are collected before the first."""
PIPE: Final = "TIDELOG_MUTANTS_PIPE"
"""Environment variable: the number of the file by which a session of mutants is asked."""


def bound(name: str, module: str, old: str, new: str, shown_by: str) -> Mutant:
    """``shown_by``: the test, by its file and name under ``tests``."""
    return Mutant(name, "bound", "a bound is not kept", f"tidelog.{module}", old, new, shown_by)


OPTIONS: Final = (
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "--assert=plain",
    "-p",
    "no:cacheprovider",
    "--hypothesis-seed=0",
    "-p",
    "tests.mutant_session",
)
"""The seed makes verdicts repeatable: a property test draws the same examples each time."""


class Verdict(NamedTuple):
    """What became of a mutant's test."""

    failed: bool
    """Some test failed, as it should."""
    text: str
    """What is said of the failure, or why there is none."""


class Session:
    """Runs mutants, several at once, in forks of a process that has collected their tests."""

    def __init__(self, mutants: Sequence[Mutant], directory: Path) -> None:
        self._verdicts: dict[str, Verdict] = {}
        self._ours, theirs = Pipe()
        self._output = directory / "output.txt"
        files = dict.fromkeys(f"tests/{mutant.scenario.partition('::')[0]}" for mutant in mutants)
        with self._output.open("wb") as output, theirs:
            self._process = subprocess.Popen(
                [*OPTIONS, f"--basetemp={directory / 'tests'}", *files],
                cwd=ROOT,
                env=os.environ | {PIPE: str(theirs.fileno())},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
            )
        self._ours.send(list(mutants))

    def fails(self, mutant: Mutant) -> None:
        """Assert that the mutant's test does."""
        failed, text = self.verdict(mutant)
        assert failed, text
        assert "MutantError" not in text, text

    def verdict(self, mutant: Mutant) -> Verdict:
        while mutant.id not in self._verdicts:
            assert self._ours.poll(WAIT_S), f"no answer: {self._output.read_text()}"
            try:
                name, verdict = self._ours.recv()
            except EOFError:
                raise AssertionError(f"the session of tests ended: {self._output.read_text()}") from None
            self._verdicts[name] = verdict
        return self._verdicts[mutant.id]

    def close(self) -> None:
        self._ours.close()
        self._process.wait(60)


def session_of(request: pytest.FixtureRequest) -> Iterator[Session]:
    """For the fixture ``mutants``: a session for the mutants (``one``) of its module that were chosen."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    chosen = [cast("Mutant", item.callspec.params["one"]) for item in items]
    session = Session(chosen, request.getfixturevalue("tmp_path_factory").mktemp("mutants"))
    yield session
    session.close()
