"""All logs of a node: directories that fail alone, are refused, are stopped cleanly or not."""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest

from tidelog.model.ids import UNASSIGNED_DIRECTORY, BrokerEpoch, NodeId, Offset, TopicId, TopicIdPartition
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import Batch
from tidelog.storage.disk.checkpoints import decode_partition_metadata
from tidelog.storage.disk.format import format_directory
from tidelog.storage.disk.log_errors import DirectoryRefused, LogDirFailed
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_manager import FLUSH_AFTER_MS, LogManager
from tidelog.storage.producers.append_checks import LogAppend
from tidelog.storage.segments.log_read import empty_read

from .conftest import MakeBatch, Store

NOW = 1_000_000


def topic(number: int) -> TopicId:
    return TopicId(bytes([number]) * 16)


def existing(manager: LogManager, number: int) -> Log:
    log = manager.get(topic(number), 0)
    assert log is not None
    return log


def make(manager: LogManager, number: int, directory: int | None = None, **settings: Any) -> Log:
    where = None if directory is None else manager.directory_ids[directory]
    config = TopicConfig(**settings)
    return manager.get_or_create(f"topic{number}", topic(number), 0, config, where)


def fill(log: Log, batch: Batch, times: int = 3) -> None:
    for _ in range(times):
        assert isinstance(log.append_as_leader([batch], 0, NOW), LogAppend)


class TestPlacement:
    def test_new_logs_go_where_the_fewest_are(self, store: Store) -> None:
        manager = store.manager()
        assert [make(manager, n).directory for n in range(4)] == [
            "/a/topic0-0",
            "/b/topic1-0",
            "/a/topic2-0",
            "/b/topic3-0",
        ]

    def test_or_where_they_are_sent(self, store: Store) -> None:
        manager = store.manager()
        assert all(make(manager, n, 1).directory.startswith("/b/") for n in range(3))
        key = TopicIdPartition(topic(1), 0)
        assert manager.directory_of(key) == manager.directory_ids[1]
        assert make(manager, 1, 0) is manager.get(topic(1), 0)

    def test_an_unknown_directory_is_none(self, store: Store) -> None:
        manager = store.manager()
        with pytest.raises(LogDirFailed, match=r"not among log\.dirs"):
            manager.get_or_create("t", topic(1), 0, TopicConfig(), UNASSIGNED_DIRECTORY)

    def test_a_topic_made_again_begins_empty_and_the_old_log_is_kept_aside(
        self, store: Store, batch: MakeBatch
    ) -> None:
        manager = store.manager()
        old = make(manager, 1, 0)
        fill(old, batch(5))
        old.flush()
        manager.checkpoint({TopicIdPartition(topic(1), 0): Offset(15)})
        new = manager.get_or_create("topic1", topic(9), 0, TopicConfig(), manager.directory_ids[0])
        new.make_files()
        assert (new.log_end_offset, new.directory) == (0, "/a/topic1-0")
        assert manager.get(topic(1), 0) is None
        assert any(".log" in path and "-stray/" in path for path in store.files.paths("/a"))
        for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            assert bytes(store.files.content(f"/a/{name}")) == b"0\n0\n"
        manager = store.restart()
        assert manager.high_watermarks() == {}
        assert manager.get(topic(9), 0) is not None
        assert manager.get(topic(1), 0) is None

    def test_a_name_of_full_length_can_be_deleted(self, store: Store) -> None:
        manager = store.manager()
        log = manager.get_or_create("x" * 249, topic(1), 99999, TopicConfig())
        manager.delete(log)
        assert len(log.directory.rpartition("/")[2]) <= 255


class TestDelete:
    def test_its_files_go_after_the_delay(self, store: Store, batch: MakeBatch) -> None:
        manager = store.manager()
        log = make(manager, 1, 0, file_delete_delay_ms=700)
        fill(log, batch(2))
        manager.delete(log)
        assert manager.get(topic(1), 0) is None
        assert manager.take_removals() == []
        assert any("-delete/" in path for path in store.files.paths("/a"))
        store.clock.ms += 700
        for job in manager.take_removals():
            job.run()
            manager.finish_removal(job)
        assert not any("topic1" in path for path in store.files.paths("/a"))

    def test_or_at_the_next_start(self, store: Store, batch: MakeBatch) -> None:
        manager = store.manager()
        fill(make(manager, 1, 0), batch(2))
        manager.delete(existing(manager, 1))
        manager = store.restart()
        assert list(manager.logs()) == []
        for job in manager.take_removals():
            job.run()
        assert not any("topic1" in path for path in store.files.paths("/a"))

    def test_a_removal_that_fails_harms_nobody(self, store: Store) -> None:
        manager = store.manager()
        log = make(manager, 1, 0, file_delete_delay_ms=0)
        log.make_files()
        manager.delete(log)
        (job,) = manager.take_removals()
        store.files.faults.broken["/a"] = errno.EIO
        job.run()
        manager.finish_removal(job)
        store.files.faults.broken.clear()
        assert len(manager.directory_ids) == 2


