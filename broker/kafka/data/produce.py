"""Kafka's Produce over the replicas: records are appended when the request arrives; its order is the log's.

Versions below 12 use the first transaction protocol (KIP-890). Versions below 3, with formats older than record
batches, are refused partition by partition.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, Protocol

from tidelog.broker.access.access import Access
from tidelog.broker.access.guard import is_of_hidden_transaction, transaction_fault
from tidelog.broker.access.rules import TEXTS
from tidelog.broker.kafka.data.topic_names import TopicNames, text_of
from tidelog.broker.kafka.wire.kafka_traffic import KafkaTraffic
from tidelog.broker.kafka.wire.pending import Pending, Pieces, Unanswered
from tidelog.broker.quotas.usage import RequestUsage
from tidelog.broker.traffic import Traffic
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, ZERO_TOPIC_ID, TopicId
from tidelog.proto.kafka.produce_codec import (
    API_KEY,
    BY_ID,
    KafkaProduce,
    decode_produce,
    encode_produced,
    named_leaders,
)
from tidelog.proto.records.batches import COMPRESSION_MASK, HEADER_SIZE, MAGIC
from tidelog.proto.records.compression import Compression
from tidelog.proto.transport.frames import ProducedPartition, ProducePartition, ProduceRequest
from tidelog.replication.partition.waiters import Produced
from tidelog.security.acls import AclOperation

BATCHES_FROM: Final = 3
"""The first version whose records are batches of format 2."""
ZSTD_FROM: Final = 7
ABORTABLE_FROM: Final = 11
"""The first version whose clients know TRANSACTION_ABORTABLE."""
SECOND_PROTOCOL_FROM: Final = 12
_MAGIC_AT: Final = 16
_ATTRIBUTES_LOW_AT: Final = 22


class ProduceReplicas(Protocol):
    def produce(self, request: ProduceRequest, *, first_protocol: bool = False) -> Produced:
        """Append now, in order; the answer waits as ``acks`` requires."""


class Produce:
    """The Produce API of one listener."""

    def __init__(self, replicas: ProduceReplicas, names: TopicNames, traffic: Traffic, kafka: KafkaTraffic) -> None:
        self._replicas = replicas
        self._names = names
        self._traffic = traffic
        self._kafka = kafka
        self._time = asyncio.get_running_loop().time

    def handle(
        self,
        version: int,
        head: bytes,
        body: memoryview,
        access: Access | None = None,
        usage: RequestUsage | None = None,
    ) -> Pieces | Pending:
        """Append the request's records that ``access`` allows. ``body`` belongs to this request and nobody changes it.
        ``usage``: set if there are quotas.

        A request with ``acks`` 0 gets no answer pieces. Raises ``BadMessage``, and :class:`Unanswered` if such a
        request was refused.
        """
        request = decode_produce(version, body)
        self._traffic.produce_requests += 1
        started = self._time()
        refused: dict[int, ProducedPartition] = {}
        parts: list[ProducePartition] = []
        at = 0
        denied = ErrorCode.NONE if access is None else transaction_fault(request.transactional_id, access)
        for name, count in request.topics:
            topic_id = TopicId(name) if version >= BY_ID else self._names.id_of(name)
            fault = denied
            if access is not None and not fault:
                fault = self._denied(name, access, by_id=version >= BY_ID)
            for number in range(at, at + count):
                partition, records = request.parts[number]
                if fault:
                    refused[number] = ProducedPartition(ZERO_TOPIC_ID, partition, fault, error_message=TEXTS[fault])
                elif topic_id is None:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    refused[number] = ProducedPartition(ZERO_TOPIC_ID, partition, code)
                elif records is None:
                    refused[number] = _refused(topic_id, partition, _NO_RECORDS)
                elif (misformed := _format_fault(version, records)) is not None:
                    refused[number] = _refused(topic_id, partition, misformed)
                else:
                    parts.append(ProducePartition(topic_id, partition, records))
            at += count
        if access is not None and is_of_hidden_transaction(request.transactional_id, [part.records for part in parts]):
            fault, parts = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, []
            for number, (partition, _) in enumerate(request.parts):
                found = ProducedPartition(ZERO_TOPIC_ID, partition, fault, error_message=TEXTS[fault])
                refused.setdefault(number, found)
        produced = self._replicas.produce(
            ProduceRequest(request.acks, request.timeout_ms, parts, request.transactional_id),
            first_protocol=version < SECOND_PROTOCOL_FROM,
        )
        if isinstance(produced, list):
            return self._answer(version, head, request, refused, started, usage, produced)
        if usage is not None:
            usage.watch.stop()
        finish = partial(self._finish, version, head, request, refused, started, usage)
        return Pending(produced, finish, len(body))

    def _finish(
        self,
        version: int,
        head: bytes,
        request: KafkaProduce,
        refused: dict[int, ProducedPartition],
        started: float,
        usage: RequestUsage | None,
        done: asyncio.Future[list[ProducedPartition]],
    ) -> Pieces:
        if usage is not None:
            usage.watch.start()
        return self._answer(version, head, request, refused, started, usage, done.result())

    def _answer(
        self,
        version: int,
        head: bytes,
        request: KafkaProduce,
        refused: dict[int, ProducedPartition],
        started: float,
        usage: RequestUsage | None,
        produced: list[ProducedPartition],
    ) -> Pieces:
        results = produced
        if refused:
            rest = iter(produced)
            results = [refused[number] if number in refused else next(rest) for number in range(len(request.parts))]
        self._traffic.produced(results, self._time() - started)
        leaders = False
        for number, item in enumerate(results):
            if item.error:
                if item.error is ErrorCode.UNKNOWN_TOPIC_ID:
                    results[number] = item = self._elsewhere(item, by_id=version >= BY_ID)
                elif item.error is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
                    # Kafka never returns this to a producer, and librdkafka would drop the records.
                    results[number] = item = item._replace(error=ErrorCode.NOT_ENOUGH_REPLICAS)
                elif item.error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_FROM:
                    results[number] = item = item._replace(error=ErrorCode.INVALID_TXN_STATE)
                self._kafka.failed(API_KEY, item.error)
                leaders = leaders or item.current_leader != NO_NODE
                if not request.acks:
                    raise Unanswered(f"a produce request without acks was refused: {item.error.name}")
        if not request.acks:
            return ()
        endpoints = self._names.endpoints(named_leaders(results)) if leaders and version >= 10 else ()
        throttle_ms = 0
        if usage is not None:
            usage.watch.stop()
            usage.answered()
            throttle_ms = usage.told_ms
        return (encode_produced(version, head, request.topics, results, endpoints, throttle_ms),)

    def _denied(self, name: bytes, access: Access, *, by_id: bool) -> ErrorCode:
        if by_id:
            return self._names.by_id(TopicId(name), access, AclOperation.WRITE)
        may = access.topic(AclOperation.WRITE, text_of(name))
        return ErrorCode.NONE if may else ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def _elsewhere(self, item: ProducedPartition, *, by_id: bool) -> ProducedPartition:
        error, leader, epoch = self._names.not_here(item.topic_id, item.partition, by_id=by_id)
        return item._replace(error=error, current_leader=leader, current_leader_epoch=epoch)


_NO_RECORDS: Final = (ErrorCode.INVALID_RECORD, "expected a record batch, found null")


def _refused(topic_id: TopicId, partition: int, fault: tuple[ErrorCode, str]) -> ProducedPartition:
    return ProducedPartition(topic_id, partition, fault[0], error_message=fault[1])


def _format_fault(version: int, records: memoryview) -> tuple[ErrorCode, str] | None:
    """Return the error in the records' format for this version. Source: ``ProduceRequest.validateRecords``."""
    if version < BATCHES_FROM:
        return ErrorCode.UNSUPPORTED_VERSION, f"expected produce version {BATCHES_FROM} or later, found {version}"
    if len(records) < HEADER_SIZE:
        return None
    magic = records[_MAGIC_AT]
    if magic < MAGIC:
        return ErrorCode.INVALID_RECORD, f"expected record batches of format {MAGIC}, found format {magic}"
    if version < ZSTD_FROM and records[_ATTRIBUTES_LOW_AT] & COMPRESSION_MASK == Compression.ZSTD:
        text = f"expected produce version {ZSTD_FROM} or later with zstd, found {version}"
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, text
    return None
