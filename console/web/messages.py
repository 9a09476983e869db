"""Requests of browsers, and answers to them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"


class Wrong(Exception):
    """The request is invalid or impossible; the text is for the person."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """A complete request. Header names are in lower case; if a header came twice, the last one counts."""

    method: str
    path: str
    """As received, still percent-encoded."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    peer: str
    """The remote address."""

    def cookie(self, name: str) -> str | None:
        for part in self.headers.get("cookie", "").split(";"):
            found, equals, value = part.strip().partition("=")
            if equals and found == name:
                return value
        return None


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    content_type: str
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Stream:
    """Server-sent events, until they end or the browser leaves. Each item is sent as it is."""

    events: AsyncIterator[bytes]
    headers: tuple[tuple[str, str], ...] = field(default=())


def json_answer(value: object, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    return Answer(status, json_bytes(value), JSON, (("Cache-Control", "no-store"), *headers))


def json_bytes(value: object) -> bytes:
    """Encode as ASCII, so that a lone surrogate in a name becomes an escape, not an error."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def event(value: object, kind: str = "") -> bytes:
    """Encode one event. JSON has no line breaks, so its data is one line."""
    named = f"event: {kind}\n".encode() if kind else b""
    return named + b"data: " + json_bytes(value) + b"\n\n"
