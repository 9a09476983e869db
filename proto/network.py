"""The seam between what a process says and what carries it.

Two kinds of exchange cross it:

- a *call*: one of the request types of :mod:`tidelog.proto.api` goes out, its response type comes back;
- a *frame stream*: ordered, opaque frames in both directions, for data (:mod:`tidelog.proto.frames`)
  and for Raft. A frame's answer carries the frame's correlation id, so answers may overtake each other.

Carriers: :mod:`tidelog.proto.grpc_transport` (real sockets) and :mod:`tidelog.proto.memory_transport`
(one process; tests and simulation). Nothing above this seam knows which one it is on.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from tidelog.proto.request import Request, Response

R = TypeVar("R", bound=Response)

Buffer = bytes | bytearray | memoryview
Frame = Sequence[Buffer]
"""One frame as the pieces it is made of, so that record batches need not be copied together early."""


class Address(NamedTuple):
    """Where a listener is reached. ``host`` is a name or a literal address without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class StreamKind(enum.Enum):
    """The frame streams there are; the value is the stream's method name on the wire."""

    PRODUCE = "Produce"
    FETCH = "Fetch"
    REPLICA_FETCH = "ReplicaFetch"
    RAFT = "Raft"


class ConnectionLost(ConnectionError):
    """The peer is gone or was never there. Whether what was sent took effect is *unknown*."""


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
    """What a handler may know of a caller."""

    listener: str
    """Name of the listener that the request came in on."""
    peer: str
    """The caller's address, for logs and (later) quotas and ACLs."""
    connection: int = 0
    """Which of this node's connections it came in on, numbered from 1 in the order in which they were accepted. 0: not
    known, or of no account."""


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
    """What a listener serves: a handler for each request type, a session factory for each stream."""

    calls: Mapping[type[Request[Any]], CallHandler]
    streams: Mapping[StreamKind, SessionFactory]


class Server(Protocol):
    """A bound listener."""

    @property
    def address(self) -> Address:
        """Where it is bound; the port is the real one when 0 was asked for."""

    async def close(self, grace_s: float) -> None:
        """Refuse new work at once, give running calls ``grace_s`` seconds, then cut them."""


class Network(Protocol):
    """A carrier. One per process (real) or per simulated node."""

    async def serve(self, listener: str, address: Address, service: Service) -> Server:
        """Bind and serve. Raises ``OSError`` naming the address when it is taken or not ours."""

    def connect(self, address: Address) -> Connection:
        """Return a connection; nothing is sent before its first use."""
