"""A client's link to the cluster: bootstrap, current metadata, one connection per node.

Everything runs on one event loop. One metadata request is in flight at a time; callers that need metadata wait for the
next answer. An unreachable node is left alone for growing periods; if no known broker answers, the bootstrap servers
are asked again (KIP-899).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from tidelog.client.cluster.backoff import Backoff
from tidelog.client.cluster.metadata import MetadataCache, TopicView
from tidelog.client.cluster.metrics import ClientMetrics
from tidelog.client.errors import (
    BrokerNotAvailableError,
    ClientClosedError,
    InvalidTopicError,
    RequestTimedOutError,
    SaslAuthenticationError,
    SslAuthenticationError,
    TidelogError,
    WrongAddressError,
    exception_for,
)
from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId, TopicPartition
from tidelog.proto.calls.api import MetadataRequest
from tidelog.proto.calls.request import Change, Request, Response
from tidelog.proto.transport.network import (
    Address,
    CallTimeout,
    Connection,
    ConnectionLost,
    LoginNotMade,
    Network,
    NotServedHere,
    TlsRefused,
)

R = TypeVar("R", bound=Response)

METADATA_TIMEOUT_S = 5.0
"""How long to wait for one broker's metadata before asking another."""

HEDGE_S = 0.5
"""How long to wait for one broker before also asking another, if any of them knows the answer."""

WARNED_MAX: Final = 100
"""Maximum wrong addresses to log, each once."""

STAYS_MS: Final = 10_000
"""How long a client keeps using the broker that carried out its change. Other brokers know the change by then."""

HANGING_MS: Final = 1_000
"""After this long without an answer, look for a new leader: the request's node may be frozen."""

LOOK_AROUND_MS: Final = 5_000
"""How long after a broken connection to keep asking for metadata, if it still names that broker: others will lead in
its place. Backoffs grow in the meantime, and nobody should wait for the end of a long one to learn about a leader."""

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
    lost_ms: int = -1 << 62
    """When its connection, which had worked before, broke."""


