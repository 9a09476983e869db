"""Watches a cluster in this process while faults happen to it in real time, and reads its logs at the end.

Acts on nothing. What it sees between two looks, :data:`SAMPLE_S` apart, is for the shared judges of
:mod:`tidelog.chaos.checkers`; what nodes count themselves is looked at when they end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from tidelog.broker.node import Node
from tidelog.chaos.checkers.history import NO_OFFSET
from tidelog.chaos.checkers.replica_state import NO_LEADERSHIP, MarkJudge
from tidelog.chaos.checkers.replication import ReplicaLogJudge, marks_behind, members_behind
from tidelog.chaos.random_fault_metadata import MetadataLook
from tidelog.chaos.sim.log_reading import batches_of
from tidelog.chaos.sim.replica_watch import replica_of, stored_batch
from tidelog.model.ids import NO_NODE, NodeId, TopicIdPartition, TopicPartition
from tidelog.proto.record_decoder import decode_records
from tidelog.replication.partition import Partition
from tidelog.replication.replica import Replica
from tidelog.testing.async_cluster import AsyncCluster

SAMPLE_S: Final = 0.01
COMPARED_EVERY: Final = 20
"""Looks from one comparison of logs to the next."""


class ClusterWatch:
    """Judges nodes, their metadata and their replicas as time passes; ``violated`` is told what it finds."""

    def __init__(self, cluster: AsyncCluster, violated: Callable[[str], None]) -> None:
        self.lost_power: set[NodeId] = set()
        """Nodes that may lack what they had before."""
        self._cluster = cluster
        self._violated = violated
        self._logs = ReplicaLogJudge()
        self._marks = MarkJudge()
        self.metadata = MetadataLook(self._tell, self._logs.elected, self._judge_members)
        self._nodes: dict[NodeId, Node] = {}
        self._seen: dict[tuple[NodeId, TopicIdPartition], tuple[int, int, int]] = {}
        """High watermark, log end and leadership of a replica when it was looked at last."""
        self._committed_ends: dict[TopicIdPartition, int] = {}
        self._ends: dict[NodeId, dict[TopicIdPartition, int]] = {}
        """Log ends of a node's process when it died."""

    async def run(self) -> None:
        """Look at everything again and again, until cancelled."""
        looks = 0
        while True:
            self.look()
            looks += 1
            if looks % COMPARED_EVERY == 0:
                self._compare_logs()
            await asyncio.sleep(SAMPLE_S)

    def look(self) -> None:
        """Look at every node that runs: metadata first, since replicas are judged by them."""
        for node_id, node in self._cluster.nodes.items():
            if self._nodes.get(node_id) is not node:
                self._nodes[node_id] = node
                self.metadata.restarted(node_id)
                self._marks.restarted(node_id)
                self._logs.restarted(node_id)
                for seen in [seen for seen in self._seen if seen[0] == node_id]:
                    del self._seen[seen]
            self.metadata.look(node_id, node)
        moved = [key for node_id, key, replica in self.replicas() if self._moved(node_id, key, replica.partition)]
        for key in dict.fromkeys(moved):
            self._judge_members(key)

    # --- told by who deals out the faults -----------------------------------------------------------

    def dies(self, node_id: NodeId, *, stops: bool = False) -> None:
        """A node's process is about to end; ``stops``: in good order, so that its logs may yet grow."""
        self.look()
        self._ends.pop(node_id, None)
        node = self._cluster.nodes.get(node_id)
        if node is None or node.broker is None:
            return
        replicas = node.broker.replicas.replicas
        if not stops:
            self._ends[node_id] = {key: replica.partition.log.log_end_offset for key, replica in replicas.items()}
        self._judge_truncations(node_id, node)

    def loses_power(self, node_id: NodeId) -> None:
        """A node that died lost something of what it had not synced."""
        self._ends.pop(node_id, None)
        self.lost_power.add(node_id)

    def opened(self, node_id: NodeId) -> None:
        """A node's next process has opened its logs and done nothing else: they are as they were."""
        node = self._cluster.nodes.get(node_id)
        if node is None or node._logs is None:
            return
        for key, end in self._ends.pop(node_id, {}).items():
            found = node._logs.get(*key)
            if found is None or found.log_end_offset != end:
                self._violated(f"node {node_id} died with {key} at {end}, starts with {found and found.log_end_offset}")

    def acknowledged(self, at: TopicPartition, offset: int) -> None:
        """A producer was told that a record is there, for good: two replicas hold it by now."""
        topic = self.metadata.image.topic(at.topic)
        if topic is None or offset == NO_OFFSET:
            return
        key = TopicIdPartition(topic.topic_id, at.partition)
        found = [(node_id, replica_of(node, key)) for node_id, node in sorted(self._cluster.nodes.items())]
        without = [node_id for node_id, replica in found if replica is not None and not _has(replica.partition, offset)]
        if len(topic.partitions[at.partition].replicas) - len(without) < 2:
            self._violated(f"{at} offset {offset} was acknowledged; nodes {without} do not have it")

    # --- the end ------------------------------------------------------------------------------------

    def replicas_level(self) -> bool:
        """Whether all replicas of each partition are there, with the same end, and it is committed."""
        ends: dict[TopicIdPartition, list[int]] = {key: [] for key in self.metadata.partitions}
        for _, key, replica in self.replicas():
            ends.setdefault(key, []).extend((replica.partition.log.log_end_offset, replica.partition.high_watermark))
        return all(
            len(set(found)) == 1 and len(found) == 2 * len(self.metadata.partitions[key].replicas)
            for key, found in ends.items()
        )

    def isr_whole(self) -> bool:
        """Whether each partition has a leader and all its replicas in sync, as the newest image has it."""
        return all(
            len(found.isr) == len(found.replicas) and found.leader != NO_NODE
            for topic in self._cluster.image.topics.values()
            for found in topic.partitions.values()
        )

    def judge_end(self) -> dict[TopicPartition, list[tuple[int, bytes]]]:
        """Judge every replica from its beginning, now that all is mended; return what each partition holds
        below the highest high watermark of its replicas."""
        self.look()
        self._logs.look_again()
        marks: dict[TopicIdPartition, dict[NodeId, tuple[int, int]]] = {}
        final: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        highest: dict[TopicPartition, int] = {}
        for node_id, key, replica in self.replicas():
            log, mark = replica.partition.log, replica.partition.high_watermark
            marks.setdefault(key, {})[node_id] = (mark, log.log_end_offset)
            batches = list(batches_of(log, log.log_start_offset, log.log_end_offset))
            stored = [stored_batch(batch) for batch in batches]
            self._tell(self._logs.observe(key, node_id, log.log_start_offset, mark, log.log_end_offset, stored))
            at = TopicPartition(replica.partition.state.topic, key.partition)
            if mark > highest.get(at, NO_OFFSET):
                highest[at] = mark
                final[at] = [
                    (record.offset, record.value or b"")
                    for batch in batches
                    if batch.last_offset < mark and not batch.is_control
                    for record in decode_records(batch)
                ]
        for key, found in marks.items():
            self._tell(self._logs.settled(key, found))
        for node_id, node in self._cluster.nodes.items():
            self._judge_truncations(node_id, node)
        return final

    def waiting(self) -> list[str]:
        """What still waits on brokers."""
        found = []
        for node_id, node in self._cluster.nodes.items():
            assert node.broker is not None
            consuming = node.broker.replicas.consuming
            if consuming.waiting or consuming.held_bytes:
                found.append(f"node {node_id}: {consuming.waiting} fetches wait, hold {consuming.held_bytes} bytes")
        for node_id, key, replica in self.replicas():
            appends = len(replica.committing) + len(replica.vouching)
            if appends or replica.consumers:
                found.append(f"node {node_id} {key}: {appends} appends, {len(replica.consumers)} fetches")
        return found

    def standing(self) -> list[str]:
        """How everything stands, for a violation's text."""
        lines = [
            f"{topic.name}-{number}: leader {found.leader} epoch {found.leader_epoch}/{found.partition_epoch} "
            f"isr {found.isr} elr {found.eligible_leader_replicas}"
            for topic in self._cluster.image.topics.values()
            for number, found in topic.partitions.items()
            if len(found.isr) < len(found.replicas) or found.leader == NO_NODE
        ]
        lines += [
            f"node {node_id}: {node.standing} controller {node.known_leader} image {node.view.image.offset} "
            f"active {node.is_active_controller}"
            for node_id, node in sorted(self._cluster.nodes.items())
        ]
        for node_id, key, replica in self.replicas():
            partition = replica.partition
            what = f"node {node_id} {partition.state.topic}-{key.partition}: {partition.state.leader}/"
            what += f"{partition.leader_epoch} {partition.high_watermark} of {partition.log.log_end_offset}"
            if partition.leading is not None:
                isr = partition.leading.isr
                followers = {n: f.log_end_offset for n, f in partition.leading.followers.items()}
                what += f" leads, isr {isr.committed} asks {isr.proposal} {followers} {len(replica.committing)} wait"
            lines.append(what)
        return lines

    # --- steps --------------------------------------------------------------------------------------

    def replicas(self) -> Iterator[tuple[NodeId, TopicIdPartition, Replica]]:
        """Every replica of every node that runs whose log is open."""
        for node_id, node in self._cluster.nodes.items():
            if node.broker is not None:
                for key, replica in node.broker.replicas.replicas.items():
                    if not replica.partition.offline and not replica.partition.log.closed:
                        yield node_id, key, replica

    def _moved(self, node_id: NodeId, key: TopicIdPartition, partition: Partition) -> bool:
        """Judge a replica if it is not as it was; whether it was judged."""
        mark, end, leading = partition.high_watermark, partition.log.log_end_offset, partition.leading
        now = (mark, end, NO_LEADERSHIP if leading is None else int(leading.epoch))
        if self._seen.get((node_id, key)) == now:
            return False
        self._seen[node_id, key] = now
        self._committed_ends[key] = max(mark, self._committed_ends.get(key, 0))
        self._tell(self._marks.observe(key, node_id, now[2], mark, end))
        if leading is not None:
            self._tell(self._logs.leads(key, partition.leader_epoch, node_id, end))
            ends: dict[NodeId, int] = {}
            for other, node in self._cluster.nodes.items():
                found = replica_of(node, key)
                if found is None or other in self.lost_power or found.partition.offline:
                    continue
                if found.partition.leader_epoch <= partition.leader_epoch:
                    ends[other] = found.partition.log.log_end_offset
            self._tell(marks_behind(key, node_id, mark, ends, leading.isr.committed))
        return True

    def _judge_members(self, key: TopicIdPartition) -> None:
        """Whoever may be elected safely holds what was committed."""
        known = self.metadata.partitions.get(key)
        if known is None or known.leader_recovery:
            return
        ends = {}
        for node_id in (*known.isr, *known.eligible_leader_replicas):
            node, registered = self._cluster.nodes.get(node_id), self.metadata.image.broker(node_id)
            replica = None if node is None else replica_of(node, key)
            if node is None or node.broker is None or replica is None or registered is None:
                continue
            partition = replica.partition
            if node.broker.broker_epoch() == registered.broker_epoch and not partition.offline:
                ends[node_id] = partition.log.log_end_offset
        committed = self._committed_ends.get(key, 0)
        self._tell(members_behind(key, committed, ends, known.isr, known.eligible_leader_replicas))

    def _judge_truncations(self, node_id: NodeId, node: Node) -> None:
        assert node.broker is not None
        for key, replica in node.broker.replicas.replicas.items():
            if replica.partition.counts.truncations_below_high_watermark:
                self._violated(f"node {node_id} cut {key} below its high watermark")

    def _compare_logs(self) -> None:
        """Compare what is new below high watermarks with what the other replicas have."""
        for node_id, key, replica in self.replicas():
            log, mark = replica.partition.log, replica.partition.high_watermark
            wanted = self._logs.wanted(key, node_id, log.log_start_offset, mark, log.log_end_offset)
            if wanted is not None:
                batches = [stored_batch(batch) for batch in batches_of(log, wanted, log.log_end_offset)]
                self._tell(self._logs.observe(key, node_id, log.log_start_offset, mark, log.log_end_offset, batches))

    def _tell(self, violations: list[str]) -> None:
        for text in violations:
            self._violated(text)


def _has(partition: Partition, offset: int) -> bool:
    return partition.offline or partition.log.log_end_offset > offset