class TestWithoutFiles:
    """A log gets its directory with its first records."""

    def test_nothing_is_on_disk_before_the_first_records(self, store: Store, batch: MakeBatch) -> None:
        manager = store.manager()
        log = make(manager, 1, 0)
        log.assign_epoch_start(3, 0)
        assert not manager.run_retention(NOW, lambda log: 0)
        assert manager.begin_flushes(NOW + 10**9) == []
        log.truncate_to(Offset(0))
        assert log.read(Offset(0), 100, offset_end=Offset(0)) == empty_read(0)
        assert log.offset_for_timestamp(0, offset_end=0) is None
        assert log.offset_of_max_timestamp(offset_end=0) is None
        assert log.begin_examination(0) is None
        assert not any("topic1" in path for path in store.files.paths("/a"))
        fill(log, batch(5), 1)
        assert log.on_disk
        assert decode_partition_metadata(bytes(store.files.content("/a/topic1-0/partition.metadata"))) == topic(1)
        assert store.files.size(f"/a/topic1-0/{0:020d}.log") == log.size_bytes > 0

    def test_a_clean_stop_leaves_none_and_the_next_start_makes_it_anew(self, store: Store, batch: MakeBatch) -> None:
        manager = store.manager()
        make(manager, 1, 0).assign_epoch_start(3, 0)
        fill(make(manager, 2, 0), batch(2))
        manager.write_clean_shutdown(BrokerEpoch(7))
        manager.close()
        manager = store.manager()
        assert manager.clean_shutdown_epoch() == 7
        assert [str(log.name) for log in manager.logs()] == ["topic2-0"]
        assert make(manager, 1, 0).log_end_offset == 0

    def test_one_is_deleted_without_a_trace(self, store: Store) -> None:
        manager = store.manager()
        before = set(store.files.paths("/"))
        manager.delete(make(manager, 1, 0, file_delete_delay_ms=0))
        assert manager.get(topic(1), 0) is None
        assert manager.take_removals() == []
        assert set(store.files.paths("/")) == before

    def test_a_follower_begins_where_its_leader_does(self, store: Store, batch: MakeBatch) -> None:
        log = make(store.manager(), 1, 0)
        log.truncate_fully_and_start_at(100)
        assert store.files.exists(f"/a/topic1-0/{100:020d}.log")
        fill(log, batch(5), 1)
        assert (log.log_start_offset, log.log_end_offset) == (100, 105)

    def test_a_disk_that_cannot_hold_it_fails_at_the_first_records(self, store: Store, batch: MakeBatch) -> None:
        manager = store.manager()
        log = make(manager, 1, 0)
        store.files.faults.broken["/a"] = errno.EIO
        with pytest.raises(LogDirFailed):
            fill(log, batch(5), 1)
        assert manager.get(topic(1), 0) is None
        assert len(manager.directory_ids) == 1


