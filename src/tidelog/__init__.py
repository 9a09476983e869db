"""Tidelog: a replicated event log with Kafka's guarantees, in Python.

The SDK in plain blocking form; ``tidelog.aio`` has the same for asyncio. Names are loaded when they are
first used, so that ``import tidelog`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.client import errors as errors
    from tidelog.client.admin.blocking import Admin as Admin
    from tidelog.client.admin.delegation_tokens import DelegationToken as DelegationToken
    from tidelog.client.admin.group_types import GroupState as GroupState
    from tidelog.client.admin.transaction_types import AbortTransactionSpec as AbortTransactionSpec
    from tidelog.client.admin.transaction_types import TransactionState as TransactionState
    from tidelog.client.admin.types import NewTopic as NewTopic
    from tidelog.client.admin.types import OffsetSpec as OffsetSpec
    from tidelog.client.admin.users import ScramCredentialInfo as ScramCredentialInfo
    from tidelog.client.admin.users import UserScramCredentialDeletion as UserScramCredentialDeletion
    from tidelog.client.admin.users import UserScramCredentialUpsertion as UserScramCredentialUpsertion
    from tidelog.client.config import serializers as serializers
    from tidelog.client.config.interceptors import ConsumerInterceptor as ConsumerInterceptor
    from tidelog.client.config.interceptors import ProducerInterceptor as ProducerInterceptor
    from tidelog.client.config.interceptors import ProducerRecord as ProducerRecord
    from tidelog.client.config.profiles import profile as profile
    from tidelog.client.config.trace_context import TraceContext as TraceContext
    from tidelog.client.config.trace_context import Tracer as Tracer
    from tidelog.client.config.trace_context import handling as handling
    from tidelog.client.config.trace_context import trace_headers as trace_headers
    from tidelog.client.consumer.blocking import Consumer as Consumer
    from tidelog.client.delivery import BulkFuture as BulkFuture
    from tidelog.client.delivery import BulkResult as BulkResult
    from tidelog.client.delivery import DeliveryFuture as DeliveryFuture
    from tidelog.client.delivery import RecordMetadata as RecordMetadata
    from tidelog.client.fetching.offset_lookup import OffsetAndTimestamp as OffsetAndTimestamp
    from tidelog.client.group_types import ConsumerGroupMetadata as ConsumerGroupMetadata
    from tidelog.client.group_types import ConsumerRebalanceListener as ConsumerRebalanceListener
    from tidelog.client.group_types import OffsetAndMetadata as OffsetAndMetadata
    from tidelog.client.outbox.inbox import PostgresInbox as PostgresInbox
    from tidelog.client.outbox.inbox import SqliteInbox as SqliteInbox
    from tidelog.client.outbox.postgres import PostgresOutbox as PostgresOutbox
    from tidelog.client.outbox.relay import OutboxRelay as OutboxRelay
    from tidelog.client.outbox.sqlite import SqliteOutbox as SqliteOutbox
    from tidelog.client.producer.blocking import Producer as Producer
    from tidelog.client.producer.prepared import PreparedTransaction as PreparedTransaction
    from tidelog.client.producer.transform import Transform as Transform
    from tidelog.client.record import ConsumerBatch as ConsumerBatch
    from tidelog.client.record import ConsumerRecord as ConsumerRecord
    from tidelog.client.sink.blocking_ledger import SinkLedger as SinkLedger
    from tidelog.client.sink.blocking_writer import SinkWriter as SinkWriter
    from tidelog.client.sinks import SinkJob as SinkJob
    from tidelog.client.sinks import SinkMessage as SinkMessage
    from tidelog.client.sinks import SinkOutcome as SinkOutcome
    from tidelog.client.tracing.open_telemetry import OpenTelemetry as OpenTelemetry
    from tidelog.client.tracing.store import TraceStore as TraceStore
    from tidelog.client.workers.replay import Replay as Replay
    from tidelog.client.workers.replay import is_replay as is_replay
    from tidelog.client.workers.retry import RetryPolicy as RetryPolicy
    from tidelog.client.workers.seen_ids import Deduplicate as Deduplicate
    from tidelog.client.workers.time_to_live import TimeToLive as TimeToLive
    from tidelog.client.workers.workers import Workers as Workers
    from tidelog.model import assignors as assignors
    from tidelog.model.client_quotas import ClientQuotaEntity as ClientQuotaEntity
    from tidelog.model.errors import TidelogError as TidelogError
    from tidelog.model.ids import TopicPartition as TopicPartition
    from tidelog.proto.calls.api import ConfigChange as ConfigChange
    from tidelog.proto.calls.api import ConfigResource as ConfigResource
    from tidelog.proto.records.header_filter import HeaderFilter as HeaderFilter
    from tidelog.proto.records.sent_columns import BlobView as BlobView
    from tidelog.proto.records.sent_columns import HeaderView as HeaderView
    from tidelog.proto.records.sent_columns import NumberView as NumberView
    from tidelog.proto.records.sent_columns import RecordColumns as RecordColumns
    from tidelog.security.acls import AclBinding as AclBinding
    from tidelog.security.acls import AclFilter as AclFilter
    from tidelog.security.acls import AclOperation as AclOperation
    from tidelog.security.acls import PatternType as PatternType
    from tidelog.security.acls import PermissionType as PermissionType
    from tidelog.security.acls import ResourceType as ResourceType
    from tidelog.security.scram import ScramMechanism as ScramMechanism

__version__: str

_HOMES = {
    "AbortTransactionSpec": "client.admin.transaction_types",
    "AclBinding": "security.acls",
    "AclFilter": "security.acls",
    "AclOperation": "security.acls",
    "Admin": "client.admin.blocking",
    "BlobView": "proto.records.sent_columns",
    "BulkFuture": "client.delivery",
    "BulkResult": "client.delivery",
    "ClientQuotaEntity": "model.client_quotas",
    "ConfigChange": "proto.calls.api",
    "ConfigResource": "proto.calls.api",
    "Consumer": "client.consumer.blocking",
    "ConsumerBatch": "client.record",
    "ConsumerGroupMetadata": "client.group_types",
    "ConsumerInterceptor": "client.config.interceptors",
    "ConsumerRebalanceListener": "client.group_types",
    "ConsumerRecord": "client.record",
    "Deduplicate": "client.workers.seen_ids",
    "DelegationToken": "client.admin.delegation_tokens",
    "DeliveryFuture": "client.delivery",
    "GroupState": "client.admin.group_types",
    "HeaderFilter": "proto.records.header_filter",
    "HeaderView": "proto.records.sent_columns",
    "NewTopic": "client.admin.types",
    "NumberView": "proto.records.sent_columns",
    "OffsetAndMetadata": "client.group_types",
    "OffsetAndTimestamp": "client.fetching.offset_lookup",
    "OffsetSpec": "client.admin.types",
    "OpenTelemetry": "client.tracing.open_telemetry",
    "OutboxRelay": "client.outbox.relay",
    "PatternType": "security.acls",
    "PermissionType": "security.acls",
    "PostgresInbox": "client.outbox.inbox",
    "PostgresOutbox": "client.outbox.postgres",
    "PreparedTransaction": "client.producer.prepared",
    "Producer": "client.producer.blocking",
    "ProducerInterceptor": "client.config.interceptors",
    "ProducerRecord": "client.config.interceptors",
    "RecordColumns": "proto.records.sent_columns",
    "RecordMetadata": "client.delivery",
    "Replay": "client.workers.replay",
    "ResourceType": "security.acls",
    "RetryPolicy": "client.workers.retry",
    "TimeToLive": "client.workers.time_to_live",
    "ScramCredentialInfo": "client.admin.users",
    "ScramMechanism": "security.scram",
    "SinkJob": "client.sinks",
    "SinkLedger": "client.sink.blocking_ledger",
    "SinkMessage": "client.sinks",
    "SinkOutcome": "client.sinks",
    "SinkWriter": "client.sink.blocking_writer",
    "TidelogError": "model.errors",
    "TopicPartition": "model.ids",
    "TraceContext": "client.config.trace_context",
    "TraceStore": "client.tracing.store",
    "Tracer": "client.config.trace_context",
    "TransactionState": "client.admin.transaction_types",
    "SqliteInbox": "client.outbox.inbox",
    "SqliteOutbox": "client.outbox.sqlite",
    "Transform": "client.producer.transform",
    "UserScramCredentialDeletion": "client.admin.users",
    "UserScramCredentialUpsertion": "client.admin.users",
    "Workers": "client.workers.workers",
    "handling": "client.config.trace_context",
    "is_replay": "client.workers.replay",
    "profile": "client.config.profiles",
    "trace_headers": "client.config.trace_context",
}
_MODULES = {
    "aio": "aio",
    "assignors": "model.assignors",
    "errors": "client.errors",
    "serializers": "client.config.serializers",
    "testing": "testing",
}

__all__ = [*_HOMES, "assignors", "errors", "serializers"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"tidelog.{_MODULES[name]}")
    if name in _HOMES:
        return getattr(import_module(f"tidelog.{_HOMES[name]}"), name)
    if name == "__version__":
        return import_module("tidelog.model.version").VERSION
    raise AttributeError(f"module 'tidelog' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What is public, and what every module has; not what this one imports for itself."""
    own = [name for name in globals() if name.startswith("__")]
    return sorted([*__all__, *own, "__version__", "aio", "testing"])
