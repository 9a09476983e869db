"""Records as text: UTF-8 if the bytes are valid, otherwise base64, marked as such."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol


class RecordLike(Protocol):
    """The record interface that the decoder and the SDK share."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


def text_or_base64(data: bytes | None) -> str | dict[str, str] | None:
    """Return a string for UTF-8, ``{"base64": …}`` for other bytes, ``None`` for null."""
    if data is None:
        return None
    try:
        return bytes(data).decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def record_json(record: RecordLike) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": text_or_base64(record.key),
        "value": text_or_base64(record.value),
        "headers": [[name, text_or_base64(value)] for name, value in record.headers],
    }


def time_text(timestamp_ms: int) -> str:
    """Format a record's time in UTC with milliseconds; outside the calendar's range, return the number."""
    if timestamp_ms < 0:
        return "no time"
    try:
        return (
            datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except (OverflowError, ValueError):
        return f"{timestamp_ms} ms"
