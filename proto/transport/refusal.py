"""Whether a host says that nobody listens at an address: the surest sign, from afar, that a process has ended."""

from __future__ import annotations

import asyncio
import socket

from tidelog.proto.transport.network import Address

ANSWER_S = 0.2
"""A host that runs answers at once; one that is silent says nothing about its processes."""


async def refuses(address: Address) -> bool:
    """Whether every address that a host's name leads to refuses TCP connections.

    False if one is accepted (whatever the process behind it does, and be it a proxy), if no answer comes within
    :data:`ANSWER_S`, or if the network has none to give.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(ANSWER_S):
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            for family, kind, protocol, _, where in found:
                with socket.socket(family, kind, protocol) as attempt:
                    attempt.setblocking(False)
                    try:
                        await loop.sock_connect(attempt, where)
                    except ConnectionRefusedError:
                        continue
                    return False
    except (OSError, TimeoutError):
        return False
    return bool(found)
