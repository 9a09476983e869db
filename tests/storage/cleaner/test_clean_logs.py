"""Compaction of whole logs: the view of readers and followers, and changes to a log while a pass is under way."""

from __future__ import annotations

import errno
import random
import warnings
from collections.abc import Sequence
from typing import Any

import aiokafka.record
import pytest

from tests.storage.conftest import MakeBatch, Store
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import TopicId
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import Batch, split_batches
from tidelog.proto.records.compression import Compression
from tidelog.proto.records.control_batches import ControlKind, encode_control_batch
from tidelog.proto.records.corrupt_batch import CorruptBatch
from tidelog.proto.records.decoder import Record, decode_records
from tidelog.storage.cleaner.cleaning import Cleaning, CleaningLimits
from tidelog.storage.log.cleaner import Candidate, LogCleaner
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_manager import LogManager
from tidelog.storage.producers.append_checks import LogAppend, Origin

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas the old way
    import kafka.record

NOW = 1_000_000
OTHER = TopicId(b"o" * 16)
SETTINGS: dict[str, Any] = {"cleanup_policy": ("compact",), "segment_bytes": 500, "min_cleanable_dirty_ratio": 0.0}
LIMITS = CleaningLimits(io_bytes=300)


def append(log: Log, *batches: Batch, epoch: int = 0) -> None:
    for each in batches:
        outcome = log.append_as_leader([each], max(epoch, log.latest_epoch), NOW)
        assert isinstance(outcome, LogAppend), outcome


def fill(log: Log, batch: MakeBatch, count: int = 60, *, seed: int = 1, keys: int = 5) -> None:
    """Batches of one to three records of a few keys, a few of them tombstones."""
    rng = random.Random(seed)
    for number in range(count):
        size = rng.randint(1, 3)
        values = [None if rng.random() < 0.1 else b"%d.%d" % (number, n) for n in range(size)]
        codec = rng.choice((Compression.NONE, Compression.GZIP))
        made = batch(values=values, keys=[b"k%d" % rng.randrange(keys) for _ in range(size)], compression=codec)
        append(log, made)


def cleaner_of(manager: LogManager) -> LogCleaner:
    """All that is in a log counts as committed."""
    return LogCleaner(manager, lambda log: log.log_end_offset)


def begin(
    manager: LogManager, log: Log, now_ms: int = NOW, committed: int | None = None
) -> tuple[LogCleaner, Cleaning]:
    cleaner = cleaner_of(manager) if committed is None else LogCleaner(manager, lambda log: committed)
    log.flush()
    manager.checkpoint()
    (dirt,) = (found.dirt for found in cleaner.due(now_ms) if found.log is log)
    cleaning = cleaner.begin(Candidate(log, dirt), LIMITS, now_ms)
    assert cleaning is not None
    return cleaner, cleaning


def clean(manager: LogManager, log: Log, now_ms: int = NOW, committed: int | None = None) -> Cleaning:
    """A whole pass."""
    cleaner, cleaning = begin(manager, log, now_ms, committed)
    while True:
        cleaning.step()
        if not cleaner.advance(log, cleaning):
            assert cleaning.done
            return cleaning


def until_ready(cleaning: Cleaning) -> None:
    while cleaning.ready is None:
        cleaning.step()


def batches_of(log: Log) -> list[Batch]:
    found: list[Batch] = []
    offset: int = log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(offset, 1 << 20, offset_end=log.log_end_offset)
        assert not isinstance(read, Refusal), read
        assert read.next_offset > offset
        found += split_batches(bytes(read.records))
        offset = read.next_offset
    return found


def records_of(log: Log) -> list[Record]:
    return [record for each in batches_of(log) for record in decode_records(each)]


def latest(records: Sequence[Record]) -> dict[bytes | None, bytes]:
    found = {record.key: record.value for record in records}
    return {key: value for key, value in found.items() if value is not None}


def files_named(store: Store, suffix: str) -> list[str]:
    return [path for path in store.files.paths("/a") if path.endswith(suffix)]


@pytest.fixture
def filled(store: Store, batch: MakeBatch) -> Log:
    log = store.log(**SETTINGS)
    fill(log, batch)
    return log


# --- What is left -------------------------------------------------------------------------------------


