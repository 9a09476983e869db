"""A run's software and machine, and the machine's effects on the run.

A laboratory on a busy machine measures the machine too. So it watches itself: a thread sleeps briefly and records how
much later than asked it woke up. During such a stall, processes that were ready did not run, nodes as well as clients.
"""

from __future__ import annotations

import os
import platform
import subprocess
import threading
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from tidelog.chaos.laboratory.history.history_file import HistoryFile
from tidelog.chaos.laboratory.links.toxiproxy_build import VERSION as TOXIPROXY

LOOK_S: Final = 0.02
STALL_S: Final = 0.1
"""A wake-up this late means that the process was kept from running; smaller delays are normal under Python's own
lock."""
STALLS_MAX: Final = 20_000
"""Maximum number of stalls per run; further ones are counted but not written."""
_END_S: Final = 5.0
_GIT_S: Final = 5.0
_STAT: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""The first fields of the line ``cpu`` of /proc/stat (proc(5)), in ticks since the machine's start."""


def made_by() -> Mapping[str, str]:
    """Return the versions and the machine of a run, for its history's first line."""
    found = {"tidelog": _version("tidelog"), "commit": _commit(), "python": platform.python_version()}
    found |= {"grpcio": _version("grpcio"), "toxiproxy": TOXIPROXY}
    found |= {"system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}"}
    return {**found, "processors": str(os.cpu_count() or 1)}


class MachineWatch:
    """``with MachineWatch(history): …`` writes lines ``stall`` as they come and one line ``machine`` at the end."""

    def __init__(self, history: HistoryFile) -> None:
        self._history = history
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="machine watch", daemon=True)
        self._stalls = 0
        self._worst_s = 0.0
        self._sum_s = 0.0

    def __enter__(self) -> MachineWatch:
        self._ticks = ticks()
        self._began = self._history.now()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join(_END_S)
        spent = {name: after - self._ticks.get(name, 0.0) for name, after in ticks().items()}
        self._history.write(
            "machine",
            at=round(self._history.now(), 6),
            seconds=round(self._history.now() - self._began, 3),
            processors=os.cpu_count() or 1,
            processor_s={name: round(seconds, 2) for name, seconds in spent.items()},
            load=[round(load, 2) for load in os.getloadavg()],
            stalls=self._stalls,
            stalled_s=round(self._sum_s, 3),
            worst_s=round(self._worst_s, 3),
        )

    def _run(self) -> None:
        while not self._ending.is_set():
            before = time.monotonic()
            self._ending.wait(LOOK_S)
            late_s = time.monotonic() - before - LOOK_S
            if late_s >= STALL_S:
                self._stalls += 1
                self._sum_s += late_s
                self._worst_s = max(self._worst_s, late_s)
                if self._stalls <= STALLS_MAX:
                    self._history.write("stall", at=round(self._history.now() - late_s, 6), late=round(late_s, 6))


def ticks() -> dict[str, float]:
    """Return the seconds that all processors together have spent so far, by state; empty if the kernel does not say."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return {}
    per_s = os.sysconf("SC_CLK_TCK")
    return {name: int(field) / per_s for name, field in zip(_STAT, fields, strict=False)}


def stalled_s(stalls: list[Mapping[str, Any]], begin_s: float, end_s: float) -> float:
    """Return for how much of a span the laboratory itself was kept from running."""
    spans = [(float(stall["at"]), float(stall["at"] + stall["late"])) for stall in stalls]
    return sum(max(0.0, min(end_s, end) - max(begin_s, begin)) for begin, end in spans)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _commit() -> str:
    """Return the commit of this file's checkout, with a + if files differ from it; otherwise "unknown"."""
    directory = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=_GIT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"
