"""Processes on this machine that outlive the command that started them.

A pid alone may later belong to another process. We store it with the process's start time and send signals only if both
match.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.private_files import replace_private

_PROC: Final = Path("/proc")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """A process. The start time distinguishes it from a later one with the same pid."""

    pid: int
    started: str


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process's resource use. ``memory_peak_bytes`` is the maximum so far, -1 if the system does not report it."""

    memory_bytes: int
    memory_peak_bytes: int
    cpu_s: float


@cache
def _boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pids() -> list[int]:
    """Return the pid of every process on this machine."""
    if _boot_id():
        return [int(name) for name in os.listdir(_PROC) if name.isdigit()]
    done = subprocess.run(["ps", "-A", "-o", "pid="], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def stat_of(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/<pid>/stat`` from the state on; a name may contain blanks and brackets (proc(5)).
    ``None`` if the process is gone, or the system has no such file."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _ps(pid: int, *columns: str) -> str:
    wanted = ",".join(f"{column}=" for column in columns)
    done = subprocess.run(["ps", "-o", wanted, "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def mark_of(pid: int) -> ProcessMark | None:
    """Return the mark of a process, ``None`` if it is not alive (a zombie is not). A process is alive while any of its
    threads is, even if the first has ended, because it still holds its ports and files."""
    if _boot_id():
        fields = stat_of(pid)
        if fields is None or (fields[0] in "ZX" and int(fields[17]) <= 1):
            return None
        return ProcessMark(pid, f"{fields[19]}@{_boot_id()}")
    state, _, started = _ps(pid, "state", "lstart").partition(" ")
    return ProcessMark(pid, started.strip()) if state and not state.startswith("Z") else None


def read_mark(path: Path) -> ProcessMark | None:
    """The process that a file names, if it still runs. Raises :class:`CommandFailed`."""
    try:
        kept = json.loads(path.read_text())
        mark = ProcessMark(int(kept["pid"]), str(kept["started"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as trouble:
        raise CommandFailed(
            f"{path}: expected pid and start time, found something else ({trouble}); if nothing runs there, remove "
            "the file"
        ) from None
    return mark if alive(mark) else None


def keep_mark(path: Path, pid: int) -> None:
    """Write down a process that was just started, if it still runs."""
    if (mark := mark_of(pid)) is not None:
        replace_private(path, json.dumps(asdict(mark)))


def alive(mark: ProcessMark) -> bool:
    """Return whether exactly this process still runs."""
    return mark_of(mark.pid) == mark


def children_of(pid: int) -> dict[ProcessMark, list[str]]:
    """Return the live children of a process, each with its command line."""
    found = {}
    for child in pids():
        fields = stat_of(child)
        parent = fields[1] if fields else _ps(child, "ppid")
        mark = mark_of(child) if parent == str(pid) else None
        if mark is not None:
            with suppress(OSError):
                found[mark] = command_of(child)
    return found


def command_of(pid: int) -> list[str]:
    """Return the command line of a process. Raises ``OSError`` if it is gone."""
    if not _boot_id():
        return _ps(pid, "command").split()
    return (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]


def send_signal(mark: ProcessMark, number: signal.Signals) -> bool:
    """Signal exactly this process, never another one with the same pid. Returns ``False`` if it is gone."""
    if not hasattr(os, "pidfd_open"):
        if not alive(mark):
            return False
        os.kill(mark.pid, number)
        return True
    try:
        handle = os.pidfd_open(mark.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(mark):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def use_of(mark: ProcessMark) -> ProcessUse | None:
    """Return the memory and processor time of exactly this process, ``None`` if it is gone."""
    if not _boot_id():
        fields = _ps(mark.pid, "rss", "time").split()
        if len(fields) != 2 or not alive(mark):
            return None
        return ProcessUse(int(fields[0]) * 1024, -1, _clock_s(fields[1]))
    fields_now = stat_of(mark.pid)
    if fields_now is None or not alive(mark):
        return None
    peak = -1
    try:
        for line in (_PROC / str(mark.pid) / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                peak = int(line.split()[1]) * 1024
    except OSError:
        return None
    cpu_ticks = int(fields_now[11]) + int(fields_now[12])
    return ProcessUse(int(fields_now[21]) * _PAGE_BYTES, peak, cpu_ticks / _TICKS_PER_S)


def _clock_s(text: str) -> float:
    """Read ``[[dd-]hh:]mm:ss[.cc]``."""
    days, _, clock = text.rpartition("-")
    seconds = 0.0
    for part in clock.split(":"):
        seconds = seconds * 60 + float(part)
    return seconds + 86_400 * int(days or 0)
