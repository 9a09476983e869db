"""Random schedules over three replicas: whatever happens, a committed record stays, where it is and as it is.

A schedule interleaves produce, fetch, metadata that reaches some nodes and not others, elections from
the ISR or the eligible leader replicas, ISR changes whose answers get lost, restarts and wiped disks.
A failing seed is named by the test's parameter; run it alone with ``-k 'seed-<n>]'``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Unpack

import pytest

from tidelog.model.errors import Refusal
from tidelog.model.ids import LeaderEpoch, NodeId, PartitionEpoch
from tidelog.replication.partition.isr import IsrProposal
from tidelog.replication.partition.partition import Fetched

from .rig import MakeRig, Rig, StateFields

SEEDS = int(os.environ.get("TIDELOG_REPLICATION_SEEDS", "15"))
STEPS = 250
LAG_MS = 30_000


class Schedule:
    """One run. ``committed`` is every record that some high watermark has ever covered, by offset."""

    def __init__(self, rig: Rig, rng: random.Random) -> None:
        self.rng = rng
        self.r = rig
        self.elr: set[NodeId] = set()
        self.asked: dict[NodeId, tuple[IsrProposal, LeaderEpoch]] = {}
        self.committed: list[bytes] = []
        self.acknowledged: set[bytes] = set()
        self.waiting: dict[NodeId, list[tuple[int, bytes, int]]] = {node: [] for node in rig.hosts}
        self.high_watermarks = dict.fromkeys(rig.hosts, 0)
        self.count = 0
        self.trace: list[str] = []
        rig.lead(1, (1, 2, 3))

    # --- steps

    def produce(self) -> None:
        node = self.any_node()
        value = b"%d" % self.count
        self.count += 1
        acks = self.rng.choice((-1, -1, 1))
        appended = self.r.produce(node, value, acks=acks)
        if not isinstance(appended, Refusal) and acks == -1:
            self.waiting[node].append((appended.last_offset + 1, value, self.r[node].p.leader_epoch))

    def fetch(self) -> None:
        node = self.any_node()
        p = self.r[node].p
        if p.following is None:
            return
        leader = p.following.leader
        outcome = self.r.fetch(node, bytes_max=self.rng.choice((1, 200, 1 << 20)))
        assert outcome in Fetched
        proposal = self.r[leader].p.propose_expansion(node)
        if proposal is not None:
            self.asked[leader] = (proposal, self.r[leader].p.leader_epoch)

    def shrink(self) -> None:
        node = self.any_node()
        proposal = self.r[node].p.propose_shrink(self.r.now_ms)
        if proposal is not None:
            self.asked[node] = (proposal, self.r[node].p.leader_epoch)

    def time_passes(self) -> None:
        self.r.now_ms += self.rng.choice((10, 1_000, LAG_MS + 1))
        for host in self.r.hosts.values():
            host.p.advance(self.r.now_ms)

    def metadata_arrives(self) -> None:
        self.r.tell((self.any_node(),))

    def controller_answers(self) -> None:
        """Judge one ISR change; the answer may get lost, and the metadata comes when it comes."""
        if not self.asked:
            return
        node = self.rng.choice(sorted(self.asked))
        proposal, leader_epoch = self.asked[node]
        leading = self.r[node].p.leading
        if leading is None or leading.isr.proposal is not proposal:
            del self.asked[node]
            return
        state = self.r.state
        lost = self.rng.random() < 0.3
        if leader_epoch != state.leader_epoch or proposal.partition_epoch != state.partition_epoch:
            if not lost:
                del self.asked[node]  # refused; newer metadata will settle it
            return
        if any(self.r.broker_epoch_of(member.node_id) != member.broker_epoch for member in proposal.members):
            if not lost and leading.isr.refused(proposal):
                del self.asked[node]
            return
        self.set_isr(proposal.isr)
        if lost:
            proposal.uncertain = True
        else:
            del self.asked[node]
            assert self.r[node].p.isr_committed(self.r.state.isr, leader_epoch, self.r.state.partition_epoch)
            self.r[node].p.advance(self.r.now_ms)

    def elect(self) -> None:
        """A clean election: the leader is taken to be gone, though it may go on as a zombie."""
        candidates = sorted((set(self.r.state.isr) or self.elr) - self.r.fenced)
        if candidates:
            self.lead(self.rng.choice(candidates))

    def restart(self) -> None:
        """A clean restart: under a new broker epoch, with all of its log."""
        node = self.any_node()
        checkpoint = self.rng.choice((0, self.high_watermarks[node]))
        if self.r.state.leader == node:
            self.lead(self.rng.choice(sorted(self.r.state.isr)))
        self.waiting[node] = []
        self.high_watermarks[node] = 0
        self.r.restart(node, checkpointed_high_watermark=checkpoint)

    def wipe(self) -> None:
        """An unclean one: the disk is empty. The controller takes it out of ISR and ELR first (KIP-966)."""
        node = self.any_node()
        left = [member for member in self.r.state.isr if member != node]
        if not left and not self.elr - {node}:
            return
        if left:
            if node in self.r.state.isr:
                self.set_isr(left)
            self.elr.discard(node)
            if self.r.state.leader == node:
                self.lead(self.rng.choice(left))
        else:
            self.elr.discard(node)
            leader = self.rng.choice(sorted(self.elr))
            self.lead(leader, keep=())
            self.elr.discard(node)
        self.waiting[node] = []
        self.high_watermarks[node] = 0
        self.r.wipe(node)

    # --- the controller

    def any_node(self) -> NodeId:
        return self.rng.choice(sorted(self.r.hosts))

    def set_isr(self, members: Iterable[NodeId], **fields: Unpack[StateFields]) -> None:
        """ELR: replicas that left an ISR that fell below min.insync.replicas, until it is that large again
        (KIP-966)."""
        state = self.r.state
        isr = tuple(members)
        if len(isr) >= min(state.config.min_insync_replicas, 3):
            self.elr = set()
        else:
            self.elr = (self.elr | set(state.isr)) - set(isr)
        self.r.state = replace(state, isr=isr, partition_epoch=PartitionEpoch(state.partition_epoch + 1), **fields)

    def lead(self, leader: NodeId, keep: Iterable[NodeId] | None = None) -> None:
        members = set(self.r.state.isr) if keep is None else set(keep)
        if leader in members:
            others = [node for node in sorted(members) if node != leader and self.rng.random() < 0.7]
        else:
            others = []
        epoch = LeaderEpoch(self.r.state.leader_epoch + 1)
        self.set_isr((leader, *others), leader=leader, leader_epoch=epoch)
        self.r.tell([node for node in self.r.hosts if self.rng.random() < 0.6])

    # --- what must hold

    def check(self) -> None:
        for node, host in self.r.hosts.items():
            p = host.p
            assert p.counts.truncations_below_high_watermark == 0, f"node {node} cut away committed records"
            assert p.high_watermark >= self.high_watermarks[node], f"the high watermark of node {node} went back"
            assert p.high_watermark <= p.log.log_end_offset
            if p.high_watermark > self.high_watermarks[node]:
                self.high_watermarks[node] = p.high_watermark
                seen = host.committed()
                shared = min(len(seen), len(self.committed))
                assert seen[:shared] == self.committed[:shared], f"node {node} has other committed records"
                self.committed += seen[shared:]
            still = []
            for required, value, epoch in self.waiting[node]:
                if p.leading is None or p.leader_epoch != epoch:
                    continue  # answered as unknown
                if p.high_watermark >= required:
                    self.acknowledged.add(value)
                else:
                    still.append((required, value, epoch))
            self.waiting[node] = still
        assert self.acknowledged <= set(self.committed)

    def run(self) -> None:
        steps = {
            self.produce: 10,
            self.fetch: 25,
            self.metadata_arrives: 6,
            self.controller_answers: 5,
            self.shrink: 2,
            self.time_passes: 2,
            self.elect: 2,
            self.restart: 1,
            self.wipe: 1,
        }
        for _ in range(STEPS):
            (step,) = self.rng.choices(list(steps), list(steps.values()))
            self.trace.append(step.__name__)
            step()
            self.check()
        self.heal()

    def heal(self) -> None:
        """Everybody hears everything: the replicas become equal, and hold all that was ever committed."""
        self.r.tell()
        leader = self.r.state.leader
        others = [node for node in self.r.hosts if node != leader]
        for _ in range(3):
            self.r.sync(*others)
            self.check()
            self.asked.clear()
            leading = self.r[leader].leading
            if leading.isr.proposal is not None:
                self.set_isr(leading.isr.proposal.isr)
                self.r.tell()
            for node in others:
                proposal = self.r[leader].p.propose_expansion(node)
                if proposal is not None:
                    self.set_isr(proposal.isr)
                    self.r.tell()
        self.r.sync(*others)
        self.check()
        values = self.r[leader].values()
        for host in self.r.hosts.values():
            assert host.values() == values
            assert host.p.high_watermark == len(values)
        assert self.committed == values


@pytest.mark.parametrize("min_isr", [1, 2], ids=lambda value: f"min-isr-{value}")
@pytest.mark.parametrize("seed", range(SEEDS), ids=lambda value: f"seed-{value}")
def test_committed_records_are_never_lost_nor_changed(rig: MakeRig, seed: int, min_isr: int) -> None:
    Schedule(rig(min_isr=min_isr), random.Random(seed)).run()


def test_the_same_seed_gives_the_same_run(rig: MakeRig) -> None:
    runs = []
    for _ in range(2):
        schedule = Schedule(rig(min_isr=2), random.Random(3))
        schedule.run()
        runs.append((schedule.trace, schedule.committed, sorted(schedule.acknowledged)))
    assert runs[0] == runs[1]
    assert len(runs[0][2]) > 5, "a schedule that acknowledges nothing shows nothing"
