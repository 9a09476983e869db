"""The copy of an unprocessable record, for a dead letter topic.

Key, value and headers are kept, in order. Added headers have Kafka's names where Kafka has them (KIP-1191), so that
other tools find the origin.
"""

from __future__ import annotations

from typing import Any, Final

from tidelog.client.record import ConsumerRecord
from tidelog.client.workers.board import Work
from tidelog.client.workers.handling import Failure
from tidelog.proto.records.walk import RecordHeaders

MESSAGE_MAX: Final = 512
_PREFIX: Final = "__dlq.errors."
_OURS: Final = "tidelog-dlq-"
REDRIVES: Final = "tidelog-redrives"
"""The header that counts how often a record was moved back to its topic."""


def dead_letter(work: Work, failure: Failure, *, group_id: str, now_ms: int) -> dict[str, Any]:
    """Return arguments for ``Producer.send``, without the topic."""
    record = work.record
    headers: RecordHeaders = tuple(
        (name, value) for name, value in record.headers if not name.startswith((_PREFIX, _OURS))
    )
    added = {
        f"{_PREFIX}topic": record.topic,
        f"{_PREFIX}partition": record.partition,
        f"{_PREFIX}offset": record.offset,
        f"{_PREFIX}group": group_id,
        f"{_PREFIX}delivery.count": work.failures + 1,
        f"{_PREFIX}message": failure.message[:MESSAGE_MAX],
        f"{_OURS}reason": failure.reason,
        f"{_OURS}exception": failure.exception,
        f"{_OURS}stack": failure.stack,
        f"{_OURS}timestamp": record.timestamp,
        f"{_OURS}first-failed-at": work.first_failed_ms or now_ms,
        f"{_OURS}last-failed-at": now_ms,
    }
    return {
        "value": record.value,
        "key": record.key,
        "headers": [*headers, *((name, str(value).encode()) for name, value in added.items())],
    }


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
        return self._text(f"{_PREFIX}topic")

    @property
    def origin_partition(self) -> int | None:
        return self._number(f"{_PREFIX}partition")

    @property
    def origin_offset(self) -> int | None:
        return self._number(f"{_PREFIX}offset")

    @property
    def group(self) -> str | None:
        return self._text(f"{_PREFIX}group")

    @property
    def deliveries(self) -> int | None:
        return self._number(f"{_PREFIX}delivery.count")

    @property
    def message(self) -> str | None:
        return self._text(f"{_PREFIX}message")

    @property
    def reason(self) -> str | None:
        return self._text(f"{_OURS}reason")

    @property
    def exception(self) -> str | None:
        return self._text(f"{_OURS}exception")

    @property
    def stack(self) -> str | None:
        return self._text(f"{_OURS}stack")

    @property
    def last_failed_ms(self) -> int:
        """When the last try failed; the letter's own timestamp if another program wrote it."""
        return self._number(f"{_OURS}last-failed-at") or self.record.timestamp

    @property
    def redrives(self) -> int:
        """How often the record has already been moved back."""
        return self._number(REDRIVES) or 0

    def original_headers(self) -> list[tuple[str, bytes | None]]:
        """Return the record's headers from before it died, without the count of redrives."""
        return [
            (name, value)
            for name, value in self.record.headers
            if not name.startswith((_PREFIX, _OURS)) and name != REDRIVES
        ]
