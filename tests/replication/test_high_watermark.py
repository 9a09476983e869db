"""When a record is committed, and how far anybody may read."""

from __future__ import annotations

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NO_OFFSET, LeaderEpoch, Offset
from tidelog.proto.calls.api import (
    AFTER_BYTES_TIMESTAMP,
    EpochEnd,
    EpochEndPartition,
    ListOffsetsPartition,
    ListOffsetsResult,
)
from tidelog.replication.partition.partition import RoleChange
from tidelog.replication.serving.lookups import find_epoch_end, find_offset
from tidelog.storage.producers.append_checks import LogAppend

from .rig import MakeRig


def refused(outcome: object, code: ErrorCode) -> bool:
    return isinstance(outcome, Refusal) and outcome.code is code


def test_a_leader_alone_commits_at_once(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1,))
    r.wrote(1, b"a", b"b")
    assert r[1].p.high_watermark == 2


def test_committed_is_what_the_slowest_in_sync_replica_has_asked_past(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a")
    r.fetch(2)
    r.fetch(3)
    assert r[1].p.high_watermark == 0, "they hold it, but have not said so"
    r.fetch(2)
    assert r[1].p.high_watermark == 0
    r.fetch(3)
    assert r[1].p.high_watermark == 1


def test_followers_hear_of_the_high_watermark_and_hold_it_to_their_own_end(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1,))
    r.wrote(1, b"a")
    r.wrote(1, b"b")
    r.fetch(2, bytes_max=1)
    assert (r[2].log.log_end_offset, r[2].p.high_watermark) == (1, 1)
    assert (r[1].p.lag, r[2].p.lag, r[3].p.lag) == (0, 1, 0), "it heard of two; node 3 has not asked"
    r.sync(2)
    assert r[2].p.high_watermark == 2
    assert r[2].p.lag == 0


def test_a_follower_of_a_new_leader_has_no_lag_until_it_hears_of_one(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1,))
    r.wrote(1, b"a")
    r.wrote(1, b"b")
    r.fetch(2, bytes_max=1)
    assert r[2].p.lag == 1
    r.lead(3, (3,))
    assert r[2].p.lag == 0
    r.lead(2, (2,))
    assert r[2].p.lag == 0


def test_high_watermark_never_moves_back_when_a_new_leader_knows_less(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a")
    r.sync(2)
    r.fetch(3)
    r.fetch(3)
    r.fetch(2)
    assert (r[2].p.high_watermark, r[3].p.high_watermark) == (1, 1)
    r.restart(3)
    assert r[3].p.high_watermark == 0
    r.lead(3, (2, 3))
    r.fetch(2)
    assert r[2].p.high_watermark == 1, "what is committed stays so for those who know"


def test_latest_is_not_told_before_the_new_epoch_is_reached(rig: MakeRig) -> None:
    """KIP-207."""
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"a")
    r.fetch(2)
    r.lead(2, (1, 2))
    assert refused(r[2].p.latest_offset(False), ErrorCode.OFFSET_NOT_AVAILABLE)
    asked = ListOffsetsPartition("t", 0, -1)
    assert find_offset(r[2].p, asked, False).error is ErrorCode.OFFSET_NOT_AVAILABLE
    assert find_offset(r[2].p, ListOffsetsPartition("t", 0, -2), False).offset == 0
    r.fetch(1)
    assert r[2].p.latest_offset(False) == 1
    assert find_offset(r[2].p, asked, False).offset == 1


def test_offsets_by_time_end_at_the_high_watermark(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"a")
    first_ms = r.now_ms
    r.sync(2)
    r.now_ms += 10
    r.wrote(1, b"b")

    def at(timestamp: int) -> ListOffsetsResult:
        return find_offset(r[1].p, ListOffsetsPartition("t", 0, timestamp), False)

    assert (at(first_ms).offset, at(first_ms).timestamp, at(first_ms).leader_epoch) == (0, first_ms, 1)
    assert (at(r.now_ms).error, at(r.now_ms).offset) == (ErrorCode.NONE, NO_OFFSET)
    r.sync(2)
    assert at(r.now_ms).offset == 1
    assert at(-3).offset == 1
    assert at(-4).offset == at(-2).offset == 0  # all that there is lies on the broker's own disks
    assert (at(-5).error, at(-5).offset) == (ErrorCode.NONE, NO_OFFSET)
    assert (at(-6).error, at(-6).offset) == (ErrorCode.NONE, NO_OFFSET)
    assert at(-7).error is ErrorCode.UNSUPPORTED_VERSION


def test_epoch_ends(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1,))
    r.wrote(1, b"a", b"b")
    r.lead(2, (2,))
    r.lead(1, (1,))
    r.wrote(1, b"c")

    def end(epoch: int, current: int = -1) -> EpochEnd:
        asked = EpochEndPartition(r.state.topic_id, 0, LeaderEpoch(epoch), LeaderEpoch(current))
        return find_epoch_end(r[1].p, asked)

    assert (end(1).leader_epoch, end(1).end_offset) == (1, 2)
    assert (end(2).leader_epoch, end(2).end_offset) == (1, 2)
    assert (end(3).leader_epoch, end(3).end_offset) == (3, 3)
    assert (end(4).leader_epoch, end(4).end_offset) == (-1, -1)
    assert end(1, current=2).error is ErrorCode.FENCED_LEADER_EPOCH
    assert end(1, current=4).error is ErrorCode.UNKNOWN_LEADER_EPOCH
    asked = EpochEndPartition(r.state.topic_id, 0, LeaderEpoch(1))
    assert find_epoch_end(r[2].p, asked).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


# --- min.insync.replicas ------------------------------------------------------------------------


