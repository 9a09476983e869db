"""Judges of the replicas' content, over states that are sampled during a run and at its end.

===================  ========================================================================================
one leader an epoch  a partition has at most one leader in each leader epoch, in the view of all nodes
leader completeness  the leader of the newest epoch holds every record that was committed before
byte-identical       below its high watermark a replica has the same batches as every other, permanently
no holes             batches follow one another without gap, and their leader epochs never fall
epoch matching       two batches of the same leader epoch and offset are the same, committed or not (KIP-101's
                     truncation by epoch rests on it)
members complete     each in-sync or eligible replica has everything that is committed
marks behind         the high watermark is no further than the log of any member of the in-sync replicas
visible marks        the high watermark or end that a consumer was told never goes back for it
===================  ========================================================================================

The caller chooses the name of a partition, as long as a topic that is recreated has another name than the
one that was deleted (:class:`~tidelog.model.ids.TopicIdPartition`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidelog.model.ids import NodeId, TopicIdPartition, TopicPartition

PartitionName = TopicIdPartition | TopicPartition

_NO_EPOCH: Final = -1


class StoredBatch(NamedTuple):
    """A record batch as a replica stores it. ``digest`` represents its bytes: their hash, or the CRC."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    digest: int | bytes


@dataclass(slots=True)
class _Committed:
    """The records known to be committed in a partition."""

    batches: dict[int, StoredBatch] = field(default_factory=dict)
    begin: int = -1
    """The lowest known offset."""
    end: int = 0
    """Nothing at or behind it is known to be committed."""
    unseen: list[tuple[int, int]] = field(default_factory=list)
    """Stretches that had expired where they were committed first, before anybody looked. Other replicas may have them
    still."""
    by_epoch: dict[tuple[int, int], StoredBatch] = field(default_factory=dict)
    """Base offset and leader epoch → the first batch seen there."""


