"""Clients' requests to brokers: metadata, offsets, topics, settings, log directories.

This module and its neighbours hold every call between processes. ``./dev generate`` writes the message of each class in
``proto/v1/*.proto`` (:mod:`tidelog.proto.contracts`); :mod:`tidelog.proto.calls.convert` converts one to the other at
run time. Errors are per item, as in Kafka's protocol, with a message that says what was expected and found. Times are
milliseconds since the epoch, durations are milliseconds; ``-1`` stands for "none" where Kafka's protocol does so, and
``None`` where a field is optional.

Source of fields and meanings: the Kafka request of the same name unless a docstring says otherwise.
"""

from __future__ import annotations

from typing import Final

from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode
from tidelog.model.features import UPGRADE
from tidelog.model.ids import (
    NO_LEADER_EPOCH,
    NO_NODE,
    NO_OFFSET,
    ZERO_TOPIC_ID,
    BrokerEpoch,
    ControllerEpoch,
    DirectoryId,
    LeaderEpoch,
    NodeId,
    Offset,
    TopicId,
)
from tidelog.proto.calls.controller_api import Endpoint, SupportedFeature
from tidelog.proto.calls.request import Change, Request, Response

DRAWN_TOPIC_ID: Final = TopicId(b"")
"""Let the controller choose one; clients of release 0.1 send no other."""

# --- Cluster metadata --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """A live broker with its address at the listener that received the request."""

    node_id: NodeId
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """``error`` is LEADER_NOT_AVAILABLE if ``leader`` is -1, or LISTENER_NOT_FOUND if the leader cannot be reached by
    the listener that received the request."""

    error: ErrorCode
    partition: int
    leader: NodeId
    leader_epoch: LeaderEpoch
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    eligible_leader_replicas: tuple[NodeId, ...]
    offline_replicas: tuple[NodeId, ...]
    last_known_elr: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    error: ErrorCode
    name: str
    topic_id: TopicId
    is_internal: bool
    partitions: tuple[PartitionMetadata, ...]
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class MetadataRequest(Request["MetadataResponse"]):
    """``all_topics``, or topics by name or id."""

    topics: tuple[str, ...] = ()
    topic_ids: tuple[TopicId, ...] = ()
    all_topics: bool = False
    allow_auto_topic_creation: bool = False


@dataclass(frozen=True, slots=True)
class MetadataResponse(Response):
    cluster_id: str
    controller_id: NodeId
    brokers: tuple[BrokerEndpoint, ...]
    topics: tuple[TopicMetadata, ...]


@dataclass(frozen=True, slots=True)
class DescribeClusterRequest(Request["DescribeClusterResponse"]):
    pass


@dataclass(frozen=True, slots=True)
class ClusterBroker:
    """A registered broker, live or not. ``listeners`` are all of its advertised listeners; ``cordoned``: it gets no new
    replicas."""

    node_id: NodeId
    broker_epoch: BrokerEpoch
    fenced: bool
    in_controlled_shutdown: bool
    rack: str | None
    listeners: tuple[Endpoint, ...]
    cordoned: bool = False


@dataclass(frozen=True, slots=True)
class QuorumVoter:
    """A controller as the active controller sees it. ``last_caught_up_ms`` is -1 if unknown."""

    node_id: NodeId
    log_end_offset: Offset
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True)
class QuorumObserver:
    """A broker that follows the metadata log without a vote, as it last reported to the active controller: the offset
    that it has applied, when it reported that, and when it was last caught up (-1 for never)."""

    node_id: NodeId
    log_end_offset: Offset
    last_fetch_ms: int
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True)
class FeatureLevel:
    name: str
    level: int


@dataclass(frozen=True, slots=True)
class DescribeClusterResponse(Response):
    """Includes Kafka's DescribeQuorum and ApiVersions' finalized features. If ``error`` is set, the rest is empty."""

    cluster_id: str
    controller_id: NodeId
    controller_epoch: ControllerEpoch
    metadata_offset: Offset
    brokers: tuple[ClusterBroker, ...]
    voters: tuple[QuorumVoter, ...]
    features: tuple[FeatureLevel, ...]
    error: ErrorCode = ErrorCode.NONE
    error_message: str = ""
    observers: tuple[QuorumObserver, ...] = ()


