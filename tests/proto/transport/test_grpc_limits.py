"""A listener's limits for its peers: connections, calls, streams, unanswered requests, idle time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.proto.calls import api
from tidelog.proto.calls.convert import to_proto
from tidelog.proto.calls.user_api import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.proto.transport.caller import FrameCaller
from tidelog.proto.transport.frames import correlation_of
from tidelog.proto.transport.grpc_serving import BINDING_AGAIN
from tidelog.proto.transport.grpc_transport import GrpcNetwork
from tidelog.proto.transport.grpc_wire import LOGIN, SERVICE, GrpcLimits
from tidelog.proto.transport.network import Address, CallContext, ConnectionLost, Frame, Server, Service, StreamKind
from tidelog.testing.ports import free_ports, taken

LOOPBACK = Address("127.0.0.1", 0)
HTTP2_BEGIN = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
ASK = api.MetadataRequest(topics=("t",))


class Session:
    """Counts frames; answers each once ``gate`` is set."""

    def __init__(self) -> None:
        self.seen = 0
        self.gate = asyncio.Event()

    def on_frame(self, frame: memoryview) -> Awaitable[Frame]:
        self.seen += 1
        return self._answer(bytes(frame))

    async def _answer(self, frame: bytes) -> Frame:
        await self.gate.wait()
        return (frame,)

    def on_close(self) -> None:
        """Nothing is held."""


class Listener:
    """A served listener whose calls wait while ``gate`` is closed."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = 0
        self.session = Session()
        self.server: Server | None = None

    async def metadata(self, request: api.MetadataRequest, _: CallContext) -> api.MetadataResponse:
        self.begun += 1
        await self.gate.wait()
        return api.MetadataResponse("id", NodeId(1), (), ())

    async def start(self, limits: GrpcLimits) -> Address:
        streams = dict.fromkeys((StreamKind.PRODUCE, StreamKind.REPLICA_FETCH), lambda _: self.session)
        service = Service({api.MetadataRequest: self.metadata}, streams)
        self.server = await GrpcNetwork(limits).serve("CLIENT", LOOPBACK, service)
        return self.server.address


