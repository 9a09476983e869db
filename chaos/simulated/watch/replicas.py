"""Follows the replicas of a simulated cluster: looks at a node after every message that it received.

A message changes its receiver's state; when the next message arrives anywhere, all effects of the last one at that
instant are done. So no state of a node between two messages stays unseen, and an idle node costs nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidelog.broker.node.node import Node
from tidelog.chaos.checkers.replica_state import (
    NO_LEADERSHIP,
    KnownProducer,
    MarkJudge,
    ProducedBatch,
    producers_apart,
    producers_of,
    wish_outlived,
)
from tidelog.chaos.checkers.replication import ReplicaLogJudge, StoredBatch, marks_behind, members_behind
from tidelog.chaos.simulated.watch.compaction import CompactionWatch
from tidelog.chaos.simulated.watch.metadata import MetadataWatch
from tidelog.chaos.simulated.world.durable_ends import DurableEnds
from tidelog.chaos.simulated.world.log_reading import Undisturbed, batches_of
from tidelog.chaos.simulated.world.world import World
from tidelog.model.ids import NodeId, TopicIdPartition
from tidelog.proto.records.batches import Batch
from tidelog.replication.partition.partition import Partition
from tidelog.replication.partition.replica import Replica
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_manager import LogManager

_BEHIND_EPOCHS: Final = 21
"""Start of the fields after a batch's offset, length, leader epoch, magic and CRC."""


@dataclass(slots=True)
class _Seen:
    """The state of a replica when it was last looked at."""

    replica: Replica
    mark: int = -1
    end: int = -1
    leading_epoch: int = NO_LEADERSHIP
    truncations: int = 0


