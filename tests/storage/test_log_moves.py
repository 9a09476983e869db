"""Single situations of moves between directories, beside the random histories of :mod:`.test_move_crashes`."""

from __future__ import annotations

import errno
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NodeId, TopicIdPartition, TopicPartition
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import split_batches
from tidelog.proto.records.control_batches import ControlKind, encode_control_batch
from tidelog.storage.cleaner.cleaning import CleaningLimits
from tidelog.storage.disk.format import format_directory
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.disk.memory_files import Faults, Killed, MemoryFiles
from tidelog.storage.log import log_manager
from tidelog.storage.log.cleaner import LogCleaner
from tidelog.storage.log.log_manager import LogManager
from tidelog.storage.log.log_moves import SideName, side_name
from tidelog.storage.log.movable_log import agreed_end
from tidelog.storage.producers.append_checks import Origin

from .conftest import CLUSTER, TOPIC_ID, MakeBatch, Store

KEY = TopicIdPartition(TOPIC_ID, 0)
NAME = TopicPartition("t", 0)


class UnsyncedNames(MemoryFiles):
    """A disk that cannot sync the names in ``/a``."""

    def fsync_dir(self, path: str) -> None:
        if path == "/a":
            raise OSError(errno.EIO, "no sync", path)
        super().fsync_dir(path)


def begin(store: Store, path: str = "/b") -> LogManager:
    manager = store.managers[-1]
    assert manager.move(KEY, NAME, path) is None
    return manager


def finish(manager: LogManager) -> None:
    while manager.moves.copy(KEY, 1_000):
        pass
    move = manager.moves.under_way[KEY]
    move.log.flush()
    manager.moves.decide(KEY)


def refused(manager: LogManager, path: str, name: TopicPartition = NAME) -> Refusal:
    found = manager.move(KEY, name, path)
    assert found is not None
    return found


