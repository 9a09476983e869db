from tidelog.proto.v1 import forwarded_pb2 as _forwarded_pb2
from tidelog.proto.v1 import groups_pb2 as _groups_pb2
from tidelog.proto.v1 import reassignments_pb2 as _reassignments_pb2
from tidelog.proto.v1 import sinks_pb2 as _sinks_pb2
from tidelog.proto.v1 import transactions_pb2 as _transactions_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("payload",)
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    def __init__(self, payload: _Optional[bytes] = ...) -> None: ...

class BrokerEndpoint(_message.Message):
    __slots__ = ("node_id", "host", "port", "rack")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    host: str
    port: int
    rack: str
    def __init__(self, node_id: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., rack: _Optional[str] = ...) -> None: ...

class PartitionMetadata(_message.Message):
    __slots__ = ("error", "partition", "leader", "leader_epoch", "replicas", "isr", "eligible_leader_replicas", "offline_replicas", "last_known_elr")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    ELIGIBLE_LEADER_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LAST_KNOWN_ELR_FIELD_NUMBER: _ClassVar[int]
    error: int
    partition: int
    leader: int
    leader_epoch: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    isr: _containers.RepeatedScalarFieldContainer[int]
    eligible_leader_replicas: _containers.RepeatedScalarFieldContainer[int]
    offline_replicas: _containers.RepeatedScalarFieldContainer[int]
    last_known_elr: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, error: _Optional[int] = ..., partition: _Optional[int] = ..., leader: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., isr: _Optional[_Iterable[int]] = ..., eligible_leader_replicas: _Optional[_Iterable[int]] = ..., offline_replicas: _Optional[_Iterable[int]] = ..., last_known_elr: _Optional[_Iterable[int]] = ...) -> None: ...

class TopicMetadata(_message.Message):
    __slots__ = ("error", "name", "topic_id", "is_internal", "partitions", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    IS_INTERNAL_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    name: str
    topic_id: bytes
    is_internal: bool
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionMetadata]
    error_message: str
    def __init__(self, error: _Optional[int] = ..., name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., is_internal: _Optional[bool] = ..., partitions: _Optional[_Iterable[_Union[PartitionMetadata, _Mapping]]] = ..., error_message: _Optional[str] = ...) -> None: ...

class MetadataRequest(_message.Message):
    __slots__ = ("topics", "topic_ids", "all_topics", "allow_auto_topic_creation")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_IDS_FIELD_NUMBER: _ClassVar[int]
    ALL_TOPICS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_AUTO_TOPIC_CREATION_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    topic_ids: _containers.RepeatedScalarFieldContainer[bytes]
    all_topics: bool
    allow_auto_topic_creation: bool
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., topic_ids: _Optional[_Iterable[bytes]] = ..., all_topics: _Optional[bool] = ..., allow_auto_topic_creation: _Optional[bool] = ...) -> None: ...

class MetadataResponse(_message.Message):
    __slots__ = ("cluster_id", "controller_id", "brokers", "topics")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    controller_id: int
    brokers: _containers.RepeatedCompositeFieldContainer[BrokerEndpoint]
    topics: _containers.RepeatedCompositeFieldContainer[TopicMetadata]
    def __init__(self, cluster_id: _Optional[str] = ..., controller_id: _Optional[int] = ..., brokers: _Optional[_Iterable[_Union[BrokerEndpoint, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[TopicMetadata, _Mapping]]] = ...) -> None: ...

class DescribeClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClusterBroker(_message.Message):
    __slots__ = ("node_id", "broker_epoch", "fenced", "in_controlled_shutdown", "rack", "listeners", "cordoned")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    IN_CONTROLLED_SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    LISTENERS_FIELD_NUMBER: _ClassVar[int]
    CORDONED_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    broker_epoch: int
    fenced: bool
    in_controlled_shutdown: bool
    rack: str
    listeners: _containers.RepeatedCompositeFieldContainer[Endpoint]
    cordoned: bool
    def __init__(self, node_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., fenced: _Optional[bool] = ..., in_controlled_shutdown: _Optional[bool] = ..., rack: _Optional[str] = ..., listeners: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., cordoned: _Optional[bool] = ...) -> None: ...

class QuorumVoter(_message.Message):
    __slots__ = ("node_id", "log_end_offset", "last_caught_up_ms")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_CAUGHT_UP_MS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    log_end_offset: int
    last_caught_up_ms: int
    def __init__(self, node_id: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., last_caught_up_ms: _Optional[int] = ...) -> None: ...

class QuorumObserver(_message.Message):
    __slots__ = ("node_id", "log_end_offset", "last_fetch_ms", "last_caught_up_ms")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_FETCH_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_CAUGHT_UP_MS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int
    def __init__(self, node_id: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., last_fetch_ms: _Optional[int] = ..., last_caught_up_ms: _Optional[int] = ...) -> None: ...

class FeatureLevel(_message.Message):
    __slots__ = ("name", "level")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    level: int
    def __init__(self, name: _Optional[str] = ..., level: _Optional[int] = ...) -> None: ...

class DescribeClusterResponse(_message.Message):
    __slots__ = ("cluster_id", "controller_id", "controller_epoch", "metadata_offset", "brokers", "voters", "features", "error", "error_message", "observers")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_ID_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OBSERVERS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    controller_id: int
    controller_epoch: int
    metadata_offset: int
    brokers: _containers.RepeatedCompositeFieldContainer[ClusterBroker]
    voters: _containers.RepeatedCompositeFieldContainer[QuorumVoter]
    features: _containers.RepeatedCompositeFieldContainer[FeatureLevel]
    error: int
    error_message: str
    observers: _containers.RepeatedCompositeFieldContainer[QuorumObserver]
    def __init__(self, cluster_id: _Optional[str] = ..., controller_id: _Optional[int] = ..., controller_epoch: _Optional[int] = ..., metadata_offset: _Optional[int] = ..., brokers: _Optional[_Iterable[_Union[ClusterBroker, _Mapping]]] = ..., voters: _Optional[_Iterable[_Union[QuorumVoter, _Mapping]]] = ..., features: _Optional[_Iterable[_Union[FeatureLevel, _Mapping]]] = ..., error: _Optional[int] = ..., error_message: _Optional[str] = ..., observers: _Optional[_Iterable[_Union[QuorumObserver, _Mapping]]] = ...) -> None: ...

class ListOffsetsPartition(_message.Message):
    __slots__ = ("topic", "partition", "timestamp", "current_leader_epoch", "start_offset", "bytes_max")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    timestamp: int
    current_leader_epoch: int
    start_offset: int
    bytes_max: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., timestamp: _Optional[int] = ..., current_leader_epoch: _Optional[int] = ..., start_offset: _Optional[int] = ..., bytes_max: _Optional[int] = ...) -> None: ...

class ListOffsetsRequest(_message.Message):
    __slots__ = ("partitions", "read_committed")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    READ_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[ListOffsetsPartition]
    read_committed: bool
    def __init__(self, partitions: _Optional[_Iterable[_Union[ListOffsetsPartition, _Mapping]]] = ..., read_committed: _Optional[bool] = ...) -> None: ...

