"""Runs a drill as a separate process: ``tidelog drill … --json``, with the settings of the person who started it.

One drill runs at a time. Drills stop the processes of nodes on this machine, so the console offers them only when
started with ``--drills``. On a cluster with access control, only people who may alter the cluster can start one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from tidelog.cli.local.private_files import write_private
from tidelog.client.config.security import TEXTS
from tidelog.console.web.messages import Wrong
from tidelog.model.settings.properties import format_properties

LINES_MAX: Final = 500
LINE_CHARS_MAX: Final = 1_000
OUTPUT_CHARS_MAX: Final = 2**20
LIST_S: Final = 60.0
STOP_S: Final = 120.0
"""How long a drill may take to undo what it did."""
_LIST: Final = (
    "import json; from tidelog.chaos.drill.drills import DRILLS; "
    "print(json.dumps([[one.name, one.summary] for one in DRILLS.values() if not one.between_releases]))"
)


@dataclass(slots=True)
class Held:
    """A started drill. ``code``: its exit code, ``None`` while it runs."""

    name: str
    by: str | None
    where: str
    began_ms: int
    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    output: str = ""
    code: int | None = None
    stopped: bool = False
    follower: threading.Thread | None = None

    def as_object(self) -> dict[str, Any]:
        verdict = None
        if self.code is not None:
            with contextlib.suppress(ValueError):
                verdict = json.loads(self.output)
        return {
            "name": self.name,
            "by": self.by,
            "where": self.where,
            "began": self.began_ms,
            "running": self.code is None,
            "stopped": self.stopped,
            "code": self.code,
            "lines": list(self.lines),
            "verdict": verdict,
        }


class Drills:
    """See the module. Thread-safe."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._lock = threading.Lock()
        self._known: list[tuple[str, str]] = []
        self.last: Held | None = None

    def known(self) -> list[tuple[str, str]]:
        """Return names and summaries. Another process loads the drills, because they take 25 MB."""
        with self._lock:
            if not self._known:
                done = subprocess.run(
                    [sys.executable, "-P", "-c", _LIST], capture_output=True, text=True, timeout=LIST_S, check=True
                )
                self._known = [(name, summary) for name, summary in json.loads(done.stdout)]
            return self._known

    def start(self, name: str, by: str | None, confirm: str | None, settings: Mapping[str, Any]) -> Held:
        """Start a drill on a cluster of its own or, if ``confirm`` is the id of the console's cluster, on that one.
        Raises :class:`Wrong`."""
        if name not in dict(self.known()):
            raise Wrong(f"expected one of {', '.join(dict(self.known()))}, found {name[:40]!r}", 404)
        with self._lock:
            if self.last is not None and self.last.code is None:
                raise Wrong(f"drill {self.last.name} is still running; one at a time", 409)
            directory = Path(tempfile.mkdtemp(prefix="tidelog-console-"))
            command = [sys.executable, "-m", "tidelog.cli.main", "drill", name, "--json"]
            if confirm is not None:
                command += ["--bootstrap", self._bootstrap, "--confirm", confirm]
                texts = {key.replace("_", "."): str(value) for key, value in settings.items() if key in TEXTS}
                if texts:
                    write_private(directory / "client.properties", format_properties(texts))
                    command += ["--command-config", str(directory / "client.properties")]
            held = self.last = self._begin(name, by, "this cluster" if confirm else "a cluster of its own", command)
            held.follower = threading.Thread(
                target=self._follow, args=(held, directory), name=f"drill {name}", daemon=True
            )
            held.follower.start()
            return held

    def _begin(self, name: str, by: str | None, where: str, command: Sequence[str]) -> Held:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", start_new_session=True, env=environment,
        )  # fmt: skip
        return Held(name, by, where, time.time_ns() // 1_000_000, process)

    def _follow(self, held: Held, directory: Path) -> None:
        assert held.process.stdout is not None
        assert held.process.stderr is not None
        with held.process:  # closes its pipes and waits for it
            telling = threading.Thread(target=_keep_lines, args=(held, held.process.stderr), daemon=True)
            telling.start()
            held.output = held.process.stdout.read(OUTPUT_CHARS_MAX)
            while held.process.stdout.read(4096):
                pass
            telling.join()
        shutil.rmtree(directory, ignore_errors=True)
        held.code = held.process.returncode

    def stop(self) -> None:
        """Ask the running drill to undo what it did and end."""
        held = self.last
        if held is None or held.code is not None:
            raise Wrong("no drill is running", 409)
        held.stopped = True
        held.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """Stop the running drill, and wait until it has undone what it did."""
        held = self.last
        if held is None or held.follower is None:
            return
        if held.code is None:
            held.process.send_signal(signal.SIGINT)
        held.follower.join(STOP_S)
        if held.follower.is_alive():
            held.process.kill()
            held.follower.join()


def _keep_lines(held: Held, lines: IO[str]) -> None:
    for line in lines:
        if len(held.lines) < LINES_MAX:
            held.lines.append(line.rstrip("\n")[:LINE_CHARS_MAX])
