from tidelog.proto.v1 import api_pb2 as _api_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeList(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, nodes: _Optional[_Iterable[int]] = ...) -> None: ...

class DirectoryList(_message.Message):
    __slots__ = ("directories",)
    DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    directories: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, directories: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RegisterBrokerRecord(_message.Message):
    __slots__ = ("node_id", "incarnation_id", "broker_epoch", "listeners", "rack", "fenced", "in_controlled_shutdown", "log_dirs", "features")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LISTENERS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    IN_CONTROLLED_SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    LOG_DIRS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    incarnation_id: bytes
    broker_epoch: int
    listeners: _containers.RepeatedCompositeFieldContainer[_api_pb2.Endpoint]
    rack: str
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: _containers.RepeatedScalarFieldContainer[bytes]
    features: _containers.RepeatedCompositeFieldContainer[_api_pb2.SupportedFeature]
    def __init__(self, node_id: _Optional[int] = ..., incarnation_id: _Optional[bytes] = ..., broker_epoch: _Optional[int] = ..., listeners: _Optional[_Iterable[_Union[_api_pb2.Endpoint, _Mapping]]] = ..., rack: _Optional[str] = ..., fenced: _Optional[bool] = ..., in_controlled_shutdown: _Optional[bool] = ..., log_dirs: _Optional[_Iterable[bytes]] = ..., features: _Optional[_Iterable[_Union[_api_pb2.SupportedFeature, _Mapping]]] = ...) -> None: ...

class BrokerRegistrationChangeRecord(_message.Message):
    __slots__ = ("node_id", "broker_epoch", "fenced", "in_controlled_shutdown", "log_dirs")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    IN_CONTROLLED_SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    LOG_DIRS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    broker_epoch: int
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: DirectoryList
    def __init__(self, node_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., fenced: _Optional[bool] = ..., in_controlled_shutdown: _Optional[bool] = ..., log_dirs: _Optional[_Union[DirectoryList, _Mapping]] = ...) -> None: ...

class UnregisterBrokerRecord(_message.Message):
    __slots__ = ("node_id", "broker_epoch")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    broker_epoch: int
    def __init__(self, node_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ...) -> None: ...

class TopicRecord(_message.Message):
    __slots__ = ("name", "topic_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ...) -> None: ...

class RemoveTopicRecord(_message.Message):
    __slots__ = ("topic_id",)
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    def __init__(self, topic_id: _Optional[bytes] = ...) -> None: ...

class PartitionRecord(_message.Message):
    __slots__ = ("topic_id", "partition", "replicas", "isr", "eligible_leader_replicas", "last_known_elr", "removing_replicas", "adding_replicas", "leader", "leader_epoch", "partition_epoch", "leader_recovery", "directories")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    ELIGIBLE_LEADER_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LAST_KNOWN_ELR_FIELD_NUMBER: _ClassVar[int]
    REMOVING_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ADDING_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_RECOVERY_FIELD_NUMBER: _ClassVar[int]
    DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    isr: _containers.RepeatedScalarFieldContainer[int]
    eligible_leader_replicas: _containers.RepeatedScalarFieldContainer[int]
    last_known_elr: _containers.RepeatedScalarFieldContainer[int]
    removing_replicas: _containers.RepeatedScalarFieldContainer[int]
    adding_replicas: _containers.RepeatedScalarFieldContainer[int]
    leader: int
    leader_epoch: int
    partition_epoch: int
    leader_recovery: bool
    directories: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., isr: _Optional[_Iterable[int]] = ..., eligible_leader_replicas: _Optional[_Iterable[int]] = ..., last_known_elr: _Optional[_Iterable[int]] = ..., removing_replicas: _Optional[_Iterable[int]] = ..., adding_replicas: _Optional[_Iterable[int]] = ..., leader: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., partition_epoch: _Optional[int] = ..., leader_recovery: _Optional[bool] = ..., directories: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PartitionChangeRecord(_message.Message):
    __slots__ = ("topic_id", "partition", "isr", "leader", "replicas", "eligible_leader_replicas", "last_known_elr", "removing_replicas", "adding_replicas", "leader_recovery", "directories")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ELIGIBLE_LEADER_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LAST_KNOWN_ELR_FIELD_NUMBER: _ClassVar[int]
    REMOVING_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ADDING_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LEADER_RECOVERY_FIELD_NUMBER: _ClassVar[int]
    DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    isr: NodeList
    leader: int
    replicas: NodeList
    eligible_leader_replicas: NodeList
    last_known_elr: NodeList
    removing_replicas: NodeList
    adding_replicas: NodeList
    leader_recovery: bool
    directories: DirectoryList
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., isr: _Optional[_Union[NodeList, _Mapping]] = ..., leader: _Optional[int] = ..., replicas: _Optional[_Union[NodeList, _Mapping]] = ..., eligible_leader_replicas: _Optional[_Union[NodeList, _Mapping]] = ..., last_known_elr: _Optional[_Union[NodeList, _Mapping]] = ..., removing_replicas: _Optional[_Union[NodeList, _Mapping]] = ..., adding_replicas: _Optional[_Union[NodeList, _Mapping]] = ..., leader_recovery: _Optional[bool] = ..., directories: _Optional[_Union[DirectoryList, _Mapping]] = ...) -> None: ...

