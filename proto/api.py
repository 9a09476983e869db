"""Every request and response that crosses a process boundary as a call.

Each class has a message of the same name and field names in ``proto/v1/*.proto``
(:mod:`tidelog.proto.convert` carries one into the other; a test holds the two equal). Errors are
per item, as in Kafka's protocol, with a message that says what was expected and found. Times are
milliseconds since the epoch, durations are milliseconds; ``-1`` stands for "none" where Kafka's
protocol does so, and ``None`` where a field is optional.

Source of fields and meanings: the Kafka request of the same name unless a docstring says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import (
    NO_LEADER_EPOCH,
    NO_NODE,
    NO_OFFSET,
    NO_PRODUCER_ID,
    ZERO_TOPIC_ID,
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
from tidelog.proto.group_api import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tidelog.proto.reassignment_api import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from tidelog.proto.request import Request as Request
from tidelog.proto.request import Response as Response
from tidelog.proto.sink_api import (
    AbortJobRequest as AbortJobRequest,
)
from tidelog.proto.sink_api import (
    AbortJobResponse as AbortJobResponse,
)
from tidelog.proto.sink_api import (
    BeginSinkTransactionRequest as BeginSinkTransactionRequest,
)
from tidelog.proto.sink_api import (
    BeginSinkTransactionResponse as BeginSinkTransactionResponse,
)
from tidelog.proto.sink_api import (
    CommitBatchRequest as CommitBatchRequest,
)
from tidelog.proto.sink_api import (
    CommitBatchResponse as CommitBatchResponse,
)
from tidelog.proto.sink_api import (
    DeleteSinkRequest as DeleteSinkRequest,
)
from tidelog.proto.sink_api import (
    DeleteSinkResponse as DeleteSinkResponse,
)
from tidelog.proto.sink_api import (
    DescribeSinksRequest as DescribeSinksRequest,
)
from tidelog.proto.sink_api import (
    DescribeSinksResponse as DescribeSinksResponse,
)
from tidelog.proto.sink_api import (
    ListSinksRequest as ListSinksRequest,
)
from tidelog.proto.sink_api import (
    ListSinksResponse as ListSinksResponse,
)
from tidelog.proto.transaction_api import (
    AddOffsetsToTxnRequest as AddOffsetsToTxnRequest,
)
from tidelog.proto.transaction_api import (
    AddOffsetsToTxnResponse as AddOffsetsToTxnResponse,
)
from tidelog.proto.transaction_api import (
    AddPartitionsToTxnRequest as AddPartitionsToTxnRequest,
)
from tidelog.proto.transaction_api import (
    AddPartitionsToTxnResponse as AddPartitionsToTxnResponse,
)
from tidelog.proto.transaction_api import (
    DescribeProducersRequest as DescribeProducersRequest,
)
from tidelog.proto.transaction_api import (
    DescribeProducersResponse as DescribeProducersResponse,
)
from tidelog.proto.transaction_api import (
    DescribeTransactionsRequest as DescribeTransactionsRequest,
)
from tidelog.proto.transaction_api import (
    DescribeTransactionsResponse as DescribeTransactionsResponse,
)
from tidelog.proto.transaction_api import (
    EndTxnRequest as EndTxnRequest,
)
from tidelog.proto.transaction_api import (
    EndTxnResponse as EndTxnResponse,
)
from tidelog.proto.transaction_api import (
    InitProducerIdRequest as InitProducerIdRequest,
)
from tidelog.proto.transaction_api import (
    InitProducerIdResponse as InitProducerIdResponse,
)
from tidelog.proto.transaction_api import (
    ListTransactionsRequest as ListTransactionsRequest,
)
from tidelog.proto.transaction_api import (
    ListTransactionsResponse as ListTransactionsResponse,
)
from tidelog.proto.transaction_api import (
    PrepareTransactionRequest as PrepareTransactionRequest,
)
from tidelog.proto.transaction_api import (
    PrepareTransactionResponse as PrepareTransactionResponse,
)
from tidelog.proto.transaction_api import (
    TxnOffsetCommitRequest as TxnOffsetCommitRequest,
)
from tidelog.proto.transaction_api import (
    TxnOffsetCommitResponse as TxnOffsetCommitResponse,
)
from tidelog.proto.transaction_api import (
    WriteTxnMarkersRequest as WriteTxnMarkersRequest,
)
from tidelog.proto.transaction_api import (
    WriteTxnMarkersResponse as WriteTxnMarkersResponse,
)

# --- What a client learns of a cluster ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """A live broker at the address of the listener that the request came in on."""

    node_id: NodeId
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """``error`` is LEADER_NOT_AVAILABLE where ``leader`` is -1, or LISTENER_NOT_FOUND: the leader cannot be reached
    by the listener that the request came in on."""

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
    """``all_topics`` or those named, by name or by id."""

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
    """A registered broker, live or not. ``listeners`` are all of its advertised listeners."""

    node_id: NodeId
    broker_epoch: BrokerEpoch
    fenced: bool
    in_controlled_shutdown: bool
    rack: str | None
    listeners: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class QuorumVoter:
    """A controller as the active controller sees it. ``last_caught_up_ms`` is -1 where unknown."""

    node_id: NodeId
    log_end_offset: Offset
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True)
class FeatureLevel:
    name: str
    level: int


@dataclass(frozen=True, slots=True)
class DescribeClusterResponse(Response):
    """With Kafka's DescribeQuorum and ApiVersions' finalised features folded in."""

    cluster_id: str
    controller_id: NodeId
    controller_epoch: ControllerEpoch
    metadata_offset: Offset
    brokers: tuple[ClusterBroker, ...]
    voters: tuple[QuorumVoter, ...]
    features: tuple[FeatureLevel, ...]


# --- Offsets, producer ids ---------------------------------------------------------------------

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL_TIMESTAMP: Final = -4
LATEST_TIERED_TIMESTAMP: Final = -5


@dataclass(frozen=True, slots=True)
class ListOffsetsPartition:
    """``timestamp``: -1 latest (high watermark, or LSO for read_committed), -2 earliest, -3 the
    record of the highest timestamp, -4 the earliest on a broker's own disks (here that is every one), -5 the
    latest that lies elsewhere (here there is none), else the first record at or after that time."""

    topic: str
    partition: int
    timestamp: int
    current_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest(Request["ListOffsetsResponse"]):
    partitions: tuple[ListOffsetsPartition, ...]
    read_committed: bool = False


@dataclass(frozen=True, slots=True)
class ListOffsetsResult:
    """``offset`` and ``timestamp`` are -1 where no record qualifies. Exact to the record."""

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
    """Where does an epoch end in the leader's log (KIP-101, KIP-279)? Consumers ask too (KIP-320)."""

    partitions: tuple[EpochEndPartition, ...]
    replica_id: NodeId = NO_NODE


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The largest epoch not above the one asked for, and the offset after its last record; -1, -1
    where the leader knows none."""

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
    partitions: tuple[DeleteRecordsPartition, ...]
    timeout_ms: int = 30_000


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
    """``num_partitions`` and ``replication_factor`` -1: the cluster's defaults; both -1 where
    ``assignments`` are given."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: tuple[ConfigEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest(Request["CreateTopicsResponse"]):
    topics: tuple[NewTopic, ...]
    timeout_ms: int = 30_000
    validate_only: bool = False


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


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest(Request["DeleteTopicsResponse"]):
    names: tuple[str, ...] = ()
    topic_ids: tuple[TopicId, ...] = ()
    timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class TopicResult:
    name: str
    error: ErrorCode
    error_message: str = ""
    topic_id: TopicId = ZERO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class DeleteTopicsResponse(Response):
    topics: tuple[TopicResult, ...]


