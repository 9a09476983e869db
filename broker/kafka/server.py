"""A Kafka listener: a bound socket, the connections it accepted, and what bounds their number and their idleness."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from typing import Final

from tidelog.broker.kafka.api_versions import ApiVersions
from tidelog.broker.kafka.connection import KafkaConnection
from tidelog.broker.kafka.fetch import Fetch
from tidelog.broker.kafka.kafka_traffic import Notices
from tidelog.broker.kafka.limits import KafkaLimits
from tidelog.broker.kafka.produce import Produce
from tidelog.broker.kafka.services import KafkaServices
from tidelog.broker.kafka.topic_names import TopicNames
from tidelog.proto.kafka import fetch_codec, produce_codec
from tidelog.proto.kafka.headers import API_VERSIONS
from tidelog.proto.kafka.schemas import load_schemas
from tidelog.proto.network import Address

log = logging.getLogger(__name__)

BACKLOG: Final = 1024
ACCEPTS_A_TURN: Final = 64
"""Connections accepted before those there are have their turn."""
ACCEPT_PAUSE_S: Final = 1.0
"""How long none is accepted after the system had no descriptor left."""
IDLE_LOOKS: Final = 4
"""Looks for idle connections within the time after which one is closed."""
IDLE_LOOK_MIN_S: Final = 0.05
KEEPALIVE_IDLE_S: Final = 60
KEEPALIVE_INTERVAL_S: Final = 10
KEEPALIVE_PROBES: Final = 6
"""A peer that vanished while it waits for an answer is found by the system within two minutes."""
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
    """Implements :class:`tidelog.proto.network.Server` and :class:`tidelog.broker.kafka.host.Host`."""

    def __init__(self, listener: str, sock: socket.socket, services: KafkaServices) -> None:
        self.listener = listener
        self.limits = KafkaLimits.of(services.config)
        self.calls = services.calls
        self.apis = services.apis
        self.served = frozenset((produce_codec.API_KEY, fetch_codec.API_KEY, API_VERSIONS, *services.apis))
        self.produce_budget = services.produce_budget
        self.traffic = services.traffic
        names = TopicNames(services.view, listener)
        self.api_versions = ApiVersions(services.apis, services.traffic)
        self.produce = Produce(services.replicas, names, services.data_traffic, services.traffic)
        self.fetch = Fetch(
            services.replicas,
            names,
            services.data_traffic,
            services.traffic,
            services.config.fetch_max_bytes,
            services.fetch_budget,
            services.files_crowded,
        )
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._notices = Notices()
        self._connections: dict[KafkaConnection, None] = {}
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
        """Accept no more at once, give what is under way ``grace_s`` to be answered, then cut the rest."""
        if self._waiting_ready is not None:
            self._waiting_ready.cancel()
        for timer in (self._idle_look, self._pause):
            if timer is not None:
                timer.cancel()
        self._accept_off()
        self._sock.close()
        if grace_s > 0 and any(found.at_work for found in self._connections):
            await asyncio.sleep(grace_s)
        for connection in list(self._connections):
            connection.abort()

    async def _when_ready(self) -> None:
        # Until then the system holds the connections: a client sees a broker that is slow to answer.
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
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                log.error("listener %s: accepts nothing for %.0f s: %s", self.listener, ACCEPT_PAUSE_S, error)
                self._accept_off()
                self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._accept_on)
                return
            self._accepted(sock, _shown(peer))

    def _accepted(self, sock: socket.socket, peer: str) -> None:
        if len(self._connections) >= self.limits.connections_max:
            self.traffic.refused += 1
            most = self.limits.connections_max
            self.notice(peer, f"expected at most {most} connections to this listener (max.connections)")
            sock.close()
            return
        sock.setblocking(False)
        _tune(sock)
        self.traffic.accepted += 1
        self.traffic.connections += 1
        connection = KafkaConnection(self, sock, self.traffic.accepted, peer)
        self._connections[connection] = None
        connection.begin()

    # --- What connections tell ------------------------------------------------------------------------

    def bug(self, error: BaseException) -> None:
        """A handler raised what it must not: the node ends."""
        self._services.on_bug(error)

    def notice(self, peer: str, text: str) -> None:
        """Log who is cut off and why."""
        self._notices.say(self._loop.time(), self.listener, peer, text)

    def closed(self, connection: KafkaConnection) -> None:
        """Its socket is closed."""
        if self._connections.pop(connection, self) is None:
            self.traffic.connections -= 1
            self.traffic.closed += 1

    # --- Idleness -------------------------------------------------------------------------------------

    def _look_later(self) -> None:
        idle_s = self.limits.idle_ms / 1000
        if idle_s >= 0:
            self._idle_look = self._loop.call_later(max(idle_s / IDLE_LOOKS, IDLE_LOOK_MIN_S), self._close_idle)

    def _close_idle(self) -> None:
        """Close those that nothing came from or went to, be it in the middle of a request or of an answer."""
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
