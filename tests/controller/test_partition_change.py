"""Elections, ISR and ELR of one partition. Cases: Kafka's ``PartitionChangeBuilderTest`` and KIP-966."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.metadata_quorum.controller.partition_change import (
    Assignment,
    Election,
    asks_for_log_ends,
    change_partition,
)
from tidelog.metadata_quorum.image.change import merged
from tidelog.model.ids import (
    UNASSIGNED_DIRECTORY,
    DirectoryId,
    LeaderEpoch,
    NodeId,
    PartitionEpoch,
    TopicId,
)
from tidelog.model.replica_counts import effective_min_isr
from tidelog.proto.logs.metadata_records import PartitionRecord


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
    if "longest" in more:
        more["longest"] = NodeId(more["longest"])
    record = change_partition(before, can_lead=lambda node: node in live, min_isr=min_isr, **more)
    return before if record is None else merged(before, record)


def state(after: PartitionRecord) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(leader, ISR, ELR, last known ELR)"""
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
        # Below min ISR: a replica that leaves is an eligible leader.
        (partition((1, 2), 1), (1,), {"isr": (1,)}, (1, (1,), (2,), ())),
        # Two rounds: ELR members stay until the ISR is big enough again.
        (partition((1,), 1, elr=(2,)), (), {"isr": ()}, (-1, (), (1, 2), ())),
        (partition((1,), 1, elr=(2,)), (1, 3), {"isr": (1, 3)}, (1, (1, 3), (), ())),
        # Elected from the ELR: alone in the ISR, no recovery.
        (partition((), -1, elr=(1, 2), last_known=(3,)), (2,), {}, (2, (2,), (1,), (3,))),
        # The ELR counts only while the ISR is empty.
        (partition((3,), 3, elr=(1, 2)), (1, 2), {"isr": (3,)}, (-1, (3,), (1, 2), ())),
        # An unclean stop takes one out of ISR and ELR. Who had everything committed by then is remembered ...
        (partition((1, 2), 1), (2,), {"unclean": (1,)}, (2, (2,), (), (1,))),
        (partition((1,), 1, elr=(2,)), (), {"unclean": (1,)}, (-1, (), (2,), (1,))),
        (partition((1,), 1, elr=(2,)), (1,), {"unclean": (2,)}, (1, (1,), (), (2,))),
        (partition((), -1, elr=(2,), last_known=(1,)), (), {"unclean": (2,)}, (-1, (), (), (1, 2))),
        (partition((), -1, elr=(3, 1), last_known=(2,)), (), {"unclean": (3,)}, (-1, (), (1,), (2, 3))),
        # ... unless more is committed without it.
        (partition((1, 2, 3), 1), (2, 3), {"unclean": (1,)}, (2, (2, 3), (), ())),
        (partition((1,), 1, last_known=(2,)), (1, 3), {"isr": (1, 3)}, (1, (1, 3), (), ())),
        (partition((1,), 1, last_known=(2,)), (1, 2), {"isr": (1, 2)}, (1, (1, 2), (), ())),
        (partition((1, 2), 1), (2,), {"unclean": (1,), "min_isr": 1}, (2, (2,), (), ())),
        (partition((1,), 1, last_known=(2, 3)), (1,), {"min_isr": 1}, (1, (1,), (), ())),
        # Several are remembered: nobody leads before their logs were compared.
        (partition((), -1, last_known=(1, 2)), (1, 2, 3), {}, (-1, (), (), (1, 2))),
        (partition((), -1, last_known=(1, 2)), (1, 2), {"longest": 2}, (2, (2,), (), (1,))),
        (partition((), -1, last_known=(1, 2)), (1, 3), {"longest": 2}, (-1, (), (), (1, 2))),
        (partition((), -1, last_known=(1, 2)), (1, 2, 3), {"longest": 3}, (3, (3,), (), (1, 2))),
        (partition((), -1, last_known=(1, 2)), (1, 2), {"longest": 2, "min_isr": 1}, (2, (2,), (), ())),
        # Not while somebody is safe.
        (partition((), -1, elr=(3,), last_known=(1, 2)), (1, 2), {"longest": 2}, (-1, (), (3,), (1, 2))),
        # The same replica is safe no more, others are remembered with it.
        (partition((1,), 1, last_known=(2,)), (2,), {"unclean": (1,), "isr": ()}, (-1, (), (), (1, 2))),
        # Nobody is eligible and one is remembered: it leads, if it is live.
        (partition((), -1, last_known=(1,)), (1, 2), {}, (1, (1,), (), ())),
        (partition((), -1, last_known=(1,)), (2, 3), {}, (-1, (), (), (1,))),
        # Not while somebody is eligible, though not live.
        (partition((), -1, elr=(2,), last_known=(1,)), (1,), {}, (-1, (), (2,), (1,))),
        # ... unless unclean elections are allowed.
        (partition((), -1, elr=(2,), last_known=(1,)), (1, 3), {"election": UNCLEAN}, (1, (1,), (), (2,))),
        (partition((1,), 1), (2, 3), {"isr": (), "election": UNCLEAN}, (2, (2,), (), (1,))),
        (partition((), -1, last_known=(1, 2)), (3,), {"election": UNCLEAN}, (3, (3,), (), (1, 2))),
        # A wiped disk: no longer remembered; the last one left leads.
        (partition((), -1, last_known=(1, 2)), (2,), {"wiped": (1,)}, (2, (2,), (), ())),
        (partition((1,), 1, elr=(2,)), (1,), {"wiped": (2,)}, (1, (1,), (), ())),
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


