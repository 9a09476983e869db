"""KIP-101, KIP-279 and KIP-595: a follower cuts exactly what its leader does not have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import LeaderEpoch, Offset
from tidelog.replication.partition.partition import Fetched

from .rig import MakeRig


def test_kip101_scenario_1_a_follower_that_restarts_does_not_lose_what_it_acknowledged(rig: MakeRig) -> None:
    """B holds m2 but has not heard that it is committed; it restarts, then A dies at once.

    Cutting to its own high watermark, as before KIP-101, B would have lost m2.
    """
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"m1")
    r.sync(2)
    r.wrote(1, b"m2")
    r.fetch(2)
    r.fetch(2)
    assert r[1].p.high_watermark == 2
    r.restart(2, checkpointed_high_watermark=1)
    assert r[2].values() == [b"m1", b"m2"]
    r.lead(2, (2,), to=(2,))
    assert r[2].values() == [b"m1", b"m2"]
    r.tell()
    r.fetch(1)
    assert r[1].values() == [b"m1", b"m2"]


def test_kip101_scenario_2_two_replicas_that_lost_power_do_not_diverge(rig: MakeRig) -> None:
    """A wrote m1, m2; B, which has m1 alone, comes back first, leads and writes m3 at the offset of m2."""
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"m1")
    r.sync(2)
    r.wrote(1, b"m2")
    r.lead(2, (2,), to=(2,))
    r.wrote(2, b"m3")
    r.restart(1)
    answer = r.ask(1, 2)
    assert (answer.diverging_epoch, answer.diverging_end_offset) == (1, 1)
    r.sync(1)
    assert r[1].values() == r[2].values() == [b"m1", b"m3"]


def test_kip279_fast_leader_changes_leave_no_difference(rig: MakeRig) -> None:
    """The leader's answer names an epoch that the follower never had: it goes back one epoch at a time.

    Node 1 writes under epoch 1 what nobody fetches; node 2 writes under epoch 2 what nobody fetches;
    node 1 leads again under epoch 3; node 2 follows, whose last epoch, 2, node 1 does not know.
    """
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"a")
    r.sync(2)
    r.wrote(1, b"only-1", b"only-1b")
    r.lead(2, (2,), to=(2, 3))
    r.wrote(2, b"only-2")
    r.lead(1, (1,), to=(1, 2, 3))
    r.wrote(1, b"c")
    answer = r.ask(2, 1)
    assert (answer.diverging_epoch, answer.diverging_end_offset) == (1, 3)
    r.sync(2)
    assert r[2].values() == r[1].values() == [b"a", b"only-1", b"only-1b", b"c"]


def test_kip279_follower_without_the_named_epoch_cuts_to_its_own_epoch_below(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a")
    r.sync(2, 3)
    r.lead(2, (2,), to=(2,))  # epoch 2, at node 2 alone
    r.wrote(2, b"two-1", b"two-2")
    r.lead(3, (3,), to=(1, 3))  # epoch 3, at 3 and 1
    r.wrote(3, b"three")
    r.sync(1)
    r.lead(1, (1, 3))  # epoch 4: node 1 knows the epochs 1, 3 and 4, node 2 knows 1 and 2
    r.wrote(1, b"four")
    answer = r.ask(2, 1)
    assert (answer.diverging_epoch, answer.diverging_end_offset) == (1, 1)
    r.sync(2)
    assert r[2].values() == r[1].values() == [b"a", b"three", b"four"]


def test_kip279_an_epoch_that_only_the_leader_knows_and_that_ends_later_than_our_log(rig: MakeRig) -> None:
    """To cut to the leader's end of that epoch would cut nothing, for ever."""
    r = rig()
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a")
    r.sync(2, 3)
    r.lead(3, (1, 2, 3), to=(1, 3))
    for value in (b"x1", b"x2", b"x3", b"x4"):
        r.wrote(3, value)
    r.fetch(1)
    r.lead(2, (1, 2, 3), to=(2,))
    r.wrote(2, b"y1")
    r.wrote(2, b"y2")
    r.lead(1, (1, 2, 3))
    answer = r.ask(2, 1)
    assert (answer.diverging_epoch, answer.diverging_end_offset) == (2, 5)
    assert r[2].p.take(answer, r.now_ms) is Fetched.MOVED
    assert r[2].values() == [b"a"]
    r.sync(2, 3)
    assert r[2].values() == r[3].values() == [b"a", b"x1", b"x2", b"x3", b"x4"]


def test_an_epoch_that_cannot_be_is_cut_away(rig: MakeRig) -> None:
    """A bit flipped in the header of a batch, whose CRC does not cover the leader epoch: the follower did not get
    on again. Found by the simulation (``unclean``, seed 180)."""
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"a")
    r.wrote(1, b"b")
    r.sync(2)
    r[2].p.log.assign_epoch_start(1 << 22, 1)
    r.wrote(1, b"c")
    answer = r.ask(2, 1)
    assert (answer.diverging_epoch, answer.diverging_end_offset) == (1, 3)
    assert r[2].p.take(answer, r.now_ms) is Fetched.MOVED
    assert r[2].values() == [b"a"]
    r.sync(2)
    assert r[2].values() == [b"a", b"b", b"c"]


