"""Renders records for a page: truncated parts, text where bytes are text, hex otherwise. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tidelog.console.schemas.view import KEY, VALUE, Shown, View
from tidelog.proto.records.batches import Batch
from tidelog.proto.records.control_batches import ControlKind, decode_control
from tidelog.proto.records.corrupt_batch import CorruptBatch
from tidelog.proto.records.decoder import Record

KEY_BYTES: Final = 256
VALUE_BYTES: Final = 1_024
HEADERS_SHOWN: Final = 16
WHOLE_BYTES: Final = 2 * 2**20
"""How much of one part of a record a page shows when asked for the whole record."""
COMMITTED, ABORTED, OPEN = "committed", "aborted", "open"
_PLAIN: Final = frozenset("\t\n\r")


@dataclass(frozen=True, slots=True)
class Cut:
    """How many bytes of each part to show."""

    key: int = KEY_BYTES
    value: int = VALUE_BYTES
    headers: int = HEADERS_SHOWN


PREVIEW: Final = Cut()
WHOLE: Final = Cut(WHOLE_BYTES, WHOLE_BYTES, 1_000)


def part(data: bytes | None, shown_bytes: int) -> dict[str, Any] | None:
    """Render bytes for a page: ``text`` if the shown part is printable UTF-8, else ``hex``. ``size`` counts all
    bytes."""
    if data is None:
        return None
    head = data[:shown_bytes]
    found: dict[str, Any] = {"size": len(data)}
    if len(head) < len(data):
        found["cut"] = True
    text = _text(head, whole=len(head) == len(data))
    found |= {"hex": head.hex()} if text is None else {"text": text}
    return found


def shown_part(data: bytes | None, shown: Shown | None, shown_bytes: int) -> dict[str, Any] | None:
    """A part as a person may see it: besides the bytes, ``decoded``, what a schema or a mask made of them."""
    if data is None or shown is None:
        return None
    found: dict[str, Any] = {"size": len(data)} if shown.data is None else part(shown.data, shown_bytes) or {}
    if shown.text is not None:
        found |= {"decoded": shown.text[:shown_bytes], "as": shown.kind, "schema": shown.schema}
        if len(shown.text) > shown_bytes:
            found["cut"] = True
    if shown.why:
        found["why"] = shown.why
    if shown.masked:
        found["masked"] = True
    return found


def _text(head: bytes, *, whole: bool) -> str | None:
    for dropped in range(1 if whole else min(4, len(head)) or 1):  # the cut may split a character
        try:
            text = head[: len(head) - dropped].decode()
        except UnicodeDecodeError:
            continue
        return text if all(one.isprintable() or one in _PLAIN for one in text) else None
    return None


def row(
    partition: int, record: Record, batch: Batch, outcome: str | None, view: View, cut: Cut = PREVIEW
) -> dict[str, Any]:
    """Render one record. ``outcome``: the outcome of its transaction, ``None`` if it has none."""
    key = None if record.key is None else view.shown(KEY, record.key)
    value = None if record.value is None else view.shown(VALUE, record.value)
    found: dict[str, Any] = {
        "partition": partition,
        "offset": record.offset,
        "time": record.timestamp,
        "key": shown_part(record.key, key, cut.key),
        "value": shown_part(record.value, value, cut.value),
        "headers": [
            [name, data if data is None else shown_part(data, view.header(name, data), cut.key)]
            for name, data in record.headers[: cut.headers]
        ],
        "headers_more": max(0, len(record.headers) - cut.headers),
        "compression": batch.compression.kafka_name,
    }
    if batch.is_log_append_time:
        found["append_time"] = True
    if outcome is not None:
        found["transaction"] = outcome
    if batch.has_producer_id:
        found["producer"] = {"id": int(batch.producer_id), "epoch": int(batch.producer_epoch)}
    return found


def control_row(partition: int, batch: Batch) -> dict[str, Any]:
    """Render a transaction marker, which consumers do not see."""
    try:
        marker = decode_control(batch)
        kind = marker.kind.name.lower() if marker.kind is not ControlKind.UNKNOWN else "other"
    except CorruptBatch as error:
        return unreadable_row(partition, batch, str(error))
    return {
        "partition": partition,
        "offset": batch.base_offset,
        "time": batch.max_timestamp,
        "control": kind,
        "producer": {"id": int(batch.producer_id), "epoch": int(batch.producer_epoch)},
    }


def unreadable_row(partition: int, batch: Batch, why: str) -> dict[str, Any]:
    """Render a batch that cannot be shown, with the reason."""
    return {
        "partition": partition,
        "offset": batch.base_offset,
        "time": batch.max_timestamp,
        "unreadable": why,
        "records": max(0, batch.record_count),
        "size": batch.size,
    }
