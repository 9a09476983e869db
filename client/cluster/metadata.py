"""A client's knowledge of topics, leaders and brokers: a cache that only newer information changes. Pure.

Only a leader with at least the same leader epoch replaces a partition's leader (KIP-320), unless the topic was deleted
and created again (another topic id, KIP-516).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_LEADER_EPOCH, NO_NODE, LeaderEpoch, NodeId, TopicId, TopicPartition
from tidelog.proto.calls.api import BrokerEndpoint, MetadataResponse, PartitionMetadata, TopicMetadata
from tidelog.proto.transport.network import Address


@dataclass(slots=True)
class PartitionView:
    """A partition as last reported. Mutable: the cache keeps it current."""

    partition: int
    leader: NodeId
    leader_epoch: LeaderEpoch
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    offline_replicas: tuple[NodeId, ...]


@dataclass(slots=True)
class TopicView:
    """A topic as last reported; ``partitions[i]`` is partition ``i``."""

    name: str
    topic_id: TopicId
    is_internal: bool
    partitions: list[PartitionView]


class MetadataCache:
    """Topics by name and by id, brokers by node id. ``version`` increases with each change."""

    def __init__(self) -> None:
        self.cluster_id = ""
        self.controller_id: NodeId = NO_NODE
        self.brokers: dict[NodeId, Address] = {}
        self.topics: dict[str, TopicView] = {}
        self.errors: dict[str, tuple[ErrorCode, str]] = {}
        """Why a requested topic is not among ``topics``."""
        self.version = 0
        self._names: dict[TopicId, str] = {}

    def leader_of(self, topic: str, partition: int) -> int:
        """Return the node that leads the partition, if its address is known; otherwise -1."""
        view = self.topics.get(topic)
        if view is None or partition >= len(view.partitions):
            return NO_NODE
        leader = view.partitions[partition].leader
        return leader if leader in self.brokers else NO_NODE

    def partition(self, topic: str, partition: int) -> PartitionView | None:
        view = self.topics.get(topic)
        return None if view is None or not 0 <= partition < len(view.partitions) else view.partitions[partition]

    def topic_id(self, topic: str) -> TopicId | None:
        view = self.topics.get(topic)
        return None if view is None else view.topic_id

    def name_of(self, topic_id: TopicId) -> str | None:
        return self._names.get(topic_id)

    def with_leader(self, topic: str) -> list[int]:
        """Return the topic's partitions with a reachable leader."""
        view = self.topics.get(topic)
        if view is None:
            return []
        return [p.partition for p in view.partitions if p.leader in self.brokers]

    def apply(self, response: MetadataResponse, asked: Iterable[str]) -> set[TopicPartition]:
        """Apply an answer about the topics ``asked`` (topics missing from it are gone). Returns partitions whose leader
        or epoch changed."""
        self.version += 1
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        if response.brokers:
            self.brokers = {b.node_id: _address(b) for b in response.brokers}
        changed: set[TopicPartition] = set()
        seen = set()
        for topic in response.topics:
            seen.add(topic.name)
            if topic.error in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE) and topic.partitions:
                self.errors.pop(topic.name, None)
                changed |= self._apply_topic(topic)
            else:
                self._drop(topic.name)
                self.errors[topic.name] = (topic.error, topic.error_message)
        for name in asked:
            if name not in seen:
                self._drop(name)
                self.errors[name] = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
        return changed

    def _apply_topic(self, topic: TopicMetadata) -> set[TopicPartition]:
        old = self.topics.get(topic.name)
        if old is not None and old.topic_id != topic.topic_id:
            self._drop(topic.name)
            old = None
        partitions = []
        changed = set()
        for found in sorted(topic.partitions, key=lambda p: p.partition):
            before = old.partitions[found.partition] if old and found.partition < len(old.partitions) else None
            if before is not None and found.leader_epoch < before.leader_epoch:
                partitions.append(before)
                continue
            partitions.append(_view(found))
            if before is None or (before.leader, before.leader_epoch) != (found.leader, found.leader_epoch):
                changed.add(TopicPartition(topic.name, found.partition))
        if old is not None:  # a topic only grows: the answering broker does not know the rest yet
            partitions += old.partitions[len(partitions) :]
        self.topics[topic.name] = TopicView(topic.name, topic.topic_id, topic.is_internal, partitions)
        self._names[topic.topic_id] = topic.name
        return changed

    def update_leader(self, topic: str, partition: int, leader: NodeId, epoch: LeaderEpoch) -> bool:
        """Apply a broker's hint about the current leader (KIP-951). Returns False if it is old or the node is
        unknown."""
        view = self.partition(topic, partition)
        if view is None or leader not in self.brokers or epoch <= view.leader_epoch or epoch == NO_LEADER_EPOCH:
            return False
        view.leader = leader
        view.leader_epoch = epoch
        self.version += 1
        return True

    def forget(self, topic: str) -> None:
        """Drop a topic that the client no longer uses."""
        self._drop(topic)
        self.errors.pop(topic, None)

    def _drop(self, name: str) -> None:
        view = self.topics.pop(name, None)
        if view is not None:
            self._names.pop(view.topic_id, None)


def _address(broker: BrokerEndpoint) -> Address:
    return Address(broker.host, broker.port)


def _view(found: PartitionMetadata) -> PartitionView:
    return PartitionView(
        found.partition, found.leader, found.leader_epoch, found.replicas, found.isr, found.offline_replicas
    )
