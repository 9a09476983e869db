"""Converts the records that a coordinator's core wants to write to a record batch."""

from __future__ import annotations

from tidelog.groups.state.effects import Append, AppendMarker
from tidelog.proto.records.control_batches import ControlKind, encode_control_batch
from tidelog.proto.records.encoder import BatchBuilder


def batch_of(effect: Append | AppendMarker) -> bytearray:
    """Return one batch with base offset 0. A transaction's offsets carry its producer but, as in Kafka, no sequence."""
    if isinstance(effect, AppendMarker):
        return encode_control_batch(
            ControlKind.COMMIT if effect.committed else ControlKind.ABORT,
            timestamp=effect.timestamp_ms,
            producer_id=effect.writer.producer_id,
            producer_epoch=effect.writer.producer_epoch,
            coordinator_epoch=effect.coordinator_epoch,
        )
    builder = BatchBuilder()
    for key, value in effect.records:
        builder.append(effect.timestamp_ms, key, value)
    if effect.writer is None:
        return builder.build()
    producer_id, producer_epoch = effect.writer
    return builder.build(producer_id=producer_id, producer_epoch=producer_epoch, is_transactional=True)
