"""Tidelog: a replicated event log with Kafka's guarantees, in Python.

The SDK in plain blocking form; ``tidelog.aio`` has the same for asyncio. Names are loaded when they are
first used, so that ``import tidelog`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.client import errors as errors
    from tidelog.client import serializers as serializers
    from tidelog.client.admin_group_types import GroupState as GroupState
    from tidelog.client.admin_transaction_types import AbortTransactionSpec as AbortTransactionSpec
    from tidelog.client.admin_transaction_types import TransactionState as TransactionState
    from tidelog.client.admin_types import NewTopic as NewTopic
    from tidelog.client.admin_types import OffsetSpec as OffsetSpec
    from tidelog.client.blocking_admin import Admin as Admin
    from tidelog.client.blocking_consumer import Consumer as Consumer
    from tidelog.client.blocking_producer import Producer as Producer
    from tidelog.client.delivery import BulkFuture as BulkFuture
    from tidelog.client.delivery import BulkResult as BulkResult
    from tidelog.client.delivery import DeliveryFuture as DeliveryFuture
    from tidelog.client.delivery import RecordMetadata as RecordMetadata
    from tidelog.client.group_types import ConsumerGroupMetadata as ConsumerGroupMetadata
    from tidelog.client.group_types import ConsumerRebalanceListener as ConsumerRebalanceListener
    from tidelog.client.group_types import OffsetAndMetadata as OffsetAndMetadata
    from tidelog.client.interceptors import ProducerRecord as ProducerRecord
    from tidelog.client.offset_lookup import OffsetAndTimestamp as OffsetAndTimestamp
    from tidelog.client.prepared import PreparedTransaction as PreparedTransaction
    from tidelog.client.record import ConsumerBatch as ConsumerBatch
    from tidelog.client.record import ConsumerRecord as ConsumerRecord
    from tidelog.client.sink_ledger import SinkLedger as SinkLedger
    from tidelog.client.sink_writer import SinkWriter as SinkWriter
    from tidelog.client.sinks import SinkJob as SinkJob
    from tidelog.client.sinks import SinkMessage as SinkMessage
    from tidelog.client.sinks import SinkOutcome as SinkOutcome
    from tidelog.client.transform import Transform as Transform
    from tidelog.model import assignors as assignors
    from tidelog.model.errors import TidelogError as TidelogError
    from tidelog.model.ids import TopicPartition as TopicPartition
    from tidelog.proto.api import ConfigChange as ConfigChange
    from tidelog.proto.api import ConfigResource as ConfigResource
    from tidelog.proto.sent_columns import BlobView as BlobView
    from tidelog.proto.sent_columns import HeaderView as HeaderView
    from tidelog.proto.sent_columns import NumberView as NumberView
    from tidelog.proto.sent_columns import RecordColumns as RecordColumns

__version__ = "0.1.0"

_HOMES = {
    "AbortTransactionSpec": "client.admin_transaction_types",
    "Admin": "client.blocking_admin",
    "BlobView": "proto.sent_columns",
    "BulkFuture": "client.delivery",
    "BulkResult": "client.delivery",
    "ConfigChange": "proto.api",
    "ConfigResource": "proto.api",
    "Consumer": "client.blocking_consumer",
    "ConsumerBatch": "client.record",
    "ConsumerGroupMetadata": "client.group_types",
    "ConsumerRebalanceListener": "client.group_types",
    "ConsumerRecord": "client.record",
    "DeliveryFuture": "client.delivery",
    "GroupState": "client.admin_group_types",
    "HeaderView": "proto.sent_columns",
    "NewTopic": "client.admin_types",
    "NumberView": "proto.sent_columns",
    "OffsetAndMetadata": "client.group_types",
    "OffsetAndTimestamp": "client.offset_lookup",
    "OffsetSpec": "client.admin_types",
    "PreparedTransaction": "client.prepared",
    "Producer": "client.blocking_producer",
    "ProducerRecord": "client.interceptors",
    "RecordColumns": "proto.sent_columns",
    "RecordMetadata": "client.delivery",
    "SinkJob": "client.sinks",
    "SinkLedger": "client.sink_ledger",
    "SinkMessage": "client.sinks",
    "SinkOutcome": "client.sinks",
    "SinkWriter": "client.sink_writer",
    "TidelogError": "model.errors",
    "TopicPartition": "model.ids",
    "TransactionState": "client.admin_transaction_types",
    "Transform": "client.transform",
}
_MODULES = {
    "aio": "aio",
    "assignors": "model.assignors",
    "errors": "client.errors",
    "serializers": "client.serializers",
    "testing": "testing",
}

__all__ = [
    "AbortTransactionSpec",
    "Admin",
    "BlobView",
    "BulkFuture",
    "BulkResult",
    "ConfigChange",
    "ConfigResource",
    "Consumer",
    "ConsumerBatch",
    "ConsumerGroupMetadata",
    "ConsumerRebalanceListener",
    "ConsumerRecord",
    "DeliveryFuture",
    "GroupState",
    "HeaderView",
    "NewTopic",
    "NumberView",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetSpec",
    "PreparedTransaction",
    "Producer",
    "ProducerRecord",
    "RecordColumns",
    "RecordMetadata",
    "SinkJob",
    "SinkLedger",
    "SinkMessage",
    "SinkOutcome",
    "SinkWriter",
    "TidelogError",
    "TopicPartition",
    "TransactionState",
    "Transform",
    "assignors",
    "errors",
    "serializers",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"tidelog.{_MODULES[name]}")
    if name in _HOMES:
        return getattr(import_module(f"tidelog.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'tidelog' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