def test_the_latest_of_each_key_is_left_where_it_was(store: Store, filled: Log) -> None:
    before = records_of(filled)
    end, epochs = filled.log_end_offset, filled.epoch_entries
    cleaning = clean(store.managers[-1], filled)
    after = records_of(filled)
    assert latest(after) == latest(before)
    assert set(after) < set(before)
    assert (filled.log_end_offset, filled.epoch_entries) == (end, epochs)
    clean_part = [record for record in after if record.offset < cleaning.end_offset]
    assert len({record.key for record in clean_part}) == len(clean_part)
    store.restart()
    log = store.log(**SETTINGS)
    assert records_of(log) == after
    assert (log.log_end_offset, log.epoch_entries) == (end, epochs)


def test_a_pass_goes_on_after_it_has_merged_segments_with_aborted_transactions(store: Store, batch: MakeBatch) -> None:
    log = store.log(**SETTINGS)
    for number in range(24):
        append(log, batch(values=[b"v" * 50], keys=[b"%d" % number], producer=(7, number, 0), transactional=True))
        raw = encode_control_batch(
            ControlKind.ABORT if number % 4 else ControlKind.COMMIT, timestamp=NOW, producer_id=7,
            producer_epoch=number, coordinator_epoch=0,
        )  # fmt: skip
        outcome = log.append_as_leader(split_batches(bytes(raw)), 0, NOW, origin=Origin.COORDINATOR)
        assert isinstance(outcome, LogAppend)
    before, after = [], []
    for count in range(3):
        append(log, *(batch(values=[b"v" * 50], keys=[b"more %d.%d" % (count, n)]) for n in range(6)))
        before.append(log.segment_count)
        clean(store.managers[-1], log)
        after.append(log.segment_count)
    assert any(few < many for few, many in zip(after, before, strict=True)), "nothing was merged"
    committed = [record for each in batches_of(log) if not each.is_control for record in decode_records(each)]
    assert [record.key for record in committed][:4] == [b"0", b"4", b"8", b"12"]


def test_cleaning_again_changes_nothing_and_makes_few_segments_of_many(
    store: Store, filled: Log, batch: MakeBatch
) -> None:
    manager = store.managers[-1]
    clean(manager, filled)
    after, count = records_of(filled), filled.segment_count
    assert not cleaner_of(manager).due(NOW)
    manager.store_clean_offset(filled, 0)
    clean(manager, filled)
    assert records_of(filled) == after
    assert filled.segment_count < count
    sizes = [0]
    while filled.size_bytes != sizes[-1]:  # where groups grow, what was the last batch of one may go
        sizes.append(filled.size_bytes)
        manager.store_clean_offset(filled, 0)
        clean(manager, filled)
        assert records_of(filled) == after
    assert len(sizes) <= 4


def test_a_reader_finds_the_next_record_from_any_offset(store: Store, filled: Log) -> None:
    clean(store.managers[-1], filled)
    after = records_of(filled)
    for offset in range(filled.log_end_offset):
        found: list[Record] = []
        at = offset
        while not found and at < filled.log_end_offset:
            read = filled.read(at, 1, offset_end=filled.log_end_offset)
            assert not isinstance(read, Refusal)
            assert read.next_offset > at
            found = [each for b in split_batches(bytes(read.records)) for each in decode_records(b)]
            found = [each for each in found if each.offset >= offset]
            at = read.next_offset
        assert found[:1] == [each for each in after if each.offset >= offset][:1]


def test_reads_and_lookups_by_time_after_a_swap_do_not_go_by_what_was_known_before(
    store: Store, batch: MakeBatch
) -> None:
    log = store.log(**SETTINGS, index_interval_bytes=60)
    for number in range(40):
        append(log, batch(values=[b"v%d" % number], keys=[b"k%d" % (number % 4)], timestamp=NOW + number))
    reads = [log.read(offset, 1, offset_end=40) for offset in range(40)]  # each leaves a hint behind
    assert len(reads) == 40
    clean(store.managers[-1], log)
    after = records_of(log)
    for number in range(40):
        found = log.offset_for_timestamp(NOW + number, offset_end=40)
        assert not isinstance(found, Refusal)
        assert found is not None
        assert found.offset == next(each.offset for each in after if each.timestamp >= NOW + number)


