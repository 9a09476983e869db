"""A carrier inside one process, for tests and for the simulation: links that can be cut, slowed and broken.

Every node has its own :class:`MemoryNetwork` on one :class:`MemoryFabric`. A link is directed. A *cut* link holds what
is sent over it, as TCP does while it retransmits, and delivers it in order once healed; a *broken* connection loses
data in flight, and its streams end on both sides. Requests and responses cross as (immutable) objects; frames are
joined into new bytes, as by a socket.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar, cast

from tidelog.proto.calls.request import Request, Response
from tidelog.proto.transport.lasting import LOG_IN_AGAIN, LastingSession, LoginOver
from tidelog.proto.transport.network import (
    Address,
    BadFrame,
    CallContext,
    CallTimeout,
    ConnectionLost,
    Frame,
    FrameSession,
    FrameStream,
    Server,
    Service,
    SessionFactory,
    StreamKind,
)
from tidelog.proto.transport.pump import FramePipe, serve_stream
from tidelog.proto.transport.tcp_streams import OFFER, TcpFrameStream, TcpStreams, take_offer
from tidelog.security.session import UNSECURED, Session

R = TypeVar("R", bound=Response)

FRAMES_QUEUED_MAX: Final = 64
UNANSWERED_MAX: Final = 64
TCP_FRAME_BYTES_MAX: Final = 1 << 24
_FIRST_PORT: Final = 20_000

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Wire:
    """Carries one open stream, or one call in progress. Each direction keeps its order."""

    client: MemoryNetwork
    server: str
    what: str
    """The request's type or the stream's kind."""
    on_break: Callable[[str], None]
    """Ends the client's side."""
    on_break_server: Callable[[str], None] = lambda reason: None
    """Ends the server's side; does nothing for a call, whose handler is not notified."""
    lost: list[bool] = field(default_factory=lambda: [False, False])
    """Whether data in flight to the client, to the server, is lost."""
    due: list[float] = field(default_factory=lambda: [0.0, 0.0])
    closed: bool = False


@dataclass(slots=True)
class Link:
    """One direction between two nodes: whether it is cut, what it holds, and its delay."""

    held: deque[tuple[Wire, bool, Callable[[], None]]] = field(default_factory=deque)
    cut: bool = False
    delay_s: float = 0.0
    due: float = 0.0


