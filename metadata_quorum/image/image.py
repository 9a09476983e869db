"""The metadata image: the state of the metadata log so far, as one immutable value.

Each change creates a new image that shares all unchanged parts with the old one (persistent maps of ``immutables``), so
it costs O(records · log n) whatever the size of the cluster, and a reader keeps a consistent view for as long as it
holds an image. Source: Kafka's ``MetadataImage`` and ``MetadataDelta``.

Transition table (record → effect; anything else is untouched):

====================================  ==================================================================
RegisterBrokerRecord                  the broker's registration is replaced; the highest broker epoch rises
BrokerRegistrationChangeRecord        the named fields of a registration change
UnregisterBrokerRecord                the registration goes; the highest broker epoch stays
RegisterControllerRecord              the levels that a controller knows are replaced
PartitionRecord, topic known          the partition is added or replaced
PartitionRecord, topic unknown        the partition is *unpublished*: kept aside, invisible
TopicRecord                           the topic appears, with its unpublished partitions, all at once
RemoveTopicRecord                     topic, partitions (also unpublished ones) and its settings go
PartitionChangeRecord                 named fields change; partition epoch +1; leader named: leader epoch +1
ConfigRecord                          a setting is set, or removed by ``None``
UserScramCredentialRecord             a user's credential for a mechanism is set
DelegationTokenRecord                 the token of this id is added or replaced
others                                the value of that name is set or removed
====================================  ==================================================================

Partitions may come before their topic, so that a topic of any size appears atomically even if its records fill several
log entries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import field
from typing import Final

from immutables import Map

from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import (
    UNASSIGNED_DIRECTORY,
    BrokerEpoch,
    ControllerEpoch,
    DirectoryId,
    NodeId,
    Offset,
    ProducerId,
    TopicId,
    TopicIdPartition,
)
from tidelog.model.settings.node.replication_settings import CORDONED, EVERY_DIRECTORY
from tidelog.proto.calls.api import ConfigResource
from tidelog.proto.calls.controller_api import Endpoint
from tidelog.proto.calls.quota_api import QuotaEntity
from tidelog.proto.logs.metadata_records import (
    AccessControlEntryRecord,
    DelegationTokenRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UserScramCredentialRecord,
)
from tidelog.proto.logs.record_levels import FIRST_LEVEL

TOPIC: Final = "topic"
BROKER: Final = "broker"
CLIENT_METRICS: Final = "client metrics"
GROUP: Final = "group"
UNKNOWN_POSITION: Final = Offset(2**62)
"""The offset of an entry that is appended but not committed: later than every known one."""


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A registered broker. ``registered_at`` is the offset of its registration; after a snapshot, the snapshot's
    offset, which is not earlier."""

    record: RegisterBrokerRecord
    registered_at: Offset = field(compare=False)

    @property
    def node_id(self) -> NodeId:
        return self.record.node_id

    @property
    def broker_epoch(self) -> BrokerEpoch:
        return self.record.broker_epoch

    @property
    def fenced(self) -> bool:
        return self.record.fenced

    @property
    def in_controlled_shutdown(self) -> bool:
        return self.record.in_controlled_shutdown

    @property
    def rack(self) -> str | None:
        return self.record.rack

    @property
    def log_dirs(self) -> tuple[DirectoryId, ...]:
        """The working directories."""
        return self.record.log_dirs

    @property
    def active(self) -> bool:
        """Whether it may lead and be in an ISR (``ClusterControlManager.isActive``). A broker without working
        directories may not, even before it has stopped."""
        return not self.record.fenced and not self.record.in_controlled_shutdown and bool(self.record.log_dirs)

    def endpoint(self, listener: str) -> Endpoint | None:
        """Return its address at the named listener."""
        return next((found for found in self.record.listeners if found.listener == listener), None)


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic. Partitions are numbered from 0 without gaps."""

    name: str
    topic_id: TopicId
    partitions: Map[int, PartitionRecord]

    @property
    def replication_factor(self) -> int:
        """The replication factor of partition 0, as in Kafka; during a move, the one after it."""
        return len(self.partitions[0].replicas) - len(self.partitions[0].removing_replicas)

    def in_order(self) -> Iterator[PartitionRecord]:
        """Yield every partition by number."""
        return (self.partitions[number] for number in sorted(self.partitions))


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """All metadata as of ``offset``, the offset of the last applied entry (-1: none), decided under ``epoch``. Look
    things up through the methods; the maps are for callers that need all items of a kind. The maps' order differs
    between processes: sort if the order is visible."""

    offset: Offset = Offset(-1)
    epoch: ControllerEpoch = ControllerEpoch(0)
    brokers: Map[NodeId, BrokerRegistration] = Map()
    broker_epoch_highest: BrokerEpoch = BrokerEpoch(0)
    """The highest broker epoch ever assigned."""
    topics: Map[TopicId, TopicImage] = Map()
    topic_ids: Map[str, TopicId] = Map()
    collision_names: Map[str, str] = Map()
    """Topics with ``.`` or ``_`` in their names, by :func:`tidelog.model.names.collision_key`."""
    unpublished: Map[TopicId, Map[int, PartitionRecord]] = Map()
    """Partitions whose TopicRecord has not arrived yet."""
    replicas: Map[NodeId, Map[TopicIdPartition, None]] = Map()
    """The partitions with a replica on a broker."""
    leaderless: Map[TopicIdPartition, None] = Map()
    partition_count: int = 0
    configs: Map[ConfigResource, Map[str, str]] = Map()
    next_producer_id: ProducerId = ProducerId(0)
    features: Map[str, int] = Map()
    level_used: int = FIRST_LEVEL
    """The highest ``metadata.version`` that a record of the log has needed."""
    controllers: Map[NodeId, RegisterControllerRecord] = Map()
    """Registered features, by controller; controllers that registered none are missing."""
    acls: Map[bytes, AccessControlEntryRecord] = Map()
    quotas: Map[tuple[QuotaEntity, ...], Map[str, float]] = Map()
    users: Map[tuple[str, int], UserScramCredentialRecord] = Map()
    """By name and mechanism."""
    decoy_secret: bytes = field(default=b"", repr=False)
    delegation_tokens: Map[str, DelegationTokenRecord] = Map()

    # --- Looking up ---

    def broker(self, node_id: NodeId) -> BrokerRegistration | None:
        return self.brokers.get(node_id)

    def is_active(self, node_id: NodeId) -> bool:
        """Return whether a broker is registered, unfenced, not shutting down, and has a working directory."""
        found = self.brokers.get(node_id)
        return found is not None and found.active

    def is_cordoned(self, node_id: NodeId) -> bool:
        """Return whether a broker gets no new replicas (KIP-1066)."""
        return self.config(BROKER, str(node_id)).get(CORDONED) == EVERY_DIRECTORY

    def topic(self, name: str) -> TopicImage | None:
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def partition(self, topic_id: TopicId, partition: int) -> PartitionRecord | None:
        found = self.topics.get(topic_id)
        return None if found is None else found.partitions.get(partition)

    def partitions_of(self, node_id: NodeId) -> list[TopicIdPartition]:
        """Return the partitions with a replica on a broker, in a fixed order."""
        return sorted(self.replicas.get(node_id, _NO_PARTITIONS))

    def leads_any(self, node_id: NodeId) -> bool:
        """Return whether a broker leads a partition."""
        return any(
            self.topics[at.topic_id].partitions[at.partition].leader == node_id
            for at in self.replicas.get(node_id, _NO_PARTITIONS)
        )

    def config(self, resource_type: str, name: str) -> Map[str, str]:
        """Return the own settings of a topic or broker (``""``: all brokers)."""
        return self.configs.get(ConfigResource(resource_type, name), _NO_CONFIG)

    def quota(self, entity: tuple[QuotaEntity, ...]) -> Map[str, float]:
        """Return the quotas set for exactly this entity."""
        return self.quotas.get(entity, _NO_QUOTA)

    def has_online_directory(self, node_id: NodeId, partition: PartitionRecord) -> bool:
        """Return whether a registered broker's replica of ``partition`` is on a working directory, or on an unknown one
        (``DirectoryId.isOnline``)."""
        directory = directory_of(partition, node_id)
        found = self.brokers.get(node_id)
        return found is not None and (directory == UNASSIGNED_DIRECTORY or directory in found.log_dirs)

    def at(self, offset: Offset, epoch: ControllerEpoch) -> MetadataImage:
        """Return the same content at another position."""
        return dataclasses.replace(self, offset=offset, epoch=epoch)


_NO_PARTITIONS: Final[Map[TopicIdPartition, None]] = Map()
_NO_CONFIG: Final[Map[str, str]] = Map()
_NO_QUOTA: Final[Map[str, float]] = Map()


def directory_of(partition: PartitionRecord, node_id: NodeId) -> DirectoryId:
    """Return the directory that holds a broker's replica; the unassigned one for a broker without a replica."""
    for replica, directory in zip(partition.replicas, partition.directories, strict=True):
        if replica == node_id:
            return directory
    return UNASSIGNED_DIRECTORY
