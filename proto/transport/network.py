"""The interface between a process's messages and their carrier.

It has two kinds of exchange:

- a *call*: one of the request types of :mod:`tidelog.proto.calls.api` goes out, its response type comes back;
- a *frame stream*: ordered, opaque frames in both directions, for data (:mod:`tidelog.proto.transport.frames`)
  and for Raft. A frame's answer carries the frame's correlation id, so answers may overtake each other.

Carriers: :mod:`tidelog.proto.transport.grpc_transport` (real sockets; followers' streams also over TCP) and
:mod:`tidelog.proto.transport.memory_transport` (one process; tests and simulation). Nothing above this interface knows
which one is in use.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable
from urllib.parse import unquote

from tidelog.model.buffer import Buffer
from tidelog.model.classes.frozen import dataclass
from tidelog.model.settings.listeners import plain_address
from tidelog.proto.calls.request import Request, Response
from tidelog.security.session import UNSECURED, FindSession, Session

R = TypeVar("R", bound=Response)

Frame = Sequence[Buffer]
"""One frame in pieces, so that record batches need not be joined early."""


class Address(NamedTuple):
    """A listener's address. ``host`` is a name or a literal address without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def read(cls, text: str) -> Address:
        """Parse the output of ``str``. Raises ``ValueError``."""
        host, _, port = text.rpartition(":")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


class StreamKind(enum.Enum):
    """The kinds of frame streams; the value is the stream's method name on the wire."""

    PRODUCE = "Produce"
    FETCH = "Fetch"
    REPLICA_FETCH = "ReplicaFetch"
    RAFT = "Raft"


class ConnectionLost(ConnectionError):
    """The peer is gone or was never there. It is *unknown* whether sent requests took effect."""


class NotServedHere(ConnectionLost):
    """The peer answers, but does not serve this request: no retry at this address can help.

    The text says what was found there. ``elsewhere`` is the address that the peer names instead, if any.
    """

    def __init__(self, text: str, elsewhere: Address | None = None) -> None:
        super().__init__(text)
        self.elsewhere = elsewhere


class TlsRefused(NotServedHere):
    """A TLS connection is impossible: one end does not accept the other, or speaks plaintext."""


class LoginNotMade(NotServedHere):
    """The client cannot log in: a wrong user or password, or an untrusted server."""


class CallTimeout(TimeoutError):
    """No answer within the bound. It is *unknown* whether the request took effect."""


class FrameStream(Protocol):
    """The client side of a frame stream. For one task at a time per direction."""

    async def send(self, frame: Frame) -> None:
        """Pass one frame to the carrier, waiting while its buffer is full. Raises ``ConnectionLost``."""

    async def receive(self) -> memoryview:
        """Return the peer's next frame. Raises ``ConnectionLost`` once the stream has ended."""

    def close(self) -> None:
        """End the stream; a waiting ``receive`` raises ``ConnectionLost``. May be called twice."""


class Connection(Protocol):
    """A link to one address. It connects automatically at first use and after a loss."""

    @property
    def address(self) -> Address: ...

    async def call(self, request: Request[R], *, timeout_s: float) -> R:
        """Send one request. Raises ``ConnectionLost`` or ``CallTimeout``; after both the outcome is unknown."""

    async def open(self, kind: StreamKind, *, timeout_s: float) -> FrameStream:
        """Open a frame stream; return once the peer has accepted it. Raises ``ConnectionLost``."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class CallContext:
    """What a handler knows about its caller."""

    listener: str
    """Name of the listener that received the request."""
    peer: str
    """The caller's address with its port, as the carrier writes it; for logs."""
    session: Session = UNSECURED
    """The caller's identity, and how it was proved."""
    connection: int = 0
    """The number of the connection at this node, from 1 in order of acceptance. 0: unknown or irrelevant."""
    client_id: str = ""
    """The caller's own name, "" for none. On a Kafka connection, each request has its own."""

    @property
    def host(self) -> str:
        """The caller's address without the port: an IPv4 or IPv6 literal, in a canonical spelling."""
        text = unquote(self.peer).removeprefix("ipv4:").removeprefix("ipv6:")
        host, _, port = text.rpartition(":")
        return plain_address((host if host and port.isdigit() else text).strip("[]"))

    @property
    def port(self) -> int:
        """The caller's port, 0 if unknown."""
        port = self.peer.rpartition(":")[2]
        return int(port) if port.isdecimal() else 0


