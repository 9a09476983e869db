"""Flushes and writes in another thread while the log goes on."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from tidelog.model.buffer import Buffer
from tidelog.model.clock import SystemClock
from tidelog.model.ids import BrokerEpoch, NodeId, TopicId
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import patch_batch, split_batches
from tidelog.proto.records.encoder import encode_values
from tidelog.storage.disk.files import SystemFiles
from tidelog.storage.disk.format import format_directory
from tidelog.storage.disk.memory_files import MemoryFile, MemoryFiles
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_manager import LogManager
from tidelog.storage.segments.log_read import LogRead

NOW = 1_000_000
WAIT_S = 10


def open_manager(path: Path) -> LogManager:
    rng, at = random.Random(1), [str(path)]
    manager = LogManager(SystemFiles(), SystemClock(), rng, at, cluster_id="c", node_id=NodeId(1), open_files_max=4)
    manager.start()
    return manager


def test_flushes_beside_appends_rolls_cuts_and_deletions(tmp_path: Path) -> None:
    """With four descriptors for nine logs, so that files are closed and opened all the time."""
    rng = random.Random(1)
    format_directory(SystemFiles(), str(tmp_path), "c", NodeId(1), rng)
    manager = open_manager(tmp_path)
    failed: list[bytes] = []
    manager.on_directory_failure = failed.append
    config = TopicConfig(segment_bytes=2_000, index_interval_bytes=100, file_delete_delay_ms=0)
    logs = [manager.get_or_create(f"t{n}", TopicId(bytes([n]) * 16), 0, config) for n in range(9)]
    jobs = {}
    with ThreadPoolExecutor(2) as executor:
        for number in range(2_000):
            log = rng.choice(logs)
            raw = bytes(encode_values([rng.randbytes(rng.randrange(80))] * rng.randint(1, 4), NOW))
            log.append_as_leader([split_batches(raw)[0]], 0, NOW)
            if log not in jobs and (job := log.begin_flush()) is not None:
                jobs[log] = (job, executor.submit(job.run))
            if rng.random() < 0.05:
                log.truncate_to(max(log.log_start_offset, log.log_end_offset - rng.randrange(30)))
            for other in [each for each, (_, future) in jobs.items() if future.done() or rng.random() < 0.05]:
                job, future = jobs.pop(other)
                future.result(WAIT_S)
                other.finish_flush(job)
            if number % 400 == 399:
                gone = logs.pop()
                manager.delete(gone)
        for log, (job, future) in jobs.items():
            future.result(WAIT_S)
            log.finish_flush(job)
    assert failed == []
    ends = {log.topic_id: log.log_end_offset for log in logs}
    assert all(log.recovery_point > 0 for log in logs)
    assert [whole(log) for log in logs] == list(ends.values())
    assert len(manager._pool) <= 4
    manager.write_clean_shutdown(BrokerEpoch(1))
    manager.close()
    manager = open_manager(tmp_path)
    assert {log.topic_id: log.log_end_offset for log in manager.logs()} == ends
    assert [whole(log) for log in manager.logs()] == list(ends.values())
    manager.close()


def whole(log: Log) -> int:
    """The end of the log, found by reading it."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(offset, 1 << 20, offset_end=log.log_end_offset)
        assert isinstance(read, LogRead)
        assert all(batch.crc_ok() for batch in split_batches(read.records))
        offset = read.next_offset
    return offset


