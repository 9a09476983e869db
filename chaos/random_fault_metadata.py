"""Follows the metadata of a cluster in this process in real time: every committed entry, every node's image."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Final

from tidelog.broker.node import Node
from tidelog.chaos.checkers.brokers import fenced_in_charge, offline_leader
from tidelog.chaos.checkers.metadata import ImageJudge, StandingJudge
from tidelog.chaos.sim.metadata_watch import standing_of
from tidelog.metadata_quorum.controller_node import ControllerNode
from tidelog.metadata_quorum.image import MetadataImage
from tidelog.metadata_quorum.image_change import MetadataDelta
from tidelog.model.ids import NO_NODE, NodeId, TopicIdPartition, TopicPartition
from tidelog.proto.metadata import PartitionRecord

_QUORUM: Final = NO_NODE
"""Stands for the quorum where images are compared: what it committed is looked at as one more node's."""

Tell = Callable[[list[str]], None]
Elected = Callable[[TopicIdPartition, int, NodeId], list[str]]


class MetadataLook:
    """Judges metadata as they are committed, and nodes' images whenever they are looked at.

    ``elected`` judges each leader that the committed metadata name; ``changed`` is told of each partition
    whose committed state is another now.
    """

    def __init__(self, tell: Tell, elected: Elected, changed: Callable[[TopicIdPartition], None]) -> None:
        self.image = MetadataImage()
        """The newest committed."""
        self.history: dict[TopicPartition, list[str]] = defaultdict(list)
        """Who led what, with which in-sync replicas, from when on."""
        self.partitions: dict[TopicIdPartition, PartitionRecord] = {}
        self._tell = tell
        self._elected = elected
        self._partition_changed = changed
        self._images = ImageJudge()
        self._standings = StandingJudge()
        self._brokers: dict[NodeId, tuple[int, bool]] = {}
        self._controllers: dict[NodeId, ControllerNode] = {}
        self._active: dict[int, NodeId] = {}
        self._looked_at: dict[NodeId, MetadataImage] = {}

    def restarted(self, node_id: NodeId) -> None:
        """Another process runs as this node."""
        self._images.restarted(node_id)
        self._looked_at.pop(node_id, None)

    def look(self, node_id: NodeId, node: Node) -> None:
        """Look at a node that runs."""
        controller = node.controller
        if controller is not None:
            if self._controllers.get(node_id) is not controller:
                self._controllers[node_id] = controller
                controller.subscribe(self._committed)
            if controller.active:
                epoch = int(controller.controller.epoch)
                known = self._active.setdefault(epoch, node_id)
                if known != node_id:
                    self._tell([f"nodes {known} and {node_id} are active controllers in epoch {epoch}"])
        image = node.view.image
        if image.offset >= 0 and self._looked_at.get(node_id) is not image:
            self._looked_at[node_id] = image
            self._tell(self._images.observe(node_id, image.offset, image.epoch, _content(image)))

    # --- steps --------------------------------------------------------------------------------------

    def _committed(self, image: MetadataImage, _: MetadataDelta) -> None:
        """A controller heard of a committed entry; each of them does, this is for the first."""
        if image.offset < 0:
            return
        self._tell(self._images.committed(image.offset, image.epoch))
        if image.offset <= self.image.offset:
            return
        self._tell(self._images.observe(_QUORUM, image.offset, image.epoch, _content(image)))
        if image.offset != self.image.offset + 1:
            # Entries between were heard of by nobody who was looked at: what follows is judged from here on.
            self._standings = StandingJudge()
            self._brokers.clear()
        self.image = image
        at_s = asyncio.get_running_loop().time()
        for node_id, broker in sorted(image.brokers.items()):
            standing = (int(broker.broker_epoch), broker.fenced)
            if self._brokers.get(node_id) != standing:
                self._brokers[node_id] = standing
                self._tell(self._standings.broker(node_id, standing[0], fenced=broker.fenced, at_s=at_s))
        fenced = [node_id for node_id, (_, is_fenced) in self._brokers.items() if is_fenced]
        for topic in sorted(image.topics.values(), key=lambda topic: topic.name):
            for number, found in sorted(topic.partitions.items()):
                key = TopicIdPartition(topic.topic_id, number)
                self._tell(fenced_in_charge(key, found.leader, found.isr, fenced))
                before = self.partitions.get(key)
                if before is not found:
                    self.partitions[key] = found
                    self._changed(key, TopicPartition(topic.name, number), before, found, at_s)

    def _changed(
        self,
        key: TopicIdPartition,
        at: TopicPartition,
        before: PartitionRecord | None,
        now: PartitionRecord,
        at_s: float,
    ) -> None:
        self._tell(self._standings.partition(standing_of(key, now), unclean=now.leader_recovery))
        if now.leader != NO_NODE:
            self._tell(self._elected(key, now.leader_epoch, now.leader))
        if before is None or before.leader_epoch != now.leader_epoch:
            self._tell(offline_leader(key, now.leader, online=self.image.has_online_directory(now.leader, now)))
        self._partition_changed(key)
        self.history[at].append(
            f"{at_s:.3f} partition epoch {now.partition_epoch}: leader {now.leader} epoch {now.leader_epoch} "
            f"isr {now.isr} elr {now.eligible_leader_replicas} last {now.last_known_elr}"
        )


def _content(image: MetadataImage) -> Hashable:
    """What an image holds, to be compared."""
    return hash(
        (
            tuple(sorted((node, b.broker_epoch, b.fenced) for node, b in image.brokers.items())),
            tuple(
                (topic.name, number, p.leader, p.leader_epoch, p.partition_epoch, p.isr, p.eligible_leader_replicas)
                for topic in sorted(image.topics.values(), key=lambda topic: topic.name)
                for number, p in sorted(topic.partitions.items())
            ),
            image.next_producer_id,
        )
    )
