"""The peers with streams at a gRPC listener, by connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc
import grpc.aio

from tidelog.proto.transport.network import CallContext

SOFTWARE: Final = "gRPC"

_Context = grpc.aio.ServicerContext[Any, Any]


class GrpcPeer:
    """One connection with streams. Implements :class:`tidelog.proto.transport.network.Peer`."""

    software = SOFTWARE
    progress_s = None
    bytes_in = bytes_out = -1

    def __init__(self, caller: CallContext) -> None:
        self.caller = caller
        self.opened_s = asyncio.get_running_loop().time()
        self.streams: set[_Context] = set()
        self._ending: set[asyncio.Task[None]] = set()

    def dismiss(self, why: str) -> None:
        for context in self.streams:
            task = asyncio.get_running_loop().create_task(_abort(context, why))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


async def _abort(context: _Context, why: str) -> None:
    try:
        await context.abort(grpc.StatusCode.UNAVAILABLE, why)
    except (grpc.aio.BaseError, asyncio.InvalidStateError):
        pass  # the first is how an abort always ends; the second: the stream has just ended by itself


class GrpcPeers:
    """See the module. Connections with calls only are unknown."""

    def __init__(self) -> None:
        self._open: dict[str, GrpcPeer] = {}

    def open(self) -> list[GrpcPeer]:
        return list(self._open.values())

    @contextmanager
    def stream(self, caller: CallContext, context: _Context) -> Iterator[None]:
        """Count a stream while it lasts."""
        peer = self._open.get(caller.peer)
        if peer is None:
            peer = self._open[caller.peer] = GrpcPeer(caller)
        peer.caller = caller
        peer.streams.add(context)
        try:
            yield
        finally:
            peer.streams.discard(context)
            if not peer.streams:
                self._open.pop(caller.peer, None)
