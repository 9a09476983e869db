"""The fault shim: its effect on calls from Python's own code, and the calls that it leaves alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidelog.chaos.disk.faults import DELAY_MS_MAX, WORDS, DiskFaults
from tidelog.chaos.disk.shim_build import COMPILERS, SOURCE, ShimMissing, fault_shim

pytestmark = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no C compiler to make the shim")

CHILD = """
import errno, json, os, sys, threading, time
from tidelog.storage.disk.files import SystemFiles
files, root = SystemFiles(), os.environ["TIDELOG_FAULTS_ROOT"]
opened = {}
def at(name): return name if name.startswith("/") else f"{root}/{name}"
def file(name):
    if name not in opened: opened[name] = files.open(at(name), create=True)
    return opened[name]
def plain(name):
    with open(at(name), "wb", buffering=0) as handle: return handle.write(b"x" * 9000)
def lock_s(wait):
    lock, began = threading.Lock(), time.monotonic()
    lock.acquire(); lock.acquire(timeout=wait)
    return time.monotonic() - began
calls = {
    "pwritev": lambda name, size, offset: file(name).pwritev([b"x" * size], offset),
    "once": lambda name, size, offset: os.pwrite(file(name).fileno(), b"x" * size, offset),
    "vector": lambda name, sizes, offset: os.pwritev(file(name).fileno(), [b"x" * each for each in sizes], offset),
    "plain": plain,
    "sync": lambda name: file(name).fdatasync(),
    "sync_dir": lambda: files.fsync_dir(root),
    "read": lambda name, size, offset: len(file(name).pread(size, offset)),
    "size": lambda name: os.path.getsize(at(name)),
    "truncate": lambda name, size: file(name).truncate(size),
    "reserve": lambda name, size: file(name).reserve(size),
    "make": lambda name: files.makedirs(at(name)),
    "rename": lambda one, other: files.rename(at(one), at(other)),
    "unlink": lambda name: files.unlink(at(name)),
    "clock": lambda: [time.time(), time.clock_gettime(time.CLOCK_REALTIME), time.monotonic()],
    "lock": lock_s,
}
for line in sys.stdin:
    name, *given = json.loads(line)
    began = time.monotonic()
    try:
        answer = ["ok", calls[name](*given)]
    except OSError as error:
        answer = [errno.errorcode[error.errno], None]
    print(json.dumps([*answer, time.monotonic() - began]), flush=True)
