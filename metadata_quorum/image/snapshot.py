"""The metadata image as records and as bytes.

Layout of the bytes (big endian): magic ``TLMS``, u16 version, u64 offset, u64 epoch, then per chunk u32
length and that many bytes of one encoded record batch, then u32 0 and u32 CRC-32C of all before it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

from tidelog.metadata_quorum.image.change import apply_records
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.features import METADATA_VERSION
from tidelog.model.hashes.crc32c import crc32c
from tidelog.model.ids import NO_NODE, ControllerEpoch, Offset, TopicId
from tidelog.proto.calls.convert import BadMessage
from tidelog.proto.logs.metadata_codec import decode_batch, encode_batch
from tidelog.proto.logs.metadata_records import (
    ClientQuotaRecord,
    ConfigRecord,
    DecoySecretRecord,
    FeatureLevelRecord,
    MetadataRecord,
    ProducerIdsRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)

RECORDS_PER_CHUNK: Final = 500
_HEAD: Final = struct.Struct(">4sHQQ")
_LENGTH: Final = struct.Struct(">I")
_MAGIC: Final = b"TLMS"
_VERSION: Final = 1


class BadSnapshot(ValueError):
    """Bytes that are not a snapshot, or a damaged one; the text says what was expected and found."""


def image_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    """Yield the records that build ``image`` from an empty one, in a fixed order."""
    for feature in sorted(image.features):
        used = image.level_used if feature == METADATA_VERSION else 0
        yield FeatureLevelRecord(feature, image.features[feature], used)
    if image.next_producer_id:
        yield ProducerIdsRecord(NO_NODE, image.broker_epoch_highest, image.next_producer_id)
    if image.broker_epoch_highest:
        # This preserves the counter if the registration that reached it is gone.
        yield UnregisterBrokerRecord(NO_NODE, image.broker_epoch_highest)
    for node_id in sorted(image.brokers):
        yield image.brokers[node_id].record
    for node_id in sorted(image.controllers):
        yield image.controllers[node_id]
    for name in sorted(image.topic_ids):
        topic = image.topics[image.topic_ids[name]]
        yield from topic.in_order()
        yield TopicRecord(name, topic.topic_id)
    for topic_id in sorted(image.unpublished):
        partitions = image.unpublished[TopicId(topic_id)]
        for number in sorted(partitions):
            yield partitions[number]
    for resource in sorted(image.configs, key=lambda found: (found.resource_type, found.name)):
        values = image.configs[resource]
        for name in sorted(values):
            yield ConfigRecord(resource.resource_type, resource.name, name, values[name])
    for acl_id in sorted(image.acls):
        yield image.acls[acl_id]
    for entity in sorted(image.quotas, key=repr):
        quotas = image.quotas[entity]
        for key in sorted(quotas):
            yield ClientQuotaRecord(entity, key, quotas[key])
    if image.decoy_secret:
        yield DecoySecretRecord(image.decoy_secret)
    for user in sorted(image.users):
        yield image.users[user]
    for token_id in sorted(image.delegation_tokens):
        yield image.delegation_tokens[token_id]


def image_from_records(records: Iterable[MetadataRecord], offset: Offset, epoch: ControllerEpoch) -> MetadataImage:
    """Return the image that these records build from an empty one."""
    return apply_records(MetadataImage(), records, offset, epoch)[0]


def snapshot_chunks(image: MetadataImage) -> Iterator[bytes]:
    """Yield the snapshot in pieces, so that a caller on an event loop can pause between them."""
    head = _HEAD.pack(_MAGIC, _VERSION, image.offset + 1, image.epoch)
    checksum = crc32c(head)
    yield head
    held: list[MetadataRecord] = []
    for record in image_records(image):
        held.append(record)
        if len(held) == RECORDS_PER_CHUNK:
            chunk = _chunk(held)
            checksum = crc32c(chunk, checksum)
            yield chunk
            held = []
    tail = (_chunk(held) if held else b"") + _LENGTH.pack(0)
    yield tail + _LENGTH.pack(crc32c(tail, checksum))


def encode_snapshot(image: MetadataImage) -> bytes:
    """Return ``image`` as bytes."""
    return b"".join(snapshot_chunks(image))


def decode_snapshot(data: bytes | memoryview) -> MetadataImage:
    """Return the image that :func:`encode_snapshot` wrote. Raises :class:`BadSnapshot`."""
    view = memoryview(data)
    if len(view) < _HEAD.size + 2 * _LENGTH.size:
        raise BadSnapshot(f"expected a metadata snapshot, found {len(view)} bytes, too few to be one")
    magic, version, offset_next, epoch = _HEAD.unpack_from(view)
    if magic != _MAGIC or version != _VERSION:
        raise BadSnapshot(f"expected a metadata snapshot of version {_VERSION}, found {magic!r} version {version}")
    (stored,) = _LENGTH.unpack_from(view, len(view) - _LENGTH.size)
    computed = crc32c(view[: -_LENGTH.size])
    if stored != computed:
        raise BadSnapshot(f"expected a metadata snapshot with CRC-32C {stored:#010x}, found {computed:#010x}")
    try:
        return image_from_records(_records(view), Offset(offset_next - 1), ControllerEpoch(epoch))
    except BadMessage as error:
        raise BadSnapshot(f"expected records, found {error}") from None


def _chunk(records: list[MetadataRecord]) -> bytes:
    encoded = encode_batch(records)
    return _LENGTH.pack(len(encoded)) + encoded


def _records(view: memoryview) -> Iterator[MetadataRecord]:
    at = _HEAD.size
    end = len(view) - _LENGTH.size
    while True:
        if at + _LENGTH.size > end:
            raise BadSnapshot("expected the end mark of a metadata snapshot, found none")
        (length,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size
        if length == 0:
            break
        if at + length > end:
            raise BadSnapshot(f"expected a chunk of {length} bytes at {at}, found {end - at}")
        yield from decode_batch(bytes(view[at : at + length]))
        at += length
    if at != end:
        raise BadSnapshot(f"expected the end of a metadata snapshot at {at}, found {end - at} more bytes")
