"""One entry of the metadata log as bytes: a protobuf ``MetadataBatch``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from google.protobuf.message import DecodeError

from tidelog.proto.calls.convert import BadMessage, OneOf
from tidelog.proto.logs.metadata_records import MetadataRecord
from tidelog.proto.v1 import metadata_pb2

RECORD: Final = OneOf("record", MetadataRecord)


def encode_batch(records: Iterable[MetadataRecord]) -> bytes:
    """Encode the records of one entry; ``b""`` without records."""
    batch = metadata_pb2.MetadataBatch()
    for record in records:
        RECORD.fill(batch.records.add(), record)
    return batch.SerializeToString()


def decode_batch(data: bytes) -> tuple[MetadataRecord, ...]:
    """Decode one entry. Raises :class:`BadMessage` for other bytes and for records of later versions."""
    batch = metadata_pb2.MetadataBatch()
    try:
        batch.ParseFromString(data)
    except DecodeError as error:
        raise BadMessage(f"expected a metadata entry, found {len(data)} bytes that are none: {error}") from None
    return tuple(map(_read_record, batch.records))


def _read_record(message: metadata_pb2.MetadataRecord) -> MetadataRecord:
    record: MetadataRecord | None = RECORD.read(message)
    if record is None:
        raise BadMessage("a metadata record of a kind that this version does not know: upgrade this node")
    return record
