"""Answers that a follower takes from a leader whose disk has changed a header unnoticed."""

from __future__ import annotations

import pytest

from tidelog.model.errors import Refusal
from tidelog.model.ids import TopicId
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import patch_batch
from tidelog.storage.log.log import Log
from tidelog.storage.segments.log_read import LogRead

from .conftest import MakeBatch, Store

NOW = 1_000_000
BATCHES = 8


def follow(leader: Log, follower: Log, room: int) -> None:
    """As the streams do it: headers are always checked, CRCs where something was refused before; a gap is taken the
    second time."""
    refused = 0
    while follower.log_end_offset < leader.log_end_offset and refused < 4:
        at = follower.log_end_offset
        read = leader.read(at, room, offset_end=leader.log_end_offset)
        if isinstance(read, LogRead):
            read = leader.checked(read, at, crcs=refused > 0)
        if isinstance(read, Refusal):
            return
        gaps = refused > 0 or leader.config.compacts
        follower.append_as_follower(read.records, NOW, leader_epoch_max=7, takes_gaps=gaps)
        refused = 0 if follower.log_end_offset > at else refused + 1


@pytest.mark.parametrize("room", [1, 10_000])
def test_it_takes_what_was_written_and_passes_over_nothing(store: Store, batch: MakeBatch, room: int) -> None:
    leader = store.log()
    for number in range(BATCHES):
        epoch = 2 if number < 4 else 5
        assert not isinstance(leader.append_as_leader([batch(2)], epoch, NOW), Refusal)
    path = f"{leader.directory}/{0:020d}.log"
    whole = bytes(store.files.content(path))
    size = len(whole) // BATCHES
    wrong = []
    for damaged in (0, 3, BATCHES - 1):
        for at in range(17):  # what no CRC covers
            for mask in (1, 2, 4, 8, 0x40, 0x80):
                follower = store.managers[-1].get_or_create("f", TopicId(b"f" * 16), 0, TopicConfig())
                follower.truncate_fully_and_start_at(0)
                store.files.flip(path, damaged * size + at, mask)
                follow(leader, follower, room)
                store.files.flip(path, damaged * size + at, mask)
                taken = bytes(store.files.content(f"{follower.directory}/{0:020d}.log"))
                if taken != whole[: len(taken)]:
                    wrong.append((damaged, at, mask, follower.log_end_offset))
    assert wrong == []


@pytest.mark.parametrize("room", [1, 10_000])
def test_an_offset_that_contradicts_the_next_is_not_taken_from_a_compacted_log(
    store: Store, batch: MakeBatch, room: int
) -> None:
    """One that still lies between its neighbours' cannot be told from a gap."""
    compacted = TopicConfig(cleanup_policy=("compact",))
    leader = store.log(config=compacted)
    for number in range(BATCHES):
        raw = bytearray(batch(2).view)
        patch_batch(raw, 0, base_offset=5 * number, leader_epoch=2 if number < 4 else 5)
        assert not isinstance(leader.append_as_follower(bytes(raw), NOW), Refusal)
    path = f"{leader.directory}/{0:020d}.log"
    whole = bytes(store.files.content(path))
    size = len(whole) // BATCHES
    wrong = []
    for damaged in (0, 3, BATCHES - 1):
        for at in range(17):
            for mask in (1, 2, 4, 8, 0x40, 0x80):
                follower = store.managers[-1].get_or_create("f", TopicId(b"f" * 16), 0, compacted)
                follower.truncate_fully_and_start_at(0)
                store.files.flip(path, damaged * size + at, mask)
                base = int.from_bytes(
                    store.files.content(path)[damaged * size : damaged * size + 8], "big", signed=True
                )
                between = damaged * 5 - 3 <= base <= damaged * 5 + 3 * (damaged < BATCHES - 1)
                if not between or base == damaged * 5:
                    follow(leader, follower, room)
                store.files.flip(path, damaged * size + at, mask)
                taken = bytes(store.files.content(f"{follower.directory}/{0:020d}.log"))
                if taken != whole[: len(taken)]:
                    wrong.append((damaged, at, mask, follower.log_end_offset))
    assert wrong == []
