"""Reads one record by its place."""

from __future__ import annotations

from typing import Final

from tidelog.client.consumer.blocking import Consumer
from tidelog.client.record import ConsumerRecord
from tidelog.model.ids import TopicPartition

WAIT_S: Final = 10.0


def record_at(consumer: Consumer, at: TopicPartition, offset: int) -> ConsumerRecord | None:
    """Return the record; ``None`` if there is none at this offset, or no longer. Assigns ``at`` alone to the
    consumer."""
    consumer.assign([at])
    if not consumer.beginning_offsets([at])[at] <= offset < consumer.end_offsets([at])[at]:
        return None
    consumer.seek(at, offset)
    records = consumer.poll(WAIT_S, max_records=1)
    return records[0] if records and records[0].offset == offset else None
