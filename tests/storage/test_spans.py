"""Records left in their files: the same ones as reading them gives, and safe from what happens to the log meanwhile."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NodeId, TopicId
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import split_batches
from tidelog.proto.records.encoder import encode_values
from tidelog.storage.disk.files import SystemFiles
from tidelog.storage.disk.format import format_directory
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_manager import LogManager
from tidelog.storage.producers.append_checks import LogAppend
from tidelog.storage.segments.log_read import LogRead, LogSpan

NOW = 1_000_000
MakeLog = Callable[[TopicConfig], Log]


class Clock:
    def now_ms(self) -> int:
        return NOW

    def monotonic_ms(self) -> int:
        return NOW


@pytest.fixture
def make_log(tmp_path: Path) -> Iterator[Callable[[TopicConfig], Log]]:
    """Logs in files of the system, which have descriptors."""
    files = SystemFiles()
    format_directory(files, str(tmp_path), "c", NodeId(1), random.Random(1))
    manager = LogManager(files, Clock(), random.Random(1), [str(tmp_path)], cluster_id="c", node_id=NodeId(1))
    manager.start()

    def make(config: TopicConfig) -> Log:
        return manager.get_or_create("t", TopicId(b"t" * 16), 0, config, manager.directory_ids[0])

    yield make
    manager.close()


def filled(log: Log, rng: random.Random, count: int) -> Log:
    for _ in range(count):
        values = [bytes(rng.choice([0, 1, 50, 700, 2_500]))] * rng.randint(1, 5)
        appended = log.append_as_leader(split_batches(memoryview(bytes(encode_values(values, NOW)))), 0, NOW)
        assert isinstance(appended, LogAppend)
    return log


def content(span: LogSpan) -> bytes:
    return os.pread(span.fileno(), span.size, span.position)


def compare(log: Log, rng: random.Random, times: int) -> None:
    for _ in range(times):
        offset = rng.randint(0, log.log_end_offset)
        end = rng.choice([log.log_end_offset, rng.randint(0, log.log_end_offset)])
        most = rng.choice([0, 1, 60, 100, 1_000, 10_000, 1 << 20])
        at_least_one = rng.random() < 0.5
        read = log.read(offset, most, offset_end=end, at_least_one=at_least_one)
        found = log.find(offset, most, offset_end=end, at_least_one=at_least_one)
        assert isinstance(read, LogRead)
        assert not isinstance(found, Refusal)
        if found is None:
            assert len(read.records) == 0
        else:
            assert content(found) == read.records
            assert (found.next_offset, found.position) == (read.next_offset, read.position)
            found.release()
    assert log._chain.segments[-1].log._pool.pinned == 0


@pytest.mark.parametrize("seed", range(6))
def test_what_is_found_is_what_would_be_read(make_log: MakeLog, seed: int) -> None:
    rng = random.Random(seed)
    interval = rng.choice([0, 200, 4096])
    log = make_log(TopicConfig(segment_bytes=20_000, index_interval_bytes=interval))
    filled(log, rng, 100)
    compare(log, rng, 300)


@pytest.mark.parametrize("seed", range(3))
def test_an_index_that_lies_or_lacks_entries_changes_nothing(make_log: MakeLog, seed: int) -> None:
    rng = random.Random(seed)
    log = make_log(TopicConfig(index_interval_bytes=100))
    filled(log, rng, 60)
    (segment,) = log._chain.segments
    segment.offsets.cut(rng.randint(0, len(segment.offsets)))
    compare(log, rng, 100)
    relative, position = 0, 0
    while len(segment.offsets) < 60:
        relative, position = relative + rng.randint(1, 4), position + rng.randint(1, 3_000)
        if (segment.offsets.last() or (-1, -1)) < (relative, position):
            segment.offsets.add(relative, position)
    compare(log, rng, 100)


def test_offsets_that_are_not_there_are_refused(make_log: MakeLog) -> None:
    log = make_log(TopicConfig())
    filled(log, random.Random(1), 3)
    for offset in (-1, log.log_end_offset + 1):
        found = log.find(offset, 100, offset_end=log.log_end_offset)
        assert isinstance(found, Refusal)
        assert found.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.find(log.log_end_offset, 100, offset_end=log.log_end_offset) is None


def test_a_file_stays_readable_until_it_is_released_whatever_becomes_of_its_segment(make_log: MakeLog) -> None:
    log = make_log(TopicConfig(segment_bytes=20_000, retention_bytes=0, file_delete_delay_ms=0))
    filled(log, random.Random(1), 60)
    first = log.find(0, 1 << 20, offset_end=log.log_end_offset)
    again = log.find(0, 1 << 20, offset_end=log.log_end_offset)
    assert isinstance(first, LogSpan)
    assert isinstance(again, LogSpan)
    before = content(first)
    pool = log._chain.segments[0].log._pool
    assert log.apply_retention(NOW, log.log_end_offset) > 0
    pool.close()
    assert content(first) == before
    assert all(each.crc_ok() for each in split_batches(content(first)))
    first.release()
    assert content(again) == before
    again.release()
    assert pool.pinned == 0
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(first.fileno())


def test_releasing_twice_is_releasing_once(make_log: MakeLog) -> None:
    log = make_log(TopicConfig())
    filled(log, random.Random(1), 3)
    one = log.find(0, 1 << 20, offset_end=log.log_end_offset)
    other = log.find(0, 1 << 20, offset_end=log.log_end_offset)
    assert isinstance(one, LogSpan)
    assert isinstance(other, LogSpan)
    one.release()
    one.release()
    assert log._chain.segments[0].log._pool.pinned == 1
    other.release()
    assert log._chain.segments[0].log._pool.pinned == 0
