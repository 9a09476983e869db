"""Damage in segments: an examination's findings, and the parts of the log that stay readable."""

from __future__ import annotations

import random

import pytest

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import BrokerEpoch, Offset, TopicId
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import Batch, patch_batch, split_batches
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_examination import Examination
from tidelog.storage.segments.examination import CHUNK, DamagedRange, Expected, PlacedBatch, examine
from tidelog.storage.segments.leader_epochs import LeaderEpochs
from tidelog.storage.segments.log_read import LogRead, LogSpan

from .conftest import MakeBatch, Store

NOW = 1_000_000
TOPIC_ID = TopicId(b"t" * 16)


def written(make: MakeBatch, counts: list[int], *, gap: int = 0) -> tuple[bytearray, list[tuple[int, int, int, int]]]:
    """A segment's bytes, and (position, end, first offset, next offset) of each batch. Leader epoch 3."""
    content, places, offset = bytearray(), [], 0
    for count in counts:
        raw = bytearray(make(count).view)
        patch_batch(raw, 0, base_offset=offset, leader_epoch=3)
        places.append((len(content), len(content) + len(raw), offset, offset + count))
        content += raw
        offset += count + gap
    return content, places


def found_in(content: bytes | bytearray, expected: Expected) -> tuple[list[PlacedBatch], list[DamagedRange]]:
    whole: list[PlacedBatch] = []
    damage: list[DamagedRange] = []

    def read(size: int, position: int) -> bytes:
        return bytes(content[position : position + size])

    for found in examine(read, 0, len(content), expected):
        if isinstance(found, PlacedBatch):
            whole.append(found)
        elif found is not None:
            damage.append(found)
    return whole, damage


def expected_of(places: list[tuple[int, int, int, int]], *, dense: bool = True) -> Expected:
    return Expected(0, places[-1][3], dense, LeaderEpochs([(3, 0)]))


class TestExamine:
    def test_what_is_whole_is_found_whole(self, batch: MakeBatch) -> None:
        content, places = written(batch, [1, 7, 3, 1])
        whole, damage = found_in(content, expected_of(places))
        assert not damage
        assert [found.position for found in whole] == [place[0] for place in places]

    @pytest.mark.parametrize("dense", [True, False])
    def test_any_flipped_bit_costs_its_batch_and_no_other(self, batch: MakeBatch, dense: bool) -> None:
        content, places = written(batch, [2, 5, 1, 3], gap=0)
        rng = random.Random(7)
        start, end, first, following = places[1]
        for at in range(start, end):
            spoiled = bytearray(content)
            spoiled[at] ^= 1 << rng.randrange(8)
            whole, damage = found_in(spoiled, expected_of(places, dense=dense))
            if not dense and not damage and at - start < 8:
                continue  # an offset within the gap that is allowed there
            assert [(found[0], found[1], found[2], found[3]) for found in damage] == [(start, end, first, following)], (
                at
            )
            others = [place[0] for number, place in enumerate(places) if number != 1]
            assert [found.position for found in whole if found.position != start] == others

    def test_holes_garbage_and_many_places(self, batch: MakeBatch) -> None:
        rng = random.Random(3)
        for _ in range(300):
            content, places = written(batch, [rng.randrange(1, 9) for _ in range(20)])
            spoiled = bytearray(content)
            for _ in range(rng.randrange(1, 4)):
                at, size = rng.randrange(len(content)), rng.choice((1, 8, 70, 300))
                piece = spoiled[at : at + size]
                piece[:] = rng.choice((bytes(len(piece)), rng.randbytes(len(piece))))
                spoiled[at : at + size] = piece
            whole, damage = found_in(spoiled, expected_of(places))
            untouched = {place[0] for place in places if content[place[0] : place[1]] == spoiled[place[0] : place[1]]}
            assert {found.position for found in whole} == untouched
            inside = [(d.position, d.end) for d in damage]
            for place in places:
                assert (place[0] in untouched) != any(start <= place[0] < end for start, end in inside)
            assert all(d.first_offset < d.next_offset for d in damage)

    def test_a_length_that_lies_does_not_run_away(self, batch: MakeBatch) -> None:
        content, places = written(batch, [4] * 50)
        content[places[3][0] + 8] = 0x7F
        whole, damage = found_in(content, expected_of(places))
        assert [(d.position, d.end) for d in damage] == [places[3][:2]]
        assert len(whole) == 49

    def test_damage_at_the_end_reaches_to_the_end(self, batch: MakeBatch) -> None:
        content, places = written(batch, [2, 2])
        content[places[1][0] + 16] = 9
        _, damage = found_in(content, expected_of(places))
        assert [(d.position, d.end, d.first_offset, d.next_offset) for d in damage] == [places[1]]

    def test_an_offset_that_is_too_high_is_seen_where_gaps_are_allowed(self, batch: MakeBatch) -> None:
        content, places = written(batch, [2, 2, 2, 2], gap=3)
        content[places[1][0] + 7] = 8  # 5 was written; the next batch begins at 10
        _, damage = found_in(content, expected_of(places, dense=False))
        assert damage == []  # still between its neighbours: nobody can tell
        content[places[1][0] + 7] = 12
        _, damage = found_in(content, expected_of(places, dense=False))
        assert [(d.position, d.end) for d in damage] == [places[1][:2]]

    def test_a_large_batch_is_checked_piece_by_piece(self, batch: MakeBatch) -> None:
        content, places = written(batch, [3, 40_000, 2])
        assert places[1][1] - places[1][0] > 2 * CHUNK
        whole, damage = found_in(content, expected_of(places))
        assert not damage
        assert len(whole) == 3
        content[places[1][1] - 5] ^= 1
        _, damage = found_in(content, expected_of(places))
        assert [(d.position, d.end) for d in damage] == [places[1][:2]]


