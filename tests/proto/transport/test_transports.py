"""Both carriers behave alike: what holds for one holds for the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tidelog.model.ids import NodeId
from tidelog.proto.calls import api
from tidelog.proto.calls.request import Request
from tidelog.proto.transport.caller import FrameCaller
from tidelog.proto.transport.frames import correlation_of
from tidelog.proto.transport.grpc_transport import GrpcNetwork
from tidelog.proto.transport.grpc_wire import GrpcLimits
from tidelog.proto.transport.memory_transport import MemoryFabric
from tidelog.proto.transport.network import (
    Address,
    CallContext,
    CallTimeout,
    ConnectionLost,
    Frame,
    FrameSession,
    Network,
    Server,
    Service,
    StreamKind,
)

LOOPBACK = Address("127.0.0.1", 0)
STREAM = StreamKind.REPLICA_FETCH
"""The kind that every carrier may carry in its own way."""


def numbered(correlation: int, body: bytes = b"") -> Frame:
    return (b"\x01" + correlation.to_bytes(4, "big"), body)


class Script:
    """A session whose answers a test decides."""

    def __init__(self, answer: Callable[[memoryview], Awaitable[Frame] | Frame | None]) -> None:
        self.answer = answer
        self.seen: list[int] = []
        self.closed = asyncio.Event()

    def on_frame(self, frame: memoryview) -> Awaitable[Frame] | Frame | None:
        self.seen.append(correlation_of(frame))
        return self.answer(frame)

    def on_close(self) -> None:
        assert not self.closed.is_set()
        self.closed.set()


def echo(frame: memoryview) -> Frame:
    return (bytes(frame),)


@pytest.fixture(params=["grpc", "tcp", "memory"])
async def networks(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Network, Network]]:
    if request.param == "grpc":
        yield GrpcNetwork(), GrpcNetwork()
    elif request.param == "tcp":
        yield GrpcNetwork(tcp_port=0), GrpcNetwork(tcp_port=0)
    else:
        fabric = MemoryFabric()
        yield fabric.network("server"), fabric.network("client")


async def metadata(request: api.MetadataRequest, context: CallContext) -> api.MetadataResponse:
    assert context.listener == "CLIENT"
    return api.MetadataResponse(cluster_id=request.topics[0], controller_id=1, brokers=(), topics=())  # type: ignore[arg-type]


async def never(request: api.DescribeClusterRequest, context: CallContext) -> api.DescribeClusterResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def start(network: Network, session: Script | None = None) -> Server:
    streams = {} if session is None else {STREAM: lambda _: session}
    calls: dict[type[Request[Any]], Callable[[Any, CallContext], Awaitable[Any]]] = {
        api.MetadataRequest: metadata,
        api.DescribeClusterRequest: never,
    }
    return await network.serve("CLIENT", LOOPBACK, Service(calls, streams))


async def test_a_call_is_answered(networks: tuple[Network, Network]) -> None:
    server = await start(networks[0])
    connection = networks[1].connect(server.address)
    answer = await connection.call(api.MetadataRequest(topics=("flights",)), timeout_s=5)
    assert answer.cluster_id == "flights"
    await connection.close()
    await server.close(0)


async def test_a_call_without_answer_times_out(networks: tuple[Network, Network]) -> None:
    server = await start(networks[0])
    connection = networks[1].connect(server.address)
    with pytest.raises(CallTimeout, match="DescribeCluster"):
        await connection.call(api.DescribeClusterRequest(), timeout_s=0.05)
    await connection.close()
    await server.close(0)


async def test_what_a_listener_does_not_serve_is_named(networks: tuple[Network, Network]) -> None:
    server = await start(networks[0])
    connection = networks[1].connect(server.address)
    with pytest.raises(ConnectionLost, match="does not serve"):
        await connection.call(api.DescribeLogDirsRequest(), timeout_s=5)
    await connection.close()
    await server.close(0)


async def test_nobody_there_is_a_lost_connection(networks: tuple[Network, Network]) -> None:
    server = await start(networks[0])
    await server.close(0)
    connection = networks[1].connect(server.address)
    with pytest.raises(ConnectionLost):
        await connection.call(api.MetadataRequest(topics=("t",)), timeout_s=5)
    with pytest.raises(ConnectionLost):
        await connection.open(STREAM, timeout_s=5)
    await connection.close()


async def test_a_taken_port_is_named(networks: tuple[Network, Network]) -> None:
    server = await start(networks[0])
    with pytest.raises(OSError, match=str(server.address.port)):
        await networks[0].serve("OTHER", server.address, Service({}, {}))
    await server.close(0)


async def test_frames_arrive_in_order_and_answers_may_overtake(networks: tuple[Network, Network]) -> None:
    gate = asyncio.Event()

    def answer(frame: memoryview) -> Awaitable[Frame] | Frame:
        async def late() -> Frame:
            await gate.wait()
            return (bytes(frame),)

        return late() if correlation_of(frame) == 0 else (bytes(frame),)

    session = Script(answer)
    server = await start(networks[0], session)
    connection = networks[1].connect(server.address)
    caller = FrameCaller(connection, STREAM)
    futures = [caller.submit(numbered) for _ in range(10)]
    async with asyncio.timeout(100):
        await asyncio.gather(*futures[1:])
        assert not futures[0].done()
        gate.set()
        assert correlation_of(await futures[0]) == 0
    assert session.seen == list(range(10))
    await caller.close()
    async with asyncio.timeout(100):
        await session.closed.wait()
    await connection.close()
    await server.close(0)


async def test_large_frames_survive(networks: tuple[Network, Network]) -> None:
    session = Script(echo)
    server = await start(networks[0], session)
    connection = networks[1].connect(server.address)
    caller = FrameCaller(connection, STREAM)
    for size in (0, 1, 120, 127, 128, 16_379, 16_384, 5_000_000):
        body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        async with asyncio.timeout(100):
            answer = await caller.submit(lambda n, body=body: numbered(n, body))  # type: ignore[misc]
        assert answer[5:] == body
    await caller.close()
    await connection.close()
    await server.close(0)


async def test_a_broken_stream_fails_what_is_unanswered_and_the_next_frame_opens_another(
    networks: tuple[Network, Network],
) -> None:
    stuck = Script(lambda _: asyncio.get_running_loop().create_future())
    server = await start(networks[0], stuck)
    connection = networks[1].connect(server.address)
    caller = FrameCaller(connection, STREAM)
    waiting = caller.submit(numbered)
    async with asyncio.timeout(100):
        while not stuck.seen:
            await asyncio.sleep(0.001)
        await server.close(0)
        with pytest.raises(ConnectionLost):
            await waiting
    assert stuck.closed.is_set()
    session = Script(echo)
    again = await networks[0].serve("CLIENT", server.address, Service({}, {STREAM: lambda _: session}))
    async with asyncio.timeout(100):
        while True:
            try:
                await caller.submit(numbered)
                break
            except ConnectionLost:
                await asyncio.sleep(0.02)
    await caller.close()
    await connection.close()
    await again.close(0)


async def test_a_bad_frame_ends_its_stream_with_the_reason(networks: tuple[Network, Network]) -> None:
    session = Script(echo)
    server = await start(networks[0], session)
    connection = networks[1].connect(server.address)
    caller = FrameCaller(connection, STREAM)
    async with asyncio.timeout(100):
        with pytest.raises(ConnectionLost, match="expected frame version 1, found 9"):
            await caller.submit(lambda _: (b"\x09\0\0\0\0",))
        assert correlation_of(await caller.submit(numbered)) == 1
    await caller.close()
    await connection.close()
    await server.close(0)


async def test_a_server_that_does_not_answer_stops_reading(networks: tuple[Network, Network]) -> None:
    limit = GrpcLimits().unanswered_frames_max
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def late(frame: memoryview) -> Frame:
        await asyncio.shield(gate)
        return (bytes(frame),)

    session = Script(late)
    server = await start(networks[0], session)
    connection = networks[1].connect(server.address)
    caller = FrameCaller(connection, STREAM)
    futures = [caller.submit(numbered) for _ in range(limit * 3)]
    async with asyncio.timeout(100):
        while len(session.seen) < limit:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert len(session.seen) == limit
        gate.set_result(None)
        await asyncio.gather(*futures)
    await caller.close()
    await connection.close()
    await server.close(0)


async def test_a_cut_link_holds_and_a_healed_one_delivers_in_order() -> None:
    fabric = MemoryFabric()
    session = Script(echo)
    server = await start(fabric.network("server"), session)
    connection = fabric.network("client").connect(server.address)
    caller = FrameCaller(connection, STREAM)
    await caller.submit(numbered)
    fabric.cut("client", "server")
    futures = [caller.submit(numbered) for _ in range(5)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert session.seen == [0]
    fabric.heal()
    async with asyncio.timeout(5):
        await asyncio.gather(*futures)
    assert session.seen == [0, 1, 2, 3, 4, 5]
    await caller.close()


async def test_a_dropped_node_breaks_its_streams_at_both_ends() -> None:
    fabric = MemoryFabric()
    session = Script(lambda _: asyncio.get_running_loop().create_future())
    server = await start(fabric.network("server"), session)
    connection = fabric.network("client").connect(server.address)
    caller = FrameCaller(connection, STREAM)
    waiting = caller.submit(numbered)
    for _ in range(20):
        await asyncio.sleep(0)
    fabric.drop_node("server")
    async with asyncio.timeout(5):
        with pytest.raises(ConnectionLost):
            await waiting
        await session.closed.wait()
        with pytest.raises(ConnectionLost, match="refused"):
            await caller.submit(numbered)
    await caller.close()


async def test_streams_that_end_with_their_server_are_no_bug() -> None:
    """Whatever grpc raises in a stream of a server that stops is a lost connection, not a handler's fault."""
    bugs: list[BaseException] = []
    client = GrpcNetwork()
    for _ in range(20):
        server = await start(GrpcNetwork(on_bug=bugs.append), session := Script(echo))
        connection = client.connect(server.address)
        stream = await connection.open(STREAM, timeout_s=5)
        await stream.send(numbered(1))
        await stream.receive()
        await asyncio.gather(server.close(0), asyncio.sleep(0))
        with pytest.raises(ConnectionLost):
            await stream.receive()
        await asyncio.wait_for(session.closed.wait(), 5)
        await connection.close()
    assert bugs == []


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "stopped"])
async def test_what_arrives_at_a_node_that_is_gone_meanwhile_begins_nothing(killed: bool) -> None:
    begun: list[object] = []

    async def serve(request: api.MetadataRequest, _: CallContext) -> api.MetadataResponse:
        begun.append(request)
        return api.MetadataResponse("id", NodeId(1), (), ())

    def session(context: CallContext) -> FrameSession:
        begun.append(context)
        raise AssertionError("a stream begins at a node that is gone")

    fabric = MemoryFabric()
    service = Service({api.MetadataRequest: serve}, {STREAM: session})
    server = await fabric.network("node").serve("CLIENT", Address("node", 1), service)
    fabric.delay("client", "node", 0.05)
    connection = fabric.network("client").connect(server.address)
    call = asyncio.ensure_future(connection.call(api.MetadataRequest(topics=("t",)), timeout_s=5))
    stream = asyncio.ensure_future(connection.open(STREAM, timeout_s=5))
    await asyncio.sleep(0.01)
    if killed:
        fabric.drop_node("node")
    await server.close(0)
    await asyncio.wait([call, stream], timeout=1)
    for outcome in (call, stream):
        assert isinstance(outcome.exception(), ConnectionLost)
    await asyncio.sleep(0.1)
    assert not begun