class TestStart:
    def test_a_directory_of_another_cluster_is_refused(self, store: Store) -> None:
        with pytest.raises(DirectoryRefused, match="of cluster other, found one of cluster cluster"):
            store.manager(cluster_id="other")

    def test_a_directory_of_another_node_is_refused(self, store: Store) -> None:
        with pytest.raises(DirectoryRefused, match="of node 2, found one of node 1"):
            store.manager(node_id=NodeId(2))

    def test_a_directory_that_is_not_formatted_is_refused(self, store: Store) -> None:
        store.files.makedirs("/c")
        with pytest.raises(DirectoryRefused, match="/c: expected a formatted directory"):
            store.manager(directories=("/a", "/c"))

    def test_a_directory_in_use_is_refused_until_it_is_free(self, store: Store) -> None:
        first = store.manager()
        with pytest.raises(DirectoryRefused, match="in use by another process"):
            store.manager()
        first.close()
        store.manager()

    def test_a_missing_directory_is_out_of_service_alone(self, store: Store) -> None:
        manager = store.manager(directories=("/a", "/missing"))
        assert len(manager.directory_ids) == 1
        (_, missing) = manager.describe()
        assert isinstance(missing.failure, LogDirFailed)

    def test_without_any_directory_it_does_not_start(self, store: Store) -> None:
        with pytest.raises(LogDirFailed, match="/missing"):
            store.manager(directories=("/missing",))

    def test_a_partition_in_two_directories_is_refused(self, store: Store) -> None:
        manager = store.manager()
        make(manager, 1, 0).make_files()
        manager.close()
        store.files.makedirs("/b/topic1-0")
        for name in ("partition.metadata", f"{0:020d}.log"):
            content = bytes(store.files.content(f"/a/topic1-0/{name}"))
            store.files.open(f"/b/topic1-0/{name}", create=True).pwritev((content,), 0)
        with pytest.raises(DirectoryRefused, match="topic1-0 lies in /a/topic1-0 and in /b/topic1-0"):
            store.manager()

    def test_two_directories_with_one_id_are_refused(self, store: Store) -> None:
        content = bytes(store.files.content("/a/meta.properties"))
        store.files.open("/b/meta.properties").pwritev((content,), 0)
        with pytest.raises(DirectoryRefused, match=r"directory\.id of its own"):
            store.manager()

    def test_one_killed_while_it_was_made_is_nothing(self, store: Store) -> None:
        manager = store.manager()
        manager.close()
        store.files.makedirs("/a/topic1-0")
        store.files.open("/a/topic1-0/partition.metadata", create=True)
        store.files.makedirs("/a/topic2-0")
        manager = store.manager()
        assert list(manager.logs()) == []
        for n in (1, 2):
            made = make(manager, n, 0)
            made.make_files()
            assert made.log_end_offset == 0
        for job in manager.take_removals():
            job.run()
        names = {path.split("/")[2] for path in store.files.paths("/a")}
        assert {name for name in names if name.startswith("topic")} == {"topic1-0", "topic2-0"}

    def test_other_things_in_a_directory_are_left_alone(self, store: Store) -> None:
        store.files.makedirs("/a/metadata")
        store.files.makedirs("/a/lost+found")
        store.files.open("/a/notes-1", create=True)
        manager = store.manager()
        assert list(manager.logs()) == []
        assert "/a/notes-1" in store.files.paths("/a")

    def test_spoiled_checkpoints_are_done_without(self, store: Store, batch: MakeBatch) -> None:
        manager = store.manager()
        log = make(manager, 1, 0)
        fill(log, batch(2))
        log.flush()
        manager.checkpoint({TopicIdPartition(topic(1), 0): Offset(6)})
        manager.close()
        for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            store.files.content(f"/a/{name}")[0] = 0xFF
        manager = store.manager()
        assert existing(manager, 1).log_end_offset == 6
        assert manager.high_watermarks() == {}


class TestStop:
    def test_a_clean_stop_names_its_epoch_once(self, store: Store, batch: MakeBatch) -> None:
        manager = store.manager()
        for number in (1, 2):
            fill(make(manager, number), batch(2))
        manager.write_clean_shutdown(BrokerEpoch(41))
        manager.write_clean_shutdown(BrokerEpoch(42))  # a second time does no harm
        manager.close()
        manager = store.manager()
        assert manager.clean_shutdown_epoch() == 42
        assert manager.recovered_logs == 0
        assert [log.log_end_offset for log in manager.logs()] == [6, 6]
        assert all(log.recovery_point == 6 for log in manager.logs())
        manager = store.restart()
        assert manager.clean_shutdown_epoch() == -1
        assert manager.recovered_logs == 2
        assert [log.log_end_offset for log in manager.logs()] == [6, 6]

    def test_a_clean_stop_survives_a_loss_of_power(self, store: Store, batch: MakeBatch) -> None:
        manager = store.manager()
        for number in range(30):  # enough for one sync of the whole file system
            fill(make(manager, number), batch(2, producer=(number, 0, 0)), 1)
        manager = store.restart(clean=True, power_lost=True)
        assert manager.recovered_logs == 0
        assert [log.log_end_offset for log in manager.logs()] == [2] * 30
        assert all(len(log.producers) == 1 for log in manager.logs())

    def test_an_epoch_counts_only_if_all_directories_agree(self, store: Store) -> None:
        manager = store.manager()
        manager.write_clean_shutdown(BrokerEpoch(42))
        manager.close()
        store.files.unlink("/b/.kafka_cleanshutdown")
        assert store.manager().clean_shutdown_epoch() == -1

    @pytest.mark.parametrize("gone", ["", "partition.metadata"])
    def test_a_stop_is_not_clean_if_the_disk_has_lost_a_log_since(
        self, store: Store, batch: MakeBatch, gone: str
    ) -> None:
        """It would be made anew, empty, and its node be elected as one that has everything."""
        manager = store.manager()
        for number in (1, 2):
            fill(make(manager, number, 0), batch(2))
        manager.write_clean_shutdown(BrokerEpoch(42))
        manager.close()
        for path in store.files.paths("/a/topic1-0"):
            if path.endswith(gone):
                store.files.unlink(path)
        manager = store.manager()
        assert manager.clean_shutdown_epoch() == -1
        assert [log.name.topic for log in manager.logs()] == ["topic2"]

    def test_a_stop_is_not_clean_if_the_disk_has_lost_where_logs_ended(self, store: Store, batch: MakeBatch) -> None:
        """Damage in a log then counts as a tail that never was durable."""
        manager = store.manager()
        fill(make(manager, 1, 0), batch(2))
        manager.write_clean_shutdown(BrokerEpoch(42))
        manager.close()
        store.files.content("/a/recovery-point-offset-checkpoint")[0] = 0xFF
        assert store.manager().clean_shutdown_epoch() == -1

    def test_an_idle_log_is_not_written_at_stop_and_start(self, store: Store, batch: MakeBatch) -> None:
        manager = store.manager()
        fill(make(manager, 1, 0), batch(2))
        store.restart(clean=True)
        manager = store.restart(clean=True)
        trace: list[str] = []
        store.files.faults.trace = trace
        manager.write_clean_shutdown(BrokerEpoch(1))
        assert {line.split()[1] for line in trace if "topic1-0" in line} <= {"pread"}


