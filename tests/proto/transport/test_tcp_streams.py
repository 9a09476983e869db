"""Followers' streams over TCP: frames however they arrive, who gets a connection, and what ends one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.proto.transport import grpc_calling, tcp_streams
from tidelog.proto.transport.grpc_calling import GrpcConnection
from tidelog.proto.transport.grpc_transport import GrpcNetwork
from tidelog.proto.transport.grpc_wire import GrpcLimits
from tidelog.proto.transport.network import Address, ConnectionLost, Frame, FrameStream, Server, Service, StreamKind
from tidelog.proto.transport.tcp_streams import TcpFrameStream, TcpStreams, Wire
from tidelog.testing.ports import free_ports

LOOPBACK = Address("127.0.0.1", 0)
SOON_S = 60.0
BYTES_MAX = 1_000_000


class FakeTransport:
    def __init__(self) -> None:
        self.reading = True
        self.written = bytearray()
        self.closed = False

    def get_extra_info(self, name: str) -> None: ...

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True


def wire_of(transport: FakeTransport, bytes_max: int = BYTES_MAX) -> Wire:
    wire = Wire(bytes_max)
    wire.connection_made(transport)
    return wire


def arrives(wire: Wire, data: bytes) -> None:
    """Give the wire bytes as a transport does: as many at a time as its buffer takes."""
    while data:
        room = wire.get_buffer(-1)
        size = min(len(room), len(data))
        room[:size] = data[:size]
        del room
        wire.buffer_updated(size)
        data = data[size:]


async def taken(wire: Wire) -> bytes:
    frame = await wire.read()
    assert frame is not None
    return bytes(frame)


def encoded(frames: Sequence[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


SIZES = st.one_of(st.integers(0, 40), st.integers(65_520, 65_560), st.integers(60_000, 200_000))


@given(st.lists(SIZES, max_size=6), st.lists(st.integers(1, 150_000), max_size=20))
def test_frames_are_whole_however_they_arrive(sizes: list[int], portions: list[int]) -> None:
    async def read() -> None:
        frames = [bytes([number]) * size for number, size in enumerate(sizes)]
        wire, data = wire_of(FakeTransport()), encoded(frames)
        got = []
        for portion in [*portions, len(data)]:
            arrives(wire, data[:portion])
            data = data[portion:]
            while wire._frames:
                got.append(await taken(wire))
        assert got == frames

    asyncio.run(read())


async def test_a_wire_that_nobody_reads_takes_no_more_and_goes_on_once_it_is_read() -> None:
    transport = FakeTransport()
    wire = wire_of(transport)
    sent = 0
    while transport.reading:
        arrives(wire, encoded([bytes(500_000)]))
        sent += 1
    assert 8 <= sent <= 10, "some 4 MiB"
    for _ in range(sent):
        assert await taken(wire) == bytes(500_000)
    assert transport.reading


async def test_a_frame_beyond_the_bound_ends_the_wire() -> None:
    transport = FakeTransport()
    wire = wire_of(transport, bytes_max=1_000)
    arrives(wire, encoded([b"good", bytes(1_001)])[:100])
    assert transport.closed
    assert await taken(wire) == b"good"
    assert await wire.read() is None
    assert wire.end == "expected a frame of at most 1000 bytes, found one of 1001"


async def test_a_writer_waits_for_room_and_hears_of_the_end() -> None:
    transport = FakeTransport()
    wire = wire_of(transport)
    await wire.write((b"a", b"b"))
    wire.pause_writing()
    assert not wire.write_now((b"c",))
    writing = asyncio.ensure_future(wire.write((b"c",)))
    await asyncio.sleep(0)
    assert transport.written == encoded([b"ab"])
    wire.resume_writing()
    await writing
    assert transport.written == encoded([b"ab", b"c"])
    wire.pause_writing()
    writing = asyncio.ensure_future(wire.write((b"d",)))
    await asyncio.sleep(0)
    wire.connection_lost(OSError("the cable is cut"))
    with pytest.raises(ConnectionLost, match="the cable is cut"):
        await writing


# --- Between a network and another ------------------------------------------------------------------


class Echo:
    def __init__(self) -> None:
        self.closed = asyncio.Event()

    def on_frame(self, frame: memoryview) -> Awaitable[Frame] | Frame | None:
        return (bytes(frame),)

    def on_close(self) -> None:
        self.closed.set()


@asynccontextmanager
async def between(serving: GrpcNetwork, calling: GrpcNetwork) -> AsyncIterator[tuple[Server, GrpcConnection, Echo]]:
    session = Echo()
    server = await serving.serve("REPLICATION", LOOPBACK, Service({}, {StreamKind.REPLICA_FETCH: lambda _: session}))
    connection = calling.connect(server.address)
    try:
        yield server, connection, session
    finally:
        await connection.close()
        await server.close(0)


def tcp(limits: GrpcLimits | None = None) -> GrpcNetwork:
    return GrpcNetwork(limits, tcp_port=0)


async def opened(connection: GrpcConnection) -> FrameStream:
    return await connection.open(StreamKind.REPLICA_FETCH, timeout_s=SOON_S)


async def echoes(stream: FrameStream) -> bool:
    """Whether it is carried by TCP, as it answers."""
    for body in (b"small", bytes(700_000)):
        await stream.send((b"\x01\x00\x00\x00\x07", body))
        assert await stream.receive() == b"\x01\x00\x00\x00\x07" + body
    return isinstance(stream, TcpFrameStream)


@pytest.mark.parametrize(("at_server", "at_client"), [(True, True), (True, False), (False, True)])
async def test_it_goes_over_tcp_where_both_ends_want_that(at_server: bool, at_client: bool) -> None:
    networks = [tcp() if wants else GrpcNetwork() for wants in (at_server, at_client)]
    async with between(*networks) as (_, connection, _), asyncio.timeout(SOON_S):
        assert await echoes(await opened(connection)) == (at_server and at_client)


async def test_an_address_that_cannot_be_reached_leaves_it_with_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = TcpStreams.bind

    async def elsewhere(*given: Any) -> TcpStreams:
        found = await bind(*given)
        (found.port,) = free_ports(1)
        return found

    monkeypatch.setattr(TcpStreams, "bind", elsewhere)
    async with between(tcp(), tcp()) as (_, connection, _), asyncio.timeout(SOON_S):
        assert not await echoes(await opened(connection))


class Silent:
    """A gRPC stream whose caller says nothing."""

    async def read(self) -> memoryview | None:
        await asyncio.Event().wait()
        return None

    async def write(self, frame: Frame) -> None: ...


async def test_a_connection_without_a_ticket_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_streams, "_TICKET_S", 0.2)
    streams = await TcpStreams.bind("127.0.0.1", 0, BYTES_MAX, None)
    async with asyncio.timeout(SOON_S), streams.ticket(Silent()) as ticket:
        for shown in (encoded([bytes(16)]), encoded([b"short"]), b"\xff\xff\xff\xff", b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", streams.port)
            writer.write(shown)
            assert await reader.read() == b""
            writer.close()
        _, writer = await asyncio.open_connection("127.0.0.1", streams.port)
        writer.write(encoded([ticket.secret]))
        await ticket.arrived
        writer.close()
    await streams.close()


async def test_a_connection_that_no_stream_waits_for_is_closed_at_once() -> None:
    """Before a handshake, which costs the event loop time. Strangers otherwise have ten seconds."""
    streams = await TcpStreams.bind("127.0.0.1", 0, BYTES_MAX, None)

    async def is_closed() -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", streams.port)
        try:
            async with asyncio.timeout(tcp_streams._TICKET_S / 2):
                return await reader.read() == b""
        finally:
            writer.close()

    assert await is_closed()
    async with streams.ticket(Silent()) as ticket:
        _, writer = await asyncio.open_connection("127.0.0.1", streams.port)
        writer.write(encoded([ticket.secret]))
        await ticket.arrived
        assert await is_closed(), "this stream has its connection"
        writer.close()
    await streams.close()


async def test_a_ticket_is_good_once(monkeypatch: pytest.MonkeyPatch) -> None:
    offers = []
    take = tcp_streams.take_offer

    async def noted(offer: str, *given: Any) -> Wire | None:
        offers.append(offer)
        return await take(offer, *given)

    monkeypatch.setattr(grpc_calling, "take_offer", noted)
    async with between(tcp(), tcp()) as (_, connection, _), asyncio.timeout(SOON_S):
        assert await echoes(await opened(connection))
        again = await take(offers[0], connection.address, None, BYTES_MAX)
        assert again is None or await again.read() is None, "it is closed"


async def test_who_closes_a_stream_ends_the_session() -> None:
    async with between(tcp(), tcp()) as (_, connection, session), asyncio.timeout(SOON_S):
        stream = await opened(connection)
        assert await echoes(stream)
        stream.close()
        await session.closed.wait()


async def test_what_the_session_refuses_is_told_to_the_caller() -> None:
    async with between(tcp(GrpcLimits(message_bytes_max=1_000)), tcp()) as (_, connection, session):
        async with asyncio.timeout(SOON_S):
            stream = await opened(connection)
            await stream.send((bytes(2_000),))
            with pytest.raises(ConnectionLost):
                await stream.receive()
            await session.closed.wait()


async def test_a_server_that_closes_ends_its_streams() -> None:
    async with between(tcp(), tcp()) as (server, connection, session), asyncio.timeout(SOON_S):
        stream = await opened(connection)
        assert await echoes(stream)
        await server.close(0)
        with pytest.raises(ConnectionLost):
            await stream.receive()
        await session.closed.wait()
