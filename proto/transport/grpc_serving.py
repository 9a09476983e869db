"""The server side of gRPC: calls and frame streams of one listener."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

import grpc
import grpc.aio

from tidelog.proto.calls.backup_api import ImportRecordsRequest
from tidelog.proto.calls.convert import BadMessage, from_proto, to_proto
from tidelog.proto.calls.request import Request
from tidelog.proto.calls.table import CALLS
from tidelog.proto.calls.user_api import SaslAuthenticateRequest
from tidelog.proto.transport import call_stream
from tidelog.proto.transport.call_stream import Answer, CallSession
from tidelog.proto.transport.grpc_peers import GrpcPeer, GrpcPeers
from tidelog.proto.transport.grpc_tls import (
    LoginNeeded,
    Sessions,
    server_credentials,
)
from tidelog.proto.transport.grpc_wire import (
    ACCEPTED,
    CLIENT_ID,
    CONTROL_WINDOW,
    EOF,
    LOGIN,
    LOGIN_METADATA_MAX,
    RECURRING,
    SERVICE,
    STATUS_OF,
    GrpcLimits,
    common_options,
    message,
    payload,
    window,
)
from tidelog.proto.transport.lasting import LOG_IN_AGAIN, LastingSession, LoginOver
from tidelog.proto.transport.network import (
    Address,
    BadFrame,
    CallContext,
    CallHandler,
    ConnectionLost,
    Frame,
    FrameSession,
    Server,
    Service,
    SessionFactory,
    StreamKind,
)
from tidelog.proto.transport.pump import FramePipe, serve_stream
from tidelog.proto.transport.tcp_streams import ASK, TcpStreams
from tidelog.security.tls_store import NotAuthenticated, TlsStore

_TAKES_CALLS: Final = "AioServer._server_main_loop"
_STARTING: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]] = WeakKeyDictionary()
"""Serializes server starts, so that a new task belongs to the server that is starting."""
BINDING_AGAIN: Final = "bind a listener again"
"""Name of the task."""
_BIND_AGAIN_S: Final = 0.1
_NEVER_MS: Final = 2**31 - 1
_CLIENT_STREAMS: Final = frozenset((StreamKind.PRODUCE, StreamKind.FETCH))
_DATA_STREAMS: Final = frozenset((StreamKind.PRODUCE, StreamKind.FETCH, StreamKind.REPLICA_FETCH))
_READ_AHEAD: Final = 4 * 1024 * 1024
"""Bytes of a client's call or stream that gRPC accepts before the node reads them. ``queued.max.request.bytes`` does
not count them. A larger message is received whole."""
_NOTICE_AGAIN_S: Final = 60.0
"""Time between log lines about a caller at the wrong listener."""
_NOTICED_MAX: Final = 1_000
_LOGIN_OPTIONS: Final = (
    ("grpc.max_metadata_size", LOGIN_METADATA_MAX),
    ("grpc.absolute_max_metadata_size", LOGIN_METADATA_MAX),
)
_REQUEST_OF: Final = {cls.__name__.removesuffix("Request"): cls for cls in CALLS}
_KIND_OF: Final = {kind.value: kind for kind in StreamKind}


log = logging.getLogger(__name__)


async def serve_grpc(
    listener: str,
    address: Address,
    service: Service,
    limits: GrpcLimits,
    store: TlsStore | None,
    on_bug: Callable[[BaseException], None],
    tcp_port: int | None,
) -> Server:
    """See :meth:`tidelog.proto.transport.network.Network.serve`. ``on_bug`` gets a handler's exception; ``tcp_port``:
    the port for followers' streams over TCP."""
    tcp = None
    if tcp_port is not None and StreamKind.REPLICA_FETCH in service.streams:
        tcp = await TcpStreams.bind(address.host, tcp_port, limits.message_bytes_max, store)
    handlers = _Handlers(listener, service, limits, on_bug, Sessions(store, service.sessions), tcp)

    async def make(at: Address) -> tuple[grpc.aio.Server, int, asyncio.Task[Any] | None]:
        server = grpc.aio.server(
            options=[
                *common_options(limits),
                *window(CONTROL_WINDOW if _DATA_STREAMS.isdisjoint(service.streams) else _READ_AHEAD),
                *(_LOGIN_OPTIONS if service.sessions is not None else ()),
                ("grpc.compression_enabled_algorithms_bitset", 1),  # none: few bytes may not become many
                ("grpc.so_reuseport", 0),
                ("grpc.max_allowed_incoming_connections", limits.connections_max),
                ("grpc.max_connection_idle_ms", _idle_ms(limits.connection_idle_ms)),
                ("grpc.server_handshake_timeout_ms", limits.handshake_ms),
                ("grpc.max_concurrent_streams", limits.streams_per_connection_max),
                ("grpc.http2.min_ping_interval_without_data_ms", limits.keepalive_ms // 4),
                ("grpc.http2.max_ping_strikes", 0),
            ]
        )
        server.add_generic_rpc_handlers((handlers,))
        port = _bind(server, at, store)
        async with _STARTING.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            return server, port, await _start(server)

    try:
        return _GrpcServer(listener, address, make, *await make(address), handlers)
    except BaseException:
        await handlers.close_tcp()
        raise


def _bind(server: grpc.aio.Server, address: Address, store: TlsStore | None) -> int:
    try:
        if store is None:
            port = server.add_insecure_port(str(address))
        else:
            port = server.add_secure_port(str(address), server_credentials(store))
    except RuntimeError as error:
        raise OSError(errno.EADDRINUSE, f"{address}: cannot be bound: taken, or no address of ours") from error
    if port == 0:
        raise OSError(errno.EADDRINUSE, f"{address}: cannot be bound: taken, or no address of ours")
    return port


def _idle_ms(wanted: int) -> int:
    return wanted if 0 <= wanted < _NEVER_MS else _NEVER_MS


async def _start(server: grpc.aio.Server) -> asyncio.Task[Any] | None:
    """Start the server; if cancelled, stop it again, because gRPC itself would continue and log an error in the end.
    Return the task in which gRPC accepts calls, if it can be found."""
    before = asyncio.all_tasks()
    starting = asyncio.ensure_future(server.start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await starting
        await server.stop(None)
        raise
    return next((task for task in asyncio.all_tasks() - before if _takes_calls(task)), None)


def _takes_calls(task: asyncio.Task[Any]) -> bool:
    return getattr(task.get_coro(), "__qualname__", "") == _TAKES_CALLS


_Make = Callable[[Address], Awaitable[tuple[grpc.aio.Server, int, "asyncio.Task[Any] | None"]]]


class _GrpcServer:
    """A bound listener. grpc.aio ends a server for good at a call with a path that is not UTF-8, which anybody may
    send: then another server is bound in its place."""

    def __init__(
        self,
        listener: str,
        address: Address,
        make: _Make,
        server: grpc.aio.Server,
        port: int,
        taking: asyncio.Task[Any] | None,
        handlers: _Handlers,
    ) -> None:
        self._listener = listener
        self._make = make
        self._server = server
        self._handlers = handlers
        self._closing = False
        self._again: asyncio.Task[None] | None = None
        self.address = Address(address.host, port)
        self._watch(taking)

    def _watch(self, taking: asyncio.Task[Any] | None) -> None:
        if taking is not None:
            taking.add_done_callback(self._ended)

    def _ended(self, taking: asyncio.Task[Any]) -> None:
        if self._closing or taking.cancelled() or (error := taking.exception()) is None:
            return
        log.error("listener %s: gRPC ended it (%s): binding it again", self._listener, error)
        self._again = asyncio.get_running_loop().create_task(self._bind_again(), name=BINDING_AGAIN)

    async def _bind_again(self) -> None:
        while not self._closing:
            try:
                self._server, _, taking = await self._make(self.address)
            except OSError as error:
                log.warning("%s; trying again", error)
                await asyncio.sleep(_BIND_AGAIN_S)
            else:
                self._watch(taking)
                return

    def peers(self) -> Sequence[GrpcPeer]:
        """See :class:`tidelog.proto.transport.network.ListsPeers`."""
        return self._handlers.peers.open()

    async def close(self, grace_s: float) -> None:
        self._closing = True
        if self._again is not None:
            self._again.cancel()
            await asyncio.wait((self._again,))
        self._handlers.end_call_streams()
        await self._server.stop(grace_s)
        await self._handlers.close_tcp()


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs alone
    """Finds the handler of a method: a call's, a stream's, or none (gRPC answers UNIMPLEMENTED)."""

    def __init__(
        self,
        listener: str,
        service: Service,
        limits: GrpcLimits,
        on_bug: Callable[[BaseException], None],
        sessions: Sessions,
        tcp: TcpStreams | None,
    ) -> None:
        self._on_bug = on_bug
        self._tcp = tcp
        self._sessions = sessions
        self._limits = limits
        self._listener = listener
        self._elsewhere = service.elsewhere
        self._logs_in = service.sessions is not None
        self._of_clients = not _CLIENT_STREAMS.isdisjoint(service.streams)
        self._noticed: dict[tuple[str, str], float] = {}
        """When each wrong caller was last logged, by host and method."""
        self._under_way = 0
        self.peers: Final = GrpcPeers()
        self._logging_in: Counter[str] = Counter()
        """Login calls in progress, by connection."""
        self._ending = False
        self._call_sessions: set[CallSession] = set()
        self._handlers: dict[str, Any] = {}
        self._calls: dict[str, tuple[type[Request[Any]], CallHandler]] = {}
        for name, request_type in _REQUEST_OF.items():
            handler = service.calls.get(request_type)
            if handler is not None:
                self._calls[name] = (request_type, handler)
                self._handlers[SERVICE + name] = grpc.stream_unary_rpc_method_handler(self._call(request_type, handler))
        if RECURRING.intersection(service.calls):
            name = SERVICE + call_stream.METHOD
            self._handlers[name] = grpc.stream_stream_rpc_method_handler(self._call_stream())
        for kind, factory in service.streams.items():
            self._handlers[SERVICE + kind.value] = grpc.stream_stream_rpc_method_handler(self._stream(kind, factory))

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method: str = handler_call_details.method
        return self._handlers.get(method) or self._refuse(method.removeprefix(SERVICE))

    def _refuse(self, name: str) -> Any:
        """Return a handler that refuses a method of another listener, and report it at both ends. None for unknown
        methods."""
        if name not in _REQUEST_OF and name not in _KIND_OF:
            return None
        text = f"listener {self._listener} does not serve {name}; {self._elsewhere}"

        async def refuse(_given: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            self._notice(context.peer(), name, text)
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, text)

        return grpc.stream_stream_rpc_method_handler(refuse)

    def _notice(self, peer: str, name: str, text: str) -> None:
        """Log a caller at the wrong listener, but not each time: it will try again."""
        now, key = asyncio.get_running_loop().time(), (peer.rpartition(":")[0], name)
        if now - self._noticed.get(key, -_NOTICE_AGAIN_S) < _NOTICE_AGAIN_S:
            return
        if len(self._noticed) >= _NOTICED_MAX:
            self._noticed.clear()
        self._noticed[key] = now
        log.warning("refusing a request of %s: %s", peer, text)

    def end_call_streams(self) -> None:
        """Let call streams end, each after it has answered the calls in progress."""
        self._ending = True
        for session in list(self._call_sessions):
            session.end()

    async def close_tcp(self) -> None:
        if self._tcp is not None:
            await self._tcp.close()

    def _call(self, request_type: type[Request[Any]], handler: CallHandler) -> Any:
        """Serve a call as if its requests were a stream: so its request is read only after the caller is authenticated,
        and gRPC accepts no more than its window from a stranger."""

        async def serve(_requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            if request_type is SaslAuthenticateRequest:
                with self._logging_in_at(context.peer()) as too_many:
                    if too_many:
                        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, too_many)
                    if not (data := _metadata(context, LOGIN)):
                        text = f"expected a message of a login as metadata {LOGIN}, found none"
                        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
                    caller = self._caller(context, logs_in=True)
                    return await self._answered(request_type, handler, data, caller, context)
            caller = self._caller(context)
            given: Any = await context.read()
            return await self._answered(request_type, handler, b"" if given is EOF else given, caller, context)

        return self._admitted(serve)

    @contextmanager
    def _logging_in_at(self, connection: str) -> Iterator[str]:
        """Count a login call; yield why it is refused, if it is."""
        most, each = self._limits.logins_max, self._limits.logins_per_connection_max
        counts = self._logging_in
        if counts.total() >= most or counts[connection] >= each:
            yield f"expected at most {each} calls of logins under way on a connection, {most} on all: try later"
            return
        counts[connection] += 1
        try:
            yield ""
        finally:
            counts[connection] -= 1
            if not counts[connection]:
                del counts[connection]

    async def _answered(
        self,
        request_type: type[Request[Any]],
        handler: CallHandler,
        data: bytes,
        caller: CallContext,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> bytes:
        status, body = await self._answer(request_type, handler, data, caller)
        if status != call_stream.OK:
            await context.abort(STATUS_OF[status], body.decode())
        return body

    async def _answer(
        self, request_type: type[Request[Any]], handler: CallHandler, data: bytes, caller: CallContext
    ) -> Answer:
        limits, of_clients = self._limits, self._of_clients
        small = of_clients and request_type is not ImportRecordsRequest
        most = min(limits.call_bytes_max, limits.client_call_bytes_max) if small else limits.call_bytes_max
        if len(data) > most:
            text = f"expected a {request_type.__name__} of at most {most} bytes, found {len(data)}"
            return Answer(call_stream.RESOURCE_EXHAUSTED, text.encode())
        try:
            items_max = limits.client_items_max if of_clients else limits.controller_items_max
            request = from_proto(request_type, data, items_max=items_max)
        except BadMessage as bad:
            return Answer(call_stream.INVALID_ARGUMENT, str(bad).encode())
        try:
            return Answer(call_stream.OK, to_proto(await handler(request, caller)))
        except Exception as bug:
            self._on_bug(bug)
            return Answer(call_stream.INTERNAL, b"internal error")

    def _call_stream(self) -> Any:
        limits = self._limits

        async def serve(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            caller = self._caller(context)

            lasts = self._sessions.lasting(context)

            async def answer(name: str, data: bytes) -> Answer:
                if not lasts():
                    session.end()
                    return Answer(call_stream.UNAUTHENTICATED, LOG_IN_AGAIN.encode())
                found = self._calls.get(name)
                if found is None:
                    return Answer(call_stream.UNIMPLEMENTED, f"this listener does not serve {name}".encode())
                if self._under_way >= limits.under_way_max:
                    return Answer(call_stream.RESOURCE_EXHAUSTED, self._too_many().encode())
                self._under_way += 1
                try:
                    return await self._answer(*found, data, caller)
                finally:
                    self._under_way -= 1

            await context.send_initial_metadata(ACCEPTED)
            session = CallSession(answer)
            self._call_sessions.add(session)
            if self._ending:
                session.end()
            most = limits.streams_per_connection_max
            try:
                async with self._aborting(context):
                    with self.peers.stream(caller, context):
                        await session.run(_ServerPipe(context), unanswered_max=most, on_bug=self._on_bug)
            finally:
                self._call_sessions.discard(session)

        return self._admitted(serve)

    def _caller(self, context: grpc.aio.ServicerContext[Any, Any], *, logs_in: bool = False) -> CallContext:
        client_id = _metadata(context, CLIENT_ID).decode(errors="replace")
        session = self._sessions.of(context, logs_in=logs_in)
        return CallContext(self._listener, context.peer(), session, client_id=client_id)

    def _stream(self, kind: StreamKind, factory: SessionFactory) -> Any:
        limits = self._limits
        limit = limits.unanswered_requests_max if kind in _CLIENT_STREAMS else limits.unanswered_frames_max

        async def serve(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            caller = self._caller(context)
            async with self._aborting(context), self._accepted(context, kind) as pipe:
                session: FrameSession = factory(caller)
                if self._logs_in:
                    session = LastingSession(session, self._sessions.lasting(context))
                with self.peers.stream(caller, context):
                    await serve_stream(pipe, session, unanswered_max=limit, on_bug=self._on_bug)

        return self._admitted(serve)

    @asynccontextmanager
    async def _accepted(
        self, context: grpc.aio.ServicerContext[Any, Any], kind: StreamKind
    ) -> AsyncIterator[FramePipe]:
        """Accept a stream. Its frames come over TCP if the caller asked for that and then connects."""
        pipe = _ServerPipe(context)
        asked: Any = context.invocation_metadata() or ()  # pairs, despite the stubs
        if self._tcp is None or kind is not StreamKind.REPLICA_FETCH or ASK[0][0] not in dict(asked):
            await context.send_initial_metadata(ACCEPTED)
            yield pipe
            return
        offering = self._tcp.accepted(pipe, lambda offer: context.send_initial_metadata((*ACCEPTED, *offer)))
        async with offering as chosen:
            yield chosen

    @asynccontextmanager
    async def _aborting(self, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
        """End a stream with the status of the error that serving it raises."""
        try:
            yield
        except LoginOver as over:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(over))
        except BadFrame as bad:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(bad))
        except Exception as bug:
            self._on_bug(bug)
            await context.abort(grpc.StatusCode.INTERNAL, "internal error")

    def _admitted(self, serve: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        """Refuse a call or stream beyond this listener's limit, before any work on it."""
        most = self._limits.under_way_max

        async def admit(given: object, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            if self._under_way >= most:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, self._too_many())
            self._under_way += 1
            try:
                return await serve(given, context)
            except NotAuthenticated as nobody:
                self._notice(context.peer(), "", str(nobody))
                text = str(nobody) if isinstance(nobody, LoginNeeded) else "the certificate names nobody here"
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, text)
            finally:
                self._under_way -= 1

        return admit

    def _too_many(self) -> str:
        most = self._limits.under_way_max
        return f"expected at most {most} calls and streams under way on listener {self._listener}: try later"


def _metadata(context: grpc.aio.ServicerContext[Any, Any], name: str) -> bytes:
    """Return the bytes that a caller sent under a name; empty if none."""
    pairs: Any = context.invocation_metadata() or ()  # the stubs lack it
    return dict(pairs).get(name, b"")  # type: ignore[no-any-return]


class _ServerPipe:
    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context

    async def read(self) -> memoryview | None:
        try:
            message = await self._context.read()
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise ConnectionLost(str(error)) from None
        return None if message is EOF else payload(message)

    async def write(self, frame: Frame) -> None:
        try:
            await self._context.write(message(frame))
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise ConnectionLost(str(error)) from None
