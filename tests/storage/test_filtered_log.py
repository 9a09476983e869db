"""Indexes for filters hide no record: after truncations, compaction, damage, and a crash at any call to the disk."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable

import pytest

from tidelog.model.ids import NodeId, Offset
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import Batch, split_batches
from tidelog.proto.records.decoder import decode_records
from tidelog.proto.records.encoder import encode_columns
from tidelog.proto.records.header_filter import HeaderFilter, HeaderMask, header_sum, mask_of
from tidelog.storage.cleaner.cleaning import CleaningLimits
from tidelog.storage.disk.memory_files import Faults, Killed, MemoryFiles
from tidelog.storage.log.cleaner import Candidate, LogCleaner
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_manager import LogManager
from tidelog.storage.producers.append_checks import LogAppend
from tidelog.storage.segments.filter_index import BLOCKS_A_PAGE, FilterIndexWriter

from .conftest import CLUSTER, TOPIC_ID, Store
from .crashing import checkpoint

NOW = 1_000_000
CONFIG = TopicConfig(
    segment_bytes=1_200, index_interval_bytes=200, filter_header="tag", file_delete_delay_ms=0, retention_ms=-1
)
STEP = int(os.environ.get("TIDELOG_CRASH_STEP", "97"))
"""Every how many-th step is a crash; set the variable to 1 for all of them."""
TAGS = ("a", "b", "c", None)


def batch(tags: Iterable[str | None], key: bytes = b"k") -> Batch:
    headers = [() if tag is None else (("tag", tag.encode()),) for tag in tags]
    times, keys = [NOW] * len(headers), [key] * len(headers)
    return split_batches(bytes(encode_columns(times, keys, [b"v" * 150] * len(headers), headers)))[0]


def append(log: Log, *tags: str | None, key: bytes = b"k") -> None:
    for tag in tags:
        outcome = log.append_as_leader([batch([tag], key)], log.latest_epoch if log.latest_epoch >= 0 else 0, NOW)
        assert isinstance(outcome, LogAppend)


def index(log: Log) -> int:
    """Index all that can be; return how many segments."""
    count = 0
    while (work := log.begin_filter_index()) is not None:
        while work.content is None:
            work.step()
        assert log.finish_filter_index(work)
        count += 1
    return count


def wanted_by(header_filter: HeaderFilter, log: Log, *, by_index: bool) -> list[int]:
    """The offsets of the wanted records, read in whole or with the help of the indexes."""
    found, offset, end = [], log.log_start_offset, log.log_end_offset
    while offset < end:
        stop = end
        if by_index:
            stretch = log.next_wanted(offset, end, header_filter.mask, 1)
            assert stretch.start > offset or stretch.end > offset, "no progress"
            offset, stop = stretch.start, stretch.end
            if offset >= stop:
                continue
        read = log.read(offset, 700, offset_end=stop)
        assert not hasattr(read, "code"), read
        for each in split_batches(read.records):
            found += [r.offset for r in decode_records(each) if r.offset >= offset and header_filter.wants(r.headers)]
        offset = read.next_offset
    return found


def judge(log: Log) -> None:
    for tag in TAGS:
        header_filter = HeaderFilter("tag", [tag])
        assert wanted_by(header_filter, log, by_index=True) == wanted_by(header_filter, log, by_index=False), tag


def test_what_is_not_wanted_is_skipped(store: Store) -> None:
    log = store.log(CONFIG)
    append(log, *["a"] * 20, "b", *["a"] * 20)
    log.flush()
    assert log.segment_count > 4
    assert index(log) == log.segment_count - 1
    assert index(log) == 0
    end = log.log_end_offset
    active = log.segment_offsets[-1]
    only_b = log.next_wanted(Offset(0), end, HeaderFilter("tag", ["b"]).mask, 100)
    assert only_b.start <= 20 < only_b.end
    assert only_b.end - only_b.start < 10
    nothing = log.next_wanted(Offset(0), end, HeaderFilter("tag", ["nobody"]).mask, 100)
    assert (nothing.start, nothing.end) == (active, end), "the active segment may have anything"
    assert log.next_wanted(Offset(0), end, HeaderFilter("other", ["b"]).mask, 100).start == 0
    first = log.next_wanted(Offset(0), end, HeaderFilter("tag", ["nobody"]).mask, 1)
    assert (first.start, first.end, first.pages) == (log.segment_offsets[1], log.segment_offsets[1], 1)
    assert log.next_wanted(Offset(0), Offset(2), HeaderFilter("tag", ["nobody"]).mask, 9).start == 2, "not past the end"
    judge(log)


def test_only_what_is_durable_is_indexed(store: Store) -> None:
    log = store.log(CONFIG)
    append(log, *["a"] * 20)
    assert index(log) == 0
    log.flush()
    assert index(log) > 0


def test_another_header_needs_another_index(store: Store) -> None:
    log = store.log(CONFIG)
    append(log, *["a"] * 12)
    log.flush()
    assert index(log) == log.segment_count - 1
    log.update_config(TopicConfig(segment_bytes=1_200, filter_header="other"))
    assert index(log) == log.segment_count - 1
    judge(log)
    assert log.next_wanted(Offset(0), log.log_end_offset, HeaderFilter("other", ["a"]).mask, 99).start > 0


@pytest.mark.parametrize("torn", ["bit", "cut", "empty", "of another", "gone"])
def test_a_damaged_index_is_not_believed_and_made_again(store: Store, torn: str) -> None:
    log = store.log(CONFIG)
    append(log, *["a", "b"] * 15)
    log.flush()
    index(log)
    first, second = (f"/a/t-0/{offset:020d}.filterindex" for offset in log.segment_offsets[:2])
    log = store.restart(clean=True).get_or_create("t", log.topic_id, 0, CONFIG)
    file = store.files.open(first)
    match torn:
        case "bit":
            file.pwritev([b"\xff"], 34)
        case "cut":
            file.truncate(3_000)
        case "empty":
            file.truncate(0)
        case "of another":
            file.pwritev([store.files.open(second).pread(4_096, 0)], 0)
        case _:
            store.files.unlink(first)
    file.close()
    judge(log)
    assert index(log) == 1
    judge(log)


def test_the_index_of_a_large_segment_has_pages(store: Store) -> None:
    writer = FilterIndexWriter(0, header_sum("tag"), 99, BLOCKS_A_PAGE * 20 + 5)
    marks = {7, BLOCKS_A_PAGE + 3, 2 * BLOCKS_A_PAGE - 1, 2 * BLOCKS_A_PAGE}
    for number in range(BLOCKS_A_PAGE * 2 + 5):
        writer.add(number * 10 + 10, 5_000, mask_of([b"x" if number in marks else b"y"]))
    log = store.log(CONFIG)
    append(log, "a")
    filters = log._chain.active.filters
    file = store.files.open(filters.file.path, create=True)
    file.pwritev([writer.content()], 0)
    file.close()
    filters.forget()
    wanted = HeaderMask(header_sum("tag"), mask_of([b"x"]))
    found: list[int] = []
    offset = 0
    while offset < BLOCKS_A_PAGE * 20 + 5:
        stretch = filters.find(offset, wanted, 99, 1)
        assert stretch.pages == 1
        found += range(stretch.start // 10, stretch.end // 10) if stretch.start < stretch.end else []
        offset = stretch.end
    assert {number for number in found if number < BLOCKS_A_PAGE * 2 + 5} == marks
    assert filters.is_of(header_sum("tag"), 99)
    assert not filters.is_of(header_sum("tag"), 98)


def test_deleted_segments_take_their_indexes_along(store: Store) -> None:
    log = store.log(CONFIG)
    append(log, *["a"] * 30)
    log.flush()
    index(log)
    log.advance_log_start(log.segment_offsets[3])
    log.drop_expired()
    names = {name for name in store.files.listdir("/a/t-0") if name.endswith(".filterindex")}
    assert names == {f"{offset:020d}.filterindex" for offset in log.segment_offsets[:-1]}


def test_the_index_of_a_segment_that_lost_its_end_is_dropped(store: Store) -> None:
    log = store.log(CONFIG)
    append(log, *["a"] * 12)
    log.flush()
    checkpoint(store.managers[-1])
    assert index(log) == 2
    *_, lost, last = log.segment_offsets
    store.managers[-1].close()
    store.disk.end_process()
    files = MemoryFiles(store.disk)
    files.unlink(f"/a/t-0/{last:020d}.log")
    file = files.open(f"/a/t-0/{lost:020d}.log")
    file.truncate(batch(["a"]).size * 2)
    file.close()
    log = store.manager().get_or_create("t", log.topic_id, 0, CONFIG)
    assert log.log_end_offset == lost + 2
    append(log, *["b"] * 8)
    log.flush()
    index(log)
    judge(log)


# --- Crashes ----------------------------------------------------------------------------------------


class Life:
    """One log through truncation, other records in the old places, and compaction; killed at some step."""

    def __init__(self, kill_at: int | None, *, power: bool) -> None:
        self.store = Store()
        self.power = power
        self.faults = Faults(random.Random(kill_at))
        self.faults.kill_at = kill_at
        self.config = CONFIG

    def boot(self, faults: Faults) -> None:
        files = MemoryFiles(self.store.disk, faults)
        self.manager = LogManager(
            files,
            self.store.clock,
            random.Random(5),
            ["/a"],
            cluster_id=CLUSTER,
            node_id=NodeId(1),
            defaults=self.config,
        )
        self.manager.start()
        self.log = self.manager.get_or_create("t", TOPIC_ID, 0, self.config)

    def live(self) -> None:
        self.boot(self.faults)
        log = self.log
        append(log, *["a"] * 25)
        log.flush()
        checkpoint(self.manager)
        index(log)
        # The same sizes in the same places, so that only the rules tell the old index from a new one.
        log.truncate_to(log.segment_offsets[1] + 2)
        append(log, *["b"] * 20)
        judge(log)
        log.flush()
        checkpoint(self.manager)
        index(log)
        judge(log)
        self.config = TopicConfig(
            segment_bytes=1_200, index_interval_bytes=200, filter_header="tag", file_delete_delay_ms=0,
            cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0,
        )  # fmt: skip
        log.update_config(self.config)
        append(log, *["c", "a"] * 10, key=b"other")
        self.clean()
        judge(log)
        index(log)
        judge(log)

    def clean(self) -> None:
        log = self.log
        log.flush()
        self.manager.checkpoint()
        cleaner = LogCleaner(self.manager, lambda log: log.log_end_offset)
        (dirt,) = (found.dirt for found in cleaner.due(NOW))
        cleaning = cleaner.begin(Candidate(log, dirt), CleaningLimits(io_bytes=300), NOW)
        assert cleaning is not None
        while True:
            cleaning.step()
            if not cleaner.advance(log, cleaning):
                break
        checkpoint(self.manager)

    def survive(self) -> None:
        """Start again, with other records behind the end, and judge before and after the missing indexes are made."""
        self.manager.close()
        if self.power:
            self.store.disk.lose_power(self.faults.rng)
        else:
            self.store.disk.end_process()
        self.boot(Faults())
        judge(self.log)
        append(self.log, *["c"] * 8)
        self.log.flush()
        judge(self.log)
        index(self.log)
        judge(self.log)
        assert index(self.log) == 0
        self.manager.close()


def steps_of_a_life() -> int:
    life = Life(None, power=False)
    life.live()
    life.survive()
    return life.faults.steps


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_any_step_hides_nothing(power: bool) -> None:
    steps = steps_of_a_life()
    assert steps > 200
    for kill_at in range(1 + power, steps, STEP):
        life = Life(kill_at, power=power)
        with pytest.raises(Killed):
            life.live()
        life.survive()
