"""A node of release 0.1 in the simulated world: on the disk, clock and network of the current release.

Its own code encodes its messages to bytes, and the current code decodes them, as between two processes. No judge looks
into it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, Final

from tidelog.broker.node.node import NodeRefused
from tidelog.chaos.simulated.former.release import module
from tidelog.model.clock import Clock
from tidelog.proto.calls.convert import from_proto, to_proto
from tidelog.proto.calls.table import CALLS
from tidelog.proto.transport.memory_transport import MemoryNetwork
from tidelog.proto.transport.network import (
    Address,
    BadFrame,
    CallContext,
    CallHandler,
    CallTimeout,
    Connection,
    ConnectionLost,
    Frame,
    FrameStream,
    Server,
    Service,
    SessionFactory,
    StreamKind,
)
from tidelog.storage.disk.files import FileLayer

CALL_MODULES: Final = (
    "proto.api",
    "proto.controller_api",
    "proto.group_api",
    "proto.reassignment_api",
    "proto.sink_api",
    "proto.transaction_api",
)


class FormerNode:
    """A node of release 0.1; made, started and ended like :class:`~tidelog.broker.node.node.Node`."""

    def __init__(
        self,
        settings: Mapping[str, str],
        *,
        network: MemoryNetwork,
        files: FileLayer,
        clock: Clock,
        rng: random.Random,
        cluster_id: str,
        on_fatal: Callable[[str, BaseException], None],
        run_blocking: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        config = module("model.broker_config")
        known = {name: value for name, value in settings.items() if name in config.NODE_CONFIG_DEF.settings}
        release = module("broker.node")
        self._refused: type[Exception] = release.NodeRefused
        self._node = release.Node(
            config.NodeConfig.parse(known),
            network=_Network(network),
            files=files,
            clock=clock,
            rng=rng,
            cluster_id=cluster_id,
            on_fatal=on_fatal,
            threaded=False,
            run_blocking=run_blocking,
        )

    @property
    def serves(self) -> bool:
        """Return whether the controllers let its broker serve."""
        return getattr(self._node.standing, "value", None) == "running"

    @property
    def metadata_offset(self) -> int:
        """Return the offset of the last metadata entry that it knows to be committed."""
        return int(self._node.view.image.offset)

    async def start(self) -> None:
        """Start the node. Raises :class:`NodeRefused` or ``OSError``."""
        try:
            await self._node.start()
        except self._refused as refused:
            raise NodeRefused(str(refused)) from refused

    async def stop(self) -> None:
        await self._node.stop()

    def drop(self) -> None:
        self._node.drop()

    async def kill(self) -> None:
        await self._node.kill()


# --- Messages ---------------------------------------------------------------------------------------------


@cache
def _former_class(name: str) -> Any:
    return next(found for each in CALL_MODULES if (found := getattr(module(each), name, None)) is not None)


@cache
def _present_classes() -> dict[str, type[Any]]:
    return {cls.__name__: cls for call in CALLS.items() for cls in call}


def _to_former(message: Any) -> Any:
    return module("proto.convert").from_proto(_former_class(type(message).__name__), to_proto(message))


def _to_present(message: Any) -> Any:
    return from_proto(_present_classes()[type(message).__name__], module("proto.convert").to_proto(message))


# --- The network, as release 0.1 sees it ------------------------------------------------------------------


class _Network:
    def __init__(self, inner: MemoryNetwork) -> None:
        self._inner = inner

    @property
    def on_bug(self) -> Callable[[BaseException], None]:
        return self._inner.on_bug

    @on_bug.setter
    def on_bug(self, tell: Callable[[BaseException], None]) -> None:
        self._inner.on_bug = tell

    async def serve(self, listener: str, address: tuple[str, int], service: Any) -> Server:
        calls = {_present_classes()[cls.__name__]: _call(handler) for cls, handler in service.calls.items()}
        streams = {StreamKind(kind.value): _stream(factory) for kind, factory in service.streams.items()}
        return await self._inner.serve(listener, Address(*address), Service(calls, streams))

    def connect(self, address: tuple[str, int]) -> _Connection:
        return _Connection(self._inner.connect(Address(*address)))


class _Raised:
    """Converts connection errors of the current release to those of release 0.1."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        network = module("proto.network")
        if isinstance(error, ConnectionLost):
            raise network.ConnectionLost(str(error)) from None
        if isinstance(error, CallTimeout):
            raise network.CallTimeout(str(error)) from None


class _Connection:
    def __init__(self, inner: Connection) -> None:
        self._inner = inner

    @property
    def address(self) -> Address:
        return self._inner.address

    async def call(self, request: Any, *, timeout_s: float) -> Any:
        with _Raised():
            return _to_former(await self._inner.call(_to_present(request), timeout_s=timeout_s))

    async def open(self, kind: Any, *, timeout_s: float) -> _Stream:
        with _Raised():
            return _Stream(await self._inner.open(StreamKind(kind.value), timeout_s=timeout_s))

    async def close(self) -> None:
        await self._inner.close()


class _Stream:
    def __init__(self, inner: FrameStream) -> None:
        self._inner = inner

    async def send(self, frame: Frame) -> None:
        with _Raised():
            await self._inner.send(frame)

    async def receive(self) -> memoryview:
        with _Raised():
            return await self._inner.receive()

    def close(self) -> None:
        self._inner.close()


def _context(context: CallContext) -> Any:
    return module("proto.network").CallContext(context.listener, context.peer, context.connection)


def _call(handler: Callable[[Any, Any], Awaitable[Any]]) -> CallHandler:
    async def handle(request: Any, context: CallContext) -> Any:
        return _to_present(await handler(_to_former(request), _context(context)))

    return handle


def _stream(factory: Callable[[Any], Any]) -> SessionFactory:
    def begin(context: CallContext) -> _Session:
        session = factory(_context(context))
        return _PacedSession(session) if hasattr(session, "hold") else _Session(session)

    return begin


class _Session:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def on_frame(self, frame: memoryview) -> Awaitable[Frame] | Frame | None:
        try:
            answer: Awaitable[Frame] | Frame | None = self._inner.on_frame(frame)
        except module("proto.network").BadFrame as bad:
            raise BadFrame(str(bad)) from None
        return answer

    def on_close(self) -> None:
        self._inner.on_close()


class _PacedSession(_Session):
    def hold(self) -> Awaitable[object] | None:
        room: Awaitable[object] | None = self._inner.hold()
        return room

    def on_written(self, frame: Frame) -> None:
        self._inner.on_written(frame)