class ReplicaLogJudge:
    """Compares replicas with the committed data, each batch of each replica once in a process's life.

    At each sample: call :meth:`elected` and :meth:`leads` for what changed, then ``wanted`` for every replica and, if
    that is not ``None``, :meth:`observe` with its batches from there on.
    """

    def __init__(self) -> None:
        self._committed: dict[PartitionName, _Committed] = {}
        self._judged_to: dict[tuple[PartitionName, NodeId], tuple[int, int]] = {}
        """The offset up to which a replica was found correct, and the leader epoch before it."""
        self._leaders: dict[tuple[PartitionName, int], NodeId] = {}
        self._newest_epoch: dict[PartitionName, int] = {}
        self._told: dict[tuple[PartitionName, int], None] = {}
        """Leaders, by epoch, that were already reported for missing records."""
        self._broken: dict[tuple[PartitionName, NodeId], None] = {}
        """Replicas that were already reported: they are skipped until they restart."""

    def committed_end(self, partition: PartitionName) -> int:
        """Return the offset behind the last record known to be committed."""
        found = self._committed.get(partition)
        return 0 if found is None else found.end

    # --- leaders -----------------------------------------------------------------------------------

    def elected(self, partition: PartitionName, leader_epoch: int, node: NodeId) -> list[str]:
        """Judge that the committed metadata name a leader."""
        self._newest_epoch[partition] = max(leader_epoch, self._newest_epoch.get(partition, -1))
        known = self._leaders.setdefault((partition, leader_epoch), node)
        if known != node:
            return [f"one leader an epoch: {partition} has nodes {known} and {node} in leader epoch {leader_epoch}"]
        return []

    def leads(self, partition: PartitionName, leader_epoch: int, node: NodeId, log_end: int) -> list[str]:
        """Judge that a node acts as leader. Call :meth:`elected` for every election up to now first."""
        found = self.elected(partition, leader_epoch, node)
        end = self.committed_end(partition)
        is_newest = leader_epoch == self._newest_epoch[partition]
        if not found and log_end < end and is_newest and (partition, leader_epoch) not in self._told:
            self._told[partition, leader_epoch] = None
            found.append(
                f"leader completeness: node {node} leads {partition} in leader epoch {leader_epoch} with a log up "
                f"to {log_end}; {end} was committed"
            )
        return found

    # --- logs --------------------------------------------------------------------------------------

    def restarted(self, node: NodeId) -> None:
        """Note that a node's process ended: its data is read again."""
        for known in (self._judged_to, self._broken):
            for key in [key for key in known if key[1] == node]:
                del known[key]

    def gone(self, partition: PartitionName, node: NodeId) -> None:
        """Note that a replica was removed: its successor is read from the start."""
        self._judged_to.pop((partition, node), None)
        self._broken.pop((partition, node), None)

    def look_again(self) -> None:
        """Let everything be read again at the end of a run: did it change since?"""
        self._judged_to.clear()
        self._broken.clear()

    def lost(self, partition: PartitionName, from_offset: int) -> None:
        """Every replica that held it lost the data from an offset on, or a leader without it was elected deliberately:
        it may be gone and its offsets reused."""
        committed = self._committed.get(partition)
        if committed is None:
            return
        for base in [base for base, batch in committed.batches.items() if batch.last_offset >= from_offset]:
            del committed.batches[base]
        for key in [key for key, batch in committed.by_epoch.items() if batch.last_offset >= from_offset]:
            del committed.by_epoch[key]
        committed.end = min(committed.end, from_offset)
        for held, node in self._judged_to:
            if held == partition:
                self._judged_to[held, node] = min(self._judged_to[held, node], (from_offset, _NO_EPOCH))

    def wanted(
        self, partition: PartitionName, node: NodeId, log_start: int, high_watermark: int, log_end: int
    ) -> int | None:
        """Return the offset from which a replica's batches are wanted; ``None`` if nothing is new, or if it was found
        wrong before."""
        if (partition, node) in self._broken:
            return None
        judged, _ = self._judged(partition, node, log_start)
        return judged if judged < high_watermark or log_end < judged else None

    def observe(
        self,
        partition: PartitionName,
        node: NodeId,
        log_start: int,
        high_watermark: int,
        log_end: int,
        batches: Iterable[StoredBatch],
    ) -> list[str]:
        """Judge a replica. ``batches`` are its own, from the one that contains the wanted offset up to the high
        watermark at least; batches behind that are judged too, as far as given."""
        found = self._looked_at(partition, node, log_start, high_watermark, log_end, batches)
        if found:
            self._broken[partition, node] = None
        return found

    def settled(self, partition: PartitionName, ends: Mapping[NodeId, tuple[int, int]]) -> list[str]:
        """Judge, after repair, that every replica has everything and knows it: ``ends`` gives the high watermark and
        the log end of each."""
        if len(set(ends.values())) == 1 and all(mark == end for mark, end in ends.values()):
            mark, _ = next(iter(ends.values()))
            if mark >= self.committed_end(partition):
                return []
        told = ", ".join(f"node {node} {mark} of {end}" for node, (mark, end) in sorted(ends.items()))
        return [
            f"byte-identical: {partition} was committed up to {self.committed_end(partition)}; when all was mended, "
            f"high watermarks and log ends were {told}"
        ]

    def _looked_at(
        self,
        partition: PartitionName,
        node: NodeId,
        log_start: int,
        high_watermark: int,
        log_end: int,
        batches: Iterable[StoredBatch],
    ) -> list[str]:
        committed = self._committed.setdefault(partition, _Committed())
        judged, epoch = self._judged(partition, node, log_start)
        who = f"node {node}'s {partition}"
        if log_end < judged:
            return [f"byte-identical: {who} was cut to {log_end}; up to {judged} it was committed"]
        if log_end < high_watermark:
            return [f"marks behind: {who} ends at {log_end}; its high watermark is {high_watermark}"]
        following, last_epoch, is_first = judged, epoch, True
        for batch in batches:
            # Only the first may begin earlier: the log may start in the middle of it.
            if batch.base_offset != following and not (is_first and batch.base_offset < following):
                return [f"no holes: {who} has offset {batch.base_offset} where {following} is due"]
            if batch.leader_epoch < last_epoch:
                told = f"{batch.leader_epoch} at {batch.base_offset} after {last_epoch}"
                return [f"no holes: {who} has leader epoch {told}"]
            found = _unmatched(committed, who, batch)
            following, last_epoch, is_first = batch.last_offset + 1, batch.leader_epoch, False
            if following <= high_watermark:
                found += _compared(committed, who, batch)
                judged, epoch = following, last_epoch
            if found:
                return found
        self._judged_to[partition, node] = (judged, epoch)
        if following < high_watermark:
            return [f"no holes: {who} ends at {following}; its high watermark is {high_watermark}"]
        return []

    def _judged(self, partition: PartitionName, node: NodeId, log_start: int) -> tuple[int, int]:
        judged = self._judged_to.get((partition, node), (log_start, _NO_EPOCH))
        return judged if judged[0] >= log_start else (log_start, _NO_EPOCH)


