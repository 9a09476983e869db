"""The records of ``__transaction_state``, byte for byte as Kafka writes them.

Key: version 0 (int16), transactional id. Value: version 0, or 1, which is flexible (KIP-890); a null value is a
tombstone. Written: version 1. Read: both; unknown tagged fields are ignored.

Values that Kafka's record lacks are in tagged fields of version 1, which Kafka's reader skips in turn:

- 10000 (int8): flags; 1 = two-phase commit allowed, 2 = prepared, 4 = the identity behind the transaction
  belongs to another producer;
- 10001 (int16): the previous epoch, which identifies a repeated request; Kafka keeps it only in memory;
- 10002 (int32): the timeout of a prepared transaction, which Kafka's reader sees without one (the largest int32,
  KIP-939).

A prepared transaction is Ongoing there, with flag 2. Source: ``TransactionLogKey``, ``TransactionLogValue`` and
``TransactionLog`` in Kafka's ``transaction-coordinator`` and ``core`` modules. Kafka 4.1 reads tags 0 and 1 (the
producer ids before and after) but does not write them; here they are written.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from tidelog.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId, TopicPartition
from tidelog.proto.logs.coordinator_fields import BadCoordinatorRecord, FieldReader
from tidelog.proto.logs.coordinator_records import STRING_BYTES_MAX, UnknownKey
from tidelog.proto.records.varint import write_uvarint

NO_TIMEOUT_MS: Final = 2**31 - 1
"""The timeout value of a transaction without one (KIP-939)."""

_KEY_VERSION: Final = 0
_VERSION: Final = 1
_FLEXIBLE_FROM: Final = 1
_ONGOING: Final = 1
_STATUS_MAX: Final = 7

_PREVIOUS_PRODUCER_ID: Final = 0
_NEXT_PRODUCER_ID: Final = 1
_CLIENT_VERSION: Final = 2
_NEXT_PRODUCER_EPOCH: Final = 3
_FLAGS: Final = 10_000
_LAST_PRODUCER_EPOCH: Final = 10_001
_PREPARED_TIMEOUT: Final = 10_002

_TWO_PHASE: Final = 1
_PREPARED: Final = 2
_KEPT: Final = 4

_BYTE: Final = struct.Struct(">b")
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">hqhib")
_TIMES: Final = struct.Struct(">qq")


class TransactionLogKey(NamedTuple):
    """The key of a transactional id."""

    transactional_id: str


class TransactionLogValue(NamedTuple):
    """The state of a transactional id. ``status``: Kafka's byte for the state; times in ms since the epoch."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    timeout_ms: int
    status: int
    partitions: tuple[TopicPartition, ...]
    last_update_timestamp: int
    start_timestamp: int = -1
    previous_producer_id: ProducerId = NO_PRODUCER_ID
    next_producer_id: ProducerId = NO_PRODUCER_ID
    next_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    last_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    client_version: int = 0
    two_phase: bool = False
    prepared: bool = False
    kept: bool = False


# --- Writing ----------------------------------------------------------------------------------------


def encode_transaction_key(transactional_id: str) -> bytes:
    """Encode a key. Raises ``ValueError`` for an id longer than ``STRING_BYTES_MAX`` bytes."""
    raw = transactional_id.encode()
    if len(raw) > STRING_BYTES_MAX:
        raise ValueError(f"expected a transactional id of at most {STRING_BYTES_MAX} bytes, found {len(raw)}")
    return _SHORT.pack(_KEY_VERSION) + _SHORT.pack(len(raw)) + raw


def encode_transaction_value(value: TransactionLogValue) -> bytes:
    """Encode a value in version 1. Partitions by topic in order of arrival; null in the Empty state, as in Kafka."""
    timeout_ms = NO_TIMEOUT_MS if value.prepared else value.timeout_ms
    status = _ONGOING if value.prepared else value.status
    pieces = [_HEAD.pack(_VERSION, value.producer_id, value.producer_epoch, timeout_ms, status)]
    if status == 0:
        pieces.append(b"\x00")
    else:
        topics: dict[str, list[int]] = {}
        for topic, partition in value.partitions:
            topics.setdefault(topic, []).append(partition)
        pieces.append(_uvarint(len(topics) + 1))
        for topic, partitions in topics.items():
            raw = topic.encode()
            pieces += (_uvarint(len(raw) + 1), raw, _uvarint(len(partitions) + 1))
            pieces.append(struct.pack(f">{len(partitions)}i", *partitions))
            pieces.append(b"\x00")
    pieces.append(_TIMES.pack(value.last_update_timestamp, value.start_timestamp))
    tagged = _tagged(value)
    pieces.append(_uvarint(len(tagged)))
    for tag, raw in tagged:
        pieces += (_uvarint(tag), _uvarint(len(raw)), raw)
    return b"".join(pieces)