class ListOffsetsResult(_message.Message):
    __slots__ = ("topic", "partition", "error", "timestamp", "offset", "leader_epoch", "error_message")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error: int
    timestamp: int
    offset: int
    leader_epoch: int
    error_message: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error: _Optional[int] = ..., timestamp: _Optional[int] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class ListOffsetsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ListOffsetsResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ListOffsetsResult, _Mapping]]] = ...) -> None: ...

class EpochEndPartition(_message.Message):
    __slots__ = ("topic_id", "partition", "leader_epoch", "current_leader_epoch")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    leader_epoch: int
    current_leader_epoch: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., current_leader_epoch: _Optional[int] = ...) -> None: ...

class OffsetForLeaderEpochRequest(_message.Message):
    __slots__ = ("partitions", "replica_id")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[EpochEndPartition]
    replica_id: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[EpochEndPartition, _Mapping]]] = ..., replica_id: _Optional[int] = ...) -> None: ...

class EpochEnd(_message.Message):
    __slots__ = ("topic_id", "partition", "error", "leader_epoch", "end_offset")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    error: int
    leader_epoch: int
    end_offset: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., error: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class OffsetForLeaderEpochResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[EpochEnd]
    def __init__(self, results: _Optional[_Iterable[_Union[EpochEnd, _Mapping]]] = ...) -> None: ...

class DeleteRecordsPartition(_message.Message):
    __slots__ = ("topic", "partition", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class DeleteRecordsRequest(_message.Message):
    __slots__ = ("partitions", "timeout_ms", "link")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[DeleteRecordsPartition]
    timeout_ms: int
    link: str
    def __init__(self, partitions: _Optional[_Iterable[_Union[DeleteRecordsPartition, _Mapping]]] = ..., timeout_ms: _Optional[int] = ..., link: _Optional[str] = ...) -> None: ...

class DeleteRecordsResult(_message.Message):
    __slots__ = ("topic", "partition", "error", "low_watermark", "error_message")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOW_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error: int
    low_watermark: int
    error_message: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error: _Optional[int] = ..., low_watermark: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class DeleteRecordsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[DeleteRecordsResult]
    def __init__(self, results: _Optional[_Iterable[_Union[DeleteRecordsResult, _Mapping]]] = ...) -> None: ...

class ConfigEntry(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class ReplicaAssignment(_message.Message):
    __slots__ = ("partition", "replicas")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, partition: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ...) -> None: ...

class NewTopic(_message.Message):
    __slots__ = ("name", "num_partitions", "replication_factor", "assignments", "configs", "topic_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_partitions: int
    replication_factor: int
    assignments: _containers.RepeatedCompositeFieldContainer[ReplicaAssignment]
    configs: _containers.RepeatedCompositeFieldContainer[ConfigEntry]
    topic_id: bytes
    def __init__(self, name: _Optional[str] = ..., num_partitions: _Optional[int] = ..., replication_factor: _Optional[int] = ..., assignments: _Optional[_Iterable[_Union[ReplicaAssignment, _Mapping]]] = ..., configs: _Optional[_Iterable[_Union[ConfigEntry, _Mapping]]] = ..., topic_id: _Optional[bytes] = ...) -> None: ...

class Charged(_message.Message):
    __slots__ = ("user", "client_id", "strict")
    USER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    user: str
    client_id: str
    strict: bool
    def __init__(self, user: _Optional[str] = ..., client_id: _Optional[str] = ..., strict: _Optional[bool] = ...) -> None: ...

class CreateTopicsRequest(_message.Message):
    __slots__ = ("forwarded", "topics", "timeout_ms", "validate_only", "charged")
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    CHARGED_FIELD_NUMBER: _ClassVar[int]
    forwarded: _forwarded_pb2.Forwarded
    topics: _containers.RepeatedCompositeFieldContainer[NewTopic]
    timeout_ms: int
    validate_only: bool
    charged: Charged
    def __init__(self, forwarded: _Optional[_Union[_forwarded_pb2.Forwarded, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[NewTopic, _Mapping]]] = ..., timeout_ms: _Optional[int] = ..., validate_only: _Optional[bool] = ..., charged: _Optional[_Union[Charged, _Mapping]] = ...) -> None: ...

class CreatedTopic(_message.Message):
    __slots__ = ("name", "error", "error_message", "topic_id", "num_partitions", "replication_factor")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    name: str
    error: int
    error_message: str
    topic_id: bytes
    num_partitions: int
    replication_factor: int
    def __init__(self, name: _Optional[str] = ..., error: _Optional[int] = ..., error_message: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., num_partitions: _Optional[int] = ..., replication_factor: _Optional[int] = ...) -> None: ...

class CreateTopicsResponse(_message.Message):
    __slots__ = ("topics", "throttle_time_ms")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[CreatedTopic]
    throttle_time_ms: int
    def __init__(self, topics: _Optional[_Iterable[_Union[CreatedTopic, _Mapping]]] = ..., throttle_time_ms: _Optional[int] = ...) -> None: ...

class DeleteTopicsRequest(_message.Message):
    __slots__ = ("forwarded", "names", "topic_ids", "timeout_ms", "charged")
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    TOPIC_IDS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    CHARGED_FIELD_NUMBER: _ClassVar[int]
    forwarded: _forwarded_pb2.Forwarded
    names: _containers.RepeatedScalarFieldContainer[str]
    topic_ids: _containers.RepeatedScalarFieldContainer[bytes]
    timeout_ms: int
    charged: Charged
    def __init__(self, forwarded: _Optional[_Union[_forwarded_pb2.Forwarded, _Mapping]] = ..., names: _Optional[_Iterable[str]] = ..., topic_ids: _Optional[_Iterable[bytes]] = ..., timeout_ms: _Optional[int] = ..., charged: _Optional[_Union[Charged, _Mapping]] = ...) -> None: ...

class TopicResult(_message.Message):
    __slots__ = ("name", "error", "error_message", "topic_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    error: int
    error_message: str
    topic_id: bytes
    def __init__(self, name: _Optional[str] = ..., error: _Optional[int] = ..., error_message: _Optional[str] = ..., topic_id: _Optional[bytes] = ...) -> None: ...

class DeleteTopicsResponse(_message.Message):
    __slots__ = ("topics", "throttle_time_ms")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicResult]
    throttle_time_ms: int
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicResult, _Mapping]]] = ..., throttle_time_ms: _Optional[int] = ...) -> None: ...

class PartitionGrowth(_message.Message):
    __slots__ = ("name", "count", "assignments")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    count: int
    assignments: _containers.RepeatedCompositeFieldContainer[ReplicaAssignment]
    def __init__(self, name: _Optional[str] = ..., count: _Optional[int] = ..., assignments: _Optional[_Iterable[_Union[ReplicaAssignment, _Mapping]]] = ...) -> None: ...

