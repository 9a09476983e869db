"""The bytes of a Metadata response, topic by topic, so that unchanged topics are not encoded again.

Layout of every version: Kafka's ``MetadataResponse.json``; a test compares with the general encoder.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ZERO_TOPIC_ID, NodeId
from tidelog.proto.calls.api import MetadataResponse, PartitionMetadata, TopicMetadata
from tidelog.proto.kafka import wire

METADATA_API: Final = 3
THROTTLE_FROM: Final = 3
"""The first version that tells a client to wait."""
FLEXIBLE_FROM: Final = 9
OPERATIONS_NOT_ASKED: Final = -(2**31)
_PARTITION: Final = struct.Struct(">hii")
_PARTITION_AND_EPOCH: Final = struct.Struct(">hiii")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")


def topic_bytes(topic: TopicMetadata, version: int, operations: int) -> bytes:
    """Encode one topic of the response. ``operations``: the caller's allowed operations, as bits."""
    out = bytearray(_I16.pack(topic.error))
    if version >= FLEXIBLE_FROM:
        nameless = topic.error is ErrorCode.UNKNOWN_TOPIC_ID and version >= 12
        wire.write_compact_string(out, None if nameless else topic.name)
    else:
        wire.write_string(out, topic.name)
    if version >= 10:
        out += topic.topic_id or ZERO_TOPIC_ID
    if version >= 1:
        out.append(topic.is_internal)
    _write_length(out, len(topic.partitions), version)
    for partition in topic.partitions:
        _write_partition(out, partition, version)
    if version >= 8:
        out += _I32.pack(operations)
    if version >= FLEXIBLE_FROM:
        out.append(0)
    return bytes(out)


def _write_partition(out: bytearray, found: PartitionMetadata, version: int) -> None:
    if version >= 7:
        out += _PARTITION_AND_EPOCH.pack(found.error, found.partition, found.leader, found.leader_epoch)
    else:
        # Clients before version 6 do not know the error for a leader without this listener.
        unheard = version < 6 and found.error is ErrorCode.LISTENER_NOT_FOUND
        error = ErrorCode.LEADER_NOT_AVAILABLE if unheard else found.error
        out += _PARTITION.pack(error, found.partition, found.leader)
    _write_nodes(out, found.replicas, version)
    _write_nodes(out, found.isr, version)
    if version >= 5:
        _write_nodes(out, found.offline_replicas, version)
    if version >= FLEXIBLE_FROM:
        out.append(0)


def _write_nodes(out: bytearray, nodes: Sequence[NodeId], version: int) -> None:
    _write_length(out, len(nodes), version)
    out += struct.pack(f">{len(nodes)}i", *nodes)


def _write_length(out: bytearray, length: int, version: int) -> None:
    if version >= FLEXIBLE_FROM:
        wire.write_compact_length(out, length)
    else:
        wire.write_length(out, length)


def with_throttle_time(response: bytes, version: int, throttle_ms: int) -> bytes:
    """Return the same response with a time for the client to wait."""
    return response if version < THROTTLE_FROM else _I32.pack(throttle_ms) + response[_I32.size :]


def response_bytes(
    answer: MetadataResponse,
    topics: Iterable[bytes],
    version: int,
    *,
    controller_id: NodeId,
    cluster_operations: int,
) -> bytes:
    """Encode the whole response around its topics, which are as many as in ``answer``."""
    write_string = wire.write_compact_string if version >= FLEXIBLE_FROM else wire.write_string
    out = bytearray()
    if version >= THROTTLE_FROM:
        out += _I32.pack(0)  # throttled for so long
    _write_length(out, len(answer.brokers), version)
    for broker in answer.brokers:
        out += _I32.pack(broker.node_id)
        write_string(out, broker.host)
        out += _I32.pack(broker.port)
        if version >= 1:
            write_string(out, broker.rack)
        if version >= FLEXIBLE_FROM:
            out.append(0)
    if version >= 2:
        write_string(out, answer.cluster_id)
    if version >= 1:
        out += _I32.pack(controller_id)
    _write_length(out, len(answer.topics), version)
    out += b"".join(topics)
    if 8 <= version <= 10:
        out += _I32.pack(cluster_operations)
    if version >= 13:
        out += _I16.pack(ErrorCode.NONE)
    if version >= FLEXIBLE_FROM:
        out.append(0)
    return bytes(out)
