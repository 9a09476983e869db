"""A handwritten codec for Kafka's Produce requests and responses, versions 0 to 13: records stay where they arrived.

Source: Kafka's ``ProduceRequest.json`` and ``ProduceResponse.json``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from tidelog.model.ids import NO_NODE, NodeId
from tidelog.proto.kafka.endpoints import NodeEndpoint, write_node_endpoints
from tidelog.proto.kafka.wire import (
    BadMessage,
    Budget,
    read_compact_string,
    read_string,
    read_uvarint,
    skip_tags,
    write_compact_string,
    write_string,
)
from tidelog.proto.records.varint import write_uvarint
from tidelog.proto.transport.frames import ProducedPartition

API_KEY: Final = 0
MOST: Final = 13
FLEXIBLE: Final = 9
BY_ID: Final = 13
"""The first version that names topics by id (KIP-516)."""
PARTITIONS_MAX: Final = 10_000
"""Most partitions in one request."""
_TEXT_MAX: Final = 4_096
"""Most characters of an error's text; the rest is cut."""

_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_COUNT: Final = struct.Struct(">i")
_PARTITION: Final = struct.Struct(">ii")
_RESULT: Final = struct.Struct(">ihq")
_TIME: Final = struct.Struct(">q")
_TIME_START: Final = struct.Struct(">qq")
_RESULT_TIME_START: Final = struct.Struct(">ihqqq")
_LEADER: Final = struct.Struct(">ii")
_NO_FAULT: Final = b"\x01\x00\x00"
"""No faulty records, no text, no tagged fields."""


class KafkaProduce(NamedTuple):
    """``topics``: name (below version 13) or id as on the wire, and number of partitions; ``parts``: (partition,
    records) in that order.

    ``records`` is ``None`` if null was sent.
    """

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: Sequence[tuple[bytes, int]]
    parts: Sequence[tuple[int, memoryview | None]]


def decode_produce(version: int, body: memoryview) -> KafkaProduce:
    """Read a request; its records are slices of ``body``. Trailing bytes are ignored, as in Kafka.

    Raises :class:`BadMessage`.
    """
    try:
        return _decode_flexible(version, body) if version >= FLEXIBLE else _decode_legacy(version, body)
    except (struct.error, IndexError) as error:
        raise BadMessage(f"produce request ends early: {error}") from None


def _decode_flexible(version: int, body: memoryview) -> KafkaProduce:
    # A number below 128 is its byte on the wire: not worth a function call.
    transactional_id, at = read_compact_string(body, 0) if body[0] else (None, 1)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(body, at)
    topics: list[tuple[bytes, int]] = []
    parts: list[tuple[int, memoryview | None]] = []
    at += _ACKS_TIMEOUT.size
    budget = Budget()
    topic_count, at = (body[at], at + 1) if body[at] < 0x80 else read_uvarint(body, at)
    _check_count(topic_count - 1)
    for _ in range(topic_count - 1):
        size = 17
        if version < BY_ID:
            size, at = (body[at], at + 1) if body[at] < 0x80 else read_uvarint(body, at)
        end = at + size - 1
        if not size or end > len(body):
            raise BadMessage(f"expected a topic of at most {len(body) - at} bytes, found {size - 1}")
        name = bytes(body[at:end])
        count, at = (body[end], end + 1) if body[end] < 0x80 else read_uvarint(body, end)
        _check_count(len(parts) + count - 1)
        for _ in range(count - 1):
            (partition,) = _COUNT.unpack_from(body, at)
            low, high = body[at + 4], body[at + 5]
            if low >= 0x80 > high:  # the length of most small requests' records: two groups of seven bits
                size, at = low & 0x7F | high << 7, at + 6
            else:
                size, at = read_uvarint(body, at + 4)
            end = at + size - 1
            if end > len(body):
                raise BadMessage(f"expected records of at most {len(body) - at} bytes, found {size - 1}")
            if size:
                parts.append((partition, body[at:end]))
                at = end + 1 if not body[end] else skip_tags(body, end, budget)
            else:
                parts.append((partition, None))
                at = skip_tags(body, at, budget)
        topics.append((name, max(count - 1, 0)))
        at = at + 1 if not body[at] else skip_tags(body, at, budget)
    skip_tags(body, at, budget)
    return KafkaProduce(transactional_id, acks, timeout_ms, topics, parts)


