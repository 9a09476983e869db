"""Backup and restore of a one-node cluster, compared in the same run with how fast the disk copies the backup, and with
how fast it writes.

What the disk writes is measured right before the restore and right after it: as many bytes, written by a plain program
to one file, past the page cache, and synced at the end. (Through the page cache, the figure would be the memory's: on a
busy machine it was a fraction of what the disk wrote.) The node reads the backup itself (``backup.dirs``). All written
data is on disk before the time is taken, and no data to read is in the page cache.
"""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from tidelog.bench.clusters import running, with_topics
from tidelog.cli.work.workload import fill

RECORDS: Final = 1_000_000
LARGE: Final = 10
"""Factor for the data size, so that it does not fit in the page cache beside its copy."""
BYTES: Final = 1024
_TOPIC: Final = "bench"
_PIECE: Final = 4 * 1024 * 1024
"""Bytes that the comparisons read and write at a time."""
_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)


def restore(root: Path) -> Mapping[str, float]:
    """Measure MB per second."""
    return _measured(root, RECORDS, "restore")


def restore_large(root: Path) -> Mapping[str, float]:
    """Measure the same for 10 GB."""
    return _measured(root, LARGE * RECORDS, "restore_10gb")


def _measured(root: Path, records: int, name: str) -> Mapping[str, float]:
    size = records * BYTES / 1e6
    backup = str(root / "backup")
    with with_topics(root / "source", 1, _TOPIC) as cluster:
        fill(cluster.bootstrap, _TOPIC, BYTES, records, acks="1")
        made = size / _timed(lambda: _tidelog("backup", "create", backup, "--bootstrap", cluster.bootstrap))
    shutil.rmtree(root / "source")
    _forget(root / "backup")
    copied = size / _timed(lambda: _copy(root / "backup", root / "copied"))
    shutil.rmtree(root / "copied")
    before_s = _written(root / "written", records * BYTES)
    with running(root / "target", 1, {"backup.dirs": str(root)}) as cluster:

        def bring() -> None:
            _tidelog("restore", backup, "--bootstrap", cluster.bootstrap)
            _sync(root / "target")

        back = size / _timed(bring)
    shutil.rmtree(root / "target")
    disk = 2 * size / (before_s + _written(root / "written", records * BYTES))
    found = {name: back, f"{name}_of_copy": back / copied, f"{name}_of_disk": back / disk}
    return found | ({"backup": made} if name == "restore" else {})


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _files(root: Path) -> Iterator[int]:
    """Yield handles of all files below."""
    for path in root.rglob("*"):
        with suppress(FileNotFoundError):  # the cluster keeps running
            if path.is_file() and not path.is_symlink():
                handle = os.open(path, os.O_RDONLY)
                try:
                    yield handle
                finally:
                    os.close(handle)


def _sync(root: Path) -> None:
    for handle in _files(root):
        os.fsync(handle)


def _forget(root: Path) -> None:
    """Drop the files from the page cache."""
    for handle in _files(root):
        os.fsync(handle)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


def _tidelog(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tidelog.cli.main", *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"tidelog {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")


def _copy(source: Path, target: Path) -> None:
    """Copy all files past the page cache where the system can, two at a time, and sync them: what a restore asks of the
    disk, without a restore's work. Bytes beyond the last whole block of a file are left out."""
    target.mkdir()
    files = sorted((path for path in source.rglob("*") if path.is_file()), key=lambda path: -path.stat().st_size)
    with ThreadPoolExecutor(2) as both:
        for done in [both.submit(_copy_file, path, target / str(number)) for number, path in enumerate(files)]:
            done.result()


def _copy_file(source: Path, target: Path) -> None:
    piece = mmap.mmap(-1, _PIECE)
    reading, writing = os.open(source, os.O_RDONLY | _DIRECT), _made(target)
    try:
        while (count := os.readv(reading, [piece]) // mmap.PAGESIZE * mmap.PAGESIZE) > 0:
            os.write(writing, memoryview(piece)[:count])
        os.fsync(writing)
    finally:
        os.close(reading)
        os.close(writing)


def _written(path: Path, size: int) -> float:
    """Return how many seconds a plain program needs to write so many bytes to a file, past the page cache where the
    system can, and to sync it."""
    piece, writing = mmap.mmap(-1, _PIECE), _made(path)

    def write() -> None:
        for _ in range(size // _PIECE):
            os.write(writing, piece)
        os.fdatasync(writing)

    try:
        return _timed(write)
    finally:
        os.close(writing)
        path.unlink()


def _made(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | _DIRECT, 0o600)
