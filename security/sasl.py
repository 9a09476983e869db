"""SASL: the steps of a login, and the mechanism PLAIN. Pure, without a wire: the listeners deliver the messages.

Source: RFC 4422, RFC 4616.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import field
from typing import Protocol, TypeAlias

from tidelog.model.classes.frozen import dataclass
from tidelog.model.settings.listener_security import PLAIN


class LoginRefused(Exception):
    """The client cannot log in, or does not trust the server. The text is for the client's user."""


def failure(mechanism: str) -> str:
    """Return the only message that a failed client gets, in Kafka's words and whatever the reason, so that it does not
    learn which users exist."""
    return f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"


@dataclass(frozen=True, slots=True)
class Challenge:
    """The login continues: the client answers ``token``."""

    token: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The client is this user; ``token`` is the last message to it.

    ``until_ms``: when the client's credential expires, in milliseconds since 1970, if it does.
    ``delegation_token``: the id of the delegation token that the client used, if any.
    """

    name: str
    token: bytes = field(default=b"", repr=False)
    until_ms: int | None = None
    delegation_token: str = ""


class Cause(enum.StrEnum):
    """Why a login or a handshake failed, for metrics."""

    CREDENTIALS = "credentials"
    TOKEN = "token"
    MESSAGE = "message"
    MECHANISM = "mechanism"
    PRINCIPAL = "principal"
    HANDSHAKE = "handshake"


@dataclass(frozen=True, slots=True)
class Rejected:
    """The login failed. ``reason`` is for the node's log and contains no secret."""

    reason: str
    cause: Cause = Cause.MESSAGE


@dataclass(frozen=True, slots=True)
class Costly:
    """``work`` takes too long for an event loop; a thread runs it and gets the outcome."""

    work: Callable[[], Accepted | Rejected | Challenge] = field(repr=False)


Step: TypeAlias = Challenge | Accepted | Rejected | Costly


class ServerMechanism(Protocol):
    """One login on the server side."""

    tried: str
    """The user that the client claims to be, proved or not; "" until it has said so."""

    def step(self, token: bytes) -> Step:
        """Process the client's next message. Must not be called after ``Accepted`` or ``Rejected``."""


class ClientMechanism(Protocol):
    """One login on the client side."""

    name: str
    done: bool
    """Whether the server has proved its identity, as far as the mechanism allows."""

    def first(self) -> bytes:
        """Return the first message. May block as long as a token issuer takes. Raises :class:`LoginRefused`."""

    def step(self, challenge: bytes) -> bytes | None:
        """Return the answer to a challenge, ``None`` if there is none. May take some milliseconds.
        Raises :class:`LoginRefused`."""


class PlainServer:
    """Implements :class:`ServerMechanism`. ``check`` compares a user's password, slowly."""

    def __init__(self, check: Callable[[str, str], bool]) -> None:
        self._check = check
        self.tried = ""

    def step(self, token: bytes) -> Step:
        try:
            authorized, name, password = token.decode("utf-8").split("\0")
        except ValueError:
            return Rejected("expected PLAIN's authzid, user and password, found something else")
        self.tried = name
        if not name or not password:
            return Rejected("expected a user and a password, found an empty one")
        if authorized not in ("", name):
            return Rejected("expected no authorization id, or the user's own (CVE-2017-12610)", Cause.PRINCIPAL)

        def work() -> Accepted | Rejected:
            return (
                Accepted(name) if self._check(name, password) else Rejected("wrong user or password", Cause.CREDENTIALS)
            )

        return Costly(work)


class PlainClient:
    """Implements :class:`ClientMechanism`."""

    name = PLAIN
    done = True

    def __init__(self, username: str, password: str) -> None:
        self._token = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        return self._token

    def step(self, challenge: bytes) -> bytes | None:
        if challenge:
            raise LoginRefused("expected no challenge with PLAIN, found one")
        return None
