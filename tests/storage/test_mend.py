"""Mending a segment from another replica's bytes: taken only if they are the right ones, and a crash costs nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import Offset
from tidelog.proto.records.batches import split_batches
from tidelog.storage.disk.memory_files import Faults, Killed, MemoryFiles
from tidelog.storage.log.mend import Mend
from tidelog.storage.segments.log_read import LogRead

from .conftest import MakeBatch, Store

NOW = 1_000_000
CONFIG: dict[str, Any] = {"segment_bytes": 800, "index_interval_bytes": 200}


class Case:
    """A log of several segments, one of them damaged in places, and what every batch was."""

    def __init__(self, store: Store, batch: MakeBatch, *, segment: int = 1, places: int = 2) -> None:
        self.store = store
        log = self.log = store.log(**CONFIG)
        for count in (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9):
            assert not isinstance(log.append_as_leader([batch(count)], 0, NOW), Refusal)
        log.flush()
        store.managers[-1].checkpoint()
        self.end = log.log_end_offset
        self.whole = {path: bytes(store.files.content(path)) for path in self.segments()}
        self.batches = {found.base_offset: found for raw in self.whole.values() for found in split_batches(raw)}
        self.path = sorted(self.whole)[segment]
        own = split_batches(self.whole[self.path])
        for number in range(places):
            at = sum(each.size for each in own[: 2 * number + 1]) + (16 if number else 70)
            store.files.flip(self.path, at, 0x20)
        self.examine()

    def segments(self) -> list[str]:
        return [path for path in self.store.files.paths(self.log.directory) if path.endswith(".log")]

    def examine(self) -> None:
        offset = self.log.log_start_offset
        while (examination := self.log.begin_examination(offset)) is not None:
            while not examination.done:
                examination.step()
            self.log.finish_examination(examination)
            offset = Offset(examination.next_offset)

    def begin(self) -> Mend:
        [segment] = dict.fromkeys(segment for segment, _ in self.log.damage)
        if self.log.is_active(segment):
            self.log.roll(NOW)
        mend = self.log.begin_mending(segment)
        assert mend is not None
        return mend

    def mend(self, *, leave: int = -1) -> bool:
        mend = self.begin()
        for number, known in enumerate(mend.damage):
            while not mend.copy_up_to(known.position):
                pass
            if number == leave:
                mend.leave(known)
                continue
            mend.take(known, [each for base, each in sorted(self.batches.items()) if base >= mend.due])
            assert mend.due == known.next_offset
            mend.pass_over(known)
        while not mend.copy_up_to(mend.segment.size):
            pass
        mend.finish()
        return self.log.swap_mended(mend)

    def readable(self) -> set[int]:
        found: set[int] = set()
        for offset in range(self.end):
            got = self.log.read(offset, 1, offset_end=self.end)
            if isinstance(got, LogRead):
                [batch] = split_batches(got.records)
                assert bytes(batch.view) == bytes(self.batches[batch.base_offset].view)
                found.add(offset)
        return found


@pytest.mark.parametrize("segment", [0, 1, -1])
def test_the_bytes_are_those_that_were_written(store: Store, batch: MakeBatch, segment: int) -> None:
    case = Case(store, batch, segment=segment, places=2 if segment == 1 else 1)
    assert len(case.readable()) < case.end
    assert case.mend()
    assert not case.log.damage
    assert case.readable() == set(range(case.end))
    assert bytes(store.files.content(case.path)) == case.whole[case.path]
    case.examine()
    assert not case.log.damage
    assert not case.log.append_as_leader([batch(3)], 0, NOW).duplicate  # type: ignore[union-attr]
    case.log = store.restart(clean=True).get_or_create("t", case.log.topic_id, 0, case.log.config)
    assert case.log.log_end_offset == case.end + 3
    assert case.readable() == set(range(case.end))


def test_what_nobody_has_stays_damaged_and_the_rest_is_mended(store: Store, batch: MakeBatch) -> None:
    case = Case(store, batch)
    first, second = (known for _, known in case.log.damage)
    assert case.mend(leave=0)
    [(_, left)] = case.log.damage
    assert (left.first_offset, left.next_offset) == (first.first_offset, first.next_offset)
    assert case.readable() == set(range(case.end)) - set(range(first.first_offset, first.next_offset))
    assert second.first_offset in case.readable()
    case.examine()
    assert [known[:4] for _, known in case.log.damage] == [left[:4]]
    assert case.mend()
    assert case.readable() == set(range(case.end))


def test_nothing_is_taken_that_is_not_what_is_due(store: Store, batch: MakeBatch) -> None:
    case = Case(store, batch, places=1)
    [(_, known)] = case.log.damage
    right = case.batches[Offset(known.first_offset)]
    size = right.last_offset_delta + 1
    mend = case.begin()
    assert mend.would_take(known, [right])
    flipped = bytearray(right.view)
    flipped[-1] ^= 1
    wrong = {
        "its CRC": split_batches(bytes(flipped))[0],
        "another epoch": batch(size, at=known.first_offset, epoch=1),
        "another offset": batch(size, at=known.first_offset + 1),
        "too long": batch(size + 1, at=known.first_offset),
    }
    for what, found in wrong.items():
        assert not mend.would_take(known, [found]), what
        mend.take(known, [found])
        assert mend.due != known.next_offset, what
        assert mend.size == 0
    assert not mend.would_take(known, [])
    mend.drop()
    assert not [path for path in store.files.paths(case.log.directory) if path.endswith(".mended")]


@pytest.mark.parametrize("meanwhile", ["cut", "delete", "more damage"])
def test_a_log_that_changed_is_left_alone(store: Store, batch: MakeBatch, meanwhile: str) -> None:
    case = Case(store, batch, places=1)
    mend = case.begin()
    [known] = mend.damage
    while not mend.copy_up_to(known.position):
        pass
    mend.take(known, [case.batches[Offset(known.first_offset)]])
    mend.pass_over(known)
    if meanwhile == "cut":
        case.log.truncate_to(known.next_offset)
    elif meanwhile == "delete":
        case.log.advance_log_start(case.log.segment_offsets[2])
        case.log.drop_expired()
    else:
        store.files.flip(case.path, len(case.whole[case.path]) - 1)
        case.examine()
    assert not case.log.swap_mended(mend)
    mend.drop()


class ProducersCase(Case):
    """A log whose process was killed, and a producer's batch in it that rotted: its producer id, or a record."""

    def __init__(self, store: Store, batch: MakeBatch, at: int) -> None:
        self.store = store
        log = self.log = store.log(**CONFIG)
        for number in range(4):
            assert not isinstance(log.append_as_leader([batch(2, producer=(7, 0, 2 * number))], 0, NOW), Refusal)
        marked = batch(2, producer=(8, 0, 0), transactional=True)
        assert not isinstance(log.append_as_leader([marked], 0, NOW), Refusal)
        log.flush()
        store.managers[-1].checkpoint()
        self.known = {
            each.producer_id: (each.epoch, each.runs, each.transaction_offset) for each in log.producers.all()
        }
        self.end = log.log_end_offset
        self.retry = batch(2, producer=(7, 0, 6))
        [self.path] = self.segments()
        self.whole = {self.path: bytes(store.files.content(self.path))}
        self.batches = {found.base_offset: found for found in split_batches(self.whole[self.path])}
        store.files.flip(self.path, sum(self.batches[Offset(base)].size for base in (0, 2, 4)) + at)
        store.restart()
        self.log = store.log(**CONFIG)

    def producers(self) -> dict[int, object]:
        return {each.producer_id: (each.epoch, each.runs, each.transaction_offset) for each in self.log.producers.all()}


