"""The real disk, and that the disk in memory behaves like it."""

from __future__ import annotations

import errno
import mmap
import os
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.page_cache import cached_pages, drop_cached_pages, needs_mincore
from tidelog.model.buffer import Buffer
from tidelog.model.clock import SystemClock
from tidelog.model.ids import BrokerEpoch, NodeId, TopicId
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import split_batches
from tidelog.proto.records.encoder import encode_values
from tidelog.storage.disk.files import IOV_MAX, FileLayer, SystemFiles, replace_file
from tidelog.storage.disk.format import format_directory
from tidelog.storage.disk.handles import HandlePool, PooledFile
from tidelog.storage.disk.memory_files import MemoryFiles
from tidelog.storage.log.log_manager import LogManager
from tidelog.storage.producers.append_checks import LogAppend
from tidelog.storage.segments.log_read import LogRead


@pytest.fixture(params=["system", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileLayer, str]:
    if request.param == "system":
        return SystemFiles(), str(tmp_path)
    files = MemoryFiles()
    files.makedirs("/d")
    return files, "/d"


def test_files_are_written_read_and_cut(disk: tuple[FileLayer, str]) -> None:
    files, path = disk
    with pytest.raises(FileNotFoundError):
        files.open(f"{path}/x")
    file = files.open(f"{path}/x", create=True)
    assert file.pwritev([b"abc", memoryview(b"def"), bytearray(b"ghi")], 2) == 9
    assert file.pread(100, 0) == b"\0\0abcdefghi"
    assert file.pread(3, 4) == b"cde"
    assert file.pread(3, 50) == b""
    file.truncate(5)
    assert (file.size(), files.size(f"{path}/x")) == (5, 5)
    file.truncate(8)
    assert file.pread(10, 0) == b"\0\0abc\0\0\0"
    file.fdatasync()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pread(1, 0)
    with pytest.raises(FileExistsError):
        files.open(f"{path}/x", exclusive=True)


def test_more_buffers_than_one_call_takes(disk: tuple[FileLayer, str]) -> None:
    files, path = disk
    buffers = [bytes([n % 256]) * (n % 5) for n in range(3 * IOV_MAX + 7)]
    file = files.open(f"{path}/x", create=True)
    assert file.pwritev(buffers, 0) == sum(map(len, buffers))
    assert file.pread(1 << 20, 0) == b"".join(buffers)
    file.close()


@pytest.mark.parametrize("refused", ["never", "when it is opened", "when it is written", "after a while"])
def test_writes_past_the_cache_are_as_other_writes(
    disk: tuple[FileLayer, str], monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    files, path = disk
    monkeypatch.setattr("tidelog.storage.disk.files.WRITE_BYTES_MAX", 5 * mmap.PAGESIZE)
    monkeypatch.setattr("tidelog.storage.disk.files._own", threading.local())
    direct = getattr(os, "O_DIRECT", 0)
    real_open, real_write = os.open, os.pwrite
    pieces = 0

    def open_(path: str, flags: int, *more: int) -> int:
        if flags & direct and refused == "when it is opened":
            raise OSError(errno.EINVAL, "no direct writes")
        return real_open(path, flags, *more)

    def write(handle: int, data: Buffer, offset: int) -> int:
        nonlocal pieces
        pieces += 1
        assert offset % mmap.PAGESIZE == len(data) % mmap.PAGESIZE == 0
        if refused == "when it is written":
            raise OSError(errno.EINVAL, "larger blocks")
        return real_write(handle, memoryview(data)[:512] if refused == "after a while" else data, offset)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "pwrite", write)
    rng = random.Random(4)
    file = files.open(f"{path}/x", create=True)
    content = b""
    for number in range(60):
        buffers = [rng.randbytes(rng.choice((1, 16, 700, 4_096, 9_000))) for _ in range(rng.randrange(1, 9))]
        size = sum(map(len, buffers))
        assert (file.pwritev_once if number % 3 else file.pwritev)(buffers, len(content)) == size
        content += b"".join(buffers)
        assert file.pread(len(content) + 1, 0) == content
    file.close()
    if isinstance(files, SystemFiles) and refused != "when it is opened":
        assert pieces, "some were written past the cache"


@needs_mincore
def test_writes_past_the_cache_leave_nothing_there(tmp_path: Path) -> None:
    path = tmp_path / "x"
    file = SystemFiles().open(str(path), create=True)
    file.pwritev([bytes(16 * mmap.PAGESIZE)], 0)
    drop_cached_pages(path)
    file.truncate(0)
    file.pwritev([b"x" * 10], 0)
    file.pwritev_once([bytes(16 * mmap.PAGESIZE)], 10)
    file.close()
    assert cached_pages(path) == [0, 16], "the incomplete blocks at both ends"


def test_more_bytes_than_one_call_takes(disk: tuple[FileLayer, str], monkeypatch: pytest.MonkeyPatch) -> None:
    files, path = disk
    monkeypatch.setattr("tidelog.storage.disk.files.WRITE_BYTES_MAX", 1_000)
    sizes: list[int] = []
    real = os.pwritev

    def pwritev(handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        sizes.append(sum(map(len, buffers)))
        return real(handle, buffers, offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    buffers = [random.Random(size).randbytes(size) for size in (300, 700, 2_500, 0, 999, 1, 1_001)]
    file = files.open(f"{path}/x", create=True)
    assert file.pwritev(buffers, 5) == sum(map(len, buffers))
    assert file.pread(1 << 20, 5) == b"".join(buffers)
    file.close()
    assert max(sizes, default=0) <= 1_000


def test_names(disk: tuple[FileLayer, str]) -> None:
    files, path = disk
    files.makedirs(f"{path}/a/b")
    files.makedirs(f"{path}/a/b")
    replace_file(files, f"{path}/a", "x", b"one")
    replace_file(files, f"{path}/a", "x", b"two")
    assert sorted(files.listdir(f"{path}/a")) == ["b", "x"]
    assert files.is_directory(f"{path}/a/b")
    assert not files.is_directory(f"{path}/a/x")
    files.rename(f"{path}/a/x", f"{path}/a/y")
    assert (files.exists(f"{path}/a/x"), files.exists(f"{path}/a/y")) == (False, True)
    files.fsync_dir(path)
    assert files.sync_filesystem(path) in (True, False)
    files.unlink(f"{path}/a/y")
    with pytest.raises(FileNotFoundError):
        files.unlink(f"{path}/a/y")
    with pytest.raises(FileNotFoundError):
        files.listdir(f"{path}/nothing")
    files.remove_tree(f"{path}/a")
    files.remove_tree(f"{path}/a")
    assert files.listdir(path) == []
    assert files.open_files_max() > 0
    assert files.disk_usage(path).total >= files.disk_usage(path).free > 0


def test_a_lock_is_held_once(disk: tuple[FileLayer, str]) -> None:
    files, path = disk
    held = files.lock(f"{path}/.lock")
    with pytest.raises(BlockingIOError):
        files.lock(f"{path}/.lock")
    held.release()
    held.release()
    files.lock(f"{path}/.lock").release()


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: real(fd, [b"".join(buffers)[:7]], offset))
    file = SystemFiles().open(str(tmp_path / "x"), create=True)
    buffers = [b"abcd", b"", b"efghijklm", b"nop"]
    assert file.pwritev(buffers, 3) == 16
    assert file.pread(99, 0) == b"\0\0\0abcdefghijklmnop"
    file.close()


def test_pooled_files_stay_within_their_bound(disk: tuple[FileLayer, str]) -> None:
    files, path = disk
    pool = HandlePool(files, 3)
    pooled = [PooledFile(pool, f"{path}/{n}") for n in range(6)]
    for number, each in enumerate(pooled):
        each.get(create=True).pwritev([b"%d" % number], 0)
        assert len(pool) <= 3
    pinned = pooled[0].pin()
    for _ in range(3):
        for number, each in enumerate(pooled):
            assert each.get().pread(9, 0) == b"%d" % number
    assert pinned.pread(9, 0) == b"0"
    pooled[0].close()  # a job may still be at it
    assert pinned.pread(9, 0) == b"0"
    pooled[0].unpin()
    with pytest.raises(OSError, match="Bad file descriptor"):
        pinned.pread(9, 0)
    pool.close()
    assert len(pool) == 0


def test_a_log_on_the_real_disk_survives_kill_9(tmp_path: Path) -> None:
    """A process appends, says what was appended, and is killed in the middle; nothing of it is missing."""
    script = textwrap.dedent(
        """
        import random, sys
        from tidelog.model.clock import SystemClock
        from tidelog.model.ids import NodeId, TopicId
        from tidelog.model.settings.topic_config import TopicConfig
        from tidelog.proto.records.encoder import encode_values
        from tidelog.proto.records.batches import split_batches
        from tidelog.storage.disk.files import SystemFiles
        from tidelog.storage.log.log_manager import LogManager

        settings = {"cluster_id": "c", "node_id": NodeId(1)}
        manager = LogManager(SystemFiles(), SystemClock(), random.Random(1), [sys.argv[1]], **settings)
        manager.start()
        log = manager.get_or_create("t", TopicId(b"t" * 16), 0, TopicConfig(segment_bytes=100_000))
        while True:
            raw = encode_values([b"%d" % log.log_end_offset] * 50, 1_000_000)
            log.append_as_leader(split_batches(bytes(raw)), 0, 1_000_000)
            print(log.log_end_offset, flush=True)
        """
    )
    files, clock = SystemFiles(), SystemClock()
    format_directory(files, str(tmp_path), "c", NodeId(1), random.Random(1))
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = 0
    for line in process.stdout:
        said = int(line)
        if said >= 20_000:
            process.kill()
            break
    rest = process.stdout.read().splitlines()
    said = max([said, *(int(line) for line in rest if line)])
    process.stdout.close()
    assert process.wait() < 0
    manager = LogManager(files, clock, random.Random(1), [str(tmp_path)], cluster_id="c", node_id=NodeId(1))
    manager.start()
    log = manager.get(TopicId(b"t" * 16), 0)
    assert log is not None
    assert log.log_end_offset >= said >= 20_000
    offset = 0
    while offset < log.log_end_offset:
        read = log.read(offset, 1 << 20, offset_end=log.log_end_offset)
        assert isinstance(read, LogRead)
        for batch in split_batches(read.records):
            assert batch.crc_ok()
        offset = read.next_offset
    raw = bytes(encode_values([b"more"], 1_000_000))
    log.update_config(TopicConfig())
    assert isinstance(log.append_as_leader(split_batches(raw), 1, 1_000_000), LogAppend)
    manager.write_clean_shutdown(BrokerEpoch(1))
    manager.close()


def test_reserved_blocks_do_not_change_the_file(tmp_path: Path) -> None:
    file = SystemFiles().open(str(tmp_path / "x"), create=True)
    file.pwritev([b"abc"], 0)
    file.reserve(1 << 20)
    assert file.pread(9, 0) == b"abc"
    assert file.size() == 3
    blocks = os.stat(tmp_path / "x").st_blocks
    file.truncate(3)
    assert os.stat(tmp_path / "x").st_blocks <= blocks
    file.close()


def test_preallocated_segments_hold_the_same(tmp_path: Path) -> None:
    format_directory(SystemFiles(), str(tmp_path), "c", NodeId(1), random.Random(1))

    def started() -> LogManager:
        made = LogManager(
            SystemFiles(), SystemClock(), random.Random(1), [str(tmp_path)], cluster_id="c", node_id=NodeId(1)
        )
        made.start()
        return made

    manager = started()
    config = TopicConfig(preallocate=True, segment_bytes=1_000)
    log = manager.get_or_create("t", TopicId(b"t" * 16), 0, config)
    raw = bytes(encode_values([b"x" * 300], 1_000_000))
    for _ in range(10):
        log.append_as_leader(split_batches(raw), 0, 1_000_000)
    assert log.segment_count == 5
    assert sum(file.stat().st_size for file in tmp_path.glob("t-0/*.log")) == log.size_bytes
    manager.close()
    manager = started()
    assert [log.log_end_offset for log in manager.logs()] == [10]
    manager.close()