class MemoryFabric:
    """The wires between the nodes of one process. For one event loop.

    A subclass may decide the fate of each wire by overriding :meth:`schedule`, :meth:`send_request` and
    :meth:`break_wire`.
    """

    def __init__(self) -> None:
        self._listeners: dict[Address, _MemoryServer] = {}
        self._owners: dict[Address, str] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._wires: dict[Wire, None] = {}
        self._networks: dict[str, list[MemoryNetwork]] = {}
        self._next_port = _FIRST_PORT

    def network(
        self,
        node: str,
        on_bug: Callable[[BaseException], None] | None = None,
        context: contextvars.Context | None = None,
        client_id: str = "",
    ) -> MemoryNetwork:
        """Return a node's carrier; ``node`` names it in :meth:`cut` and the other faults.

        Its services run in ``context``, by default the caller's. Nodes that it calls get its ``client_id``.
        """
        made = MemoryNetwork(self, node, on_bug or _log_bug, context, client_id)
        self._networks.setdefault(node, []).append(made)
        return made

    def cut(self, sender: str, receiver: str) -> None:
        """Hold everything that ``sender`` sends to ``receiver`` from now on."""
        self._link(sender, receiver).cut = True

    def heal(self, sender: str | None = None, receiver: str | None = None) -> None:
        """Restore one direction, or all; deliver held data in order."""
        for (a, b), link in list(self._links.items()):
            if link.cut and sender in (None, a) and receiver in (None, b):
                link.cut = False
                while link.held and not link.cut:
                    self.schedule(link, *link.held.popleft())

    def delay(self, sender: str, receiver: str, seconds: float) -> None:
        """Delay what ``sender`` sends to ``receiver`` by that much, still in order."""
        self._link(sender, receiver).delay_s = seconds

    def break_connections(self, a: str, b: str | None = None) -> None:
        """End every stream and call in progress between two nodes, or of one node."""
        for wire in self.wires_of(a, b):
            self.break_wire(wire, f"connection between {wire.client.node} and {wire.server} broke")

    def drop_node(self, node: str, end: Callable[[Wire, str], None] | None = None) -> None:
        """End the node's process: close its listeners, break its connections; it sends nothing more."""
        for address in [address for address, server in self._listeners.items() if server.node == node]:
            self._listeners.pop(address).closed = True
        for network in self._networks.pop(node, ()):
            network.dead = True
        for wire in self.wires_of(node):
            (end or self.break_wire)(wire, f"{node} is gone")

    def wires_of(self, a: str, b: str | None = None) -> list[Wire]:
        """Return every open stream and call in progress between two nodes, or of one node, in order of their start."""
        return [w for w in self._wires if a in (w.client.node, w.server) and b in (None, w.client.node, w.server)]

    # --- the fate of a wire -----------------------------------------------------------------------

    def schedule(self, link: Link, wire: Wire, to_server: bool, action: Callable[[], None]) -> None:
        """Schedule the :meth:`arrive` of something sent over a link that is not cut."""
        loop = asyncio.get_running_loop()
        if link.delay_s <= 0 and link.due <= loop.time():
            loop.call_soon(self.arrive, wire, to_server, action)
            return
        link.due = max(link.due, loop.time() + link.delay_s)
        loop.call_at(link.due, self.arrive, wire, to_server, action)

    def send_request(self, wire: Wire, arrive: Callable[[], None]) -> None:
        """Send a call's request."""
        self.deliver(wire, True, arrive)

    def break_wire(self, wire: Wire, reason: str) -> None:
        """End a wire for both sides; data in flight is lost."""
        wire.lost[:] = [True, True]
        wire.on_break(reason)
        wire.on_break_server(reason)

    def close_wire(self, wire: Wire, reason: str) -> None:
        """End a wire at the client's request."""
        self.break_wire(wire, reason)

    def arrive(self, wire: Wire, to_server: bool, action: Callable[[], None]) -> None:
        if not wire.lost[to_server]:
            action()

    def carried(self, wire: Wire, to_server: bool, frame: memoryview) -> memoryview:
        """Decide the fate of a stream's frame in flight."""
        return frame

    def on_send(self, client: str, request: Request[Any]) -> None:
        """Called when a node or client sends a request."""

    def on_arrival(self, server: str, request: Request[Any]) -> None:
        """Called when a request has reached the node that must answer it."""

    def session_of(self, node: str) -> Session:
        """Return the identity by which listeners know a node."""
        return UNSECURED

    def on_answer(self, server: str, request: Request[Any], response: Response, asked_s: float) -> None:
        """Called when a node has answered a request that arrived at a time of :meth:`now`."""

    def now(self) -> float:
        """Return the fabric's own time, for :meth:`on_answer`."""
        return asyncio.get_running_loop().time()

    def refuses(self, client: str, address: Address) -> bool:
        """Return whether a host tells a client that its listener at an address is gone."""
        owner = self._owners.get(address)
        return owner is not None and address not in self._listeners and not self._is_silent(client, owner)

    def is_cut(self, sender: str, receiver: str) -> bool:
        link = self._links.get((sender, receiver))
        return link is not None and link.cut

    def deliver(self, wire: Wire, to_server: bool, action: Callable[[], None]) -> None:
        """Send something over a wire: it arrives, in order, or is held while the link is cut."""
        client, server = wire.client.node, wire.server
        link = self._link(client, server) if to_server else self._link(server, client)
        if link.cut:
            link.held.append((wire, to_server, action))
        else:
            self.schedule(link, wire, to_server, action)

    # --- for the networks -----------------------------------------------------------------------

    def _link(self, sender: str, receiver: str) -> Link:
        return self._links.setdefault((sender, receiver), Link())

    def _bind(self, server: _MemoryServer, wanted: Address) -> Address:
        address = wanted
        while address.port == 0 or (wanted.port == 0 and address in self._listeners):
            address = Address(wanted.host, self._next_port)
            self._next_port += 1
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{address} is taken by {self._listeners[address].node}")
        if server.network.dead:
            raise OSError(errno.ENETDOWN, f"{server.node} is gone")
        self._listeners[address] = server
        self._owners[address] = server.node
        return address

    def _unbind(self, server: _MemoryServer) -> None:
        if self._listeners.get(server.address) is server:
            del self._listeners[server.address]

    def _open(self, network: MemoryNetwork, address: Address, what: str) -> Wire:
        """Return a wire to the current or former listener at an address."""
        server, owner = self._listeners.get(address), self._owners.get(address)
        if owner is None or network.dead or (server is None and not self._is_silent(network.node, owner)):
            raise ConnectionLost(f"{address}: connection refused")
        wire = Wire(network, owner, what, lambda reason: None)
        self._wires[wire] = None
        return wire

    def _is_silent(self, client: str, server: str) -> bool:
        """Return whether a refusal could not get through."""
        return self.is_cut(client, server) or self.is_cut(server, client)


