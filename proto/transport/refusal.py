"""Checks whether a host refuses connections to an address: the surest remote sign that a process has ended."""

from __future__ import annotations

import asyncio
import socket

from tidelog.proto.transport.network import Address

ANSWER_S = 0.2
"""A running host answers immediately; a silent one says nothing about its processes."""


async def refuses(address: Address) -> bool:
    """Return whether every address of a host name refuses TCP connections.

    False if one is accepted (by whatever process, even a proxy), if no answer comes within :data:`ANSWER_S`, or if the
    network cannot answer.
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
