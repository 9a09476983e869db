"""What watches a simulated cluster while it runs, and reads its logs at the end. Acts on nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from tidelog.broker.node import Node
from tidelog.chaos.checkers.replication import ReplicaLogJudge, StoredBatch, marks_behind, members_behind
from tidelog.chaos.sim.loop import Due
from tidelog.chaos.sim.metadata_watch import MetadataWatch
from tidelog.chaos.sim.world import World
from tidelog.model.ids import NO_NODE, NodeId, TopicIdPartition, TopicPartition
from tidelog.proto.record_decoder import decode_records
from tidelog.proto.records import Batch, split_batches
from tidelog.replication.replica import Replica
from tidelog.storage.log import Log
from tidelog.storage.log_errors import LogDirFailed
from tidelog.storage.log_read import LogRead
from tidelog.storage.memory_files import Faults, MemoryFiles

SAMPLE_S: Final = 0.05
READ_BYTES: Final = 1 << 20


class Observer:
    """Counts events and judges the state of nodes, sampled as virtual time passes."""

    def __init__(self, world: World, topic: str) -> None:
        self._world = world
        self._cluster = world.cluster
        self._topic = topic
        self._logs = ReplicaLogJudge()
        self._metadata = MetadataWatch(world, self._elected)
        self._committed_ends: dict[TopicIdPartition, int] = {}
        self._counts: Counter[str] = Counter()
        self._timer: Due | None = None

    @property
    def events(self) -> Counter[str]:
        """What the cluster went through."""
        return self._counts + self._metadata.events

    def begin(self) -> None:
        """Look from now on."""
        self._cluster.died.append(self._died)
        self._sample()

    def end(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        for node_id in list(self._cluster.nodes):
            self._died(node_id)

    # --- while it runs ------------------------------------------------------------------------------

    def _sample(self) -> None:
        self._timer = self._cluster.loop.at(self._cluster.loop.now + SAMPLE_S, self._sample)
        self._metadata.sample()
        for node_id, key, replica in self._replicas():
            partition = replica.partition
            log = partition.log
            if partition.offline or log.closed:
                continue
            if partition.leading is not None:
                self._tell(self._logs.leads(key, partition.leader_epoch, node_id, log.log_end_offset))
                self._judge_marks(node_id, key, replica)
            mark, end = partition.high_watermark, log.log_end_offset
            if mark > self._committed_ends.get(key, 0):
                self._committed_ends[key] = mark
            wanted = self._logs.wanted(key, node_id, log.log_start_offset, mark, end)
            if wanted is not None:
                try:
                    with _Undisturbed(self._cluster.hosts[node_id].files):
                        batches = [_stored(batch) for batch in _batches(log, wanted, end)]
                except LogDirFailed:
                    continue  # its directory has failed, which the node is about to find out
                self._tell(self._logs.observe(key, node_id, log.log_start_offset, mark, end, batches))
        self._judge_members()

    def _judge_members(self) -> None:
        """Whoever may be elected safely holds what was committed."""
        image = self._metadata.image
        for key, found in self._metadata.partitions.items():
            if found.leader_recovery:
                self._committed_ends.pop(key, None)  # elected uncleanly: what was committed may be gone
                continue
            ends = {}
            for node_id in (*found.isr, *found.eligible_leader_replicas):
                node, registered = self._cluster.nodes.get(node_id), image.broker(node_id)
                replica = None if node is None else _replica_of(node, key)
                if node is None or node.broker is None or replica is None or registered is None:
                    continue
                partition = replica.partition
                is_it = node.broker.broker_epoch() == registered.broker_epoch
                if is_it and not partition.offline and not partition.log.closed:
                    ends[node_id] = partition.log.log_end_offset
            committed = self._committed_ends.get(key, 0)
            self._tell(members_behind(key, committed, ends, found.isr, found.eligible_leader_replicas))

    def acknowledged(self, at: TopicPartition, offset: int) -> None:
        """A producer was told that a record is there, for good: two replicas hold it by now."""
        topic = self._metadata.image.topic(at.topic)
        if topic is None:
            return
        key = TopicIdPartition(topic.topic_id, at.partition)
        without = [
            node_id
            for node_id, _, replica in ((n, k, r) for n, k, r in self._replicas() if k == key)
            if node_id not in self._cluster.lost_data
            and not replica.partition.offline
            and replica.partition.log.log_end_offset <= offset
        ]
        holders = len(topic.partitions[at.partition].replicas) - len(without)
        if holders < 2:
            self._world.violated(f"{at} offset {offset} was acknowledged; nodes {without} do not have it")

    def _judge_marks(self, node_id: NodeId, key: TopicIdPartition, replica: Replica) -> None:
        partition = replica.partition
        assert partition.leading is not None
        ends: dict[NodeId, int] = {}
        for other, node in self._cluster.nodes.items():
            found = _replica_of(node, key)
            if found is None or other in self._cluster.lost_data:
                continue
            if found.partition.leader_epoch <= partition.leader_epoch and not found.partition.offline:
                ends[other] = found.partition.log.log_end_offset
        isr = partition.leading.isr.committed
        self._tell(marks_behind(key, node_id, partition.high_watermark, ends, isr))

    def _elected(self, key: TopicIdPartition, leader_epoch: int, leader: NodeId) -> None:
        if leader != NO_NODE:
            self._tell(self._logs.elected(key, leader_epoch, leader))

    def _died(self, node_id: NodeId) -> None:
        """Take down what a process counted, before it is gone."""
        self._logs.restarted(node_id)
        node = self._cluster.nodes.get(node_id)
        if node is None or node.broker is None:
            return
        for key, replica in node.broker.replicas.replicas.items():
            counts = replica.partition.counts
            self._counts["truncation"] += counts.truncations
            self._counts["dedup-hit"] += counts.duplicates
            if counts.truncations_below_high_watermark and node_id not in self._cluster.lost_data:
                self._world.violated(f"node {node_id} cut {key} below its high watermark")

    def _tell(self, violations: list[str]) -> None:
        for text in violations:
            self._world.violated(text)

    def _replicas(self) -> Iterator[tuple[NodeId, TopicIdPartition, Replica]]:
        for node_id, node in self._cluster.nodes.items():
            if node.broker is not None:
                for key, replica in node.broker.replicas.replicas.items():
                    yield node_id, key, replica

    # --- the end ------------------------------------------------------------------------------------

    def replicas_level(self) -> bool:
        """Whether all replicas of each partition have the same end, and it is committed."""
        ends: dict[TopicIdPartition, set[int]] = {}
        for _, key, replica in self._replicas():
            found = ends.setdefault(key, set())
            found.add(replica.partition.log.log_end_offset)
            found.add(replica.partition.high_watermark)
        return all(len(found) == 1 for found in ends.values())

    def log_ends(self) -> dict[TopicPartition, int]:
        """The end of each partition's log."""
        return {
            TopicPartition(self._topic, key.partition): replica.partition.log.log_end_offset
            for _, key, replica in self._replicas()
        }

    def judge_end(self) -> dict[TopicPartition, list[tuple[int, bytes]]]:
        """Judge all replicas from their beginning, now that all is mended; return what the partitions hold."""
        self._metadata.compare_images()
        self._logs.look_again()
        final: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        ends: dict[TopicIdPartition, dict[NodeId, tuple[int, int]]] = {}
        for node_id, key, replica in self._replicas():
            log, mark = replica.partition.log, replica.partition.high_watermark
            with _Undisturbed(self._cluster.hosts[node_id].files):
                batches = list(_batches(log, log.log_start_offset, log.log_end_offset))
            stored = [_stored(batch) for batch in batches]
            self._tell(self._logs.observe(key, node_id, log.log_start_offset, mark, log.log_end_offset, stored))
            ends.setdefault(key, {})[node_id] = (mark, log.log_end_offset)
            at = TopicPartition(self._topic, key.partition)
            if at not in final:
                final[at] = [
                    (record.offset, record.value or b"")
                    for batch in batches
                    if not batch.is_control
                    for record in decode_records(batch)
                ]
        for key, found in ends.items():
            self._tell(self._logs.settled(key, found))
        return final

    def standing(self) -> str:
        """How everything stands, for a violation's text."""
        cluster = self._cluster
        lines = [f"at {self._world.now_s:.3f} s"]
        for node_id, host in cluster.hosts.items():
            node = cluster.nodes.get(node_id)
            if node is None:
                lines.append(f"node {node_id} is down")
                continue
            lines.append(
                f"node {node_id}: {node.standing} controller {node.known_leader} image {node.view.image.offset} "
                f"active {node.is_active_controller} starting {host.starting is not None} paused {host.process.paused}"
            )
        for node_id, key, replica in self._replicas():
            partition = replica.partition
            what = (
                f"node {node_id} {partition.state.topic}-{key.partition}: leader {partition.state.leader}/"
                f"{partition.leader_epoch} hw {partition.high_watermark} of {partition.log.log_end_offset}"
            )
            if partition.leading is not None:
                what += f" leads, isr {partition.leading.isr.committed} asks {partition.leading.isr.proposal}"
            lines.append(what)
        for topic in cluster.image.topics.values() if cluster.nodes else ():
            for number, found in sorted(topic.partitions.items()):
                lines.append(
                    f"{topic.name}-{number}: leader {found.leader}/{found.leader_epoch} epoch {found.partition_epoch} "
                    f"isr {found.isr} elr {found.eligible_leader_replicas} last {found.last_known_elr}"
                )
        return "".join(f"\n    {line}" for line in lines)


class _Undisturbed:
    """While a node's log is looked at from outside, its disk neither fails nor counts."""

    def __init__(self, files: MemoryFiles | None) -> None:
        assert files is not None
        self._files = files

    def __enter__(self) -> None:
        self._faults = self._files.faults
        self._files.faults = Faults()

    def __exit__(self, *raised: object) -> None:
        self._files.faults = self._faults


def _replica_of(node: Node, key: TopicIdPartition) -> Replica | None:
    return None if node.broker is None else node.broker.replicas.replicas.get(key)


def _batches(log: Log, offset: int, end: int) -> Iterator[Batch]:
    while offset < end:
        read = log.read(offset, READ_BYTES, offset_end=end)
        assert isinstance(read, LogRead), read
        yield from split_batches(bytes(read.records))
        offset = read.next_offset


def _stored(batch: Batch) -> StoredBatch:
    return StoredBatch(batch.base_offset, batch.last_offset, batch.leader_epoch, batch.crc)