class CreatePartitionsRequest(_message.Message):
    __slots__ = ("forwarded", "topics", "timeout_ms", "validate_only", "charged")
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    CHARGED_FIELD_NUMBER: _ClassVar[int]
    forwarded: _forwarded_pb2.Forwarded
    topics: _containers.RepeatedCompositeFieldContainer[PartitionGrowth]
    timeout_ms: int
    validate_only: bool
    charged: Charged
    def __init__(self, forwarded: _Optional[_Union[_forwarded_pb2.Forwarded, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[PartitionGrowth, _Mapping]]] = ..., timeout_ms: _Optional[int] = ..., validate_only: _Optional[bool] = ..., charged: _Optional[_Union[Charged, _Mapping]] = ...) -> None: ...

class CreatePartitionsResponse(_message.Message):
    __slots__ = ("topics", "throttle_time_ms")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicResult]
    throttle_time_ms: int
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicResult, _Mapping]]] = ..., throttle_time_ms: _Optional[int] = ...) -> None: ...

class ConfigResource(_message.Message):
    __slots__ = ("resource_type", "name")
    RESOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    resource_type: str
    name: str
    def __init__(self, resource_type: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class DescribeConfigsRequest(_message.Message):
    __slots__ = ("resources", "include_synonyms")
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_SYNONYMS_FIELD_NUMBER: _ClassVar[int]
    resources: _containers.RepeatedCompositeFieldContainer[ConfigResource]
    include_synonyms: bool
    def __init__(self, resources: _Optional[_Iterable[_Union[ConfigResource, _Mapping]]] = ..., include_synonyms: _Optional[bool] = ...) -> None: ...

class ConfigSynonym(_message.Message):
    __slots__ = ("name", "value", "source")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    source: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., source: _Optional[str] = ...) -> None: ...

class DescribedConfig(_message.Message):
    __slots__ = ("name", "value", "source", "read_only", "sensitive", "value_type", "documentation", "synonyms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    SENSITIVE_FIELD_NUMBER: _ClassVar[int]
    VALUE_TYPE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTATION_FIELD_NUMBER: _ClassVar[int]
    SYNONYMS_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    source: str
    read_only: bool
    sensitive: bool
    value_type: str
    documentation: str
    synonyms: _containers.RepeatedCompositeFieldContainer[ConfigSynonym]
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., source: _Optional[str] = ..., read_only: _Optional[bool] = ..., sensitive: _Optional[bool] = ..., value_type: _Optional[str] = ..., documentation: _Optional[str] = ..., synonyms: _Optional[_Iterable[_Union[ConfigSynonym, _Mapping]]] = ...) -> None: ...

class DescribedResource(_message.Message):
    __slots__ = ("resource", "error", "configs", "error_message")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    resource: ConfigResource
    error: int
    configs: _containers.RepeatedCompositeFieldContainer[DescribedConfig]
    error_message: str
    def __init__(self, resource: _Optional[_Union[ConfigResource, _Mapping]] = ..., error: _Optional[int] = ..., configs: _Optional[_Iterable[_Union[DescribedConfig, _Mapping]]] = ..., error_message: _Optional[str] = ...) -> None: ...

class DescribeConfigsResponse(_message.Message):
    __slots__ = ("resources",)
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    resources: _containers.RepeatedCompositeFieldContainer[DescribedResource]
    def __init__(self, resources: _Optional[_Iterable[_Union[DescribedResource, _Mapping]]] = ...) -> None: ...

class ListConfigResourcesRequest(_message.Message):
    __slots__ = ("resource_types",)
    RESOURCE_TYPES_FIELD_NUMBER: _ClassVar[int]
    resource_types: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, resource_types: _Optional[_Iterable[str]] = ...) -> None: ...

