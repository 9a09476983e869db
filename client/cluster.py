"""A client's link to the cluster: bootstrap, metadata kept fresh, one connection per node.

Everything runs on one event loop. Metadata is asked for one request at a time; whoever needs it waits
for the next answer. A node that cannot be reached is left alone for a growing while; when none of the
known brokers answers, the bootstrap servers are asked again (KIP-899).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tidelog.client.backoff import Backoff
from tidelog.client.errors import (
    BrokerNotAvailableError,
    ClientClosedError,
    RequestTimedOutError,
    exception_for,
)
from tidelog.client.metadata import MetadataCache, TopicView
from tidelog.client.metrics import ClientMetrics
from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId, TopicPartition
from tidelog.proto.api import MetadataRequest, MetadataResponse, Request, Response
from tidelog.proto.network import Address, CallTimeout, Connection, ConnectionLost, Network

R = TypeVar("R", bound=Response)

METADATA_TIMEOUT_S = 5.0
"""Longest wait for one broker's answer about metadata before another is asked."""

log = logging.getLogger(__name__)


class ClusterSettings(Protocol):
    """The settings that every client has."""

    @property
    def metadata_max_age_ms(self) -> int: ...
    @property
    def retry_backoff_ms(self) -> int: ...
    @property
    def retry_backoff_max_ms(self) -> int: ...
    @property
    def reconnect_backoff_ms(self) -> int: ...
    @property
    def reconnect_backoff_max_ms(self) -> int: ...
    @property
    def request_timeout_ms(self) -> int: ...


@dataclass(slots=True)
class _Peer:
    connection: Connection
    failures: int = 0
    usable_at_ms: int = -1 << 62


