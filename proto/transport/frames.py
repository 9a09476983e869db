"""Binary layout of the frames that carry record batches: produce and fetch, of clients and followers.

A frame starts with a version byte, which is 1, and a correlation id that its answer repeats. Numbers are big-endian.
A consumer's filter takes the places of two fields that mean nothing for consumers, the replica's epoch (the mask) and
log start (the header), so a broker that knows no filters answers with everything.

Record batches follow all of a frame's headers, one partition after the other, so that a sender joins pieces once and a
receiver slices them out without a copy.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from tidelog.model.buffer import Buffer
from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import (
    NO_LEADER_EPOCH,
    NO_NODE,
    NO_OFFSET,
    BrokerEpoch,
    LeaderEpoch,
    NodeId,
    Offset,
    ProducerId,
    TopicId,
)
from tidelog.proto.records.header_filter import HeaderMask
from tidelog.proto.transport.network import BadFrame, Frame

VERSION: Final = 1
CORRELATION_MAX: Final = 0xFFFF_FFFF
_TEXT_BYTES_MAX: Final = 0xFFFF
"""Longest transactional id, rack or error message. A longer message is cut; the others are refused earlier."""
FETCH_PARTITIONS_MAX: Final = 20_000
"""Most partitions in one fetch, as at the Kafka listener; each takes time on the event loop. A follower with more
spreads them over several fetches. A produce request has room for 65,535."""
FORGOTTEN_MAX: Final = 0xFFFF
"""Most partitions that a follower gives up in one fetch; more take several fetches."""

_MASK: Final = (1 << 64) - 1

_HEAD = struct.Struct(">BI")
_PRODUCE = struct.Struct(">hIH")
_PRODUCE_ITEM = struct.Struct(">16siI")
_PRODUCED = struct.Struct(">H")
_PRODUCED_ITEM = struct.Struct(">16sihqqqiiH")
_FETCH = struct.Struct(">iqIIIBBHII")
_FETCH_ITEM = struct.Struct(">16siiqiqI")
_FORGOTTEN = struct.Struct(">16si")
_FETCHED = struct.Struct(">hI")
_FETCHED_ITEM = struct.Struct(">16sihqqqiqiiiII")
_ABORTED = struct.Struct(">qq")


class ProducePartition(NamedTuple):
    """``records``: whole record batches, ready to store."""

    topic_id: TopicId
    partition: int
    records: Buffer


class ProduceRequest(NamedTuple):
    """``acks``: 0, 1 or -1 (all in-sync replicas). ``transactional_id`` is set within a transaction."""

    acks: int
    timeout_ms: int
    partitions: Sequence[ProducePartition]
    transactional_id: str | None = None


class ProducedPartition(NamedTuple):
    """``current_leader`` and its epoch are set with NOT_LEADER_OR_FOLLOWER if known (KIP-951).

    ``refused_records``: the faulty records of a batch, by position (KIP-467). Only Kafka's protocol carries them.
    """

    topic_id: TopicId
    partition: int
    error: ErrorCode
    base_offset: Offset = NO_OFFSET
    log_append_time_ms: int = -1
    log_start_offset: Offset = NO_OFFSET
    current_leader: NodeId = NO_NODE
    current_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    error_message: str = ""
    refused_records: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """``last_fetched_epoch`` lets the leader find divergence (KIP-595); -1 leaves it out.
    ``log_start_offset`` is a follower's own."""

    topic_id: TopicId
    partition: int
    current_leader_epoch: LeaderEpoch
    fetch_offset: Offset
    last_fetched_epoch: LeaderEpoch
    log_start_offset: Offset
    bytes_max: int