class TestFailure:
    @pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
    def test_one_directory_goes_the_others_go_on(self, store: Store, batch: MakeBatch, number: int) -> None:
        manager = store.manager()
        heard: list[bytes] = []
        manager.on_directory_failure = heard.append
        ids = manager.directory_ids
        bad, sibling, good = make(manager, 1, 0), make(manager, 2, 0), make(manager, 3, 1)
        fill(bad, batch(2))
        store.files.faults.broken["/a"] = number
        with pytest.raises(LogDirFailed, match="log directory /a is out of service") as raised:
            bad.append_as_leader([batch(2)], 0, NOW)
        assert raised.value.cause.errno == number
        assert heard == [ids[0]]
        for log in (bad, sibling):
            with pytest.raises(LogDirFailed):
                log.read(0, 100, offset_end=0)
        assert manager.offline(ids[0])
        assert not manager.offline(ids[1])
        assert (manager.directory_ids, manager.offline_directory_ids) == ((ids[1],), (ids[0],))
        assert manager.get(topic(1), 0) is None
        assert list(manager.logs()) == [good]
        with pytest.raises(LogDirFailed):
            manager.get_or_create("topic2", topic(2), 0, TopicConfig(), ids[0])
        with pytest.raises(LogDirFailed):  # not anew in the other directory either
            manager.get_or_create("topic2", topic(2), 0, TopicConfig())
        assert make(manager, 4).directory == "/b/topic4-0"
        fill(good, batch(2))
        manager.checkpoint({})
        manager.run_retention(NOW, lambda log: 0)
        manager.write_clean_shutdown(BrokerEpoch(1))
        assert heard == [ids[0]]
        manager.close()
        manager = store.manager()
        assert manager.clean_shutdown_epoch() == -1
        assert existing(manager, 1).log_end_offset == 6
        assert existing(manager, 3).log_end_offset == 6

    def test_a_flush_that_fails_takes_the_directory(self, store: Store, batch: MakeBatch) -> None:
        manager = store.manager()
        log = make(manager, 1, 0)
        fill(log, batch(2))
        job = log.begin_flush()
        assert job is not None
        store.files.faults.broken["/a"] = errno.EIO
        job.run()
        with pytest.raises(LogDirFailed):
            log.finish_flush(job)
        assert log.recovery_point == 0
        assert len(manager.directory_ids) == 1

    def test_a_checkpoint_that_fails_takes_its_directory_alone(self, store: Store, batch: MakeBatch) -> None:
        manager = store.manager()
        for number, directory in ((1, 0), (2, 1)):
            log = make(manager, number, directory)
            fill(log, batch(2))
            log.flush()
        store.files.faults.broken["/a/recovery-point-offset-checkpoint.tmp"] = errno.ENOSPC
        manager.checkpoint({})
        assert len(manager.directory_ids) == 1
        assert b"topic2 0 6" in bytes(store.files.content("/b/recovery-point-offset-checkpoint"))


