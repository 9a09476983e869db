"""The copy of a record that could not be processed, for a topic of its own.

Key, value and headers stay as they are, in order. What is added has Kafka's names where Kafka has them (KIP-1191), so
that other tools find the origin.
"""

from __future__ import annotations

from typing import Any, Final

from tidelog.client.workers.board import Work
from tidelog.client.workers.handling import Failure
from tidelog.proto.records.walk import RecordHeaders

MESSAGE_MAX: Final = 512
_PREFIX: Final = "__dlq.errors."


def dead_letter(work: Work, failure: Failure, *, group_id: str, now_ms: int) -> dict[str, Any]:
    """Arguments for ``Producer.send``, without the topic."""
    record = work.record
    headers: RecordHeaders = tuple(
        (name, value) for name, value in record.headers if not name.startswith((_PREFIX, "tidelog-dlq-"))
    )
    added = {
        f"{_PREFIX}topic": record.topic,
        f"{_PREFIX}partition": record.partition,
        f"{_PREFIX}offset": record.offset,
        f"{_PREFIX}group": group_id,
        f"{_PREFIX}delivery.count": work.failures + 1,
        f"{_PREFIX}message": failure.message[:MESSAGE_MAX],
        "tidelog-dlq-reason": failure.reason,
        "tidelog-dlq-exception": failure.exception,
        "tidelog-dlq-stack": failure.stack,
        "tidelog-dlq-timestamp": record.timestamp,
        "tidelog-dlq-first-failed-at": work.first_failed_ms or now_ms,
        "tidelog-dlq-last-failed-at": now_ms,
    }
    return {
        "value": record.value,
        "key": record.key,
        "headers": [*headers, *((name, str(value).encode()) for name, value in added.items())],
    }