class MemoryNetwork:
    """One node's carrier. Implements :class:`tidelog.proto.transport.network.Network`."""

    def __init__(
        self,
        fabric: MemoryFabric,
        node: str,
        on_bug: Callable[[BaseException], None],
        context: contextvars.Context | None,
        client_id: str,
    ) -> None:
        self.fabric = fabric
        self.node = node
        self.on_bug = on_bug
        self.context = context
        self.client_id = client_id
        self.logins: dict[Address, str] = {}
        """The login token for each listener that issued one: calls and streams carry it."""
        self.dead = False

        self.bind_tcp: Callable[[], TcpStreams] | None = None
        """If set, followers' streams go over TCP where both ends have it. Called to listen for them."""

    async def serve(self, listener: str, address: Address, service: Service) -> Server:
        return _MemoryServer(self, listener, address, service)

    def connect(self, address: Address, listener: str = "") -> MemoryConnection:
        return MemoryConnection(self, address)

    async def refuses(self, address: Address) -> bool:
        return self.fabric.refuses(self.node, address)


class _MemoryServer:
    def __init__(self, network: MemoryNetwork, listener: str, address: Address, service: Service) -> None:
        self.network = network
        self.node = network.node
        self.listener = listener
        self.service = service
        self._tasks: dict[asyncio.Future[Any], None] = {}
        self.closed = False
        self.address = network.fabric._bind(self, address)
        bind_tcp = network.bind_tcp if StreamKind.REPLICA_FETCH in service.streams else None
        self.tcp = None if bind_tcp is None else bind_tcp()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, context=self.network.context)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        del self._tasks[task]

    async def close(self, grace_s: float) -> None:
        self.closed = True
        self.network.fabric._unbind(self)
        if self._tasks and grace_s > 0:
            await asyncio.wait(list(self._tasks), timeout=grace_s)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        if self.tcp is not None:
            await self.tcp.close()


