"""One log: appending, reading, rolling, cutting, retention, durability."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import Offset
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import Batch, split_batches
from tidelog.proto.records.compression import Compression
from tidelog.proto.records.control_batches import ControlKind, encode_control_batch
from tidelog.proto.records.decoder import decode_values
from tidelog.storage.log.log import Log
from tidelog.storage.producers.append_checks import LogAppend, Origin
from tidelog.storage.segments.log_read import LogRead

from .conftest import MakeBatch, Store

NOW = 1_000_000


def append(log: Log, *batches: Batch, epoch: int = 0, now_ms: int = NOW) -> LogAppend:
    outcome = log.append_as_leader(batches, epoch, now_ms)
    assert isinstance(outcome, LogAppend), outcome
    return outcome


def refused(outcome: object) -> ErrorCode:
    assert isinstance(outcome, Refusal), outcome
    assert outcome.message
    return outcome.code


def read(log: Log, offset: int, bytes_max: int = 1 << 20, **settings: Any) -> LogRead:
    settings.setdefault("offset_end", log.log_end_offset)
    found = log.read(offset, bytes_max, **settings)
    assert isinstance(found, LogRead), found
    return found


def values(log: Log) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = read(log, offset)
        for batch in split_batches(piece.records):
            assert batch.crc_ok()
            found += decode_values(batch)
        offset = piece.next_offset
    return found


class TestAppend:
    def test_offsets_are_dense_and_the_answer_covers_all_batches(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        assert append(log, batch(3), batch(2), batch(1))[:2] == (0, 5)
        result = append(log, batch(4), epoch=2)
        assert result == LogAppend(Offset(6), Offset(9), -1, Offset(0), batch(4).size, False)
        stored = split_batches(read(log, 0).records)
        assert [(each.base_offset, each.last_offset, each.leader_epoch) for each in stored] == [
            (0, 2, 0),
            (3, 4, 0),
            (5, 5, 0),
            (6, 9, 2),
        ]
        assert all(each.crc_ok() for each in stored)

    def test_a_batch_is_stored_as_it_came_but_for_offset_and_epoch(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        sent = batch(5, compression=Compression.LZ4)
        append(log, batch(2), sent, epoch=7)
        found = bytes(read(log, 2).records)
        assert found[:16] == struct.pack(">qii", 2, sent.size - 12, 7)
        assert found[16:] == bytes(sent.view[16:])

    def test_a_spoiled_batch_is_refused_and_nothing_is_written(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        raw = bytearray(batch(3).view)
        raw[-1] ^= 1
        outcome = log.append_as_leader([batch(1), split_batches(bytes(raw))[0]], 0, NOW)
        assert refused(outcome) == ErrorCode.CORRUPT_MESSAGE
        assert (log.log_end_offset, log.size_bytes) == (0, 0)

    def test_sizes_are_bounded_by_message_and_by_segment(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(max_message_bytes=200, segment_bytes=150)
        assert refused(log.append_as_leader([batch(values=[b"x" * 200])], 0, NOW)) == ErrorCode.MESSAGE_TOO_LARGE
        assert refused(log.append_as_leader([batch(values=[b"x" * 100])], 0, NOW)) == ErrorCode.RECORD_LIST_TOO_LARGE
        append(log, batch(values=[b"x" * 60]))

    def test_times_are_bounded(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(message_timestamp_after_max_ms=1_000, message_timestamp_before_max_ms=2_000)
        assert refused(log.append_as_leader([batch(timestamp=NOW + 1_001)], 0, NOW)) == ErrorCode.INVALID_TIMESTAMP
        assert refused(log.append_as_leader([batch(timestamp=NOW - 2_001)], 0, NOW)) == ErrorCode.INVALID_TIMESTAMP
        append(log, batch(timestamp=NOW + 1_000), batch(timestamp=NOW - 2_000))

    def test_log_append_time_is_stamped(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(message_timestamp_type="LogAppendTime")
        assert append(log, batch(2, timestamp=5)).append_time_ms == NOW
        (stored,) = split_batches(read(log, 0).records)
        assert stored.is_log_append_time
        assert stored.max_timestamp == NOW
        assert stored.crc_ok()
        assert log.offset_for_timestamp(NOW, offset_end=2) == (NOW, 0, 0)

    @pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
    def test_the_topics_codec_is_used(self, store: Store, batch: MakeBatch, name: str) -> None:
        log = store.log(compression_type=name)
        words = [b"word " * 40] * 30
        kind = Compression.NONE if name == "uncompressed" else Compression.from_name(name)
        append(log, batch(values=words, producer=(4, 0, 0)), batch(values=words, compression=Compression.ZSTD))
        stored = split_batches(read(log, 0).records)
        assert [each.compression for each in stored] == [kind, kind]
        assert (stored[0].producer_id, stored[0].record_count) == (4, 30)
        assert values(log) == words * 2

    def test_an_older_leader_epoch_is_fenced(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        append(log, batch(), epoch=5)
        assert refused(log.append_as_leader([batch()], 4, NOW)) == ErrorCode.FENCED_LEADER_EPOCH

    def test_duplicates_are_answered_with_the_first_offsets(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        append(log, batch(2))
        sent = [batch(2, producer=(1, 0, 0)), batch(3, producer=(1, 0, 2))]
        assert append(log, *sent)[:2] == (2, 6)
        again = append(log, *sent)
        assert (again.base_offset, again.last_offset, again.duplicate, again.size) == (2, 6, True, 0)
        assert log.log_end_offset == 7

    def test_duplicates_and_new_batches_together(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        first, second = batch(2, producer=(1, 0, 0)), batch(3, producer=(1, 0, 2))
        append(log, first)
        adjoining = append(log, first, second)
        assert (adjoining.base_offset, adjoining.last_offset, adjoining.duplicate) == (0, 4, False)
        append(log, batch(1))
        third = batch(1, producer=(1, 0, 5))
        apart = append(log, second, third)
        assert (apart.base_offset, apart.last_offset) == (-1, 6)
        assert log.log_end_offset == 7

    def test_a_coordinators_markers(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        append(log, batch(2, producer=(1, 3, 0), transactional=True))
        assert log.last_stable_offset(log.log_end_offset) == 0
        settings = {"timestamp": NOW, "producer_id": 1, "producer_epoch": 3}
        marker = encode_control_batch(ControlKind.COMMIT, coordinator_epoch=5, **settings)
        client = log.append_as_leader(split_batches(bytes(marker)), 0, NOW)
        assert refused(client) == ErrorCode.INVALID_RECORD
        outcome = log.append_as_leader(split_batches(bytes(marker)), 0, NOW, origin=Origin.COORDINATOR)
        assert isinstance(outcome, LogAppend)
        assert log.last_stable_offset(log.log_end_offset) == 3
        late = encode_control_batch(ControlKind.ABORT, coordinator_epoch=4, **settings)
        outcome = log.append_as_leader(split_batches(bytes(late)), 0, NOW, origin=Origin.COORDINATOR)
        assert refused(outcome) == ErrorCode.TRANSACTION_COORDINATOR_FENCED


class TestFollower:
    def test_bytes_go_in_as_they_are(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        data = b"".join(bytes(each.view) for each in (batch(2, at=0, epoch=3), batch(3, at=2, epoch=4)))
        outcome = log.append_as_follower(data, NOW)
        assert outcome == LogAppend(Offset(0), Offset(4), -1, Offset(0), len(data), False)
        assert bytes(read(log, 0).records) == data
        assert log.epoch_entries == [(3, 0), (4, 2)]

    def test_imported_batches_keep_their_offsets_and_get_the_leaders_epoch(
        self, store: Store, batch: MakeBatch
    ) -> None:
        log = store.log()
        sent = [batch(2, at=3, epoch=77), batch(3, at=10, epoch=4)]
        data = b"".join(bytes(each.view) for each in sent)
        log.append_as_follower(data, NOW, takes_gaps=True, leader_epoch=5)
        found = split_batches(bytes(read(log, 0).records))
        assert [(each.base_offset, each.leader_epoch, each.crc_ok()) for each in found] == [(3, 5, True), (10, 5, True)]
        assert [bytes(each.view[16:]) for each in found] == [bytes(each.view[16:]) for each in sent]
        assert log.epoch_entries == [(5, 3)]
        later = bytes(batch(1, at=13, epoch=9).view)
        assert refused(log.append_as_follower(later, NOW, leader_epoch=4)) == ErrorCode.INVALID_REQUEST
        assert log.log_end_offset == 13

    def test_what_it_has_is_passed_over(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        first, second = bytes(batch(2, at=0).view), bytes(batch(3, at=2).view)
        log.append_as_follower(first, NOW)
        log.append_as_follower(first + second, NOW)
        assert bytes(read(log, 0).records) == first + second
        nothing = log.append_as_follower(first, NOW)
        assert isinstance(nothing, LogAppend)
        assert nothing.size == 0

    @pytest.mark.parametrize(
        ("at", "epoch", "code"),
        [
            (3, 5, ErrorCode.OFFSET_OUT_OF_RANGE),
            (1, 5, ErrorCode.OFFSET_OUT_OF_RANGE),
            (2, 4, ErrorCode.INVALID_REQUEST),
        ],
        ids=["a gap", "an overlap", "an older epoch"],
    )
    def test_what_does_not_go_on_is_refused(
        self, store: Store, batch: MakeBatch, at: int, epoch: int, code: ErrorCode
    ) -> None:
        log = store.log()
        log.append_as_follower(bytes(batch(2, at=0, epoch=5).view), NOW)
        assert refused(log.append_as_follower(bytes(batch(3, at=at, epoch=epoch).view), NOW)) == code
        assert log.log_end_offset == 2

    def test_spoiled_bytes_are_refused(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        good = bytes(batch(2, at=0).view)
        flipped = good[:70] + bytes([good[70] ^ 1]) + good[71:]
        for data in (flipped, good[:-1], good + b"\0" * 80):
            assert refused(log.append_as_follower(data, NOW)) == ErrorCode.CORRUPT_MESSAGE
        assert log.log_end_offset == 0

    def test_a_compacted_topic_may_have_gaps_and_they_survive_a_crash(self, store: Store, batch: MakeBatch) -> None:
        config = TopicConfig(cleanup_policy=("compact",))
        log = store.log(config)
        data = bytes(batch(2, at=0).view) + bytes(batch(1, at=10).view)
        log.append_as_follower(data, NOW)
        assert log.log_end_offset == 11
        assert read(log, 5).first_offset == 10
        store.restart()
        log = store.log(config)
        assert log.log_end_offset == 11
        assert bytes(read(log, 0).records) == data

    def test_later_epochs_than_the_fetch_was_sent_to_are_left_out(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        data = bytes(batch(2, at=0, epoch=3).view) + bytes(batch(1, at=2, epoch=4).view)
        log.append_as_follower(data, NOW, leader_epoch_max=3)
        assert log.log_end_offset == 2

    def test_an_empty_log_may_begin_within_a_batch(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        log.truncate_fully_and_start_at(105)
        outcome = log.append_as_follower(bytes(batch(10, at=100).view), NOW)
        assert isinstance(outcome, LogAppend)
        assert (log.log_start_offset, log.log_end_offset) == (105, 110)
        store.restart()
        log = store.log()
        assert (log.log_start_offset, log.log_end_offset) == (105, 110)

    def test_idempotence_is_known_to_a_follower_that_becomes_leader(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        sent = batch(2, producer=(1, 0, 0), at=0)
        log.append_as_follower(bytes(sent.view), NOW)
        again = append(log, batch(2, producer=(1, 0, 0)))
        assert (again.base_offset, again.duplicate) == (0, True)


class TestRead:
    def test_whole_batches_up_to_the_bytes_and_the_end_given(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        append(log, *(batch(2) for _ in range(5)))
        size = batch(2).size
        assert read(log, 0, 2 * size + 5).next_offset == 4
        assert read(log, 3, 2 * size).first_offset == 2
        assert read(log, 0, offset_end=6).next_offset == 6
        assert read(log, 0, offset_end=7).next_offset == 6
        assert not len(read(log, 0, offset_end=0).records)
        assert not len(read(log, 10).records)

    def test_a_first_batch_larger_than_the_bytes(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        append(log, batch(values=[b"x" * 5_000]), batch(1))
        for room in (1, 100, 4_000):
            assert len(read(log, 0, room).records) == batch(values=[b"x" * 5_000]).size
        assert not len(read(log, 0, 100, at_least_one=False).records)
        assert not len(read(log, 0, 0, at_least_one=False).records)

    def test_out_of_range(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        append(log, batch(5))
        log.advance_log_start(3)
        for offset in (-1, 2, 6):
            assert refused(log.read(offset, 100, offset_end=5)) == ErrorCode.OFFSET_OUT_OF_RANGE
        assert read(log, 3).first_offset == 0

    def test_every_offset_in_many_segments(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(segment_bytes=500, index_interval_bytes=100)
        for count in range(1, 40):
            append(log, batch(count % 7 + 1))
        assert log.segment_count > 5
        for offset in range(log.log_end_offset):
            piece = read(log, offset, 1)
            assert piece.first_offset <= offset < piece.next_offset
        assert len(values(log)) == log.log_end_offset

    def test_where_bytes_lie_in_the_file_is_told(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(segment_bytes=200)
        for _ in range(5):
            append(log, batch(2))
        piece = read(log, 5)
        content = store.files.content(f"{log.directory}/{piece.segment_base:020d}.log")
        assert content[piece.position : piece.position + len(piece.records)] == piece.records

    def test_a_file_that_lies_is_refused_not_served(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        append(log, batch(2), batch(2))
        content = store.files.content(f"{log.directory}/{0:020d}.log")
        content[16] = 9  # no magic any more
        assert refused(log.read(1, 1, offset_end=4)) == ErrorCode.CORRUPT_MESSAGE


class TestTimes:
    def test_lookup_by_time(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(segment_bytes=300, index_interval_bytes=50, segment_ms=10**9)
        times = [100, 110, 105, 130, 130, 90, 150, 150, 140]
        for time in times:
            append(log, batch(2, timestamp=time))
        for wanted in range(85, 155):
            expected = next((2 * n for n, time in enumerate(times) if time >= wanted), None)
            found = log.offset_for_timestamp(wanted, offset_end=log.log_end_offset)
            assert not isinstance(found, Refusal)
            assert (found if found is None else found.offset) == expected, wanted
        assert log.offset_for_timestamp(150, offset_end=12) is None
        assert log.offset_of_max_timestamp(offset_end=log.log_end_offset) == (150, 12, 0)

    def test_records_before_the_start_do_not_count(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        append(log, batch(4, timestamp=100), batch(1, timestamp=200))
        log.advance_log_start(2)
        assert log.offset_for_timestamp(50, offset_end=5) == (100, 2, 0)


class TestRoll:
    def test_by_size_with_kafkas_file_names(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(segment_bytes=3 * batch(2).size)
        append(log, *(batch(2) for _ in range(8)))
        assert log.segment_offsets == [0, 6, 12]
        names = [path.rpartition("/")[2] for path in store.files.paths(log.directory)]
        for base in (0, 6):
            assert {f"{base:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")} <= set(names)
        assert f"{12:020d}.log" in names
        assert {f"{6:020d}.snapshot", f"{12:020d}.snapshot"} <= set(names)

    def test_by_the_records_time(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(segment_ms=1_000)
        append(log, batch(timestamp=5_000))
        append(log, batch(timestamp=6_000))
        assert log.segment_count == 1
        append(log, batch(timestamp=6_001))
        assert log.segment_offsets == [0, 2]

    def test_jitter_shortens_the_time(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(segment_ms=1_000, segment_jitter_ms=999)
        log._jitter_ms = 500
        append(log, batch(timestamp=5_000))
        append(log, batch(timestamp=5_501))
        assert log.segment_count == 2

    def test_by_a_full_index(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(segment_index_bytes=36, index_interval_bytes=1)
        for n in range(10):
            append(log, batch(timestamp=NOW + n))
        assert log.segment_offsets == [0, 4, 8]

    def test_by_age_without_appends(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(segment_ms=1_000)
        assert not log.maybe_roll(NOW + 5_000)  # an empty one is not rolled
        append(log, batch())
        assert not log.maybe_roll(NOW + 1_000)
        assert log.maybe_roll(NOW + 1_001)
        assert log.segment_offsets == [0, 1]

    def test_indexes_are_kafkas_bytes(self, store: Store, batch: MakeBatch) -> None:
        size = batch(2).size
        log = store.log(index_interval_bytes=size, segment_bytes=6 * size)
        for n in range(7):
            append(log, batch(2, timestamp=NOW + 10 * n))
        index = bytes(store.files.content(f"{log.directory}/{0:020d}.index"))
        # an entry before each batch that more than the interval lies in front of: last offset, position
        assert index == struct.pack(">iiii", 5, 2 * size, 9, 4 * size)
        times = bytes(store.files.content(f"{log.directory}/{0:020d}.timeindex"))
        assert times == struct.pack(">qiqiqi", NOW + 20, 5, NOW + 40, 9, NOW + 50, 11)


class TestCut:
    def fill(self, store: Store, batch: MakeBatch, **settings: Any) -> Log:
        log = store.log(segment_bytes=3 * batch(2).size, index_interval_bytes=10, **settings)
        for n in range(10):
            append(log, batch(2, timestamp=NOW + n, producer=(1, 0, 2 * n)), epoch=n // 3)
        return log

    @pytest.mark.parametrize("clean", [False, True], ids=["as it is", "after a restart"])
    @pytest.mark.parametrize("target", range(21))
    def test_at_any_offset(self, store: Store, batch: MakeBatch, target: int, clean: bool) -> None:
        log = self.fill(store, batch)
        end = target // 2 * 2  # a target within a batch takes all of it
        assert log.truncate_to(target) == end
        if clean:
            store.restart(clean=True)
            log = store.log(segment_bytes=3 * batch(2).size, index_interval_bytes=10)
        assert log.log_end_offset == end
        assert log.epoch_entries == [(epoch, 6 * epoch) for epoch in range(4) if 6 * epoch < end]
        producer = log.producers.get(1)
        assert (producer.last_sequence if producer else -1) == end - 1
        assert len(values(log)) == end
        assert append(log, batch(1), epoch=5).base_offset == end
        assert log.offset_for_timestamp(NOW + 9, offset_end=100) == ((NOW + 9, 18, 3) if end > 18 else None)

    def test_an_epoch_without_records_is_forgotten(self, store: Store, batch: MakeBatch) -> None:
        log = self.fill(store, batch)
        log.assign_epoch_start(9, 20)
        assert log.truncate_to(20) == 20
        assert log.latest_epoch == 3

    def test_a_cut_survives_a_loss_of_power(self, store: Store, batch: MakeBatch) -> None:
        log = self.fill(store, batch)
        log.flush()
        log.truncate_to(9)
        store.restart(power_lost=True)
        assert store.log().log_end_offset == 8

    def test_what_was_synced_is_no_longer_believed_after_a_cut(self, store: Store, batch: MakeBatch) -> None:
        log = self.fill(store, batch)
        log.flush()
        store.managers[-1].checkpoint()
        log.truncate_to(8)
        assert log.recovery_point == log.stored_recovery_point == 8

    def test_fully(self, store: Store, batch: MakeBatch) -> None:
        log = self.fill(store, batch)
        log.truncate_fully_and_start_at(50)
        assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (50, 50, 0)
        assert log.epoch_entries == []
        assert append(log, batch(1), epoch=9).base_offset == 50
        store.restart()
        assert (store.log().log_start_offset, store.log().log_end_offset) == (50, 51)

    def test_below_the_start(self, store: Store, batch: MakeBatch) -> None:
        log = self.fill(store, batch)
        log.truncate_fully_and_start_at(50)
        assert log.truncate_to(40) == 40
        assert (log.log_start_offset, log.log_end_offset) == (40, 40)
        store.restart()
        assert (store.log().log_start_offset, store.log().log_end_offset) == (40, 40)


class TestRetention:
    def test_by_time_up_to_the_high_watermark(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(segment_bytes=batch(1).size, retention_ms=1_000)
        for n in range(4):
            append(log, batch(timestamp=NOW + 100 * n))
        assert log.apply_retention(NOW + 1_000, 4) == 0
        assert log.apply_retention(NOW + 1_150, 1) == 1
        assert log.apply_retention(NOW + 1_250, 2) == 1
        assert (log.log_start_offset, log.segment_offsets) == (2, [2, 3])

    def test_the_active_segment_is_rolled_first(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(retention_ms=1_000)
        append(log, batch(3))
        assert log.apply_retention(NOW + 10_000, 3) == 1
        assert (log.log_start_offset, log.log_end_offset, log.segment_offsets, log.size_bytes) == (3, 3, [3], 0)
        assert log.apply_retention(NOW + 99_000, 3) == 0
        assert append(log, batch(1)).base_offset == 3

    def test_by_size(self, store: Store, batch: MakeBatch) -> None:
        size = batch(1).size
        log = store.log(segment_bytes=size, retention_ms=-1, retention_bytes=2 * size)
        for _ in range(5):
            append(log, batch(1))
        assert log.apply_retention(NOW, 5) == 3
        assert log.segment_offsets == [3, 4]

    def test_deleted_records(self, store: Store, batch: MakeBatch) -> None:
        keyed = batch(2, keys=[b"a", b"b"])
        log = store.log(segment_bytes=keyed.size, retention_ms=-1, cleanup_policy=("compact",))
        for _ in range(4):
            append(log, keyed)
        log.advance_log_start(5)
        assert log.apply_retention(NOW, 8) == 2
        assert (log.log_start_offset, log.segment_offsets) == (5, [4, 6])
        log.advance_log_start(8)
        assert log.apply_retention(NOW, 8) == 1  # the active segment stays
        assert log.segment_offsets == [6]

    def test_an_empty_policy_keeps_everything(self, store: Store, batch: MakeBatch) -> None:
        size = batch(1).size
        log = store.log(segment_bytes=size, retention_ms=0, retention_bytes=0, cleanup_policy=())
        for _ in range(3):
            append(log, batch(1))
        assert log.apply_retention(NOW + 10_000, 3) == 0
        log.advance_log_start(2)
        assert log.apply_retention(NOW, 3) == 2, "what is deleted by hand goes"

    def test_files_go_after_their_delay(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(segment_bytes=batch(1).size, retention_ms=0, file_delete_delay_ms=500)
        append(log, batch(1), batch(1))
        log.apply_retention(NOW + 1, 2)
        manager = store.managers[-1]
        assert manager.take_removals() == []
        left = [path for path in store.files.paths(log.directory) if path.endswith(".deleted")]
        assert len(left) == 6
        store.clock.ms += 500
        (job,) = manager.take_removals()
        job.run()
        manager.finish_removal(job)
        assert not [path for path in store.files.paths(log.directory) if path.endswith(".deleted")]

    def test_a_start_that_was_stored_is_back_after_a_crash(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        append(log, batch(5))
        log.advance_log_start(3)
        store.managers[-1].checkpoint()
        store.restart()
        assert store.log().log_start_offset == 3


class TestDurability:
    def test_a_flush_is_due_by_records_by_time_and_by_a_roll(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(flush_messages=3, flush_ms=1_000, segment_bytes=5 * batch(1).size)
        assert not log.flush_due(NOW + 9_999)
        append(log, batch(2))
        assert not log.flush_due(NOW + 999)
        assert log.flush_due(NOW + 1_000)
        append(log, batch(1))
        assert log.flush_due(NOW)
        log.flush()
        assert not log.flush_due(NOW + 9_999)
        log.update_config(TopicConfig(segment_bytes=batch(1).size))
        append(log, batch(1))
        assert log.flush_due(NOW)

    def test_only_synced_records_are_acknowledged_where_each_is_to_be_synced(
        self, store: Store, batch: MakeBatch
    ) -> None:
        log = store.log(flush_messages=1)
        append(log, batch(3))
        assert log.acknowledgeable_offset == 0
        job = log.begin_flush()
        assert job is not None
        append(log, batch(2))
        assert log.begin_flush() is None  # one at a time
        job.run()
        log.finish_flush(job)
        assert log.acknowledgeable_offset == log.recovery_point == 3
        log.update_config(TopicConfig(flush_messages=10))
        assert log.acknowledgeable_offset == 5

    def test_a_cut_during_a_flush_is_not_taken_for_synced(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        append(log, *(batch(1) for _ in range(5)))
        job = log.begin_flush()
        assert job is not None
        log.truncate_to(2)
        append(log, *(batch(1) for _ in range(5)))
        job.run()
        log.finish_flush(job)
        assert log.recovery_point == 2

    def test_a_flush_that_nobody_finished_is_done_again_at_close(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        append(log, batch(5))
        log.begin_flush()
        store.restart(clean=True, power_lost=True)
        assert store.log().log_end_offset == 5

    def test_producers_survive_a_restart(self, store: Store, batch: MakeBatch) -> None:
        for clean in (True, False):
            log = store.log()
            producer = 10 + clean
            for n in range(7):
                append(log, batch(2, producer=(producer, 0, 2 * n)), batch(1))
            expected = append(log, batch(2, producer=(producer, 0, 12))).base_offset
            store.restart(clean=clean)
            log = store.log()
            for n in range(2, 7):
                again = append(log, batch(2, producer=(producer, 0, 2 * n)))
                assert again.duplicate
                assert again.base_offset == expected - 3 * (6 - n)
            assert refused(log.append_as_leader([batch(producer=(producer, 0, 15))], 0, NOW)) == (
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            )

    def test_few_snapshots_are_kept(self, store: Store, batch: MakeBatch) -> None:
        for _ in range(5):
            append(store.log(), batch(2))
            store.restart(clean=True)
        names = [path for path in store.files.paths(store.log().directory) if path.endswith(".snapshot")]
        assert len(names) == 1