@dataclass(frozen=True, slots=True)
class PartitionGrowth:
    """``count`` is the new total; ``assignments`` (optional) name the replicas of the new ones only."""

    name: str
    count: int
    assignments: tuple[ReplicaAssignment, ...] = ()


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest(Request["CreatePartitionsResponse"]):
    topics: tuple[PartitionGrowth, ...]
    timeout_ms: int = 30_000
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class CreatePartitionsResponse(Response):
    topics: tuple[TopicResult, ...]


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """``resource_type`` is "topic" or "broker"; a broker's ``name`` is its id, or "" for the default
    of all brokers."""

    resource_type: str
    name: str


@dataclass(frozen=True, slots=True)
class DescribeConfigsRequest(Request["DescribeConfigsResponse"]):
    """A broker's own (static) configuration is answered by that broker only."""

    resources: tuple[ConfigResource, ...]
    include_synonyms: bool = False


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A place that a setting's value is looked for in: under which name, what stands there, and ``source`` as in
    :class:`DescribedConfig`."""

    name: str
    value: str | None
    source: str


@dataclass(frozen=True, slots=True)
class DescribedConfig:
    """``source``: DYNAMIC_TOPIC_CONFIG, DYNAMIC_BROKER_CONFIG, DYNAMIC_DEFAULT_BROKER_CONFIG,
    STATIC_BROKER_CONFIG or DEFAULT_CONFIG, as in Kafka. ``synonyms``, where asked for: every place that has a value,
    the one in force first."""

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
class ConfigChange:
    """``operation``: "set", "delete", "append" or "subtract" (KIP-339)."""

    name: str
    operation: str
    value: str | None = None


@dataclass(frozen=True, slots=True)
class AlterResource:
    """``replace``: what the resource has itself and ``changes`` do not name goes (Kafka's older AlterConfigs)."""

    resource: ConfigResource
    changes: tuple[ConfigChange, ...]
    replace: bool = False


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsRequest(Request["IncrementalAlterConfigsResponse"]):
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
class UpdateFeaturesRequest(Request["UpdateFeaturesResponse"]):
    features: tuple[FeatureLevel, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class UpdateFeaturesResponse(Response):
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


@dataclass(frozen=True, slots=True)
class LogDir:
    path: str
    directory_id: DirectoryId
    error: ErrorCode
    total_bytes: int
    usable_bytes: int
    replicas: tuple[LogDirReplica, ...]


@dataclass(frozen=True, slots=True)
class DescribeLogDirsResponse(Response):
    """The log directories of the broker that answers."""

    dirs: tuple[LogDir, ...]


# --- Broker to controller ---------------------------------------------------------------------------


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
    """A leader asks for another ISR (KIP-497)."""

    node_id: NodeId
    broker_epoch: BrokerEpoch
    partitions: tuple[AlterPartitionItem, ...]


@dataclass(frozen=True, slots=True)
class AlteredPartition:
    """The partition's state after the change, or as it stands where ``error`` is set."""

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
    """A broker says where its replicas stand (KIP-858)."""

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
    """A broker says how far its logs reach, of partitions whose safe replicas all stopped uncleanly (KIP-966)."""

    node_id: NodeId
    broker_epoch: BrokerEpoch
    ends: tuple[LogEnd, ...]


@dataclass(frozen=True, slots=True)
class ReportLogEndsResponse(Response):
    error: ErrorCode


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
    """One committed entry: its records as :mod:`tidelog.proto.metadata` encodes a batch of them."""

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


CALLS: Final[dict[type[Request[Any]], type[Response]]] = {
    MetadataRequest: MetadataResponse,
    DescribeClusterRequest: DescribeClusterResponse,
    ListOffsetsRequest: ListOffsetsResponse,
    OffsetForLeaderEpochRequest: OffsetForLeaderEpochResponse,
    InitProducerIdRequest: InitProducerIdResponse,
    DeleteRecordsRequest: DeleteRecordsResponse,
    CreateTopicsRequest: CreateTopicsResponse,
    DeleteTopicsRequest: DeleteTopicsResponse,
    CreatePartitionsRequest: CreatePartitionsResponse,
    DescribeConfigsRequest: DescribeConfigsResponse,
    IncrementalAlterConfigsRequest: IncrementalAlterConfigsResponse,
    UpdateFeaturesRequest: UpdateFeaturesResponse,
    AlterPartitionReassignmentsRequest: AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest: ListPartitionReassignmentsResponse,
    ElectLeadersRequest: ElectLeadersResponse,
    DescribeLogDirsRequest: DescribeLogDirsResponse,
    FindCoordinatorRequest: FindCoordinatorResponse,
    JoinGroupRequest: JoinGroupResponse,
    SyncGroupRequest: SyncGroupResponse,
    HeartbeatRequest: HeartbeatResponse,
    LeaveGroupRequest: LeaveGroupResponse,
    OffsetCommitRequest: OffsetCommitResponse,
    OffsetFetchRequest: OffsetFetchResponse,
    OffsetDeleteRequest: OffsetDeleteResponse,
    ListGroupsRequest: ListGroupsResponse,
    DescribeGroupsRequest: DescribeGroupsResponse,
    DeleteGroupsRequest: DeleteGroupsResponse,
    AddPartitionsToTxnRequest: AddPartitionsToTxnResponse,
    AddOffsetsToTxnRequest: AddOffsetsToTxnResponse,
    TxnOffsetCommitRequest: TxnOffsetCommitResponse,
    PrepareTransactionRequest: PrepareTransactionResponse,
    EndTxnRequest: EndTxnResponse,
    WriteTxnMarkersRequest: WriteTxnMarkersResponse,
    DescribeTransactionsRequest: DescribeTransactionsResponse,
    ListTransactionsRequest: ListTransactionsResponse,
    DescribeProducersRequest: DescribeProducersResponse,
    BeginSinkTransactionRequest: BeginSinkTransactionResponse,
    CommitBatchRequest: CommitBatchResponse,
    AbortJobRequest: AbortJobResponse,
    DescribeSinksRequest: DescribeSinksResponse,
    ListSinksRequest: ListSinksResponse,
    DeleteSinkRequest: DeleteSinkResponse,
    RegisterBrokerRequest: RegisterBrokerResponse,
    BrokerHeartbeatRequest: BrokerHeartbeatResponse,
    AlterPartitionRequest: AlterPartitionResponse,
    AssignReplicasToDirsRequest: AssignReplicasToDirsResponse,
    ReportLogEndsRequest: ReportLogEndsResponse,
    AllocateProducerIdsRequest: AllocateProducerIdsResponse,
    FetchMetadataRequest: FetchMetadataResponse,
    FetchMetadataSnapshotRequest: FetchMetadataSnapshotResponse,
}
"""Every call: its request type and its answer's. The name on the wire is the request's class name."""