# --- Offsets, producer ids ---------------------------------------------------------------------

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL_TIMESTAMP: Final = -4
LATEST_TIERED_TIMESTAMP: Final = -5
EARLIEST_PENDING_UPLOAD_TIMESTAMP: Final = -6
AFTER_BYTES_TIMESTAMP: Final = -100
"""Not Kafka's; far from those that Kafka may add. Releases without it answer UNSUPPORTED_VERSION."""


@dataclass(frozen=True, slots=True)
class ListOffsetsPartition:
    """``timestamp``: -1 latest (high watermark, or LSO for read_committed), -2 earliest, -3 the record with the highest
    timestamp, -4 the earliest on a broker's own disks (here the same as -2), -5 the latest in remote storage and -6 the
    earliest waiting to be copied there (here neither exists), else the first record at or after that time.

    -100 (not Kafka's) is the offset after the whole batches from ``start_offset`` on that take ``bytes_max`` bytes of
    the log, at least one batch; never beyond the latest offset, and ``start_offset`` itself if nothing follows it.
    """

    topic: str
    partition: int
    timestamp: int
    current_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    start_offset: Offset = Offset(0)
    bytes_max: int = 0


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest(Request["ListOffsetsResponse"]):
    partitions: tuple[ListOffsetsPartition, ...]
    read_committed: bool = False


@dataclass(frozen=True, slots=True)
class ListOffsetsResult:
    """``offset`` and ``timestamp`` are -1 if no record qualifies. Exact to the record."""

    topic: str
    partition: int
    error: ErrorCode
    timestamp: int = -1
    offset: Offset = NO_OFFSET
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class ListOffsetsResponse(Response):
    results: tuple[ListOffsetsResult, ...]


@dataclass(frozen=True, slots=True)
class EpochEndPartition:
    topic_id: TopicId
    partition: int
    leader_epoch: LeaderEpoch
    current_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class OffsetForLeaderEpochRequest(Request["OffsetForLeaderEpochResponse"]):
    """Asks where an epoch ends in the leader's log (KIP-101, KIP-279). Consumers ask too (KIP-320)."""

    partitions: tuple[EpochEndPartition, ...]
    replica_id: NodeId = NO_NODE


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The largest epoch not above the requested one, and the offset after its last record; -1, -1 if the leader knows
    none."""

    topic_id: TopicId
    partition: int
    error: ErrorCode
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    end_offset: Offset = NO_OFFSET


@dataclass(frozen=True, slots=True)
class OffsetForLeaderEpochResponse(Response):
    results: tuple[EpochEnd, ...]


@dataclass(frozen=True, slots=True)
class DeleteRecordsPartition:
    """``offset`` -1 means up to the high watermark."""

    topic: str
    partition: int
    offset: Offset


@dataclass(frozen=True, slots=True)
class DeleteRecordsRequest(Request["DeleteRecordsResponse"]):
    """``link``: the link whose source has deleted them, "" for everybody else. It may do so until the promotion."""

    partitions: tuple[DeleteRecordsPartition, ...]
    timeout_ms: int = 30_000
    link: str = ""


@dataclass(frozen=True, slots=True)
class DeleteRecordsResult:
    topic: str
    partition: int
    error: ErrorCode
    low_watermark: Offset = NO_OFFSET
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class DeleteRecordsResponse(Response):
    results: tuple[DeleteRecordsResult, ...]


# --- Topics and configs (a broker forwards these to the active controller) ------------------------


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    partition: int
    replicas: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """``num_partitions`` and ``replication_factor`` -1: the cluster's defaults; both -1 if ``assignments`` are given.
    ``topic_id``: the id of a restored topic, or one that the client has drawn, by which the controller knows a topic
    that an earlier attempt has made. Empty: the controller draws one."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: tuple[ConfigEntry, ...] = ()
    topic_id: TopicId = DRAWN_TOPIC_ID