class TestChores:
    def test_high_watermarks_are_back_and_never_beyond_the_end(self, store: Store, batch: MakeBatch) -> None:
        manager = store.manager()
        for number in (1, 2, 3):
            fill(make(manager, number), batch(2))
        keys = [TopicIdPartition(topic(number), 0) for number in (1, 2, 3)]
        manager.checkpoint({keys[0]: Offset(4), keys[1]: Offset(6)})
        manager.checkpoint({keys[2]: Offset(2)})  # the others keep theirs
        existing(manager, 2).truncate_to(2)
        manager = store.restart()
        assert manager.high_watermarks() == {keys[0]: 4, keys[1]: 2, keys[2]: 2}

    def test_retention_of_all_logs_up_to_their_high_watermarks(self, store: Store, batch: MakeBatch) -> None:
        manager = store.manager()
        for number in (1, 2):
            fill(make(manager, number, retention_ms=1_000, segment_bytes=batch(1).size), batch(1))
        marks = {topic(1): 2, topic(2): 0}
        assert manager.run_retention(NOW + 5_000, lambda log: marks[log.topic_id]) == 2
        assert existing(manager, 1).log_start_offset == 2
        assert existing(manager, 1).segment_offsets == [2]
        assert existing(manager, 2).log_start_offset == 0
        for log in manager.logs():
            log.flush()
        manager = store.restart(power_lost=True)
        assert existing(manager, 1).log_start_offset == 2
        assert existing(manager, 2).log_start_offset == 0

    def test_logs_without_flush_settings_are_synced_after_a_while(self, store: Store, batch: MakeBatch) -> None:
        manager = store.manager()
        idle, quiet, rolled = (make(manager, n, segment_bytes=batch(2).size * 2) for n in (1, 2, 3))
        own = make(manager, 4, flush_messages=1)
        fill(quiet, batch(2), 1)
        fill(rolled, batch(2), 3)
        fill(own, batch(2), 1)
        begun = manager.begin_flushes(NOW)
        assert [log for log, _ in begun] == [rolled]
        begun += manager.begin_flushes(NOW + FLUSH_AFTER_MS)
        assert [log for log, _ in begun] == [rolled, quiet]
        for log, job in begun:
            job.run()
            manager.finish_flush(log, job)
        assert [log.recovery_point for log in (idle, quiet, rolled, own)] == [0, 2, 6, 0]
        assert manager.begin_flushes(NOW + 2 * FLUSH_AFTER_MS) == []

    def test_what_a_crash_left_unsynced_is_synced_after_a_while(self, store: Store, batch: MakeBatch) -> None:
        manager = store.manager()
        fill(make(manager, 1), batch(2))
        manager = store.restart()
        (log,) = manager.logs()
        assert log.recovery_point == 0
        ((begun, job),) = manager.begin_flushes(store.clock.ms + FLUSH_AFTER_MS)
        job.run()
        manager.finish_flush(begun, job)
        assert log.recovery_point == 6

    def test_idle_producers_are_forgotten(self, store: Store, batch: MakeBatch) -> None:
        manager = store.manager()
        log = make(manager, 1)
        fill(log, batch(2, producer=(7, 0, 0)), 1)
        assert manager.expire_producers(NOW + 999, 1_000) == 0
        assert manager.expire_producers(NOW + 1_000, 1_000) == 1
        assert len(log.producers) == 0

    def test_open_files_are_bounded(self, store: Store, batch: MakeBatch) -> None:
        manager = store.manager(open_files_max=10)
        for number in range(40):
            fill(make(manager, number), batch(2))
        assert len(manager._pool) <= 10
        for log in manager.logs():
            log.read(0, 100, offset_end=6)
            log.flush()
        assert len(manager._pool) <= 10

    def test_nothing_of_a_deleted_log_stays_open(self, store: Store, batch: MakeBatch) -> None:
        manager = store.manager()
        log = make(manager, 1, segment_bytes=200)
        fill(log, batch(2), 20)
        log.read(0, 100, offset_end=6)
        log.flush()
        fill(log, batch(2), 2)
        log.flush()
        assert len(manager._pool) > 0
        manager.delete(log)
        assert list(manager._pool._open) == []


def test_describe_tells_sizes(store: Store, batch: MakeBatch) -> None:
    manager = store.manager()
    log = make(manager, 1, 0)
    fill(log, batch(2))
    first, second = manager.describe()
    assert (first.path, first.logs, first.failure) == ("/a", (log,), None)
    assert first.total_bytes > first.free_bytes > 0
    assert second.logs == ()
    assert sum(each.size_bytes for each in first.logs) == 3 * batch(2).size


def test_directory_ids_are_those_of_the_format(store: Store) -> None:
    manager = store.manager()
    meta = [format_directory(store.files, path, "cluster", NodeId(1), random.Random(0)) for path in ("/a", "/b")]
    assert manager.directory_ids == tuple(each.directory_id for each in meta)
