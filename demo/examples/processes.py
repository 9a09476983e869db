"""The example programs as processes: start, kill -9, restart and end; none is left behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.watch import WatchFailed

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples"
END_TIMEOUT_S: Final = 20.0


class ExampleProcess:
    """One program under one name. Its output goes to ``<directory>/<name>.out``, across restarts."""

    def __init__(self, directory: Path, name: str, script: str, *arguments: str) -> None:
        self.name = name
        self.path = directory / f"{name}.out"
        self._command = [sys.executable, "-P", str(EXAMPLES / script), *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._said_before = 0
        self.starts = 0

    def start(self) -> None:
        """Start it. Raises :class:`CommandFailed` if the examples are missing."""
        if not EXAMPLES.is_dir():
            raise CommandFailed(f"{EXAMPLES}: expected the examples there; they are part of a clone, not of a wheel")
        self._said_before = self.path.stat().st_size if self.path.exists() else 0
        with self.path.open("ab") as out:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self.starts += 1

    def said(self) -> list[str]:
        """Return the lines since its last start."""
        with self.path.open("rb") as out:
            out.seek(self._said_before)
            return out.read().decode(errors="replace").splitlines()

    def code(self) -> int | None:
        """Return its exit code; ``None`` while it runs."""
        assert self._process is not None
        return self._process.poll()

    def check_runs(self) -> None:
        """Raise :class:`WatchFailed` if it ended by itself."""
        if (code := self.code()) is not None:
            raise WatchFailed(f"{self.name} ended by itself with exit code {code}: {self._last_words()}")

    def kill(self) -> None:
        """Send kill -9; do nothing if the process is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        """Ask it to end, and wait. Raises :class:`WatchFailed` if it does not, or not with exit code 0."""
        assert self._process is not None
        self._process.terminate()
        self.wait(END_TIMEOUT_S)

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended. Raises :class:`WatchFailed` if it does not, or not with exit code 0."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise WatchFailed(f"{self.name} did not end within {timeout_s:g} s") from None
        if code:
            raise WatchFailed(f"{self.name} ended with exit code {code}: {self._last_words()}")

    def _last_words(self) -> str:
        words = [line for line in self.said() if line.strip()]
        return words[-1] if words else "no word"


@contextmanager
def killed_at_the_end(processes: list[ExampleProcess]) -> Iterator[None]:
    """On exit, always kill all processes that are in the list by then."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