class MemoryConnection:
    """A link to one address. Implements :class:`tidelog.proto.transport.network.Connection`."""

    def __init__(self, network: MemoryNetwork, address: Address) -> None:
        self._network = network
        self._fabric = network.fabric
        self._open: dict[Wire, None] = {}
        self.address = address

    async def call(self, request: Request[R], *, timeout_s: float) -> R:
        fabric = self._fabric
        wire = self._wire(type(request).__name__)
        fabric.on_send(self._network.node, request)
        token = self._network.logins.get(self.address)
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        wire.on_break = lambda reason: _fail(answer, reason)

        def back(response: Response | None, trouble: str = "") -> None:
            if response is None:
                fabric.deliver(wire, False, lambda: _fail(answer, trouble))
            else:
                fabric.deliver(wire, False, lambda: None if answer.done() else answer.set_result(response))

        def arrive() -> None:
            server = fabric._listeners.get(self.address)
            if server is None or server.closed:  # while this was in progress
                back(None, f"{self.address}: connection refused")
            else:
                server.spawn(_serve_call(_Caller(server, self._network, token), request, back))

        fabric.send_request(wire, arrive)
        try:
            async with asyncio.timeout(timeout_s):
                return cast(R, await answer)
        except TimeoutError:
            raise CallTimeout(f"{self.address}: no answer to {type(request).__name__} in {timeout_s} s") from None
        finally:
            self._forget(wire)

    async def open(self, kind: StreamKind, *, timeout_s: float) -> FrameStream:
        fabric = self._fabric
        asks_tcp = self._network.bind_tcp is not None and kind is StreamKind.REPLICA_FETCH
        wire = self._wire(kind.value)
        token = self._network.logins.get(self.address)
        accepted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        pair = _Pair(fabric, wire)
        pair.on_end = lambda: self._forget(wire)

        def broken(reason: str) -> None:
            pair.client.end(reason)
            _fail(accepted, f"{self.address}: {reason}")
            pair.on_end()

        def refused(reason: str) -> None:
            fabric.deliver(wire, False, lambda: broken(reason))

        wire.on_break = broken
        wire.on_break_server = pair.server.end

        def arrive() -> None:
            server = fabric._listeners.get(self.address)
            if server is None or server.closed:
                refused("connection refused")
                return
            factory = server.service.streams.get(kind)
            if factory is None:
                refused(f"listener {server.listener} serves no {kind.value} stream")
                return

            def accept(offer: str) -> None:
                fabric.deliver(wire, False, lambda: None if accepted.done() else accepted.set_result(offer))

            tcp = server.tcp if asks_tcp else None
            server.spawn(_serve_session(pair, factory, _Caller(server, self._network, token), tcp, accept))
            if tcp is None:
                accept("")

        fabric.deliver(wire, True, arrive)
        try:
            async with asyncio.timeout(timeout_s):
                offer: str = await accepted
        except TimeoutError:
            fabric.close_wire(wire, "not accepted in time")
            raise ConnectionLost(f"{self.address}: {kind.value} stream not accepted in {timeout_s} s") from None
        stream = _MemoryFrameStream(pair, self.address)
        if not offer:
            return stream
        try:
            over_tcp = await take_offer(offer, self.address, None, TCP_FRAME_BYTES_MAX)
        except asyncio.CancelledError:
            stream.close()
            raise
        return stream if over_tcp is None else TcpFrameStream(self.address, stream, over_tcp)

    async def close(self) -> None:
        for wire in list(self._open):
            self._fabric.close_wire(wire, "closed by us")

    def _wire(self, what: str) -> Wire:
        wire = self._fabric._open(self._network, self.address, what)
        self._open[wire] = None
        return wire

    def _forget(self, wire: Wire) -> None:
        self._fabric._wires.pop(wire, None)
        self._open.pop(wire, None)


class _Caller:
    """The caller's identity for a server, by its login token if it has one. Looked up in the server's own time."""

    def __init__(self, server: _MemoryServer, client: MemoryNetwork, token: str | None) -> None:
        self.server = server
        self._client = client
        self._token = token

    def context(self) -> CallContext | None:
        """``None``: the login is over."""
        found = CallContext(self.server.listener, self._client.node, client_id=self._client.client_id)
        if self._token is None:
            return replace(found, session=self._client.fabric.session_of(self._client.node))
        find = self.server.service.sessions
        session = None if find is None else find(self._token, found.host)
        return None if session is None else replace(found, session=session)

    def lasting(self, inner: FrameSession) -> FrameSession:
        """Return a stream's session, which lasts as long as the login."""
        return inner if self._token is None else LastingSession(inner, lambda: self.context() is not None)


async def _serve_call(caller: _Caller, request: Request[Any], back: Callable[[Response | None, str], None]) -> None:
    server, context = caller.server, caller.context()
    if context is None:
        back(None, f"{server.address}: {LOG_IN_AGAIN}")
        return
    handler = server.service.calls.get(type(request))
    if handler is None:
        back(None, f"{server.address}: this listener does not serve {type(request).__name__}")
        return
    fabric = server.network.fabric
    asked_s = fabric.now()
    fabric.on_arrival(server.node, request)
    try:
        response = await handler(request, context)
    except asyncio.CancelledError:
        back(None, f"{server.address}: closing")
        raise
    except Exception as bug:
        server.network.on_bug(bug)
        back(None, f"{server.address}: internal error")
        return
    fabric.on_answer(server.node, request, response, asked_s)
    back(response, "")


class _End:
    """One end of a stream: received and unread frames, and whether more can come."""

    def __init__(self) -> None:
        self._frames: deque[memoryview] = deque()
        self._changed = asyncio.Event()
        self.under_way = 0
        """Frames sent to this end that it has not read."""
        self.room = asyncio.Event()
        self.ended = ""
        self.on_end: Callable[[], None] = lambda: None

    def put(self, frame: memoryview) -> None:
        if not self.ended:
            self._frames.append(frame)
            self._changed.set()

    def end(self, reason: str) -> None:
        self.ended = self.ended or reason
        self._changed.set()
        self.room.set()
        self.on_end()

    async def get(self) -> memoryview | None:
        while not self._frames:
            if self.ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        self.under_way -= 1
        self.room.set()
        return self._frames.popleft()


