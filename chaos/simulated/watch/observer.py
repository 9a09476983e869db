"""Watches a simulated cluster while it runs, and reads its logs at the end. Never acts on anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from tidelog.chaos.checkers.brokers import LeaderKnowledgeJudge
from tidelog.chaos.checkers.history import History
from tidelog.chaos.checkers.replication import ReplicaLogJudge
from tidelog.chaos.simulated.watch.compaction import CompactionWatch
from tidelog.chaos.simulated.watch.metadata import MetadataWatch
from tidelog.chaos.simulated.watch.progress import ProgressWatch
from tidelog.chaos.simulated.watch.replicas import ReplicaWatch, stored_batch
from tidelog.chaos.simulated.world.log_reading import Undisturbed, batches_of
from tidelog.chaos.simulated.world.loop import Due
from tidelog.chaos.simulated.world.world import World
from tidelog.client.cluster.metadata import MetadataCache
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.ids import NO_NODE, NodeId, TopicIdPartition, TopicPartition
from tidelog.proto.records.decoder import decode_records

SAMPLE_S: Final = 0.2
_NODE: Final = "node"


class Observer:
    """Counts events. Judges nodes and clients after each message, and logs as virtual time passes."""

    def __init__(self, world: World, *, synced: bool = False) -> None:
        """``synced``: acknowledged records are on disks (flush.messages=1), so the judge looks for them there."""
        self._world = world
        self._cluster = world.cluster
        self._logs = ReplicaLogJudge()
        self._metadata = MetadataWatch(world, self._elected, self._partition_changed)
        self.compacted = CompactionWatch(world)
        self._watch = ReplicaWatch(world, self._metadata, self._logs, self.compacted, synced=synced)
        self.clients_stand: Callable[[], bool] = lambda: False
        """Whether a client is paused now."""
        self._progress = ProgressWatch(world, self._metadata, lambda: self.clients_stand())
        self._clients: dict[str, MetadataCache] = {}
        self._versions: dict[str, int] = {}
        self._leaders = LeaderKnowledgeJudge()
        self._touched = ""
        self.moment: Callable[[], None] = lambda: None
        """Called when a message is about to arrive, after everything before it was looked at."""
        self._counts: Counter[str] = Counter()
        self._timer: Due | None = None

    @property
    def events(self) -> Counter[str]:
        """Return the events of the cluster."""
        compacted = Counter({"compacted": min(self.compacted.gone, 1)})
        return self._counts + self._metadata.events + compacted

    @property
    def image(self) -> MetadataImage:
        """Return the newest committed metadata."""
        return self._metadata.image

    @property
    def quiet_since_s(self) -> float | None:
        """Return since when no node is disturbed; None: one is."""
        return self._progress.quiet_since_s

    def begin(self) -> None:
        """Start watching."""
        self._cluster.died.append(self._died)
        self._world.arrived = self._arrived
        self._sample()

    def end(self) -> None:
        """Stop watching."""
        self._world.arrived = lambda name: None
        if self._timer is not None:
            self._timer.cancel()
        for node_id in list(self._cluster.nodes):
            self._died(node_id)

    def client(self, name: str, cache: MetadataCache) -> None:
        """Watch a client's knowledge of leaders."""
        self._clients[name] = cache

    # --- while it runs ------------------------------------------------------------------------------

    def _arrived(self, name: str) -> None:
        """A message is about to be received: look at the receiver of the last one."""
        touched, self._touched = self._touched, name
        self._look(touched)
        self.moment()

    def _look(self, name: str) -> None:
        if name.startswith(_NODE):
            node_id = NodeId(int(name.removeprefix(_NODE)))
            node = self._cluster.nodes.get(node_id)
            if node is not None:
                self._metadata.look(node_id, node)
                self._watch.look(node_id, node)
        elif (cache := self._clients.get(name)) is not None and self._versions.get(name) != cache.version:
            self._versions[name] = cache.version
            for topic in cache.topics.values():
                for found in topic.partitions:
                    key = TopicIdPartition(topic.topic_id, found.partition)
                    self._tell(self._leaders.observe(name, key, found.leader_epoch))

    def _sample(self) -> None:
        self._timer = self._cluster.loop.at(self._cluster.loop.now + SAMPLE_S, self._sample)
        for node_id, node in self._cluster.nodes.items():
            self._metadata.look(node_id, node)
            self._watch.look(node_id, node)
        self._watch.compare_logs()
        self._progress.sample()

    def judge_progress(self, history: History) -> None:
        """Judge whether producers got acknowledgements whenever that was possible."""
        self._tell(self._progress.judge(history))

    def acknowledged(self, at: TopicPartition, offset: int) -> None:
        """A producer got the acknowledgement that a record is safe: two replicas hold it by now."""
        topic = self._metadata.image.topic(at.topic)
        if topic is None:
            return
        key = TopicIdPartition(topic.topic_id, at.partition)
        replicas = topic.partitions[at.partition].replicas
        without = [
            node_id
            for node_id, _, replica in ((n, k, r) for n, k, r in self._watch.replicas() if k == key)
            if node_id in replicas
            and node_id not in self._cluster.lost_data
            and not replica.partition.offline
            and replica.partition.log.log_end_offset <= offset
        ]
        holders = len(replicas) - len(without)
        if holders < 2:
            self._world.violated(f"{at} offset {offset} was acknowledged; nodes {without} do not have it")

    def _elected(self, key: TopicIdPartition, leader_epoch: int, leader: NodeId) -> None:
        if leader != NO_NODE:
            self._tell(self._logs.elected(key, leader_epoch, leader))

    def _partition_changed(self, key: TopicIdPartition) -> None:
        self._watch.judge_members(key)

    def _died(self, node_id: NodeId) -> None:
        """Record the counters of a process before it is gone."""
        node = self._cluster.nodes.get(node_id)
        if node is None or node.broker is None:
            self._watch.died(node_id)
            return
        if not self._cluster.hosts[node_id].ends_in_call:
            self._watch.look(node_id, node)
        self._watch.died(node_id)
        for key, replica in node.broker.replicas.replicas.items():
            counts = replica.partition.counts
            self._counts["truncation"] += counts.truncations
            self._counts["dedup-hit"] += counts.duplicates
            self._counts["read-nearby"] += counts.nearby_reads
            if counts.truncations_below_high_watermark and node_id not in self._cluster.lost_data:
                self._world.violated(f"node {node_id} cut {key} below its high watermark")

    def _tell(self, violations: list[str]) -> None:
        for text in violations:
            self._world.violated(text)

    # --- the end ------------------------------------------------------------------------------------

    def replicas_level(self) -> bool:
        """Return whether all replicas of each partition have the same end, and it is committed."""
        ends: dict[TopicIdPartition, set[int]] = {}
        for _, key, replica in self._watch.replicas():
            found = ends.setdefault(key, set())
            found.add(replica.partition.log.log_end_offset)
            found.add(replica.partition.high_watermark)
        return all(len(found) == 1 for found in ends.values())

    def log_ends(self) -> dict[TopicPartition, int]:
        """Return the end of each partition's log, on the replica that has the most."""
        found: dict[TopicPartition, int] = {}
        for _, key, replica in self._watch.replicas():
            at = TopicPartition(replica.partition.state.topic, key.partition)
            found[at] = max(found.get(at, 0), replica.partition.log.log_end_offset)
        return found

    def waiting(self) -> list[str]:
        """Return what brokers hold for waiting clients."""
        found = []
        for node_id, node in self._cluster.nodes.items():
            replicas = node.broker.replicas if node.broker is not None else None
            if replicas is not None and (replicas.consuming.waiting or replicas.consuming.held_bytes):
                consuming = replicas.consuming
                found.append(f"node {node_id}: {consuming.waiting} fetches wait, hold {consuming.held_bytes} bytes")
        for node_id, key, replica in self._watch.replicas():
            appends = len(replica.committing) + len(replica.vouching)
            if appends or replica.consumers:
                found.append(f"node {node_id} {key}: {appends} appends, {len(replica.consumers)} fetches")
        return found

    def left_to_clean(self) -> dict[str, int]:
        """Return how many records of each replica of a compacted partition are left for its cleaner."""
        found = {}
        for node_id, key, replica in self._watch.replicas():
            if self.compacted.covers(replica.partition.log):
                left = self.compacted.left(node_id, key, replica.partition.log)
                if left:
                    found[f"node {node_id} {replica.partition.state.topic}-{key.partition}"] = left
        return found

    def judge_end(self) -> dict[TopicPartition, list[tuple[int, bytes]]]:
        """Judge all replicas from the start of their logs, now that all is repaired; return the content of the
        partitions, except compacted ones."""
        self._logs.look_again()
        self.compacted.look_again()
        final: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        ends: dict[TopicIdPartition, dict[NodeId, tuple[int, int]]] = {}
        for node_id, key, replica in self._watch.replicas():
            log, mark = replica.partition.log, replica.partition.high_watermark
            ends.setdefault(key, {})[node_id] = (mark, log.log_end_offset)
            if self.compacted.covers(log):
                with Undisturbed(self._cluster.hosts[node_id].files):
                    self._tell(self.compacted.look(node_id, key, replica.partition))
                continue
            with Undisturbed(self._cluster.hosts[node_id].files):
                batches = list(batches_of(log, log.log_start_offset, log.log_end_offset))
            stored = [stored_batch(batch) for batch in batches]
            self._tell(self._logs.observe(key, node_id, log.log_start_offset, mark, log.log_end_offset, stored))
            at = TopicPartition(replica.partition.state.topic, key.partition)
            if at not in final:
                final[at] = [
                    (record.offset, record.value or b"")
                    for batch in batches
                    if not batch.is_control
                    for record in decode_records(batch)
                ]
        for key, found in ends.items():
            self._tell(self._logs.settled(key, found))
        self._tell(self.compacted.apart())
        return final

    def standing(self) -> str:
        """Describe the state of everything, for a violation's text."""
        cluster = self._cluster
        lines = [f"at {self._world.now_s:.3f} s"]
        for node_id, host in cluster.hosts.items():
            node = cluster.nodes.get(node_id)
            if node is None:
                why = [text for refused, text in cluster.refused if refused == node_id][-1:]
                lines.append(": it last refused to start: ".join([f"node {node_id} is down", *why]))
                continue
            lines.append(
                f"node {node_id}: {node.standing} controller {node.known_leader} image {node.view.image.offset} "
                f"active {node.is_active_controller} starting {host.starting is not None} paused {host.process.paused}"
            )
        for node_id, key, replica in self._watch.replicas():
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