class Cluster:
    """Start it on the loop it is to live on; close it there."""

    def __init__(
        self,
        bootstrap: tuple[Address, ...],
        settings: ClusterSettings,
        network: Network,
        clock: Clock,
        rng: random.Random,
        metrics: ClientMetrics,
        *,
        allow_auto_topic_creation: bool = False,
    ) -> None:
        self.cache = MetadataCache()
        self.clock = clock
        self.rng = rng
        self.metrics = metrics
        self.retry_backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._settings = settings
        self._bootstrap = bootstrap
        self._network = network
        self._reconnect = Backoff(settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms)
        self._auto_create = allow_auto_topic_creation
        self._peers: dict[Address, _Peer] = {}
        self._wanted: dict[str, None] = {}
        self._listeners: list[Callable[[set[TopicPartition]], None]] = []
        self._wake = asyncio.Event()
        self._answers = 0
        self._answered = asyncio.Condition()
        self._failure: Exception | None = None
        self._refresh_at_ms = -1 << 62
        self._last_refresh_ms = -1 << 62
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Future[None]] = set()
        self._closed = False

    # --- life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_fresh(), name="metadata")

    async def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        async with self._answered:
            self._answered.notify_all()
        for peer in list(self._peers.values()):
            await peer.connection.close()
        self._peers.clear()
        if self._closing:
            await asyncio.wait(self._closing)

    def on_change(self, listener: Callable[[set[TopicPartition]], None]) -> None:
        """Call ``listener`` with the partitions whose leader or epoch changed, after each answer."""
        self._listeners.append(listener)

    # --- metadata -----------------------------------------------------------------------------------

    def want(self, topic: str) -> None:
        """Keep a topic's metadata from now on; the first request for it goes out at once."""
        if topic not in self._wanted:
            self._wanted[topic] = None
            if not self._failures:
                self._refresh_at_ms = self.clock.monotonic_ms()
                self._wake.set()

    def unwant(self, topic: str) -> None:
        """No longer keep it."""
        if self._wanted.pop(topic, self) is None:
            self.cache.forget(topic)

    def request_refresh(self) -> None:
        """Ask for new metadata soon; requests are ``retry_backoff_ms`` apart."""
        if self._failures:
            return  # the next attempt is due anyway, as soon as its backoff is over
        soonest = self._last_refresh_ms + self._settings.retry_backoff_ms
        self._refresh_at_ms = min(self._refresh_at_ms, max(self.clock.monotonic_ms(), soonest))
        self._wake.set()

    async def refreshed(self) -> None:
        """Wait for the next answer. Raises what kept it from coming, if it failed."""
        if self._closed:
            raise ClientClosedError("this client is closed")
        before = self._answers
        self.request_refresh()
        async with self._answered:
            await self._answered.wait_for(lambda: self._answers > before or self._closed)
        if self._failure is not None:
            raise self._failure

    async def topic(self, name: str, timeout_ms: int) -> TopicView:
        """Return a topic's metadata, asking for it as often as needed within ``timeout_ms``.

        Raises ``InvalidTopicError`` at once, and when time is over what stood in the way:
        ``UnknownTopicOrPartitionError`` or ``BrokerNotAvailableError``.
        """
        reason: Exception | None = None
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                while True:
                    view = self.cache.topics.get(name)
                    if view is not None:
                        return view
                    if self._closed:
                        raise ClientClosedError("this client is closed")
                    self.want(name)
                    try:
                        await self.refreshed()
                        reason = None
                    except BrokerNotAvailableError as error:
                        reason = error
                    code, message = self.cache.errors.get(name, (ErrorCode.NONE, ""))
                    if code is not ErrorCode.NONE:
                        reason = exception_for(code, f"{name}: {message or code.name}")
                        if not code.retriable:
                            raise reason
        except TimeoutError:
            if reason is not None:
                raise reason from None
            raise RequestTimedOutError(f"{name}: no metadata within {timeout_ms} ms") from None

    async def _keep_fresh(self) -> None:
        while True:
            now = self.clock.monotonic_ms()
            if now < self._refresh_at_ms:
                self._wake.clear()
                try:
                    async with asyncio.timeout((self._refresh_at_ms - now) / 1_000):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                continue
            await self._refresh()

    async def _refresh(self) -> None:
        asked = tuple(self._wanted)
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=self._auto_create)
        self._last_refresh_ms = self.clock.monotonic_ms()
        self._refresh_at_ms = self._last_refresh_ms + max(1, self._settings.metadata_max_age_ms)
        try:
            response = await self._ask_anyone(request)
        except BrokerNotAvailableError as error:
            self._failures += 1
            self._failure = error
            wait_ms = self._reconnect.after(self._failures, self.rng)
            self._refresh_at_ms = self.clock.monotonic_ms() + max(1, wait_ms)
        else:
            self._failures = 0
            self._failure = None
            changed = self.cache.apply(response, asked)
            self._drop_peers_that_left()
            self.metrics.metadata_refreshes += 1
            if set(self._wanted) - set(asked):
                self._refresh_at_ms = self._last_refresh_ms
            for listener in self._listeners:
                listener(changed)
        self._answers += 1
        async with self._answered:
            self._answered.notify_all()

    async def _ask_anyone(self, request: MetadataRequest) -> MetadataResponse:
        now = self.clock.monotonic_ms()
        known = list(dict.fromkeys(self.cache.brokers.values()))
        self.rng.shuffle(known)
        boot = [address for address in self._bootstrap if address not in known]
        self.rng.shuffle(boot)
        every = known + boot
        usable = [a for a in every if a not in self._peers or self._peers[a].usable_at_ms <= now]
        faults = []
        for address in usable or every:
            try:
                response = await self._call(address, request, METADATA_TIMEOUT_S)
            except (ConnectionLost, CallTimeout) as error:
                faults.append(str(error))
                continue
            if response.brokers:
                return response
            faults.append(f"{address}: knows of no brokers yet")
        raise BrokerNotAvailableError("no broker could be reached: " + "; ".join(faults))

    # --- connections ----------------------------------------------------------------------------------

    def connection(self, node: int) -> Connection | None:
        """The connection to a node; ``None`` while its address is unknown or it is left alone."""
        address = self.cache.brokers.get(NodeId(node))
        if address is None:
            return None
        peer = self._peer(address)
        return None if self.clock.monotonic_ms() < peer.usable_at_ms else peer.connection

    def usable_at_ms(self, node: int) -> int:
        """When :meth:`connection` may be asked again."""
        address = self.cache.brokers.get(NodeId(node))
        return -1 << 62 if address is None else self._peer(address).usable_at_ms

    def failed(self, connection: Connection) -> None:
        """A connection broke: leave its node alone for a while, and look whether leaders have moved."""
        peer = self._peers.get(connection.address)
        if peer is not None and peer.connection is connection:
            peer.failures += 1
            peer.usable_at_ms = self.clock.monotonic_ms() + self._reconnect.after(peer.failures, self.rng)
        self.metrics.connections_lost += 1
        self.request_refresh()

    def succeeded(self, connection: Connection) -> None:
        """A connection works."""
        peer = self._peers.get(connection.address)
        if peer is not None and peer.failures:
            peer.failures = 0
            peer.usable_at_ms = -1 << 62

    async def call(self, request: Request[R], *, timeout_ms: int, node: int | None = None) -> R:
        """Send one request to ``node``, or to whichever broker answers first of all those known.

        Raises ``BrokerNotAvailableError`` or ``RequestTimedOutError``; after the latter the outcome is
        unknown. With ``node=None`` another broker is asked after a lost connection, so the request
        must bear being carried out twice.
        """
        deadline = self.clock.monotonic_ms() + timeout_ms
        fault = "no broker is known"
        attempts = 0
        while True:
            left_ms = deadline - self.clock.monotonic_ms()
            if left_ms <= 0 or self._closed:
                raise RequestTimedOutError(f"{type(request).__name__}: no answer within {timeout_ms} ms: {fault}")
            address = self._address_for(node)
            if address is not None:
                try:
                    return await self._call(address, request, left_ms / 1_000)
                except CallTimeout as error:
                    raise RequestTimedOutError(str(error)) from None
                except ConnectionLost as error:
                    fault = str(error)
                    if node is not None:
                        raise BrokerNotAvailableError(fault) from None
            elif node is not None:
                raise BrokerNotAvailableError(
                    f"node {node} is not among the known brokers {sorted(self.cache.brokers)}"
                )
            attempts += 1
            wait_ms = min(left_ms, self.retry_backoff.after(attempts, self.rng))
            await asyncio.sleep(wait_ms / 1_000)
            try:
                async with asyncio.timeout(max(0.001, (deadline - self.clock.monotonic_ms()) / 1_000)):
                    await self.refreshed()
            except (BrokerNotAvailableError, TimeoutError) as error:
                fault = str(error) or fault

    def _address_for(self, node: int | None) -> Address | None:
        if node is not None:
            return self.cache.brokers.get(NodeId(node))
        now = self.clock.monotonic_ms()
        known = list(self.cache.brokers.values()) or list(self._bootstrap)
        usable = [a for a in known if a not in self._peers or self._peers[a].usable_at_ms <= now]
        return self.rng.choice(usable or known) if known else None

    async def _call(self, address: Address, request: Request[R], timeout_s: float) -> R:
        connection = self._peer(address).connection
        self.metrics.requests += 1
        try:
            response = await connection.call(request, timeout_s=timeout_s)
        except (ConnectionLost, CallTimeout):
            self.failed(connection)
            raise
        self.succeeded(connection)
        return response

    def _peer(self, address: Address) -> _Peer:
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = _Peer(self._network.connect(address))
        return peer

    def _drop_peers_that_left(self) -> None:
        keep = {*self.cache.brokers.values(), *self._bootstrap}
        for address in [a for a in self._peers if a not in keep]:
            peer = self._peers.pop(address)
            task = asyncio.ensure_future(peer.connection.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
