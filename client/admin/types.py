"""Arguments and results of the admin client, besides the plain answers of :mod:`tidelog.proto.calls.api`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidelog.model.ids import NodeId, Offset, TopicId
from tidelog.proto.calls.api import ConfigEntry, NodeFeatures, ReplicaAssignment
from tidelog.proto.calls.api import NewTopic as NewTopicItem


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1: the cluster's default. ``assignments``: each partition's replica nodes, the preferred
    leader first; then leave out the two counts."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def item(self) -> NewTopicItem:
        """Return its form on the wire."""
        return NewTopicItem(
            self.name,
            self.num_partitions,
            self.replication_factor,
            assignment_items(self.assignments),
            tuple(ConfigEntry(name, str(value)) for name, value in self.configs.items()),
        )


def assignment_items(assignments: Mapping[int, Sequence[int]]) -> tuple[ReplicaAssignment, ...]:
    """Return replicas per partition in their form on the wire."""
    return tuple(
        ReplicaAssignment(partition, tuple(NodeId(node) for node in replicas))
        for partition, replicas in sorted(assignments.items())
    )


@dataclass(frozen=True, slots=True)
class TopicListing:
    """An existing topic."""

    name: str
    topic_id: TopicId
    is_internal: bool
    partition_count: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition's replicas. ``leader`` is -1 while there is none."""

    partition: int
    leader: NodeId
    leader_epoch: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    eligible_leader_replicas: tuple[NodeId, ...]
    offline_replicas: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions in order."""

    name: str
    topic_id: TopicId
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class FeatureMetadata:
    """Kafka's type with this name. ``finalized_features``: the levels in use, without disabled features.
    ``supported_features``: the lowest and highest level of the node that answered. ``nodes`` is ours: what each broker
    and controller supports."""

    finalized_features: Mapping[str, int]
    finalized_features_epoch: Offset
    supported_features: Mapping[str, tuple[int, int]]
    nodes: tuple[NodeFeatures, ...]


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """The offset to look up; made by the class methods."""

    timestamp: int
    start_offset: int = 0
    bytes_max: int = 0

    @classmethod
    def earliest(cls) -> OffsetSpec:
        """Select the log start offset."""
        return cls(-2)

    @classmethod
    def latest(cls) -> OffsetSpec:
        """Select the high watermark."""
        return cls(-1)

    @classmethod
    def max_timestamp(cls) -> OffsetSpec:
        """Select the record with the highest timestamp."""
        return cls(-3)

    @classmethod
    def for_timestamp(cls, timestamp_ms: int) -> OffsetSpec:
        """Select the first record at or after that time. Raises ``ValueError`` for a negative time."""
        if timestamp_ms < 0:
            raise ValueError(f"expected a time of 0 ms or more, found {timestamp_ms}")
        return cls(timestamp_ms)

    @classmethod
    def after_bytes(cls, start_offset: int, bytes_max: int) -> OffsetSpec:
        """Select the offset after the whole batches from ``start_offset`` on that take ``bytes_max`` bytes of the log,
        at least one batch. Older brokers answer ``UnsupportedVersionError``."""
        return cls(-100, start_offset, bytes_max)


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """An offset that was looked up; -1 if no record qualifies."""

    offset: Offset
    timestamp: int
    leader_epoch: int
