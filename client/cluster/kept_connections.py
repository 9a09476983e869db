"""A network with connections that outlive their clients: the next client gets a ready connection.

For processes with one short-lived client after another, such as tasks that write one batch each.
"""

from __future__ import annotations

from typing import Final, TypeVar

from tidelog.proto.calls.request import Request, Response
from tidelog.proto.transport.network import (
    Address,
    CallTimeout,
    Connection,
    ConnectionLost,
    FrameStream,
    Network,
    NotServedHere,
    Server,
    Service,
    StreamKind,
)

R = TypeVar("R", bound=Response)

KEPT_MAX: Final = 16
"""Maximum connections kept for the next client; further ones are closed."""


class KeptConnections:
    """Implements :class:`tidelog.proto.transport.network.Network` over another one. For one event loop.

    A connection has one user at a time. When the user closes it, it is kept, unless a call on it failed.
    """

    def __init__(self, network: Network, kept_max: int = KEPT_MAX) -> None:
        self._network: Final = network
        self._kept_max: Final = kept_max
        self._kept: dict[Address, list[Connection]] = {}
        self.elsewhere: dict[Address, Address] = {}
        """Addresses that referred a client elsewhere, with the new address; the next client starts there."""
        self._closed = False

    async def serve(self, listener: str, address: Address, service: Service) -> Server:
        return await self._network.serve(listener, address, service)

    def connect(self, address: Address, listener: str = "") -> Connection:
        at = self.elsewhere.get(address, address)
        kept = self._kept.get(at)
        return _Lease(self, address, kept.pop() if kept else self._network.connect(at, listener))

    async def give_back(self, connection: Connection, *, sound: bool) -> None:
        """Keep ``connection`` for the next client, or close it."""
        if sound and not self._closed and self.count < self._kept_max:
            self._kept.setdefault(connection.address, []).append(connection)
        else:
            await connection.close()

    @property
    def count(self) -> int:
        """Connections without a user."""
        return sum(map(len, self._kept.values()))

    async def close(self) -> None:
        """Close all kept connections, and from now on every one that is given back."""
        self._closed = True
        for kept in self._kept.values():
            while kept:
                await kept.pop().close()


class _Lease:
    """A connection while one client has it."""

    def __init__(self, owner: KeptConnections, address: Address, connection: Connection) -> None:
        self._owner = owner
        self.address = address
        self._connection = connection
        self._sound = True
        self._closed = False
        self._streams: list[FrameStream] = []

    async def call(self, request: Request[R], *, timeout_s: float) -> R:
        self._check()
        try:
            return await self._connection.call(request, timeout_s=timeout_s)
        except (ConnectionLost, CallTimeout) as error:
            self._sound = False
            self._owner.elsewhere.pop(self.address, None)
            if isinstance(error, NotServedHere) and error.elsewhere is not None:
                self._owner.elsewhere[self.address] = error.elsewhere
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
