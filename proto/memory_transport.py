"""A carrier inside one process, for tests and for the simulation: links that can be cut, slowed and broken.

Every node has its own :class:`MemoryNetwork` on one :class:`MemoryFabric`. A link is directed. A *cut*
link holds what is sent over it, as TCP does while it retransmits, and delivers it in order once
healed; a *broken* connection loses what was under way, and its streams end on both sides. Requests
and responses cross as the (immutable) objects they are; frames are joined into fresh bytes, as a
socket would.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from tidelog.proto.api import Request, Response
from tidelog.proto.network import (
    Address,
    BadFrame,
    CallContext,
    CallTimeout,
    ConnectionLost,
    Frame,
    FrameSession,
    Server,
    Service,
    StreamKind,
)
from tidelog.proto.pump import serve_stream

R = TypeVar("R", bound=Response)

FRAMES_QUEUED_MAX: Final = 64
UNANSWERED_MAX: Final = 64
_FIRST_PORT: Final = 20_000

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Stream:
    """Two ends of one open stream, or one call under way: what a break must end."""

    client: str
    server: str
    on_break: Callable[[str], None]


@dataclass(slots=True)
class _Link:
    """One direction between two nodes."""

    held: deque[Callable[[], None]] = field(default_factory=deque)
    cut: bool = False
    delay_s: float = 0.0
    due: float = 0.0


class MemoryFabric:
    """The wires between nodes of one process. Not for several event loops."""

    def __init__(self) -> None:
        self._listeners: dict[Address, _MemoryServer] = {}
        self._links: dict[tuple[str, str], _Link] = {}
        self._streams: set[_Stream] = set()
        self._next_port = _FIRST_PORT

    def network(self, node: str, on_bug: Callable[[BaseException], None] | None = None) -> MemoryNetwork:
        """Return the carrier of one node; ``node`` names it in :meth:`cut` and the other faults."""
        return MemoryNetwork(self, node, on_bug or _log_bug)

    def cut(self, sender: str, receiver: str) -> None:
        """Hold everything that ``sender`` sends to ``receiver`` from now on."""
        self._link(sender, receiver).cut = True

    def heal(self, sender: str | None = None, receiver: str | None = None) -> None:
        """Mend one direction, or all; what was held is delivered in order."""
        for (a, b), link in list(self._links.items()):
            if link.cut and sender in (None, a) and receiver in (None, b):
                link.cut = False
                while link.held and not link.cut:
                    self._schedule(link, link.held.popleft())

    def delay(self, sender: str, receiver: str, seconds: float) -> None:
        """Deliver what ``sender`` sends to ``receiver`` that much later, still in order."""
        self._link(sender, receiver).delay_s = seconds

    def break_connections(self, a: str, b: str | None = None) -> None:
        """End every stream and call under way between two nodes, or of one node; what was held is lost."""
        for stream in [s for s in self._streams if a in (s.client, s.server) and b in (None, s.client, s.server)]:
            stream.on_break(f"connection between {stream.client} and {stream.server} broke")
        for (x, y), link in self._links.items():
            if a in (x, y) and b in (None, x, y):
                link.held.clear()

    def drop_node(self, node: str) -> None:
        """The node's process is gone: its listeners with it, its connections broken."""
        for address in [address for address, server in self._listeners.items() if server.node == node]:
            self._listeners.pop(address).closed = True
        self.break_connections(node)

    # --- for the networks -----------------------------------------------------------------------

    def _link(self, sender: str, receiver: str) -> _Link:
        return self._links.setdefault((sender, receiver), _Link())

    def _deliver(self, sender: str, receiver: str, action: Callable[[], None]) -> None:
        link = self._link(sender, receiver)
        if link.cut:
            link.held.append(action)
        else:
            self._schedule(link, action)

    def _schedule(self, link: _Link, action: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        if link.delay_s <= 0 and link.due <= loop.time():
            loop.call_soon(action)
            return
        link.due = max(link.due, loop.time() + link.delay_s)
        loop.call_at(link.due, action)

    def _bind(self, server: _MemoryServer, wanted: Address) -> Address:
        address = wanted
        while address.port == 0 or (wanted.port == 0 and address in self._listeners):
            address = Address(wanted.host, self._next_port)
            self._next_port += 1
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{address} is taken by {self._listeners[address].node}")
        self._listeners[address] = server
        return address

    def _unbind(self, server: _MemoryServer) -> None:
        if self._listeners.get(server.address) is server:
            del self._listeners[server.address]

    def _listener_at(self, address: Address) -> _MemoryServer | None:
        return self._listeners.get(address)


class MemoryNetwork:
    """One node's carrier. Implements :class:`tidelog.proto.network.Network`."""

    def __init__(self, fabric: MemoryFabric, node: str, on_bug: Callable[[BaseException], None]) -> None:
        self.fabric = fabric
        self.node = node
        self.on_bug = on_bug

    async def serve(self, listener: str, address: Address, service: Service) -> Server:
        return _MemoryServer(self, listener, address, service)

    def connect(self, address: Address) -> MemoryConnection:
        return MemoryConnection(self, address)


class _MemoryServer:
    def __init__(self, network: MemoryNetwork, listener: str, address: Address, service: Service) -> None:
        self.network = network
        self.node = network.node
        self.listener = listener
        self.service = service
        self._tasks: set[asyncio.Future[Any]] = set()
        self.closed = False
        self.address = network.fabric._bind(self, address)

    def spawn(self, work: Awaitable[Any]) -> asyncio.Future[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self, grace_s: float) -> None:
        self.closed = True
        self.network.fabric._unbind(self)
        if self._tasks and grace_s > 0:
            await asyncio.wait(self._tasks, timeout=grace_s)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


class MemoryConnection:
    """A link to one address. Implements :class:`tidelog.proto.network.Connection`."""

    def __init__(self, network: MemoryNetwork, address: Address) -> None:
        self._network = network
        self._fabric = network.fabric
        self._open: set[_Stream] = set()
        self.address = address

    async def call(self, request: Request[R], *, timeout_s: float) -> R:
        server = self._server()
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        record = self._register(server, lambda reason: _fail(answer, ConnectionLost(reason)))

        def arrive() -> None:
            if server.closed:  # while this was under way
                self._back(server, lambda: _fail(answer, ConnectionLost(f"{self.address}: connection refused")))
            else:
                server.spawn(serve())

        async def serve() -> None:
            handler = server.service.calls.get(type(request))
            if handler is None:
                self._back(server, lambda: _fail(answer, ConnectionLost(_no_call(self.address, request))))
                return
            try:
                response = await handler(request, CallContext(server.listener, self._network.node))
            except asyncio.CancelledError:
                self._back(server, lambda: _fail(answer, ConnectionLost(f"{self.address}: closing")))
                raise
            except Exception as bug:
                server.network.on_bug(bug)
                self._back(server, lambda: _fail(answer, ConnectionLost(f"{self.address}: internal error")))
                return
            self._back(server, lambda: None if answer.done() else answer.set_result(response))

        self._fabric._deliver(self._network.node, server.node, arrive)
        try:
            async with asyncio.timeout(timeout_s):
                return cast(R, await answer)
        except TimeoutError:
            raise CallTimeout(f"{self.address}: no answer to {type(request).__name__} in {timeout_s} s") from None
        finally:
            self._forget(record)

    async def open(self, kind: StreamKind, *, timeout_s: float) -> _MemoryFrameStream:
        server = self._server()
        factory = server.service.streams.get(kind)
        if factory is None:
            raise ConnectionLost(f"{self.address}: listener {server.listener} serves no {kind.value} stream")
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        pair = _Pair(self._fabric, self._network.node, server.node)

        def broken(reason: str) -> None:
            pair.break_both(reason)
            if not accepted.done():
                accepted.set_exception(ConnectionLost(f"{self.address}: {reason}"))

        record = self._register(server, broken)
        pair.on_end = lambda: self._forget(record)
        context = CallContext(server.listener, self._network.node)

        def arrive() -> None:
            if server.closed:
                self._back(server, lambda: broken("connection refused"))
                return
            server.spawn(_serve_session(pair, factory(context), server.network.on_bug))
            self._back(server, lambda: None if accepted.done() else accepted.set_result(None))

        self._fabric._deliver(self._network.node, server.node, arrive)
        try:
            async with asyncio.timeout(timeout_s):
                await accepted
        except TimeoutError:
            pair.break_both("not accepted in time")
            raise ConnectionLost(f"{self.address}: {kind.value} stream not accepted in {timeout_s} s") from None
        return _MemoryFrameStream(pair, self.address)

    async def close(self) -> None:
        for record in list(self._open):
            record.on_break("closed by us")

    def _server(self) -> _MemoryServer:
        server = self._fabric._listener_at(self.address)
        if server is None:
            raise ConnectionLost(f"{self.address}: connection refused")
        return server

    def _register(self, server: _MemoryServer, on_break: Callable[[str], None]) -> _Stream:
        record = _Stream(self._network.node, server.node, on_break)
        self._fabric._streams.add(record)
        self._open.add(record)
        return record

    def _forget(self, record: _Stream) -> None:
        self._fabric._streams.discard(record)
        self._open.discard(record)

    def _back(self, server: _MemoryServer, action: Callable[[], None]) -> None:
        self._fabric._deliver(server.node, self._network.node, action)


class _Queue:
    """Frames that reached one end and were not read yet, and whether more can come."""

    def __init__(self) -> None:
        self._frames: deque[memoryview] = deque()
        self._changed = asyncio.Event()
        self.ended = ""

    def put(self, frame: memoryview) -> None:
        if not self.ended:
            self._frames.append(frame)
            self._changed.set()

    def end(self, reason: str) -> None:
        self.ended = self.ended or reason
        self._changed.set()

    async def get(self) -> memoryview | None:
        while not self._frames:
            if self.ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._frames.popleft()


class _Pair:
    """One stream: a queue at each end, and how many frames are under way in each direction."""

    def __init__(self, fabric: MemoryFabric, client: str, server: str) -> None:
        self._fabric = fabric
        self.at_client = _Queue()
        self.at_server = _Queue()
        self.client = client
        self.server = server
        self.on_end: Callable[[], None] = lambda: None
        self.broken = ""
        self._under_way = {True: 0, False: 0}
        self._room = asyncio.Event()

    async def send(self, frame: Frame, *, to_server: bool) -> None:
        while self._under_way[to_server] >= FRAMES_QUEUED_MAX and not self.broken:
            self._room.clear()
            await self._room.wait()
        if self.broken:
            raise ConnectionLost(self.broken)
        data = memoryview(b"".join(frame))
        queue = self.at_server if to_server else self.at_client
        sender, receiver = (self.client, self.server) if to_server else (self.server, self.client)
        self._under_way[to_server] += 1
        self._fabric._deliver(sender, receiver, lambda: queue.put(data))

    async def take(self, *, at_server: bool) -> memoryview | None:
        frame = await (self.at_server if at_server else self.at_client).get()
        if frame is not None:
            self._under_way[at_server] -= 1
            self._room.set()
        return frame

    def end(self, reason: str, *, by_server: bool) -> None:
        """One side ended the stream in good order: the other learns of it after what was sent before."""
        sender, receiver = (self.server, self.client) if by_server else (self.client, self.server)
        (self.at_server if by_server else self.at_client).end(reason)
        other = self.at_client if by_server else self.at_server

        def arrive() -> None:
            other.end(reason)
            self.on_end()

        self._fabric._deliver(sender, receiver, arrive)

    def break_both(self, reason: str) -> None:
        self.broken = self.broken or reason
        self.at_client.end(reason)
        self.at_server.end(reason)
        self._room.set()
        self.on_end()


class _MemoryFrameStream:
    def __init__(self, pair: _Pair, address: Address) -> None:
        self._pair = pair
        self._address = address

    async def send(self, frame: Frame) -> None:
        if self._pair.at_client.ended:
            raise ConnectionLost(f"{self._address}: {self._pair.at_client.ended}")
        await self._pair.send(frame, to_server=True)

    async def receive(self) -> memoryview:
        frame = await self._pair.take(at_server=False)
        if frame is None:
            raise ConnectionLost(f"{self._address}: {self._pair.at_client.ended}")
        return frame

    def close(self) -> None:
        if not self._pair.at_client.ended:
            self._pair.end("closed by the caller", by_server=False)


class _ServerPipe:
    def __init__(self, pair: _Pair) -> None:
        self._pair = pair

    async def read(self) -> memoryview | None:
        return await self._pair.take(at_server=True)

    async def write(self, frame: Frame) -> None:
        await self._pair.send(frame, to_server=False)


async def _serve_session(pair: _Pair, session: FrameSession, on_bug: Callable[[BaseException], None]) -> None:
    reason = "closed by the server"
    try:
        await serve_stream(_ServerPipe(pair), session, unanswered_max=UNANSWERED_MAX, on_bug=on_bug)
    except BadFrame as bad:
        reason = str(bad)
    except Exception as bug:
        reason = "internal error"
        on_bug(bug)
    finally:
        pair.end(reason, by_server=True)


def _fail(future: asyncio.Future[Response], error: ConnectionLost) -> None:
    if not future.done():
        future.set_exception(error)


def _no_call(address: Address, request: Request[Any]) -> str:
    return f"{address}: this listener does not serve {type(request).__name__}"


def _log_bug(bug: BaseException) -> None:
    log.error("a handler raised", exc_info=bug)
