"""The seam between what a process says and what carries it.

Two kinds of exchange cross it:

- a *call*: one of the request types of :mod:`tidelog.proto.calls.api` goes out, its response type comes back;
- a *frame stream*: ordered, opaque frames in both directions, for data (:mod:`tidelog.proto.transport.frames`)
  and for Raft. A frame's answer carries the frame's correlation id, so answers may overtake each other.

Carriers: :mod:`tidelog.proto.transport.grpc_transport` (real sockets; followers' streams also over TCP) and
:mod:`tidelog.proto.transport.memory_transport` (one process; tests and simulation). Nothing above this seam knows
which one it is on.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable
from urllib.parse import unquote

from tidelog.model.buffer import Buffer
from tidelog.model.settings.listeners import plain_address
from tidelog.proto.calls.request import Request, Response
from tidelog.security.session import UNSECURED, FindSession, Session

R = TypeVar("R", bound=Response)

Frame = Sequence[Buffer]
"""One frame as the pieces it is made of, so that record batches need not be copied together early."""


class Address(NamedTuple):
    """A listener's address. ``host`` is a name or a literal address without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def read(cls, text: str) -> Address:
        """Undo ``str``. Raises ``ValueError``."""
        host, _, port = text.rpartition(":")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


class StreamKind(enum.Enum):
    """The frame streams there are; the value is the stream's method name on the wire."""

    PRODUCE = "Produce"
    FETCH = "Fetch"
    REPLICA_FETCH = "ReplicaFetch"
    RAFT = "Raft"


class ConnectionLost(ConnectionError):
    """The peer is gone or was never there. Whether what was sent took effect is *unknown*."""


class NotServedHere(ConnectionLost):
    """The peer answers, but is no listener for what was asked: no retry at this address can help.

    The text says what was found there. ``elsewhere`` is the address that the peer names instead, if it does.
    """

    def __init__(self, text: str, elsewhere: Address | None = None) -> None:
        super().__init__(text)
        self.elsewhere = elsewhere


class TlsRefused(NotServedHere):
    """No TLS connection can be made: either end does not accept the other, or one of them speaks plaintext."""


class LoginNotMade(NotServedHere):
    """The client cannot log in: a wrong user or password, or the server is not to be trusted with one."""


class CallTimeout(TimeoutError):
    """No answer within the bound. Whether the request took effect is *unknown*."""


class FrameStream(Protocol):
    """The calling end of a frame stream. Not for use from several tasks at once per direction."""

    async def send(self, frame: Frame) -> None:
        """Hand one frame to the carrier, waiting while its buffer is full. Raises ``ConnectionLost``."""

    async def receive(self) -> memoryview:
        """Return the next frame of the peer. Raises ``ConnectionLost`` when the stream has ended."""

    def close(self) -> None:
        """End the stream; a waiting ``receive`` raises ``ConnectionLost``. May be called twice."""


class Connection(Protocol):
    """A link to one address. It connects by itself at first use and after a loss."""

    @property
    def address(self) -> Address: ...

    async def call(self, request: Request[R], *, timeout_s: float) -> R:
        """Send one request. Raises ``ConnectionLost`` or ``CallTimeout``; both mean outcome unknown."""

    async def open(self, kind: StreamKind, *, timeout_s: float) -> FrameStream:
        """Open a frame stream; returns once the peer accepted it. Raises ``ConnectionLost``."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class CallContext:
    """A handler's knowledge of its caller."""

    listener: str
    """Name of the listener that the request came in on."""
    peer: str
    """The caller's address with its port, as the carrier writes it; for logs."""
    session: Session = UNSECURED
    """The caller's identity, and how it was proved."""
    connection: int = 0
    """Which of this node's connections it came in on, numbered from 1 in the order in which they were accepted. 0: not
    known, or of no account."""
    client_id: str = ""
    """The name that the caller gave itself, "" for none. A Kafka connection's requests each have one of their own."""

    @property
    def host(self) -> str:
        """The caller's address without the port: an IPv4 or IPv6 literal, in one spelling however it came."""
        text = unquote(self.peer).removeprefix("ipv4:").removeprefix("ipv6:")
        host, _, port = text.rpartition(":")
        return plain_address((host if host and port.isdigit() else text).strip("[]"))


CallHandler = Callable[[Any, CallContext], Awaitable[Any]]
"""Takes a request, returns its response. What it raises is a bug and ends the node."""


class FrameSession(Protocol):
    """The serving end of one frame stream."""

    def on_frame(self, frame: memoryview) -> Awaitable[Frame] | Frame | None:
        """Take one frame. What must happen in order of arrival happens before this returns.

        The answer is a frame, ``None`` for none, or an awaitable of it. The carrier reads on while
        it waits, up to its own limit of unanswered frames (its backpressure). What ``on_frame``
        raises must be :class:`BadFrame` (the stream is closed with its text); else it is a bug.
        """

    def on_close(self) -> None:
        """The stream ended, by whichever side. Called exactly once."""


@runtime_checkable
class PacedSession(FrameSession, Protocol):
    """A session that also bounds the bytes it holds for its peer."""

    def hold(self) -> Awaitable[object] | None:
        """Asked before each frame is read: an awaitable stops reading until it is done, then it is asked again."""

    def on_written(self, frame: Frame) -> None:
        """A frame that this session answered has left for the carrier. Not told of those that were lost."""


class BadFrame(ValueError):
    """A frame that cannot be read; the text says what was expected and found."""


SessionFactory = Callable[[CallContext], FrameSession]


@dataclass(frozen=True, slots=True)
class Service:
    """A listener's service: a handler for each request type, a session factory for each stream.

    ``elsewhere`` tells a caller that asks for anything else where it belongs. ``sessions``: where callers log in by
    SaslAuthenticate, and everything else needs the token that they get; a carrier within one process asks for none.
    """

    calls: Mapping[type[Request[Any]], CallHandler]
    streams: Mapping[StreamKind, SessionFactory]
    elsewhere: str = ""
    sessions: FindSession | None = None


class Server(Protocol):
    """A bound listener."""

    @property
    def address(self) -> Address:
        """The bound address; the port is the real one if 0 was requested."""

    async def close(self, grace_s: float) -> None:
        """Refuse new work at once, give running calls ``grace_s`` seconds, then cut them."""


class Network(Protocol):
    """A carrier. One per process (real) or per simulated node."""

    async def serve(self, listener: str, address: Address, service: Service) -> Server:
        """Bind and serve. Raises ``OSError`` naming the address when it is taken or not ours."""

    def connect(self, address: Address, listener: str = "") -> Connection:
        """Return a connection; nothing is sent before its first use. ``listener``: the name of the listener at that
        address, where a node knows it: how the connection is secured goes by it."""
