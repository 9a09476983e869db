"""A network whose connections outlive the clients that opened them: the next client gets one that is connected.

For processes in which short-lived clients follow one another, as tasks do that write one batch each.
"""

from __future__ import annotations

from typing import Final, TypeVar

from tidelog.proto.network import (
    Address,
    CallTimeout,
    Connection,
    ConnectionLost,
    FrameStream,
    Network,
    Server,
    Service,
    StreamKind,
)
from tidelog.proto.request import Request, Response

R = TypeVar("R", bound=Response)

KEPT_MAX: Final = 16
"""Connections that are kept for the next client; one more is closed."""


class KeptConnections:
    """Implements :class:`tidelog.proto.network.Network` over another one. For one event loop.

    A connection has one user at a time, and is kept when that has closed it, unless a call on it failed.
    """

    def __init__(self, network: Network, kept_max: int = KEPT_MAX) -> None:
        self._network: Final = network
        self._kept_max: Final = kept_max
        self._kept: dict[Address, list[Connection]] = {}
        self._closed = False

    async def serve(self, listener: str, address: Address, service: Service) -> Server:
        return await self._network.serve(listener, address, service)

    def connect(self, address: Address) -> Connection:
        kept = self._kept.get(address)
        return _Lease(self, kept.pop() if kept else self._network.connect(address))

    async def give_back(self, connection: Connection, *, sound: bool) -> None:
        """Keep ``connection`` for who comes next, or close it."""
        if sound and not self._closed and self.count < self._kept_max:
            self._kept.setdefault(connection.address, []).append(connection)
        else:
            await connection.close()

    @property
    def count(self) -> int:
        """Connections without a user."""
        return sum(map(len, self._kept.values()))

    async def close(self) -> None:
        """Close what is kept, and from now on whatever is given back."""
        self._closed = True
        for kept in self._kept.values():
            while kept:
                await kept.pop().close()


class _Lease:
    """A connection, for as long as one client has it."""

    def __init__(self, owner: KeptConnections, connection: Connection) -> None:
        self._owner = owner
        self._connection = connection
        self._sound = True
        self._closed = False
        self._streams: list[FrameStream] = []

    @property
    def address(self) -> Address:
        return self._connection.address

    async def call(self, request: Request[R], *, timeout_s: float) -> R:
        self._check()
        try:
            return await self._connection.call(request, timeout_s=timeout_s)
        except (ConnectionLost, CallTimeout):
            self._sound = False
            raise

    async def open(self, kind: StreamKind, *, timeout_s: float) -> FrameStream:
        self._check()
        try:
            stream = await self._connection.open(kind, timeout_s=timeout_s)
        except ConnectionLost:
            self._sound = False
            raise
        self._streams.append(stream)
        return stream

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            for stream in self._streams:
                stream.close()
            await self._owner.give_back(self._connection, sound=self._sound)

    def _check(self) -> None:
        if self._closed:
            raise ConnectionLost(f"{self.address}: closed by us")
