"""TCP in the simulated world: sockets and streams for Kafka's protocol and for followers, on the fabric's wires.

Both sides are production code. A node's Kafka listener reads and writes a :class:`Socket` when the loop says that it is
readable; a client connects with :func:`asyncio.open_connection`. With ``replication.transport=tcp``, followers and
leaders have asyncio's transports at both ends. A connection is one wire: its bytes stay in order, and
a cut link, a break or the end of a process affects it like everything else on the fabric.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import socket
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from tidelog.broker.kafka.calls.services import KafkaServices
from tidelog.broker.kafka.server import KafkaListener
from tidelog.chaos.simulated.world.fabric import SimulatedFabric
from tidelog.chaos.simulated.world.loop import PROCESS, SimulatedLoop
from tidelog.proto.kafka.schemas import load_schemas
from tidelog.proto.transport.memory_transport import TCP_FRAME_BYTES_MAX, MemoryNetwork, Wire
from tidelog.proto.transport.network import Address, ConnectionLost, StreamKind
from tidelog.proto.transport.tcp_streams import LENGTH, TcpStreams

WHAT: Final = "kafka"
_FIRST_DESCRIPTOR: Final = 1 << 20
_READ_BYTES: Final = 64 * 1024


class Sockets:
    """The sockets of all processes on a fabric, and the callbacks that wait for them: a part of the loop."""

    def __init__(self, loop: SimulatedLoop, fabric: SimulatedFabric) -> None:
        self.fabric = fabric
        self._loop = loop
        self._numbers = itertools.count(_FIRST_DESCRIPTOR)
        self._open: dict[int, Socket | Listening] = {}
        self._readers: dict[int, tuple[Callable[..., object], tuple[Any, ...], contextvars.Context]] = {}
        self._writers: dict[int, tuple[Callable[..., object], tuple[Any, ...], contextvars.Context]] = {}
        self._networks: dict[str, MemoryNetwork] = {}

    async def serve(
        self, network: MemoryNetwork, listener: str, address: Address, services: KafkaServices
    ) -> KafkaListener:
        """Bind a listener of a node on this network for Kafka's clients."""
        load_schemas()
        sock: Any = Listening(self, network, address)
        self._add(sock)
        # No system can send from files in memory.
        return KafkaListener(listener, sock, replace(services, files_crowded=lambda: True))

    def serve_streams(self, network: MemoryNetwork, address: Address) -> TcpStreams:
        """Bind the port of a node for its followers' streams."""
        sock = Listening(self, network, address, StreamKind.REPLICA_FETCH.value)
        self._add(sock)
        return TcpStreams(cast("socket.socket", sock), TCP_FRAME_BYTES_MAX, None)

    def served(self, protocol: asyncio.BaseProtocol, sock: object) -> Served:
        """Return an accepted connection's transport."""
        assert isinstance(sock, Socket)
        return Served(self, self._loop, sock, protocol)

    async def connect(self, protocol: asyncio.BaseProtocol, address: Address) -> Stream:
        """Open a connection of the calling process. Raises ``ConnectionRefusedError``."""
        process = PROCESS.get()
        assert process is not None, "only processes connect"
        network = self._networks.get(process.name)
        if network is None or network.dead:
            network = self._networks[process.name] = self.fabric.network(process.name, context=process.context)
        try:
            there = self.fabric._listeners.get(address)
            wire = self.fabric._open(network, address, getattr(there, "what", WHAT))
        except ConnectionLost as refused:
            raise ConnectionRefusedError(str(refused)) from None
        stream = Stream(self.fabric, wire, protocol)
        opened: asyncio.Future[None] = self._loop.create_future()

        def over(reason: str) -> None:
            if not opened.done():
                opened.set_exception(ConnectionRefusedError(reason))
            stream.lost(reason)

        def arrive() -> None:
            listening: Any = self.fabric._listeners.get(address)
            if not isinstance(listening, Listening) or listening.closed:
                self.fabric.deliver(wire, False, lambda: over(f"{address}: connection refused"))
                return
            sock = Socket(self, wire, stream)
            self._add(sock)
            listening.knock(sock)
            self.fabric.deliver(wire, False, lambda: None if opened.done() else opened.set_result(None))

        wire.on_break = over
        self.fabric.deliver(wire, True, arrive)
        try:
            await opened
        except BaseException:
            stream.close()
            raise
        protocol.connection_made(stream)
        return stream

    # --- Called by the loop ----------------------------------------------------------------------------

    def add_reader(self, fd: int, callback: Callable[..., object], *args: Any) -> None:
        self._readers[fd] = (callback, args, contextvars.copy_context())
        self.readable(fd)

    def remove_reader(self, fd: int) -> bool:
        return self._readers.pop(fd, None) is not None

    def add_writer(self, fd: int, callback: Callable[..., object], *args: Any) -> None:
        """Call back soon: every socket is always writable."""
        self._writers[fd] = (callback, args, contextvars.copy_context())
        self._loop.call_soon(self._write, fd, context=self._writers[fd][2])

    def remove_writer(self, fd: int) -> bool:
        return self._writers.pop(fd, None) is not None

    def readable(self, fd: int) -> None:
        """Something has arrived: notify whoever waits for it."""
        sock, waiting = self._open.get(fd), self._readers.get(fd)
        if sock is not None and waiting is not None and sock.has_some and not sock.told:
            sock.told = True
            self._loop.call_soon(self._read, fd, context=waiting[2])

    def _read(self, fd: int) -> None:
        sock, waiting = self._open.get(fd), self._readers.get(fd)
        if sock is None:
            return
        sock.told = False
        if waiting is not None and sock.has_some:
            waiting[0](*waiting[1])
            self.readable(fd)

    def _write(self, fd: int) -> None:
        waiting = self._writers.get(fd)
        if waiting is not None:
            waiting[0](*waiting[1])
            if self._writers.get(fd) is waiting:
                self._loop.call_soon(self._write, fd, context=waiting[2])

    # --- For sockets --------------------------------------------------------------------------------------

    def _add(self, sock: Socket | Listening) -> None:
        sock.number = next(self._numbers)
        self._open[sock.number] = sock

    def forget(self, fd: int) -> None:
        self._open.pop(fd, None)
        self.remove_reader(fd)
        self.remove_writer(fd)