def append(log: Log, *batches: Batch, epoch: int = 0) -> None:
    assert not isinstance(log.append_as_leader(batches, epoch, NOW), Refusal)


def examined(log: Log) -> list[DamagedRange]:
    """A whole scrub of a log; what is new."""
    offset, new = log.log_start_offset, []
    while (examination := log.begin_examination(offset)) is not None:
        run(examination)
        new += log.finish_examination(examination) or []
        offset = Offset(examination.next_offset)
    return new


def run(examination: Examination) -> None:
    while not examination.done:
        examination.step()


def readable(log: Log, *, spans: bool = False) -> set[int]:
    """Offsets that can be read, beginning at each of them."""
    found: set[int] = set()
    for offset in range(log.log_start_offset, log.log_end_offset):
        if spans:
            span = log.find(offset, 400, offset_end=log.log_end_offset)
            if isinstance(span, LogSpan):
                found.update(range(offset, span.next_offset))
                span.release()
            continue
        got = log.read(offset, 400, offset_end=log.log_end_offset)
        if isinstance(got, LogRead) and len(got.records):
            assert all(batch.crc_ok() for batch in split_batches(got.records)), offset
            found.update(range(offset, got.next_offset))
        else:
            assert isinstance(got, Refusal)
            assert got.code is ErrorCode.CORRUPT_MESSAGE
    return found


