"""The carrier between processes: gRPC over TCP.

Calls are unary methods of the service ``tidelog.v1.Tidelog``; frame streams are its bidirectional
methods, whose messages are ``Frame { bytes payload = 1; }``, read and written by hand so that record
batches never pass through a protobuf object. Calls that are repeated for ever, or with every transaction, go as
frames of a stream too (:mod:`tidelog.proto.call_stream`), if the peer knows it. All of it runs on the process's one
event loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its core writes to stderr on its own; errors reach us as exceptions
# Its event engine hands each event from thread to thread once more: a fifth of the time from send to acknowledgement.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

import grpc
import grpc.aio

from tidelog.proto import call_stream
from tidelog.proto.api import CALLS
from tidelog.proto.call_stream import Answer, CallSession, CallStream, RecurringCalls
from tidelog.proto.controller_api import BrokerHeartbeatRequest, FetchMetadataRequest, RegisterBrokerRequest
from tidelog.proto.convert import BadMessage, from_proto, to_proto
from tidelog.proto.network import (
    Address,
    BadFrame,
    CallContext,
    CallHandler,
    CallTimeout,
    ConnectionLost,
    Frame,
    Server,
    Service,
    SessionFactory,
    StreamKind,
)
from tidelog.proto.pump import serve_stream
from tidelog.proto.request import Request, Response
from tidelog.proto.transaction_api import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)

R = TypeVar("R", bound=Response)

SERVICE: Final = "/tidelog.v1.Tidelog/"
_EOF: Final[Any] = vars(grpc.aio)["EOF"]
_FRAME_TAG: Final = 0x0A
_NEVER_MS: Final = 2**31 - 1
_CONNECT_MS: Final = 1_000
"""Time for one attempt to connect (gRPC's name for it says otherwise). Who is not there refuses at once; this
bounds the wait for who is far or busy, and for who was cut off and comes back."""
_ACCEPTED: Final = (("tidelog-stream", "accepted"),)
"""Tells a stream that is served from one that is refused: without it both look open until something is read."""
_CLIENT_STREAMS: Final = frozenset((StreamKind.PRODUCE, StreamKind.FETCH))
_RECURRING: Final[frozenset[type[Request[Any]]]] = frozenset(
    (
        AddOffsetsToTxnRequest,
        AddPartitionsToTxnRequest,
        BrokerHeartbeatRequest,
        EndTxnRequest,
        TxnOffsetCommitRequest,
        WriteTxnMarkersRequest,
    )
)
"""Calls that go as frames of one stream. All of them are small: none makes another one wait."""
_CALL_STREAM_OPEN_S: Final = 5.0
_LAST_EVENTS_S: Final = 0.005
"""gRPC still tells the loop of what a closed channel had under way, nobody can be asked when the last of it has
come, and if the loop was closed before, a traceback lands on the user's screen."""
_DATA_STREAMS: Final = frozenset((StreamKind.PRODUCE, StreamKind.FETCH, StreamKind.REPLICA_FETCH))
_CONTROL_CALLS: Final[frozenset[type[Request[Any]]]] = frozenset(
    (BrokerHeartbeatRequest, FetchMetadataRequest, RegisterBrokerRequest)
)
"""A connection whose first use is one of these, or Raft, carries what controllers say, and no data."""
_CONTROL_WINDOW: Final = 1024 * 1024
"""Bytes under way of one call or stream between controllers."""
_REQUEST_OF: Final = {cls.__name__.removesuffix("Request"): cls for cls in CALLS}
_KIND_OF: Final = {kind.value: kind for kind in StreamKind}
_STATUS_OF: Final = {code.value[0]: code for code in grpc.StatusCode}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """What each listener of a process takes from its peers. Beyond a bound it refuses or stops reading."""

    message_bytes_max: int = 128 * 1024 * 1024
    call_bytes_max: int = 16 * 1024 * 1024
    """Largest request of a call, which takes several times its size once it is read; frames may be larger."""
    connections_max: int = 10_000
    """Connections to one listener; a further one is closed at once."""
    connection_idle_ms: int = 600_000
    """Time after which a connection without calls and streams is closed; below 0 never."""
    handshake_ms: int = 10_000
    """Time in which a new connection must show that it speaks HTTP/2."""
    streams_per_connection_max: int = 1_000
    """Calls and streams of one connection; the peer waits with further ones."""
    under_way_max: int = 20_000
    """Calls and streams of one listener; a further one is refused as RESOURCE_EXHAUSTED."""
    unanswered_requests_max: int = 64
    """Frames of one produce or fetch stream without an answer; then it is not read."""
    unanswered_frames_max: int = 64
    """The same for the streams between nodes."""
    keepalive_ms: int = 20_000
    keepalive_timeout_ms: int = 10_000


class GrpcNetwork:
    """Implements :class:`tidelog.proto.network.Network`. ``on_bug`` hears of what a handler raised."""

    def __init__(self, limits: GrpcLimits | None = None, on_bug: Callable[[BaseException], None] | None = None) -> None:
        self._limits = limits or GrpcLimits()
        self.on_bug = on_bug or _log_bug

    async def serve(self, listener: str, address: Address, service: Service) -> Server:
        limits = self._limits
        server = grpc.aio.server(
            options=[
                *_common_options(limits),
                *_window_options(control=_DATA_STREAMS.isdisjoint(service.streams)),
                ("grpc.so_reuseport", 0),
                ("grpc.max_allowed_incoming_connections", limits.connections_max),
                ("grpc.max_connection_idle_ms", _idle_ms(limits.connection_idle_ms)),
                ("grpc.server_handshake_timeout_ms", limits.handshake_ms),
                ("grpc.max_concurrent_streams", limits.streams_per_connection_max),
                ("grpc.http2.min_ping_interval_without_data_ms", limits.keepalive_ms // 4),
                ("grpc.http2.max_ping_strikes", 0),
            ]
        )
        handlers = _Handlers(listener, service, limits, self)
        server.add_generic_rpc_handlers((handlers,))
        try:
            port = server.add_insecure_port(str(address))
        except RuntimeError as error:
            raise OSError(errno.EADDRINUSE, f"{address}: cannot be bound: taken, or no address of ours") from error
        if port == 0:
            raise OSError(errno.EADDRINUSE, f"{address}: cannot be bound: taken, or no address of ours")
        await server.start()
        return _GrpcServer(server, Address(address.host, port), handlers)

    def connect(self, address: Address) -> GrpcConnection:
        return GrpcConnection(address, self._limits)


def _idle_ms(wanted: int) -> int:
    return wanted if 0 <= wanted < _NEVER_MS else _NEVER_MS


def _common_options(limits: GrpcLimits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.message_bytes_max),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", limits.keepalive_ms),
        ("grpc.keepalive_timeout_ms", limits.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 0),
    ]


def _window_options(*, control: bool) -> list[tuple[str, int]]:
    """Data finds its window by probing: a ping with what is received. Messages that come a few times a second
    would each be followed by one, for a window that they never fill."""
    return [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", _CONTROL_WINDOW)] if control else []


# --- Serving ------------------------------------------------------------------------------------


class _GrpcServer:
    def __init__(self, server: grpc.aio.Server, address: Address, handlers: _Handlers) -> None:
        self._server = server
        self._handlers = handlers
        self.address = address

    async def close(self, grace_s: float) -> None:
        self._handlers.end_call_streams()
        await self._server.stop(grace_s)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs alone
    """Finds the handler of a method: a call's, a stream's, or none (gRPC answers UNIMPLEMENTED)."""

    def __init__(self, listener: str, service: Service, limits: GrpcLimits, network: GrpcNetwork) -> None:
        self._network = network
        self._limits = limits
        self._listener = listener
        self._under_way = 0
        self._ending = False
        self._call_sessions: set[CallSession] = set()
        self._handlers: dict[str, Any] = {}
        self._calls: dict[str, tuple[type[Request[Any]], CallHandler]] = {}
        for name, request_type in _REQUEST_OF.items():
            handler = service.calls.get(request_type)
            if handler is not None:
                self._calls[name] = (request_type, handler)
                self._handlers[SERVICE + name] = grpc.unary_unary_rpc_method_handler(self._call(request_type, handler))
        if _RECURRING.intersection(service.calls):
            name = SERVICE + call_stream.METHOD
            self._handlers[name] = grpc.stream_stream_rpc_method_handler(self._call_stream())
        for kind, factory in service.streams.items():
            self._handlers[SERVICE + kind.value] = grpc.stream_stream_rpc_method_handler(self._stream(kind, factory))

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._handlers.get(handler_call_details.method)

    def end_call_streams(self) -> None:
        """Let streams of calls end, each once it has answered what is under way."""
        self._ending = True
        for session in list(self._call_sessions):
            session.end()

    def _call(self, request_type: type[Request[Any]], handler: CallHandler) -> Any:
        async def serve(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            status, body = await self._answer(request_type, handler, data, context.peer())
            if status != call_stream.OK:
                await context.abort(_STATUS_OF[status], body.decode())
            return body

        return self._admitted(serve)

    async def _answer(self, request_type: type[Request[Any]], handler: CallHandler, data: bytes, peer: str) -> Answer:
        most = self._limits.call_bytes_max
        if len(data) > most:
            text = f"expected a {request_type.__name__} of at most {most} bytes, found {len(data)}"
            return Answer(call_stream.RESOURCE_EXHAUSTED, text.encode())
        try:
            request = from_proto(request_type, data)
        except BadMessage as bad:
            return Answer(call_stream.INVALID_ARGUMENT, str(bad).encode())
        try:
            return Answer(call_stream.OK, to_proto(await handler(request, CallContext(self._listener, peer))))
        except Exception as bug:
            self._network.on_bug(bug)
            return Answer(call_stream.INTERNAL, b"internal error")

    def _call_stream(self) -> Any:
        limits = self._limits

        async def serve(_requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            peer = context.peer()

            async def answer(name: str, data: bytes) -> Answer:
                found = self._calls.get(name)
                if found is None:
                    return Answer(call_stream.UNIMPLEMENTED, f"this listener does not serve {name}".encode())
                if self._under_way >= limits.under_way_max:
                    return Answer(call_stream.RESOURCE_EXHAUSTED, self._too_many().encode())
                self._under_way += 1
                try:
                    return await self._answer(*found, data, peer)
                finally:
                    self._under_way -= 1

            await context.send_initial_metadata(_ACCEPTED)
            session = CallSession(answer)
            self._call_sessions.add(session)
            if self._ending:
                session.end()
            try:
                await session.run(
                    _ServerPipe(context), unanswered_max=limits.streams_per_connection_max, on_bug=self._network.on_bug
                )
            except BadFrame as bad:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(bad))
            except asyncio.CancelledError:
                raise
            except Exception as bug:
                self._network.on_bug(bug)
                await context.abort(grpc.StatusCode.INTERNAL, "internal error")
            finally:
                self._call_sessions.discard(session)

        return self._admitted(serve)

    def _stream(self, kind: StreamKind, factory: SessionFactory) -> Any:
        limits = self._limits
        limit = limits.unanswered_requests_max if kind in _CLIENT_STREAMS else limits.unanswered_frames_max

        async def serve(_requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            await context.send_initial_metadata(_ACCEPTED)
            session = factory(CallContext(self._listener, context.peer()))
            try:
                await serve_stream(_ServerPipe(context), session, unanswered_max=limit, on_bug=self._network.on_bug)
            except BadFrame as bad:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(bad))
            except asyncio.CancelledError:
                raise
            except Exception as bug:
                self._network.on_bug(bug)
                await context.abort(grpc.StatusCode.INTERNAL, "internal error")

        return self._admitted(serve)

    def _admitted(self, serve: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        """Refuse what would be one call or stream too many of this listener, before any work on it."""
        most = self._limits.under_way_max

        async def admit(given: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            if self._under_way >= most:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, self._too_many())
            self._under_way += 1
            try:
                return await serve(given, context)
            finally:
                self._under_way -= 1

        return admit

    def _too_many(self) -> str:
        most = self._limits.under_way_max
        return f"expected at most {most} calls and streams under way on listener {self._listener}: try later"


class _ServerPipe:
    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context

    async def read(self) -> memoryview | None:
        try:
            message = await self._context.read()
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise ConnectionLost(str(error)) from None
        return None if message is _EOF else _payload(message)

    async def write(self, frame: Frame) -> None:
        try:
            await self._context.write(_message(frame))
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise ConnectionLost(str(error)) from None


# --- Calling ------------------------------------------------------------------------------------


class GrpcConnection:
    """Implements :class:`tidelog.proto.network.Connection` on a channel of its own."""

    def __init__(self, address: Address, limits: GrpcLimits) -> None:
        self.address = address
        self._limits = limits
        self._channel: grpc.aio.Channel | None = None
        self._calls: dict[type[Request[Any]], Any] = {}
        self._recurring = RecurringCalls(lambda: self._open(call_stream.METHOD, _CALL_STREAM_OPEN_S, control=True))
        self._closed = False

    async def call(self, request: Request[R], *, timeout_s: float) -> R:
        request_type = type(request)
        if request_type not in _RECURRING:
            return await self._call_by_itself(request, timeout_s)
        if (stream := self._recurring.stream) is not None:
            return await self._call_on_stream(stream, request, timeout_s)
        response = await self._call_by_itself(request, timeout_s)
        self._recurring.peer_answered()
        return response

    async def _call_on_stream(self, stream: CallStream, request: Request[R], timeout_s: float) -> R:
        name = type(request).__name__.removesuffix("Request")
        try:
            status, body = await stream.call(name, to_proto(request), timeout_s)
        except ConnectionLost as lost:
            raise ConnectionLost(f"{self.address}: {name}: {lost}") from None
        except TimeoutError:
            raise CallTimeout(f"{self.address}: no answer to {name} in time") from None
        if status != call_stream.OK:
            text = body.decode(errors="replace")
            raise _refused(self.address, _STATUS_OF.get(status), text, type(request).__name__)
        return from_proto(CALLS[type(request)], body)  # type: ignore[return-value]

    async def _call_by_itself(self, request: Request[R], timeout_s: float) -> R:
        if self._closed:
            raise ConnectionLost(f"{self.address}: closed by us")
        request_type = type(request)
        method = self._calls.get(request_type)
        if method is None:
            name = SERVICE + request_type.__name__.removesuffix("Request")
            method = self._calls[request_type] = self._ready_channel(
                control=request_type in _CONTROL_CALLS
            ).unary_unary(name, None, None)
        try:
            data = await method(to_proto(request), timeout=timeout_s)
        except grpc.RpcError as error:
            raise _lost(self.address, error, request_type.__name__) from None
        except asyncio.CancelledError:
            raise self._unless_ours() from None
        return cast(R, from_proto(CALLS[request_type], data))

    async def open(self, kind: StreamKind, *, timeout_s: float) -> _GrpcFrameStream:
        return await self._open(kind.value, timeout_s, control=kind is StreamKind.RAFT)

    async def _open(self, name: str, timeout_s: float, *, control: bool) -> _GrpcFrameStream:
        method: Any = self._ready_channel(control=control).stream_stream(SERVICE + name, None, None)
        call = method()
        try:
            async with asyncio.timeout(timeout_s):
                await call.wait_for_connection()
                if _ACCEPTED[0][0] not in await call.initial_metadata():
                    raise _refused(self.address, await call.code(), await call.details(), name)
        except grpc.RpcError as error:
            raise _lost(self.address, error, name) from None
        except TimeoutError:
            call.cancel()
            raise ConnectionLost(f"{self.address}: {name} stream not accepted in {timeout_s} s") from None
        except asyncio.CancelledError:
            call.cancel()
            raise self._unless_ours() from None
        return _GrpcFrameStream(self.address, call)

    async def close(self) -> None:
        self._closed = True
        await self._recurring.close()
        channel, self._channel = self._channel, None
        if channel is None:
            return
        await channel.close(None)
        await asyncio.sleep(_LAST_EVENTS_S)

    def _ready_channel(self, *, control: bool) -> grpc.aio.Channel:
        if self._closed:
            raise ConnectionLost(f"{self.address}: closed by us")
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(
                str(self.address),
                options=[
                    *_common_options(self._limits),
                    *_window_options(control=control),
                    ("grpc.enable_http_proxy", 0),
                    ("grpc.use_local_subchannel_pool", 1),
                    ("grpc.initial_reconnect_backoff_ms", 20),
                    ("grpc.min_reconnect_backoff_ms", _CONNECT_MS),
                    ("grpc.max_reconnect_backoff_ms", 200),
                    ("grpc.enable_retries", 0),
                ],
            )
        return self._channel

    def _unless_ours(self) -> BaseException:
        return _cancelled(self.address)


class _GrpcFrameStream:
    def __init__(self, address: Address, call: Any) -> None:
        self._address = address
        self._call = call

    async def send(self, frame: Frame) -> None:
        try:
            await self._call.write(_message(frame))
        except grpc.RpcError as error:
            raise _lost(self._address, error, "stream") from None
        except asyncio.InvalidStateError as error:
            raise ConnectionLost(f"{self._address}: {error}") from None
        except asyncio.CancelledError:
            raise _cancelled(self._address) from None

    async def receive(self) -> memoryview:
        try:
            message = await self._call.read()
        except grpc.RpcError as error:
            raise _lost(self._address, error, "stream") from None
        except asyncio.InvalidStateError as error:
            raise ConnectionLost(f"{self._address}: {error}") from None
        except asyncio.CancelledError:
            raise _cancelled(self._address) from None
        if message is _EOF:
            raise ConnectionLost(f"{self._address}: the peer ended the stream")
        return _payload(message)

    def close(self) -> None:
        self._call.cancel()


def _cancelled(address: Address) -> BaseException:
    """gRPC raises ``CancelledError`` both when we are cancelled and when the peer cut the call."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return asyncio.CancelledError()
    return ConnectionLost(f"{address}: the call was cut")


def _lost(address: Address, error: grpc.RpcError, what: str) -> ConnectionLost | CallTimeout:
    code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
    detail = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
    return _refused(address, code, detail, what)


def _refused(
    address: Address, code: grpc.StatusCode | None, detail: str | None, what: str
) -> ConnectionLost | CallTimeout:
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return CallTimeout(f"{address}: no answer to {what} in time")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return ConnectionLost(f"{address}: this listener does not serve {what}")
    return ConnectionLost(f"{address}: {what}: {detail}")


# --- Frames on the wire ---------------------------------------------------------------------------


def _message(frame: Frame) -> bytes:
    """Return the frame as a protobuf ``Frame``: tag, length as varint, pieces."""
    size = sum(map(len, frame))
    head = bytearray((_FRAME_TAG,))
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return b"".join((head, *frame))


def _payload(message: bytes) -> memoryview:
    """Return the payload of a protobuf ``Frame`` without copying it. Raises :class:`BadFrame`."""
    if message[:1] != b"\x0a":
        raise BadFrame(f"expected a Frame message of one bytes field, found {message[:8]!r}")
    size = shift = 0
    for at in range(1, min(len(message), 7)):
        byte = message[at]
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if size != len(message) - at - 1:
                break
            return memoryview(message)[at + 1 :]
    raise BadFrame(f"expected one field that fills the Frame message of {len(message)} bytes, found {message[:8]!r}")


def _log_bug(bug: BaseException) -> None:
    log.error("a handler raised", exc_info=bug)