class ConfigRecord(_message.Message):
    __slots__ = ("resource_type", "resource_name", "name", "value")
    RESOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    resource_type: str
    resource_name: str
    name: str
    value: str
    def __init__(self, resource_type: _Optional[str] = ..., resource_name: _Optional[str] = ..., name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class ProducerIdsRecord(_message.Message):
    __slots__ = ("node_id", "broker_epoch", "next_producer_id")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    broker_epoch: int
    next_producer_id: int
    def __init__(self, node_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., next_producer_id: _Optional[int] = ...) -> None: ...

class FeatureLevelRecord(_message.Message):
    __slots__ = ("name", "level", "level_used")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    LEVEL_USED_FIELD_NUMBER: _ClassVar[int]
    name: str
    level: int
    level_used: int
    def __init__(self, name: _Optional[str] = ..., level: _Optional[int] = ..., level_used: _Optional[int] = ...) -> None: ...

class AccessControlEntryRecord(_message.Message):
    __slots__ = ("acl_id", "resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission")
    ACL_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    PATTERN_TYPE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    acl_id: bytes
    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str
    def __init__(self, acl_id: _Optional[bytes] = ..., resource_type: _Optional[str] = ..., resource_name: _Optional[str] = ..., pattern_type: _Optional[str] = ..., principal: _Optional[str] = ..., host: _Optional[str] = ..., operation: _Optional[str] = ..., permission: _Optional[str] = ...) -> None: ...

class RemoveAccessControlEntryRecord(_message.Message):
    __slots__ = ("acl_id",)
    ACL_ID_FIELD_NUMBER: _ClassVar[int]
    acl_id: bytes
    def __init__(self, acl_id: _Optional[bytes] = ...) -> None: ...

class ClientQuotaRecord(_message.Message):
    __slots__ = ("entity", "key", "value")
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    entity: _containers.RepeatedCompositeFieldContainer[_api_pb2.QuotaEntity]
    key: str
    value: float
    def __init__(self, entity: _Optional[_Iterable[_Union[_api_pb2.QuotaEntity, _Mapping]]] = ..., key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class RegisterControllerRecord(_message.Message):
    __slots__ = ("node_id", "features")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    features: _containers.RepeatedCompositeFieldContainer[_api_pb2.SupportedFeature]
    def __init__(self, node_id: _Optional[int] = ..., features: _Optional[_Iterable[_Union[_api_pb2.SupportedFeature, _Mapping]]] = ...) -> None: ...

class UserScramCredentialRecord(_message.Message):
    __slots__ = ("name", "mechanism", "salt", "stored_key", "server_key", "iterations")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    STORED_KEY_FIELD_NUMBER: _ClassVar[int]
    SERVER_KEY_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    mechanism: int
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int
    def __init__(self, name: _Optional[str] = ..., mechanism: _Optional[int] = ..., salt: _Optional[bytes] = ..., stored_key: _Optional[bytes] = ..., server_key: _Optional[bytes] = ..., iterations: _Optional[int] = ...) -> None: ...

class RemoveUserScramCredentialRecord(_message.Message):
    __slots__ = ("name", "mechanism")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    name: str
    mechanism: int
    def __init__(self, name: _Optional[str] = ..., mechanism: _Optional[int] = ...) -> None: ...

class DecoySecretRecord(_message.Message):
    __slots__ = ("secret",)
    SECRET_FIELD_NUMBER: _ClassVar[int]
    secret: bytes
    def __init__(self, secret: _Optional[bytes] = ...) -> None: ...

class DelegationTokenRecord(_message.Message):
    __slots__ = ("token_id", "owner", "requester", "renewers", "issue_timestamp_ms", "max_timestamp_ms", "expiration_timestamp_ms")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    REQUESTER_FIELD_NUMBER: _ClassVar[int]
    RENEWERS_FIELD_NUMBER: _ClassVar[int]
    ISSUE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRATION_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    owner: str
    requester: str
    renewers: _containers.RepeatedScalarFieldContainer[str]
    issue_timestamp_ms: int
    max_timestamp_ms: int
    expiration_timestamp_ms: int
    def __init__(self, token_id: _Optional[str] = ..., owner: _Optional[str] = ..., requester: _Optional[str] = ..., renewers: _Optional[_Iterable[str]] = ..., issue_timestamp_ms: _Optional[int] = ..., max_timestamp_ms: _Optional[int] = ..., expiration_timestamp_ms: _Optional[int] = ...) -> None: ...

class RemoveDelegationTokenRecord(_message.Message):
    __slots__ = ("token_id",)
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    def __init__(self, token_id: _Optional[str] = ...) -> None: ...

class MetadataRecord(_message.Message):
    __slots__ = ("register_broker_record", "broker_registration_change_record", "unregister_broker_record", "topic_record", "remove_topic_record", "partition_record", "partition_change_record", "config_record", "producer_ids_record", "feature_level_record", "access_control_entry_record", "remove_access_control_entry_record", "client_quota_record", "register_controller_record", "user_scram_credential_record", "remove_user_scram_credential_record", "decoy_secret_record", "delegation_token_record", "remove_delegation_token_record")
    REGISTER_BROKER_RECORD_FIELD_NUMBER: _ClassVar[int]
    BROKER_REGISTRATION_CHANGE_RECORD_FIELD_NUMBER: _ClassVar[int]
    UNREGISTER_BROKER_RECORD_FIELD_NUMBER: _ClassVar[int]
    TOPIC_RECORD_FIELD_NUMBER: _ClassVar[int]
    REMOVE_TOPIC_RECORD_FIELD_NUMBER: _ClassVar[int]
    PARTITION_RECORD_FIELD_NUMBER: _ClassVar[int]
    PARTITION_CHANGE_RECORD_FIELD_NUMBER: _ClassVar[int]
    CONFIG_RECORD_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_IDS_RECORD_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_RECORD_FIELD_NUMBER: _ClassVar[int]
    ACCESS_CONTROL_ENTRY_RECORD_FIELD_NUMBER: _ClassVar[int]
    REMOVE_ACCESS_CONTROL_ENTRY_RECORD_FIELD_NUMBER: _ClassVar[int]
    CLIENT_QUOTA_RECORD_FIELD_NUMBER: _ClassVar[int]
    REGISTER_CONTROLLER_RECORD_FIELD_NUMBER: _ClassVar[int]
    USER_SCRAM_CREDENTIAL_RECORD_FIELD_NUMBER: _ClassVar[int]
    REMOVE_USER_SCRAM_CREDENTIAL_RECORD_FIELD_NUMBER: _ClassVar[int]
    DECOY_SECRET_RECORD_FIELD_NUMBER: _ClassVar[int]
    DELEGATION_TOKEN_RECORD_FIELD_NUMBER: _ClassVar[int]
    REMOVE_DELEGATION_TOKEN_RECORD_FIELD_NUMBER: _ClassVar[int]
    register_broker_record: RegisterBrokerRecord
    broker_registration_change_record: BrokerRegistrationChangeRecord
    unregister_broker_record: UnregisterBrokerRecord
    topic_record: TopicRecord
    remove_topic_record: RemoveTopicRecord
    partition_record: PartitionRecord
    partition_change_record: PartitionChangeRecord
    config_record: ConfigRecord
    producer_ids_record: ProducerIdsRecord
    feature_level_record: FeatureLevelRecord
    access_control_entry_record: AccessControlEntryRecord
    remove_access_control_entry_record: RemoveAccessControlEntryRecord
    client_quota_record: ClientQuotaRecord
    register_controller_record: RegisterControllerRecord
    user_scram_credential_record: UserScramCredentialRecord
    remove_user_scram_credential_record: RemoveUserScramCredentialRecord
    decoy_secret_record: DecoySecretRecord
    delegation_token_record: DelegationTokenRecord
    remove_delegation_token_record: RemoveDelegationTokenRecord
    def __init__(self, register_broker_record: _Optional[_Union[RegisterBrokerRecord, _Mapping]] = ..., broker_registration_change_record: _Optional[_Union[BrokerRegistrationChangeRecord, _Mapping]] = ..., unregister_broker_record: _Optional[_Union[UnregisterBrokerRecord, _Mapping]] = ..., topic_record: _Optional[_Union[TopicRecord, _Mapping]] = ..., remove_topic_record: _Optional[_Union[RemoveTopicRecord, _Mapping]] = ..., partition_record: _Optional[_Union[PartitionRecord, _Mapping]] = ..., partition_change_record: _Optional[_Union[PartitionChangeRecord, _Mapping]] = ..., config_record: _Optional[_Union[ConfigRecord, _Mapping]] = ..., producer_ids_record: _Optional[_Union[ProducerIdsRecord, _Mapping]] = ..., feature_level_record: _Optional[_Union[FeatureLevelRecord, _Mapping]] = ..., access_control_entry_record: _Optional[_Union[AccessControlEntryRecord, _Mapping]] = ..., remove_access_control_entry_record: _Optional[_Union[RemoveAccessControlEntryRecord, _Mapping]] = ..., client_quota_record: _Optional[_Union[ClientQuotaRecord, _Mapping]] = ..., register_controller_record: _Optional[_Union[RegisterControllerRecord, _Mapping]] = ..., user_scram_credential_record: _Optional[_Union[UserScramCredentialRecord, _Mapping]] = ..., remove_user_scram_credential_record: _Optional[_Union[RemoveUserScramCredentialRecord, _Mapping]] = ..., decoy_secret_record: _Optional[_Union[DecoySecretRecord, _Mapping]] = ..., delegation_token_record: _Optional[_Union[DelegationTokenRecord, _Mapping]] = ..., remove_delegation_token_record: _Optional[_Union[RemoveDelegationTokenRecord, _Mapping]] = ...) -> None: ...

class MetadataBatch(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[MetadataRecord]
    def __init__(self, records: _Optional[_Iterable[_Union[MetadataRecord, _Mapping]]] = ...) -> None: ...
