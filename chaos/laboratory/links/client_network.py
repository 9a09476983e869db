"""A client's own network: it can pause or die like a process, and its traffic can be observed.

The clients of a run share one process. A killed one sends nothing any more, not even a good-bye; a paused one neither
sends nor receives, and sends its pending requests when it resumes: late, to a cluster that may have given up on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, Unpack

from tidelog.broker.node.node import NodeNetwork
from tidelog.client.config.security import ClientSecurity, SecuritySettings
from tidelog.proto.calls.request import Request, Response
from tidelog.proto.transport.grpc_transport import GrpcNetwork
from tidelog.proto.transport.network import Address, Connection, ConnectionLost, Frame, FrameStream, StreamKind
from tidelog.testing.cut_network import WrappedNetwork

R = TypeVar("R", bound=Response)

LATE_MAX: Final = 100
"""Pending requests that a paused client sends when it resumes; further ones are sent only if somebody waits for
them."""

Answered = Callable[[Response | None, Address], None]
"""Called with the answer and its sender; ``None`` without an answer: the outcome of the request is unknown."""
Asked = Callable[[Request[Any]], Answered | None]
"""Called when a client starts a request."""


def secured_network(**settings: Unpack[SecuritySettings]) -> GrpcNetwork:
    """Return the real network of a client with these settings. Raises ``ConfigError``."""
    security = ClientSecurity(**settings)
    store = security.tls()
    return GrpcNetwork(tls=lambda _: store, login=security.login())


class ClientNetwork(WrappedNetwork):
    """The network of one client over ``inner``; on one event loop."""

    def __init__(self, inner: NodeNetwork, asked: Asked | None = None) -> None:
        super().__init__(inner)
        self._asked = asked
        self._going_on = asyncio.Event()
        self._going_on.set()
        self._dead = False
        self._late: set[asyncio.Task[Any]] = set()

    def hold(self) -> None:
        """Pause."""
        self._going_on.clear()

    def resume(self) -> None:
        """Resume."""
        self._going_on.set()

    def die(self) -> None:
        """Die for good: nothing is sent or received any more."""
        self._dead = True
        self._going_on.set()

    async def unpaused(self) -> None:
        """Wait while the client is paused. Raises ``ConnectionLost`` when it is gone."""
        await self._going_on.wait()
        if self._dead:
            raise ConnectionLost("this client is gone")

    async def carried(self, work: Coroutine[Any, Any, R]) -> R:
        """Send a request. Requests that a client makes while it is paused are sent when it resumes, though nobody in it
        may wait for the answer any more: like the pending writes of a stopped process."""
        if self._going_on.is_set() or len(self._late) >= LATE_MAX:
            return await work
        task = asyncio.ensure_future(work)
        self._late.add(task)
        task.add_done_callback(self._sent_late)
        return await asyncio.shield(task)

    def _sent_late(self, task: asyncio.Task[Any]) -> None:
        self._late.discard(task)
        if not task.cancelled():
            task.exception()  # the caller has got it, if it is still there

    def connect(self, address: Address, listener: str = "") -> Connection:
        return _ClientConnection(self._inner.connect(address, listener), self)

    def asked(self, request: Request[Any]) -> Answered | None:
        return None if self._asked is None else self._asked(request)


class _ClientConnection:
    def __init__(self, inner: Connection, network: ClientNetwork) -> None:
        self._inner = inner
        self._network = network

    @property
    def address(self) -> Address:
        return self._inner.address

    async def call(self, request: Request[R], *, timeout_s: float) -> R:
        return await self._network.carried(self._carry(request, timeout_s))

    async def _carry(self, request: Request[R], timeout_s: float) -> R:
        answered = self._network.asked(request)
        answer: R | None = None
        try:
            await self._network.unpaused()
            answer = await self._inner.call(request, timeout_s=timeout_s)
        finally:
            if answered is not None:  # on arrival, possibly long before a paused client reads it
                answered(answer, self._inner.address)
        await self._network.unpaused()
        return answer

    async def open(self, kind: StreamKind, *, timeout_s: float) -> FrameStream:
        await self._network.unpaused()
        return _ClientStream(await self._inner.open(kind, timeout_s=timeout_s), self._network)

    async def close(self) -> None:
        await self._inner.close()


class _ClientStream:
    def __init__(self, inner: FrameStream, network: ClientNetwork) -> None:
        self._inner = inner
        self._network = network

    async def send(self, frame: Frame) -> None:
        await self._network.unpaused()
        await self._inner.send(frame)

    async def receive(self) -> memoryview:
        frame = await self._inner.receive()
        await self._network.unpaused()
        return frame

    def close(self) -> None:
        self._inner.close()
