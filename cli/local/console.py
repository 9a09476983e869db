"""The console that ``tidelog cluster start --console`` leaves running beside a cluster on this machine.

<directory>/console.json    its process, while it runs
<directory>/console.log     the address that it printed, and what went wrong
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tidelog.cli.failure import CommandFailed
from tidelog.cli.local import process as local_process
from tidelog.cli.local.private_files import private
from tidelog.cli.local.secured import client_file
from tidelog.testing import ports

PORT: Final = 8790
"""As ``tidelog console`` has it."""
START_S: Final = 30.0
STOP_S: Final = 10.0
_POLL_S: Final = 0.02
_ADDRESS: Final = re.compile(r"https?://\S+")


class LocalConsole:
    """The console of the cluster in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mark_path = directory / "console.json"
        self._log_path = directory / "console.log"

    @property
    def running(self) -> bool:
        return local_process.read_mark(self._mark_path) is not None

    def start(self, bootstrap: str) -> str:
        """Start it, unless it runs; returns the address that it printed. Raises :class:`CommandFailed`."""
        if self.running:
            return self._address() or ""
        port = 0 if ports.taken([PORT]) else PORT
        command = [sys.executable, "-P", "-m", "tidelog.cli.main", "console", "--port", str(port), "-b", bootstrap]
        if (client := client_file(self._directory)) is not None:
            command += ["--command-config", str(client)]
        with open(self._log_path, "wb", opener=private) as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._directory, start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        local_process.keep_mark(self._mark_path, child.pid)
        deadline = time.monotonic() + START_S
        while (address := self._address()) is None:
            if child.poll() is not None or time.monotonic() > deadline:
                child.kill()
                child.wait()
                self._mark_path.unlink(missing_ok=True)
                said = self._log_path.read_text(errors="replace").strip().splitlines()
                raise CommandFailed(f"the console did not start: {said[-1] if said else 'it said nothing'}")
            time.sleep(_POLL_S)
        child.returncode = 0  # it may outlive us: no warning when this object goes
        return address

    def stop(self) -> bool:
        """End it; ``False`` if it did not run."""
        mark = local_process.read_mark(self._mark_path)
        if mark is not None:
            local_process.send_signal(mark, signal.SIGTERM)
            deadline = time.monotonic() + STOP_S
            while local_process.alive(mark):
                if time.monotonic() > deadline:
                    local_process.send_signal(mark, signal.SIGKILL)
                time.sleep(_POLL_S)
        self._mark_path.unlink(missing_ok=True)
        return mark is not None

    def remove(self) -> None:
        """Delete its files."""
        for path in (self._mark_path, self._log_path):
            path.unlink(missing_ok=True)

    def _address(self) -> str | None:
        try:
            found = _ADDRESS.search(self._log_path.read_text(errors="replace"))
        except OSError:
            return None
        return None if found is None else found[0]
