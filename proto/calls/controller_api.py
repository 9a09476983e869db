"""Calls of brokers to the active controller: registration, heartbeats, ISRs, directories, ids, the metadata log.

Conventions as in :mod:`tidelog.proto.calls.api`. Source of fields and meanings: the Kafka request of the same name
unless a docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode
from tidelog.model.features import METADATA_VERSION
from tidelog.model.ids import (
    NO_LEADER_EPOCH,
    NO_NODE,
    NO_OFFSET,
    NO_PRODUCER_ID,
    BrokerEpoch,
    ControllerEpoch,
    DirectoryId,
    LeaderEpoch,
    NodeId,
    Offset,
    PartitionEpoch,
    ProducerId,
    TopicId,
)
from tidelog.proto.calls.request import Request, Response


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An advertised listener by its name."""

    listener: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class SupportedFeature:
    name: str
    level_min: int
    level_max: int


def range_of(name: str, supported: Iterable[SupportedFeature]) -> tuple[int, int]:
    """Return a node's range of levels: without ``metadata.version`` it knows the first level; without another feature
    it does not have it."""
    for feature in supported:
        if feature.name == name:
            return feature.level_min, feature.level_max
    return 0, int(name == METADATA_VERSION)


@dataclass(frozen=True, slots=True)
class RegisterBrokerRequest(Request["RegisterBrokerResponse"]):
    """KIP-631's BrokerRegistration. ``incarnation_id`` is new with each start of the process.
    ``previous_broker_epoch`` is the one in the clean-shutdown file, -1 without one (KIP-966)."""

    cluster_id: str
    node_id: NodeId
    incarnation_id: bytes
    listeners: tuple[Endpoint, ...]
    rack: str | None
    log_dirs: tuple[DirectoryId, ...]
    features: tuple[SupportedFeature, ...]
    previous_broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class RegisterBrokerResponse(Response):
    error: ErrorCode
    broker_epoch: BrokerEpoch = BrokerEpoch(-1)
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class BrokerHeartbeatRequest(Request["BrokerHeartbeatResponse"]):
    """``current_metadata_offset`` is the highest offset the broker has applied; a broker is unfenced
    once that has reached its own registration."""

    node_id: NodeId
    broker_epoch: BrokerEpoch
    current_metadata_offset: Offset
    want_fence: bool
    want_shut_down: bool
    offline_log_dirs: tuple[DirectoryId, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerHeartbeatResponse(Response):
    error: ErrorCode
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool = False
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class IsrMember:
    """A replica and the broker epoch under which the leader saw it fetch (KIP-903)."""

    node_id: NodeId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class AlterPartitionItem:
    topic_id: TopicId
    partition: int
    leader_epoch: LeaderEpoch
    new_isr: tuple[IsrMember, ...]
    partition_epoch: PartitionEpoch


@dataclass(frozen=True, slots=True)
class AlterPartitionRequest(Request["AlterPartitionResponse"]):
    """A leader requests another ISR (KIP-497)."""

    node_id: NodeId
    broker_epoch: BrokerEpoch
    partitions: tuple[AlterPartitionItem, ...]


@dataclass(frozen=True, slots=True)
class AlteredPartition:
    """The partition's state after the change, or the current one if ``error`` is set."""

    topic_id: TopicId
    partition: int
    error: ErrorCode
    leader: NodeId = NO_NODE
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    isr: tuple[NodeId, ...] = ()
    partition_epoch: PartitionEpoch = PartitionEpoch(-1)


@dataclass(frozen=True, slots=True)
class AlterPartitionResponse(Response):
    error: ErrorCode
    partitions: tuple[AlteredPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class DirectoryAssignment:
    directory_id: DirectoryId
    topic_id: TopicId
    partition: int


@dataclass(frozen=True, slots=True)
class AssignReplicasToDirsRequest(Request["AssignReplicasToDirsResponse"]):
    """A broker reports the directories of its replicas (KIP-858)."""

    node_id: NodeId
    broker_epoch: BrokerEpoch
    assignments: tuple[DirectoryAssignment, ...]


@dataclass(frozen=True, slots=True)
class AssignReplicasToDirsResponse(Response):
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class LogEnd:
    """How far a replica's log reaches while its partition has no leader under ``leader_epoch``: the epoch of
    its last record (-1 without any) and the offset after it."""

    topic_id: TopicId
    partition: int
    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    end_offset: Offset


@dataclass(frozen=True, slots=True)
class ReportLogEndsRequest(Request["ReportLogEndsResponse"]):
    """A broker reports its log ends, for partitions whose safe replicas all stopped uncleanly (KIP-966)."""

    node_id: NodeId
    broker_epoch: BrokerEpoch
    ends: tuple[LogEnd, ...]


@dataclass(frozen=True, slots=True)
class ReportLogEndsResponse(Response):
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class RegisterControllerRequest(Request["RegisterControllerResponse"]):
    """A controller reports the levels that it supports, at its start (KIP-919's ControllerRegistration)."""

    cluster_id: str
    node_id: NodeId
    features: tuple[SupportedFeature, ...]


@dataclass(frozen=True, slots=True)
class RegisterControllerResponse(Response):
    error: ErrorCode
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class AllocateProducerIdsRequest(Request["AllocateProducerIdsResponse"]):
    node_id: NodeId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class AllocateProducerIdsResponse(Response):
    """A block of ids that no other broker gets (KIP-730)."""

    error: ErrorCode
    first_producer_id: ProducerId = NO_PRODUCER_ID
    count: int = 0


@dataclass(frozen=True, slots=True)
class FetchMetadataRequest(Request["FetchMetadataResponse"]):
    """Committed metadata from ``fetch_offset`` on; ``last_epoch`` is that of the entry before it.
    Waits up to ``wait_ms`` for something new."""

    node_id: NodeId
    fetch_offset: Offset
    last_epoch: ControllerEpoch
    wait_ms: int


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    """One committed entry: its records as :mod:`tidelog.proto.logs.metadata_records` encodes a batch of them."""

    offset: Offset
    epoch: ControllerEpoch
    records: bytes


@dataclass(frozen=True, slots=True)
class FetchMetadataResponse(Response):
    """Either entries, or (too far behind, divergent) the offset and epoch of a snapshot to load."""

    error: ErrorCode
    leader_id: NodeId = NO_NODE
    epoch: ControllerEpoch = ControllerEpoch(-1)
    high_watermark: Offset = NO_OFFSET
    entries: tuple[MetadataEntry, ...] = ()
    snapshot_offset: Offset = NO_OFFSET
    snapshot_epoch: ControllerEpoch = ControllerEpoch(-1)


@dataclass(frozen=True, slots=True)
class FetchMetadataSnapshotRequest(Request["FetchMetadataSnapshotResponse"]):
    node_id: NodeId
    snapshot_offset: Offset
    snapshot_epoch: ControllerEpoch
    position: int


@dataclass(frozen=True, slots=True)
class FetchMetadataSnapshotResponse(Response):
    error: ErrorCode
    size: int = 0
    chunk: bytes = b""
