"""The type of a route, and a call: one request of one person."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from tidelog.console.desk import Desk
from tidelog.console.web.messages import Request, Wrong
from tidelog.console.web.sessions import Session

NAME_CHARS_MAX: Final = 4_096


@dataclass(frozen=True, slots=True)
class Call:
    """One request of one person."""

    session: Session[Desk]
    request: Request
    names: Mapping[str, str]
    """The variable parts of the path."""

    @property
    def desk(self) -> Desk:
        return self.session.desk

    def text(self, name: str, default: str = "") -> str:
        return self.request.query.get(name, default)

    def number(self, name: str, default: int, least: int = 0, most: int = 2**63 - 1) -> int:
        """Return an integer from the query. Raises :class:`Wrong`."""
        return number(name, self.request.query.get(name) or default, least, most)

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        found = self.request.query.get(name) or default
        if found not in (known := tuple(choices)):
            raise Wrong(f"{name}: expected one of {', '.join(known)}, found {found[:80]!r}")
        return found

    def body(self) -> dict[str, Any]:
        return body_of(self.request)


def body_of(request: Request) -> dict[str, Any]:
    """Return the body, a JSON object. Raises :class:`Wrong`."""
    try:
        found = json.loads(request.body or b"{}")
    except (ValueError, RecursionError):
        raise Wrong("expected a JSON object as the body") from None
    if not isinstance(found, dict):
        raise Wrong("expected a JSON object as the body")
    return found


def number(name: str, given: object, least: int = 0, most: int = 2**63 - 1) -> int:
    """Parse an integer from a request. Raises :class:`Wrong`."""
    text = str(given)
    digits = text.removeprefix("-")
    if isinstance(given, bool) or not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
        raise Wrong(f"{name}: expected a whole number, found {text[:80]!r}")
    if not least <= int(text) <= most:
        raise Wrong(f"{name}: expected {least:,} to {most:,}, found {int(text):,}")
    return int(text)


def text_of(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """Return a string from a body. Raises :class:`Wrong`."""
    found = body.get(name, default)
    if not isinstance(found, str):
        raise Wrong(f"{name}: expected a string, found {'nothing' if found is None else type(found).__name__}")
    return found


Act = Callable[[Call], Any]
Tell = Callable[[Call], AsyncIterator[bytes]]


@dataclass(frozen=True, slots=True)
class Route:
    """``act`` runs in a thread and may wait for the cluster; it returns the JSON of the answer. ``tell`` instead yields
    the events of a stream, on the loop. ``live_s``: how often a stream of the address refreshes; 0 if the address has
    no stream. ``typed``: the part of the path that the person must type again, as ``confirm`` in the body, because the
    change cannot be undone."""

    method: str
    path: str
    act: Act | None = None
    tell: Tell | None = None
    live_s: float = 0.0
    typed: str | None = None
    pattern: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pattern", tuple(self.path.strip("/").split("/")))

    def match(self, parts: tuple[str, ...]) -> dict[str, str] | None:
        if len(parts) != len(self.pattern):
            return None
        names = {}
        for wanted, found in zip(self.pattern, parts, strict=True):
            if wanted.startswith("{"):
                names[wanted[1:-1]] = found
            elif wanted != found:
                return None
        return names


def parts_of(path: str) -> tuple[str, ...]:
    """Split a path and decode each part by itself, so that a name may contain a slash."""
    return tuple(unquote(part)[:NAME_CHARS_MAX] for part in path.strip("/").split("/"))
