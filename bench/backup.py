"""A cluster of one node backed up and restored, beside what the disk writes in the same run."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

from tidelog.bench.clusters import create_topic, running
from tidelog.cli.root import run
from tidelog.cli.work.workload import fill

RECORDS: Final = 1_000_000
BYTES: Final = 1024
_TOPIC: Final = "bench"
_BLOCK: Final = bytes(4 * 1024 * 1024)


def restore(root: Path) -> Mapping[str, float]:
    """MB a second; the restore reads and checks the whole backup first."""
    from tidelog import Admin

    size = RECORDS * BYTES / 1e6
    backup = str(root / "backup")
    with running(root / "source", 1) as cluster, Admin(cluster.bootstrap) as admin:
        create_topic(admin, _TOPIC)
        fill(cluster.bootstrap, _TOPIC, BYTES, RECORDS, acks="1")
        made = size / _timed(lambda: _tidelog("backup", "create", backup, "--bootstrap", cluster.bootstrap))
    disk = size / _timed(lambda: _write(root / "written", RECORDS * BYTES))
    with running(root / "target", 1) as cluster:
        back = size / _timed(lambda: _tidelog("restore", backup, "--bootstrap", cluster.bootstrap))
    return {"backup": made, "restore": back, "restore_of_disk": back / disk}


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _tidelog(*arguments: str) -> None:
    with redirect_stdout(io.StringIO()):
        code = run([*arguments, "--json"])
    if code:
        raise RuntimeError(f"tidelog {' '.join(arguments)} ended with {code}")


def _write(path: Path, size: int) -> None:
    with path.open("wb", buffering=0) as file:
        for _ in range(size // len(_BLOCK)):
            file.write(_BLOCK)
        os.fsync(file.fileno())