class TestCarriedAlong:
    """A copy alone would not know it."""

    def test_producers_without_records(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(segment_bytes=200)
        log.append_as_leader([batch(3, producer=(7, 0, 0))], 0, 0)
        log.append_as_leader([batch(1)], 0, 0)
        log.advance_log_start(3)
        log.apply_retention(0, 4)
        manager = begin(store)
        finish(manager)
        assert log.producers.get(7) is not None
        store.restart(power_lost=True)
        again = store.log()
        assert again.directory == "/b/t-0"
        known = again.producers.get(7)
        assert known is not None
        assert known.last_sequence == 2

    def test_an_epoch_without_records(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        log.append_as_leader([batch(3)], 4, 0)
        manager = begin(store)
        log.assign_epoch_start(9, 3)
        finish(manager)
        assert log.epoch_entries == [(4, 0), (9, 3)]

    def test_how_far_it_is_clean_and_the_high_watermark(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(cleanup_policy=("compact",))
        log.append_as_leader([batch(3, keys=[b"a", b"b", b"c"])], 0, 0)
        log.flush()
        manager = begin(store)
        manager.store_clean_offset(log, 2)
        manager.checkpoint({KEY: log.log_end_offset})
        finish(manager)
        assert manager.clean_offset(log) == 2
        manager = store.restart()
        assert manager.clean_offset(store.log()) == 2
        assert manager.high_watermarks() == {KEY: 3}

    def test_where_it_begins_and_what_is_durable(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        log.append_as_leader([batch(3)], 0, 0)
        log.append_as_leader([batch(3)], 0, 0)
        manager = begin(store)
        while manager.moves.copy(KEY, 1_000):
            pass
        log.advance_log_start(4)
        finish(manager)
        store.restart(power_lost=True)
        again = store.log()
        assert (again.log_start_offset, again.stored_recovery_point) == (4, 6)

    def test_aborted_transactions(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        log.append_as_leader([batch(3, producer=(7, 0, 0), transactional=True)], 0, 0)
        marker = encode_control_batch(
            ControlKind.ABORT, timestamp=0, producer_id=7, producer_epoch=0, coordinator_epoch=0
        )
        log.append_as_leader(split_batches(marker), 0, 0, origin=Origin.COORDINATOR)
        before = log.aborted_within(0, 4)
        assert len(before) == 1
        finish(begin(store))
        assert log.aborted_within(0, 4) == before
        store.restart(power_lost=True)
        assert store.log().aborted_within(0, 4) == before


def test_readers_and_flushes_that_began_before_end_well(store: Store, batch: MakeBatch) -> None:
    log = store.log()
    log.append_as_leader([batch(3)], 0, 0)
    manager = begin(store)
    span = log.find(0, 1_000, offset_end=3)
    assert span is not None
    assert not isinstance(span, Refusal)
    job = log.begin_flush()
    assert job is not None
    while manager.moves.copy(KEY, 1_000):
        pass
    assert not manager.moves.is_ready(KEY), "the log was never on disk"
    job.run()
    log.finish_flush(job)
    log.append_as_leader([batch(1)], 0, 0)
    late = log.begin_flush()
    assert late is not None
    manager.moves.copy(KEY, 1_000)
    manager.moves.decide(KEY)
    late.error = OSError(errno.EIO, "the old disk")
    log.finish_flush(late)
    assert not manager.failures
    assert log.recovery_point == 4
    manager.moves.settle(KEY)
    for removal in manager.take_removals():
        removal.run()
    span.release()
    log.append_as_leader([batch(1)], 0, 0)
    log.flush()
    assert log.log_end_offset == log.recovery_point == 5


def test_a_log_that_moves_is_not_compacted(store: Store, batch: MakeBatch) -> None:
    config = TopicConfig(cleanup_policy=("compact",), segment_bytes=100, min_cleanable_dirty_ratio=0.0)
    log = store.log(config)
    for _ in range(5):
        log.append_as_leader([batch(1, keys=[b"a"])], 0, 0)
    log.flush()
    manager = store.managers[-1]
    manager.store_points(log)
    cleaner = LogCleaner(manager, lambda log: log.log_end_offset)
    (candidate,) = cleaner.due(0)
    cleaning = cleaner.begin(candidate, CleaningLimits(dedupe_bytes=2_400, io_bytes=1_000), 0)
    assert cleaning is not None
    begin(store)
    cleaning.step()
    assert not cleaner.advance(log, cleaning), "a pass that was under way goes on"
    assert cleaner.due(0) == []
    begin(store, "/a")
    assert [found.log for found in cleaner.due(0)] == [log]


def test_a_copy_that_is_ahead_after_a_loss_of_power_is_cut_off(store: Store, batch: MakeBatch) -> None:
    log = store.log()
    log.append_as_leader([batch(2)], 0, 0)
    log.flush()
    log.append_as_leader([batch(2)], 0, 0)
    manager = begin(store)
    while manager.moves.copy(KEY, 1_000):
        pass
    manager.moves.under_way[KEY].copy.flush()
    manager.checkpoint()
    manager.close()
    store.disk.end_process()
    # The power takes what was not synced in /a; the copy in /b was.
    files = MemoryFiles(store.disk)
    content = files.content("/a/t-0/00000000000000000000.log")
    del content[len(content) // 2 :]
    manager = store.manager()
    log = store.log()
    assert (log.log_end_offset, manager.moves.under_way[KEY].copy.log_end_offset) == (2, 4)
    log.append_as_leader([batch(1)], 1, 0)
    finish(manager)
    assert (log.log_end_offset, log.epoch_entries) == (3, [(0, 0), (1, 2)])


def test_a_copy_of_a_later_move_is_not_taken_for_the_log(store: Store, batch: MakeBatch) -> None:
    """The log moved from /a to /b and begins to move to /c; then /b is gone."""
    format_directory(store.files, "/c", CLUSTER, NodeId(1), random.Random("/c"))
    directories = ("/a", "/b", "/c")
    manager = store.manager(directories=directories)
    log = store.log()
    log.append_as_leader([batch(2)], 0, 0)
    log.append_as_leader([batch(2)], 0, 0)
    begin(store)
    finish(manager)
    begin(store, "/c")
    assert manager.moves.copy(KEY, 1)
    manager.moves.under_way[KEY].copy.flush()
    here = manager.directory_ids[0]
    manager.close()
    store.disk.end_process()
    faults = Faults()
    faults.broken["/b"] = errno.EIO
    manager = store.manager_on(MemoryFiles(store.disk, faults), directories=directories)
    assert manager.get(TOPIC_ID, 0) is None
    with pytest.raises(LogDirFailed, match="to which t-0 was moved"):
        manager.get_or_create("t", TOPIC_ID, 0, TopicConfig(), here)
    manager.close()
    store.disk.end_process()
    manager = store.manager(directories=directories)
    found = manager.get(TOPIC_ID, 0)
    assert found is not None
    assert (found.directory, found.log_end_offset) == ("/b/t-0", 4)
    assert KEY in manager.moves.under_way


@pytest.mark.parametrize("seed", range(20, 24))
def test_power_fails_after_a_start_that_finished_a_move(store: Store, batch: MakeBatch, seed: int) -> None:
    """A process is killed between the rename that decides the move and its sync, and the next one loses power."""
    faults = Faults()
    manager = store.manager_on(MemoryFiles(store.disk, faults))
    log = store.log()
    log.append_as_leader([batch(3)], 0, 0)
    log.flush()
    begin(store)
    faults.kill_in, faults.kill_in_from = ("fsync_dir", 1), "/a"
    with pytest.raises(Killed):
        finish(manager)
    manager.close()
    store.disk.end_process()
    found = store.manager().get(TOPIC_ID, 0)
    assert found is not None
    assert found.directory == "/b/t-0"
    store.managers[-1].close()
    store.disk.lose_power(random.Random(seed))
    found = store.manager().get(TOPIC_ID, 0)
    assert found is not None
    assert (found.directory, found.log_end_offset) == ("/b/t-0", 3)


def test_a_move_is_not_finished_while_its_decision_cannot_be_synced(store: Store, batch: MakeBatch) -> None:
    faults = Faults()
    manager = store.manager_on(MemoryFiles(store.disk, faults))
    log = store.log()
    log.append_as_leader([batch(3)], 0, 0)
    log.flush()
    begin(store)
    faults.kill_in, faults.kill_in_from = ("fsync_dir", 1), "/a"
    with pytest.raises(Killed):
        finish(manager)
    manager.close()
    store.disk.end_process()
    manager = store.manager_on(UnsyncedNames(store.disk))
    assert manager.get(TOPIC_ID, 0) is None
    manager.close()
    store.disk.end_process()
    found = store.manager().get(TOPIC_ID, 0)
    assert found is not None
    assert (found.directory, found.log_end_offset) == ("/b/t-0", 3)


@pytest.mark.parametrize("seed", range(8))
def test_a_move_that_was_ended_stays_ended(store: Store, batch: MakeBatch, seed: int) -> None:
    log = store.log()
    log.append_as_leader([batch(2)], 0, 0)
    log.flush()
    manager = begin(store)
    assert manager.moves.copy(KEY, 1_000)
    manager.moves.under_way[KEY].copy.flush()
    begin(store, "/a")
    manager.close()
    store.disk.lose_power(random.Random(seed))
    assert not store.manager().moves.partitions()


class Ended(BaseException):
    """The process was killed."""


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("at", ["/a", "/b"])
def test_names_that_a_killed_process_gave_are_on_disk_before_a_start_goes_by_them(
    store: Store, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, at: str, seed: int
) -> None:
    """It is killed between a rename and the sync after it, as the move is decided in /a, or the copy is named in /b.
    The next process finishes the move, and then the power is lost."""
    log = store.log()
    log.append_as_leader([batch(2)], 0, 0)
    log.flush()
    manager, files = begin(store), store.files
    real = files.fsync_dir

    def fsync_dir(path: str) -> None:
        if path == at and not files.exists("/a/t-0") and (at == "/a" or files.exists("/b/t-0")):
            raise Ended
        real(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "fsync_dir", fsync_dir)
        with pytest.raises(Ended):
            finish(manager)
    manager.close()
    store.disk.end_process()
    manager = store.manager()
    if at == "/b":
        manager.moves.settle(KEY)  # else that would be synced as well
    manager.close()
    store.disk.lose_power(random.Random(seed))
    found = store.manager().get(TOPIC_ID, 0)
    assert found is not None
    assert (found.directory, found.log_end_offset) == ("/b/t-0", 2)


def test_what_is_refused(store: Store, batch: MakeBatch) -> None:
    log = store.log()
    manager = store.managers[-1]
    assert refused(manager, "/nowhere").code is ErrorCode.LOG_DIR_NOT_FOUND
    long = TopicPartition("t" * 249, 0)
    key = TopicIdPartition(TOPIC_ID, 0)
    manager.delete(log)
    manager.get_or_create(long.topic, TOPIC_ID, 0, TopicConfig(), manager.directory_ids[0])
    found = manager.move(key, long, "/b")
    assert found is not None
    assert found.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "expected at most 224 characters" in found.message
    assert manager.move(key, long, "/a/") is None, "it lies there already"
    assert not manager.moves.under_way


def test_a_directory_that_fails_ends_its_moves_alone(store: Store, batch: MakeBatch) -> None:
    faults = Faults()
    manager = store.manager_on(MemoryFiles(store.disk, faults))
    log = store.log()
    log.append_as_leader([batch(2)], 0, 0)
    begin(store)
    faults.broken["/b"] = errno.EIO
    with pytest.raises(LogDirFailed):
        finish(manager)
    assert not manager.moves.under_way
    assert refused(manager, "/b").code is ErrorCode.KAFKA_STORAGE_ERROR
    assert isinstance(log.read(0, 100, offset_end=2).next_offset, int)  # type: ignore[union-attr]
    faults.broken["/a"] = errno.EIO
    manager.describe()
    assert refused(manager, "/a").code is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_topic_made_anew_knows_nothing_of_moves_of_the_old_one(store: Store, batch: MakeBatch) -> None:
    log = store.log()
    log.append_as_leader([batch(2)], 0, 0)
    manager = begin(store)
    other = TopicIdPartition(type(TOPIC_ID)(b"o" * 16), 0)
    made = manager.get_or_create("t", other.topic_id, 0, TopicConfig(), manager.directory_ids[1])
    assert made.directory == "/b/t-0"
    assert set(manager.partitions()) == {other}
    assert not [name for name in store.files.listdir("/b") if name.endswith("-future")]
    made.append_as_leader([batch(1)], 0, 0)
    manager = store.restart()
    assert set(manager.partitions()) == {other}


def test_choices_for_replicas_to_come_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_manager, "WISHES_MAX", 2)
    manager = store.manager()
    ids = [type(TOPIC_ID)(bytes([number]) * 16) for number in range(3)]
    for number, topic_id in enumerate(ids):
        found = manager.move(TopicIdPartition(topic_id, 0), TopicPartition(f"t{number}", 0), "/b")
        assert found is not None
        assert found.code is ErrorCode.REPLICA_NOT_AVAILABLE
    made = [manager.get_or_create(f"t{number}", topic_id, 0, TopicConfig()) for number, topic_id in enumerate(ids)]
    assert [log.directory for log in made] == ["/a/t0-0", "/b/t1-0", "/b/t2-0"]


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ("t-0.0123456789abcdef-future", SideName(NAME, "0123456789abcdef", "-future")),
        ("a.b-c-12.0123456789abcdef-moved", SideName(TopicPartition("a.b-c", 12), "0123456789abcdef", "-moved")),
        ("t-0.0123456789abcdef-future-delete", None),
        ("t-0.0123-future", None),
        ("t-0", None),
    ],
)
def test_names_of_what_moves_make(entry: str, found: SideName | None) -> None:
    assert side_name(entry) == found
    assert found is None or str(found) == entry


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[tuple[int, int]], int]:
    """Two logs as (epoch, offset) of each record: they share a beginning; how long that is."""
    shared = draw(st.lists(st.integers(0, 2), max_size=8))
    epochs: list[int] = []
    for step in shared:
        epochs.append((epochs[-1] if epochs else 0) + step)
    last = epochs[-1] if epochs else 0
    logs = []
    for first in (1, 2):
        # What follows in each is of epochs that the other has not.
        own = [last + first + 2 * step for step in sorted(draw(st.lists(st.integers(0, 3), max_size=5)))]
        logs.append([(epoch, offset) for offset, epoch in enumerate([*epochs, *own])])
    return logs[0], logs[1], len(epochs)


def entries_of(log: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for epoch, offset in log:
        if not found or epoch > found[-1][0]:
            found.append((epoch, offset))
    return found


@given(histories(), st.integers(0, 12))
def test_two_logs_agree_up_to_where_their_epochs_part(
    logs: tuple[list[tuple[int, int]], list[tuple[int, int]], int], start: int
) -> None:
    one, other, shared = logs
    end = min(len(one), len(other))
    assert agreed_end(entries_of(one), entries_of(other), start, end) == max(start, min(shared, end))