class ListConfigResourcesResponse(_message.Message):
    __slots__ = ("error", "resources", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    resources: _containers.RepeatedCompositeFieldContainer[ConfigResource]
    error_message: str
    def __init__(self, error: _Optional[int] = ..., resources: _Optional[_Iterable[_Union[ConfigResource, _Mapping]]] = ..., error_message: _Optional[str] = ...) -> None: ...

class ConfigChange(_message.Message):
    __slots__ = ("name", "operation", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    operation: str
    value: str
    def __init__(self, name: _Optional[str] = ..., operation: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class AlterResource(_message.Message):
    __slots__ = ("resource", "changes", "replace")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    resource: ConfigResource
    changes: _containers.RepeatedCompositeFieldContainer[ConfigChange]
    replace: bool
    def __init__(self, resource: _Optional[_Union[ConfigResource, _Mapping]] = ..., changes: _Optional[_Iterable[_Union[ConfigChange, _Mapping]]] = ..., replace: _Optional[bool] = ...) -> None: ...

class IncrementalAlterConfigsRequest(_message.Message):
    __slots__ = ("forwarded", "resources", "validate_only")
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    forwarded: _forwarded_pb2.Forwarded
    resources: _containers.RepeatedCompositeFieldContainer[AlterResource]
    validate_only: bool
    def __init__(self, forwarded: _Optional[_Union[_forwarded_pb2.Forwarded, _Mapping]] = ..., resources: _Optional[_Iterable[_Union[AlterResource, _Mapping]]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class AlteredResource(_message.Message):
    __slots__ = ("resource", "error", "error_message")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    resource: ConfigResource
    error: int
    error_message: str
    def __init__(self, resource: _Optional[_Union[ConfigResource, _Mapping]] = ..., error: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class IncrementalAlterConfigsResponse(_message.Message):
    __slots__ = ("resources",)
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    resources: _containers.RepeatedCompositeFieldContainer[AlteredResource]
    def __init__(self, resources: _Optional[_Iterable[_Union[AlteredResource, _Mapping]]] = ...) -> None: ...

class FeatureUpdate(_message.Message):
    __slots__ = ("name", "level", "upgrade_type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    UPGRADE_TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    level: int
    upgrade_type: str
    def __init__(self, name: _Optional[str] = ..., level: _Optional[int] = ..., upgrade_type: _Optional[str] = ...) -> None: ...

class UpdateFeaturesRequest(_message.Message):
    __slots__ = ("forwarded", "features", "validate_only")
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    forwarded: _forwarded_pb2.Forwarded
    features: _containers.RepeatedCompositeFieldContainer[FeatureUpdate]
    validate_only: bool
    def __init__(self, forwarded: _Optional[_Union[_forwarded_pb2.Forwarded, _Mapping]] = ..., features: _Optional[_Iterable[_Union[FeatureUpdate, _Mapping]]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class UpdateFeaturesResponse(_message.Message):
    __slots__ = ("error", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    error_message: str
    def __init__(self, error: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class DescribeFeaturesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodeFeatures(_message.Message):
    __slots__ = ("role", "node_id", "features")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    role: str
    node_id: int
    features: _containers.RepeatedCompositeFieldContainer[SupportedFeature]
    def __init__(self, role: _Optional[str] = ..., node_id: _Optional[int] = ..., features: _Optional[_Iterable[_Union[SupportedFeature, _Mapping]]] = ...) -> None: ...

class DescribeFeaturesResponse(_message.Message):
    __slots__ = ("finalized", "epoch", "supported", "nodes", "error", "error_message")
    FINALIZED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SUPPORTED_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    finalized: _containers.RepeatedCompositeFieldContainer[FeatureLevel]
    epoch: int
    supported: _containers.RepeatedCompositeFieldContainer[SupportedFeature]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeFeatures]
    error: int
    error_message: str
    def __init__(self, finalized: _Optional[_Iterable[_Union[FeatureLevel, _Mapping]]] = ..., epoch: _Optional[int] = ..., supported: _Optional[_Iterable[_Union[SupportedFeature, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[NodeFeatures, _Mapping]]] = ..., error: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class UnregisterBrokerRequest(_message.Message):
    __slots__ = ("forwarded", "node_id")
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    forwarded: _forwarded_pb2.Forwarded
    node_id: int
    def __init__(self, forwarded: _Optional[_Union[_forwarded_pb2.Forwarded, _Mapping]] = ..., node_id: _Optional[int] = ...) -> None: ...

class UnregisterBrokerResponse(_message.Message):
    __slots__ = ("error", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    error_message: str
    def __init__(self, error: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class DescribeLogDirsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LogDirReplica(_message.Message):
    __slots__ = ("topic", "partition", "size_bytes", "log_start_offset", "log_end_offset", "is_future", "offset_lag")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    IS_FUTURE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_LAG_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    size_bytes: int
    log_start_offset: int
    log_end_offset: int
    is_future: bool
    offset_lag: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., size_bytes: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., is_future: _Optional[bool] = ..., offset_lag: _Optional[int] = ...) -> None: ...

class LogDir(_message.Message):
    __slots__ = ("path", "directory_id", "error", "total_bytes", "usable_bytes", "replicas", "is_cordoned")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    USABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    IS_CORDONED_FIELD_NUMBER: _ClassVar[int]
    path: str
    directory_id: bytes
    error: int
    total_bytes: int
    usable_bytes: int
    replicas: _containers.RepeatedCompositeFieldContainer[LogDirReplica]
    is_cordoned: bool
    def __init__(self, path: _Optional[str] = ..., directory_id: _Optional[bytes] = ..., error: _Optional[int] = ..., total_bytes: _Optional[int] = ..., usable_bytes: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[LogDirReplica, _Mapping]]] = ..., is_cordoned: _Optional[bool] = ...) -> None: ...

class DescribeLogDirsResponse(_message.Message):
    __slots__ = ("dirs", "error", "error_message")
    DIRS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    dirs: _containers.RepeatedCompositeFieldContainer[LogDir]
    error: int
    error_message: str
    def __init__(self, dirs: _Optional[_Iterable[_Union[LogDir, _Mapping]]] = ..., error: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class AlterReplicaLogDir(_message.Message):
    __slots__ = ("topic", "partition", "path")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    path: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., path: _Optional[str] = ...) -> None: ...

class AlterReplicaLogDirsRequest(_message.Message):
    __slots__ = ("replicas",)
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[AlterReplicaLogDir]
    def __init__(self, replicas: _Optional[_Iterable[_Union[AlterReplicaLogDir, _Mapping]]] = ...) -> None: ...

class AlteredReplicaLogDir(_message.Message):
    __slots__ = ("topic", "partition", "error", "error_message")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error: int
    error_message: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class AlterReplicaLogDirsResponse(_message.Message):
    __slots__ = ("replicas", "error", "error_message")
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[AlteredReplicaLogDir]
    error: int
    error_message: str
    def __init__(self, replicas: _Optional[_Iterable[_Union[AlteredReplicaLogDir, _Mapping]]] = ..., error: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class AclEntry(_message.Message):
    __slots__ = ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission")
    RESOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    PATTERN_TYPE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str
    def __init__(self, resource_type: _Optional[str] = ..., resource_name: _Optional[str] = ..., pattern_type: _Optional[str] = ..., principal: _Optional[str] = ..., host: _Optional[str] = ..., operation: _Optional[str] = ..., permission: _Optional[str] = ...) -> None: ...

class AclEntryFilter(_message.Message):
    __slots__ = ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission")
    RESOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    PATTERN_TYPE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str
    def __init__(self, resource_type: _Optional[str] = ..., resource_name: _Optional[str] = ..., pattern_type: _Optional[str] = ..., principal: _Optional[str] = ..., host: _Optional[str] = ..., operation: _Optional[str] = ..., permission: _Optional[str] = ...) -> None: ...

class DescribeAclsRequest(_message.Message):
    __slots__ = ("filter",)
    FILTER_FIELD_NUMBER: _ClassVar[int]
    filter: AclEntryFilter
    def __init__(self, filter: _Optional[_Union[AclEntryFilter, _Mapping]] = ...) -> None: ...

class DescribeAclsResponse(_message.Message):
    __slots__ = ("error", "entries", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    entries: _containers.RepeatedCompositeFieldContainer[AclEntry]
    error_message: str
    def __init__(self, error: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[AclEntry, _Mapping]]] = ..., error_message: _Optional[str] = ...) -> None: ...

class CreateAclsRequest(_message.Message):
    __slots__ = ("forwarded", "entries")
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    forwarded: _forwarded_pb2.Forwarded
    entries: _containers.RepeatedCompositeFieldContainer[AclEntry]
    def __init__(self, forwarded: _Optional[_Union[_forwarded_pb2.Forwarded, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[AclEntry, _Mapping]]] = ...) -> None: ...

class CreatedAcl(_message.Message):
    __slots__ = ("error", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    error_message: str
    def __init__(self, error: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class CreateAclsResponse(_message.Message):
    __slots__ = ("error", "results", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    results: _containers.RepeatedCompositeFieldContainer[CreatedAcl]
    error_message: str
    def __init__(self, error: _Optional[int] = ..., results: _Optional[_Iterable[_Union[CreatedAcl, _Mapping]]] = ..., error_message: _Optional[str] = ...) -> None: ...

class DeleteAclsRequest(_message.Message):
    __slots__ = ("forwarded", "filters")
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    forwarded: _forwarded_pb2.Forwarded
    filters: _containers.RepeatedCompositeFieldContainer[AclEntryFilter]
    def __init__(self, forwarded: _Optional[_Union[_forwarded_pb2.Forwarded, _Mapping]] = ..., filters: _Optional[_Iterable[_Union[AclEntryFilter, _Mapping]]] = ...) -> None: ...

class DeletedAcls(_message.Message):
    __slots__ = ("error", "entries", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    entries: _containers.RepeatedCompositeFieldContainer[AclEntry]
    error_message: str
    def __init__(self, error: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[AclEntry, _Mapping]]] = ..., error_message: _Optional[str] = ...) -> None: ...

class DeleteAclsResponse(_message.Message):
    __slots__ = ("error", "results", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    results: _containers.RepeatedCompositeFieldContainer[DeletedAcls]
    error_message: str
    def __init__(self, error: _Optional[int] = ..., results: _Optional[_Iterable[_Union[DeletedAcls, _Mapping]]] = ..., error_message: _Optional[str] = ...) -> None: ...

class QuotaEntity(_message.Message):
    __slots__ = ("entity_type", "entity_name")
    ENTITY_TYPE_FIELD_NUMBER: _ClassVar[int]
    ENTITY_NAME_FIELD_NUMBER: _ClassVar[int]
    entity_type: str
    entity_name: str
    def __init__(self, entity_type: _Optional[str] = ..., entity_name: _Optional[str] = ...) -> None: ...

class QuotaFilter(_message.Message):
    __slots__ = ("entity_type", "match_type", "match")
    ENTITY_TYPE_FIELD_NUMBER: _ClassVar[int]
    MATCH_TYPE_FIELD_NUMBER: _ClassVar[int]
    MATCH_FIELD_NUMBER: _ClassVar[int]
    entity_type: str
    match_type: str
    match: str
    def __init__(self, entity_type: _Optional[str] = ..., match_type: _Optional[str] = ..., match: _Optional[str] = ...) -> None: ...

class DescribeClientQuotasRequest(_message.Message):
    __slots__ = ("components", "strict")
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    components: _containers.RepeatedCompositeFieldContainer[QuotaFilter]
    strict: bool
    def __init__(self, components: _Optional[_Iterable[_Union[QuotaFilter, _Mapping]]] = ..., strict: _Optional[bool] = ...) -> None: ...

class QuotaValue(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: float
    def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class DescribedQuotas(_message.Message):
    __slots__ = ("entity", "values")
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    entity: _containers.RepeatedCompositeFieldContainer[QuotaEntity]
    values: _containers.RepeatedCompositeFieldContainer[QuotaValue]
    def __init__(self, entity: _Optional[_Iterable[_Union[QuotaEntity, _Mapping]]] = ..., values: _Optional[_Iterable[_Union[QuotaValue, _Mapping]]] = ...) -> None: ...

class DescribeClientQuotasResponse(_message.Message):
    __slots__ = ("error", "entries", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    entries: _containers.RepeatedCompositeFieldContainer[DescribedQuotas]
    error_message: str
    def __init__(self, error: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[DescribedQuotas, _Mapping]]] = ..., error_message: _Optional[str] = ...) -> None: ...

class QuotaChange(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: float
    def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class QuotaAlteration(_message.Message):
    __slots__ = ("entity", "changes")
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    entity: _containers.RepeatedCompositeFieldContainer[QuotaEntity]
    changes: _containers.RepeatedCompositeFieldContainer[QuotaChange]
    def __init__(self, entity: _Optional[_Iterable[_Union[QuotaEntity, _Mapping]]] = ..., changes: _Optional[_Iterable[_Union[QuotaChange, _Mapping]]] = ...) -> None: ...

class AlterClientQuotasRequest(_message.Message):
    __slots__ = ("forwarded", "entries", "validate_only")
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    forwarded: _forwarded_pb2.Forwarded
    entries: _containers.RepeatedCompositeFieldContainer[QuotaAlteration]
    validate_only: bool
    def __init__(self, forwarded: _Optional[_Union[_forwarded_pb2.Forwarded, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[QuotaAlteration, _Mapping]]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class AlteredQuotas(_message.Message):
    __slots__ = ("entity", "error", "error_message")
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    entity: _containers.RepeatedCompositeFieldContainer[QuotaEntity]
    error: int
    error_message: str
    def __init__(self, entity: _Optional[_Iterable[_Union[QuotaEntity, _Mapping]]] = ..., error: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class AlterClientQuotasResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AlteredQuotas]
    def __init__(self, entries: _Optional[_Iterable[_Union[AlteredQuotas, _Mapping]]] = ...) -> None: ...

class DescribeUserScramCredentialsRequest(_message.Message):
    __slots__ = ("users",)
    USERS_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, users: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribedCredential(_message.Message):
    __slots__ = ("mechanism", "iterations")
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    mechanism: int
    iterations: int
    def __init__(self, mechanism: _Optional[int] = ..., iterations: _Optional[int] = ...) -> None: ...

class DescribedUser(_message.Message):
    __slots__ = ("user", "error", "credentials", "error_message")
    USER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    user: str
    error: int
    credentials: _containers.RepeatedCompositeFieldContainer[DescribedCredential]
    error_message: str
    def __init__(self, user: _Optional[str] = ..., error: _Optional[int] = ..., credentials: _Optional[_Iterable[_Union[DescribedCredential, _Mapping]]] = ..., error_message: _Optional[str] = ...) -> None: ...

class DescribeUserScramCredentialsResponse(_message.Message):
    __slots__ = ("error", "users", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    users: _containers.RepeatedCompositeFieldContainer[DescribedUser]
    error_message: str
    def __init__(self, error: _Optional[int] = ..., users: _Optional[_Iterable[_Union[DescribedUser, _Mapping]]] = ..., error_message: _Optional[str] = ...) -> None: ...

class ScramDeletion(_message.Message):
    __slots__ = ("user", "mechanism")
    USER_FIELD_NUMBER: _ClassVar[int]
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    user: str
    mechanism: int
    def __init__(self, user: _Optional[str] = ..., mechanism: _Optional[int] = ...) -> None: ...

class ScramUpsertion(_message.Message):
    __slots__ = ("user", "mechanism", "iterations", "salt", "salted_password")
    USER_FIELD_NUMBER: _ClassVar[int]
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    SALTED_PASSWORD_FIELD_NUMBER: _ClassVar[int]
    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes
    def __init__(self, user: _Optional[str] = ..., mechanism: _Optional[int] = ..., iterations: _Optional[int] = ..., salt: _Optional[bytes] = ..., salted_password: _Optional[bytes] = ...) -> None: ...

class AlterUserScramCredentialsRequest(_message.Message):
    __slots__ = ("forwarded", "deletions", "upsertions")
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    DELETIONS_FIELD_NUMBER: _ClassVar[int]
    UPSERTIONS_FIELD_NUMBER: _ClassVar[int]
    forwarded: _forwarded_pb2.Forwarded
    deletions: _containers.RepeatedCompositeFieldContainer[ScramDeletion]
    upsertions: _containers.RepeatedCompositeFieldContainer[ScramUpsertion]
    def __init__(self, forwarded: _Optional[_Union[_forwarded_pb2.Forwarded, _Mapping]] = ..., deletions: _Optional[_Iterable[_Union[ScramDeletion, _Mapping]]] = ..., upsertions: _Optional[_Iterable[_Union[ScramUpsertion, _Mapping]]] = ...) -> None: ...

class AlteredUser(_message.Message):
    __slots__ = ("user", "error", "error_message")
    USER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    user: str
    error: int
    error_message: str
    def __init__(self, user: _Optional[str] = ..., error: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class AlterUserScramCredentialsResponse(_message.Message):
    __slots__ = ("error", "results", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    results: _containers.RepeatedCompositeFieldContainer[AlteredUser]
    error_message: str
    def __init__(self, error: _Optional[int] = ..., results: _Optional[_Iterable[_Union[AlteredUser, _Mapping]]] = ..., error_message: _Optional[str] = ...) -> None: ...

class SaslAuthenticateRequest(_message.Message):
    __slots__ = ("mechanism", "exchange", "auth_bytes")
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    AUTH_BYTES_FIELD_NUMBER: _ClassVar[int]
    mechanism: str
    exchange: bytes
    auth_bytes: bytes
    def __init__(self, mechanism: _Optional[str] = ..., exchange: _Optional[bytes] = ..., auth_bytes: _Optional[bytes] = ...) -> None: ...

class SaslAuthenticateResponse(_message.Message):
    __slots__ = ("error", "auth_bytes", "exchange", "session_token", "session_lifetime_ms", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    AUTH_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SESSION_LIFETIME_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    auth_bytes: bytes
    exchange: bytes
    session_token: str
    session_lifetime_ms: int
    error_message: str
    def __init__(self, error: _Optional[int] = ..., auth_bytes: _Optional[bytes] = ..., exchange: _Optional[bytes] = ..., session_token: _Optional[str] = ..., session_lifetime_ms: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class CreateDelegationTokenRequest(_message.Message):
    __slots__ = ("forwarded", "owner", "renewers", "max_lifetime_ms", "requester")
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    RENEWERS_FIELD_NUMBER: _ClassVar[int]
    MAX_LIFETIME_MS_FIELD_NUMBER: _ClassVar[int]
    REQUESTER_FIELD_NUMBER: _ClassVar[int]
    forwarded: _forwarded_pb2.Forwarded
    owner: str
    renewers: _containers.RepeatedScalarFieldContainer[str]
    max_lifetime_ms: int
    requester: str
    def __init__(self, forwarded: _Optional[_Union[_forwarded_pb2.Forwarded, _Mapping]] = ..., owner: _Optional[str] = ..., renewers: _Optional[_Iterable[str]] = ..., max_lifetime_ms: _Optional[int] = ..., requester: _Optional[str] = ...) -> None: ...

class DescribedDelegationToken(_message.Message):
    __slots__ = ("token_id", "owner", "requester", "renewers", "issue_timestamp_ms", "max_timestamp_ms", "expiration_timestamp_ms", "hmac")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    REQUESTER_FIELD_NUMBER: _ClassVar[int]
    RENEWERS_FIELD_NUMBER: _ClassVar[int]
    ISSUE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRATION_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    HMAC_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    owner: str
    requester: str
    renewers: _containers.RepeatedScalarFieldContainer[str]
    issue_timestamp_ms: int
    max_timestamp_ms: int
    expiration_timestamp_ms: int
    hmac: bytes
    def __init__(self, token_id: _Optional[str] = ..., owner: _Optional[str] = ..., requester: _Optional[str] = ..., renewers: _Optional[_Iterable[str]] = ..., issue_timestamp_ms: _Optional[int] = ..., max_timestamp_ms: _Optional[int] = ..., expiration_timestamp_ms: _Optional[int] = ..., hmac: _Optional[bytes] = ...) -> None: ...

class CreateDelegationTokenResponse(_message.Message):
    __slots__ = ("error", "token", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    token: DescribedDelegationToken
    error_message: str
    def __init__(self, error: _Optional[int] = ..., token: _Optional[_Union[DescribedDelegationToken, _Mapping]] = ..., error_message: _Optional[str] = ...) -> None: ...

class RenewDelegationTokenRequest(_message.Message):
    __slots__ = ("forwarded", "hmac", "renew_period_ms", "requester")
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    HMAC_FIELD_NUMBER: _ClassVar[int]
    RENEW_PERIOD_MS_FIELD_NUMBER: _ClassVar[int]
    REQUESTER_FIELD_NUMBER: _ClassVar[int]
    forwarded: _forwarded_pb2.Forwarded
    hmac: bytes
    renew_period_ms: int
    requester: str
    def __init__(self, forwarded: _Optional[_Union[_forwarded_pb2.Forwarded, _Mapping]] = ..., hmac: _Optional[bytes] = ..., renew_period_ms: _Optional[int] = ..., requester: _Optional[str] = ...) -> None: ...

class RenewDelegationTokenResponse(_message.Message):
    __slots__ = ("error", "expiry_timestamp_ms", "token_id", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EXPIRY_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    expiry_timestamp_ms: int
    token_id: str
    error_message: str
    def __init__(self, error: _Optional[int] = ..., expiry_timestamp_ms: _Optional[int] = ..., token_id: _Optional[str] = ..., error_message: _Optional[str] = ...) -> None: ...

class ExpireDelegationTokenRequest(_message.Message):
    __slots__ = ("forwarded", "hmac", "expiry_time_period_ms", "requester")
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    HMAC_FIELD_NUMBER: _ClassVar[int]
    EXPIRY_TIME_PERIOD_MS_FIELD_NUMBER: _ClassVar[int]
    REQUESTER_FIELD_NUMBER: _ClassVar[int]
    forwarded: _forwarded_pb2.Forwarded
    hmac: bytes
    expiry_time_period_ms: int
    requester: str
    def __init__(self, forwarded: _Optional[_Union[_forwarded_pb2.Forwarded, _Mapping]] = ..., hmac: _Optional[bytes] = ..., expiry_time_period_ms: _Optional[int] = ..., requester: _Optional[str] = ...) -> None: ...

class ExpireDelegationTokenResponse(_message.Message):
    __slots__ = ("error", "expiry_timestamp_ms", "token_id", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EXPIRY_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    expiry_timestamp_ms: int
    token_id: str
    error_message: str
    def __init__(self, error: _Optional[int] = ..., expiry_timestamp_ms: _Optional[int] = ..., token_id: _Optional[str] = ..., error_message: _Optional[str] = ...) -> None: ...

class DescribeDelegationTokenRequest(_message.Message):
    __slots__ = ("owners", "all_owners", "token_ids", "by_id")
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    ALL_OWNERS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BY_ID_FIELD_NUMBER: _ClassVar[int]
    owners: _containers.RepeatedScalarFieldContainer[str]
    all_owners: bool
    token_ids: _containers.RepeatedScalarFieldContainer[str]
    by_id: bool
    def __init__(self, owners: _Optional[_Iterable[str]] = ..., all_owners: _Optional[bool] = ..., token_ids: _Optional[_Iterable[str]] = ..., by_id: _Optional[bool] = ...) -> None: ...

class DescribeDelegationTokenResponse(_message.Message):
    __slots__ = ("error", "tokens", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    tokens: _containers.RepeatedCompositeFieldContainer[DescribedDelegationToken]
    error_message: str
    def __init__(self, error: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[DescribedDelegationToken, _Mapping]]] = ..., error_message: _Optional[str] = ...) -> None: ...

class AppendAuditRequest(_message.Message):
    __slots__ = ("lines",)
    LINES_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, lines: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AppendAuditResponse(_message.Message):
    __slots__ = ("error", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    error_message: str
    def __init__(self, error: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class HoldTransactionsRequest(_message.Message):
    __slots__ = ("hold_id", "hold_ms")
    HOLD_ID_FIELD_NUMBER: _ClassVar[int]
    HOLD_MS_FIELD_NUMBER: _ClassVar[int]
    hold_id: str
    hold_ms: int
    def __init__(self, hold_id: _Optional[str] = ..., hold_ms: _Optional[int] = ...) -> None: ...

class HeldLedger(_message.Message):
    __slots__ = ("sink", "last_batch", "last_job")
    SINK_FIELD_NUMBER: _ClassVar[int]
    LAST_BATCH_FIELD_NUMBER: _ClassVar[int]
    LAST_JOB_FIELD_NUMBER: _ClassVar[int]
    sink: str
    last_batch: int
    last_job: str
    def __init__(self, sink: _Optional[str] = ..., last_batch: _Optional[int] = ..., last_job: _Optional[str] = ...) -> None: ...

class HeldPartition(_message.Message):
    __slots__ = ("partition", "leader_epoch", "settled", "unbroken", "ledgers")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    UNBROKEN_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    leader_epoch: int
    settled: bool
    unbroken: bool
    ledgers: _containers.RepeatedCompositeFieldContainer[HeldLedger]
    def __init__(self, partition: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., settled: _Optional[bool] = ..., unbroken: _Optional[bool] = ..., ledgers: _Optional[_Iterable[_Union[HeldLedger, _Mapping]]] = ...) -> None: ...

class HoldTransactionsResponse(_message.Message):
    __slots__ = ("error", "partitions", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    partitions: _containers.RepeatedCompositeFieldContainer[HeldPartition]
    error_message: str
    def __init__(self, error: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[HeldPartition, _Mapping]]] = ..., error_message: _Optional[str] = ...) -> None: ...

class ImportRecordsRequest(_message.Message):
    __slots__ = ("topic_id", "partition", "leader_epoch", "log_end_offset", "records", "timeout_ms", "link", "place", "manifest_sha256")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_SHA256_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    leader_epoch: int
    log_end_offset: int
    records: bytes
    timeout_ms: int
    link: str
    place: str
    manifest_sha256: str
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., records: _Optional[bytes] = ..., timeout_ms: _Optional[int] = ..., link: _Optional[str] = ..., place: _Optional[str] = ..., manifest_sha256: _Optional[str] = ...) -> None: ...

class ImportRecordsResponse(_message.Message):
    __slots__ = ("error", "log_end_offset", "error_message", "reads", "read_bytes", "done")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    error: int
    log_end_offset: int
    error_message: str
    reads: bool
    read_bytes: int
    done: bool
    def __init__(self, error: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., error_message: _Optional[str] = ..., reads: _Optional[bool] = ..., read_bytes: _Optional[int] = ..., done: _Optional[bool] = ...) -> None: ...

class AdvanceProducerIdsRequest(_message.Message):
    __slots__ = ("forwarded", "beyond", "give_back")
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    BEYOND_FIELD_NUMBER: _ClassVar[int]
    GIVE_BACK_FIELD_NUMBER: _ClassVar[int]
    forwarded: _forwarded_pb2.Forwarded
    beyond: int
    give_back: int
    def __init__(self, forwarded: _Optional[_Union[_forwarded_pb2.Forwarded, _Mapping]] = ..., beyond: _Optional[int] = ..., give_back: _Optional[int] = ...) -> None: ...

class AdvanceProducerIdsResponse(_message.Message):
    __slots__ = ("error", "first_producer_id", "error_message", "next_producer_id", "former_producer_id")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FIRST_PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NEXT_PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    FORMER_PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    error: int
    first_producer_id: int
    error_message: str
    next_producer_id: int
    former_producer_id: int
    def __init__(self, error: _Optional[int] = ..., first_producer_id: _Optional[int] = ..., error_message: _Optional[str] = ..., next_producer_id: _Optional[int] = ..., former_producer_id: _Optional[int] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("listener", "host", "port")
    LISTENER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    listener: str
    host: str
    port: int
    def __init__(self, listener: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class SupportedFeature(_message.Message):
    __slots__ = ("name", "level_min", "level_max")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_MIN_FIELD_NUMBER: _ClassVar[int]
    LEVEL_MAX_FIELD_NUMBER: _ClassVar[int]
    name: str
    level_min: int
    level_max: int
    def __init__(self, name: _Optional[str] = ..., level_min: _Optional[int] = ..., level_max: _Optional[int] = ...) -> None: ...

class RegisterBrokerRequest(_message.Message):
    __slots__ = ("cluster_id", "node_id", "incarnation_id", "listeners", "rack", "log_dirs", "features", "previous_broker_epoch")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    LISTENERS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    LOG_DIRS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    node_id: int
    incarnation_id: bytes
    listeners: _containers.RepeatedCompositeFieldContainer[Endpoint]
    rack: str
    log_dirs: _containers.RepeatedScalarFieldContainer[bytes]
    features: _containers.RepeatedCompositeFieldContainer[SupportedFeature]
    previous_broker_epoch: int
    def __init__(self, cluster_id: _Optional[str] = ..., node_id: _Optional[int] = ..., incarnation_id: _Optional[bytes] = ..., listeners: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., rack: _Optional[str] = ..., log_dirs: _Optional[_Iterable[bytes]] = ..., features: _Optional[_Iterable[_Union[SupportedFeature, _Mapping]]] = ..., previous_broker_epoch: _Optional[int] = ...) -> None: ...

class RegisterBrokerResponse(_message.Message):
    __slots__ = ("error", "broker_epoch", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    broker_epoch: int
    error_message: str
    def __init__(self, error: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class BrokerHeartbeatRequest(_message.Message):
    __slots__ = ("node_id", "broker_epoch", "current_metadata_offset", "want_fence", "want_shut_down", "offline_log_dirs")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CURRENT_METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    WANT_FENCE_FIELD_NUMBER: _ClassVar[int]
    WANT_SHUT_DOWN_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_LOG_DIRS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    broker_epoch: int
    current_metadata_offset: int
    want_fence: bool
    want_shut_down: bool
    offline_log_dirs: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, node_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., current_metadata_offset: _Optional[int] = ..., want_fence: _Optional[bool] = ..., want_shut_down: _Optional[bool] = ..., offline_log_dirs: _Optional[_Iterable[bytes]] = ...) -> None: ...

class BrokerHeartbeatResponse(_message.Message):
    __slots__ = ("error", "is_caught_up", "is_fenced", "should_shut_down", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    IS_CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    IS_FENCED_FIELD_NUMBER: _ClassVar[int]
    SHOULD_SHUT_DOWN_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool
    error_message: str
    def __init__(self, error: _Optional[int] = ..., is_caught_up: _Optional[bool] = ..., is_fenced: _Optional[bool] = ..., should_shut_down: _Optional[bool] = ..., error_message: _Optional[str] = ...) -> None: ...

class IsrMember(_message.Message):
    __slots__ = ("node_id", "broker_epoch")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    broker_epoch: int
    def __init__(self, node_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ...) -> None: ...

class AlterPartitionItem(_message.Message):
    __slots__ = ("topic_id", "partition", "leader_epoch", "new_isr", "partition_epoch")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEW_ISR_FIELD_NUMBER: _ClassVar[int]
    PARTITION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    leader_epoch: int
    new_isr: _containers.RepeatedCompositeFieldContainer[IsrMember]
    partition_epoch: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., new_isr: _Optional[_Iterable[_Union[IsrMember, _Mapping]]] = ..., partition_epoch: _Optional[int] = ...) -> None: ...

class AlterPartitionRequest(_message.Message):
    __slots__ = ("node_id", "broker_epoch", "partitions")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    broker_epoch: int
    partitions: _containers.RepeatedCompositeFieldContainer[AlterPartitionItem]
    def __init__(self, node_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[AlterPartitionItem, _Mapping]]] = ...) -> None: ...

class AlteredPartition(_message.Message):
    __slots__ = ("topic_id", "partition", "error", "leader", "leader_epoch", "isr", "partition_epoch")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    PARTITION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    error: int
    leader: int
    leader_epoch: int
    isr: _containers.RepeatedScalarFieldContainer[int]
    partition_epoch: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., error: _Optional[int] = ..., leader: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., isr: _Optional[_Iterable[int]] = ..., partition_epoch: _Optional[int] = ...) -> None: ...

class AlterPartitionResponse(_message.Message):
    __slots__ = ("error", "partitions")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    error: int
    partitions: _containers.RepeatedCompositeFieldContainer[AlteredPartition]
    def __init__(self, error: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[AlteredPartition, _Mapping]]] = ...) -> None: ...

class DirectoryAssignment(_message.Message):
    __slots__ = ("directory_id", "topic_id", "partition")
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    directory_id: bytes
    topic_id: bytes
    partition: int
    def __init__(self, directory_id: _Optional[bytes] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ...) -> None: ...

class AssignReplicasToDirsRequest(_message.Message):
    __slots__ = ("node_id", "broker_epoch", "assignments")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    broker_epoch: int
    assignments: _containers.RepeatedCompositeFieldContainer[DirectoryAssignment]
    def __init__(self, node_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., assignments: _Optional[_Iterable[_Union[DirectoryAssignment, _Mapping]]] = ...) -> None: ...

class AssignReplicasToDirsResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: int
    def __init__(self, error: _Optional[int] = ...) -> None: ...

class LogEnd(_message.Message):
    __slots__ = ("topic_id", "partition", "leader_epoch", "last_epoch", "end_offset")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    leader_epoch: int
    last_epoch: int
    end_offset: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., last_epoch: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class ReportLogEndsRequest(_message.Message):
    __slots__ = ("node_id", "broker_epoch", "ends")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    broker_epoch: int
    ends: _containers.RepeatedCompositeFieldContainer[LogEnd]
    def __init__(self, node_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., ends: _Optional[_Iterable[_Union[LogEnd, _Mapping]]] = ...) -> None: ...

class ReportLogEndsResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: int
    def __init__(self, error: _Optional[int] = ...) -> None: ...

class RegisterControllerRequest(_message.Message):
    __slots__ = ("cluster_id", "node_id", "features")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    node_id: int
    features: _containers.RepeatedCompositeFieldContainer[SupportedFeature]
    def __init__(self, cluster_id: _Optional[str] = ..., node_id: _Optional[int] = ..., features: _Optional[_Iterable[_Union[SupportedFeature, _Mapping]]] = ...) -> None: ...

class RegisterControllerResponse(_message.Message):
    __slots__ = ("error", "error_message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: int
    error_message: str
    def __init__(self, error: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class AllocateProducerIdsRequest(_message.Message):
    __slots__ = ("node_id", "broker_epoch")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    broker_epoch: int
    def __init__(self, node_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ...) -> None: ...

class AllocateProducerIdsResponse(_message.Message):
    __slots__ = ("error", "first_producer_id", "count")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FIRST_PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    error: int
    first_producer_id: int
    count: int
    def __init__(self, error: _Optional[int] = ..., first_producer_id: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class FetchMetadataRequest(_message.Message):
    __slots__ = ("node_id", "fetch_offset", "last_epoch", "wait_ms")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    FETCH_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    fetch_offset: int
    last_epoch: int
    wait_ms: int
    def __init__(self, node_id: _Optional[int] = ..., fetch_offset: _Optional[int] = ..., last_epoch: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class MetadataEntry(_message.Message):
    __slots__ = ("offset", "epoch", "records")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    offset: int
    epoch: int
    records: bytes
    def __init__(self, offset: _Optional[int] = ..., epoch: _Optional[int] = ..., records: _Optional[bytes] = ...) -> None: ...

class FetchMetadataResponse(_message.Message):
    __slots__ = ("error", "leader_id", "epoch", "high_watermark", "entries", "snapshot_offset", "snapshot_epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: int
    leader_id: int
    epoch: int
    high_watermark: int
    entries: _containers.RepeatedCompositeFieldContainer[MetadataEntry]
    snapshot_offset: int
    snapshot_epoch: int
    def __init__(self, error: _Optional[int] = ..., leader_id: _Optional[int] = ..., epoch: _Optional[int] = ..., high_watermark: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[MetadataEntry, _Mapping]]] = ..., snapshot_offset: _Optional[int] = ..., snapshot_epoch: _Optional[int] = ...) -> None: ...

class FetchMetadataSnapshotRequest(_message.Message):
    __slots__ = ("node_id", "snapshot_offset", "snapshot_epoch", "position")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    snapshot_offset: int
    snapshot_epoch: int
    position: int
    def __init__(self, node_id: _Optional[int] = ..., snapshot_offset: _Optional[int] = ..., snapshot_epoch: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

class FetchMetadataSnapshotResponse(_message.Message):
    __slots__ = ("error", "size", "chunk")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    error: int
    size: int
    chunk: bytes
    def __init__(self, error: _Optional[int] = ..., size: _Optional[int] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class OpenConnection(_message.Message):
    __slots__ = ("listener", "host", "port", "security_protocol", "principal", "client_id", "software", "age_ms", "idle_ms", "bytes_in", "bytes_out")
    LISTENER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SECURITY_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    listener: str
    host: str
    port: int
    security_protocol: str
    principal: str
    client_id: str
    software: str
    age_ms: int
    idle_ms: int
    bytes_in: int
    bytes_out: int
    def __init__(self, listener: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., security_protocol: _Optional[str] = ..., principal: _Optional[str] = ..., client_id: _Optional[str] = ..., software: _Optional[str] = ..., age_ms: _Optional[int] = ..., idle_ms: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ...) -> None: ...

class DescribeConnectionsRequest(_message.Message):
    __slots__ = ("principal", "host", "port", "connections_max")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_MAX_FIELD_NUMBER: _ClassVar[int]
    principal: str
    host: str
    port: int
    connections_max: int
    def __init__(self, principal: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., connections_max: _Optional[int] = ...) -> None: ...

class DescribeConnectionsResponse(_message.Message):
    __slots__ = ("connections", "total", "error", "error_message")
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    connections: _containers.RepeatedCompositeFieldContainer[OpenConnection]
    total: int
    error: int
    error_message: str
    def __init__(self, connections: _Optional[_Iterable[_Union[OpenConnection, _Mapping]]] = ..., total: _Optional[int] = ..., error: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class CloseConnectionsRequest(_message.Message):
    __slots__ = ("principal", "host", "port")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    principal: str
    host: str
    port: int
    def __init__(self, principal: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class CloseConnectionsResponse(_message.Message):
    __slots__ = ("closed", "error", "error_message")
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    closed: int
    error: int
    error_message: str
    def __init__(self, closed: _Optional[int] = ..., error: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...