def test_a_pass_that_cannot_map_all_keys_goes_on_later(store: Store, batch: MakeBatch) -> None:
    log = store.log(**SETTINGS)
    fill(log, batch, 80, keys=30)
    manager = store.managers[-1]
    before = records_of(log)
    cleaner = cleaner_of(manager)
    log.flush()
    manager.checkpoint()
    ends = []
    while due := cleaner.due(NOW):
        cleaning = cleaner.begin(due[0], CleaningLimits(dedupe_bytes=24 * 12), NOW)
        assert cleaning is not None
        while True:
            cleaning.step()
            if not cleaner.advance(log, cleaning):
                break
        ends.append(manager.clean_offset(log))
        assert latest(records_of(log)) == latest(before)
    assert len(ends) > 3
    assert ends == sorted(set(ends))
    kept = [record for record in records_of(log) if record.offset < ends[-1]]
    assert len({record.key for record in kept}) == len(kept)


def test_tombstones_go_after_their_time_and_nothing_comes_back(store: Store, batch: MakeBatch) -> None:
    log = store.log(**SETTINGS, delete_retention_ms=1_000)
    manager = store.managers[-1]
    append(log, batch(values=[b"1"], keys=[b"a"]), batch(values=[None], keys=[b"a"]))
    fill(log, batch, 20)
    clean(manager, log)
    assert [(r.offset, r.value) for r in records_of(log) if r.key == b"a"] == [(1, None)]
    fill(log, batch, 20)
    clean(manager, log, NOW + 999)
    assert [(r.offset, r.value) for r in records_of(log) if r.key == b"a"] == [(1, None)]
    fill(log, batch, 20)
    clean(manager, log, NOW + 1_000)
    assert [r for r in records_of(log) if r.key == b"a"] == []


# --- Producers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean_stop", [True, False])
def test_duplicates_are_known_after_compaction_and_a_restart(store: Store, batch: MakeBatch, clean_stop: bool) -> None:
    log = store.log(**SETTINGS)
    sent = [batch(values=[b"x"], keys=[b"same"], producer=(7, 0, sequence)) for sequence in range(5)]
    append(log, *sent)
    fill(log, batch)
    append(log, batch(values=[b"y"], keys=[b"same"], producer=(8, 0, 0)))
    known = log.producers.get(7)
    assert known is not None
    runs = list(known.runs)
    clean(store.managers[-1], log)
    store.restart(clean=clean_stop)
    log = store.log(**SETTINGS)
    known = log.producers.get(7)
    assert known is not None
    assert known.runs == runs
    again = log.append_as_leader([sent[-1]], 0, NOW)
    assert isinstance(again, LogAppend)
    assert (again.duplicate, again.base_offset) == (True, 4)
    following = log.append_as_leader([batch(values=[b"x"], keys=[b"same"], producer=(7, 0, 5))], 0, NOW)
    assert isinstance(following, LogAppend)
    assert not following.duplicate


def test_the_last_sequence_is_known_to_a_replica_that_copies_a_compacted_log(store: Store, batch: MakeBatch) -> None:
    log = store.log(**SETTINGS)
    append(log, *(batch(values=[b"x"], keys=[b"same"], producer=(7, 2, sequence)) for sequence in range(5)))
    append(log, batch(values=[b"z"], keys=[b"same"]))
    fill(log, batch)
    clean(store.managers[-1], log)
    assert not any(record.key == b"same" and record.value == b"x" for record in records_of(log))
    copy = follower_of(store, "copy", OTHER)
    follow(log, copy)
    known = copy.producers.get(7)
    assert known is not None
    assert (known.epoch, known.last_sequence) == (2, 4)


@pytest.mark.parametrize("runs_behind", [1, 6])
def test_what_is_cut_off_later_is_not_counted_as_a_producers_last(
    store: Store, batch: MakeBatch, runs_behind: int
) -> None:
    """A follower cuts its tail off after its last batch before that was compacted (found by the simulation)."""
    log = store.log(**SETTINGS)
    append(log, *(batch(values=[b"x"], keys=[b"same"], producer=(7, 0, sequence)) for sequence in range(5)))
    append(log, batch(values=[b"y"], keys=[b"same"]))
    fill(log, batch)
    log.roll(NOW)
    end = log.log_end_offset
    for sequence in range(5, 5 + runs_behind):
        append(log, batch(values=[b"z"], keys=[b"same"], producer=(7, 0, sequence)), batch(keys=[b"other"]))
    clean(store.managers[-1], log, committed=end)
    assert [each.base_offset for each in batches_of(log) if each.producer_id == 7 and each.base_offset < end][-1] == 4
    log.truncate_to(end)
    for path in files_named(store, ".snapshot"):
        store.files.unlink(path)
    store.restart(clean=False)
    known = store.log(**SETTINGS).producers.get(7)
    assert known is not None
    assert known.last_sequence == 4