def test_election_of_who_is_remembered_marks_recovery() -> None:
    assert change(partition((), -1, last_known=(1,)), (1,)).leader_recovery
    assert change(partition((), -1, last_known=(1, 2)), (1, 2), longest=2).leader_recovery


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
        st.sampled_from(
            ["fence", "crash", "lose", "wipe", "unfence", "shrink", "grow", "follow", "preferred", "compare", "move"]
        ),
        st.integers(min_value=1, max_value=4),
    ),
    max_size=60,
)


class Model:
    """Logs as lists of epochs, one for each record, and how many of them are committed.

    With each step the leader writes and its ISR replicates; what is committed rises only while the ISR has
    ``min_isr`` members. Whoever was remembered and lost nothing is in ``whole``.
    """

    def __init__(self, min_isr: int, election: Election) -> None:
        self.current = partition((1, 2, 3, 4), 1, replicas=(1, 2, 3, 4))
        self.min_isr = min_isr
        self.election = election
        self.live = {1, 2, 3, 4}
        self.logs: dict[int, list[int]] = {node: [] for node in (1, 2, 3, 4)}
        self.committed: list[int] = []

    def has_everything(self, node: int) -> bool:
        return self.logs[node][: len(self.committed)] == self.committed

    def react(self, **how: Any) -> None:
        how.setdefault("election", self.election)
        before = self.current
        known = {*before.isr, *before.eligible_leader_replicas, *before.last_known_elr}
        self.current = now = change(before, self.live, min_isr=self.min_isr, **how)
        self.forget_the_gone(before)
        if now.leader < 0 or now.leader == before.leader:
            return
        if self.election is UNCLEAN or not any(self.has_everything(node) for node in known):
            # Allowed, or every replica that had it lost it: the leader's log is what there is.
            kept = [a == b for a, b in zip(self.committed, self.logs[now.leader], strict=False)]
            self.committed = self.committed[: kept.index(False) if False in kept else len(kept)]
        assert self.has_everything(now.leader), f"leader {now.leader} lacks committed records"

    def without(self, node: int) -> tuple[int, ...]:
        return tuple(other for other in self.current.isr if other != node)

    def do(self, step: str, node: int) -> None:
        leader = self.current.leader
        match step:
            case "fence" if node in self.live:
                self.live.discard(node)
                self.react(isr=self.without(node))
            case "crash" | "lose" | "wipe":
                self.live.discard(node)
                self.react(isr=self.without(node))
                keep = {"crash": 1.0, "lose": 0.5, "wipe": 0.0}[step]
                self.logs[node] = self.logs[node][: int(keep * len(self.logs[node]))]
                self.react(**{"wiped" if step == "wipe" else "unclean": (node,)})
            case "unfence":
                self.live.add(node)
                self.react()
            case "shrink" if leader > 0 and node != leader:
                self.react(isr=self.without(node))
            case "grow" if (
                leader > 0 and node in self.live and node in self.current.replicas and node not in self.current.isr
            ):
                self.logs[node] = list(self.logs[leader])
                self.react(isr=(*self.current.isr, node))
            case "follow" if (
                leader > 0 and node in self.live and node in self.current.replicas and node not in self.current.isr
            ):
                same = [a == b for a, b in zip(self.logs[node], self.logs[leader], strict=False)]
                shared = same.index(False) if False in same else len(same)
                self.logs[node] = self.logs[leader][: (shared + len(self.logs[leader]) + 1) // 2]
            case "preferred":
                self.react(election=PREFERRED)
            case "move" if leader > 0:
                self.move(node)
            case "compare" if asks_for_log_ends(self.current) and self.live.issuperset(self.current.last_known_elr):
                reach = {other: (self.logs[other][-1:], len(self.logs[other])) for other in sorted(self.live)}
                self.react(longest=max(reach, key=lambda other: reach[other]))
                assert self.current.leader > 0
            case _:
                pass

    def move(self, node: int) -> None:
        """Wish for three replicas, all but ``node``; where that is under way or done, for all four. Who goes loses its
        log, unless too few would be left, which is refused as the controller refuses it."""
        now = self.current
        before = tuple(other for other in now.replicas if other not in now.adding_replicas)
        target = nodes(*(other for other in (2, 3, 4, 1) if other != node))
        if set(target) == {other for other in now.replicas if other not in now.removing_replicas}:
            target = nodes(4, 3, 2, 1)
        adding = tuple(other for other in target if other not in before)
        removing = tuple(other for other in before if other not in target)
        wanted = Assignment((*target, *removing), adding, removing)
        counted_on = {*now.isr, *now.eligible_leader_replicas, *now.last_known_elr}
        left = [other for other in now.isr if other in wanted.replicas]
        if counted_on <= set(wanted.replicas) or len(left) >= effective_min_isr(self.min_isr, *wanted):
            self.react(assignment=wanted)

    def forget_the_gone(self, before: PartitionRecord) -> None:
        for node in before.replicas:
            if node not in self.current.replicas:
                self.logs[node] = []

    def check(self) -> None:
        now = self.current
        isr, elr, remembered = set(now.isr), set(now.eligible_leader_replicas), set(now.last_known_elr)
        assert not isr & elr
        assert not remembered & (isr | elr)
        assert isr | elr | remembered <= set(now.replicas)
        min_isr = effective_min_isr(self.min_isr, now.replicas, now.adding_replicas, now.removing_replicas)
        assert len(isr) < min_isr or not (elr | remembered)
        if now.leader > 0:
            assert now.leader in isr
            assert now.leader in self.live
            self.logs[now.leader].append(now.leader_epoch)
            for member in isr:
                self.logs[member] = list(self.logs[now.leader])
            if len(isr) >= min_isr:
                self.committed = list(self.logs[now.leader])
        else:
            assert not (isr | elr) & self.live or isr, "an eligible replica is live and does not lead"
        if self.election is not UNCLEAN:
            for member in isr | elr:
                assert self.has_everything(member), f"{member} is safe and lacks committed records"


@settings(max_examples=400, deadline=None)
@given(steps=STEPS, min_isr=st.integers(1, 3), unclean=st.booleans())
def test_what_is_committed_is_lost_only_when_all_that_had_it_lost_it(
    steps: list[tuple[str, int]], min_isr: int, unclean: bool
) -> None:
    """KIP-966's promise, and what is left of it after unclean stops: one of those remembered lost nothing."""
    model = Model(min_isr, UNCLEAN if unclean else ONLINE)
    for step, node in steps:
        model.do(step, node)
        model.check()
