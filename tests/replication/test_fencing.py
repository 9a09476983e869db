"""Requests from the past, by leader epoch, broker epoch or topic, are refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tidelog.model.buffer import Buffer
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import LeaderEpoch, NodeId
from tidelog.proto.calls.api import ListOffsetsPartition
from tidelog.proto.records.batches import patch_batch
from tidelog.proto.records.encoder import encode_values
from tidelog.replication.partition.partition import Fetched
from tidelog.replication.serving.lookups import find_offset
from tidelog.storage.disk.files import SystemFile

from .rig import MakeRig


def test_zombie_leader_is_refused_by_its_followers_and_commits_nothing(rig: MakeRig) -> None:
    """Node 1 was deposed and does not know. Its followers have moved on."""
    r = rig(min_isr=2)
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a")
    r.sync(2, 3)
    r.lead(2, (2, 3), to=(2, 3))
    zombie = r.produce(1, b"zombie", acks=-1)
    assert not isinstance(zombie, Refusal), "it still believes in its ISR"
    for _ in range(3):
        answer = r.ask(3, 1)
        assert answer.error is ErrorCode.UNKNOWN_LEADER_EPOCH
        assert r[3].p.take(answer, r.now_ms) is Fetched.RETRY
    assert r[1].p.high_watermark == 1
    r.wrote(2, b"b")
    r.sync(3)
    r.tell()
    r.sync(1)
    assert r[1].values() == r[2].values() == r[3].values() == [b"a", b"b"]
    assert r[1].p.counts.truncations_below_high_watermark == 0


def test_imported_records_get_the_epoch_under_which_they_are_taken(rig: MakeRig) -> None:
    """Under the epochs of the cluster that they come from, followers would truncate them, or refuse what follows."""
    r = rig()
    r.lead(1, (1, 2))
    raw = encode_values([b"old"], r.now_ms)
    patch_batch(raw, 0, base_offset=3, leader_epoch=77)
    assert not isinstance(r[1].p.import_batches(bytes(raw), r.now_ms, r.now_ms), Refusal)
    assert r[1].p.log.epoch_entries == [(r.state.leader_epoch, 0)]
    r.wrote(1, b"new")
    r.sync(2)
    assert r[2].values() == [b"old", b"new"]


def test_only_what_no_follower_will_read_is_written_past_the_cache(
    rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    past: list[int] = []

    def pwritev_once(file: SystemFile, buffers: Sequence[Buffer], offset: int) -> int:
        past.append(offset)
        return file.pwritev(buffers, offset)

    monkeypatch.setattr(SystemFile, "pwritev_once", pwritev_once)
    r = rig()
    raw = bytes(encode_values([b"old"], r.now_ms))
    for replicas, bulk, found in (((1, 2), True, []), ((1,), False, []), ((1,), True, [2 * len(raw)])):
        r.lead(1, replicas, replicas=tuple(map(NodeId, replicas)))
        end = r[1].p.log.log_end_offset
        data = bytearray(raw)
        patch_batch(data, 0, base_offset=end, leader_epoch=77)
        assert not isinstance(r[1].p.import_batches(bytes(data), r.now_ms, r.now_ms, bulk=bulk), Refusal)
        if (job := r[1].p.log.writing) is not None:
            job.run()
        assert past == found
    assert r[1].values() == [b"old"] * 3


def test_what_a_zombie_leader_still_sends_is_dropped_unread(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"late")
    answer = r.ask(2, 1)
    assert answer.records
    r.lead(3, (2, 3), to=(2, 3))
    assert r[2].p.take(answer, r.now_ms) is Fetched.STALE
    assert r[2].values() == []


def test_a_follower_of_an_older_epoch_is_fenced(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a")
    r.lead(1, (1, 2, 3), to=(1, 3))
    answer = r.ask(2, 1)
    assert answer.error is ErrorCode.FENCED_LEADER_EPOCH
    assert answer.current_leader_epoch == 2
    assert r[2].p.take(answer, r.now_ms) is Fetched.RETRY
    assert r[1].p.high_watermark == 0


def test_a_consumer_of_another_epoch_is_told_which(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1,))
    r.lead(1, (1,))

    def ask(epoch: int) -> ErrorCode:
        return find_offset(r[1].p, ListOffsetsPartition("t", 0, -1, LeaderEpoch(epoch)), False).error

    assert ask(1) is ErrorCode.FENCED_LEADER_EPOCH
    assert ask(2) is ErrorCode.NONE
    assert ask(3) is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_older_news_of_the_controller_changes_nothing(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2, 3))
    old = r.state
    r.lead(2, (1, 2, 3))
    r[1].p.update(old, r.now_ms)
    assert r[1].p.leading is None
    assert r[1].p.leader_epoch == 2
    assert isinstance(r.produce(1, b"x"), Refusal)


def test_a_broker_that_resigned_does_not_lead_on_news_of_the_same_epoch(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2, 3))
    r[1].p.resign()
    r.set_isr(1, 2)
    assert r[1].p.leading is None
    r.lead(1, (1, 2))
    assert r[1].p.leading is not None


def test_an_old_process_of_a_restarted_broker_counts_for_nothing(rig: MakeRig) -> None:
    """The leader has seen the new broker epoch; a fetch of the old process is still under way."""
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"a")
    r.fetch(2)
    old_position = r.position(2)
    old_epoch = r[2].broker_epoch
    r.wipe(2)
    r.ask(2, 1)
    assert r[1].p.high_watermark == 0
    new_epoch, r[2].broker_epoch = r[2].broker_epoch, old_epoch
    answer = r.ask(2, 1, old_position)
    r[2].broker_epoch = new_epoch
    assert answer.error is ErrorCode.STALE_BROKER_EPOCH
    assert r[1].p.high_watermark == 0, "the old process held the record, the broker holds it no more"


def test_a_wiped_disk_under_the_same_id_moves_no_watermark_and_must_catch_up_before_it_joins(rig: MakeRig) -> None:
    r = rig(min_isr=1)
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a")
    r.wrote(1, b"b")
    r.sync(2, 3)
    r.wipe(2)
    r.set_isr(1, 3)  # the controller: no clean-shutdown epoch, out of the ISR
    r.fetch(2, bytes_max=1)
    assert r[1].p.high_watermark == 2
    assert r[1].p.propose_expansion(NodeId(2)) is None
    r.fetch(2, bytes_max=1)
    assert r[1].p.propose_expansion(NodeId(2)) is None, "it has one of two committed records"
    r.sync(2)
    assert r[1].p.propose_expansion(NodeId(2)) is not None
    assert r[2].values() == [b"a", b"b"]


def test_a_wiped_disk_that_is_still_in_the_isr_does_not_pull_the_high_watermark_back(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"a")
    r.sync(2)
    r.wipe(2)
    r.ask(2, 1)
    assert r[1].p.high_watermark == 1
    r.wrote(1, b"b")
    assert r[1].p.high_watermark == 1


def test_a_failed_directory_takes_the_partition_offline(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2, 3))
    r[1].p.fail()
    outcome = r.produce(1, b"a")
    assert isinstance(outcome, Refusal)
    assert outcome.code is ErrorCode.KAFKA_STORAGE_ERROR
    r.lead(1, (1, 2, 3))
    assert r[1].p.leading is None
