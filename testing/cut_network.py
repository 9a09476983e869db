"""Link cuts for a carrier without its own: real sockets with traffic held back at the caller's side.

As on a cut wire, data is held and delivered once the link is restored; connections stay up. Each direction is held at
the caller: outgoing data before it leaves, incoming data before the caller sees it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TypeVar

from tidelog.broker.node.node import NodeNetwork
from tidelog.proto.calls.request import Request, Response
from tidelog.proto.transport.network import (
    Address,
    CallTimeout,
    Connection,
    ConnectionLost,
    Frame,
    FrameStream,
    Server,
    Service,
    StreamKind,
)

R = TypeVar("R", bound=Response)


class Cuts:
    """The directed links that are currently cut. For one event loop."""

    def __init__(self) -> None:
        self._cut: set[tuple[str, str]] = set()
        self._mended = asyncio.Event()

    def cut(self, sender: str, receiver: str) -> None:
        self._cut.add((sender, receiver))

    def heal(self) -> None:
        self._cut.clear()
        self._mended.set()
        self._mended = asyncio.Event()

    async def until_open(self, sender: str, receiver: str) -> None:
        """Wait until the link from ``sender`` to ``receiver`` is whole."""
        while (sender, receiver) in self._cut:
            await self._mended.wait()


class WrappedNetwork(ABC):
    """A carrier like ``inner``, except for how it dials.

    Implements :class:`tidelog.broker.node.node.NodeNetwork`.
    """

    def __init__(self, inner: NodeNetwork) -> None:
        self._inner = inner

    @property
    def on_bug(self) -> Callable[[BaseException], None]:
        return self._inner.on_bug

    @on_bug.setter
    def on_bug(self, hear: Callable[[BaseException], None]) -> None:
        self._inner.on_bug = hear

    async def serve(self, listener: str, address: Address, service: Service) -> Server:
        return await self._inner.serve(listener, address, service)

    async def refuses(self, address: Address) -> bool:
        return await self._inner.refuses(address)

    @abstractmethod
    def connect(self, address: Address, listener: str = "") -> Connection: ...


class CutNetwork(WrappedNetwork):
    """One side's carrier over ``inner``. ``owners``: which side listens at an address."""

    def __init__(self, inner: NodeNetwork, name: str, owners: Mapping[Address, str], cuts: Cuts) -> None:
        super().__init__(inner)
        self._name = name
        self._owners = owners
        self._cuts = cuts

    def connect(self, address: Address, listener: str = "") -> Connection:
        return _CutConnection(
            self._inner.connect(address, listener), self._name, self._owners.get(address, ""), self._cuts
        )


class _CutConnection:
    def __init__(self, inner: Connection, own: str, peer: str, cuts: Cuts) -> None:
        self._inner = inner
        self._own = own
        self._peer = peer
        self._cuts = cuts

    @property
    def address(self) -> Address:
        return self._inner.address

    async def call(self, request: Request[R], *, timeout_s: float) -> R:
        try:
            async with asyncio.timeout(timeout_s):
                await self._cuts.until_open(self._own, self._peer)
                answer = await self._inner.call(request, timeout_s=timeout_s)
                await self._cuts.until_open(self._peer, self._own)
                return answer
        except CallTimeout:
            raise
        except TimeoutError:
            raise CallTimeout(f"{self.address}: no answer to {type(request).__name__} in time") from None

    async def open(self, kind: StreamKind, *, timeout_s: float) -> FrameStream:
        try:
            async with asyncio.timeout(timeout_s):
                await self._cuts.until_open(self._own, self._peer)
                await self._cuts.until_open(self._peer, self._own)
        except TimeoutError:
            raise ConnectionLost(f"{self.address}: {kind.value} stream not accepted in {timeout_s} s") from None
        return _CutStream(await self._inner.open(kind, timeout_s=timeout_s), self._own, self._peer, self._cuts)

    async def close(self) -> None:
        await self._inner.close()


class _CutStream:
    def __init__(self, inner: FrameStream, own: str, peer: str, cuts: Cuts) -> None:
        self._inner = inner
        self._own = own
        self._peer = peer
        self._cuts = cuts

    async def send(self, frame: Frame) -> None:
        await self._cuts.until_open(self._own, self._peer)
        await self._inner.send(frame)

    async def receive(self) -> memoryview:
        frame = await self._inner.receive()
        await self._cuts.until_open(self._peer, self._own)
        return frame

    def close(self) -> None:
        self._inner.close()
