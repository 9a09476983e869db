"""GetTelemetrySubscriptions and PushTelemetry, translated (KIP-714). Anyone who may connect may push, as in Kafka."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterable
from typing import Any, Final

from tidelog.broker.client_metrics.subscriptions import Client
from tidelog.broker.client_metrics.telemetry import Push, Telemetry
from tidelog.broker.kafka.wire.apis import Answer, Api, KafkaContext
from tidelog.model.errors import ErrorCode
from tidelog.proto.records.compression import Compression

COMPRESSIONS: Final = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
"""In order of preference for clients (``SUPPORTED_COMPRESSION_TYPES``)."""


def apis(telemetry: Telemetry) -> Iterable[Api]:
    async def get_subscriptions(request: Any, _: int, context: KafkaContext) -> Answer:
        """Answer with a subscription. Counters are requested as totals, not as deltas, because a client may continue
        with another node."""
        instance_id = request.client_instance_id
        found = telemetry.subscribe(instance_id, _client(instance_id, context))
        if found.error is not ErrorCode.NONE:
            return {"error_code": found.error}
        return {
            "client_instance_id": found.client_instance_id,
            "subscription_id": found.subscription_id,
            "accepted_compression_types": COMPRESSIONS,
            "push_interval": found.wanted.interval_ms,
            "telemetry_max_bytes": telemetry.bytes_max(),
            "delta_temporality": False,
            "requested_metrics": found.wanted.metrics,
        }

    async def push(request: Any, _: int, context: KafkaContext) -> Answer:
        instance_id = request.client_instance_id
        pushed = Push(
            instance_id,
            request.subscription_id,
            request.terminating,
            request.compression_type,
            memoryview(request.metrics),
        )
        return {"error_code": await telemetry.push(pushed, _client(instance_id, context))}

    return Api(71, 0, 0, get_subscriptions), Api(72, 0, 0, push)


def _client(instance_id: bytes, context: KafkaContext) -> Client:
    caller = context.call_context
    _, _, port = caller.peer.rpartition(":")
    shown = urlsafe_b64encode(instance_id).decode().rstrip("=")  # as Kafka writes its ids
    return Client(shown, caller.client_id, *context.software, caller.host, port)