class Listening:
    """A bound socket, as far as a listener needs one. The fabric treats it as a server."""

    def __init__(self, sockets: Sockets, network: MemoryNetwork, address: Address, what: str = WHAT) -> None:
        self.what = what
        self.network = network
        self.node = network.node
        self.address = address
        self.closed = False
        self.number = -1
        self.told = False
        self._sockets = sockets
        self._waiting: deque[Socket] = deque()
        listener: Any = self
        sockets.fabric._bind(listener, address)

    @property
    def has_some(self) -> bool:
        return bool(self._waiting)

    def knock(self, sock: Socket) -> None:
        self._waiting.append(sock)
        self._sockets.readable(self.number)

    def fileno(self) -> int:
        return -1 if self.closed else self.number

    def getsockname(self) -> tuple[str, int]:
        return self.address.host, self.address.port

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        if not self._waiting:
            raise BlockingIOError
        sock = self._waiting.popleft()
        return sock, (sock.peer, sock.number)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            listener: Any = self
            self._sockets.fabric._unbind(listener)
            self._sockets.forget(self.number)
            for sock in self._waiting:
                sock.close()


class Socket:
    """A node's end of a connection: what it needs of a non-blocking socket. Accepts any amount immediately."""

    def __init__(self, sockets: Sockets, wire: Wire, stream: Stream) -> None:
        self.peer = wire.client.node
        self.number = -1
        self.told = False
        self._sockets = sockets
        self.wire = wire
        self._stream = stream
        self._data: deque[bytes] = deque()
        self._ended = self._closed = False
        wire.on_break_server = lambda reason: self._end()
        stream.to_server = self._came

    @property
    def has_some(self) -> bool:
        return bool(self._data) or self._ended

    def _came(self, data: bytes) -> None:
        self._data.append(data)
        self._sockets.readable(self.number)

    def _end(self) -> None:
        self._ended = True
        self._sockets.readable(self.number)

    def fileno(self) -> int:
        return -1 if self._closed else self.number

    def setblocking(self, on: bool) -> None:
        """Do nothing: it never blocks."""

    def setsockopt(self, *option: object) -> None:
        """Do nothing: it has no options."""

    def recv_into(self, room: memoryview) -> int:
        data = self.recv(len(room))
        room[: len(data)] = data
        return len(data)

    def recv(self, most: int) -> bytes:
        if not self._data:
            if self._ended:
                return b""
            raise BlockingIOError
        first = self._data.popleft()
        if len(first) > most:
            self._data.appendleft(first[most:])
        return first[:most]

    def send(self, data: bytes | bytearray | memoryview, flags: int = 0) -> int:
        return self.sendmsg([data])

    def sendmsg(self, buffers: Iterable[Any], ancillary: Iterable[Any] = (), flags: int = 0) -> int:
        if self._ended or self._closed:
            raise BrokenPipeError
        data = b"".join(bytes(buffer) for buffer in buffers)
        for piece in self._sockets.fabric.pieces(self.wire, data):
            self._sockets.fabric.deliver(self.wire, False, partial(self._stream.came, piece))
        return len(data)

    def shutdown(self, how: int) -> None:
        if self._ended or self._closed:
            raise BrokenPipeError
        self._sockets.fabric.deliver(self.wire, False, lambda: self._stream.lost("ended by the other side"))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._sockets.forget(self.number)
            self._sockets.fabric.break_wire(self.wire, "closed by the other side")
            self._sockets.fabric._wires.pop(self.wire, None)


