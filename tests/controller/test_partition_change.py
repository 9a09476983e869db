"""Elections, ISR and ELR of one partition. Cases: Kafka's ``PartitionChangeBuilderTest`` and KIP-966."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.metadata_quorum.image_change import merged
from tidelog.metadata_quorum.partition_change import Election, change_partition
from tidelog.model.ids import (
    UNASSIGNED_DIRECTORY,
    DirectoryId,
    LeaderEpoch,
    NodeId,
    PartitionEpoch,
    TopicId,
)
from tidelog.proto.metadata import PartitionRecord


def nodes(*ids: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(number) for number in ids)


def partition(
    isr: tuple[int, ...],
    leader: int,
    *,
    elr: tuple[int, ...] = (),
    last_known: tuple[int, ...] = (),
    replicas: tuple[int, ...] = (1, 2, 3),
    recovery: bool = False,
) -> PartitionRecord:
    return PartitionRecord(
        topic_id=TopicId(bytes(15) + b"\x07"),
        partition=0,
        replicas=nodes(*replicas),
        isr=nodes(*isr),
        eligible_leader_replicas=nodes(*elr),
        last_known_elr=nodes(*last_known),
        removing_replicas=(),
        adding_replicas=(),
        leader=NodeId(leader),
        leader_epoch=LeaderEpoch(5),
        partition_epoch=PartitionEpoch(9),
        leader_recovery=recovery,
        directories=tuple(UNASSIGNED_DIRECTORY for _ in replicas),
    )


def change(before: PartitionRecord, live: Collection[int], *, min_isr: int = 2, **more: Any) -> PartitionRecord:
    """Return the partition afterwards."""
    for key in ("isr", "unclean", "wiped"):
        if key in more:
            more[key] = nodes(*more[key])
    record = change_partition(before, can_lead=lambda node: node in live, min_isr=min_isr, **more)
    return before if record is None else merged(before, record)


def state(after: PartitionRecord) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(leader, ISR, ELR, last known leader)"""
    return after.leader, after.isr, after.eligible_leader_replicas, after.last_known_elr


ONLINE, PREFERRED, UNCLEAN = Election.ONLINE, Election.PREFERRED, Election.UNCLEAN


@pytest.mark.parametrize(
    ("before", "live", "how", "after"),
    [
        # Nothing to do: no record, no epoch.
        (partition((1, 2, 3), 1), (1, 2, 3), {}, (1, (1, 2, 3), (), ())),
        # The leader is gone: the first live member of the ISR leads.
        (partition((1, 2, 3), 1), (2, 3), {"isr": (2, 3)}, (2, (2, 3), (), ())),
        (partition((3, 2), 1), (2, 3), {}, (2, (3, 2), (), ())),
        (partition((1, 2), 1), (1, 2), {"isr": (2,), "min_isr": 1}, (2, (2,), (), ())),
        # A follower leaves; the leader stays.
        (partition((1, 2, 3), 1), (1, 3), {"isr": (1, 3)}, (1, (1, 3), (), ())),
        # Below min ISR: who leaves is an eligible leader.
        (partition((1, 2), 1), (1,), {"isr": (1,)}, (1, (1,), (2,), ())),
        # Two rounds: ELR members stay until the ISR is big enough again.
        (partition((1,), 1, elr=(2,)), (), {"isr": ()}, (-1, (), (1, 2), (1,))),
        (partition((1,), 1, elr=(2,)), (1, 3), {"isr": (1, 3)}, (1, (1, 3), (), ())),
        # Elected from the ELR: alone in the ISR, no recovery.
        (partition((), -1, elr=(1, 2), last_known=(1,)), (2,), {}, (2, (2,), (1,), ())),
        # The ELR counts only while the ISR is empty.
        (partition((3,), 3, elr=(1, 2)), (1, 2), {"isr": (3,)}, (-1, (3,), (1, 2), ())),
        # An unclean stop takes one out of ISR and ELR.
        (partition((1, 2), 1), (2,), {"unclean": (1,)}, (2, (2,), (), ())),
        (partition((1,), 1, elr=(2,)), (), {"unclean": (1,)}, (-1, (), (2,), (1,))),
        (partition((), -1, elr=(2,), last_known=(1,)), (), {"unclean": (2,)}, (-1, (), (), (1,))),
        # Nobody is eligible: the last known leader comes back, if it is live.
        (partition((), -1, last_known=(1,)), (1, 2), {}, (1, (1,), (), ())),
        (partition((), -1, last_known=(1,)), (2, 3), {}, (-1, (), (), (1,))),
        # Not while somebody is eligible, though not live.
        (partition((), -1, elr=(2,), last_known=(1,)), (1,), {}, (-1, (), (2,), (1,))),
        # ... unless unclean elections are allowed.
        (partition((), -1, elr=(2,), last_known=(1,)), (1, 3), {"election": UNCLEAN}, (1, (1,), (), ())),
        (partition((1,), 1), (2, 3), {"isr": (), "election": UNCLEAN}, (2, (2,), (), ())),
        # A wiped disk: no last known leader any more.
        (partition((1,), 1), (), {"wiped": (1,)}, (-1, (), (), ())),
        (partition((), -1, last_known=(1,)), (1,), {"wiped": (1,)}, (-1, (), (), ())),
        # Preferred: the first replica, if it is in the ISR and live.
        (partition((1, 2, 3), 2), (1, 2, 3), {"election": PREFERRED}, (1, (1, 2, 3), (), ())),
        (partition((2, 3), 2), (1, 2, 3), {"election": PREFERRED}, (2, (2, 3), (), ())),
        (partition((1, 2, 3), 2), (2, 3), {"election": PREFERRED}, (2, (1, 2, 3), (), ())),
        # A leader of an ISR as large as min ISR needs no ELR.
        (partition((), -1, elr=(1, 2)), (1,), {"min_isr": 1}, (1, (1,), (), ())),
    ],
)
def test_change(
    before: PartitionRecord,
    live: tuple[int, ...],
    how: dict[str, Any],
    after: tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> None:
    changed = change(before, live, **how)
    assert state(changed) == after
    if changed is not before:
        assert changed.partition_epoch == before.partition_epoch + 1
    assert changed.leader_epoch == before.leader_epoch + (changed.leader != before.leader)


def test_unclean_election_marks_recovery_until_the_leader_says_it_is_done() -> None:
    """KIP-704."""
    elected = change(partition((1,), 1), (2, 3), isr=(), election=UNCLEAN)
    assert elected.leader_recovery
    assert change(elected, (2, 3), isr=(2, 3)).leader_recovery
    recovered = change(elected, (2, 3), isr=(2, 3), recovered=True)
    assert not recovered.leader_recovery
    assert recovered.isr == (2, 3)


def test_election_of_the_last_known_leader_marks_recovery() -> None:
    assert change(partition((), -1, last_known=(1,)), (1,)).leader_recovery


def test_clean_election_does_not_mark_recovery() -> None:
    assert not change(partition((1, 2, 3), 1), (2, 3), isr=(2, 3)).leader_recovery
    assert not change(partition((), -1, elr=(2,)), (2,)).leader_recovery


def test_isr_shrink_does_not_raise_the_leader_epoch() -> None:
    """Kafka from metadata version 3.6 on (KAFKA-15021)."""
    assert change(partition((1, 2, 3), 1), (1, 2, 3), isr=(1, 2)).leader_epoch == 5


def test_directories_follow_their_replicas() -> None:
    there = DirectoryId(b"d" * 16)
    record = change_partition(
        partition((1, 2, 3), 1), can_lead=lambda _: True, min_isr=2, directories={NodeId(2): there}
    )
    assert record is not None
    assert record.directories is not None
    assert record.directories.directories == (UNASSIGNED_DIRECTORY, there, UNASSIGNED_DIRECTORY)
    assert record.leader is None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["fence", "crash", "unfence", "shrink", "grow", "preferred"]),
        st.integers(min_value=1, max_value=4),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(steps=STEPS, min_isr=st.integers(1, 3), unclean=st.booleans())
