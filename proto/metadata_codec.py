"""One entry of the metadata log as bytes: a protobuf ``MetadataBatch``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, get_args

from google.protobuf.message import DecodeError

from tidelog.proto.convert import BadMessage, fill_message, read_message
from tidelog.proto.metadata import MetadataRecord
from tidelog.proto.v1 import metadata_pb2

_FIELD_OF: Final[dict[type[Any], str]] = {
    cls: re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower() for cls in get_args(MetadataRecord)
}
_CLASS_OF: Final[dict[str, type[Any]]] = {field: cls for cls, field in _FIELD_OF.items()}


def encode_batch(records: Iterable[MetadataRecord]) -> bytes:
    """Encode the records of one entry. No records give ``b""``."""
    batch = metadata_pb2.MetadataBatch()
    for record in records:
        slot = getattr(batch.records.add(), _FIELD_OF[type(record)])
        slot.SetInParent()
        fill_message(slot, record)
    return batch.SerializeToString()


def decode_batch(data: bytes) -> tuple[MetadataRecord, ...]:
    """Decode one entry. Raises :class:`BadMessage` for other bytes and for a record of a later version."""
    batch = metadata_pb2.MetadataBatch()
    try:
        batch.ParseFromString(data)
    except DecodeError as error:
        raise BadMessage(f"expected a metadata entry, found {len(data)} bytes that are none: {error}") from None
    return tuple(map(_read_record, batch.records))


def _read_record(message: metadata_pb2.MetadataRecord) -> MetadataRecord:
    field = message.WhichOneof("record")
    if field is None:
        raise BadMessage("a metadata record of a kind that this version does not know: upgrade this node")
    record: MetadataRecord = read_message(_CLASS_OF[field], getattr(message, field))
    return record