def _unmatched(committed: _Committed, who: str, batch: StoredBatch) -> list[str]:
    known = committed.by_epoch.setdefault((batch.base_offset, batch.leader_epoch), batch)
    if known != batch:
        return [
            f"epoch matching: {who} has at {batch.base_offset} a batch of leader epoch {batch.leader_epoch} that "
            f"differs from another of that epoch"
        ]
    return []


def _compared(committed: _Committed, who: str, batch: StoredBatch) -> list[str]:
    known = committed.batches.get(batch.base_offset)
    if known is not None:
        if known == batch:
            return []
        return [
            f"byte-identical: {who} has at {batch.base_offset} a batch up to {batch.last_offset} of leader epoch "
            f"{batch.leader_epoch}; committed is one up to {known.last_offset} of leader epoch {known.leader_epoch}"
            + (", with other bytes" if known[:3] == batch[:3] else "")
        ]
    expired = any(start <= batch.base_offset < end for start, end in committed.unseen)
    if committed.begin <= batch.base_offset < committed.end and committed.batches and not expired:
        return [f"byte-identical: {who} begins a batch at {batch.base_offset}, where none that is committed begins"]
    if expired:
        committed.batches[batch.base_offset] = batch
    if batch.base_offset >= committed.end:
        if committed.batches and batch.base_offset > committed.end:
            committed.unseen.append((committed.end, batch.base_offset))
        committed.batches[batch.base_offset] = batch
        committed.begin = batch.base_offset if committed.begin < 0 else committed.begin
        committed.end = batch.last_offset + 1
    return []


def marks_behind(
    partition: PartitionName, leader: NodeId, high_watermark: int, ends: Mapping[NodeId, int], isr: Iterable[NodeId]
) -> list[str]:
    """Judge one moment of a leader: ``isr`` is its view of the in-sync replicas, ``ends`` the log ends of those members
    that have lost nothing since they joined; nodes that are not in ``ends`` are skipped."""
    return [
        f"marks behind: node {leader} has the high watermark of {partition} at {high_watermark}; in-sync node {node} "
        f"has a log up to {ends[node]}"
        for node in isr
        if node in ends and ends[node] < high_watermark
    ]


def members_behind(
    partition: PartitionName,
    committed_end: int,
    ends: Mapping[NodeId, int],
    isr: Iterable[NodeId],
    eligible: Iterable[NodeId],
) -> list[str]:
    """Judge one moment of the committed metadata: replicas that may be elected without a loss hold everything that was
    ever below a high watermark. ``ends``: the log ends of the members that run and are registered as they run; nodes
    that are not in it are skipped."""
    who = dict.fromkeys(eligible, "eligible") | dict.fromkeys(isr, "in-sync")
    return [
        f"members complete: {what} node {node} has {partition} up to {ends[node]}; {committed_end} was committed"
        for node, what in who.items()
        if node in ends and ends[node] < committed_end
    ]


class VisibleMarkJudge:
    """The high watermark, last stable offset or end of a partition that each consumer was told; use a separate judge
    for each kind of mark."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, PartitionName], int] = {}

    def observe(self, consumer: str, partition: PartitionName, mark: int) -> list[str]:
        """Judge a mark that a consumer was told."""
        before = self._told.get((consumer, partition), mark)
        self._told[consumer, partition] = max(mark, before)
        if mark < before:
            return [f"visible marks: {consumer} was told {mark} for {partition} after {before}"]
        return []

    def lost(self, partition: PartitionName, from_offset: int) -> None:
        """Data from an offset on was lost legally: marks may go back to it."""
        for key, mark in self._told.items():
            if key[1] == partition:
                self._told[key] = min(mark, from_offset)