"""


class Child:
    """A process with the shim, that does a call at a time."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "disk"
        self.root.mkdir()
        self.faults = DiskFaults(self.root, directory / "control", fault_shim())
        self.took_s = 0.0
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.faults.environment},
        )

    def ask(self, *call: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """The result of a call, or the name of its error."""
        assert self.process.stdout is not None
        outcome, value, self.took_s = json.loads(self.process.stdout.readline())
        return value if outcome == "ok" else outcome

    def __call__(self, *call: Any) -> Any:
        self.ask(*call)
        return self.answer()


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    made = Child(tmp_path)
    with made.process as process:
        yield made
        process.kill()


def test_the_words_are_those_of_the_shim() -> None:
    source = SOURCE.read_text()
    block = source[source.index("struct words {") : source.index("};", source.index("struct words {"))]
    names = [name.strip() for line in block.splitlines()[1:] for name in line.strip()[8:].rstrip(";").split(",")]
    assert tuple(name for name in names if name) == WORDS


def test_a_full_disk_takes_what_it_has_room_for_and_no_more(child: Child, tmp_path: Path) -> None:
    assert child("pwritev", "a", 100, 0) == 100
    child.faults.full(room=13_000)
    assert child("once", "a", 5000, 100) == 5000
    assert child("vector", "a", [2000, 2000, 3000, 9000], 5100) == 4 * 4096 - 5100, "what meets the end is short"
    assert child("size", "a") == 4 * 4096, "the block that was there, and three"
    assert child("once", "a", 1, 4 * 4096) == "ENOSPC"
    assert child("truncate", "a", 8100) is None
    assert child("once", "a", 200, 8100) == 92, "what is left of the last block is there"
    assert child("pwritev", "a", 8000, 0) == 8000, "what is there already can be written again"
    assert child("pwritev", "a", 500, 8100) == "ENOSPC", "as a whole it fails, after the part that there was room for"
    assert child("size", "a") == 8192
    assert child("plain", "new") == "ENOSPC"
    assert child("size", "new") == 0
    assert child("make", "directory") == "ENOSPC"
    assert child("reserve", "a", 100_000) == "ENOSPC"
    assert child("plain", str(tmp_path / "elsewhere")) == 9000, "other disks have room"
    assert child("sync", "a") is None
    assert child("truncate", "a", 0) is None
    hits = child.faults.hits
    assert hits.refused >= 5
    assert hits.shortened >= 2
    assert not hits.failed
    child.faults.mend()
    assert child("plain", "new") == 9000
    assert child("make", "directory") is None
    assert child.faults.attached == 1


def test_calls_of_a_kind_fail_and_the_others_do_not(child: Child) -> None:
    assert child("pwritev", "a", 5000, 0) == 5000
    child.faults.fail(sync=True)
    assert [child("sync", "a"), child("sync_dir")] == ["EIO", "EIO"]
    assert [child("pwritev", "a", 10, 0), child("read", "a", 10, 0)] == [10, 10]
    child.faults.fail(read=True)
    assert [child("read", "a", 10, 0), child("sync", "a"), child("pwritev", "a", 10, 0)] == ["EIO", None, 10]
    child.faults.fail(write=True)
    changes = [("pwritev", "a", 1, 0), ("truncate", "a", 0), ("rename", "a", "b"), ("unlink", "a"), ("plain", "c")]
    assert [child(*call) for call in changes] == ["EIO"] * len(changes)
    assert child("read", "a", 10, 0) == 10
    child.faults.mend()
    assert child("rename", "a", "b") is None


def test_a_slow_disk_takes_its_time_and_a_stalled_one_waits_until_it_is_mended(child: Child) -> None:
    assert child("pwritev", "a", 10, 0) == 10
    child.faults.slow(sync_ms=120)
    assert child("sync", "a") is None
    assert child.took_s >= 0.12
    delayed = child.faults.hits.delayed
    assert child("pwritev", "a", 10, 0) == 10
    assert child.faults.hits.delayed == delayed == 1
    child.faults.slow(write_ms=50, read_ms=80)
    assert child("pwritev", "a", 10, 0) == 10
    assert child.took_s >= 0.05
    assert child("read", "a", 10, 0) == 10
    assert child.took_s >= 0.08
    child.faults.mend()
    child.faults.stall()
    began = time.monotonic()
    child.ask("pwritev", "a", 10, 10)
    while not child.faults.hits.held:
        assert time.monotonic() < began + 10
        time.sleep(0.001)
    held_since = time.monotonic()
    while time.monotonic() < held_since + 0.1:
        assert (child.root / "a").stat().st_size == 10, "nothing is written while the disk stands still"
        time.sleep(0.01)
    child.faults.mend()
    assert child.answer() == 10
    assert child.took_s >= 0.1


def test_the_wall_clock_jumps_both_ways_and_the_monotonic_one_does_not(child: Child) -> None:
    for ahead_s in (0.0, 1800.25, -1800.25, 0.0):
        child.faults.set_clock(ahead_s)
        assert child.faults.clock_s == ahead_s
        low, mono_low = time.time(), time.monotonic()
        *walls, mono = child("clock")
        high, mono_high = time.time(), time.monotonic()
        assert all(low + ahead_s - 1e-3 <= wall <= high + ahead_s + 1e-3 for wall in walls)
        assert mono_low <= mono <= mono_high


def test_waits_are_as_long_with_a_clock_that_is_wrong(child: Child) -> None:
    for ahead_s in (3600.0, -3600.0):
        child.faults.set_clock(ahead_s)
        assert 0.05 <= child("lock", 0.05) < 5


def test_what_is_no_amount_is_refused(tmp_path: Path) -> None:
    faults = DiskFaults(tmp_path, tmp_path / "control", tmp_path / "shim.so")
    with pytest.raises(ValueError, match="room of 0 bytes or more, found -1"):
        faults.full(room=-1)
    with pytest.raises(ValueError, match=f"0 to {DELAY_MS_MAX} milliseconds, found -5"):
        faults.slow(sync_ms=-5)
    with pytest.raises(ValueError, match="seconds either way"):
        faults.set_clock(1e12)


@pytest.mark.parametrize("content", [None, b"", b"x" * 4096])
def test_a_process_that_the_faults_would_not_reach_does_not_start(content: bytes | None, tmp_path: Path) -> None:
    faults = DiskFaults(tmp_path, tmp_path / "control", fault_shim())
    if content is None:
        (tmp_path / "control").unlink()
    else:
        (tmp_path / "control").write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", "print('here')"],
        env={**os.environ, **faults.environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 70
    assert not done.stdout
    assert "expected a mapped control file" in done.stderr


def test_a_shim_is_kept_and_one_that_is_spoiled_is_made_anew(tmp_path: Path) -> None:
    shim = fault_shim(tmp_path)
    made = shim.stat().st_mtime_ns
    assert fault_shim(tmp_path).stat().st_mtime_ns == made
    whole = shim.read_bytes()
    shim.write_bytes(whole[:-1])
    assert fault_shim(tmp_path).read_bytes()[:4] == b"\x7fELF"
    assert len(shim.read_bytes()) == len(whole)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("CC", "no-such-compiler", "expected a C compiler, found 'no-such-compiler'"),
        ("CC", "false", "could not be compiled by false: exit code 1"),
        ("PATH", "/nowhere", "found none of cc, gcc, clang: install one"),
    ],
)
def test_without_a_compiler_it_says_what_to_do(
    name: str, value: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv(name, value)
    with pytest.raises(ShimMissing, match=text):
        fault_shim(tmp_path)


def test_a_cache_that_the_loader_cannot_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShimMissing, match="without blanks and colons"):
        fault_shim(tmp_path / "my cache")
