"""A gRPC client at the Kafka port hears, in its own protocol, where it is served."""

from __future__ import annotations

import asyncio
from typing import Final

from tidelog.broker.kafka.wire.tls_socket import AnySocket
from tidelog.proto.transport.http2_referral import Referral

FIRST_CALL_S: Final = 4.0
"""How long a gRPC client may wait between its messages until it calls. One that is far away hears late of us."""
REFERRAL_S: Final = 1.0
"""How long it may be silent once it was referred elsewhere, before its connection is closed."""
READ_BYTES: Final = 64 * 1024
"""How much is read at a time."""


async def refer(sock: AnySocket, referral: Referral, data: bytes) -> None:
    """``data`` is what the client has sent so far. Nobody else reads from the socket any more."""
    try:
        while data and not referral.over:
            if out := referral.receive(data):
                sock.send(out)
            try:
                async with asyncio.timeout(REFERRAL_S if referral.answered else FIRST_CALL_S):
                    data = await _next_bytes(sock)
            except TimeoutError:
                break
        sock.send(referral.farewell())
    except OSError:
        pass


async def _next_bytes(sock: AnySocket) -> bytes:
    loop, fd = asyncio.get_running_loop(), sock.fileno()  # when we are cancelled the socket is closed already
    while True:
        try:
            return sock.recv(READ_BYTES)
        except BlockingIOError:
            ready: asyncio.Future[None] = loop.create_future()
            loop.add_reader(fd, _settle, ready)
            try:
                await ready
            finally:
                loop.remove_reader(fd)


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
