"""What a relay needs of a database, and what a row of an outbox is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from tidelog.client.errors import IllegalStateError


class OutboxRow(NamedTuple):
    """One message as its program wrote it. ``created_at`` in ms since the epoch."""

    seq: int
    id: str
    aggregatetype: str
    aggregateid: str
    type: str
    payload: bytes | None
    headers: Mapping[str, str]
    created_at: int


class DatabaseAwayError(Exception):
    """The connection to the database is lost; the next call opens another one, perhaps to a restored database."""


class Outbox(Protocol):
    """The rows of one database, in an order of ``seq`` in which nothing appears behind a row that was read."""

    def identity(self) -> str:
        """Return an id that distinguishes this database from a replacement. Raises ``IllegalStateError`` without an
        outbox."""

    def last(self) -> int:
        """Return the highest ``seq`` that the next one will be above; 0 before the first."""

    def deleted(self) -> int:
        """Return the highest ``seq`` up to which rows were deleted."""

    def last_up_to(self, seq: int) -> tuple[int, str] | None:
        """Return ``seq`` and id of the last row that still exists up to this one."""

    def after(self, seq: int, most: int) -> list[OutboxRow] | None:
        """Return the next rows in order; None while an open transaction may add a row before them. Raises
        ``IllegalStateError`` for headers that are not a JSON object of strings."""

    def delete(self, up_to: int) -> None:
        """Delete the rows that were sent."""

    def wait(self, seconds: float) -> None:
        """Wait until :meth:`after` may return more, at most this long."""

    def close(self) -> None:
        """Close the connection to the database; the next call opens another one."""

    def to_renumber(self, by: int) -> str:
        """Return the statements that give all rows numbers above ``by``, and new rows higher ones."""


def row_of(
    seq: int,
    message_id: str,
    aggregatetype: str,
    aggregateid: str,
    event_type: str,
    payload: str | bytes | None,
    headers: str | None,
    created_at: int,
) -> OutboxRow:
    """Return the row of these columns. Raises ``IllegalStateError``."""
    value = payload.encode() if isinstance(payload, str) else None if payload is None else bytes(payload)
    return OutboxRow(
        seq, message_id, aggregatetype, aggregateid, event_type, value, _headers(seq, headers), created_at
    )  # fmt: skip


def _headers(seq: int, text: str | None) -> dict[str, str]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise IllegalStateError(
            f"outbox row {seq}: expected headers to be a JSON object of strings, found {text!r}; fix the row, nothing "
            "after it is sent until then"
        )
    return found