class Cluster:
    """Start and close it on the same event loop."""

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
        self.servers = ",".join(map(str, bootstrap))
        self._network = network
        self._reconnect = Backoff(settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms)
        self._auto_create = allow_auto_topic_creation
        self._peers: dict[Address, _Peer] = {}
        self._elsewhere: dict[Address, Address] = {}
        """Kafka listeners' addresses, with the gRPC listeners to which they refer."""
        self._stays_with: Address | None = None
        self._stays_until_ms = -1 << 62
        self.has_all_topics = False
        """Whether the last answer covered all existing topics."""
        self._wanted: dict[str, None] = {}
        self._pinned: frozenset[str] = frozenset()
        self._all_topics = False
        self._listeners: list[Callable[[set[TopicPartition]], None]] = []
        self._wake = asyncio.Event()
        self._answers = 0
        self._answered = asyncio.Condition()
        self._failure: TidelogError | None = None
        self._warned: set[str] = set()
        self._refresh_at_ms = -1 << 62
        self._last_refresh_ms = -1 << 62
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Future[None]] = set()
        self._closed = False

    # --- lifecycle ----------------------------------------------------------------------------------

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_fresh(), name="metadata")
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Handle the end of metadata refreshing, which is a bug: callers that wait for it get the error."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.critical("refreshing the client's metadata failed", exc_info=error)
            self._closed = True
            self._failure = BrokerNotAvailableError(f"metadata is no longer available: {error!r}")

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

    @property
    def failure(self) -> TidelogError | None:
        """Why the latest request for metadata failed; None if it did not."""
        return self._failure

    def on_change(self, listener: Callable[[set[TopicPartition]], None]) -> None:
        """Call ``listener``, after each answer, with the partitions whose leader or epoch changed."""
        self._listeners.append(listener)

    # --- metadata -----------------------------------------------------------------------------------

    def want(self, topic: str) -> None:
        """Keep a topic's metadata from now on; the first request for it is sent immediately. Raises
        ``InvalidTopicError`` for a name that no request could carry."""
        if topic not in self._wanted:
            try:
                topic.encode()
            except UnicodeEncodeError:
                expected = "a topic name of ASCII letters, digits, '.', '_' and '-'"
                raise InvalidTopicError(f"expected {expected}, found {topic!r}") from None
            self._wanted[topic] = None
            if not self._failures:
                self._refresh_at_ms = self.clock.monotonic_ms()
                self._wake.set()

    def unwant(self, topic: str) -> None:
        """Stop keeping its metadata, unless it is pinned."""
        if topic not in self._pinned and self._wanted.pop(topic, self) is None and not self._all_topics:
            self.cache.forget(topic)

    def pin(self, topics: frozenset[str], *, every: bool = False) -> None:
        """Keep these topics' metadata until others are pinned; with ``every``, that of all existing topics."""
        before, self._pinned = self._pinned, topics
        for gone in sorted(before - topics):
            self.unwant(gone)
        for new in sorted(topics - before):
            self.want(new)
        if every and not self._all_topics:
            self._refresh_at_ms = min(self._refresh_at_ms, self.clock.monotonic_ms())
            self._wake.set()
        self._all_topics = every

    def request_refresh(self) -> None:
        """Ask for new metadata soon; requests are ``retry_backoff_ms`` apart."""
        if self._failures:
            return  # the next attempt is due anyway after its backoff
        soonest = self._last_refresh_ms + self._settings.retry_backoff_ms
        self._refresh_at_ms = min(self._refresh_at_ms, max(self.clock.monotonic_ms(), soonest))
        self._wake.set()

    def refresh_after(self, wait_ms: int) -> None:
        """Ask for new metadata within this time."""
        self._refresh_at_ms = min(self._refresh_at_ms, self.clock.monotonic_ms() + wait_ms)
        self._wake.set()

    async def refreshed(self) -> None:
        """Wait for the next answer. If the request fails, raises the reason."""
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

        Raises ``InvalidTopicError`` immediately, and on timeout the reason: ``UnknownTopicOrPartitionError`` or
        ``BrokerNotAvailableError``.
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
        every = self._all_topics
        request = (
            MetadataRequest(all_topics=True)
            if every
            else MetadataRequest(topics=asked, allow_auto_topic_creation=self._auto_create)
        )
        self._last_refresh_ms = self.clock.monotonic_ms()
        self._refresh_at_ms = self._last_refresh_ms + max(1, self._settings.metadata_max_age_ms)
        try:
            response = await self.ask_anyone(request, lambda answer: bool(answer.brokers))
        except (BrokerNotAvailableError, WrongAddressError) as error:
            self._failures += 1
            self._failure = error
            wait_ms = self._reconnect.after(self._failures, self.rng)
            self._refresh_at_ms = self.clock.monotonic_ms() + max(1, wait_ms)
        else:
            self._failures = 0
            self._failure = None
            before = {*self.cache.brokers.values()}
            changed = self.cache.apply(response, (*asked, *self.cache.topics) if every else asked)
            for name in [name for name in self.cache.errors if name not in self._wanted]:
                self.cache.forget(name)
            self.has_all_topics = every
            self._drop_peers_that_left(before)
            self.metrics.metadata_refreshes += 1
            if self._all_topics != every or (not every and set(self._wanted) - set(asked)):
                self._refresh_at_ms = self._last_refresh_ms
            for listener in self._listeners:
                listener(changed)
            if self._misses_a_broker():
                self.request_refresh()
        self._answers += 1
        async with self._answered:
            self._answered.notify_all()

    def _misses_a_broker(self) -> bool:
        """Return whether metadata names a broker to which we recently lost the connection."""
        since_ms = self.clock.monotonic_ms() - LOOK_AROUND_MS
        named = (self._peers.get(address) for address in self.cache.brokers.values())
        return any(peer is not None and peer.failures and peer.lost_ms > since_ms for peer in named)

    async def ask_anyone(self, request: Request[R], accept: Callable[[R], bool] = lambda _: True) -> R:
        """Ask brokers until one answers acceptably, starting with those that worked last. If one is slow, the next is
        also asked after ``HEDGE_S``, so the request must be safe to carry out twice.

        Raises ``BrokerNotAvailableError`` if all fail, ``WrongAddressError`` if no retry can help.
        """
        addresses = self._candidates()
        faults: list[str] = []
        wrong = untrusted = unknown = 0
        tasks: dict[asyncio.Task[R], Address] = {}
        try:
            while addresses or tasks:
                if addresses:
                    address = addresses.pop(0)
                    call = self._call(address, request, METADATA_TIMEOUT_S)
                    tasks[asyncio.get_running_loop().create_task(call)] = address
                done, _ = await asyncio.wait(
                    tasks, timeout=HEDGE_S if addresses else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    address = tasks.pop(task)
                    error = task.exception()
                    if error is None:
                        response = task.result()
                        if accept(response):
                            for slow in list(tasks.values()):
                                self._peer(slow).failures += 1  # prefer others the next time
                            return response
                        faults.append(f"{address}: has not given a usable answer yet")
                    elif isinstance(error, (ConnectionLost, CallTimeout)):
                        faults.append(str(error))
                        if isinstance(error, NotServedHere):
                            wrong += 1
                            untrusted += isinstance(error, TlsRefused)
                            unknown += isinstance(error, LoginNotMade)
                            self._warn(str(error))
                    else:
                        raise error
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
        if untrusted == len(faults) and not self.cache.brokers:
            raise SslAuthenticationError("; ".join(faults))
        if unknown == len(faults) and not self.cache.brokers:
            raise SaslAuthenticationError("; ".join(faults))
        if wrong == len(faults) and not self.cache.brokers:
            raise WrongAddressError("no broker's listener for clients: " + "; ".join(faults))
        raise BrokerNotAvailableError("no broker could be reached: " + "; ".join(faults))

    def _warn(self, text: str) -> None:
        if text not in self._warned and len(self._warned) < WARNED_MAX:
            self._warned.add(text)
            log.warning("%s", text)

    def _candidates(self) -> list[Address]:
        """Return known brokers, then bootstrap servers (KIP-899), each group shuffled; recently failed ones come last.
        Brokers to be left alone for now are included only if there are no others."""
        now = self.clock.monotonic_ms()
        known = list(dict.fromkeys(self.cache.brokers.values()))
        named = dict.fromkeys(self._elsewhere.get(address, address) for address in self._bootstrap)
        boot = [address for address in named if address not in known]
        self.rng.shuffle(known)
        self.rng.shuffle(boot)
        every = sorted(known + boot, key=lambda a: self._peers[a].failures if a in self._peers else 0)
        return [a for a in every if a not in self._peers or self._peers[a].usable_at_ms <= now] or every

    # --- connections ----------------------------------------------------------------------------------

    def connection(self, node: int) -> Connection | None:
        """Return the connection to a node; ``None`` while its address is unknown or the node is left alone."""
        address = self.cache.brokers.get(NodeId(node))
        if address is None:
            return None
        peer = self._peer(address)
        return None if self.clock.monotonic_ms() < peer.usable_at_ms else peer.connection

    def usable_at_ms(self, node: int) -> int:
        """Return when to call :meth:`connection` again."""
        address = self.cache.brokers.get(NodeId(node))
        return -1 << 62 if address is None else self._peer(address).usable_at_ms

    def failed(self, connection: Connection) -> None:
        """Note that a connection broke: leave its node alone for a while, and check whether leaders have moved."""
        peer = self._peers.get(connection.address)
        now = self.clock.monotonic_ms()
        if peer is not None and peer.connection is connection and now >= peer.usable_at_ms:
            if not peer.failures:
                peer.lost_ms = now
            peer.failures += 1
            peer.usable_at_ms = now + self._reconnect.after(peer.failures, self.rng)
            self.metrics.connections_lost += 1
        self.request_refresh()

    def waited(self, connection: Connection, since_ms: int) -> int:
        """Note that a request on ``connection`` has waited for its answer since then; if that is long, check whether
        others lead. Brokers fence a frozen node, and requests to fenced nodes are given up
        (:meth:`_drop_peers_that_left`). Returns when to call this again."""
        now = self.clock.monotonic_ms()
        if now < since_ms + HANGING_MS:
            return since_ms + HANGING_MS
        peer = self._peers.get(connection.address)
        if peer is not None and peer.connection is connection:
            peer.failures = max(1, peer.failures)  # prefer others
        self.request_refresh()
        return now + (now - since_ms) // 2

    def succeeded(self, connection: Connection) -> None:
        """Note that a connection works."""
        peer = self._peers.get(connection.address)
        if peer is not None and peer.failures:
            peer.failures = 0
            peer.usable_at_ms = -1 << 62

    async def call(self, request: Request[R], *, timeout_ms: int, node: int | None = None) -> R:
        """Send one request to ``node``, or to the first known broker that answers.

        Raises ``BrokerNotAvailableError`` or ``RequestTimedOutError``; after the latter the outcome is unknown. With
        ``node=None``, another broker is asked after a lost connection, so the request must be safe to carry out twice.
        After a change, the client keeps asking the same broker for ``STAYS_MS``, as long as it can be reached: its
        metadata shows the change, that of others may not yet.
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
                    answer = await self._watched(address, self._call(address, request, left_ms / 1_000))
                    if isinstance(request, Change):
                        self._stays_with, self._stays_until_ms = address, self.clock.monotonic_ms() + STAYS_MS
                    return answer
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

    def ask_others(self) -> None:
        """Stop preferring the broker that carried out the last change, because it could not help."""
        self._stays_with = None

    def _address_for(self, node: int | None) -> Address | None:
        if node is not None:
            return self.cache.brokers.get(NodeId(node))
        candidates = self._candidates()
        if self._stays_with in candidates and self.clock.monotonic_ms() < self._stays_until_ms:
            return self._stays_with
        return candidates[0]

    async def _watched(self, address: Address, call: Coroutine[Any, Any, R]) -> R:
        """Await ``call``, and notice if the node is frozen."""
        loop = asyncio.get_running_loop()
        connection, since_ms = self._peer(address).connection, self.clock.monotonic_ms()
        timer = loop.call_later(HANGING_MS / 1_000, lambda: look())

        def look() -> None:
            nonlocal timer
            at_ms = self.waited(connection, since_ms)
            timer = loop.call_later((at_ms - self.clock.monotonic_ms()) / 1_000, look)

        try:
            return await call
        finally:
            timer.cancel()

    async def _call(self, address: Address, request: Request[R], timeout_s: float) -> R:
        try:
            return await self._call_at(address, request, timeout_s)
        except NotServedHere as wrong:
            if wrong.elsewhere is None:
                raise
            elsewhere = self._elsewhere[address] = wrong.elsewhere
        try:
            return await self._call_at(elsewhere, request, timeout_s)
        except ConnectionLost as lost:
            refused = next((kind for kind in (TlsRefused, LoginNotMade) if isinstance(lost, kind)), ConnectionLost)
            raise refused(f"{address} names {elsewhere}: {lost}") from None

    async def _call_at(self, address: Address, request: Request[R], timeout_s: float) -> R:
        connection = self._peer(address).connection
        self.metrics.requests += 1
        try:
            response = await connection.call(request, timeout_s=timeout_s)
        except (ConnectionLost, CallTimeout) as error:
            if not isinstance(error, NotServedHere) or error.elsewhere is None:
                self.failed(connection)
                # The broker that gave this address may know a newer one by now.
                self._elsewhere = {at: other for at, other in self._elsewhere.items() if other != address}
            raise
        self.succeeded(connection)
        return response

    def _peer(self, address: Address) -> _Peer:
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = _Peer(self._network.connect(address))
        return peer

    def _drop_peers_that_left(self, before: set[Address]) -> None:
        """Close unused connections, and those to brokers that were named ``before`` and no longer are: a fenced broker
        may be frozen, and then never answers."""
        here = set(self.cache.brokers.values())
        begins = {*self._bootstrap, *self._elsewhere.values()}
        for address in [a for a in self._peers if a not in here and (a in before or a not in begins)]:
            peer = self._peers.pop(address)
            if address in begins:
                self._peers[address] = _Peer(self._network.connect(address), failures=1)  # prefer others
            task = asyncio.ensure_future(peer.connection.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