def test_acks_all_needs_the_isr_that_was_asked_for_and_acks_1_does_not(rig: MakeRig) -> None:
    r = rig(min_isr=2)
    r.lead(1, (1,))
    assert refused(r.produce(1, b"a"), ErrorCode.NOT_ENOUGH_REPLICAS)
    assert r[1].log.log_end_offset == 0
    assert isinstance(r.produce(1, b"a", acks=1), LogAppend)


def test_what_is_committed_while_the_isr_has_become_too_small_is_said_to_be(rig: MakeRig) -> None:
    r = rig(min_isr=2)
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a")
    r.sync(2, 3)
    assert r[1].p.commit_error() is ErrorCode.NONE
    r.set_isr(1)
    assert r[1].p.commit_error() is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    r.lead(2, (1, 2))
    assert r[1].p.commit_error() is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_min_isr_is_never_more_than_there_are_replicas(rig: MakeRig) -> None:
    r = rig(min_isr=5)
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a")
    r.sync(2, 3)
    assert r[1].p.high_watermark == 1


def test_kip966_the_high_watermark_stands_still_below_min_isr(rig: MakeRig) -> None:
    """The rule that makes eligible leader replicas safe: nobody alone commits."""
    r = rig(min_isr=2)
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a")
    r.sync(2, 3)
    r.fenced.add(r[3].node)
    r.set_isr(1)
    r.wrote(1, b"b", acks=1)
    r.fetch(2)
    r.fetch(2)
    assert r[1].p.high_watermark == 1
    r.set_isr(1, 2)
    assert r[1].p.high_watermark == 2


def test_kip966_last_replica_standing_cannot_lose_the_tail(rig: MakeRig) -> None:
    """ISR {1,2,3} → {1}: the others are eligible leaders. Node 1 dies with its disk; 2 leads from the
    ELR: it has every record that was ever committed, since alone node 1 committed none."""
    r = rig(min_isr=2)
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a")
    r.sync(2, 3)
    r.set_isr(1)
    r.wrote(1, b"tail", acks=1)
    committed = r[1].committed()
    assert committed == [b"a"]
    r.wipe(1)
    r.lead(2, (2,))
    assert r[2].values()[: len(committed)] == committed
    r.sync(1)
    assert r[1].values() == [b"a"]


def test_without_the_kip966_rule_the_scenario_would_commit_the_tail(rig: MakeRig) -> None:
    """The same schedule with min.insync.replicas=1 does commit it: the rule, not luck, is what holds above."""
    r = rig(min_isr=1)
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a")
    r.sync(2, 3)
    r.now_ms += 60_000
    r.set_isr(1)
    r.wrote(1, b"tail", acks=1)
    assert r[1].committed() == [b"a", b"tail"]


def test_a_busy_leader_alone_waits_for_a_replica_that_keeps_up(rig: MakeRig) -> None:
    """Else its high watermark would always be its end, which a follower of a busy leader never is at."""
    r = rig()
    r.lead(1, (1,))
    r.wrote(1, b"a")
    r.fetch(2)
    r.fetch(2)
    assert r[1].p.high_watermark == 1
    r.wrote(1, b"b")
    assert r[1].p.high_watermark == 1, "node 2 keeps up: it may join, so it is waited for"
    r.now_ms += 30_001
    assert r[1].p.advance(r.now_ms)
    assert r[1].p.high_watermark == 2, "it does not keep up any more"


def test_a_fenced_replica_is_not_waited_for(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1,))
    r.wrote(1, b"a")
    r.fetch(2)
    r.fetch(2)
    r.fenced.add(r[2].node)
    r.wrote(1, b"b")
    assert r[1].p.high_watermark == 2


def test_role_changes_are_told_apart(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2, 3), to=())
    assert r[1].p.update(r.state, r.now_ms) is RoleChange.LEADER
    assert r[2].p.update(r.state, r.now_ms) is RoleChange.FOLLOWER
    assert r[1].p.update(r.state, r.now_ms) is RoleChange.SAME
    r.set_isr(1, 2, to=())
    assert r[1].p.update(r.state, r.now_ms) is RoleChange.ISR
    assert r[2].p.update(r.state, r.now_ms) is RoleChange.SAME
    r.lead(-1, (1,), to=())
    assert r[1].p.update(r.state, r.now_ms) is RoleChange.IDLE
    assert refused(r.produce(1, b"x"), ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_an_offset_by_bytes_is_the_end_of_the_whole_batches_that_fit(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2))
    sizes = []
    for values in ((b"a",), (b"b", b"c"), (b"d" * 500,), (b"e",)):  # batches end at 1, 3, 4 and 5
        before = r[1].log.size_bytes
        r.wrote(1, *values)
        sizes.append(r[1].log.size_bytes - before)
    r.fetch(2)

    def after(start: int, size: int) -> ListOffsetsResult:
        asked = ListOffsetsPartition("t", 0, AFTER_BYTES_TIMESTAMP, start_offset=Offset(start), bytes_max=size)
        return find_offset(r[1].p, asked, True)

    assert after(0, 10**6).offset == 0, "nothing is committed yet"
    r.fetch(2)
    a, bc, d, e = sizes
    assert [after(0, size).offset for size in (1, a, a + bc - 1, a + bc, a + bc + d, 10**6)] == [1, 1, 1, 3, 4, 5]
    assert [after(start, bc).offset for start in (1, 2, 3, 4, 5, 9)] == [3, 3, 4, 5, 5, 9]
    r.wrote(1, b"not committed")
    assert after(3, d + e + 10**6).offset == 5
    for start, size in ((-1, 1), (0, 0)):
        assert after(start, size).error is ErrorCode.INVALID_REQUEST
