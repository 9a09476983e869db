"""The history of measurements: one JSON line per figure and run of ``./dev bench``, by month.

A line names the class of machine and the command, never a host, a user or a path.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from tidelog.bench.figures import Figure, median

DIRECTORY: Final = Path(__file__).resolve().parent / "history"


def machine() -> dict[str, Any]:
    """The factors besides our code that affect a figure."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "grpcio": metadata.version("grpcio"),
    }


def commit() -> str:
    """The measured commit; ends in ``+`` if files differ from it; "" outside a checkout."""
    root = DIRECTORY.parents[1]
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/history"],
            cwd=root, capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+" if changed else "")


def line(figure: Figure, values: Sequence[float], command: str, now: datetime) -> dict[str, Any]:
    """One entry of the history."""
    return {
        "time": now.astimezone(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "figure": figure.name,
        "median": round(median(values), 4),
        "unit": figure.unit,
        "values": [round(value, 4) for value in values],
        "at_least": figure.at_least,
        "aim": figure.aim,
        "workload": figure.workload,
        "command": command,
        "machine": machine(),
    }


def append(entries: Sequence[dict[str, Any]], now: datetime, directory: Path = DIRECTORY) -> Path:
    """Append entries to the month's file; return its path."""
    directory.mkdir(exist_ok=True)
    path = directory / f"{now.astimezone(UTC):%Y-%m}.jsonl"
    with path.open("a", encoding="utf-8") as file:
        for entry in entries:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")
    return path


def _cpu_model() -> str:
    try:
        for found in Path("/proc/cpuinfo").read_text().splitlines():
            if found.startswith("model name"):
                return found.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
