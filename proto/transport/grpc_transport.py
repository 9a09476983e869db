"""The carrier between processes: gRPC over TCP.

Calls are unary methods of the service ``tidelog.v1.Tidelog``; frame streams are its bidirectional methods with messages
``Frame { bytes payload = 1; }``, encoded by hand so that record batches never pass through a protobuf object. Periodic
calls, and those of every transaction, also go as frames of a stream (:mod:`tidelog.proto.transport.call_stream`), if
the peer supports it. All of it runs on the process's single event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidelog.proto.transport.grpc_calling import GrpcConnection
from tidelog.proto.transport.grpc_login import MakeLogin
from tidelog.proto.transport.grpc_serving import serve_grpc
from tidelog.proto.transport.grpc_wire import (
    GrpcLimits,
)
from tidelog.proto.transport.network import (
    Address,
    Server,
    Service,
)
from tidelog.proto.transport.refusal import refuses
from tidelog.security.tls_store import FindTls, no_tls

log = logging.getLogger(__name__)


class GrpcNetwork:
    """Implements :class:`tidelog.proto.transport.network.Network`. ``on_bug`` gets a handler's exception."""

    def __init__(
        self,
        limits: GrpcLimits | None = None,
        on_bug: Callable[[BaseException], None] | None = None,
        tls: FindTls = no_tls,
        login: MakeLogin | None = None,
        client_id: str = "",
        tcp_port: int | None = None,
    ) -> None:
        """``tls`` says which listeners use TLS, as server and as client; ``login`` logs in at listeners that this
        process connects to, and ``client_id`` is sent to them. ``tcp_port``: followers' streams go over TCP if both
        ends want that (:mod:`tidelog.proto.transport.tcp_streams`), served at this port; 0: at any."""
        self._tcp_port = tcp_port
        self._login = login
        self._limits = limits or GrpcLimits()
        self._client_id = client_id
        self._tls = tls
        self.on_bug = on_bug or _log_bug

    async def serve(self, listener: str, address: Address, service: Service) -> Server:
        return await serve_grpc(
            listener, address, service, self._limits, self._tls(listener), self._bug, self._tcp_port
        )

    def connect(self, address: Address, listener: str = "") -> GrpcConnection:
        tcp = self._tcp_port is not None
        return GrpcConnection(address, self._limits, self._tls(listener), self._login, self._client_id, tcp)

    def _bug(self, bug: BaseException) -> None:
        self.on_bug(bug)

    async def refuses(self, address: Address) -> bool:
        return await refuses(address)


def _log_bug(bug: BaseException) -> None:
    log.error("a handler raised", exc_info=bug)
