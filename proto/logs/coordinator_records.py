"""The records of ``__consumer_offsets``, byte for byte as Kafka writes them.

A key begins with its version (int16), which is also the kind of record: 0 and 1 a committed offset, 2 a classic group;
a value begins with its own version; a null value is a tombstone. Versions from 4 on are *flexible*: compact lengths
(KIP-482), and tagged fields that a reader skips (KIP-915).

Read: offset values v0 to v4, group values v0 to v4. Written: v3 of both (Kafka 4.0; 4.1 writes offsets as v4, for a
topic id that is not needed here). Trailing bytes are ignored, as in Kafka's reader. Source: the message definitions in
Kafka's ``group-coordinator`` module, and ``CoordinatorRecordSerde``.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias

from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import NO_LEADER_EPOCH, LeaderEpoch, Offset
from tidelog.proto.logs.coordinator_fields import BadCoordinatorRecord as BadCoordinatorRecord
from tidelog.proto.logs.coordinator_fields import FieldReader

NO_TIMESTAMP: Final = -1
STRING_BYTES_MAX: Final = 32_767
"""Most bytes of UTF-8 in a string of a key, or of a version 3 value."""

_OFFSET_KEY_VERSION: Final = 1
_GROUP_KEY_VERSION: Final = 2
_VALUE_VERSION: Final = 3
_VERSION_MAX: Final = 4
_FLEXIBLE_FROM: Final = 4

_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_OFFSET_HEAD: Final = struct.Struct(">hqi")
_NULL: Final = _SHORT.pack(-1)
_OFFSET_KEY_START: Final = _SHORT.pack(_OFFSET_KEY_VERSION)
_VALUE_START: Final = _SHORT.pack(_VALUE_VERSION)


class OffsetCommitKey(NamedTuple):
    """The key of a committed offset."""

    group: str
    topic: str
    partition: int


class GroupMetadataKey(NamedTuple):
    """The key of a classic group."""

    group: str


class UnknownKey(NamedTuple):
    """A record of a kind that is unknown here: skipped, as in Kafka's loader."""

    version: int


class OffsetCommitValue(NamedTuple):
    """``commit_timestamp`` and ``expire_timestamp`` in ms since the epoch; the latter only in version 1."""

    offset: Offset
    leader_epoch: LeaderEpoch
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """A member. ``rebalance_timeout`` in ms, -1 in version 0, which lacks it."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: int
    session_timeout: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadataValue:
    """A group as of its last rebalance. ``protocol`` and ``leader`` are None in an empty group;
    ``current_state_timestamp`` in ms since the epoch, -1 unknown."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp: int
    members: tuple[MemberMetadata, ...]


CoordinatorKey: TypeAlias = OffsetCommitKey | GroupMetadataKey | UnknownKey


class CoordinatorRecord(NamedTuple):
    """Key and value as bytes; a value of None is a tombstone."""

    key: bytes
    value: bytes | None


# --- Writing ----------------------------------------------------------------------------------------


def encode_offset_key(group: str, topic: str, partition: int) -> bytes:
    """Raises ``ValueError`` for a string beyond ``STRING_BYTES_MAX`` bytes."""
    return b"".join((_SHORT.pack(_OFFSET_KEY_VERSION), _string(group), _string(topic), _INT.pack(partition)))


def encode_group_key(group: str) -> bytes:
    """Raises ``ValueError`` for a string beyond ``STRING_BYTES_MAX`` bytes."""
    return _SHORT.pack(_GROUP_KEY_VERSION) + _string(group)


def encode_offset_value(value: OffsetCommitValue) -> bytes:
    """Version 3, which has no expire timestamp. Raises ``ValueError`` for metadata beyond ``STRING_BYTES_MAX``."""
    return b"".join(
        (
            _OFFSET_HEAD.pack(_VALUE_VERSION, value.offset, value.leader_epoch),
            _string(value.metadata),
            _LONG.pack(value.commit_timestamp),
        )
    )


