"""The records of consumer groups (KIP-848) in ``__consumer_offsets``, byte for byte as in Kafka 4.3.

A key begins with the kind of record (int16): 3 the group, 5 a member, 6 the target assignment's epoch, 7 a member's
target, 8 a member's current assignment, 16 a resolved regular expression. Kind 4, partition metadata, is from Kafka 4.0
and is ignored. Values have version 0, which is flexible. Source: the message definitions in Kafka's
``group-coordinator`` module, and ``GroupCoordinatorRecordHelpers``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import TopicId
from tidelog.proto.logs.coordinator_fields import BadCoordinatorRecord, FieldReader
from tidelog.proto.records.varint import write_uvarint

_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_VERSION_0: Final = _SHORT.pack(0)
_NO_TAGS: Final = b"\0"
STRING_BYTES_MAX: Final = 32_767
"""Most bytes of UTF-8 in a key's string."""

GROUP, PARTITION_METADATA, MEMBER, TARGET_EPOCH, TARGET, CURRENT, REGEX = 3, 4, 5, 6, 7, 8, 16
_NAMED: Final = {MEMBER, TARGET, CURRENT, REGEX}
"""The kinds with keys that name more than the group."""
KINDS: Final = _NAMED | {GROUP, TARGET_EPOCH}


class ConsumerKey(NamedTuple):
    """A record's key: its kind, its group, and the member or regular expression ("" for the group's own)."""

    kind: int
    group: str
    name: str = ""


class GroupEpoch(NamedTuple):
    """The value of kind 3. ``metadata_hash``: the hash of the subscribed topics' metadata; opaque, 0 for none."""

    epoch: int
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class ClassicMember:
    """What a member of the classic protocol has besides a subscription: its session timeout in ms, and its protocols
    with their metadata as it joined with them, in order of preference."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """The value of kind 5. Time in ms, -1 unknown. ``classic`` is None for a member of the consumer protocol."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str | None
    rebalance_timeout_ms: int
    assignor: str | None
    classic: ClassicMember | None = None


class TargetEpoch(NamedTuple):
    """The value of kind 6. Time in ms since the epoch, 0 unknown."""

    epoch: int
    timestamp_ms: int = 0


Partitions: TypeAlias = Mapping[TopicId, frozenset[int]]
"""A set of partitions by topic; every topic has at least one."""
Owned: TypeAlias = Mapping[TopicId, Mapping[int, int]]
"""Partitions with the member epochs of their assignment (KIP-1251), by topic; every topic has at least one."""


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """The value of kind 8: a member's partitions, and those it must give up. ``state`` is Kafka's number."""

    epoch: int
    previous_epoch: int
    state: int
    assigned: Owned
    pending: Owned


class ResolvedRegex(NamedTuple):
    """The value of kind 16: the topics that matched as of an offset of the metadata, and a time in ms."""

    topics: tuple[str, ...]
    version: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Target:
    """The value of kind 7."""

    partitions: Partitions


ConsumerValue: TypeAlias = GroupEpoch | MemberSubscription | TargetEpoch | Target | CurrentAssignment | ResolvedRegex


# --- Writing ----------------------------------------------------------------------------------------


def encode_consumer_key(key: ConsumerKey) -> bytes:
    """Encode a key. Raises ``ValueError`` for a string longer than ``STRING_BYTES_MAX`` bytes."""
    named = _plain(key.name) if key.kind in _NAMED else b""
    return _SHORT.pack(key.kind) + _plain(key.group) + named


def encode_consumer_value(value: ConsumerValue) -> bytes:
    """Encode a value in version 0."""
    out = bytearray(_VERSION_0)
    match value:
        case GroupEpoch(epoch, metadata_hash):
            out += _INT.pack(epoch)
            out += _tags({0: _LONG.pack(metadata_hash)} if metadata_hash else {})
        case MemberSubscription():
            for text in (value.instance_id, value.rack_id, value.client_id, value.client_host):
                out += _nullable(text)
            out += _strings(value.topics) + _nullable(value.regex)
            out += _INT.pack(value.rebalance_timeout_ms) + _nullable(value.assignor)
            out += _tags({} if value.classic is None else {0: _classic(value.classic)})
        case TargetEpoch(epoch, timestamp_ms):
            out += _INT.pack(epoch)
            out += _tags({0: _LONG.pack(timestamp_ms)} if timestamp_ms else {})
        case Target(partitions):
            out += _uvarint(len(partitions) + 1)
            for topic_id in sorted(partitions):
                out += topic_id + _ints(sorted(partitions[topic_id])) + _NO_TAGS
            out += _NO_TAGS
        case CurrentAssignment():
            out += _INT.pack(value.epoch) + _INT.pack(value.previous_epoch) + value.state.to_bytes(1, signed=True)
            out += _owned(value.assigned) + _owned(value.pending) + _NO_TAGS
        case ResolvedRegex(topics, version, timestamp_ms):
            out += _strings(topics) + _LONG.pack(version) + _LONG.pack(timestamp_ms) + _NO_TAGS
    return bytes(out)


def _classic(member: ClassicMember) -> bytes:
    """Write a nullable structure, which begins with 1 if it is there."""
    out = bytearray(b"\1" + _INT.pack(member.session_timeout_ms) + _uvarint(len(member.protocols) + 1))
    for name, metadata in member.protocols:
        out += _nullable(name) + _uvarint(len(metadata) + 1) + metadata + _NO_TAGS
    return bytes(out + _NO_TAGS)


