"""The SDK for asyncio: as ``tidelog``, with methods to be awaited. Names are loaded when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import tidelog

if TYPE_CHECKING:
    from tidelog import AbortTransactionSpec as AbortTransactionSpec
    from tidelog import AclBinding as AclBinding
    from tidelog import AclFilter as AclFilter
    from tidelog import AclOperation as AclOperation
    from tidelog import BlobView as BlobView
    from tidelog import BulkFuture as BulkFuture
    from tidelog import BulkResult as BulkResult
    from tidelog import ClientQuotaEntity as ClientQuotaEntity
    from tidelog import ConfigChange as ConfigChange
    from tidelog import ConfigResource as ConfigResource
    from tidelog import ConsumerBatch as ConsumerBatch
    from tidelog import ConsumerGroupMetadata as ConsumerGroupMetadata
    from tidelog import ConsumerInterceptor as ConsumerInterceptor
    from tidelog import ConsumerRebalanceListener as ConsumerRebalanceListener
    from tidelog import ConsumerRecord as ConsumerRecord
    from tidelog import Deduplicate as Deduplicate
    from tidelog import DelegationToken as DelegationToken
    from tidelog import DeliveryFuture as DeliveryFuture
    from tidelog import GroupState as GroupState
    from tidelog import HeaderFilter as HeaderFilter
    from tidelog import HeaderView as HeaderView
    from tidelog import NewTopic as NewTopic
    from tidelog import NumberView as NumberView
    from tidelog import OffsetAndMetadata as OffsetAndMetadata
    from tidelog import OffsetAndTimestamp as OffsetAndTimestamp
    from tidelog import OffsetSpec as OffsetSpec
    from tidelog import OpenTelemetry as OpenTelemetry
    from tidelog import OutboxRelay as OutboxRelay
    from tidelog import PatternType as PatternType
    from tidelog import PermissionType as PermissionType
    from tidelog import PostgresInbox as PostgresInbox
    from tidelog import PostgresOutbox as PostgresOutbox
    from tidelog import PreparedTransaction as PreparedTransaction
    from tidelog import ProducerInterceptor as ProducerInterceptor
    from tidelog import ProducerRecord as ProducerRecord
    from tidelog import RecordColumns as RecordColumns
    from tidelog import RecordMetadata as RecordMetadata
    from tidelog import Replay as Replay
    from tidelog import ResourceType as ResourceType
    from tidelog import RetryPolicy as RetryPolicy
    from tidelog import ScramCredentialInfo as ScramCredentialInfo
    from tidelog import ScramMechanism as ScramMechanism
    from tidelog import SinkJob as SinkJob
    from tidelog import SinkMessage as SinkMessage
    from tidelog import SinkOutcome as SinkOutcome
    from tidelog import SqliteInbox as SqliteInbox
    from tidelog import SqliteOutbox as SqliteOutbox
    from tidelog import TidelogError as TidelogError
    from tidelog import TimeToLive as TimeToLive
    from tidelog import TopicPartition as TopicPartition
    from tidelog import TraceContext as TraceContext
    from tidelog import Tracer as Tracer
    from tidelog import TraceStore as TraceStore
    from tidelog import TransactionState as TransactionState
    from tidelog import UserScramCredentialDeletion as UserScramCredentialDeletion
    from tidelog import UserScramCredentialUpsertion as UserScramCredentialUpsertion
    from tidelog import assignors as assignors
    from tidelog import errors as errors
    from tidelog import handling as handling
    from tidelog import is_replay as is_replay
    from tidelog import profile as profile
    from tidelog import serializers as serializers
    from tidelog import trace_headers as trace_headers
    from tidelog.client.admin.admin import AsyncAdmin
    from tidelog.client.consumer.consumer import AsyncConsumer
    from tidelog.client.producer.producer import AsyncProducer
    from tidelog.client.producer.transform import AsyncTransform
    from tidelog.client.sink.ledger import AsyncSinkLedger
    from tidelog.client.sink.writer import AsyncSinkWriter
    from tidelog.client.workers.asynchronous import AsyncWorkers

    Admin = AsyncAdmin
    Consumer = AsyncConsumer
    Producer = AsyncProducer
    SinkLedger = AsyncSinkLedger
    SinkWriter = AsyncSinkWriter
    Transform = AsyncTransform
    Workers = AsyncWorkers

_OURS = {
    "Admin": ("client.admin.admin", "AsyncAdmin"),
    "Consumer": ("client.consumer.consumer", "AsyncConsumer"),
    "Producer": ("client.producer.producer", "AsyncProducer"),
    "SinkLedger": ("client.sink.ledger", "AsyncSinkLedger"),
    "SinkWriter": ("client.sink.writer", "AsyncSinkWriter"),
    "Transform": ("client.producer.transform", "AsyncTransform"),
    "Workers": ("client.workers.asynchronous", "AsyncWorkers"),
}

__all__ = tidelog.__all__


def __getattr__(name: str) -> Any:
    if name in _OURS:
        module, attribute = _OURS[name]
        return getattr(import_module(f"tidelog.{module}"), attribute)
    if name in __all__:
        return getattr(tidelog, name)
    raise AttributeError(f"module 'tidelog.aio' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What is public, and what every module has; not what this one imports for itself."""
    own = [name for name in globals() if name.startswith("__")]
    return sorted([*__all__, *own])
