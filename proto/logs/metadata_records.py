"""The metadata log's records as our types. :mod:`tidelog.proto.logs.metadata_codec` turns them into bytes.

One entry of the metadata log is a tuple of records that take effect together; its offset is the Raft
index, its epoch the Raft term. Names and fields: Kafka's ``metadata/src/main/resources/common/metadata``.
A change record's field that is ``None`` leaves the value as it was.
"""

from __future__ import annotations

from dataclasses import field
from typing import TypeAlias

from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import (
    BrokerEpoch,
    DirectoryId,
    LeaderEpoch,
    NodeId,
    PartitionEpoch,
    ProducerId,
    TopicId,
)
from tidelog.proto.calls.controller_api import Endpoint, SupportedFeature
from tidelog.proto.calls.quota_api import QuotaEntity


@dataclass(frozen=True, slots=True)
class NodeList:
    """A list that is distinguishable from an absent one."""

    nodes: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class DirectoryList:
    directories: tuple[DirectoryId, ...] = ()


@dataclass(frozen=True, slots=True)
class RegisterBrokerRecord:
    """``broker_epoch`` is higher than that of every earlier registration."""

    node_id: NodeId
    incarnation_id: bytes
    broker_epoch: BrokerEpoch
    listeners: tuple[Endpoint, ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: tuple[DirectoryId, ...]
    features: tuple[SupportedFeature, ...]


@dataclass(frozen=True, slots=True)
class BrokerRegistrationChangeRecord:
    node_id: NodeId
    broker_epoch: BrokerEpoch
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = None
    log_dirs: DirectoryList | None = None


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRecord:
    node_id: NodeId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class TopicRecord:
    name: str
    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord:
    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """``leader`` is -1 for none. ``directories`` are in the order of ``replicas``. ``leader_recovery`` is true after an
    unclean election until the leader has recovered (KIP-704)."""

    topic_id: TopicId
    partition: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    eligible_leader_replicas: tuple[NodeId, ...]
    last_known_elr: tuple[NodeId, ...]
    removing_replicas: tuple[NodeId, ...]
    adding_replicas: tuple[NodeId, ...]
    leader: NodeId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    leader_recovery: bool
    directories: tuple[DirectoryId, ...]


@dataclass(frozen=True, slots=True)
class PartitionChangeRecord:
    """Raises the partition epoch by one; a ``leader`` that is not ``None`` raises the leader epoch."""

    topic_id: TopicId
    partition: int
    isr: NodeList | None = None
    leader: NodeId | None = None
    replicas: NodeList | None = None
    eligible_leader_replicas: NodeList | None = None
    last_known_elr: NodeList | None = None
    removing_replicas: NodeList | None = None
    adding_replicas: NodeList | None = None
    leader_recovery: bool | None = None
    directories: DirectoryList | None = None


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """``value`` ``None`` removes the setting. ``resource_type`` is "topic" or "broker"."""

    resource_type: str
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ProducerIdsRecord:
    """Every id below ``next_producer_id`` has been issued."""

    node_id: NodeId
    broker_epoch: BrokerEpoch
    next_producer_id: ProducerId


@dataclass(frozen=True, slots=True)
class FeatureLevelRecord:
    """Level 0 disables the feature. ``level_used``, in a snapshot: the highest level that a record needed."""

    name: str
    level: int
    level_used: int = 0


@dataclass(frozen=True, slots=True)
class AccessControlEntryRecord:
    """``pattern_type``: "literal" or "prefixed"; ``permission``: "allow" or "deny"."""

    acl_id: bytes
    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


@dataclass(frozen=True, slots=True)
class RemoveAccessControlEntryRecord:
    acl_id: bytes


@dataclass(frozen=True, slots=True)
class ClientQuotaRecord:
    """``value`` ``None`` removes the quota."""

    entity: tuple[QuotaEntity, ...]
    key: str
    value: float | None


@dataclass(frozen=True, slots=True)
class RegisterControllerRecord:
    """The feature levels that a controller supports (KIP-919)."""

    node_id: NodeId
    features: tuple[SupportedFeature, ...]


@dataclass(frozen=True, slots=True)
class UserScramCredentialRecord:
    """Verifies a user's password. It is never shown: with the server key anybody can pose as a node."""

    name: str
    mechanism: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


@dataclass(frozen=True, slots=True)
class RemoveUserScramCredentialRecord:
    name: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class DecoySecretRecord:
    """The source of salts for unknown users, so that all nodes return the same."""

    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class DelegationTokenRecord:
    """A token that lets others log in as ``owner`` (KIP-48). Principals as ``User:alice``; times in milliseconds since
    1970. Its HMAC is not kept: it follows from the id and the nodes' key. A later record of the id replaces it."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp_ms: int
    max_timestamp_ms: int
    expiration_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class RemoveDelegationTokenRecord:
    token_id: str


MetadataRecord: TypeAlias = (
    RegisterBrokerRecord
    | BrokerRegistrationChangeRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | RemoveTopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | ConfigRecord
    | ProducerIdsRecord
    | FeatureLevelRecord
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | ClientQuotaRecord
    | RegisterControllerRecord
    | UserScramCredentialRecord
    | RemoveUserScramCredentialRecord
    | DecoySecretRecord
    | DelegationTokenRecord
    | RemoveDelegationTokenRecord
)
