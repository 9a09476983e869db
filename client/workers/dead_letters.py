"""The copy of a record that could not be processed: for a topic of its own, or to come again later.

Key, value and headers stay as they are, in order. What is added to a dead letter has Kafka's names where Kafka has them
(KIP-1191), so that other tools find the origin.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tidelog.client.record import ConsumerRecord
from tidelog.client.workers.board import Work
from tidelog.client.workers.handling import Failure
from tidelog.proto.records.message_headers import (
    DELAY_DUE,
    DELAY_ID,
    DELAY_MS,
    DELAY_ORDERS,
    DELAY_TIMESTAMP,
    DELIVER_TO,
    DLQ_ERRORS,
    DLQ_OWN,
    REDRIVES,
    RETRY_OWN,
)
from tidelog.proto.records.walk import RecordHeaders

MESSAGE_MAX: Final = 512


class Past(NamedTuple):
    """What a record went through before: the first place where a handler had it, and how often one has raised."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    failures: int = 0
    first_failed_ms: int = 0


def past_of(record: ConsumerRecord) -> Past:
    """As the copy says that came again; the record's own place without."""
    told = {name.removeprefix(RETRY_OWN): value for name, value in record.headers if name.startswith(RETRY_OWN)}
    try:
        return Past(
            told["topic"].decode(),  # type: ignore[union-attr]
            *(int(told[name] or b"") for name in ("partition", "offset", "timestamp", "attempt", "first-failed-at")),
        )
    except (KeyError, ValueError, AttributeError):
        return Past(record.topic, record.partition, record.offset, record.timestamp)


_ADDED: Final = (DLQ_ERRORS, DLQ_OWN)
_ADDED_TO_RETRIES: Final = (*_ADDED, RETRY_OWN, DELAY_ID, DELAY_DUE, DELAY_TIMESTAMP)


def _own_headers(record: ConsumerRecord) -> RecordHeaders:
    """Those that the record had at first."""
    came_again = any(name.startswith(RETRY_OWN) for name, _ in record.headers)
    added = _ADDED_TO_RETRIES if came_again else _ADDED
    return tuple((name, value) for name, value in record.headers if not name.startswith(added))


def _copy(topic: str, record: ConsumerRecord, kept: RecordHeaders, added: dict[str, object]) -> dict[str, Any]:
    encoded = ((name, str(value).encode()) for name, value in added.items())
    return {"topic": topic, "value": record.value, "key": record.key, "headers": [*kept, *encoded]}


def comes_again(work: Work, through: str, back: str, wait_ms: int, *, now_ms: int) -> dict[str, Any]:
    """Arguments for ``Producer.send``: a record of the delay topic ``through`` that arrives in ``back``. It does not
    keep what a delay topic would act on, such as a due time of its own, or a cancel."""
    past = past_of(work.record)
    added: dict[str, object] = {
        DELAY_MS: wait_ms,
        DELIVER_TO: back,
        f"{RETRY_OWN}attempt": past.failures + 1,
        f"{RETRY_OWN}first-failed-at": past.first_failed_ms or now_ms,
        f"{RETRY_OWN}topic": past.topic,
        f"{RETRY_OWN}partition": past.partition,
        f"{RETRY_OWN}offset": past.offset,
        f"{RETRY_OWN}timestamp": past.timestamp,
    }
    kept = tuple(pair for pair in _own_headers(work.record) if pair[0] not in DELAY_ORDERS)
    return _copy(through, work.record, kept, added)


def dead_letter(topic: str, work: Work, failure: Failure, *, group_id: str, now_ms: int) -> dict[str, Any]:
    """Arguments for ``Producer.send``."""
    past = past_of(work.record)
    added = {
        f"{DLQ_ERRORS}topic": past.topic,
        f"{DLQ_ERRORS}partition": past.partition,
        f"{DLQ_ERRORS}offset": past.offset,
        f"{DLQ_ERRORS}group": group_id,
        f"{DLQ_ERRORS}delivery.count": past.failures + work.failures + 1,
        f"{DLQ_ERRORS}message": failure.message[:MESSAGE_MAX],
        f"{DLQ_OWN}reason": failure.reason,
        f"{DLQ_OWN}exception": failure.exception,
        f"{DLQ_OWN}stack": failure.stack,
        f"{DLQ_OWN}timestamp": past.timestamp,
        f"{DLQ_OWN}first-failed-at": past.first_failed_ms or work.first_failed_ms or now_ms,
        f"{DLQ_OWN}last-failed-at": now_ms,
    }
    return _copy(topic, work.record, _own_headers(work.record), added)


class Letter:
    """A dead letter, parsed."""

    def __init__(self, record: ConsumerRecord) -> None:
        self.record: Final = record
        self._told = {name: (value or b"").decode(errors="replace") for name, value in record.headers}

    def _text(self, name: str) -> str | None:
        return self._told.get(name)

    def _number(self, name: str) -> int | None:
        text = self._told.get(name, "")
        return int(text) if text.isascii() and text.isdigit() else None

    @property
    def origin(self) -> str | None:
        """The topic that the record was read from."""
        return self._text(f"{DLQ_ERRORS}topic")

    @property
    def origin_partition(self) -> int | None:
        return self._number(f"{DLQ_ERRORS}partition")

    @property
    def origin_offset(self) -> int | None:
        return self._number(f"{DLQ_ERRORS}offset")

    @property
    def group(self) -> str | None:
        return self._text(f"{DLQ_ERRORS}group")

    @property
    def deliveries(self) -> int | None:
        return self._number(f"{DLQ_ERRORS}delivery.count")

    @property
    def message(self) -> str | None:
        return self._text(f"{DLQ_ERRORS}message")

    @property
    def reason(self) -> str | None:
        return self._text(f"{DLQ_OWN}reason")

    @property
    def exception(self) -> str | None:
        return self._text(f"{DLQ_OWN}exception")

    @property
    def stack(self) -> str | None:
        return self._text(f"{DLQ_OWN}stack")

    @property
    def last_failed_ms(self) -> int:
        """When the last try failed; the letter's own timestamp if another program wrote it."""
        return self._number(f"{DLQ_OWN}last-failed-at") or self.record.timestamp

    @property
    def redrives(self) -> int:
        """How often the record has already been moved back."""
        return self._number(REDRIVES) or 0

    def original_headers(self) -> list[tuple[str, bytes | None]]:
        """Return the record's headers from before it died, without the count of redrives."""
        return [
            (name, value)
            for name, value in self.record.headers
            if not name.startswith((DLQ_ERRORS, DLQ_OWN)) and name != REDRIVES
        ]
