"""The client side of gRPC: a connection with its channel, login and streams."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import grpc
import grpc.aio

from tidelog.proto.calls.controller_api import BrokerHeartbeatRequest, FetchMetadataRequest, RegisterBrokerRequest
from tidelog.proto.calls.convert import from_proto, to_proto
from tidelog.proto.calls.request import Request, Response
from tidelog.proto.calls.table import CALLS
from tidelog.proto.calls.user_api import SaslAuthenticateRequest
from tidelog.proto.transport import call_stream
from tidelog.proto.transport.call_stream import CallStream, RecurringCalls
from tidelog.proto.transport.grpc_login import ClientLogin, MakeLogin
from tidelog.proto.transport.grpc_tls import (
    channel_credentials,
    login_metadata,
    not_greeted,
    refusal,
    suspicion,
)
from tidelog.proto.transport.grpc_wire import (
    ACCEPTED,
    CLIENT_ID,
    CONTROL_WINDOW,
    EOF,
    LOGIN,
    NO_SUCH_METHOD,
    RECURRING,
    SERVICE,
    STATUS_OF,
    GrpcLimits,
    common_options,
    message,
    payload,
    window,
)
from tidelog.proto.transport.http2_referral import ELSEWHERE
from tidelog.proto.transport.network import (
    Address,
    CallTimeout,
    ConnectionLost,
    Frame,
    FrameStream,
    LoginNotMade,
    NotServedHere,
    StreamKind,
    TlsRefused,
)
from tidelog.proto.transport.tcp_streams import ASK, OFFER, TcpFrameStream, take_offer
from tidelog.security.tls_store import TlsStore

R = TypeVar("R", bound=Response)
Metadata = tuple[tuple[str, str | bytes], ...]

_CONNECT_MS: Final = 1_000
"""Time for one attempt to connect (despite gRPC's name for it). An absent peer refuses immediately; this bounds the
wait for peers that are far, busy, or coming back after a network failure."""
_CONNECT_MS_MAX: Final = 10_000
"""The same for a peer that accepts connections but did not greet in time: each attempt gets twice as long as the one
before. Source of the bound: Kafka's ``socket.connection.setup.timeout.ms``."""
_CALL_STREAM_OPEN_S: Final = 5.0
_LAST_EVENTS_S: Final = 0.005
"""Time to keep the loop open after a channel was closed. gRPC still reports operations that were in progress, does not
say when the last report has come, and prints a traceback if the loop is closed by then."""
_CONTROL_CALLS: Final[frozenset[type[Request[Any]]]] = frozenset(
    (BrokerHeartbeatRequest, FetchMetadataRequest, RegisterBrokerRequest)
)
"""A connection whose first use is one of these, or Raft, carries control traffic and no data."""
_NO_GRPC: Final = "Failed parsing HTTP/2"
"""gRPC's message for a server that answers in another protocol."""


class LoginNotLasting(LoginNotMade):
    """The peer no longer knows this client's login."""


class GrpcConnection:
    """Implements :class:`tidelog.proto.transport.network.Connection` on its own channel."""

    def __init__(
        self,
        address: Address,
        limits: GrpcLimits,
        tls: TlsStore | None = None,
        login: MakeLogin | None = None,
        client_id: str = "",
        tcp: bool = False,
    ) -> None:
        self.address = address
        self._tcp = tcp
        self._named = ((CLIENT_ID, client_id.encode()),) if client_id else ()
        self._login = (
            None if login is None else ClientLogin(address, login, self._call_unary, encrypted=tls is not None)
        )
        self._limits = limits
        self._tls = tls
        self._tls_version = 0
        self._before: grpc.aio.Channel | None = None
        """The channel with the previous key and certificates: operations in progress on it continue."""
        self._channel: grpc.aio.Channel | None = None
        self._connect_ms = _CONNECT_MS
        self._late_after = math.inf
        """When an attempt of the channel may have been too short, by the loop's clock."""
        self._calls: dict[type[Request[Any]], Any] = {}
        self._closing: asyncio.Task[None] | None = None
        self._recurring = RecurringCalls(lambda: self._open(call_stream.METHOD, _CALL_STREAM_OPEN_S, control=True))
        self._closed = False

    async def call(self, request: Request[R], *, timeout_s: float) -> R:
        request_type = type(request)
        if request_type not in RECURRING:
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
        if status == call_stream.UNAUTHENTICATED and self._login is not None:
            self._login.forget()
            return await self._call_by_itself(request, timeout_s)
        if status != call_stream.OK:
            text = body.decode(errors="replace")
            raise _refused(self.address, STATUS_OF.get(status), text, type(request).__name__)
        return from_proto(CALLS[type(request)], body)  # type: ignore[return-value]

    async def _call_by_itself(self, request: Request[R], timeout_s: float) -> R:
        login = self._login
        if login is None:
            return await self._call_unary(request, timeout_s, ())
        try:
            return await self._call_unary(request, timeout_s, login_metadata(await login.token(timeout_s)))
        except LoginNotLasting:
            login.forget()
        return await self._call_unary(request, timeout_s, login_metadata(await login.token(timeout_s)))

    async def _call_unary(self, request: Request[R], timeout_s: float, shown: Metadata) -> R:
        if self._closed:
            raise ConnectionLost(f"{self.address}: closed by us")
        request_type = type(request)
        channel = self._ready_channel(control=request_type in _CONTROL_CALLS)
        method = self._calls.get(request_type)
        if method is None:
            name = SERVICE + request_type.__name__.removesuffix("Request")
            method = self._calls[request_type] = channel.unary_unary(name, None, None)
        try:
            sent = to_proto(request)
            if request_type is SaslAuthenticateRequest:
                sent, shown = b"", ((LOGIN, sent),)
            data = await method(sent, timeout=timeout_s, metadata=(*shown, *self._named))
        except grpc.RpcError as error:
            raise self._lost(error, request_type.__name__) from None
        except asyncio.CancelledError:
            raise self._unless_ours() from None
        return cast(R, from_proto(CALLS[request_type], data))

    async def open(self, kind: StreamKind, *, timeout_s: float) -> FrameStream:
        asked = ASK if self._tcp and kind is StreamKind.REPLICA_FETCH else ()
        return await self._open(kind.value, timeout_s, asked, control=kind is StreamKind.RAFT)

    async def _open(self, name: str, timeout_s: float, asked: Metadata = (), *, control: bool) -> FrameStream:
        login = self._login
        if login is None:
            return await self._open_as(name, timeout_s, asked, control=control)
        try:
            shown = (*asked, *login_metadata(await login.token(timeout_s)))
            return await self._open_as(name, timeout_s, shown, control=control)
        except LoginNotLasting:
            login.forget()
        shown = (*asked, *login_metadata(await login.token(timeout_s)))
        return await self._open_as(name, timeout_s, shown, control=control)

    async def _open_as(self, name: str, timeout_s: float, shown: Metadata, *, control: bool) -> FrameStream:
        method: Any = self._ready_channel(control=control).stream_stream(SERVICE + name, None, None)
        call = method(metadata=(*shown, *self._named))
        try:
            async with asyncio.timeout(timeout_s):
                await call.wait_for_connection()
                told = await call.initial_metadata()
                if ACCEPTED[0][0] not in told:
                    code, detail = await call.code(), await call.details()
                    raise self._unauthenticated(code, detail) or _refused(self.address, code, detail, name)
        except grpc.RpcError as error:
            raise self._lost(error, name) from None
        except TimeoutError:
            call.cancel()
            raise ConnectionLost(f"{self.address}: {name} stream not accepted in {timeout_s} s") from None
        except asyncio.CancelledError:
            call.cancel()
            raise self._unless_ours() from None
        if self._tcp and (offer := dict(told).get(OFFER)) is not None:
            try:
                wire = await take_offer(offer, self.address, self._tls, self._limits.message_bytes_max)
            except asyncio.CancelledError:
                call.cancel()
                raise
            if wire is not None:
                return TcpFrameStream(self.address, _Opening(self.address, call), wire)
        return _GrpcFrameStream(self.address, call)

    async def close(self) -> None:
        self._closed = True
        await self._recurring.close()
        channels = [found for found in (self._before, self._channel) if found is not None]
        self._before = self._channel = None
        if not channels:
            return
        for channel in channels:
            await channel.close(None)
        await asyncio.sleep(_LAST_EVENTS_S)

    def _ready_channel(self, *, control: bool) -> grpc.aio.Channel:
        if self._closed:
            raise ConnectionLost(f"{self.address}: closed by us")
        tls = self._tls
        if tls is not None and not tls.rules.serves:
            tls.refresh()  # nodes check their files periodically, clients when they need them
        if tls is not None and self._tls_version != tls.version:
            self._renew(tls.version)
        if self._channel is None:
            options = [
                *common_options(self._limits),
                *(window(CONTROL_WINDOW) if control else []),
                ("grpc.enable_http_proxy", 0),
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.initial_reconnect_backoff_ms", 20),
                ("grpc.min_reconnect_backoff_ms", self._connect_ms),
                ("grpc.max_reconnect_backoff_ms", 200),
                ("grpc.enable_retries", 0),
            ]
            self._late_after = asyncio.get_running_loop().time() + self._connect_ms / 1_000
            if tls is None:
                self._channel = grpc.aio.insecure_channel(str(self.address), options)
            else:
                self._channel = grpc.aio.secure_channel(str(self.address), channel_credentials(tls), options)
        return self._channel

    def _renew(self, version: int) -> None:
        """Switch to a new channel; close the last but one, with everything still open on it."""
        if self._before is not None:
            self._closing = asyncio.get_running_loop().create_task(self._before.close(None))
        self._before, self._channel = self._channel, None
        self._late_after = math.inf
        self._tls_version = version
        self._calls.clear()

    def _be_patient(self) -> None:
        """Give a peer that did not greet in time longer, on a new channel. Several calls can fail by one attempt."""
        if self._connect_ms < _CONNECT_MS_MAX and asyncio.get_running_loop().time() >= self._late_after:
            self._connect_ms = min(self._connect_ms * 2, _CONNECT_MS_MAX)
            self._renew(self._tls_version)

    def _unauthenticated(self, code: grpc.StatusCode | None, detail: str | None) -> NotServedHere | None:
        """Explain the error of a peer that does not know us."""
        if code is not grpc.StatusCode.UNAUTHENTICATED:
            return None
        refused = LoginNotMade if "login" in (detail or "") else TlsRefused
        return (refused if self._login is None else LoginNotLasting)(f"{self.address}: {detail}")

    def _unless_ours(self) -> BaseException:
        return _cancelled(self.address)

    def _lost(self, error: grpc.RpcError, what: str) -> ConnectionLost | CallTimeout:
        lost = _lost(self.address, error, what)
        if type(lost) is not ConnectionLost or not isinstance(error, grpc.aio.AioRpcError):
            return lost
        detail = error.details() or ""
        if not_greeted(detail):
            self._be_patient()
        if (nobody := self._unauthenticated(error.code(), detail)) is not None:
            return nobody
        if (refused := refusal(detail)) is not None:
            return TlsRefused(f"{self.address}: {refused}")
        return ConnectionLost(str(lost) + suspicion(detail, tls=self._tls is not None))


class _GrpcFrameStream:
    def __init__(self, address: Address, call: Any) -> None:
        self._address = address
        self._call = call

    async def send(self, frame: Frame) -> None:
        try:
            await self._call.write(message(frame))
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
        if message is EOF:
            raise ConnectionLost(f"{self._address}: the peer ended the stream")
        return payload(message)

    def close(self) -> None:
        self._call.cancel()


class _Opening:
    """Implements :class:`tidelog.proto.transport.tcp_streams.OpeningStream`."""

    def __init__(self, address: Address, call: Any) -> None:
        self._address = address
        self._call = call
        self.close = call.cancel

    def on_end(self, ended: Callable[[], None]) -> None:
        self._call.add_done_callback(lambda _: ended())

    async def lost(self, otherwise: str) -> OSError:
        code, detail = await self._call.code(), await self._call.details()
        return _refused(self._address, code, detail or otherwise, "stream")


def _cancelled(address: Address) -> BaseException:
    """gRPC raises ``CancelledError`` both when we are cancelled and when the peer cut the call."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return asyncio.CancelledError()
    return ConnectionLost(f"{address}: the call was cut")


def _lost(address: Address, error: grpc.RpcError, what: str) -> ConnectionLost | CallTimeout:
    if not isinstance(error, grpc.aio.AioRpcError):
        return _refused(address, None, str(error), what)
    trailers: Any = error.trailing_metadata()  # pairs, despite the stubs
    if (elsewhere := dict(trailers).get(ELSEWHERE)) is not None:
        return NotServedHere(f"{address}: {error.details()}", Address.read(elsewhere))
    return _refused(address, error.code(), error.details(), what)


def _refused(
    address: Address, code: grpc.StatusCode | None, detail: str | None, what: str
) -> ConnectionLost | CallTimeout:
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return CallTimeout(f"{address}: no answer to {what} in time")
    if code is grpc.StatusCode.FAILED_PRECONDITION:  # see proto.http2_referral
        return NotServedHere(f"{address}: {detail}")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        said = detail if detail and detail != NO_SUCH_METHOD else f"this listener does not serve {what}"
        return NotServedHere(f"{address}: {said}")
    if detail is not None and _NO_GRPC in detail:
        kind = "HTTP" if "http1.x" in detail else "another protocol"
        return NotServedHere(f"{address}: expected a broker's listener, found a server that speaks {kind}")
    return ConnectionLost(f"{address}: {what}: {detail}")
