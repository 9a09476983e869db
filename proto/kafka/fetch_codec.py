"""A handwritten codec for Kafka's Fetch requests and responses, versions 4 to 18: records are sent as they were read.

Source: Kafka's ``FetchRequest.json`` and ``FetchResponse.json``.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import Final, NamedTuple

from tidelog.model.buffer import Buffer
from tidelog.model.ids import NO_LEADER_EPOCH, NO_NODE
from tidelog.proto.kafka.endpoints import NodeEndpoint, write_node_endpoints
from tidelog.proto.kafka.wire import (
    BadMessage,
    Budget,
    read_compact_string,
    read_string,
    read_tag,
    read_tag_count,
    read_uvarint,
    skip_tags,
)
from tidelog.proto.records.varint import write_uvarint
from tidelog.proto.transport.frames import FetchedPartition

API_KEY: Final = 1
LEAST: Final = 4
MOST: Final = 18
FLEXIBLE: Final = 12
BY_ID: Final = 13
"""The first version that names topics by id (KIP-516)."""
PARTITIONS_MAX: Final = 20_000
"""Most partitions in one request, and most topics."""

_HEAD: Final = struct.Struct(">iiib")
_CONSUMER: Final = 15
"""The first version in which a consumer's request no longer says that it is one (KIP-903)."""
_SESSION: Final = struct.Struct(">ii")
_COUNT: Final = struct.Struct(">i")
_STATE: Final = struct.Struct(">iq")
_PARTITION: Final = {
    4: struct.Struct(">iqi"),
    5: struct.Struct(">iqqi"),
    9: struct.Struct(">iiqqi"),
    12: struct.Struct(">iiqiqi"),
}
_RESULT: Final = struct.Struct(">ihqq")
_RESULT_START: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")
_EPOCH_END: Final = struct.Struct(">iq")
_LEADER: Final = struct.Struct(">ii")
_TOP: Final = struct.Struct(">ihi")


