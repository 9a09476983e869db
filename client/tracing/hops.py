"""One hop of a message as the trace store keeps it: a record of JSON, with the trace id as its key. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from tidelog.proto.records.message_headers import DLQ_OWN, REDRIVES, RETRY_OWN

VERSION: Final = 1
OK: Final = "ok"
_NOTES: Final = ((f"{RETRY_OWN}attempt", "retry"), (REDRIVES, "redrive"), (f"{DLQ_OWN}reason", "dead letter,"))


class Hop(NamedTuple):
    """``kind``: the record was sent, or a handler worked on it. ``outcome``: ``ok``, or the error's class. ``key``: a
    hash. ``began_us``: µs since the epoch. ``note``: what it is besides, such as a dead letter."""

    trace: str
    span: str
    parent: str | None
    kind: Literal["send", "process"]
    program: str
    group: str | None
    topic: str
    partition: int
    offset: int
    key: str | None
    began_us: int
    took_us: int
    outcome: str
    note: str

    def packed(self) -> bytes:
        return json.dumps({"v": VERSION, **self._asdict()}, separators=(",", ":")).encode()

    def json(self) -> dict[str, Any]:
        return self._asdict()


def unpacked(value: bytes | None) -> Hop | None:
    """Return a stored hop; ``None`` for a record that is none, or of a later version."""
    try:
        found = json.loads(value or b"")
        return Hop(**{name: found[name] for name in Hop._fields}) if found["v"] == VERSION else None
    except (ValueError, KeyError, TypeError):
        return None


def key_hash(key: bytes | None) -> str | None:
    return None if key is None else hashlib.blake2b(key, digest_size=8).hexdigest()


def note_of(headers: Sequence[tuple[str, bytes | None]]) -> str:
    """Return what the headers say of the record: the retry, the redrive or the dead letter that it is."""
    told = dict(headers)
    found = [f"{text} {(value or b'').decode(errors='replace')}" for name, text in _NOTES if (value := told.get(name))]
    return found[-1] if found else ""