def encode_group_value(value: GroupMetadataValue) -> bytes:
    """Version 3. Raises ``ValueError`` for a string beyond ``STRING_BYTES_MAX`` bytes."""
    pieces = [
        _SHORT.pack(_VALUE_VERSION),
        _string(value.protocol_type),
        _INT.pack(value.generation),
        _nullable(value.protocol),
        _nullable(value.leader),
        _LONG.pack(value.current_state_timestamp),
        _INT.pack(len(value.members)),
    ]
    for member in value.members:
        pieces += (
            _string(member.member_id),
            _nullable(member.group_instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _INT.pack(member.rebalance_timeout),
            _INT.pack(member.session_timeout),
            _INT.pack(len(member.subscription)),
            member.subscription,
            _INT.pack(len(member.assignment)),
            member.assignment,
        )
    return b"".join(pieces)


def _string(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > STRING_BYTES_MAX:
        raise ValueError(f"expected a string of at most {STRING_BYTES_MAX} bytes, found {len(raw)}")
    return _SHORT.pack(len(raw)) + raw


def _nullable(text: str | None) -> bytes:
    return _NULL if text is None else _string(text)


# --- Reading ----------------------------------------------------------------------------------------


def decode_key(raw: bytes) -> CoordinatorKey:
    """Read a key. Raises :class:`BadCoordinatorRecord`; a version from 3 on is an :class:`UnknownKey`."""
    found = _offset_key(raw)
    if found is not None:
        return found
    reader = FieldReader(raw, "key")
    version = reader.int16()
    if version == 0 or version == _OFFSET_KEY_VERSION:
        return OffsetCommitKey(reader.string(), reader.string(), reader.int32())
    if version == _GROUP_KEY_VERSION:
        return GroupMetadataKey(reader.string())
    if version < 0:
        raise BadCoordinatorRecord(f"expected a key version of 0 or more, found {version}")
    return UnknownKey(version)


def decode_offset_value(raw: bytes) -> OffsetCommitValue:
    """Raises :class:`BadCoordinatorRecord`."""
    found = _offset_value(raw)
    if found is not None:
        return found
    reader = FieldReader(raw, "offset value")
    version = reader.value_version(_VERSION_MAX, _FLEXIBLE_FROM)
    offset = Offset(reader.int64())
    leader_epoch = LeaderEpoch(reader.int32()) if version >= 3 else NO_LEADER_EPOCH
    metadata = reader.string()
    commit_timestamp = reader.int64()
    expire_timestamp = reader.int64() if version == 1 else NO_TIMESTAMP
    reader.tagged_fields()
    return OffsetCommitValue(offset, leader_epoch, metadata, commit_timestamp, expire_timestamp)


def decode_group_value(raw: bytes) -> GroupMetadataValue:
    """Raises :class:`BadCoordinatorRecord`."""
    reader = FieldReader(raw, "group value")
    version = reader.value_version(_VERSION_MAX, _FLEXIBLE_FROM)
    protocol_type = reader.string()
    generation = reader.int32()
    protocol = reader.nullable_string()
    leader = reader.nullable_string()
    since = reader.int64() if version >= 2 else NO_TIMESTAMP
    members = tuple(_read_member(reader, version) for _ in range(reader.count()))
    reader.tagged_fields()
    return GroupMetadataValue(protocol_type, generation, protocol, leader, since, members)


def _offset_key(raw: bytes) -> OffsetCommitKey | None:
    """Read the common case in one step, since loading reads a million of them; None if the careful way is needed."""
    if raw[:2] != _OFFSET_KEY_START:
        return None
    try:
        group_end = 4 + _SHORT.unpack_from(raw, 2)[0]
        topic_at = group_end + 2
        topic_end = topic_at + _SHORT.unpack_from(raw, group_end)[0]
        if not 4 <= group_end < topic_at <= topic_end:
            return None
        partition = _INT.unpack_from(raw, topic_end)[0]
        return OffsetCommitKey(raw[4:group_end].decode(), raw[topic_at:topic_end].decode(), partition)
    except (struct.error, UnicodeDecodeError):
        return None


def _offset_value(raw: bytes) -> OffsetCommitValue | None:
    """Do the same for a version 3 value."""
    if raw[:2] != _VALUE_START:
        return None
    try:
        _, offset, leader_epoch = _OFFSET_HEAD.unpack_from(raw)
        at = _OFFSET_HEAD.size + 2
        end = at + _SHORT.unpack_from(raw, _OFFSET_HEAD.size)[0]
        if end < at:
            return None
        return OffsetCommitValue(offset, leader_epoch, raw[at:end].decode(), _LONG.unpack_from(raw, end)[0])
    except (struct.error, UnicodeDecodeError):
        return None


def _read_member(reader: FieldReader, version: int) -> MemberMetadata:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id = reader.string()
    client_host = reader.string()
    rebalance_timeout = reader.int32() if version >= 1 else -1
    session_timeout = reader.int32()
    subscription = reader.blob()
    assignment = reader.blob()
    reader.tagged_fields()
    return MemberMetadata(
        member_id, instance_id, client_id, client_host, rebalance_timeout, session_timeout, subscription, assignment
    )