class _Pair:
    """One stream."""

    def __init__(self, fabric: MemoryFabric, wire: Wire) -> None:
        self._fabric = fabric
        self._wire = wire
        self.client = _End()
        self.server = _End()
        self.on_end: Callable[[], None] = lambda: None

    async def send(self, frame: Frame, *, to_server: bool) -> None:
        """Send to one end, waiting while it has too much unread. Raises ``ConnectionLost``."""
        source, target = (self.client, self.server) if to_server else (self.server, self.client)
        while target.under_way >= FRAMES_QUEUED_MAX and not (source.ended or target.ended):
            target.room.clear()
            await target.room.wait()
        if source.ended:
            raise ConnectionLost(source.ended)
        data = self._fabric.carried(self._wire, to_server, memoryview(b"".join(frame)))
        target.under_way += 1
        self._fabric.deliver(self._wire, to_server, lambda: target.put(data))

    def end(self, reason: str, *, by_server: bool) -> None:
        """End the stream cleanly from one side: the other learns of it after everything sent before."""
        source, target = (self.server, self.client) if by_server else (self.client, self.server)
        source.end(reason)

        def arrive() -> None:
            target.end(reason)
            self.on_end()

        self._fabric.deliver(self._wire, not by_server, arrive)


class _MemoryFrameStream:
    def __init__(self, pair: _Pair, address: Address) -> None:
        self._pair = pair
        self._address = address

    async def send(self, frame: Frame) -> None:
        try:
            await self._pair.send(frame, to_server=True)
        except ConnectionLost as lost:
            raise ConnectionLost(f"{self._address}: {lost}") from None

    async def receive(self) -> memoryview:
        frame = await self._pair.client.get()
        if frame is None:
            raise ConnectionLost(f"{self._address}: {self._pair.client.ended}")
        return frame

    def close(self) -> None:
        if not self._pair.client.ended:
            self._pair.end("closed by the caller", by_server=False)

    # --- as an OpeningStream of a TCP stream ---

    def on_end(self, ended: Callable[[], None]) -> None:
        self._pair.client.on_end = ended

    async def lost(self, otherwise: str) -> ConnectionLost:
        while await self._pair.client.get() is not None:
            pass
        return ConnectionLost(f"{self._address}: {self._pair.client.ended or otherwise}")


class _ServerPipe:
    def __init__(self, pair: _Pair) -> None:
        self._pair = pair

    async def read(self) -> memoryview | None:
        return await self._pair.server.get()

    async def write(self, frame: Frame) -> None:
        await self._pair.send(frame, to_server=False)


async def _serve_session(
    pair: _Pair, factory: SessionFactory, caller: _Caller, tcp: TcpStreams | None, accept: Callable[[str], None]
) -> None:
    """``tcp``: if the caller asked for it, gets an offer of it as ``accept``."""

    async def offering(offer: tuple[tuple[str, str], ...]) -> None:
        accept(dict(offer)[OFFER])

    reason, on_bug, context = "closed by the server", caller.server.network.on_bug, caller.context()
    try:
        if context is None:
            raise LoginOver(LOG_IN_AGAIN)
        session = caller.lasting(factory(context))
        async with AsyncExitStack() as lasts:
            pipe: FramePipe = _ServerPipe(pair)
            if tcp is not None:
                pipe = await lasts.enter_async_context(tcp.accepted(pipe, offering))
            await serve_stream(pipe, session, unanswered_max=UNANSWERED_MAX, on_bug=on_bug)
    except BadFrame as bad:
        reason = str(bad)
    except Exception as bug:
        reason = "internal error"
        on_bug(bug)
    finally:
        pair.end(reason, by_server=True)


def _fail(future: asyncio.Future[Any], reason: str) -> None:
    if not future.done():
        future.set_exception(ConnectionLost(reason))


def _log_bug(bug: BaseException) -> None:
    log.error("a handler raised", exc_info=bug)