@pytest.mark.parametrize("at", [45, 52, 70], ids=["producer id", "epoch", "record"])
def test_producers_are_not_known_by_what_is_damaged_and_wait_for_the_mending(
    store: Store, batch: MakeBatch, at: int
) -> None:
    case = ProducersCase(store, batch, at)
    assert [(known.first_offset, known.next_offset) for _, known in case.log.damage] == [(6, 8)]
    assert set(case.producers()) == {7, 8}
    assert case.log.producers.get(7).last_sequence == 5  # type: ignore[union-attr]
    refused = case.log.append_as_leader([case.retry], 0, NOW)
    assert isinstance(refused, Refusal)
    assert refused.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert case.log.last_stable_offset(case.end) == 6  # a transaction may have begun there
    assert not isinstance(case.log.append_as_leader([batch(3)], 0, NOW), Refusal)
    assert case.mend()
    assert case.producers() == case.known
    assert case.log.last_stable_offset(case.end) == 8
    assert case.log.append_as_leader([case.retry], 0, NOW).duplicate  # type: ignore[union-attr]
    store.restart()
    case.log = store.log(**CONFIG)
    assert case.producers() == case.known


def test_what_nobody_can_mend_keeps_no_producer_waiting(store: Store, batch: MakeBatch) -> None:
    case = ProducersCase(store, batch, 70)
    case.log.mendable = False
    assert case.log.last_stable_offset(case.end) == 8
    assert not isinstance(case.log.append_as_leader([case.retry], 0, NOW), Refusal)


@pytest.mark.parametrize("how", ["it was whole", "cut off", "deleted"])
def test_producers_wait_for_nothing_once_the_damage_is_gone(store: Store, batch: MakeBatch, how: str) -> None:
    case = ProducersCase(store, batch, 70)
    assert case.log.producers_lack
    if how == "it was whole":
        store.files.flip(case.path, sum(case.batches[Offset(base)].size for base in (0, 2, 4)) + 70)
        case.examine()
        assert case.producers() == case.known
    elif how == "cut off":
        assert case.log.truncate_to(6) == 6
    else:
        case.log.advance_log_start(8)
    assert not case.log.producers_lack


@pytest.mark.parametrize("power_lost", [False, True])
@pytest.mark.parametrize("leave", [-1, 0])
def test_a_mending_can_end_at_every_single_call(power_lost: bool, leave: int, batch: MakeBatch, store: Store) -> None:
    for step in range(1, 400):
        fresh = type(store)()
        fresh.disk.names_in_order = False
        case = Case(fresh, batch)
        lost = {offset for _, known in case.log.damage for offset in range(known.first_offset, known.next_offset)}
        faults = case.store.files.faults
        faults.rng = random.Random(step)
        faults.kill_at = faults.steps + step
        ended = False
        try:
            case.mend(leave=leave)
            ended = True
        except Killed:
            pass
        faults.end()
        case.store.disk.end_process()
        if power_lost:
            case.store.disk.lose_power(random.Random(step))
        manager = fresh.manager_on(MemoryFiles(fresh.disk, Faults()))
        case.log = manager.get_or_create("t", case.log.topic_id, 0, case.log.config)
        assert case.log.log_end_offset == case.end
        case.examine()
        left = case.readable()
        assert left >= set(range(case.end)) - lost, step
        if ended and leave < 0:
            assert left == set(range(case.end))
        stray = (".mended", ".swap", ".cleaned")
        assert not [path for path in fresh.files.paths(case.log.directory) if path.endswith(stray)]
        for each in fresh.managers:
            each.close()
        if ended:
            break
    assert ended
    assert step > 20
