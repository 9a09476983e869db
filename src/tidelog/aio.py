"""The SDK for asyncio: as ``tidelog``, with methods to be awaited. Names are loaded when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import tidelog

if TYPE_CHECKING:
    from tidelog import AbortTransactionSpec as AbortTransactionSpec
    from tidelog import BlobView as BlobView
    from tidelog import BulkFuture as BulkFuture
    from tidelog import BulkResult as BulkResult
    from tidelog import ConfigChange as ConfigChange
    from tidelog import ConfigResource as ConfigResource
    from tidelog import ConsumerBatch as ConsumerBatch
    from tidelog import ConsumerGroupMetadata as ConsumerGroupMetadata
    from tidelog import ConsumerRebalanceListener as ConsumerRebalanceListener
    from tidelog import ConsumerRecord as ConsumerRecord
    from tidelog import DeliveryFuture as DeliveryFuture
    from tidelog import GroupState as GroupState
    from tidelog import HeaderView as HeaderView
    from tidelog import NewTopic as NewTopic
    from tidelog import NumberView as NumberView
    from tidelog import OffsetAndMetadata as OffsetAndMetadata
    from tidelog import OffsetAndTimestamp as OffsetAndTimestamp
    from tidelog import OffsetSpec as OffsetSpec
    from tidelog import PreparedTransaction as PreparedTransaction
    from tidelog import ProducerRecord as ProducerRecord
    from tidelog import RecordColumns as RecordColumns
    from tidelog import RecordMetadata as RecordMetadata
    from tidelog import SinkJob as SinkJob
    from tidelog import SinkMessage as SinkMessage
    from tidelog import SinkOutcome as SinkOutcome
    from tidelog import TidelogError as TidelogError
    from tidelog import TopicPartition as TopicPartition
    from tidelog import TransactionState as TransactionState
    from tidelog import assignors as assignors
    from tidelog import errors as errors
    from tidelog import serializers as serializers
    from tidelog.client.admin import AsyncAdmin as Admin
    from tidelog.client.consumer import AsyncConsumer as Consumer
    from tidelog.client.producer import AsyncProducer as Producer
    from tidelog.client.sink_ledger import AsyncSinkLedger as SinkLedger
    from tidelog.client.sink_writer import AsyncSinkWriter as SinkWriter
    from tidelog.client.transform import AsyncTransform as Transform

_OURS = {
    "Admin": ("client.admin", "AsyncAdmin"),
    "Consumer": ("client.consumer", "AsyncConsumer"),
    "Producer": ("client.producer", "AsyncProducer"),
    "SinkLedger": ("client.sink_ledger", "AsyncSinkLedger"),
    "SinkWriter": ("client.sink_writer", "AsyncSinkWriter"),
    "Transform": ("client.transform", "AsyncTransform"),
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
    if name in _OURS:
        module, attribute = _OURS[name]
        return getattr(import_module(f"tidelog.{module}"), attribute)
    if name in __all__:
        return getattr(tidelog, name)
    raise AttributeError(f"module 'tidelog.aio' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
