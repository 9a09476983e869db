"""A node's network with redirected dialling: each peer's address leads to the node's own proxy for that peer.

A node knows its peers by the addresses that they advertise and that the quorum's configuration names, the same for all.
Its table gives the address to dial instead. An address that is not in the table is refused as a broken invariant: a
connection that bypasses the proxies would make every cut a lie.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from tidelog.broker.node.node import NodeNetwork
from tidelog.proto.calls.request import Request, Response
from tidelog.proto.transport.network import Address, Connection, FrameStream, StreamKind
from tidelog.testing.cut_network import WrappedNetwork

R = TypeVar("R", bound=Response)

Detours = Mapping[Address, Address]
"""Advertised address → the address to dial instead."""


class NoDetour(AssertionError):
    """An address without a proxy was dialled."""


def write_detours(path: Path, detours: Detours) -> None:
    """Store a table in a file, for the process that uses it."""
    path.write_text(json.dumps([[*given, *led] for given, led in detours.items()], indent=1) + "\n")


def read_detours(path: Path) -> Detours:
    """Read what :func:`write_detours` wrote. Raises ``OSError`` or ``ValueError``."""
    rows = json.loads(path.read_text())
    return {Address(str(row[0]), int(row[1])): Address(str(row[2]), int(row[3])) for row in rows}


class DetouredNetwork(WrappedNetwork):
    """A node's network that dials the replacement of each address."""

    def __init__(self, inner: NodeNetwork, detours: Detours) -> None:
        super().__init__(inner)
        self._detours = detours

    def connect(self, address: Address, listener: str = "") -> Connection:
        led = self._detours.get(address)
        if led is None:
            raise NoDetour(f"expected one of {', '.join(map(str, self._detours))} to be dialled, found {address}")
        return _DetouredConnection(address, self._inner.connect(led, listener))

    async def refuses(self, address: Address) -> bool:
        """Ask the proxy, which hides whether the process behind it is alive."""
        led = self._detours.get(address)
        return led is not None and await self._inner.refuses(led)


class _DetouredConnection:
    """Reports the address that its user wanted: code that compares addresses would otherwise mistake it for
    another's."""

    def __init__(self, address: Address, inner: Connection) -> None:
        self._address = address
        self._inner = inner

    @property
    def address(self) -> Address:
        return self._address

    async def call(self, request: Request[R], *, timeout_s: float) -> R:
        return await self._inner.call(request, timeout_s=timeout_s)

    async def open(self, kind: StreamKind, *, timeout_s: float) -> FrameStream:
        return await self._inner.open(kind, timeout_s=timeout_s)

    async def close(self) -> None:
        await self._inner.close()
