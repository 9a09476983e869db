"""The Spark driver as a process: starts, freezes and kills it with all its processes; leaves none behind.

A driver has three kinds of processes: the Python program, its JVM, and Python workers, which have their own process
group. All are in the session that the driver was started in, by which they are found.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tidelog.cli.local.process import pids
from tidelog.cli.local.watch import WatchFailed, wait_until

GONE_TIMEOUT_S: Final = 20.0


class DriverProcess:
    """One start of a driver. Its output goes to ``<directory>/<name>.out``, its errors to ``.err``."""

    def __init__(self, directory: Path, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._out = directory / f"{name}.out"
        self._err = directory / f"{name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, cwd=directory
            )

    def events(self) -> list[dict[str, Any]]:
        """Return the driver's messages so far."""
        whole = self._out.read_bytes().rpartition(b"\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line.startswith(b"{")]

    def event(self, name: str) -> dict[str, Any] | None:
        """Return the first message of that name."""
        return next((event for event in self.events() if event["event"] == name), None)

    def ended(self) -> bool:
        """Return whether it has ended cleanly. Raises :class:`WatchFailed` if it ended otherwise."""
        if (code := self._process.poll()) is None:
            return False
        if code:
            raise WatchFailed(f"{self.name} ended with exit code {code}: {self._last_words()}; {self._err} has it all")
        return True

    def members(self) -> list[int]:
        """Return the pids in its session; a session's number stays reserved while it has any."""
        session = self._process.pid
        found = []
        for pid in pids():
            try:
                if os.getsid(pid) == session:
                    found.append(pid)
            except OSError:  # gone in the meantime, or not ours
                continue
        if self._process.returncode is not None and session in found:
            return []  # its leader was reaped: this is another session with the same number
        return found

    def freeze(self) -> None:
        """Freeze all its processes."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill -9 all its processes; return when none is left, which is immediately after a clean end."""

        def gone() -> bool:
            others = [pid for pid in self.members() if pid != self._process.pid]
            self._signal(signal.SIGKILL)  # a worker may have started since
            return not others

        self._signal(signal.SIGKILL)
        try:
            wait_until(f"{self.name}'s processes to be gone", gone, GONE_TIMEOUT_S)
        finally:
            self._process.kill()
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.members():
            try:
                os.kill(pid, number)
            except OSError:  # gone in the meantime
                continue

    def _last_words(self) -> str:
        lines = [line for line in self._err.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line or "Exception" in line]
        return (errors or lines or ["no word"])[-1].strip()
