"""What watches a simulated cluster while it runs, and reads its logs at the end. Acts on nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Final

from tidelog.chaos.sim.world import World
from tidelog.metadata_quorum.image import MetadataImage
from tidelog.model.ids import NodeId, TopicPartition
from tidelog.proto.record_decoder import decode_records
from tidelog.proto.records import split_batches
from tidelog.storage.log_read import LogRead

SAMPLE_S: Final = 0.05


class Observer:
    """Counts events and judges the state of nodes, sampled as virtual time passes."""

    def __init__(self, world: World, topic: str) -> None:
        self.events: Counter[str] = Counter()
        self._world = world
        self._cluster = world.cluster
        self._topic = topic
        self._known: dict[tuple[str, int, int], tuple[Any, ...]] = {}
        self._latest: dict[tuple[str, int], tuple[Any, ...]] = {}
        self._leaders: dict[tuple[str, int, int], NodeId] = {}
        self._controllers: dict[int, NodeId] = {}
        self._newest: MetadataImage | None = None
        self._seen: dict[int, tuple[object, int]] = {}
        self._over = False

    def begin(self) -> None:
        """Look from now on."""
        self._cluster.died.append(self._died)
        self._sample()

    def end(self) -> None:
        """Look no more."""
        self._over = True
        for node_id in list(self._cluster.nodes):
            self._died(node_id)

    def _sample(self) -> None:
        if self._over:
            return
        for node_id, node in self._cluster.nodes.items():
            if node.controller is not None and node.controller.active:
                self._judge_controller(node_id, node.controller.controller.epoch)
            image = node.view.image
            known = self._seen.get(node_id)
            if known is not None and known[0] is node and known[1] == image.offset:
                continue
            if known is not None and known[0] is node and image.offset < known[1]:
                self._world.violated(f"node {node_id}: metadata went back from offset {known[1]} to {image.offset}")
            self._seen[node_id] = (node, image.offset)
            self._judge_image(node_id, image)
        self._cluster.loop.at(self._cluster.loop.now + SAMPLE_S, self._sample)

    def _judge_controller(self, node_id: NodeId, epoch: int) -> None:
        known = self._controllers.get(epoch)
        if known is None:
            self._controllers[epoch] = node_id
            self.events["election"] += 1
            self._world.note(f"node {node_id} is the active controller, epoch {epoch}")
        elif known != node_id:
            self._world.violated(f"controllers {known} and {node_id} in epoch {epoch}")

    def _judge_image(self, node_id: NodeId, image: MetadataImage) -> None:
        for topic in image.topics.values():
            for number, found in topic.partitions.items():
                what = (found.leader, found.leader_epoch, found.isr, found.eligible_leader_replicas)
                key = (topic.name, number, found.partition_epoch)
                known = self._known.get(key)
                if known is None:
                    self._known[key] = what
                    self._changed(topic.name, number, found.partition_epoch, what)
                elif known != what:
                    self._world.violated(f"metadata of {key} is {what} on node {node_id}, was {known}")
                leader = self._leaders.setdefault((topic.name, number, found.leader_epoch), found.leader)
                if leader != found.leader and leader >= 0 and found.leader >= 0:
                    self._world.violated(f"{key}: leaders {leader} and {found.leader} in epoch {found.leader_epoch}")

    def _changed(self, topic: str, number: int, epoch: int, what: tuple[Any, ...]) -> None:
        before = self._latest.get((topic, number))
        self._latest[topic, number] = what
        self._world.note(
            f"{topic}-{number} partition epoch {epoch}: leader {what[0]}/{what[1]} isr {what[2]} elr {what[3]}"
        )
        if before is None:
            return
        if before[0] != what[0]:
            self.events["leader-change"] += 1
        if len(what[2]) < len(before[2]):
            self.events["isr-shrink"] += 1
        if len(what[2]) > len(before[2]):
            self.events["isr-growth"] += 1

    def _died(self, node_id: NodeId) -> None:
        """Take down what a process counted."""
        node = self._cluster.nodes.get(node_id)
        if node is None or node.broker is None:
            return
        for key, replica in node.broker.replicas.replicas.items():
            counts = replica.partition.counts
            self.events["truncation"] += counts.truncations
            self.events["dedup-hit"] += counts.duplicates
            if counts.truncations_below_high_watermark:
                self._world.violated(f"node {node_id} cut {key} below its high watermark")

    # --- the end ------------------------------------------------------------------------------------

    def replicas_level(self) -> bool:
        """Whether all replicas of a partition have the same end, and it is committed."""
        ends: dict[Any, set[int]] = defaultdict(set)
        for node in self._cluster.nodes.values():
            assert node.broker is not None
            for key, replica in node.broker.replicas.replicas.items():
                ends[key].add(replica.partition.log.log_end_offset)
                ends[key].add(replica.partition.high_watermark)
        return all(len(found) == 1 for found in ends.values())

    def log_ends(self) -> dict[TopicPartition, int]:
        """The end of each partition's log."""
        topic = self._cluster.image.topic(self._topic)
        assert topic is not None
        ends: dict[TopicPartition, int] = {}
        for node in self._cluster.nodes.values():
            assert node.broker is not None
            for key, replica in node.broker.replicas.replicas.items():
                if key.topic_id == topic.topic_id:
                    ends[TopicPartition(self._topic, key.partition)] = replica.partition.log.log_end_offset
        return ends

    def judge_replicas(self) -> dict[TopicPartition, list[tuple[int, bytes]]]:
        """Judge that replicas are equal byte for byte; return what the partitions hold."""
        contents: dict[Any, dict[bytes, list[NodeId]]] = defaultdict(lambda: defaultdict(list))
        for node_id, node in sorted(self._cluster.nodes.items()):
            assert node.broker is not None
            for key, replica in node.broker.replicas.replicas.items():
                partition = replica.partition
                offset, end = partition.log.log_start_offset, partition.high_watermark
                pieces = []
                while offset < end:
                    read = partition.log.read(offset, 1 << 20, offset_end=end)
                    assert isinstance(read, LogRead), read
                    pieces.append(bytes(read.records))
                    offset = read.next_offset
                contents[key][b"".join(pieces)].append(node_id)
        final: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        for key, found in contents.items():
            if len(found) > 1:
                self._world.violated(
                    f"{key}: replicas differ: "
                    + ", ".join(f"{len(data)} bytes on {nodes}" for data, nodes in found.items())
                )
            data = next(iter(found))
            at = TopicPartition(self._topic, key.partition)
            final[at] = [
                (record.offset, record.value or b"")
                for batch in split_batches(data)
                if not batch.is_control
                for record in decode_records(batch)
            ]
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
            replicas = {} if node.broker is None else node.broker.replicas.replicas
            for key, replica in replicas.items():
                partition = replica.partition
                what = (
                    f"  {partition.state.topic}-{key.partition}: leader {partition.state.leader}/"
                    f"{partition.leader_epoch} hw {partition.high_watermark} of {partition.log.log_end_offset}"
                )
                if partition.leading is not None:
                    what += f" leads, isr {partition.leading.isr.committed} asks {partition.leading.isr.proposal}"
                lines.append(what)
        for topic in cluster.image.topics.values() if cluster.nodes else ():
            for number, found in topic.partitions.items():
                lines.append(
                    f"{topic.name}-{number}: leader {found.leader}/{found.leader_epoch} epoch {found.partition_epoch} "
                    f"isr {found.isr} elr {found.eligible_leader_replicas} last {found.last_known_elr}"
                )
        return "".join(f"\n    {line}" for line in lines)