ANY_REPLICA: Final = NodeId(-2)
"""``replica_id`` of a fetch that any replica answers, leader or not (Kafka's
``FetchRequest.DEBUGGING_CONSUMER_ID``)."""


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A fetch by a consumer (``replica_id`` -1), a follower, or a reader of any replica (:data:`ANY_REPLICA`).

    On one stream a follower names only partitions whose fetch position changed, and ``forgotten`` ones; the leader
    remembers the rest until the stream ends (the idea of KIP-227's sessions). A partition that was answered with
    records, an error or a divergence is answered again only after it is named again, and a new fetch ends the wait of
    the previous one. A consumer's request is independent. ``replica_epoch`` is the follower's broker epoch (KIP-903).
    """

    replica_id: NodeId
    replica_epoch: BrokerEpoch
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    read_committed: bool
    partitions: Sequence[FetchPartition]
    forgotten: Sequence[tuple[TopicId, int]] = ()
    rack: str = ""
    wanted: HeaderMask | None = None
    """A consumer's filter: batches that have nothing for it may be left out."""


class RecordsInFile(Protocol):
    """Whole record batches in place in a log's file, for a carrier that sends from there.

    The file stays open and these bytes unchanged until :meth:`release`, which must be called once.
    """

    @property
    def position(self) -> int: ...

    @property
    def size(self) -> int: ...

    def fileno(self) -> int:
        """Return the descriptor, for ``sendfile``."""

    def release(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """``records``: pieces that together are whole record batches (the first may start before the requested offset). A
    ``diverging_epoch`` other than -1 tells the fetcher to truncate to the end of that epoch, at most to
    ``diverging_end_offset``. Without such an epoch, it says in the answer to a filtered fetch up to where there is
    nothing else for the filter. With OFFSET_OUT_OF_RANGE to a follower, ``log_start_offset`` and
    ``diverging_end_offset`` bound the leader's log. ``current_leader_epoch`` is the leader's when it answered.
    ``aborted``: (producer id, first offset)."""

    topic_id: TopicId
    partition: int
    error: ErrorCode
    high_watermark: Offset = NO_OFFSET
    last_stable_offset: Offset = NO_OFFSET
    log_start_offset: Offset = NO_OFFSET
    diverging_epoch: LeaderEpoch = NO_LEADER_EPOCH
    diverging_end_offset: Offset = NO_OFFSET
    current_leader: NodeId = NO_NODE
    current_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    preferred_read_replica: NodeId = NO_NODE
    aborted: Sequence[tuple[ProducerId, Offset]] = ()
    records: Sequence[Buffer] = ()
    in_files: Sequence[RecordsInFile] = ()
    """The records instead, if the fetch wanted them left in their files."""

    @property
    def size(self) -> int:
        """Bytes of all records."""
        if not self.records and not self.in_files:
            return 0
        return sum(map(len, self.records)) + sum([piece.size for piece in self.in_files])


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """``error`` other than NONE: the whole request was refused."""

    error: ErrorCode
    partitions: Sequence[FetchedPartition]


def correlation_of(frame: memoryview) -> int:
    """Return any frame's correlation id. Raises :class:`BadFrame`."""
    if len(frame) < _HEAD.size:
        raise BadFrame(f"expected a frame of at least {_HEAD.size} bytes, found {len(frame)}")
    version, correlation = _HEAD.unpack_from(frame)
    if version != VERSION:
        raise BadFrame(f"expected frame version {VERSION}, found {version}")
    return int(correlation)


def encode_produce_request(correlation: int, request: ProduceRequest) -> Frame:
    txn = (request.transactional_id or "").encode()
    head = bytearray(_HEAD.pack(VERSION, correlation))
    head += _PRODUCE.pack(request.acks, request.timeout_ms, len(request.partitions))
    head += len(txn).to_bytes(2, "big") + txn
    pieces: list[Buffer] = [head]
    for item in request.partitions:
        head += _PRODUCE_ITEM.pack(item.topic_id, item.partition, len(item.records))
        pieces.append(item.records)
    return pieces


def decode_produce_request(frame: memoryview) -> tuple[int, ProduceRequest]:
    """Read a produce request; records are slices of ``frame``. Raises :class:`BadFrame`."""
    correlation = correlation_of(frame)
    try:
        acks, timeout_ms, count = _PRODUCE.unpack_from(frame, _HEAD.size)
        position = _HEAD.size + _PRODUCE.size
        txn, position = _read_text(frame, position)
        items = [_PRODUCE_ITEM.unpack_from(frame, position + i * _PRODUCE_ITEM.size) for i in range(count)]
    except struct.error as error:
        raise BadFrame(f"produce request ends early: {error}") from None
    position += count * _PRODUCE_ITEM.size
    partitions = []
    for topic_id, partition, size in items:
        partitions.append(ProducePartition(topic_id, partition, frame[position : position + size]))
        position += size
    _expect_end(position, frame, "produce request")
    return correlation, ProduceRequest(acks, timeout_ms, partitions, txn or None)


def encode_produce_response(correlation: int, partitions: Sequence[ProducedPartition]) -> Frame:
    out = bytearray(_HEAD.pack(VERSION, correlation))
    out += _PRODUCED.pack(len(partitions))
    for item in partitions:
        text = item.error_message.encode(errors="replace")[:_TEXT_BYTES_MAX]
        out += _PRODUCED_ITEM.pack(
            item.topic_id,
            item.partition,
            item.error,
            item.base_offset,
            item.log_append_time_ms,
            item.log_start_offset,
            item.current_leader,
            item.current_leader_epoch,
            len(text),
        )
        out += text
    return (out,)


def decode_produce_response(frame: memoryview) -> tuple[int, list[ProducedPartition]]:
    """Raises :class:`BadFrame`."""
    correlation = correlation_of(frame)
    partitions = []
    try:
        (count,) = _PRODUCED.unpack_from(frame, _HEAD.size)
        position = _HEAD.size + _PRODUCED.size
        for _ in range(count):
            topic_id, partition, error, base, append_time, start, leader, epoch, size = _PRODUCED_ITEM.unpack_from(
                frame, position
            )
            position += _PRODUCED_ITEM.size
            text = str(frame[position : position + size], "utf-8", "replace")
            position += size
            code = _error_code(error)
            partitions.append(
                ProducedPartition(topic_id, partition, code, base, append_time, start, leader, epoch, text)
            )
    except struct.error as problem:
        raise BadFrame(f"produce response cannot be read: {problem}") from None
    _expect_end(position, frame, "produce response")
    return correlation, partitions


def encode_fetch_request(correlation: int, request: FetchRequest) -> Frame:
    rack, wanted = request.rack.encode(), request.wanted
    out = bytearray(_HEAD.pack(VERSION, correlation))
    out += _FETCH.pack(
        request.replica_id,
        request.replica_epoch if wanted is None else _signed(wanted.mask),
        request.wait_ms_max,
        request.bytes_min,
        request.bytes_max,
        request.read_committed,
        wanted is not None,
        len(rack),
        len(request.forgotten),
        len(request.partitions),
    )
    out += rack
    for item in request.partitions:
        out += _FETCH_ITEM.pack(
            item.topic_id,
            item.partition,
            item.current_leader_epoch,
            item.fetch_offset,
            item.last_fetched_epoch,
            item.log_start_offset if wanted is None else wanted.header,
            item.bytes_max,
        )
    for topic_id, partition in request.forgotten:
        out += _FORGOTTEN.pack(topic_id, partition)
    return (out,)


def decode_fetch_request(frame: memoryview) -> tuple[int, FetchRequest]:
    """Read a fetch. Raises :class:`BadFrame`, also for too many partitions."""
    correlation = correlation_of(frame)
    try:
        fields = _FETCH.unpack_from(frame, _HEAD.size)
        (
            replica_id,
            replica_epoch,
            wait_ms,
            bytes_min,
            bytes_max,
            committed,
            filters,
            rack_size,
            forgotten_count,
            count,
        ) = fields
        if count > FETCH_PARTITIONS_MAX:
            raise BadFrame(f"expected at most {FETCH_PARTITIONS_MAX} partitions in a fetch, found {count}")
        if forgotten_count > FORGOTTEN_MAX:
            raise BadFrame(f"expected at most {FORGOTTEN_MAX} forgotten partitions, found {forgotten_count}")
        position = _HEAD.size + _FETCH.size
        rack = str(frame[position : position + rack_size], "utf-8")
        position += rack_size
        partitions = []
        for _ in range(count):
            partitions.append(FetchPartition(*_FETCH_ITEM.unpack_from(frame, position)))
            position += _FETCH_ITEM.size
        forgotten: list[tuple[TopicId, int]] = []
        for _ in range(forgotten_count):
            topic_id, partition = _FORGOTTEN.unpack_from(frame, position)
            forgotten.append((topic_id, partition))
            position += _FORGOTTEN.size
    except (struct.error, ValueError) as error:
        raise BadFrame(f"fetch request cannot be read: {error}") from None
    _expect_end(position, frame, "fetch request")
    wanted = None
    if filters and replica_id == NO_NODE and partitions:
        wanted = HeaderMask(partitions[0].log_start_offset, replica_epoch & _MASK)
    request = FetchRequest(
        replica_id, replica_epoch, wait_ms, bytes_min, bytes_max, bool(committed), partitions, forgotten, rack, wanted
    )
    return correlation, request


def _signed(mask: int) -> int:
    return mask - (1 << 64) if mask >> 63 else mask


def encode_fetch_response(correlation: int, response: FetchResponse) -> Frame:
    head = bytearray(_HEAD.pack(VERSION, correlation))
    head += _FETCHED.pack(response.error, len(response.partitions))
    pieces: list[Buffer] = [head]
    for item in response.partitions:
        head += _FETCHED_ITEM.pack(
            item.topic_id,
            item.partition,
            item.error,
            item.high_watermark,
            item.last_stable_offset,
            item.log_start_offset,
            item.diverging_epoch,
            item.diverging_end_offset,
            item.current_leader,
            item.current_leader_epoch,
            item.preferred_read_replica,
            len(item.aborted),
            sum(map(len, item.records)),
        )
        for producer_id, first_offset in item.aborted:
            head += _ABORTED.pack(producer_id, first_offset)
        pieces.extend(item.records)
    return pieces


def decode_fetch_response(frame: memoryview) -> tuple[int, FetchResponse]:
    """Read a fetch's answer; each partition's records are one slice of ``frame``, or none. Raises :class:`BadFrame`."""
    correlation = correlation_of(frame)
    heads = []
    try:
        error, count = _FETCHED.unpack_from(frame, _HEAD.size)
        position = _HEAD.size + _FETCHED.size
        for _ in range(count):
            head = _FETCHED_ITEM.unpack_from(frame, position)
            position += _FETCHED_ITEM.size
            aborted = []
            for _ in range(head[11]):
                aborted.append(_ABORTED.unpack_from(frame, position))
                position += _ABORTED.size
            heads.append((head, aborted))
        partitions = []
        for head, aborted in heads:
            topic_id, partition, code, high, stable, start, epoch, end, leader, leader_epoch, preferred, _, size = head
            records = (frame[position : position + size],) if size else ()
            position += size
            partitions.append(
                FetchedPartition(
                    topic_id,
                    partition,
                    _error_code(code),
                    high,
                    stable,
                    start,
                    epoch,
                    end,
                    leader,
                    leader_epoch,
                    preferred,
                    aborted,
                    records,
                )
            )
        response = FetchResponse(_error_code(error), partitions)
    except struct.error as problem:
        raise BadFrame(f"fetch response cannot be read: {problem}") from None
    _expect_end(position, frame, "fetch response")
    return correlation, response


def _error_code(number: int) -> ErrorCode:
    """Return the code; a newer peer's code reads as UNKNOWN_SERVER_ERROR, as in Kafka's ``Errors.forCode``."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _read_text(frame: memoryview, position: int) -> tuple[str, int]:
    start = position + 2
    end = start + int.from_bytes(frame[position:start], "big")
    if max(start, end) > len(frame):
        raise BadFrame(f"expected a text up to byte {end}, found a frame of {len(frame)} bytes")
    try:
        return str(frame[start:end], "utf-8"), end
    except UnicodeDecodeError as error:
        raise BadFrame(f"text at {position} is not UTF-8: {error}") from None


def _expect_end(position: int, frame: memoryview, what: str) -> None:
    if position != len(frame):
        raise BadFrame(f"{what}: expected {position} bytes, found {len(frame)}")
