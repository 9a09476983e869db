"""In-sync replicas: leaving, joining, and that a change counts only when it is committed."""

from __future__ import annotations

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import BrokerEpoch, NodeId, PartitionEpoch
from tidelog.proto.calls.controller_api import IsrMember
from tidelog.replication.partition.isr import REFUSALS_AFTER_UNKNOWN, IsrState

from .rig import MakeRig

LAG_MS = 30_000


def members(*nodes: int) -> tuple[IsrMember, ...]:
    return tuple(IsrMember(NodeId(node), BrokerEpoch(100 + node)) for node in nodes)


def isr(*nodes: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(node) for node in nodes)


def test_a_laggard_leaves_after_the_lag_time_and_not_before(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a")
    r.sync(2)
    r.now_ms += LAG_MS
    r.fetch(2)
    assert r[1].p.propose_shrink(r.now_ms) is None
    r.now_ms += 1
    proposal = r[1].p.propose_shrink(r.now_ms)
    assert proposal is not None
    assert proposal.isr == isr(1, 2)


def test_a_replica_at_the_end_is_in_sync_however_long_nothing_was_written(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a")
    r.sync(2, 3)
    r.now_ms += 10 * LAG_MS
    assert r[1].p.propose_shrink(r.now_ms) is None
    assert r[1].leading.is_settled()


def test_after_a_long_silence_a_follower_that_was_heard_of_has_its_whole_lag_time(rig: MakeRig) -> None:
    """An idle partition is not named in fetches; that the follower fetched at all is what counts."""
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"a")
    r.sync(2)
    r.now_ms += 10 * LAG_MS
    r[2].contact.last_fetch_ms = r.now_ms - 100
    r.wrote(1, b"b")
    r.now_ms += LAG_MS - 100
    assert r[1].p.propose_shrink(r.now_ms) is None
    r.now_ms += 1
    assert r[1].p.propose_shrink(r.now_ms) is not None


def test_a_follower_that_keeps_the_pace_without_ever_reaching_the_end_stays(rig: MakeRig) -> None:
    """Each fetch reaches what was the end at the fetch before (``Replica.isCaughtUp``)."""
    r = rig()
    r.lead(1, (1, 2))
    for _ in range(10):
        r.wrote(1, b"x")
        r.wrote(1, b"x")
        r.fetch(2)
        r.wrote(1, b"x")
        r.now_ms += LAG_MS // 3
        assert r[1].p.propose_shrink(r.now_ms) is None


def test_a_replica_joins_when_it_has_reached_the_high_watermark(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"a")
    r.wrote(1, b"b")
    r.sync(2)
    r.fetch(3, bytes_max=1)
    r.fetch(3, bytes_max=1)
    assert r[1].p.propose_expansion(NodeId(3)) is None
    r.fetch(3)
    proposal = r[1].p.propose_expansion(NodeId(3))
    assert proposal is not None
    assert proposal.isr == isr(1, 2, 3)


def test_a_replica_does_not_join_before_the_start_of_the_epoch(rig: MakeRig) -> None:
    """The new leader's high watermark may still be behind records that are committed."""
    r = rig()
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a")
    r.wrote(1, b"b")
    r.fetch(2)
    r.lead(2, (1, 2))
    assert r[2].p.high_watermark == 0
    r.fetch(3, bytes_max=1)
    r.fetch(3, bytes_max=1)
    assert r[2].p.propose_expansion(NodeId(3)) is None
    r.fetch(3)
    assert r[2].p.propose_expansion(NodeId(3)) is not None


@pytest.mark.parametrize("why", ["fenced", "older broker epoch"])
def test_a_replica_that_metadata_does_not_confirm_does_not_join(rig: MakeRig, why: str) -> None:
    """KIP-841 and KIP-903."""
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"a")
    r.sync(2, 3)
    if why == "fenced":
        r.fenced.add(NodeId(3))
    else:
        r[3].broker_epoch = BrokerEpoch(r[3].broker_epoch + 1)
    assert r[1].p.propose_expansion(NodeId(3)) is None


def test_a_node_that_is_no_replica_is_refused(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2), replicas=isr(1, 2), to=(1, 2))
    r.wrote(1, b"a")
    item = r.position(2)
    answer = r.ask(3, 1, item)
    assert answer.error is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert not answer.records


def test_while_an_expansion_is_in_flight_the_joiner_counts_for_the_high_watermark(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"a")
    r.sync(2, 3)
    assert r[1].p.propose_expansion(NodeId(3)) is not None
    r.fenced.add(NodeId(3))  # so that it is not waited for as one that keeps up
    r.wrote(1, b"b")
    r.sync(2)
    assert r[1].p.high_watermark == 1
    r.fetch(3)
    r.fetch(3)
    assert r[1].p.high_watermark == 2