# --- Followers ----------------------------------------------------------------------------------------


def follower_of(store: Store, topic: str, topic_id: TopicId) -> Log:
    manager = store.managers[-1]
    config = TopicConfig(**SETTINGS)
    made: Log = manager.get_or_create(topic, topic_id, 0, config, manager.directory_ids[1])
    return made


def follow(leader: Log, copy: Log, bytes_max: int = 400, fetches: int = 1_000) -> None:
    for _ in range(fetches):
        if copy.log_end_offset == leader.log_end_offset:
            return
        read = leader.read(copy.log_end_offset, bytes_max, offset_end=leader.log_end_offset)
        assert not isinstance(read, Refusal), read
        taken = copy.append_as_follower(bytes(read.records), NOW)
        assert isinstance(taken, LogAppend), taken


@pytest.mark.parametrize("seed", range(25))
def test_a_follower_that_copies_compacts_and_restarts_at_any_time_ends_up_with_the_same(
    store: Store, batch: MakeBatch, seed: int
) -> None:
    rng = random.Random(seed)
    store.log(**SETTINGS)
    follower_of(store, "copy", OTHER)
    for number in range(30):
        manager = store.managers[-1]
        leader, copy = store.log(**SETTINGS), follower_of(store, "copy", OTHER)
        action = rng.randrange(6)
        if action < 2:
            fill(leader, batch, 12, seed=rng.getrandbits(32), keys=8)
        elif action == 2:
            follow(leader, copy, rng.choice((1, 300, 5_000)), fetches=rng.choice((1, 5, 100)))
        elif action == 3:
            log = rng.choice((leader, copy))
            if any(found.log is log for found in cleaner_of(manager).due(NOW)):
                clean(manager, log)
        elif action == 4:
            leader.assign_epoch_start(number, leader.log_end_offset)
            append(leader, batch(values=[b"e%d" % number], keys=[b"epoch"]), epoch=number)
            fill_epoch(leader, batch, number, rng)
        elif rng.random() < 0.5:
            store.restart(clean=rng.random() < 0.5)
    leader, copy = store.log(**SETTINGS), follower_of(store, "copy", OTHER)
    follow(leader, copy)
    assert latest(records_of(copy)) == latest(records_of(leader))
    assert copy.epoch_entries == leader.epoch_entries
    store.restart()
    leader, copy = store.log(**SETTINGS), follower_of(store, "copy", OTHER)
    assert copy.log_end_offset == leader.log_end_offset
    assert latest(records_of(copy)) == latest(records_of(leader))
    assert copy.epoch_entries == leader.epoch_entries


def fill_epoch(log: Log, batch: MakeBatch, epoch: int, rng: random.Random) -> None:
    for _ in range(6):
        append(log, batch(values=[b"%d" % epoch], keys=[b"k%d" % rng.randrange(8)]), epoch=epoch)


# --- While a pass is under way --------------------------------------------------------------------------


def test_appends_and_reads_go_on_while_a_log_is_cleaned(store: Store, filled: Log, batch: MakeBatch) -> None:
    cleaner, cleaning = begin(store.managers[-1], filled)
    before = records_of(filled)
    number = 0
    while True:
        cleaning.step()
        append(filled, batch(values=[b"n%d" % number], keys=[b"k%d" % (number % 5)]))
        number += 1
        assert latest(records_of(filled))[b"k%d" % ((number - 1) % 5)] == b"n%d" % (number - 1)
        if not cleaner.advance(filled, cleaning):
            break
    assert cleaning.done
    assert filled.log_end_offset == before[-1].offset + 1 + number
    after = records_of(filled)
    after = records_of(filled)
    store.restart()
    assert records_of(store.log(**SETTINGS)) == after


def check_given_up(store: Store, cleaner: LogCleaner, log: Log, cleaning: Cleaning) -> None:
    assert not cleaner.advance(log, cleaning)
    assert not cleaning.done
    assert files_named(store, ".cleaned") == []
    assert files_named(store, ".swap") == []