def test_a_leader_that_wrote_nothing_in_its_epoch_can_follow_again(rig: MakeRig) -> None:
    """Its epoch cache names an epoch that no record has and the new leader never knew."""
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"a")
    r.sync(2)
    r.lead(2, (1, 2), to=(2,))
    r.lead(1, (1, 2), to=(1, 2))
    r.wrote(1, b"b")
    r.sync(2)
    assert r[2].values() == [b"a", b"b"]
    assert r[2].p.counts.truncations_below_high_watermark == 0


def test_a_batch_that_begins_before_the_diverging_end_goes_as_a_whole(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"a", b"b", b"c")
    r.sync(2)
    r.lead(2, (2,), to=(2,))
    r.lead(1, (1,))
    r.wrote(1, b"d")
    r.sync(2)
    assert r[2].values() == [b"a", b"b", b"c", b"d"]


def test_a_diverging_log_is_cut_where_it_diverges_and_not_at_the_high_watermark(rig: MakeRig) -> None:
    """Records between them may be committed without this replica's knowledge, and it may be the next leader."""
    r = rig()
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a")
    r.fetch(2)
    r.fetch(3)
    r.wrote(1, b"b", acks=1)
    r.fetch(3)
    r.ask(2, 1)
    assert (r[1].p.high_watermark, r[3].p.high_watermark) == (1, 0)
    r.lead(2, (2, 3))
    assert r.fetch(3) is Fetched.MOVED
    assert r[3].values() == [b"a"]
    r.lead(3, (3,))
    assert r[3].values() == [b"a"]


def test_records_of_a_later_epoch_than_the_one_followed_are_left_out(rig: MakeRig) -> None:
    """KAFKA-18723: an answer that was read after its leader had been elected again."""
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"a")
    r.lead(1, (1, 2), to=(1,))
    r.wrote(1, b"b")
    answer = r.ask(2, 1, replace(r.position(2), current_leader_epoch=LeaderEpoch(2)))
    assert r[2].p.take(replace(answer, current_leader_epoch=LeaderEpoch(1)), r.now_ms) is Fetched.MOVED
    assert r[2].values() == [b"a"]


def test_a_follower_never_cuts_at_its_high_watermark_when_it_restarts_or_changes_leader(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a", acks=1)
    r.fetch(2)
    r.fetch(3)
    assert r[2].p.high_watermark == 0
    r.restart(2)
    assert r[2].log.log_end_offset == 1
    r.lead(3, (2, 3))
    assert r[2].log.log_end_offset == 1


def test_a_follower_past_the_leaders_end_without_shared_epochs_cuts_to_it(rig: MakeRig) -> None:
    """An unclean election of a replica that knows no epoch at all."""
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"a", b"b")
    r.sync(2)
    r.lead(3, (3,), leader_recovery=True)
    r.wrote(3, b"x")
    r.sync(1, 2)
    assert r[1].values() == r[2].values() == r[3].values() == [b"x"]
    assert r[1].p.counts.truncations_below_high_watermark == 1
    assert r[1].p.high_watermark <= 1


def test_a_follower_before_the_leaders_start_begins_again_there(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"a")
    r.wrote(1, b"b")
    r.sync(2)
    r[1].log.advance_log_start(2)
    r.wrote(1, b"c")
    answer = r.ask(3, 1)
    assert answer.error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert (answer.log_start_offset, answer.diverging_end_offset) == (2, 3)
    assert r[3].p.take(answer, r.now_ms) is Fetched.MOVED
    assert (r[3].log.log_start_offset, r[3].log.log_end_offset, r[3].p.high_watermark) == (2, 2, 2)
    r.sync(3)
    assert r[3].values() == [b"c"]


def test_log_start_follows_the_leaders(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"a")
    r.wrote(1, b"b")
    r.sync(2)
    r[1].log.advance_log_start(1)
    assert r.fetch(2) is Fetched.MOVED
    assert r[2].log.log_start_offset == 1


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_a_diverging_position_counts_for_nothing(rig: MakeRig, offset: int) -> None:
    r = rig()
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a")
    r.sync(2, 3)
    r.wrote(1, b"b")
    r.lead(2, (1, 2, 3), to=(2, 3))
    r.wrote(2, b"c")
    r.sync(3)
    r.tell((1,))
    before = r[2].p.high_watermark
    r.ask(1, 2)
    leading = r[2].p.leading
    assert leading is not None
    assert leading.followers[r[1].node].log_end_offset == -1
    assert r[2].p.high_watermark == before
    assert isinstance(leading.agrees(Offset(9 + offset), LeaderEpoch(-1)), Refusal)