class Served(asyncio.Transport):
    """A node's end of a connection whose frames asyncio reads: a transport on a :class:`Socket`."""

    def __init__(self, sockets: Sockets, loop: SimulatedLoop, sock: Socket, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._sockets = sockets
        self._loop = loop
        self._sock = sock
        self._protocol = protocol
        self._over = False
        protocol.connection_made(self)
        sockets.add_reader(sock.fileno(), self._read)

    def _read(self) -> None:
        if data := self._sock.recv(_READ_BYTES):
            _feed(self._protocol, data)
        else:
            self.close()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send one frame with its length, as the network changes it."""
        if self._over:
            return
        frame = self._sockets.fabric.carried(self._sock.wire, False, memoryview(bytes(data))[LENGTH.size :])
        try:
            self._sock.sendmsg([bytes(data[: LENGTH.size]), frame])
        except BrokenPipeError:
            self.close()

    def close(self) -> None:
        if not self._over:
            self._over = True
            self._sock.close()
            self._loop.call_soon(self._protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self._over


class Stream(asyncio.Transport):
    """A client's end of a connection. Like :class:`asyncio.Transport`, it cannot pause reading: a stream then accepts
    whatever arrives."""

    def __init__(self, fabric: SimulatedFabric, wire: Wire, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._fabric = fabric
        self._wire = wire
        self._protocol = protocol
        self._closing = self._over = False
        self.to_server: Callable[[bytes], None] = lambda data: None

    def came(self, data: bytes) -> None:
        if not self._closing:
            _feed(self._protocol, data)

    def lost(self, reason: str) -> None:
        if not self._over:
            self._over = self._closing = True
            self._fabric._wires.pop(self._wire, None)
            self._protocol.connection_lost(ConnectionResetError(reason))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            for piece in self._fabric.pieces(self._wire, bytes(data)):
                self._fabric.deliver(self._wire, True, partial(self.to_server, piece))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._fabric.close_wire(self._wire, "closed by us")
            self._fabric._wires.pop(self._wire, None)

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default


def _feed(protocol: asyncio.BaseProtocol, data: bytes) -> None:
    if isinstance(protocol, asyncio.Protocol):
        protocol.data_received(data)
        return
    assert isinstance(protocol, asyncio.BufferedProtocol)
    rest = memoryview(data)
    while rest:
        room = memoryview(protocol.get_buffer(-1))
        taken = min(len(room), len(rest))
        room[:taken] = rest[:taken]
        protocol.buffer_updated(taken)
        rest = rest[taken:]
