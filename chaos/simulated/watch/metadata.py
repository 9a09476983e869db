"""Follows the metadata of a simulated cluster: every committed entry, every node's image, the requests of brokers that
were granted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from tidelog.broker.metadata.lifecycle_state import BrokerStanding
from tidelog.broker.node.node import Node
from tidelog.chaos.checkers.brokers import (
    ChangeJudge,
    Registered,
    Running,
    broker_changed,
    came_back,
    fenced_in_charge,
    offline_in_charge,
    unregistered,
)
from tidelog.chaos.checkers.metadata import ImageJudge, PartitionStanding, StandingJudge, above_level
from tidelog.chaos.checkers.moves import moved, placed
from tidelog.chaos.simulated.world.world import World
from tidelog.metadata_quorum.controller_node import ControllerNode
from tidelog.metadata_quorum.image.change import MetadataDelta
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.features import METADATA_VERSION
from tidelog.model.ids import NO_NODE, NodeId, TopicIdPartition
from tidelog.proto.calls.controller_api import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from tidelog.proto.logs.metadata_records import PartitionRecord

Elected = Callable[[TopicIdPartition, int, NodeId], None]
"""Called for each leader that the committed metadata name: partition, leader epoch, leader."""


class MetadataWatch:
    """Judges metadata as they are committed. ``events`` counts events of partitions."""

    def __init__(
        self, world: World, elected: Elected, changed: Callable[[TopicIdPartition], None] = lambda key: None
    ) -> None:
        """``changed``: called for each partition whose committed state changes."""
        self.events: Counter[str] = Counter()
        self._world = world
        self._elected = elected
        self._partition_changed = changed
        self._changes = ChangeJudge()
        self._images = ImageJudge()
        self._standings = StandingJudge()
        self.image = MetadataImage()
        """The newest committed image."""
        self.partitions: dict[TopicIdPartition, PartitionRecord] = {}
        self._brokers: dict[NodeId, Registered] = {}
        self._gone: set[NodeId] = set()
        """Unregistered nodes that have not returned."""
        self._offset = -1
        self._closed: frozenset[NodeId] = frozenset()
        """Brokers that get no new replicas, as of the previous entry."""
        self._controllers: dict[NodeId, ControllerNode] = {}
        self._nodes: dict[NodeId, Node] = {}
        self._looked_at: dict[NodeId, MetadataImage] = {}
        self._leads: dict[int, NodeId] = {}
        world.cluster.fabric.answered.append(self._answered)

    def look(self, node_id: NodeId, node: Node) -> None:
        """Look at a running node, now that it may have received something."""
        if self._nodes.get(node_id) is not node:
            self._nodes[node_id] = node
            self._images.restarted(node_id)
            self._looked_at.pop(node_id, None)
        controller = node.controller
        if controller is not None:
            if self._controllers.get(node_id) is not controller:
                self._controllers[node_id] = controller
                controller.subscribe(self._committed)
            if controller.active:
                self._active(node_id, controller.controller.epoch)
        image = node.view.image
        if image.offset >= 0 and self._looked_at.get(node_id) is not image:
            self._looked_at[node_id] = image
            if image.offset <= self._world.cluster.former_offset:
                self._tell(self._images.committed(image.offset, image.epoch))
            self._tell(self._images.observe(node_id, image.offset, image.epoch, _content(image)))

    @property
    def is_newest(self) -> bool:
        """Return whether no node of release 0.1 knows of a later commit than those judged here."""
        return self.image.offset >= self._world.cluster.former_offset

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
        """Judge a committed entry. Every controller learns of it; this is called for the first."""
        if image.offset < 0:
            return
        self._tell(self._images.committed(image.offset, image.epoch))
        if image.offset <= self._offset:
            return
        self._tell(self._images.observe(NO_NODE, image.offset, image.epoch, _content(image)))
        in_order = image.offset == self._offset + 1
        if not in_order:
            # No living node saw the entries between: judge from here on.
            self._standings = StandingJudge()
            self._closed = frozenset()
        self._offset = image.offset
        self.image = image
        self._tell(above_level(image.offset, image.level_used, image.features.get(METADATA_VERSION)))
        at_s = self._world.loop.now
        self._unregistered(image, at_s, in_order)
        fenced = list(self._gone)
        for node_id, broker in image.brokers.items():
            now = Registered(int(broker.broker_epoch), broker.fenced, broker.in_controlled_shutdown)
            was = self._brokers.get(node_id)
            if broker.fenced:
                fenced.append(node_id)
            if was == now:
                continue
            self._brokers[node_id] = now
            if node_id in self._gone:
                self._came_back(node_id, image)
            if was is None or was.broker_epoch != now.broker_epoch:
                self._changes.broker(node_id, now.broker_epoch, at_s)
            self._tell(self._standings.broker(node_id, now.broker_epoch, fenced=now.fenced, at_s=at_s))
            self._tell(broker_changed(node_id, was, now, self._running(node_id)))
        for topic in sorted(image.topics.values(), key=lambda topic: topic.name):
            for number, found in sorted(topic.partitions.items()):
                key = TopicIdPartition(topic.topic_id, number)
                before = self.partitions.get(key)
                self._tell(fenced_in_charge(key, found.leader, found.isr, fenced))
                self._tell(offline_in_charge(key, found.leader, found.isr, online_replicas(image, found)))
                if before is not found:
                    self.partitions[key] = found
                    self._tell(
                        placed(
                            f"{topic.name}-{number}", before.replicas if before else (), found.replicas, self._closed
                        )
                    )
                    self._changed(key, topic.name, before, found)
        cordoned = (node_id for node_id in image.brokers if image.is_cordoned(node_id))
        self._closed = frozenset((*cordoned, *self._gone))

    def _unregistered(self, image: MetadataImage, at_s: float, in_order: bool) -> None:
        for node_id in [node_id for node_id in self._brokers if node_id not in image.brokers]:
            before = self._brokers.pop(node_id)
            self._gone.add(node_id)
            self._standings.unregistered(node_id, at_s)
            self._world.note(f"node {node_id} is unregistered")
            self.events["broker-unregistered"] += 1
            if in_order:
                self._tell(unregistered(node_id, before, cordoned=image.is_cordoned(node_id)))

    def _came_back(self, node_id: NodeId, image: MetadataImage) -> None:
        self._gone.discard(node_id)
        self.events["broker-came-back"] += 1
        held = image.partitions_of(node_id)
        eligible = (image.topics[at.topic_id].partitions[at.partition].eligible_leader_replicas for at in held)
        self._tell(came_back(node_id, (at for at, nodes in zip(held, eligible, strict=True) if node_id in nodes)))

    def _changed(self, key: TopicIdPartition, topic: str, before: PartitionRecord | None, now: PartitionRecord) -> None:
        was_moving = before is not None and bool(before.adding_replicas or before.removing_replicas)
        ends = before is not None and was_moving and before.replicas != now.replicas
        self._tell(self._standings.partition(standing_of(key, now), unclean=now.leader_recovery, moved=ends))
        self._elected(key, now.leader_epoch, now.leader)
        if before is None or before.partition_epoch != now.partition_epoch:
            self._changes.partition(key, now.partition_epoch, self._world.loop.now)
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
            wants_shut_down=standing in (BrokerStanding.SHUTTING_DOWN, BrokerStanding.STOPPED),
            reachable=not is_cut and not cluster.hosts[node_id].process.paused,
        )

    def _answered(self, server: str, request: object, response: object, asked_s: float) -> None:
        """Judge the answer to a remote broker. The answer of a deposed controller that does not know it yet, and
        commits nothing, has no effect."""
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
    """Return a partition's record in the form that the judge of standings needs."""
    return PartitionStanding(
        key,
        record.leader,
        record.leader_epoch,
        record.partition_epoch,
        record.replicas,
        record.isr,
        record.eligible_leader_replicas,
    )


def online_replicas(image: MetadataImage, record: PartitionRecord) -> Callable[[NodeId], bool]:
    """Return a test for nodes: whether their replica of a partition is in a directory that works."""
    return lambda node: image.has_online_directory(node, record)


def world_min_isr(world: World) -> int:
    """Return the value in the nodes' configuration files."""
    return int(world.cluster.settings.get("min.insync.replicas", "1"))


def _content(image: MetadataImage) -> int:
    """Return the content of an image, for comparison."""
    partitions = (
        (topic.name, number, found)
        for topic in sorted(image.topics.values(), key=lambda topic: topic.name)
        for number, found in sorted(topic.partitions.items())
    )
    brokers = sorted((node, b.broker_epoch, b.fenced, b.in_controlled_shutdown) for node, b in image.brokers.items())
    return hash((*brokers, *partitions, image.next_producer_id))


__all__: Final = ["Elected", "MetadataWatch"]