def _plain(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > STRING_BYTES_MAX:
        raise ValueError(f"expected a string of at most {STRING_BYTES_MAX} bytes, found {len(raw)}")
    return _SHORT.pack(len(raw)) + raw


def _nullable(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    raw = text.encode()
    return _uvarint(len(raw) + 1) + raw


def _strings(texts: Iterable[str]) -> bytes:
    raws = [_nullable(text) for text in texts]
    return _uvarint(len(raws) + 1) + b"".join(raws)


def _ints(numbers: Sequence[int]) -> bytes:
    return _uvarint(len(numbers) + 1) + struct.pack(f">{len(numbers)}i", *numbers)


def _owned(owned: Owned) -> bytes:
    out = bytearray(_uvarint(len(owned) + 1))
    for topic_id in sorted(owned):
        epochs = owned[topic_id]
        partitions = sorted(epochs)
        out += topic_id + _ints(partitions)
        out += _tags({0: _ints([epochs[partition] for partition in partitions])})
    return bytes(out)


def _tags(fields: Mapping[int, bytes]) -> bytes:
    out = bytearray(_uvarint(len(fields)))
    for tag, raw in fields.items():
        out += _uvarint(tag) + _uvarint(len(raw)) + raw
    return bytes(out)


def _uvarint(number: int) -> bytes:
    found = bytearray()
    write_uvarint(found, number)
    return bytes(found)


# --- Reading ----------------------------------------------------------------------------------------


def decode_consumer_key(raw: bytes) -> ConsumerKey | None:
    """Read a key; None for a record of another kind. Raises :class:`BadCoordinatorRecord`."""
    reader = FieldReader(raw, "key")
    kind = reader.int16()
    if kind not in KINDS:
        return None
    return ConsumerKey(kind, reader.string(), reader.string() if kind in _NAMED else "")


def decode_consumer_value(kind: int, raw: bytes) -> ConsumerValue:
    """Read the value of a record of one of ``KINDS``. Raises :class:`BadCoordinatorRecord`."""
    reader = FieldReader(raw, "value of a consumer group")
    reader.value_version(0, 0)
    match kind:
        case 3:
            epoch = reader.int32()
            return GroupEpoch(epoch, _tagged_long(reader, 0))
        case 5:
            return MemberSubscription(
                reader.nullable_string(),
                reader.nullable_string(),
                reader.string(),
                reader.string(),
                tuple(reader.string() for _ in range(reader.nullable_count() or 0)),
                reader.nullable_string(),
                reader.int32(),
                reader.nullable_string(),
                _read_classic(reader.tagged_fields().get(0)),
            )
        case 6:
            epoch = reader.int32()
            return TargetEpoch(epoch, _tagged_long(reader, 0))
        case 7:
            return Target({topic_id: frozenset(epochs) for topic_id, epochs in _read_owned(reader, 0).items()})
        case 8:
            epoch, previous, state = reader.int32(), reader.int32(), reader.int8()
            return CurrentAssignment(epoch, previous, state, _read_owned(reader, epoch), _read_owned(reader, epoch))
        case 16:
            topics = tuple(reader.string() for _ in range(reader.count()))
            return ResolvedRegex(topics, reader.int64(), reader.int64())
        case _:
            raise AssertionError(kind)


def _read_classic(raw: bytes | None) -> ClassicMember | None:
    if raw is None:
        return None
    reader = FieldReader(raw, "metadata of a classic member")
    reader.be_flexible()
    if reader.int8() < 0:
        return None
    session_timeout_ms = reader.int32()
    protocols: list[tuple[str, bytes]] = []
    for _ in range(reader.count()):
        protocols.append((reader.string(), reader.blob()))
        reader.tagged_fields()
    return ClassicMember(session_timeout_ms, tuple(protocols))


def _tagged_long(reader: FieldReader, tag: int) -> int:
    raw = reader.tagged_fields().get(tag, bytes(8))
    if len(raw) != _LONG.size:
        raise BadCoordinatorRecord(f"expected 8 bytes in tagged field {tag}, found {len(raw)}")
    found: int = _LONG.unpack(raw)[0]
    return found


def _read_owned(reader: FieldReader, default_epoch: int) -> dict[TopicId, dict[int, int]]:
    """Read partitions with assignment epochs. Before 4.3 there were none: the member's epoch is used, as in Kafka."""
    found: dict[TopicId, dict[int, int]] = {}
    for _ in range(reader.count()):
        topic_id = TopicId(reader.raw(16))
        partitions = [reader.int32() for _ in range(reader.count())]
        raw = reader.tagged_fields().get(0)
        epochs = [default_epoch] * len(partitions) if raw is None else _read_epochs(raw, len(partitions))
        if partitions:
            found[topic_id] = dict(zip(partitions, epochs, strict=True))
    return found


def _read_epochs(raw: bytes, count: int) -> list[int]:
    reader = FieldReader(raw, "assignment epochs")
    reader.be_flexible()
    epochs = [reader.int32() for _ in range(reader.count())]
    if len(epochs) != count:
        raise BadCoordinatorRecord(f"expected {count} assignment epochs, found {len(epochs)}")
    return epochs
