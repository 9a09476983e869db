"""Judges of the cluster's metadata: the committed log, each node's image of it, and the right to change it.

=================  =========================================================================================
image is prefix    a node's image at an offset is the same as every other node's there, of the epoch that was
                   committed there, and no further than the commit; it never goes back until a restart
partition epochs   a partition that changes has a higher partition epoch (KIP-497); its leader epoch never
                   falls, and rises with every other leader
in-sync replicas   are replicas; the leader is one of them; joiners are not fenced (KIP-841)
clean elections    a new leader was in the in-sync replicas or eligible (KIP-966), unless the election was
                   meant to be unclean
level in use       no record in the log needs a higher ``metadata.version`` than the one in use
fencing            a broker's request under an older broker epoch than the committed one, or one that needs
                   an unfenced broker while it is fenced, is never granted (KIP-631); the epoch of an
                   unregistered broker is old, and never reused
=================  =========================================================================================
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.chaos.checkers.replication import PartitionName
from tidelog.model.ids import NO_NODE, NodeId


def above_level(offset: int, needed: int, in_use: int | None) -> list[str]:
    """Judge one committed image. ``needed``: the level that the log's records need; ``in_use``: none in a new log."""
    if in_use is None or needed <= in_use:
        return []
    return [f"level in use: at offset {offset} the log has had a record of level {needed}, in use is {in_use}"]


class ImageJudge:
    """Compares the images of all nodes with the committed log and with one another."""

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        self._digests: dict[int, tuple[Hashable, NodeId]] = {}
        self._seen: dict[NodeId, int] = {}
        self._committed_to = -1

    def committed(self, offset: int, epoch: int) -> list[str]:
        """Record an entry of the metadata log that the quorum committed."""
        self._committed_to = max(self._committed_to, offset)
        known = self._epochs.setdefault(offset, epoch)
        if known != epoch:
            return [f"image is prefix: metadata offset {offset} was committed with epochs {known} and {epoch}"]
        return []

    def restarted(self, node: NodeId) -> None:
        """Note that a node's process ended: its next one may begin with an older image."""
        self._seen.pop(node, None)

    def observe(self, node: NodeId, offset: int, epoch: int, digest: Hashable = None) -> list[str]:
        """Judge a node's image. ``digest`` represents its content; ``None`` if nobody computed it."""
        before = self._seen.get(node)
        if offset == before and digest is None:
            return []
        self._seen[node] = offset
        found = []
        if before is not None and offset < before:
            found.append(f"image is prefix: node {node}'s image went back from {before} to {offset}")
        if offset > self._committed_to:
            found.append(f"image is prefix: node {node}'s image is at {offset}; committed is {self._committed_to}")
        elif self._epochs.get(offset, epoch) != epoch:
            committed = self._epochs[offset]
            found.append(
                f"image is prefix: node {node}'s image at {offset} is of epoch {epoch}, committed is {committed}"
            )
        if digest is not None:
            known, other = self._digests.setdefault(offset, (digest, node))
            if known != digest:
                found.append(f"image is prefix: nodes {other} and {node} have different images at {offset}")
        return found


class PartitionStanding(NamedTuple):
    """A partition in the committed metadata."""

    partition: PartitionName
    leader: NodeId
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    eligible: tuple[NodeId, ...] = ()
    """Eligible leader replicas."""


@dataclass(slots=True)
class _Broker:
    """Committed facts about one broker by time: broker epoch and whether it was fenced."""

    times_s: list[float] = field(default_factory=list)
    standings: list[tuple[int, bool]] = field(default_factory=list)