class SlowFiles(MemoryFiles):
    """A disk whose fdatasync and pwritev_once wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.let_go = threading.Event()

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> MemoryFile:
        file = super().open(path, create=create, exclusive=exclusive)
        return SlowFile(self, file) if path.endswith(".log") else file


class SlowFile(MemoryFile):
    def __init__(self, files: SlowFiles, file: MemoryFile) -> None:
        super().__init__(files, file._path, file._inode)
        self.files = files

    def fdatasync(self) -> None:
        self._wait()
        super().fdatasync()

    def pwritev_once(self, buffers: Sequence[Buffer], offset: int) -> int:
        self._wait()
        return super().pwritev_once(buffers, offset)

    def _wait(self) -> None:
        self.files.entered.set()
        assert self.files.let_go.wait(WAIT_S)


Slow = tuple[SlowFiles, LogManager, Log]


@pytest.fixture
def slow() -> Iterator[Slow]:
    files = SlowFiles()
    format_directory(files, "/a", "c", NodeId(1), random.Random(1))
    manager = LogManager(files, SystemClock(), random.Random(1), ["/a"], cluster_id="c", node_id=NodeId(1))
    manager.start()
    yield files, manager, manager.get_or_create("t", TopicId(b"t" * 16), 0, TopicConfig())
    manager.close()


def test_a_close_waits_for_a_flush_that_another_thread_is_at(slow: Slow) -> None:
    files, _, log = slow
    log.append_as_leader(split_batches(bytes(encode_values([b"x"], NOW))), 0, NOW)
    job = log.begin_flush()
    assert job is not None
    with ThreadPoolExecutor(2) as executor:
        running = executor.submit(job.run)
        assert files.entered.wait(WAIT_S)
        job.release()  # the caller gives up: the file stays open for the thread that syncs it
        closing = executor.submit(log.close)
        assert not closing.done()
        files.let_go.set()
        running.result(WAIT_S)
        closing.result(WAIT_S)
    assert job.error is None
    assert log.recovery_point == log.log_end_offset == 1


@pytest.mark.parametrize(
    ("act", "content_left"),
    [(whole, 1), (lambda log: log.roll(NOW), 1), (lambda log: log.truncate_to(0), 0), (Log.abandon, 1)],
    ids=["read", "roll", "truncate", "abandon"],
)
def test_nothing_overtakes_a_thread_that_writes(slow: Slow, act: Callable[[Log], object], content_left: int) -> None:
    files, _, log = slow
    raw = bytes(encode_values([b"x"], NOW))
    log.append_as_follower(raw, NOW, once=True)
    job, path = log.writing, log._chain.active.log.path
    assert job is not None
    with ThreadPoolExecutor(2) as executor:
        running = executor.submit(job.run)
        assert files.entered.wait(WAIT_S)
        acting = executor.submit(act, log)
        done, _ = wait([acting], timeout=0.05)
        files.let_go.set()
        assert not done
        running.result(WAIT_S)
        acting.result(WAIT_S)
    assert bytes(files.content(path)) == raw * content_left
    log.finish_write(job)
    job.run()
    assert bytes(files.content(path)) == raw * content_left, "once"


def test_a_flush_that_begins_meanwhile_writes_first(slow: Slow) -> None:
    files, _, log = slow
    files.let_go.set()
    raw = bytes(encode_values([b"x"], NOW))
    log.append_as_follower(raw, NOW, once=True)
    write, flush = log.writing, log.begin_flush()
    assert write is not None
    assert flush is not None
    flush.run()
    assert bytes(files.content(log._chain.active.log.path)) == raw
    log.finish_flush(flush)
    log.finish_write(write)
    assert log.recovery_point == log.acknowledgeable_offset == 1


def test_what_fills_several_segments_is_written_to_each(slow: Slow) -> None:
    files, _, log = slow
    files.let_go.set()
    raws = [bytearray(encode_values([b"x" * 100], NOW)) for _ in range(5)]
    for number, raw in enumerate(raws):
        patch_batch(raw, 0, base_offset=number, leader_epoch=0)
    log.update_config(TopicConfig(segment_bytes=2 * len(raws[0])))
    log.append_as_follower(b"".join(raws), NOW, once=True)
    assert log.segment_count == 3
    assert log.acknowledgeable_offset == 4
    assert whole(log) == 5


def test_what_was_not_begun_when_a_log_is_given_up_is_not_written(slow: Slow) -> None:
    files, manager, log = slow
    log.append_as_follower(bytes(encode_values([b"x"], NOW)), NOW, once=True)
    job, path = log.writing, log._chain.active.log.path
    assert job is not None
    log.abandon()
    files.let_go.set()
    job.run()
    assert not files.content(path)
    assert not manager._pool.pinned