def test_while_a_shrink_is_in_flight_the_laggard_still_counts(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2, 3))
    r.wrote(1, b"a")
    r.sync(2)
    r.now_ms += LAG_MS + 1
    r.fetch(2)
    proposal = r[1].p.propose_shrink(r.now_ms)
    assert proposal is not None
    r[1].p.advance(r.now_ms)
    assert r[1].p.high_watermark == 0, "asked for is not committed"
    assert r[1].p.isr_committed(isr(1, 2), r.state.leader_epoch, PartitionEpoch(r.state.partition_epoch + 1))
    r[1].p.advance(r.now_ms)
    assert r[1].p.high_watermark == 1


def test_an_expansion_does_not_count_for_min_isr_before_it_is_committed(rig: MakeRig) -> None:
    r = rig(min_isr=2)
    r.lead(1, (1,))
    r.wrote(1, b"a", acks=1)
    r.sync(2)
    proposal = r[1].p.propose_expansion(NodeId(2))
    assert proposal is not None
    r[1].p.advance(r.now_ms)
    assert r[1].p.high_watermark == 0
    r.set_isr(1, 2)
    assert r[1].p.high_watermark == 1


def test_isr_news_of_an_older_partition_epoch_changes_nothing(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2, 3))
    old = r.state
    r.set_isr(1, 2)
    r[1].p.update(old, r.now_ms)
    assert r[1].leading.isr.committed == isr(1, 2)
    assert not r[1].p.isr_committed(isr(1, 2, 3), r.state.leader_epoch, old.partition_epoch)
    assert r[1].leading.isr.committed == isr(1, 2)


def test_an_answer_for_an_earlier_leadership_changes_nothing(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2, 3))
    earlier = r.state.leader_epoch
    r.lead(2, (1, 2, 3))
    r.lead(1, (1, 2, 3))
    assert not r[1].p.isr_committed(
        isr(
            1,
        ),
        earlier,
        PartitionEpoch(99),
    )
    assert r[1].leading.isr.committed == isr(1, 2, 3)


def test_metadata_that_repeats_the_committed_isr_does_not_end_a_proposal(rig: MakeRig) -> None:
    r = rig()
    r.lead(1, (1, 2))
    r.wrote(1, b"a")
    r.sync(2, 3)
    proposal = r[1].p.propose_expansion(NodeId(3))
    r[1].p.update(r.state, r.now_ms)
    assert r[1].leading.isr.proposal is proposal


def test_after_an_unclean_election_the_leader_says_that_it_recovered(rig: MakeRig) -> None:
    """KIP-704."""
    r = rig()
    r.lead(3, (3,), leader_recovery=True)
    proposal = r[3].p.propose_recovered()
    assert proposal is not None
    assert proposal.isr == isr(3)
    r.lead(1, (1,), leader_recovery=False)
    assert r[1].p.propose_recovered() is None


def test_a_joiner_that_lost_its_disk_while_it_was_proposed(rig: MakeRig) -> None:
    """Found by a random schedule: a retry that names the joiner's *present* broker epoch vouches for an empty disk."""
    r = rig()
    r.lead(1, (1,))
    r.wrote(1, b"a")
    r.sync(2)
    proposal = r[1].p.propose_expansion(NodeId(2))
    assert proposal is not None
    before = r[2].broker_epoch
    r.wipe(2)
    r.ask(2, 1)
    assert r[1].leading.isr.proposal is proposal
    assert proposal.members[-1] == IsrMember(NodeId(2), before)
    assert r.broker_epoch_of(NodeId(2)) != before, "so the controller refuses"


# --- the state alone --------------------------------------------------------------------------


def test_a_refusal_frees_the_proposal() -> None:
    state = IsrState(isr(1, 2), PartitionEpoch(4))
    proposal = state.propose(members(1, 2, 3))
    assert state.maximal == {1, 2, 3}
    assert state.refused(proposal)
    assert state.proposal is None
    assert state.maximal == {1, 2}


def test_a_refusal_after_an_unknown_outcome_does_not_until_it_has_repeated_itself() -> None:
    state = IsrState(isr(1, 2), PartitionEpoch(4))
    proposal = state.propose(members(1, 2, 3))
    proposal.uncertain = True
    for _ in range(REFUSALS_AFTER_UNKNOWN - 1):
        assert not state.refused(proposal)
        assert state.maximal == {1, 2, 3}
    assert state.refused(proposal)
    assert state.maximal == {1, 2}


def test_a_refusal_of_an_earlier_proposal_frees_nothing() -> None:
    state = IsrState(isr(1, 2), PartitionEpoch(4))
    earlier = state.propose(members(1, 2, 3))
    state.commit(isr(1, 2), PartitionEpoch(5))
    state.propose(members(1))
    assert not state.refused(earlier)
    assert state.proposal is not None


def test_commit_takes_what_the_controller_named_not_what_was_asked_for() -> None:
    state = IsrState(isr(1, 2), PartitionEpoch(4))
    state.propose(members(1, 2, 3))
    assert state.commit(isr(1), PartitionEpoch(6))
    assert (state.committed, state.maximal, state.proposal) == (isr(1), frozenset({NodeId(1)}), None)
    assert not state.commit(isr(1, 2, 3), PartitionEpoch(5))