class ReplicaWatch:
    """Judges replicas between messages. ``synced``: only data on the disk counts as held (flush.messages=1)."""

    def __init__(
        self,
        world: World,
        metadata: MetadataWatch,
        logs: ReplicaLogJudge,
        compacted: CompactionWatch,
        *,
        synced: bool,
    ) -> None:
        self._world = world
        self._cluster = world.cluster
        self._metadata = metadata
        self._logs = logs
        self._compacted = compacted
        self._marks = MarkJudge()
        self._seen: dict[NodeId, dict[TopicIdPartition, _Seen]] = {}
        self._committed_ends: dict[TopicIdPartition, int] = {}
        self._durable = DurableEnds() if synced else None
        self._told: dict[str, None] = {}
        self._ends: dict[NodeId, tuple[int, dict[TopicIdPartition, int]]] = {}
        """Which of a node's processes died, and its log ends at that time."""
        self._may_expire = "producer.id.expiration.ms" in world.cluster.settings

    def died(self, node_id: NodeId) -> None:
        """Note that a node's process ended: the next one starts from the logs as they are, not from its state."""
        node, host = self._cluster.nodes.get(node_id), self._cluster.hosts[node_id]
        if host.ends_in_call or host.files is None or host.files.faults.broken:
            self._ends.pop(node_id, None)
        elif node is not None and node.broker is not None:
            ends: dict[TopicIdPartition, int] = {
                key: replica.partition.log.log_end_offset
                for key, replica in node.broker.replicas.replicas.items()
                if not replica.partition.offline and not replica.partition.log.closed
            }
            self._ends[node_id] = (host.boots, ends)
        self._logs.restarted(node_id)
        self._marks.restarted(node_id)
        self._seen.pop(node_id, None)

    def look(self, node_id: NodeId, node: Node) -> None:
        """Look at what changed on a node since the last time."""
        if node_id in self._ends and node._logs is not None:
            self._judge_opened(node_id, node._logs)
        if node.broker is None:
            return
        seen = self._seen.setdefault(node_id, {})
        for key in [key for key in seen if key not in node.broker.replicas.replicas]:
            del seen[key]
            self._logs.gone(key, node_id)
        for key, replica in node.broker.replicas.replicas.items():
            partition = replica.partition
            if partition.offline or partition.log.closed:
                continue
            before = seen.get(key)
            if before is None or before.replica is not replica:
                if before is not None:
                    self._logs.gone(key, node_id)
                before = seen[key] = _Seen(replica)
            mark, end = partition.high_watermark, partition.log.log_end_offset
            leading = partition.leading
            epoch = NO_LEADERSHIP if leading is None else leading.epoch
            if mark != before.mark or end != before.end or epoch != before.leading_epoch:
                self._moved(node_id, key, before, partition, epoch)
            if leading is not None and leading.isr.proposal is not None:
                wish, known = leading.isr.proposal.partition_epoch, leading.isr.partition_epoch
                self._tell(wish_outlived(key, node_id, wish, known))

    def _judge_opened(self, node_id: NodeId, logs: LogManager) -> None:
        """Judge the logs of a process that has only opened them: they are as the last process left them."""
        host = self._cluster.hosts[node_id]
        broken = host.files is not None and host.files.faults.broken
        boots, ends = self._ends.pop(node_id)
        if host.boots != boots + 1:
            return  # nobody has looked into the processes in between
        for key, end in ends.items():
            found = logs.get(*key)
            now = found.log_end_offset if found is not None else None if end else 0  # an empty log may have no files
            if now != end and not broken and node_id not in self._cluster.lost_data:
                self._tell([f"node {node_id} died with {key} at {end}, and starts with {now}"])

    def _moved(
        self, node_id: NodeId, key: TopicIdPartition, before: _Seen, partition: Partition, leading_epoch: int
    ) -> None:
        log, mark = partition.log, partition.high_watermark
        is_new = before.end < 0
        fell, begins = log.log_end_offset < before.end, leading_epoch not in (NO_LEADERSHIP, before.leading_epoch)
        cut = partition.counts.truncations != before.truncations
        rose = mark > before.mark and mark > self._committed_ends.get(key, 0)
        before.mark, before.end = mark, log.log_end_offset
        before.leading_epoch, before.truncations = leading_epoch, partition.counts.truncations
        self._tell(self._marks.observe(key, node_id, leading_epoch, mark, log.log_end_offset))
        if leading_epoch != NO_LEADERSHIP:
            self._tell(self._logs.leads(key, partition.leader_epoch, node_id, log.log_end_offset))
            self._judge_marks(node_id, key, partition)
        if rose:
            self._committed_ends[key] = mark
        if rose or fell or begins:
            self.judge_members(key)
        if is_new or cut or begins:
            self.judge_producers(node_id, key, partition)

    def judge_members(self, key: TopicIdPartition) -> None:
        """Judge that replicas that may be elected safely hold all committed records."""
        found = self._metadata.partitions.get(key)
        if found is None or not self._metadata.is_newest:
            return
        if found.leader_recovery:
            self._committed_ends.pop(key, None)  # elected uncleanly: committed records may be gone
            return
        ends = {}
        for node_id in (*found.isr, *found.eligible_leader_replicas):
            node, registered = self._cluster.nodes.get(node_id), self._metadata.image.broker(node_id)
            replica = None if node is None else replica_of(node, key)
            if node is None or node.broker is None or replica is None or registered is None:
                continue
            partition = replica.partition
            is_it = node.broker.broker_epoch() == registered.broker_epoch
            if is_it and not partition.offline and not partition.log.closed:
                ends[node_id] = self._held(node_id, partition.log)
        committed = self._committed_ends.get(key, 0)
        self._tell(members_behind(key, committed, ends, found.isr, found.eligible_leader_replicas))

    def _held(self, node_id: NodeId, log: Log) -> int:
        if self._durable is None:
            return log.log_end_offset
        host = self._cluster.hosts[node_id]
        return self._durable.end(host.name, host.disk, log.directory, sparse=log.config.compacts)

    def _judge_marks(self, node_id: NodeId, key: TopicIdPartition, partition: Partition) -> None:
        assert partition.leading is not None
        ends: dict[NodeId, int] = {}
        for other, node in self._cluster.nodes.items():
            found = replica_of(node, key)
            if found is None or other in self._cluster.lost_data:
                continue
            if found.partition.leader_epoch <= partition.leader_epoch and not found.partition.offline:
                ends[other] = found.partition.log.log_end_offset
        isr = partition.leading.isr.committed
        self._tell(marks_behind(key, node_id, partition.high_watermark, ends, isr))

    def judge_producers(self, node_id: NodeId, key: TopicIdPartition, partition: Partition) -> None:
        """Judge that a replica's producer state matches the content of its log."""
        log = partition.log
        if node_id in self._cluster.rotten:
            return
        try:
            with Undisturbed(self._cluster.hosts[node_id].files):
                stored = producers_of(map(_produced, batches_of(log, log.log_start_offset, log.log_end_offset)))
        except LogDirFailed:
            return
        known = {}
        for producer in log.producers.all():
            offset = producer.runs[-1].last_offset if producer.runs else -1
            known[producer.producer_id] = KnownProducer(
                producer.epoch, producer.last_sequence, offset, producer.transaction_offset
            )
        may_expire = self._may_expire or self._cluster.clock_spread_ms > 0
        start = log.log_start_offset
        self._tell(producers_apart(key, node_id, known, stored, log_start=start, may_expire=may_expire))

    def compare_logs(self) -> None:
        """Compare new batches below high watermarks with those of the other replicas."""
        for node_id, key, replica in self.replicas():
            partition = replica.partition
            log = partition.log
            if partition.offline or log.closed or node_id in self._cluster.rotten:
                continue
            if self._compacted.covers(log):
                self._compare_compacted(node_id, key, partition)
                continue
            mark, end = partition.high_watermark, log.log_end_offset
            wanted = self._logs.wanted(key, node_id, log.log_start_offset, mark, end)
            if wanted is not None:
                try:
                    with Undisturbed(self._cluster.hosts[node_id].files):
                        batches = [stored_batch(batch) for batch in batches_of(log, wanted, end)]
                except LogDirFailed:
                    continue  # its directory has failed, as the node will find out soon
                self._tell(self._logs.observe(key, node_id, log.log_start_offset, mark, end, batches))

    def _compare_compacted(self, node_id: NodeId, key: TopicIdPartition, partition: Partition) -> None:
        try:
            with Undisturbed(self._cluster.hosts[node_id].files):
                self._tell(self._compacted.look(node_id, key, partition))
        except LogDirFailed:
            return  # its directory has failed, as the node will find out soon

    def replicas(self) -> Iterator[tuple[NodeId, TopicIdPartition, Replica]]:
        """Yield every replica of every running node."""
        for node_id, node in self._cluster.nodes.items():
            if node.broker is not None:
                for key, replica in node.broker.replicas.replicas.items():
                    yield node_id, key, replica

    def _tell(self, violations: list[str]) -> None:
        for text in violations:
            if text not in self._told:
                self._told[text] = None
                self._world.violated(text)


def replica_of(node: Node, key: TopicIdPartition) -> Replica | None:
    """Return a node's replica of a partition, if it has one."""
    return None if node.broker is None else node.broker.replicas.replicas.get(key)


def stored_batch(batch: Batch) -> StoredBatch:
    """Convert a batch to the form that the judges need."""
    digest = zlib.crc32(batch.view[_BEHIND_EPOCHS:], batch.crc)
    return StoredBatch(batch.base_offset, batch.last_offset, batch.leader_epoch, digest)


def _produced(batch: Batch) -> ProducedBatch:
    last = -1 if batch.base_sequence < 0 else (batch.base_sequence + batch.last_offset_delta) & 0x7FFF_FFFF
    begin = batch.base_offset if batch.is_transactional else -1
    return ProducedBatch(
        batch.producer_id, batch.producer_epoch, last, batch.last_offset, begin, is_marker=batch.is_control
    )