def _tagged(value: TransactionLogValue) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    if value.previous_producer_id != NO_PRODUCER_ID:
        found.append((_PREVIOUS_PRODUCER_ID, _LONG.pack(value.previous_producer_id)))
    if value.next_producer_id != NO_PRODUCER_ID:
        found.append((_NEXT_PRODUCER_ID, _LONG.pack(value.next_producer_id)))
    if value.client_version:
        found.append((_CLIENT_VERSION, _SHORT.pack(value.client_version)))
    if value.next_producer_epoch != NO_PRODUCER_EPOCH:
        found.append((_NEXT_PRODUCER_EPOCH, _SHORT.pack(value.next_producer_epoch)))
    flags = _TWO_PHASE * value.two_phase | _PREPARED * value.prepared | _KEPT * value.kept
    if flags:
        found.append((_FLAGS, _BYTE.pack(flags)))
    if value.last_producer_epoch != NO_PRODUCER_EPOCH:
        found.append((_LAST_PRODUCER_EPOCH, _SHORT.pack(value.last_producer_epoch)))
    if value.prepared:
        found.append((_PREPARED_TIMEOUT, _INT.pack(value.timeout_ms)))
    return found


def _uvarint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    found = bytearray()
    write_uvarint(found, number)
    return bytes(found)


# --- Reading ----------------------------------------------------------------------------------------


def decode_transaction_key(raw: bytes) -> TransactionLogKey | UnknownKey:
    """Read a key. Raises :class:`BadCoordinatorRecord`; a version from 1 on is an :class:`UnknownKey`."""
    reader = FieldReader(raw, "key")
    version = reader.int16()
    if version == _KEY_VERSION:
        return TransactionLogKey(reader.string())
    if version < 0:
        raise BadCoordinatorRecord(f"expected a key version of 0 or more, found {version}")
    return UnknownKey(version)


def decode_transaction_value(raw: bytes) -> TransactionLogValue:
    """Read a value. Raises :class:`BadCoordinatorRecord`."""
    reader = FieldReader(raw, "transaction value")
    reader.value_version(_VERSION, _FLEXIBLE_FROM)
    producer_id = ProducerId(reader.int64())
    producer_epoch = ProducerEpoch(reader.int16())
    timeout_ms = reader.int32()
    status = reader.int8()
    if not 0 <= status <= _STATUS_MAX:
        raise BadCoordinatorRecord(f"expected a status of 0 to {_STATUS_MAX} in the transaction value, found {status}")
    partitions: list[TopicPartition] = []
    for _ in range(reader.nullable_count() or 0):
        topic = reader.string()
        partitions += [TopicPartition(topic, reader.int32()) for _ in range(reader.count())]
        reader.tagged_fields()
    last_update, start = reader.int64(), reader.int64()
    tagged = reader.tagged_fields()
    flags = _field(tagged, _FLAGS, _BYTE, 0)
    prepared = bool(flags & _PREPARED) and status == _ONGOING
    return TransactionLogValue(
        producer_id,
        producer_epoch,
        _field(tagged, _PREPARED_TIMEOUT, _INT, timeout_ms) if prepared else timeout_ms,
        status,
        tuple(partitions),
        last_update,
        start,
        ProducerId(_field(tagged, _PREVIOUS_PRODUCER_ID, _LONG, NO_PRODUCER_ID)),
        ProducerId(_field(tagged, _NEXT_PRODUCER_ID, _LONG, NO_PRODUCER_ID)),
        ProducerEpoch(_field(tagged, _NEXT_PRODUCER_EPOCH, _SHORT, NO_PRODUCER_EPOCH)),
        ProducerEpoch(_field(tagged, _LAST_PRODUCER_EPOCH, _SHORT, NO_PRODUCER_EPOCH)),
        _field(tagged, _CLIENT_VERSION, _SHORT, 0),
        bool(flags & _TWO_PHASE),
        prepared,
        bool(flags & _KEPT),
    )


def _field(tagged: dict[int, bytes], tag: int, form: struct.Struct, default: int) -> int:
    raw = tagged.get(tag)
    if raw is None:
        return default
    if len(raw) != form.size:
        raise BadCoordinatorRecord(f"expected {form.size} bytes in field {tag}, found {len(raw)}")
    found: int = form.unpack(raw)[0]
    return found