@pytest.mark.parametrize("slices", [0, 3, None], ids=["at once", "early", "before the swap"])
@pytest.mark.parametrize("what", ["cut", "begun anew", "not compacted"])
def test_a_pass_is_given_up_when_the_log_is_not_what_it_was(
    store: Store, filled: Log, what: str, slices: int | None
) -> None:
    cleaner, cleaning = begin(store.managers[-1], filled)
    for _ in range(slices or 0):
        if cleaning.ready is None:
            cleaning.step()
    if slices is None:
        until_ready(cleaning)
    before = records_of(filled)
    if what == "cut":
        filled.truncate_to(30)
        before = [record for record in before if record.offset < filled.log_end_offset]
    elif what == "begun anew":
        filled.truncate_fully_and_start_at(7)
        before = []
    else:
        filled.update_config(TopicConfig(segment_bytes=500))
    check_given_up(store, cleaner, filled, cleaning)
    assert records_of(filled) == before


def test_a_cut_makes_the_log_dirty_from_there_before_it_is_cut(store: Store, filled: Log) -> None:
    manager = store.managers[-1]
    clean(manager, filled)
    assert manager.clean_offset(filled) > 50
    end = filled.truncate_to(50)
    assert manager.clean_offset(filled) == end
    store.restart()
    log = store.log(**SETTINGS)
    assert log.log_end_offset < end  # it was cut in a gap, of which the files do not tell
    assert store.managers[-1].clean_offset(log) == log.log_end_offset


def test_a_deleted_log_is_left_alone(store: Store, filled: Log, batch: MakeBatch) -> None:
    manager = store.managers[-1]
    cleaner, cleaning = begin(manager, filled)
    until_ready(cleaning)
    manager.delete(filled)
    assert not cleaner.advance(filled, cleaning)
    assert not cleaning.done
    assert cleaner.due(NOW) == []
    again = store.log(**SETTINGS)  # another topic of the name
    fill(again, batch, 20)
    assert manager.clean_offset(again) == -1
    clean(manager, again)


def test_a_new_topic_of_the_same_name_is_all_dirty(store: Store, filled: Log, batch: MakeBatch) -> None:
    manager = store.managers[-1]
    clean(manager, filled)
    manager.delete(filled)
    made = manager.get_or_create("t", OTHER, 0, TopicConfig(**SETTINGS), manager.directory_ids[0])
    assert manager.clean_offset(made) == -1
    manager.close()
    store.disk.end_process()
    manager = store.manager()
    made = manager.get_or_create("t", OTHER, 0, TopicConfig(**SETTINGS), manager.directory_ids[0])
    assert manager.clean_offset(made) == -1


def test_retention_takes_a_segment_that_was_copied(store: Store, filled: Log) -> None:
    cleaner, cleaning = begin(store.managers[-1], filled)
    until_ready(cleaning)
    before = records_of(filled)
    filled.advance_log_start(30)
    assert filled.apply_retention(NOW, filled.log_end_offset) > 0
    check_given_up(store, cleaner, filled, cleaning)
    assert records_of(filled) == [r for r in before if r.offset >= batches_of(filled)[0].base_offset]


def test_compact_and_delete_does_both(store: Store, batch: MakeBatch) -> None:
    settings = SETTINGS | {"cleanup_policy": ("compact", "delete"), "retention_ms": 1_000}
    log = store.log(**settings)
    append(log, batch(values=[b"1"], keys=[b"old"], timestamp=NOW - 2_000))
    fill(log, batch)
    clean(store.managers[-1], log)
    assert b"old" in latest(records_of(log))
    assert log.apply_retention(NOW, log.log_end_offset) == 0  # its segment has younger records
    assert log.apply_retention(NOW + 1_001, log.log_end_offset) > 0
    assert records_of(log) == []


def test_an_active_segment_is_closed_when_its_records_must_be_compacted(store: Store, batch: MakeBatch) -> None:
    log = store.log(**SETTINGS, max_compaction_lag_ms=1_000)
    append(log, batch(values=[b"1"], keys=[b"a"]), batch(values=[b"2"], keys=[b"a"]))
    cleaner = cleaner_of(store.managers[-1])
    assert cleaner.due(store.clock.ms) == []
    store.clock.ms += 1_001
    assert len(cleaner.due(store.clock.ms)) == 1
    clean(store.managers[-1], log, store.clock.ms)
    assert [record.value for record in records_of(log)] == [b"2"]
    assert cleaner.delay_ms_max >= 1


# --- Trouble --------------------------------------------------------------------------------------------