@dataclass(frozen=True, slots=True)
class Charged:
    """The client charged for a forwarded request, according to its broker. ``strict``: refuse the request if the quota
    is used up; an older Kafka client is only told to wait afterwards (KIP-599)."""

    user: str
    client_id: str = ""
    strict: bool = True


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest(Change["CreateTopicsResponse"]):
    topics: tuple[NewTopic, ...]
    timeout_ms: int = 30_000
    validate_only: bool = False
    charged: Charged | None = None


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    name: str
    error: ErrorCode
    error_message: str = ""
    topic_id: TopicId = ZERO_TOPIC_ID
    num_partitions: int = -1
    replication_factor: int = -1


@dataclass(frozen=True, slots=True)
class CreateTopicsResponse(Response):
    topics: tuple[CreatedTopic, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest(Change["DeleteTopicsResponse"]):
    names: tuple[str, ...] = ()
    topic_ids: tuple[TopicId, ...] = ()
    timeout_ms: int = 30_000
    charged: Charged | None = None


@dataclass(frozen=True, slots=True)
class TopicResult:
    name: str
    error: ErrorCode
    error_message: str = ""
    topic_id: TopicId = ZERO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class DeleteTopicsResponse(Response):
    topics: tuple[TopicResult, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class PartitionGrowth:
    """``count`` is the new total; ``assignments`` (optional) name the replicas of the new ones only."""

    name: str
    count: int
    assignments: tuple[ReplicaAssignment, ...] = ()


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest(Change["CreatePartitionsResponse"]):
    topics: tuple[PartitionGrowth, ...]
    timeout_ms: int = 30_000
    validate_only: bool = False
    charged: Charged | None = None


@dataclass(frozen=True, slots=True)
class CreatePartitionsResponse(Response):
    topics: tuple[TopicResult, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """``resource_type`` is "topic", "broker", "group" or "client metrics" (a subscription to metrics of clients,
    KIP-714). A broker's ``name`` is its id, or "" for the default of all brokers."""

    resource_type: str
    name: str


@dataclass(frozen=True, slots=True)
class DescribeConfigsRequest(Request["DescribeConfigsResponse"]):
    """Only the broker itself reports its own (static) configuration."""

    resources: tuple[ConfigResource, ...]
    include_synonyms: bool = False


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A place where a setting's value is looked up: its name there, its value there, and ``source`` as in
    :class:`DescribedConfig`."""

    name: str
    value: str | None
    source: str


@dataclass(frozen=True, slots=True)
class DescribedConfig:
    """``source``: DYNAMIC_TOPIC_CONFIG, DYNAMIC_BROKER_CONFIG, DYNAMIC_DEFAULT_BROKER_CONFIG,
    DYNAMIC_CLIENT_METRICS_CONFIG, DYNAMIC_GROUP_CONFIG, STATIC_BROKER_CONFIG or DEFAULT_CONFIG, as in Kafka.
    ``synonyms``, if requested: every place with a value, the one in force first."""

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    value_type: str
    documentation: str
    synonyms: tuple[ConfigSynonym, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedResource:
    resource: ConfigResource
    error: ErrorCode
    configs: tuple[DescribedConfig, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class DescribeConfigsResponse(Response):
    resources: tuple[DescribedResource, ...]


@dataclass(frozen=True, slots=True)
class ListConfigResourcesRequest(Request["ListConfigResourcesResponse"]):
    """Asks which resources have settings, of these types (KIP-1142)."""

    resource_types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListConfigResourcesResponse(Response):
    error: ErrorCode
    resources: tuple[ConfigResource, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """``operation``: "set", "delete", "append" or "subtract" (KIP-339)."""

    name: str
    operation: str
    value: str | None = None


@dataclass(frozen=True, slots=True)
class AlterResource:
    """``replace``: remove the resource's own settings that ``changes`` does not name (Kafka's older AlterConfigs)."""

    resource: ConfigResource
    changes: tuple[ConfigChange, ...]
    replace: bool = False


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsRequest(Change["IncrementalAlterConfigsResponse"]):
    resources: tuple[AlterResource, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class AlteredResource:
    resource: ConfigResource
    error: ErrorCode
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsResponse(Response):
    resources: tuple[AlteredResource, ...]


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """``upgrade_type``: one of :data:`tidelog.model.features.UPGRADE_TYPES`."""

    name: str
    level: int
    upgrade_type: str = UPGRADE


@dataclass(frozen=True, slots=True)
class UpdateFeaturesRequest(Change["UpdateFeaturesResponse"]):
    """All levels are changed, or none."""

    features: tuple[FeatureUpdate, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class UpdateFeaturesResponse(Response):
    error: ErrorCode
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class DescribeFeaturesRequest(Request["DescribeFeaturesResponse"]):
    pass


@dataclass(frozen=True, slots=True)
class NodeFeatures:
    """``role``: "broker" or "controller"; a node that is both registers as both."""

    role: str
    node_id: NodeId
    features: tuple[SupportedFeature, ...]


@dataclass(frozen=True, slots=True)
class DescribeFeaturesResponse(Response):
    """Kafka returns that with ApiVersions. ``epoch`` is the offset of the metadata that the levels were read from;
    ``supported`` is what the answering node knows, ``nodes`` what each node said at its registration."""

    finalized: tuple[FeatureLevel, ...]
    epoch: Offset
    supported: tuple[SupportedFeature, ...]
    nodes: tuple[NodeFeatures, ...]
    error: ErrorCode = ErrorCode.NONE
    error_message: str = ""


# --- Brokers that are gone ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRequest(Change["UnregisterBrokerResponse"]):
    """Forgets a broker that is not live. Kafka also forgets live ones, and they register again immediately."""

    node_id: NodeId


@dataclass(frozen=True, slots=True)
class UnregisterBrokerResponse(Response):
    error: ErrorCode
    error_message: str = ""


# --- Log directories ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DescribeLogDirsRequest(Request["DescribeLogDirsResponse"]):
    pass


@dataclass(frozen=True, slots=True)
class LogDirReplica:
    topic: str
    partition: int
    size_bytes: int
    log_start_offset: Offset
    log_end_offset: Offset
    is_future: bool = False
    """A copy that will become the log: the replica is moving here (KIP-113)."""
    offset_lag: int = 0
    """How many offsets a copy is behind."""


@dataclass(frozen=True, slots=True)
class LogDir:
    path: str
    directory_id: DirectoryId
    error: ErrorCode
    total_bytes: int
    usable_bytes: int
    replicas: tuple[LogDirReplica, ...]
    is_cordoned: bool = False


@dataclass(frozen=True, slots=True)
class DescribeLogDirsResponse(Response):
    """The log directories of the answering broker."""

    dirs: tuple[LogDir, ...]
    error: ErrorCode = ErrorCode.NONE
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class AlterReplicaLogDir:
    """A replica and its target directory; its current directory cancels a move."""

    topic: str
    partition: int
    path: str


@dataclass(frozen=True, slots=True)
class AlterReplicaLogDirsRequest(Request["AlterReplicaLogDirsResponse"]):
    """Moves replicas of the receiving broker between its directories (KIP-113)."""

    replicas: tuple[AlterReplicaLogDir, ...]


@dataclass(frozen=True, slots=True)
class AlteredReplicaLogDir:
    """REPLICA_NOT_AVAILABLE: it is not on this broker; when it is created, it will be in that directory."""

    topic: str
    partition: int
    error: ErrorCode
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class AlterReplicaLogDirsResponse(Response):
    """The moves have started, not finished."""

    replicas: tuple[AlteredReplicaLogDir, ...]
    error: ErrorCode = ErrorCode.NONE
    error_message: str = ""