def test_no_committed_record_is_lost_without_unclean_elections(
    steps: list[tuple[str, int]], min_isr: int, unclean: bool
) -> None:
    """A model of the log: who holds how much, how much is committed.

    In each step the leader writes, its ISR replicates, and what is committed rises only while the ISR has
    ``min_isr`` members. As long as no unclean election happened, every leader must hold all of it: KIP-966's
    promise. A replica that crashes loses everything; one that is fenced keeps what it has.
    """
    current = partition((1, 2, 3, 4), 1, replicas=(1, 2, 3, 4))
    live = {1, 2, 3, 4}
    holds = dict.fromkeys((1, 2, 3, 4), 0)
    committed = 0
    dirty = False

    def react(**how: Any) -> None:
        nonlocal current, dirty
        election = UNCLEAN if unclean else ONLINE
        how.setdefault("election", election)
        before = current
        current = change(current, live, min_isr=min_isr, **how)
        if current.leader_recovery and not before.leader_recovery:
            dirty = True

    for step, node in steps:
        if step == "fence" and node in live:
            live.discard(node)
            react(isr=tuple(other for other in current.isr if other != node))
        elif step == "crash":
            live.discard(node)
            react(isr=tuple(other for other in current.isr if other != node))
            holds[node] = 0
            react(unclean=(node,))
        elif step == "unfence":
            live.add(node)
            react()
        elif step == "shrink" and current.leader > 0 and node != current.leader:
            react(isr=tuple(other for other in current.isr if other != node))
        elif step == "grow" and current.leader > 0 and node in live and node not in current.isr:
            holds[node] = holds[current.leader]
            react(isr=(*current.isr, node))
        elif step == "preferred":
            react(election=PREFERRED)

        isr, elr = set(current.isr), set(current.eligible_leader_replicas)
        assert not isr & elr
        assert isr | elr <= set(current.replicas)
        assert len(isr) < min_isr or not elr
        assert len(current.last_known_elr) <= 1
        if current.leader > 0:
            assert current.leader in isr
            assert current.leader in live
            assert not current.last_known_elr
            if not dirty:
                assert holds[current.leader] >= committed, f"leader {current.leader} lacks committed records"
            holds[current.leader] += 1
            for member in isr:
                holds[member] = holds[current.leader]
            if len(isr) >= min_isr:
                committed = holds[current.leader]
        else:
            assert not (isr | elr) & live or isr, "an eligible replica is live and does not lead"
        if dirty:
            committed = min(committed, max(holds.values()))