async def closed_by_peer(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(100):
        while await reader.read(1000):
            pass


async def test_a_connection_too_many_is_closed_and_the_others_live() -> None:
    listener = Listener()
    address = await listener.start(GrpcLimits(connections_max=3))
    connection = GrpcNetwork().connect(address)
    await connection.call(ASK, timeout_s=10)
    held = [await asyncio.open_connection(*address) for _ in range(2)]
    for _, writer in held:
        writer.write(HTTP2_BEGIN)
    for reader, _ in held:
        assert await reader.read(1)  # it is spoken to: these two are in
    reader, writer = await asyncio.open_connection(*address)
    try:
        await closed_by_peer(reader)
    except ConnectionResetError:
        pass
    writer.close()
    await connection.call(ASK, timeout_s=10)
    for _, other in held:
        other.close()
    async with asyncio.timeout(100):  # there is room again, once the others are seen to be gone
        while True:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(HTTP2_BEGIN)
            try:
                if await reader.read(1):
                    break
            except ConnectionResetError:
                pass
            writer.close()
            await asyncio.sleep(0.01)
    writer.close()
    await connection.close()
    assert listener.server is not None
    await listener.server.close(0)


async def test_an_idle_connection_is_closed_and_one_with_a_stream_is_not() -> None:
    listener = Listener()
    listener.session.gate.set()
    address = await listener.start(GrpcLimits(connection_idle_ms=200))
    connection = GrpcNetwork().connect(address)
    caller = FrameCaller(connection, StreamKind.PRODUCE)
    await caller.submit(lambda at: (b"\x01" + at.to_bytes(4, "big"),))
    reader, writer = await asyncio.open_connection(*address)
    writer.write(HTTP2_BEGIN)
    await closed_by_peer(reader)
    writer.close()
    assert caller.in_flight == 0
    answer = await caller.submit(lambda at: (b"\x01" + at.to_bytes(4, "big"),))
    assert correlation_of(answer) == 1, "the same stream still carries"
    await caller.close()
    await connection.close()
    assert listener.server is not None
    await listener.server.close(0)


async def test_a_silent_connection_is_closed() -> None:
    listener = Listener()
    address = await listener.start(GrpcLimits(handshake_ms=200))
    reader, writer = await asyncio.open_connection(*address)
    await closed_by_peer(reader)
    writer.close()
    assert listener.server is not None
    await listener.server.close(0)


async def test_a_call_too_large_is_refused_before_it_is_read() -> None:
    listener = Listener()
    address = await listener.start(GrpcLimits(call_bytes_max=1000))
    connection = GrpcNetwork().connect(address)
    with pytest.raises(ConnectionLost, match="expected a MetadataRequest of at most 1000 bytes, found 1003"):
        await connection.call(api.MetadataRequest(topics=("x" * 1000,)), timeout_s=10)
    await connection.call(ASK, timeout_s=10)
    await connection.close()
    assert listener.server is not None
    await listener.server.close(0)


async def test_a_clients_request_has_at_most_so_many_items() -> None:
    """Two bytes become an object, which took 2 s of the event loop for each megabyte."""
    listener = Listener()
    address = await listener.start(GrpcLimits(client_items_max=100))
    connection = GrpcNetwork().connect(address)
    with pytest.raises(ConnectionLost, match="of at most 100 items, found more"):
        await connection.call(api.MetadataRequest(topics=("",) * 101), timeout_s=10)
    await connection.call(api.MetadataRequest(topics=("",) * 100), timeout_s=10)
    await connection.close()
    assert listener.server is not None
    await listener.server.close(0)


async def test_a_brokers_request_to_a_controller_has_at_most_so_many_items() -> None:
    """An open controller listener lets in anybody who reaches it."""
    calls: Any = {api.MetadataRequest: Listener().metadata}
    server = await GrpcNetwork(GrpcLimits(controller_items_max=100)).serve("CONTROLLER", LOOPBACK, Service(calls, {}))
    connection = GrpcNetwork().connect(server.address)
    with pytest.raises(ConnectionLost, match="of at most 100 items, found more"):
        await connection.call(api.MetadataRequest(topics=("",) * 101), timeout_s=10)
    await connection.close()
    await server.close(0)


async def test_a_clients_call_is_smaller_than_a_nodes() -> None:
    listener = Listener()
    address = await listener.start(GrpcLimits(client_call_bytes_max=1000))
    connection = GrpcNetwork().connect(address)
    with pytest.raises(ConnectionLost, match="expected a MetadataRequest of at most 1000 bytes, found 1003"):
        await connection.call(api.MetadataRequest(topics=("x" * 1000,)), timeout_s=10)
    await connection.close()
    assert listener.server is not None
    await listener.server.close(0)


async def test_a_call_or_stream_too_many_is_refused_and_room_comes_back() -> None:
    listener = Listener()
    listener.gate.clear()
    address = await listener.start(GrpcLimits(under_way_max=3))
    connection = GrpcNetwork().connect(address)
    stream = await connection.open(StreamKind.PRODUCE, timeout_s=10)
    waiting = [asyncio.ensure_future(connection.call(ASK, timeout_s=30)) for _ in range(2)]
    async with asyncio.timeout(100):
        while listener.begun < 2:
            await asyncio.sleep(0.001)
    refusal = "expected at most 3 calls and streams under way on listener CLIENT: try later"
    with pytest.raises(ConnectionLost, match=refusal):
        await connection.call(ASK, timeout_s=10)
    with pytest.raises(ConnectionLost, match=refusal):
        await connection.open(StreamKind.PRODUCE, timeout_s=10)
    assert listener.begun == 2, "what is refused costs no work"
    listener.gate.set()
    await asyncio.gather(*waiting)
    await connection.call(ASK, timeout_s=10)
    stream.close()
    await connection.close()
    assert listener.server is not None
    await listener.server.close(0)


@pytest.mark.parametrize(("kind", "read"), [(StreamKind.PRODUCE, 5), (StreamKind.REPLICA_FETCH, 9)])
async def test_clients_and_nodes_have_their_own_bounds_of_unanswered_requests(kind: StreamKind, read: int) -> None:
    listener = Listener()
    address = await listener.start(GrpcLimits(unanswered_requests_max=5, unanswered_frames_max=9))
    connection = GrpcNetwork().connect(address)
    caller = FrameCaller(connection, kind)
    futures = [caller.submit(lambda at: (b"\x01" + at.to_bytes(4, "big"),)) for _ in range(30)]
    async with asyncio.timeout(100):
        while listener.session.seen < read:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert listener.session.seen == read
        listener.session.gate.set()
        await asyncio.gather(*futures)
    await caller.close()
    await connection.close()
    assert listener.server is not None
    await listener.server.close(0)


async def test_a_start_that_is_cancelled_leaves_no_listener_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """As of a node that is told to end while it starts."""
    (port,) = free_ports(1)
    service = Service({api.MetadataRequest: Listener().metadata}, {})
    serving = asyncio.ensure_future(GrpcNetwork().serve("CLIENT", Address(LOOPBACK.host, port), service))
    await asyncio.sleep(0)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert taken([port]) == []
    gc.collect()  # a task whose error nobody asked for says so when it goes
    others = ("tidelog.metadata_quorum", "tidelog.broker")  # a session's cluster, which runs in this process too
    assert [one for one in caplog.records if not one.name.startswith(others)] == []


class LoginListener(Listener):
    """A listener whose callers log in; ``tried`` counts their messages."""

    def __init__(self) -> None:
        super().__init__()
        self.tried: list[SaslAuthenticateRequest] = []

    async def authenticate(self, request: SaslAuthenticateRequest, _: CallContext) -> SaslAuthenticateResponse:
        self.tried.append(request)
        await self.gate.wait()
        return SaslAuthenticateResponse(ErrorCode.NONE)

    async def start(self, limits: GrpcLimits) -> Address:
        calls: Any = {api.MetadataRequest: self.metadata, SaslAuthenticateRequest: self.authenticate}
        streams = {StreamKind.PRODUCE: lambda _: self.session}
        service = Service(calls, streams, sessions=lambda _token, _host: None)
        self.server = await GrpcNetwork(limits).serve("CLIENT", LOOPBACK, service)
        return self.server.address


@asynccontextmanager
async def stranger(limits: GrpcLimits | None = None) -> AsyncIterator[tuple[LoginListener, Any]]:
    """A channel of somebody without a login, and whom it leads to."""
    listener = LoginListener()
    address = await listener.start(limits or GrpcLimits())
    async with grpc.aio.insecure_channel(str(address)) as channel:
        yield listener, channel
    assert listener.server is not None
    await listener.server.close(0)


def login(message: bytes) -> tuple[tuple[str, bytes], ...]:
    return ((LOGIN, message),)


@pytest.mark.parametrize("method", ["Metadata", "Produce"])
async def test_the_messages_of_strangers_are_left_unread(method: str) -> None:
    """So the answer comes while the message does not: gRPC would take in a hundred megabytes of it, and copy them on
    the event loop."""
    async with stranger() as (listener, channel):
        call = channel.stream_stream(SERVICE + method)()
        async with asyncio.timeout(30):
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        assert listener.begun == listener.session.seen == 0


async def test_a_login_rides_in_metadata_and_its_message_is_left_unread() -> None:
    async with stranger() as (listener, channel):
        method = channel.stream_unary(SERVICE + "SaslAuthenticate")
        sent = SaslAuthenticateRequest("PLAIN", b"", b"x" * 32 * 1024)
        call = method(metadata=login(to_proto(sent)))
        async with asyncio.timeout(30):
            assert await call.code() is grpc.StatusCode.OK
        assert listener.tried == [sent]


async def test_the_metadata_of_strangers_is_bounded() -> None:
    async with stranger() as (listener, channel):
        method = channel.unary_unary(SERVICE + "SaslAuthenticate")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await method(b"", metadata=login(b"\x0a\0" * 40 * 1024), timeout=30)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert listener.tried == []


async def test_logins_under_way_are_bounded() -> None:
    async with stranger(GrpcLimits(logins_per_connection_max=3)) as (listener, channel):
        listener.gate.clear()
        method = channel.unary_unary(SERVICE + "SaslAuthenticate")
        held = [asyncio.ensure_future(_code(method)) for _ in range(3)]
        async with asyncio.timeout(30):
            while len(listener.tried) < 3:
                await asyncio.sleep(0.001)
            assert await _code(method) is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert len(listener.tried) == 3
            listener.gate.set()
            assert await asyncio.gather(*held) == [grpc.StatusCode.OK] * 3
            assert await _code(method) is grpc.StatusCode.OK, "there is room again"


async def _code(method: Any) -> grpc.StatusCode:
    call = method(b"", metadata=login(b"\x1a\0"), timeout=60)
    return await call.code()  # type: ignore[no-any-return]


async def test_a_packed_message_is_refused() -> None:
    """A hundred kilobytes of it may be a hundred megabytes."""
    listener = Listener()
    address = await listener.start(GrpcLimits())
    async with grpc.aio.insecure_channel(str(address), compression=grpc.Compression.Gzip) as channel:
        method: Any = channel.unary_unary
        call = method(SERVICE + "Metadata")(bytes(10_000), timeout=30)
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
    assert listener.server is not None
    await listener.server.close(0)


async def test_a_path_that_is_no_text_ends_a_listener_for_a_moment_only(caplog: pytest.LogCaptureFixture) -> None:
    """grpc.aio ends a server at such a call, which anybody may send, and would not bind it again."""
    listener = Listener()
    address = await listener.start(GrpcLimits())
    connection = GrpcNetwork().connect(address)
    await connection.call(ASK, timeout_s=10)
    headers = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/\xcc"),
        (b":authority", b"a"),
        (b"te", b"trailers"),
    )
    block = b"".join(b"\x10" + bytes((len(name),)) + name + bytes((len(value),)) + value for name, value in headers)
    block += b"\x10\x0ccontent-type\x10application/grpc"
    _, writer = await asyncio.open_connection(*address)
    writer.write(HTTP2_BEGIN + len(block).to_bytes(3, "big") + b"\x01\x05\x00\x00\x00\x01" + block)
    async with asyncio.timeout(60):
        while "gRPC ended it" not in caplog.text:
            await asyncio.sleep(0.01)
        while any(task.get_name() == BINDING_AGAIN for task in asyncio.all_tasks()):
            await asyncio.sleep(0.01)
        new = GrpcNetwork().connect(address)
        await new.call(ASK, timeout_s=10)
        await new.close()
        while True:
            try:
                await connection.call(ASK, timeout_s=10)
                break
            except ConnectionLost:
                await asyncio.sleep(0.01)
    writer.close()
    await connection.close()
    assert listener.server is not None
    await listener.server.close(0)