def test_without_room_for_a_copy_the_log_stays_in_service_and_is_tried_again(
    store: Store, filled: Log, batch: MakeBatch
) -> None:
    manager = store.managers[-1]
    cleaner, cleaning = begin(manager, filled)
    store.files.faults.failing = {"pwritev": errno.ENOSPC}
    with pytest.raises(OSError, match="No space") as caught:
        until_ready(cleaning)
    store.files.faults.failing = {}
    cleaner.failed(filled, cleaning, caught.value)
    assert files_named(store, ".cleaned") == []
    append(filled, batch(values=[b"1"], keys=[b"a"]))
    assert [found.size for found in cleaner.uncleanable(NOW)] == [0, 0]
    before = records_of(filled)
    clean(manager, filled)
    assert latest(records_of(filled)) == latest(before)


def test_a_disk_that_fails_takes_the_directory_out_of_service_and_no_other(
    store: Store, filled: Log, batch: MakeBatch
) -> None:
    manager = store.managers[-1]
    before = records_of(filled)
    copy = follower_of(store, "copy", OTHER)
    fill(copy, batch, 20)
    cleaner, cleaning = begin(manager, filled)
    until_ready(cleaning)
    store.files.faults.failing = {"rename": errno.EIO}
    assert not cleaner.advance(filled, cleaning)
    store.files.faults.failing = {}
    assert filled.closed
    assert len(manager.directory_ids) == 1
    clean(manager, copy)
    store.restart()
    assert latest(records_of(store.log(**SETTINGS))) == latest(before)


def test_a_log_that_cannot_be_read_is_left_alone_and_the_others_are_cleaned(
    store: Store, filled: Log, batch: MakeBatch
) -> None:
    manager = store.managers[-1]
    copy = follower_of(store, "copy", OTHER)
    fill(copy, batch)
    cleaner, cleaning = begin(manager, filled)
    copy.flush()
    manager.checkpoint()
    store.files.flip(f"{filled.directory}/{0:020d}.log", 70)
    with pytest.raises(CorruptBatch, match="CRC") as caught:
        until_ready(cleaning)
    cleaner.failed(filled, cleaning, caught.value)
    assert [found.log for found in cleaner.due(NOW)] == [copy]
    found = {each.directory: each for each in cleaner.uncleanable(NOW)}
    assert (found["/a"].logs, found["/b"].logs) == (1, 0)
    assert found["/a"].size > 0
    assert manager.directory_ids == tuple(each.directory_id for each in manager.describe())
    append(filled, batch(values=[b"1"], keys=[b"a"]))


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
def test_a_compacted_topic_takes_no_record_without_a_key(
    store: Store, batch: MakeBatch, compression: Compression
) -> None:
    log = store.log(**SETTINGS)
    bad = batch(values=[b"1", b"2"], keys=[b"a", None], compression=compression)
    good = batch(values=[b"1", None], keys=[b"a", b""], compression=compression)
    answer = log.append_as_leader([good, bad], 0, NOW)
    assert isinstance(answer, Refusal)
    assert answer.code is ErrorCode.INVALID_RECORD
    assert "key" in answer.message
    assert log.log_end_offset == 0
    append(log, good)
    log.update_config(TopicConfig(segment_bytes=500))
    append(log, bad)


# --- A foreign witness ------------------------------------------------------------------------------------


def test_other_implementations_read_the_same_in_a_compacted_segment(
    store: Store, filled: Log, batch: MakeBatch
) -> None:
    """kafka-python and aiokafka, on the bytes of the files as they lie on the disk."""
    append(filled, batch(values=[None, b"1"], keys=[b"dead", b"k0"]), batch(values=[b"2"], keys=[b"k0"]))
    fill(filled, batch, 20)
    clean(store.managers[-1], filled)
    store.managers[-1].store_clean_offset(filled, 0)
    clean(store.managers[-1], filled)
    own = records_of(filled)
    content = b"".join(bytes(store.files.content(path)) for path in files_named(store, ".log"))
    assert any(each.attributes & 0x40 for each in batches_of(filled))  # tombstones with a horizon among them
    for reader in (aiokafka.record.MemoryRecords, kafka.record.MemoryRecords):
        found = []
        records = reader(content)
        while records.has_next():
            each = records.next_batch()
            assert each.validate_crc()
            found += [(r.offset, r.timestamp, r.key, r.value) for r in each]
        assert [tuple(each[:4]) for each in own] == [
            (offset, timestamp, bytes(key), None if value is None else bytes(value))
            for offset, timestamp, key, value in found
        ]
