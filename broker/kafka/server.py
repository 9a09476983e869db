"""A Kafka listener: a bound socket, its connections, and limits on their number and idle time."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Sequence
from typing import Final

from tidelog.broker.access.access import TLS
from tidelog.broker.kafka.calls.cluster.api_versions import ApiVersions
from tidelog.broker.kafka.calls.services import KafkaServices
from tidelog.broker.kafka.connection import KafkaConnection
from tidelog.broker.kafka.data.fetch import Fetch
from tidelog.broker.kafka.data.produce import Produce
from tidelog.broker.kafka.data.topic_names import TopicNames
from tidelog.broker.kafka.handshakes import HandshakeFailed, Handshakes
from tidelog.broker.kafka.login import LoginOver
from tidelog.broker.kafka.wire.incoming import shared_buffer
from tidelog.broker.kafka.wire.limits import KafkaLimits
from tidelog.broker.notices import Notices
from tidelog.proto.kafka import fetch_codec, produce_codec
from tidelog.proto.kafka.headers import API_VERSIONS
from tidelog.proto.kafka.schemas import load_schemas
from tidelog.proto.transport.http2_referral import Referral
from tidelog.proto.transport.network import Address, CallContext
from tidelog.security.sasl import Cause

log = logging.getLogger(__name__)

BACKLOG: Final = 1024
ACCEPTS_A_TURN: Final = 64
"""Connections accepted before existing ones get their turn."""
ACCEPT_PAUSE_S: Final = 1.0
"""How long to accept none after the system ran out of descriptors."""
IDLE_LOOKS: Final = 4
"""How often to look for idle connections within the idle timeout."""
IDLE_LOOK_MIN_S: Final = 0.05
KEEPALIVE_IDLE_S: Final = 60
KEEPALIVE_INTERVAL_S: Final = 10
KEEPALIVE_PROBES: Final = 6
"""Keepalive probes: the system detects a peer that vanished while waiting for an answer within two minutes."""
_NO_DESCRIPTORS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


async def serve_kafka(listener: str, address: Address, services: KafkaServices) -> KafkaListener:
    """Bind and serve. Raises ``OSError`` naming the address."""
    load_schemas()
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        sock = socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"cannot listen on {address} for {listener}: {reason}") from None
    sock.setblocking(False)
    return KafkaListener(listener, sock, services)


class KafkaListener:
    """Implements :class:`tidelog.proto.transport.network.Server` and :class:`tidelog.broker.kafka.host.Host`."""

    def __init__(self, listener: str, sock: socket.socket, services: KafkaServices) -> None:
        self.listener = listener
        self.limits = KafkaLimits.of(services.config)
        self.calls = services.calls
        self.apis = services.apis
        self.access = services.control.of
        self.logins = services.logins(listener)
        self.served = frozenset((produce_codec.API_KEY, fetch_codec.API_KEY, API_VERSIONS, *services.apis))
        self.produce_budget = services.produce_budget
        self.client_quotas = services.client_quotas
        self.shared_buffer = shared_buffer()
        self.traffic = services.traffic
        names = TopicNames(services.view, listener)
        self.api_versions = ApiVersions(services.apis, services.traffic, lambda: services.view.image)
        self.produce = Produce(services.replicas, names, services.data_traffic, services.traffic)
        self.fetch = Fetch(
            services.replicas,
            names,
            services.data_traffic,
            services.traffic,
            services.config.fetch_max_bytes,
            services.fetch_budget,
            services.files_crowded,
            services.fetch_sessions,
        )
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        store = services.tls(listener)
        self._handshakes = None if store is None else Handshakes(store)
        self._notices = Notices()
        self._connections: dict[KafkaConnection, str] = {}
        """Each with the address that it is counted for."""
        self._held: dict[socket.socket, asyncio.TimerHandle] = {}
        """Connections that are not served, and will be closed soon."""
        host, port = sock.getsockname()[:2]
        self.address = Address(host, port)
        self._accepting = False
        self._idle_look: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._waiting_ready: asyncio.Task[None] | None = None
        if services.ready.is_set():
            self._accept_on()
        else:
            self._waiting_ready = self._loop.create_task(self._when_ready())
        self._look_later()

    # --- Life ---------------------------------------------------------------------------------------

    async def close(self, grace_s: float) -> None:
        """Stop accepting, give requests in progress ``grace_s`` to be answered, then close the rest."""
        if self._waiting_ready is not None:
            self._waiting_ready.cancel()
        for timer in (self._idle_look, self._pause):
            if timer is not None:
                timer.cancel()
        self._accept_off()
        self._sock.close()
        for held in list(self._held):
            self._let_go(held)
        if self._handshakes is not None:
            await self._handshakes.close()
        if grace_s > 0 and any(found.at_work for found in self._connections):
            await asyncio.sleep(grace_s)
        for connection in list(self._connections):
            connection.abort()

    async def _when_ready(self) -> None:
        # Until then the system holds the connections: to clients, the broker is slow to answer.
        await self._services.ready.wait()
        self._accept_on()

    # --- Accepting ----------------------------------------------------------------------------------

    def _accept_on(self) -> None:
        if not self._accepting and self._sock.fileno() >= 0:
            self._accepting = True
            self._loop.add_reader(self._sock.fileno(), self._accept)

    def _accept_off(self) -> None:
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._sock.fileno())

    def _accept(self) -> None:
        quotas = self._services.quotas
        for _ in range(ACCEPTS_A_TURN):
            if pause_s := quotas.pause_s(self._loop.time()):
                self._pause_accepting(pause_s)
                return
            try:
                sock, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                log.error("listener %s: accepting no connections for %.0f s: %s", self.listener, ACCEPT_PAUSE_S, error)
                self._pause_accepting(ACCEPT_PAUSE_S)
                return
            quotas.taken()
            self._accepted(sock, peer[0], _shown(peer))

    def _pause_accepting(self, seconds: float) -> None:
        """Accept nothing for a while; the system holds new connections."""
        self._accept_off()
        self._pause = self._loop.call_later(seconds, self._pause_ended)

    def _pause_ended(self) -> None:
        self._pause = None
        self._accept_on()

    def _accepted(self, sock: socket.socket, host: str, peer: str) -> None:
        most = self.limits.connections_max
        refusal: str | None = f"expected at most {most} connections to this listener (max.connections)"
        shaking = 0 if self._handshakes is None else len(self._handshakes.under_way)
        if len(self._connections) + len(self._held) + shaking < most:
            hold_ms = self._services.quotas.hold_ms(host, int(self._loop.time() * 1000))
            if hold_ms:
                self._hold(sock, peer, hold_ms / 1000)
                return
            refusal = self._services.quotas.take(host)
        if refusal is not None:
            self.traffic.refused += 1
            self.notice(peer, refusal)
            sock.close()
            return
        sock.setblocking(False)
        _tune(sock)
        self.traffic.accepted += 1
        self.traffic.connections += 1
        number = self.traffic.accepted
        if self._handshakes is None:
            self._serve(KafkaConnection(self, sock, number, peer, self._closed), host)
            return
        task = self._loop.create_task(self._shake_hands(self._handshakes, sock, number, host, peer))
        self._handshakes.under_way.add(task)
        task.add_done_callback(self._shaken)

    def _hold(self, sock: socket.socket, peer: str, seconds: float) -> None:
        """Close a connection later: an address that makes too many does not learn that immediately (KIP-612)."""
        self.traffic.refused += 1
        self.notice(peer, "expected fewer new connections per second from one address (connection_creation_rate)")
        self._held[sock] = self._loop.call_later(seconds, self._let_go, sock)

    def _let_go(self, sock: socket.socket) -> None:
        self._held.pop(sock).cancel()
        sock.close()

    def _serve(self, connection: KafkaConnection, host: str) -> None:
        self._connections[connection] = host
        connection.begin()

    async def _shake_hands(
        self, handshakes: Handshakes, sock: socket.socket, number: int, host: str, peer: str
    ) -> None:
        try:
            found, session = await handshakes.shake(sock, host)
        except HandshakeFailed as failed:
            self.notice(peer, str(failed))
            context = CallContext(self.listener, peer)
            self._services.control.login_failed(context, "", TLS, str(failed), TLS, Cause.HANDSHAKE)
            self._left(host)
        except asyncio.CancelledError:
            self._left(host)
            raise
        else:
            self._serve(KafkaConnection(self, found, number, peer, self._closed, session), host)

    def _shaken(self, task: asyncio.Task[None]) -> None:
        assert self._handshakes is not None
        self._handshakes.under_way.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            self.bug(bug)

    # --- What connections tell ------------------------------------------------------------------------

    def bug(self, error: BaseException) -> None:
        """Stop the node: a handler raised what it must not."""
        self._services.on_bug(error)

    def login_failed(self, peer: str, over: LoginOver) -> None:
        """Log it, and tell the audit log."""
        why, failed = str(over), over.failed
        self.notice(peer, why)
        protocol = self._services.config.protocol_of(self.listener)
        context = CallContext(self.listener, peer)
        self._services.control.login_failed(context, failed.tried, protocol.name, why, over.mechanism, failed.cause)

    def notice(self, peer: str, text: str) -> None:
        """Log the closed connection and the reason."""
        self._notices.say(self._loop.time(), self.listener, peer, text)

    def referral(self) -> Referral:
        """Return the referral for a gRPC client."""
        elsewhere = self._services.grpc_address[self.listener]
        return Referral(f"listener {self.listener} speaks the Kafka protocol; gRPC is served at {elsewhere}", elsewhere)

    def _closed(self, connection: KafkaConnection) -> None:
        """Its socket is closed."""
        host = self._connections.pop(connection, None)
        if host is not None:
            self._left(host)

    def _left(self, host: str) -> None:
        """Uncount a connection that is gone."""
        self._services.quotas.give(host)
        self.traffic.connections -= 1
        self.traffic.closed += 1

    def peers(self) -> Sequence[KafkaConnection]:
        """See :class:`tidelog.proto.transport.network.ListsPeers`."""
        return [found for found in self._connections if found.is_open]

    # --- Idleness -------------------------------------------------------------------------------------

    def _look_later(self) -> None:
        idle_s = self.limits.idle_ms / 1000
        if idle_s >= 0:
            self._idle_look = self._loop.call_later(max(idle_s / IDLE_LOOKS, IDLE_LOOK_MIN_S), self._close_idle)

    def _close_idle(self) -> None:
        """Close idle connections, even in the middle of a request or answer."""
        long_ago = self._loop.time() - self.limits.idle_ms / 1000
        for connection in [found for found in self._connections if found.progress_s <= long_ago]:
            if connection.stands_still:
                self.traffic.idle_closed += 1
                connection.abort()
        self._look_later()


def _shown(peer: tuple[str, int]) -> str:
    return str(Address(peer[0], peer[1]))


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
