"""The content of batches in a compacted partition, in the form that the judges of compaction need."""

from __future__ import annotations

from tidelog.chaos.checkers.compaction import KeyedRecord, Marker
from tidelog.chaos.checkers.keyed_history import mark_of
from tidelog.proto.records.batches import Batch
from tidelog.proto.records.control_batches import ControlKind, decode_control
from tidelog.proto.records.decoder import decode_records


def content_of(batch: Batch) -> tuple[list[KeyedRecord], list[Marker]]:
    """Return the records of a batch, or the marker if it is one."""
    if not batch.is_control:
        epoch, producer = batch.leader_epoch, batch.producer_id if batch.is_transactional else -1
        return [
            KeyedRecord(r.offset, r.timestamp, epoch, r.key, r.value, mark_of(r.headers), producer)
            for r in decode_records(batch)
        ], []
    if not batch.record_count:
        return [], []
    return [], [Marker(batch.base_offset, batch.producer_id, decode_control(batch).kind is ControlKind.COMMIT)]