class WantedPartition(NamedTuple):
    """One partition of a fetch. Epochs are -1 where the version has none."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    bytes_max: int


class KafkaFetch(NamedTuple):
    """``topics``: name (below version 13) or id as on the wire, and number of partitions; ``parts`` in that order.
    ``forgotten``: what a session should leave out from now on (KIP-227)."""

    replica_id: int
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: Sequence[tuple[bytes, int]]
    parts: Sequence[WantedPartition]
    rack: str
    forgotten: Sequence[tuple[bytes, Sequence[int]]] = ()


def decode_fetch(version: int, body: memoryview) -> KafkaFetch:
    """Read a request. Trailing bytes are ignored, as in Kafka. Raises :class:`BadMessage`."""
    try:
        return _decode(version, body)
    except (struct.error, IndexError) as error:
        raise BadMessage(f"fetch request ends early: {error}") from None


def _decode(version: int, body: memoryview) -> KafkaFetch:
    at, replica_id = 0, -1
    if version < _CONSUMER:
        (replica_id,) = _COUNT.unpack_from(body, 0)
        at = 4
    wait_ms_max, bytes_min, bytes_max, isolation = _HEAD.unpack_from(body, at)
    at += _HEAD.size
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(body, at)
        at += _SESSION.size
    budget = Budget()
    topics, parts, at = _decode_topics(version, body, at, budget)
    forgotten: list[tuple[bytes, Sequence[int]]] = []
    if version >= 7:
        forgotten, at = _read_forgotten(version, body, at, budget)
    rack: str | None = None
    if version >= FLEXIBLE:
        rack, at = read_compact_string(body, at)
        replica_id, at = _read_tags(body, at, replica_id, budget)
    elif version >= 11:
        rack, at = read_string(body, at)
    return KafkaFetch(
        replica_id,
        wait_ms_max,
        bytes_min,
        bytes_max,
        isolation,
        session_id,
        session_epoch,
        topics,
        parts,
        rack or "",
        forgotten,
    )


def _decode_topics(
    version: int, body: memoryview, at: int, budget: Budget
) -> tuple[list[tuple[bytes, int]], list[WantedPartition], int]:
    flexible = version >= FLEXIBLE
    topics: list[tuple[bytes, int]] = []
    parts: list[WantedPartition] = []
    item = _PARTITION[12 if flexible else 9 if version >= 9 else 5 if version >= 5 else 4]
    topic_count, at = _read_count(body, at, flexible)
    for _ in range(topic_count):
        name, at = _read_topic(version, body, at)
        count, at = _read_count(body, at, flexible)
        if len(parts) + count > PARTITIONS_MAX:
            raise BadMessage(f"expected at most {PARTITIONS_MAX} partitions in a fetch, found more")
        for _ in range(count):
            values = item.unpack_from(body, at)
            at += item.size
            if flexible:
                parts.append(WantedPartition(*values))
                at = skip_tags(body, at, budget)
            elif version >= 9:
                partition, epoch, offset, start, size = values
                parts.append(WantedPartition(partition, epoch, offset, -1, start, size))
            elif version >= 5:
                partition, offset, start, size = values
                parts.append(WantedPartition(partition, -1, offset, -1, start, size))
            else:
                partition, offset, size = values
                parts.append(WantedPartition(partition, -1, offset, -1, -1, size))
        if flexible:
            at = skip_tags(body, at, budget)
        topics.append((name, count))
    return topics, parts, at


def _read_forgotten(
    version: int, body: memoryview, at: int, budget: Budget
) -> tuple[list[tuple[bytes, Sequence[int]]], int]:
    flexible = version >= FLEXIBLE
    forgotten: list[tuple[bytes, Sequence[int]]] = []
    left = PARTITIONS_MAX
    topic_count, at = _read_count(body, at, flexible)
    for _ in range(topic_count):
        name, at = _read_topic(version, body, at)
        count, at = _read_count(body, at, flexible)
        left -= count
        if left < 0:
            raise BadMessage(f"expected at most {PARTITIONS_MAX} forgotten partitions in a fetch, found more")
        forgotten.append((name, struct.unpack_from(f">{count}i", body, at)))
        at += 4 * count
        if flexible:
            at = skip_tags(body, at, budget)
    return forgotten, at


def _read_tags(body: memoryview, at: int, replica_id: int, budget: Budget) -> tuple[int, int]:
    """Return the replica's state (tag 1) if a follower of a later version sent it; ignore the rest."""
    count, at = read_tag_count(body, at, budget)
    for _ in range(count):
        tag, at, end = read_tag(body, at)
        if tag == 1 and end - at >= _STATE.size:
            replica_id, _ = _STATE.unpack_from(body, at)
        at = end
    return replica_id, at


def _read_topic(version: int, body: memoryview, at: int) -> tuple[bytes, int]:
    if version >= BY_ID:
        end = at + 16
    elif version >= FLEXIBLE:
        size, at = read_uvarint(body, at)
        end = at + size - 1
    else:
        size = int.from_bytes(body[at : at + 2], "big", signed=True)
        at += 2
        end = at + size
    if end < at or end > len(body):
        raise BadMessage(f"expected a topic within {len(body)} bytes, found it from {at} to {end}")
    return bytes(body[at:end]), end


def _read_count(body: memoryview, at: int, flexible: bool) -> tuple[int, int]:
    if flexible:
        count, at = read_uvarint(body, at)
        count -= 1
    else:
        (count,) = _COUNT.unpack_from(body, at)
        at += 4
    if not -1 <= count <= PARTITIONS_MAX:
        raise BadMessage(f"expected at most {PARTITIONS_MAX} items in a fetch, found {count}")
    return max(count, 0), at


# --- Responses --------------------------------------------------------------------------------------


