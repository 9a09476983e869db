"""Follows the metadata of a simulated cluster: every committed entry, every node's image, what brokers are granted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from tidelog.broker.lifecycle_state import Standing
from tidelog.broker.node import Node
from tidelog.chaos.checkers.brokers import (
    ChangeJudge,
    Registered,
    Running,
    broker_changed,
    fenced_in_charge,
    offline_leader,
)
from tidelog.chaos.checkers.metadata import ImageJudge, PartitionStanding, StandingJudge
from tidelog.chaos.checkers.moves import moved
from tidelog.chaos.sim.world import World
from tidelog.metadata_quorum.controller_node import ControllerNode
from tidelog.metadata_quorum.image import MetadataImage
from tidelog.metadata_quorum.image_change import MetadataDelta
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId, TopicIdPartition
from tidelog.proto.controller_api import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from tidelog.proto.metadata import PartitionRecord

Elected = Callable[[TopicIdPartition, int, NodeId], None]
"""Told of each leader that the committed metadata name: partition, leader epoch, leader."""


class MetadataWatch:
    """Judges metadata as they are committed. ``events`` counts what happened to partitions."""

    def __init__(
        self, world: World, elected: Elected, changed: Callable[[TopicIdPartition], None] = lambda key: None
    ) -> None:
        """``changed``: told of each partition whose committed state is another now."""
        self.events: Counter[str] = Counter()
        self._world = world
        self._elected = elected
        self._partition_changed = changed
        self._changes = ChangeJudge()
        self._images = ImageJudge()
        self._standings = StandingJudge()
        self.image = MetadataImage()
        """The newest committed."""
        self.partitions: dict[TopicIdPartition, PartitionRecord] = {}
        self._brokers: dict[NodeId, Registered] = {}
        self._offset = -1
        self._controllers: dict[NodeId, ControllerNode] = {}
        self._nodes: dict[NodeId, Node] = {}
        self._leads: dict[int, NodeId] = {}
        world.cluster.fabric.answered.append(self._answered)

    def look(self, node_id: NodeId, node: Node) -> None:
        """Look at a node that runs, now that it may have heard something."""
        if self._nodes.get(node_id) is not node:
            self._nodes[node_id] = node
            self._images.restarted(node_id)
        controller = node.controller
        if controller is not None:
            if self._controllers.get(node_id) is not controller:
                self._controllers[node_id] = controller
                controller.subscribe(self._committed)
            if controller.active:
                self._active(node_id, controller.controller.epoch)
        image = node.view.image
        if image.offset >= 0:
            self._tell(self._images.observe(node_id, image.offset, image.epoch))

    def compare_images(self) -> None:
        """Compare what the images hold, once nodes have come to the same offset."""
        for node_id, node in self._world.cluster.nodes.items():
            image = node.view.image
            self._tell(self._images.observe(node_id, image.offset, image.epoch, _content(image)))

    # --- steps --------------------------------------------------------------------------------------

    def _tell(self, violations: list[str]) -> None:
        for text in violations:
            self._world.violated(text)

    def _active(self, node_id: NodeId, epoch: int) -> None:
        known = self._leads.get(epoch)
        if known is None:
            self._leads[epoch] = node_id
            self.events["election"] += 1
            self._world.note(f"node {node_id} is the active controller, epoch {epoch}")
        elif known != node_id:
            self._world.violated(f"controllers {known} and {node_id} in epoch {epoch}")

    def _committed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """A controller heard of a committed entry; each of them does, this is for the first."""
        if image.offset < 0:
            return
        self._tell(self._images.committed(image.offset, image.epoch))
        if image.offset <= self._offset:
            return
        if image.offset != self._offset + 1:
            # Entries between were heard of by nobody who lives: what follows is judged from here on.
            self._standings = StandingJudge()
        self._offset = image.offset
        self.image = image
        at_s = self._world.loop.now
        fenced = []
        for node_id, broker in image.brokers.items():
            now = Registered(int(broker.broker_epoch), broker.fenced, broker.in_controlled_shutdown)
            was = self._brokers.get(node_id)
            if broker.fenced:
                fenced.append(node_id)
            if was == now:
                continue
            self._brokers[node_id] = now
            if was is None or was.broker_epoch != now.broker_epoch:
                self._changes.broker(node_id, now.broker_epoch, at_s)
            self._tell(self._standings.broker(node_id, now.broker_epoch, fenced=now.fenced, at_s=at_s))
            self._tell(broker_changed(node_id, was, now, self._running(node_id)))
        for topic in sorted(image.topics.values(), key=lambda topic: topic.name):
            for number, found in sorted(topic.partitions.items()):
                key = TopicIdPartition(topic.topic_id, number)
                before = self.partitions.get(key)
                self._tell(fenced_in_charge(key, found.leader, found.isr, fenced))
                if before is not found:
                    self.partitions[key] = found
                    self._changed(key, topic.name, before, found)

    def _changed(self, key: TopicIdPartition, topic: str, before: PartitionRecord | None, now: PartitionRecord) -> None:
        was_moving = before is not None and bool(before.adding_replicas or before.removing_replicas)
        ends = before is not None and was_moving and before.replicas != now.replicas
        self._tell(self._standings.partition(standing_of(key, now), unclean=now.leader_recovery, moved=ends))
        self._elected(key, now.leader_epoch, now.leader)
        if before is None or before.partition_epoch != now.partition_epoch:
            self._changes.partition(key, now.partition_epoch, self._world.loop.now)
        if before is None or before.leader_epoch != now.leader_epoch:
            online = self.image.has_online_directory(now.leader, now)
            self._tell(offline_leader(key, now.leader, online=online))
        self._partition_changed(key)
        self._world.note(
            f"{topic}-{key.partition} partition epoch {now.partition_epoch}: leader {now.leader}/{now.leader_epoch} "
            f"isr {now.isr} elr {now.eligible_leader_replicas} last {now.last_known_elr}"
        )
        if before is None:
            return
        settled = world_min_isr(self._world)
        self._tell(moved(f"{topic}-{key.partition}", before, now, settled))
        if was_moving and not (now.adding_replicas or now.removing_replicas):
            self.events["reassignment-over"] += 1
        if was_moving or before.replicas != now.replicas:
            self._world.note(
                f"{topic}-{key.partition} replicas {now.replicas} adding {now.adding_replicas} "
                f"removing {now.removing_replicas}"
            )
        self.events["leader-change"] += before.leader != now.leader
        self.events["isr-shrink"] += bool(set(before.isr) - set(now.isr))
        self.events["isr-growth"] += bool(set(now.isr) - set(before.isr))
        self.events["elected-from-elr"] += now.leader in before.eligible_leader_replicas and before.leader != now.leader
        self.events["last-known-leader"] += now.leader_recovery and not before.leader_recovery

    def _running(self, node_id: NodeId) -> Running | None:
        cluster = self._world.cluster
        node = cluster.nodes.get(node_id)
        if node is None or node.broker is None:
            return None
        name, fabric = f"node{node_id}", cluster.fabric
        others = [f"node{other}" for other in cluster.controller_ids if other != node_id]
        is_cut = any(fabric.is_cut(name, other) or fabric.is_cut(other, name) for other in others)
        standing, lifecycle = node.broker.standing, node.broker._lifecycle
        return Running(
            int(node.broker.broker_epoch()),
            ready=lifecycle is not None and lifecycle._lifecycle.ready,
            wants_shut_down=standing in (Standing.SHUTTING_DOWN, Standing.STOPPED),
            reachable=not is_cut and not cluster.hosts[node_id].process.paused,
        )

    def _answered(self, server: str, request: Any, response: Any, asked_s: float) -> None:
        """A remote broker was answered. What a controller says that is deposed and has not heard of it yet, without
        committing anything, binds nobody."""
        if not self._leads or server != f"node{self._leads[max(self._leads)]}":
            return
        match request, response:
            case BrokerHeartbeatRequest(), BrokerHeartbeatResponse() if response.error is ErrorCode.NONE:
                what, needs = "a heartbeat", False
            case AlterPartitionRequest(), AlterPartitionResponse():
                made = {
                    TopicIdPartition(item.topic_id, item.partition)
                    for item in response.partitions
                    if item.error is ErrorCode.NONE
                }
                if not made:
                    return
                for item in request.partitions:
                    key = TopicIdPartition(item.topic_id, item.partition)
                    members = {member.node_id: int(member.broker_epoch) for member in item.new_isr}
                    if key in made:
                        self._tell(self._changes.granted(key, item.partition_epoch, members, asked_s))
                what, needs = "a change of the in-sync replicas", True
            case _:
                return
        self._tell(self._standings.granted(request.node_id, request.broker_epoch, what, asked_s, needs_unfenced=needs))


def standing_of(key: TopicIdPartition, record: PartitionRecord) -> PartitionStanding:
    """What a partition's record says, for the judge of standings."""
    return PartitionStanding(
        key,
        record.leader,
        record.leader_epoch,
        record.partition_epoch,
        record.replicas,
        record.isr,
        record.eligible_leader_replicas,
    )


def world_min_isr(world: World) -> int:
    """What the nodes' files ask for."""
    return int(world.cluster.settings.get("min.insync.replicas", "1"))


def _content(image: MetadataImage) -> tuple[Any, ...]:
    """What an image holds, to be compared."""
    return (
        tuple(sorted((node, b.broker_epoch, b.fenced, b.in_controlled_shutdown) for node, b in image.brokers.items())),
        tuple(
            (
                *(topic.name, number, p.leader, p.leader_epoch, p.partition_epoch, p.isr, p.eligible_leader_replicas),
                *(p.replicas, p.adding_replicas, p.removing_replicas),
            )
            for topic in sorted(image.topics.values(), key=lambda topic: topic.name)
            for number, p in sorted(topic.partitions.items())
        ),
        image.next_producer_id,
    )


__all__: Final = ["Elected", "MetadataWatch"]