class TestLog:
    def make(self, store: Store, batch: MakeBatch) -> Log:
        log = store.log(segment_bytes=800, index_interval_bytes=200)
        for count in (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9):
            append(log, batch(count))
        assert log.segment_count > 2
        return log

    @pytest.mark.parametrize("spans", [False, True])
    def test_all_but_the_damage_is_readable_whatever_byte_it_is(
        self, store: Store, batch: MakeBatch, spans: bool
    ) -> None:
        log = self.make(store, batch)
        path = f"{log.directory}/{log.segment_offsets[1]:020d}.log"
        size = len(store.files.content(path))
        for at in range(0, size, 13):
            store.files.flip(path, at, 0x10)
            new = examined(log)
            assert len(new) == 1, at
            lost = set(range(new[0].first_offset, new[0].next_offset))
            assert new[0].position <= at < new[0].end
            assert readable(log, spans=spans) == set(range(log.log_end_offset)) - lost
            store.files.flip(path, at, 0x10)
            assert examined(log) == []
            assert not log.damage  # somebody brought the bytes back
        assert readable(log, spans=spans) == set(range(log.log_end_offset))

    def test_the_log_goes_on_behind_damage_in_its_active_segment(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        for _ in range(5):
            append(log, batch(2))
        path = f"{log.directory}/{0:020d}.log"
        store.files.flip(path, 16)
        [damage] = examined(log)
        assert (damage.first_offset, damage.next_offset) == (0, 2)
        append(log, batch(4))
        assert readable(log) == set(range(2, 14))
        assert examined(log) == []
        assert len(log.damage) == 1

    def test_a_reader_that_meets_damage_has_it_examined(self, store: Store, batch: MakeBatch) -> None:
        log = self.make(store, batch)
        offset = log.segment_offsets[1]
        store.files.content(f"{log.directory}/{offset:020d}.log")[16] = 9
        assert log.take_suspect() is None
        assert isinstance(log.read(offset, 100, offset_end=log.log_end_offset), Refusal)
        assert log.take_suspect() == offset
        assert log.take_suspect() is None

    @pytest.mark.parametrize("at", [0, 3, 7])
    def test_an_offset_that_was_never_there_is_refused_before_anybody_has_looked(
        self, store: Store, batch: MakeBatch, at: int
    ) -> None:
        """No CRC covers it; an index made from it would hold what it cannot."""
        log = self.make(store, batch)
        log = store.restart(clean=True).get_or_create("t", TOPIC_ID, 0, log.config)
        path = f"{log.directory}/{log.segment_offsets[0]:020d}.log"
        content = store.files.content(path)
        second = split_batches(bytes(content))[1]
        store.files.flip(path, split_batches(bytes(content))[0].size + at, 0x40)
        for name in ("index", "timeindex"):
            store.files.unlink(path.replace(".log", f".{name}"))
        got = log.read(second.base_offset, 1, offset_end=log.log_end_offset)
        assert isinstance(got, Refusal)
        assert len(examined(log)) == 1
        lost = set(range(second.base_offset, second.next_offset))
        assert readable(log) == set(range(log.log_end_offset)) - lost

    def test_what_was_found_before_a_cut_is_void(self, store: Store, batch: MakeBatch) -> None:
        log = self.make(store, batch)
        last = log.segment_offsets[-1]
        examination = log.begin_examination(last)
        assert examination is not None
        store.files.flip(f"{log.directory}/{last:020d}.log", 70)
        run(examination)
        assert examination.found
        log.truncate_to(last)
        append(log, batch(2))
        assert log.finish_examination(examination) is None
        assert not log.damage

    def test_a_cut_behind_damage_keeps_what_is_whole(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(index_interval_bytes=10**6)
        for _ in range(8):
            append(log, batch(2))
        store.files.flip(f"{log.directory}/{0:020d}.log", 16, 0xFF)  # nothing leads past it
        assert log.truncate_to(11) == 10
        assert readable(log) == set(range(2, 10))
        append(log, batch(2))
        assert readable(log) == set(range(2, 12))

    def test_a_cut_in_damage_takes_it_away(self, store: Store, batch: MakeBatch) -> None:
        log = store.log()
        for _ in range(8):
            append(log, batch(2))
        size = len(store.files.content(f"{log.directory}/{0:020d}.log"))
        store.files.flip(f"{log.directory}/{0:020d}.log", size // 2)
        [damage] = examined(log)
        assert log.truncate_to(damage.first_offset + 1) == damage.first_offset
        assert not log.damage
        assert readable(log) == set(range(damage.first_offset))

    def test_a_segment_that_retention_takes_meanwhile_is_no_trouble(self, store: Store, batch: MakeBatch) -> None:
        log = self.make(store, batch)
        examination = log.begin_examination(Offset(0))
        assert examination is not None
        log.advance_log_start(log.segment_offsets[1])
        log.drop_expired()
        with pytest.raises(FileNotFoundError):
            run(examination)
        assert log.finish_examination(examination) is None

    def test_times_are_not_looked_up_across_damage(self, store: Store, batch: MakeBatch) -> None:
        log = store.log(index_interval_bytes=10**6)
        for at in range(6):
            append(log, batch(2, timestamp=1000 + at))
        path = f"{log.directory}/{0:020d}.log"
        store.files.flip(path, 2 * (len(store.files.content(path)) // 6) + 65)
        [damage] = examined(log)
        assert damage.first_offset == 4
        end = log.log_end_offset
        assert isinstance(log.offset_for_timestamp(1005, offset_end=end), Refusal)
        assert log.offset_for_timestamp(1001, offset_end=end).offset == 2  # type: ignore[union-attr]


class TestStart:
    """Damage in what was durable does not end a log; only what was not is cut off."""

    def filled(self, store: Store, batch: MakeBatch) -> tuple[Log, str]:
        log = store.log(index_interval_bytes=10**6)
        for _ in range(8):
            append(log, batch(2))
        log.flush()
        store.managers[-1].checkpoint()
        return log, f"{log.directory}/{0:020d}.log"

    def reopened(self, store: Store, *, clean: bool) -> Log:
        return store.restart(clean=clean).get_or_create("t", TOPIC_ID, 0, TopicConfig())

    @pytest.mark.parametrize("clean", [False, True])
    @pytest.mark.parametrize("at", [8, 16])
    def test_a_header_that_rots_costs_its_batch_only(
        self, store: Store, batch: MakeBatch, clean: bool, at: int
    ) -> None:
        log, path = self.filled(store, batch)
        size = len(store.files.content(path)) // 8
        store.files.flip(path, 3 * size + at, 0x40)
        log = self.reopened(store, clean=clean)
        assert log.log_end_offset == 16
        assert readable(log) == set(range(16)) - {6, 7}
        assert [(known.first_offset, known.next_offset) for _, known in log.damage] == [(6, 8)]
        append(log, batch(2))
        assert readable(log) == set(range(18)) - {6, 7}
        assert examined(log) == []

    @pytest.mark.parametrize("mask", [1, 0x40])
    @pytest.mark.parametrize("number", [0, 2, 6])
    def test_no_bit_of_a_durable_header_costs_anything_behind_it(
        self, store: Store, batch: MakeBatch, number: int, mask: int
    ) -> None:
        """Where the batch seems to end too late or too early the next one looks wrong, which is whole."""
        log, path = self.filled(store, batch)
        append(log, batch(2))  # behind the recovery point
        size = len(store.files.content(path)) // 9
        for at in range(61):
            store.files.flip(path, number * size + at, mask)
            log = self.reopened(store, clean=False)
            lost = set(range(2 * number, 2 * number + 2))
            assert log.log_end_offset == 18, at
            examined(log)
            assert {(known.first_offset, known.next_offset) for _, known in log.damage} == {(min(lost), max(lost) + 1)}
            assert readable(log) == set(range(18)) - lost
            assert log.latest_epoch == 0
            store.files.flip(path, number * size + at, mask)

    @pytest.mark.parametrize("at", [0, 3, 8, 16])
    def test_the_last_batch_of_a_clean_log_stays_in_it_though_it_rots(
        self, store: Store, batch: MakeBatch, at: int
    ) -> None:
        """Its offset too, which no CRC covers: a log must not end at an offset that was never there."""
        _, path = self.filled(store, batch)
        size = len(store.files.content(path))
        store.files.flip(path, size - size // 8 + at, 0x40)
        log = self.reopened(store, clean=True)
        assert log.log_end_offset == 16
        assert readable(log) == set(range(14))
        assert store.managers[-1].clean_shutdown_epoch() == 3
        append(log, batch(2))
        assert readable(log) == {*range(14), 16, 17}

    def test_a_stop_is_not_clean_if_the_disk_has_lost_the_end_since(self, store: Store, batch: MakeBatch) -> None:
        log, path = self.filled(store, batch)
        raw = bytes(store.files.content(path))
        store.managers[-1].write_clean_shutdown(BrokerEpoch(3))
        store.files.put(path, raw[: len(raw) // 2])
        log = self.reopened(store, clean=False)
        assert log.log_end_offset == 8
        assert store.managers[-1].clean_shutdown_epoch() == -1

    def test_what_was_not_durable_is_cut_off_as_ever(self, store: Store, batch: MakeBatch) -> None:
        log, path = self.filled(store, batch)
        size = len(store.files.content(path))
        append(log, batch(2), batch(2))
        store.files.flip(path, size + 70)
        log = self.reopened(store, clean=False)
        assert log.log_end_offset == 16
        assert not log.damage
