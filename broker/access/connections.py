"""The connections to this broker's listeners: which are open, and closing them.

A Kafka listener closes its sockets. Python's gRPC cannot close a connection: its streams end, and its logins are
forgotten, so what comes next needs another login.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

from tidelog.broker.services import Calls
from tidelog.model.errors import ErrorCode
from tidelog.model.settings.security_protocol import SecurityProtocol
from tidelog.proto.calls.connection_api import (
    CONNECTIONS_SHOWN_MAX,
    CloseConnectionsRequest,
    CloseConnectionsResponse,
    DescribeConnectionsRequest,
    DescribeConnectionsResponse,
    OpenConnection,
)
from tidelog.proto.transport.network import CallContext, ListsPeers, Peer, Server

log = logging.getLogger(__name__)

_A_TURN: Final = 200
"""Connections looked at before others get their turn."""


class Connections:
    """``servers``: the listeners; ``protocol_of``: the security protocol of each, by its name;
    ``forget``: forgets the logins of a principal from a host, "" for any."""

    def __init__(
        self,
        servers: Callable[[], Iterable[Server]],
        protocol_of: Callable[[str], SecurityProtocol],
        forget: Callable[[str, str], None],
    ) -> None:
        self._servers = servers
        self._protocol_of = protocol_of
        self._forget = forget

    def calls(self) -> Calls:
        return {DescribeConnectionsRequest: self.describe, CloseConnectionsRequest: self.close}

    async def describe(self, request: DescribeConnectionsRequest, _: CallContext) -> DescribeConnectionsResponse:
        found: list[OpenConnection] = []
        total, most = 0, min(max(request.connections_max, 0), CONNECTIONS_SHOWN_MAX)
        now_s = asyncio.get_running_loop().time()
        async for peer in self._matching(request):
            total += 1
            if len(found) < most:
                found.append(self._shown(peer, now_s))
        return DescribeConnectionsResponse(tuple(found), total)

    async def close(self, request: CloseConnectionsRequest, context: CallContext) -> CloseConnectionsResponse:
        if not request.principal and not request.host:
            text = "expected a principal or a host whose connections are closed, found neither"
            return CloseConnectionsResponse(error=ErrorCode.INVALID_REQUEST, error_message=text)
        if not request.port:
            self._forget(request.principal, request.host)
        closed = 0
        async for peer in self._matching(request):
            if peer.caller.peer != context.peer:
                peer.dismiss("an operator closed this connection")
                closed += 1
        log.info(
            "%s of %s closed %d connections of principal %s, host %s, port %s",
            context.session.principal, context.peer, closed, request.principal or "any", request.host or "any",
            request.port or "any",
        )  # fmt: skip
        return CloseConnectionsResponse(closed)

    async def _matching(self, request: DescribeConnectionsRequest | CloseConnectionsRequest) -> AsyncIterator[Peer]:
        peers = [peer for server in self._servers() if isinstance(server, ListsPeers) for peer in server.peers()]
        for number, peer in enumerate(peers, 1):
            if _matches(peer.caller, request):
                yield peer
            if number % _A_TURN == 0:
                await asyncio.sleep(0)

    def _shown(self, peer: Peer, now_s: float) -> OpenConnection:
        caller = peer.caller
        return OpenConnection(
            listener=caller.listener,
            host=caller.host,
            port=caller.port,
            security_protocol=self._protocol_of(caller.listener).name,
            principal=str(caller.session.principal),
            client_id=caller.client_id,
            software=peer.software,
            age_ms=_ms(now_s - peer.opened_s),
            idle_ms=-1 if peer.progress_s is None else _ms(now_s - peer.progress_s),
            bytes_in=peer.bytes_in,
            bytes_out=peer.bytes_out,
        )


def _matches(caller: CallContext, request: DescribeConnectionsRequest | CloseConnectionsRequest) -> bool:
    return (
        (not request.principal or request.principal == str(caller.session.principal))
        and (not request.port or request.port == caller.port)
        and (not request.host or request.host == caller.host)
    )


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
