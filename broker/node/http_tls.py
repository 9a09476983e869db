"""The sockets of an ``HTTPS://`` listener.

asyncio's own TLS would do handshakes on the event loop, for any stranger: one with an RSA key of 4,096 bits takes 6 ms.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from tidelog.broker.kafka.wire.tls_socket import TlsSocket, until_ready
from tidelog.proto.transport.network import Address

log = logging.getLogger(__name__)

LINGER_S: Final = 1.0
"""How long a connection that we end is drained, so that its peer gets our answer and not a reset."""
_BACKLOG: Final = 128
_PAUSE_S: Final = 0.1
_PIECE_BYTES: Final = 64 * 1024


class TlsStream:
    """Both halves of a connection under TLS, with what HTTP uses of ``StreamReader`` and ``StreamWriter``."""

    def __init__(self, sock: TlsSocket, peer: Address) -> None:
        self._sock = sock
        self._unsent = bytearray()
        self._peer = peer

    async def read(self, size: int) -> bytes:
        while True:
            try:
                return self._sock.recv(size)
            except BlockingIOError:
                await until_ready(self._sock, writing=False)

    def write(self, data: bytes) -> None:
        self._unsent += data

    async def drain(self) -> None:
        while self._unsent:
            try:
                sent = self._sock.send(bytes(self._unsent[:_PIECE_BYTES]))
                del self._unsent[:sent]
            except BlockingIOError:
                await until_ready(self._sock, writing=True)

    def get_extra_info(self, name: str) -> Any:
        return {"peername": self._peer, "certificate": self._sock.certificate}.get(name)

    async def linger(self) -> None:
        """Say the end, and discard what still arrives."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(LINGER_S):
                self._sock.shutdown(socket.SHUT_WR)
                while await self.read(_PIECE_BYTES):
                    continue

    def close(self) -> None:
        self._sock.close()


async def listen(address: Address) -> list[socket.socket]:
    """Bind all addresses of a host, as asyncio does. Raises ``OSError``."""
    loop = asyncio.get_running_loop()
    kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
    found = await loop.getaddrinfo(address.host or None, address.port, type=kind, flags=flags)
    bound: list[socket.socket] = []
    try:
        for family, at in dict.fromkeys((each[0], each[4][:2]) for each in found):
            bound.append(socket.create_server(at, family=family, backlog=_BACKLOG))
            bound[-1].setblocking(False)
    except OSError:
        for sock in bound:
            sock.close()
        raise
    return bound


async def accept(listening: socket.socket, take: Callable[[socket.socket, Address], None]) -> None:
    """Hand over each new connection, for as long as the socket listens."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            sock, peer = await loop.sock_accept(listening)
        except OSError as error:  # for example, no descriptors are left
            log.warning("cannot accept an HTTPS connection: %s", error)
            await asyncio.sleep(_PAUSE_S)
            continue
        sock.setblocking(False)
        take(sock, Address(*peer[:2]))
        await asyncio.sleep(0)  # others' turn, however many wait here
