"""The headers by which a record of a delay topic says when it is due and where it goes. Pure."""

from __future__ import annotations

from tidelog.client.producer.batch import Headers
from tidelog.proto.records.message_headers import CANCEL, DELAY_MS, DELIVER_AT, DELIVER_TO


def due_headers(
    headers: Headers | None, deliver_at_ms: int | None, deliver_after_ms: int | None, deliver_to: str | None
) -> Headers:
    """Return the headers with those that ask for a delivery. Raises ``ValueError``."""
    if (deliver_at_ms is None) == (deliver_after_ms is None):
        raise ValueError(
            f"deliver_at_ms, deliver_after_ms: expected one of them, found {deliver_at_ms} and {deliver_after_ms}"
        )
    name, when = (DELAY_MS, deliver_after_ms) if deliver_at_ms is None else (DELIVER_AT, deliver_at_ms)
    if not isinstance(when, int) or when < 0:
        raise ValueError(f"deliver_at_ms, deliver_after_ms: expected a whole number from 0 on, found {when!r}")
    to = () if deliver_to is None else ((DELIVER_TO, deliver_to.encode()),)
    return (*(headers or ()), (name, b"%d" % when), *to)


def cancel_headers(offset: int) -> Headers:
    """Return the headers of a record that cancels the one at ``offset`` of its partition. Raises ``ValueError``."""
    if offset < 0:
        raise ValueError(f"expected the offset of a record, found {offset}: with acks=0 it is not known")
    return ((CANCEL, b"%d" % offset),)