def encode_fetched(
    version: int,
    head: bytes,
    topics: Sequence[tuple[bytes, int]],
    results: Sequence[FetchedPartition],
    endpoints: Sequence[NodeEndpoint] = (),
    throttle_ms: int = 0,
    session_id: int = 0,
) -> list[Buffer | FetchedPartition]:
    """Return a response after ``head`` as pieces in order. A partition stands for its own records.

    ``results`` are in the order of the request's partitions.
    """
    steps = encode_in_steps(version, head, topics, results, len(results) + 1, endpoints, throttle_ms, session_id)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            pieces: list[Buffer | FetchedPartition] = end.value
            return pieces


def encode_in_steps(
    version: int,
    head: bytes,
    topics: Sequence[tuple[bytes, int]],
    results: Sequence[FetchedPartition],
    step: int,
    endpoints: Sequence[NodeEndpoint] = (),
    throttle_ms: int = 0,
    session_id: int = 0,
) -> Generator[None, None, list[Buffer | FetchedPartition]]:
    """Build the same response, pausing after every ``step`` partitions."""
    flexible = version >= FLEXIBLE
    pieces: list[Buffer | FetchedPartition] = []
    out = bytearray(head)
    out += _TOP.pack(throttle_ms, 0, session_id) if version >= 7 else _COUNT.pack(throttle_ms)
    _write_count(out, len(topics), flexible)
    at, pause = 0, step
    for name, count in topics:
        _write_topic(out, version, name)
        _write_count(out, count, flexible)
        for item in results[at : at + count]:
            _write_partition(out, version, item)
            size = item.size
            if flexible:
                write_uvarint(out, size + 1)
            else:
                out += _COUNT.pack(size)
            if size:
                pieces += (out, item)
                out = bytearray()
            if flexible:
                _write_partition_tags(out, item)
            pause -= 1
            if not pause:
                yield
                pause = step
        at += count
        if flexible:
            out.append(0)
    if version >= 16 and endpoints:
        out.append(1)
        write_node_endpoints(out, endpoints)
    elif flexible:
        out.append(0)
    if out:
        pieces.append(out)
    return pieces


def encode_fetch_refused(version: int, head: bytes, error: int) -> bytes:
    """Return a response that refuses the whole request; versions below 7 have none."""
    assert version >= 7
    return head + _TOP.pack(0, error, 0) + (b"\x01\0" if version >= FLEXIBLE else b"\0\0\0\0")


def _write_partition(out: bytearray, version: int, item: FetchedPartition) -> None:
    if version >= 5:
        out += _RESULT_START.pack(
            item.partition, item.error, item.high_watermark, item.last_stable_offset, item.log_start_offset
        )
    else:
        out += _RESULT.pack(item.partition, item.error, item.high_watermark, item.last_stable_offset)
    _write_count(out, len(item.aborted), version >= FLEXIBLE)
    for producer_id, first_offset in item.aborted:
        out += _ABORTED.pack(producer_id, first_offset)
        if version >= FLEXIBLE:
            out.append(0)
    if version >= 11:
        out += _COUNT.pack(item.preferred_read_replica)


def _write_partition_tags(out: bytearray, item: FetchedPartition) -> None:
    diverging = item.diverging_epoch != NO_LEADER_EPOCH
    leader = bool(item.error) and item.current_leader != NO_NODE
    out.append(diverging + leader)
    if diverging:
        out += b"\x00\x0d"
        out += _EPOCH_END.pack(item.diverging_epoch, item.diverging_end_offset)
        out.append(0)
    if leader:
        out += b"\x01\x09"
        out += _LEADER.pack(item.current_leader, item.current_leader_epoch)
        out.append(0)


def _write_topic(out: bytearray, version: int, name: bytes) -> None:
    if version >= BY_ID:
        out += name
    elif version >= FLEXIBLE:
        write_uvarint(out, len(name) + 1)
        out += name
    else:
        out += len(name).to_bytes(2, "big")
        out += name


def _write_count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        write_uvarint(out, count + 1)
    else:
        out += _COUNT.pack(count)