class StandingJudge:
    """Follows the committed metadata, entry by entry: for each entry its brokers first, then its partitions."""

    def __init__(self) -> None:
        self._partitions: dict[PartitionName, PartitionStanding] = {}
        self._brokers: dict[NodeId, _Broker] = {}

    # --- what is committed -------------------------------------------------------------------------

    def broker(self, node: NodeId, broker_epoch: int, *, fenced: bool, at_s: float) -> list[str]:
        """Judge that a broker registers, is fenced or unfenced."""
        broker = self._brokers.setdefault(node, _Broker())
        before = broker.standings[-1] if broker.standings else (broker_epoch, fenced)
        if broker_epoch < before[0]:
            return [f"fencing: broker {node} has epoch {broker_epoch}, expected at least {before[0]}"]
        broker.times_s.append(at_s)
        broker.standings.append((broker_epoch, fenced))
        return []

    def unregistered(self, node: NodeId, at_s: float) -> None:
        """A broker was removed: nothing is granted under its epoch any more, and a later broker under its id has a
        higher one."""
        broker = self._brokers.get(node)
        if broker is not None:
            broker.times_s.append(at_s)
            broker.standings.append((broker.standings[-1][0] + 1, True))

    def partition(self, now: PartitionStanding, *, unclean: bool = False, moved: bool = False) -> list[str]:
        """Judge that a partition is created or changed. ``unclean``: its leader may have been elected uncleanly.
        ``moved``: the change ends a reassignment, which requires that one more replica is in sync; that replica may
        lead immediately."""
        before = self._partitions.get(now.partition)
        self._partitions[now.partition] = now
        found = self._in_sync(before, now)
        if before is None or now == before:
            return found
        name = now.partition
        if now.partition_epoch <= before.partition_epoch:
            found.append(
                f"partition epochs: {name} changed and went from partition epoch {before.partition_epoch} to "
                f"{now.partition_epoch}"
            )
        if now.leader_epoch < before.leader_epoch:
            found.append(
                f"partition epochs: {name}'s leader epoch fell from {before.leader_epoch} to {now.leader_epoch}"
            )
        elif now.leader_epoch == before.leader_epoch and now.leader != before.leader:
            found.append(
                f"partition epochs: {name} went from leader {before.leader} to {now.leader} in leader epoch "
                f"{now.leader_epoch}"
            )
        is_elected = now.leader != NO_NODE and now.leader != before.leader
        was_safe = (*before.isr, *before.eligible, *(now.isr if moved else ()))
        if is_elected and not unclean and now.leader not in was_safe:
            were = f"in sync were {before.isr}, eligible {before.eligible}"
            found.append(f"clean elections: {name} has leader {now.leader}; {were}")
        return found

    def forgotten(self, partition: PartitionName) -> None:
        """Note that a partition was deleted."""
        self._partitions.pop(partition, None)

    # --- what is granted ---------------------------------------------------------------------------

    def granted(
        self, node: NodeId, broker_epoch: int, what: str, asked_s: float, *, needs_unfenced: bool = False
    ) -> list[str]:
        """Judge a request that was granted to a broker, made at ``asked_s`` under an epoch: a heartbeat, a change of
        the in-sync replicas, an append as leader."""
        broker = self._brokers.get(node)
        position = 0 if broker is None else bisect_right(broker.times_s, asked_s)
        if broker is None or position == 0:
            return []
        epoch, fenced = broker.standings[position - 1]
        if broker_epoch < epoch:
            return [
                f"fencing: broker {node} was granted {what} under broker epoch {broker_epoch}, asked for at "
                f"{asked_s:.3f}, when it took {epoch} or a later one"
            ]
        if needs_unfenced and fenced and broker_epoch == epoch:
            return [f"fencing: broker {node} was granted {what}, asked for at {asked_s:.3f}, while it was fenced"]
        return []

    # --- steps -------------------------------------------------------------------------------------

    def _in_sync(self, before: PartitionStanding | None, now: PartitionStanding) -> list[str]:
        found = []
        strangers = [node for node in now.isr if node not in now.replicas]
        if strangers:
            found.append(f"in-sync replicas: {now.partition} has {strangers} in sync, which are no replicas of it")
        if now.leader not in now.isr and now.leader != NO_NODE:
            found.append(f"in-sync replicas: {now.partition} has leader {now.leader}; in sync are {now.isr}")
        for node in now.isr:
            if before is not None and node in before.isr:
                continue
            broker = self._brokers.get(node)
            if broker is not None and broker.standings[-1][1]:
                found.append(f"in-sync replicas: {now.partition} took in node {node}, which is fenced")
        return found