def _decode_legacy(version: int, body: memoryview) -> KafkaProduce:
    transactional_id, at = read_string(body, 0) if version >= 3 else (None, 0)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(body, at)
    topics: list[tuple[bytes, int]] = []
    parts: list[tuple[int, memoryview | None]] = []
    (topic_count,) = _COUNT.unpack_from(body, at + _ACKS_TIMEOUT.size)
    at += _ACKS_TIMEOUT.size + 4
    _check_count(topic_count)
    for _ in range(topic_count):
        size = int.from_bytes(body[at : at + 2], "big", signed=True)
        end = at + 2 + size
        if size < 0 or end > len(body):
            raise BadMessage(f"expected a topic's name of at most {len(body) - at} bytes, found {size}")
        name = bytes(body[at + 2 : end])
        (count,) = _COUNT.unpack_from(body, end)
        _check_count(len(parts) + count)
        at = end + 4
        for _ in range(count):
            partition, size = _PARTITION.unpack_from(body, at)
            at += 8
            if size < -1 or at + size > len(body):
                raise BadMessage(f"expected records of at most {len(body) - at} bytes, found {size}")
            parts.append((partition, body[at : at + size] if size >= 0 else None))
            at += max(size, 0)
        topics.append((name, max(count, 0)))
    return KafkaProduce(transactional_id, acks, timeout_ms, topics, parts)


def encode_produced(
    version: int,
    head: bytes,
    topics: Sequence[tuple[bytes, int]],
    results: Sequence[ProducedPartition],
    endpoints: Sequence[NodeEndpoint] = (),
    throttle_ms: int = 0,
) -> bytearray:
    """Return a response after ``head``; ``results`` are in the order of the request's partitions.

    ``endpoints``: those of the leaders named in results (KIP-951).
    """
    out = bytearray(head)
    if version >= FLEXIBLE:
        _encode_flexible(out, version, topics, results, endpoints, throttle_ms)
    else:
        _encode_legacy(out, version, topics, results, throttle_ms)
    return out


def _encode_flexible(
    out: bytearray,
    version: int,
    topics: Sequence[tuple[bytes, int]],
    results: Sequence[ProducedPartition],
    endpoints: Sequence[NodeEndpoint],
    throttle_ms: int,
) -> None:
    write_uvarint(out, len(topics) + 1)
    at = 0
    for name, count in topics:
        if version >= BY_ID:
            out += name
            write_uvarint(out, count + 1)
        elif len(name) < 0x7F > count:
            out.append(len(name) + 1)
            out += name
            out.append(count + 1)
        else:
            write_uvarint(out, len(name) + 1)
            out += name
            write_uvarint(out, count + 1)
        for item in results if len(results) == count else results[at : at + count]:
            out += _RESULT_TIME_START.pack(
                item.partition, item.error, item.base_offset, item.log_append_time_ms, item.log_start_offset
            )
            if not (item.error or item.error_message or item.refused_records):
                out += _NO_FAULT
                continue
            if item.refused_records:
                write_uvarint(out, len(item.refused_records) + 1)
                for number in item.refused_records:
                    out += _COUNT.pack(number)
                    out += b"\0\0"  # no text of its own, no tagged fields
            else:
                out.append(1)
            if item.error_message:
                write_compact_string(out, item.error_message[:_TEXT_MAX])
            else:
                out.append(0)
            if version >= 10 and item.error and item.current_leader != NO_NODE:
                out += b"\x01\x00\x09"
                out += _LEADER.pack(item.current_leader, item.current_leader_epoch)
            out.append(0)  # no tagged fields, or none within the leader
        at += count
        out.append(0)
    out += _COUNT.pack(throttle_ms)
    if version >= 10 and endpoints:
        out.append(1)
        write_node_endpoints(out, endpoints)
    else:
        out.append(0)


def _encode_legacy(
    out: bytearray,
    version: int,
    topics: Sequence[tuple[bytes, int]],
    results: Sequence[ProducedPartition],
    throttle_ms: int,
) -> None:
    out += _COUNT.pack(len(topics))
    at = 0
    for name, count in topics:
        out += len(name).to_bytes(2, "big")
        out += name
        out += _COUNT.pack(count)
        for item in results[at : at + count]:
            out += _RESULT.pack(item.partition, item.error, item.base_offset)
            if version >= 5:
                out += _TIME_START.pack(item.log_append_time_ms, item.log_start_offset)
            elif version >= 2:
                out += _TIME.pack(item.log_append_time_ms)
            if version >= 8:
                out += _COUNT.pack(len(item.refused_records))
                for number in item.refused_records:
                    out += _COUNT.pack(number) + b"\xff\xff"  # no text of its own
                write_string(out, item.error_message[:_TEXT_MAX] or None)
        at += count
    if version >= 1:
        out += _COUNT.pack(throttle_ms)


def named_leaders(results: Sequence[ProducedPartition]) -> set[NodeId]:
    """Return the nodes that refusals name as leaders."""
    return {item.current_leader for item in results if item.error and item.current_leader != NO_NODE}


def _check_count(count: int) -> None:
    if not -1 <= count <= PARTITIONS_MAX:
        raise BadMessage(f"expected at most {PARTITIONS_MAX} partitions in a produce request, found {count}")
