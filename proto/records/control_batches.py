"""Control batches: markers that end a transaction in a partition.

One record each: key = version i16, kind i16; value = version i16, coordinator epoch i32. Source: Kafka's
``ControlRecordType`` and ``EndTransactionMarker``.
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple

from tidelog.proto.records.batches import CONTROL, TRANSACTIONAL, Batch
from tidelog.proto.records.corrupt_batch import CorruptBatch
from tidelog.proto.records.decoder import decode_fields
from tidelog.proto.records.encoder import NO_SEQUENCE, BatchBuilder, finish_batch

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")


class ControlKind(enum.IntEnum):
    """A marker's kind. ``UNKNOWN`` is for other kinds (leader changes …), which are skipped."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1


class ControlMarker(NamedTuple):
    """``coordinator_epoch`` fences older transaction coordinators; -1 for an unknown kind."""

    kind: ControlKind
    coordinator_epoch: int


def encode_control_batch(
    kind: ControlKind, *, timestamp: int, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> bytearray:
    """Return the batch that commits or aborts the producer's open transaction in a partition."""
    builder = BatchBuilder()
    builder.append(timestamp, _KEY.pack(0, kind), _VALUE.pack(0, coordinator_epoch))
    out = builder.build()
    finish_batch(
        out,
        attributes=TRANSACTIONAL | CONTROL,
        count=1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
    )
    return out


def decode_control(batch: Batch) -> ControlMarker:
    """Read the marker of a control batch. Raises :class:`CorruptBatch`."""
    if not batch.is_control:
        raise CorruptBatch(f"expected a control batch, found {batch!r}")
    fields = decode_fields(batch)
    if len(fields) != 1:
        raise CorruptBatch(f"expected one record in a control batch, found {len(fields)}")
    _, _, key, value, _ = fields[0]
    if key is None or len(key) < _KEY.size:
        raise CorruptBatch(f"expected a control record's key of {_KEY.size} bytes, found {key!r}")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptBatch(f"expected a control record version of 0 or more, found {version}")
    if number not in (ControlKind.ABORT, ControlKind.COMMIT):
        return ControlMarker(ControlKind.UNKNOWN, -1)
    if value is None or len(value) < _VALUE.size:
        raise CorruptBatch(f"expected a marker's value of at least {_VALUE.size} bytes, found {value!r}")
    version, coordinator_epoch = _VALUE.unpack_from(value)
    if version < 0:
        raise CorruptBatch(f"expected a marker version of 0 or more, found {version}")
    return ControlMarker(ControlKind(number), coordinator_epoch)