CallHandler = Callable[[Any, CallContext], Awaitable[Any]]
"""Takes a request, returns its response. Any exception is a bug and ends the node."""


class FrameSession(Protocol):
    """The server side of one frame stream."""

    def on_frame(self, frame: memoryview) -> Awaitable[Frame] | Frame | None:
        """Take one frame. Work that must happen in order of arrival happens before this returns.

        The answer is a frame, ``None`` for none, or an awaitable of either. The carrier continues reading while it
        waits, up to its own limit of unanswered frames (its backpressure). ``on_frame`` may raise only
        :class:`BadFrame` (the stream is closed with its text); anything else is a bug.
        """

    def on_close(self) -> None:
        """Called exactly once when the stream has ended, by either side."""


@runtime_checkable
class PacedSession(FrameSession, Protocol):
    """A session that also bounds the bytes that it holds for its peer."""

    def hold(self) -> Awaitable[object] | None:
        """Called before each read: an awaitable stops reading until it is done, then this is called again."""

    def on_written(self, frame: Frame) -> None:
        """Called when an answer of this session has gone to the carrier. Not called for lost answers."""


class BadFrame(ValueError):
    """An unreadable frame; the text says what was expected and found."""


SessionFactory = Callable[[CallContext], FrameSession]


@dataclass(frozen=True, slots=True)
class Service:
    """A listener's service: a handler for each request type, a session factory for each stream.

    ``elsewhere`` says where callers of other requests should go. ``sessions``: set if callers log in by
    SaslAuthenticate, and everything else needs the token that they get; a carrier within one process needs none.
    """

    calls: Mapping[type[Request[Any]], CallHandler]
    streams: Mapping[StreamKind, SessionFactory]
    elsewhere: str = ""
    sessions: FindSession | None = None


class Server(Protocol):
    """A bound listener."""

    @property
    def address(self) -> Address:
        """The bound address, with the real port if 0 was requested."""

    async def close(self, grace_s: float) -> None:
        """Refuse new work immediately, give running calls ``grace_s`` seconds, then abort them."""


class Peer(Protocol):
    """A connection to a listener, as the listener knows it. Times are the event loop's."""

    @property
    def caller(self) -> CallContext:
        """Who is at the other end now."""

    @property
    def software(self) -> str:
        """Its software, as far as known."""

    @property
    def opened_s(self) -> float: ...

    @property
    def progress_s(self) -> float | None:
        """When bytes last moved; ``None``: unknown."""

    @property
    def bytes_in(self) -> int:
        """Bytes received, -1 if unknown."""

    @property
    def bytes_out(self) -> int:
        """Bytes sent, -1 if unknown."""

    def dismiss(self, why: str) -> None:
        """End it as far as the carrier can."""


@runtime_checkable
class ListsPeers(Protocol):
    """A listener that knows its connections."""

    def peers(self) -> Sequence[Peer]: ...


class Network(Protocol):
    """A carrier. One per process (real) or per simulated node."""

    async def serve(self, listener: str, address: Address, service: Service) -> Server:
        """Bind and serve. Raises ``OSError`` naming the address if it is in use or not local."""

    def connect(self, address: Address, listener: str = "") -> Connection:
        """Return a connection; nothing is sent before its first use. ``listener``: the name of the listener at that
        address, if a node knows it; it determines how the connection is secured."""
