"""The base of every admin call: the link to the cluster, start and close, and retries until the timeout."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, NoReturn, Protocol, TypeVar, Unpack

from tidelog.client.admin.coordinators import TRANSIENT
from tidelog.client.cluster.cluster import Cluster
from tidelog.client.cluster.metrics import ClientMetrics
from tidelog.client.cluster.networks import default_network
from tidelog.client.config.admin import AdminConfig, AdminSettings
from tidelog.client.config.settings import parse_bootstrap
from tidelog.client.description import shown
from tidelog.client.errors import (
    BrokerNotAvailableError,
    ClientClosedError,
    IllegalStateError,
    RequestTimedOutError,
    TidelogError,
    exception_for,
)
from tidelog.model.clock import Clock, SystemClock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.proto.calls.api import (
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    DescribeLogDirsResponse,
)
from tidelog.proto.calls.connection_api import CloseConnectionsResponse, DescribeConnectionsResponse
from tidelog.proto.calls.group_api import ListGroupsResponse
from tidelog.proto.calls.request import Request, Response
from tidelog.proto.calls.sink_api import ListSinksResponse
from tidelog.proto.calls.transaction_api import DescribeLineageResponse, ListTransactionsResponse
from tidelog.proto.transport.network import Network

A = TypeVar("A", bound="AdminBase")
R = TypeVar("R", bound=Response)


class Result(Protocol):
    """The fields of every item in an answer."""

    @property
    def error(self) -> ErrorCode: ...
    @property
    def error_message(self) -> str: ...


T = TypeVar("T", bound=Result)
V = TypeVar("V")
K = TypeVar("K")
W = TypeVar("W")
C = TypeVar("C", CreateTopicsResponse, DeleteTopicsResponse, CreatePartitionsResponse)
L = TypeVar(
    "L",
    ListGroupsResponse,
    ListTransactionsResponse,
    DescribeLineageResponse,
    ListSinksResponse,
    DescribeLogDirsResponse,
    DescribeConnectionsResponse,
    CloseConnectionsResponse,
)


class AdminBase:
    """An admin client without any calls; :class:`tidelog.client.admin.admin.AsyncAdmin` has them."""

    _link = ""
    """The link on whose behalf it commits groups' offsets and deletes records, if any."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        _network: Network | None = None,
        _clock: Clock | None = None,
        _rng: random.Random | None = None,
        **settings: Unpack[AdminSettings],
    ) -> None:
        self._config = AdminConfig.of(settings)
        self._metrics = ClientMetrics()
        self._cluster = Cluster(
            parse_bootstrap(bootstrap_servers),
            self._config,
            _network or default_network(self._config.tls(), self._config.login(), self._config.client_id),
            _clock or SystemClock(),
            _rng or random.Random(),
            self._metrics,
        )
        self._started = False
        self._closed = False
        self._drawn = 0
        """Number of ids drawn for new topics."""

    # --- lifecycle ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start. Returns immediately; the client connects in the background."""
        if not self._started:
            self._started = True
            self._cluster.start()

    async def close(self) -> None:
        """Stop. May be called twice."""
        if not self._closed:
            self._closed = True
            await self._cluster.close()

    async def __aenter__(self: A) -> A:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return self._shown("aio.Admin")

    def _shown(self, name: str) -> str:
        """Return the ``repr`` of the client called ``name``."""
        return shown(name, self._cluster.servers, self._closed)

    def metrics(self) -> dict[str, int]:
        """Return counters by Kafka's metric names."""
        return self._metrics.snapshot()

    # --- inside ---------------------------------------------------------------------------------------

    async def _ask(
        self,
        request: Request[R],
        items: Callable[[R], Iterable[Result]] | None,
        timeout: float | None,
        *,
        node: int | None = None,
    ) -> R:
        """Send until no item of the answer has a retriable error, or the time is up. After one, ask another broker."""
        self._check()
        deadline = self._deadline(timeout)
        failures = 0
        if node is not None:
            await self._know([NodeId(node)], self._timeout_ms(timeout))
        while True:
            left_ms = max(1, deadline - self._cluster.clock.monotonic_ms())
            answer = await self._cluster.call(request, timeout_ms=left_ms, node=node)
            again = [i for i in items(answer) if i.error.retriable and comes_right(i.error)] if items else []
            if not again or self._cluster.clock.monotonic_ms() >= deadline:
                return answer
            failures += 1
            self._cluster.ask_others()
            wait_ms = self._cluster.retry_backoff.after(failures, self._cluster.rng)
            if self._cluster.clock.monotonic_ms() + wait_ms >= deadline:
                return answer
            await asyncio.sleep(wait_ms / 1_000)

    async def _ask_by_topic(
        self, part: Callable[[tuple[W, ...], int], Request[C]], wanted: tuple[W, ...], timeout: float | None
    ) -> C:
        """Change topics; ``part`` makes the request for some of ``wanted``. Only topics that failed retriably are
        requested again: those held back by a quota when the broker says (KIP-599), others after a pause."""
        deadline = self._deadline(timeout)
        results: dict[int, Any] = {}
        due = dict.fromkeys(range(len(wanted)), 0)
        failures = 0
        while True:
            now = self._cluster.clock.monotonic_ms()
            soonest = max(now, min(due.values(), default=now))
            asked = [at for at, from_ms in due.items() if from_ms <= soonest]
            left_ms = max(1, deadline - now)
            answer = await self._ask(part(tuple(wanted[at] for at in asked), left_ms), None, left_ms / 1_000)
            failures += 1
            now = self._cluster.clock.monotonic_ms()
            pause_ms = self._cluster.retry_backoff.after(failures, self._cluster.rng)
            for at, result in zip(asked, answer.topics, strict=True):
                results[at] = result
                throttled = result.error is ErrorCode.THROTTLING_QUOTA_EXCEEDED
                due[at] = now + ((throttled and answer.throttle_time_ms) or pause_ms)
                if not (result.error.retriable and comes_right(result.error) and due[at] < deadline):
                    del due[at]
            if not due:
                return replace(answer, topics=tuple(results[at] for at in range(len(wanted))))
            self._cluster.ask_others()
            await asyncio.sleep(max(0, min(due.values()) - now) / 1_000)

    async def _ask_every_broker(self, request: Request[L], timeout: float | None) -> dict[NodeId, L]:
        """Ask all live brokers what they coordinate or have. If one dies before it answers, its groups or ids move to
        others, so ask all brokers again."""
        self._check()
        deadline = self._deadline(timeout)
        answered: dict[NodeId, L] = {}
        asked: set[NodeId] = set()
        reason: TidelogError | None = None
        failures = 0
        while True:
            left_ms = self._left_ms(deadline, reason)
            try:
                async with asyncio.timeout(left_ms / 1_000):
                    await self._cluster.refreshed()
            except TimeoutError:
                raise reason or RequestTimedOutError(f"no metadata within {left_ms} ms") from None
            except BrokerNotAvailableError as error:
                reason = error
                continue
            live = set(self._cluster.cache.brokers)
            if not asked - answered.keys() <= live:
                answered.clear()
            asked = live
            missing = sorted(live - answered.keys())
            try_ms = min(self._left_ms(deadline, reason), self._config.request_timeout_ms)
            calls = (self._cluster.call(request, timeout_ms=try_ms, node=node) for node in missing)
            for node, answer in zip(missing, await asyncio.gather(*calls, return_exceptions=True), strict=True):
                if isinstance(answer, (BrokerNotAvailableError, RequestTimedOutError)):
                    reason = answer
                elif isinstance(answer, BaseException):
                    raise answer
                elif answer.error is ErrorCode.NONE:
                    answered[node] = answer
                else:
                    text = f"node {node}: {answer.error_message or answer.error.name}"
                    reason = exception_for(answer.error, text)
                    if answer.error not in TRANSIENT:
                        raise reason
            if live and live <= answered.keys():
                return {node: answered[node] for node in sorted(live)}
            failures += 1
            await self._pause(failures)

    async def _ask_brokers(self, request: Request[L], nodes: Iterable[int], timeout: float | None) -> dict[NodeId, L]:
        """Ask these brokers, or all live ones if none are named."""
        self._check()
        wanted = [NodeId(node) for node in nodes]
        if not wanted:
            return await self._ask_every_broker(request, timeout)
        timeout_ms = self._timeout_ms(timeout)
        await self._know(wanted, timeout_ms)
        calls = (self._cluster.call(request, timeout_ms=timeout_ms, node=node) for node in wanted)
        found: dict[NodeId, L | TidelogError] = {}
        for node, answer in zip(wanted, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(answer, TidelogError):
                found[node] = answer
            elif isinstance(answer, BaseException):
                raise answer
            elif answer.error is ErrorCode.NONE:
                found[node] = answer
            else:
                found[node] = exception_for(answer.error, f"node {node}: {answer.error_message or answer.error.name}")
        return found_or_raise(found)

    async def _know(self, nodes: Iterable[NodeId], timeout_ms: int) -> None:
        """Make sure that the brokers' addresses are known. Raises ``BrokerNotAvailableError``."""
        if all(node in self._cluster.cache.brokers for node in nodes):
            return
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                await self._cluster.refreshed()
        except TimeoutError:
            raise RequestTimedOutError(f"no metadata within {timeout_ms} ms") from None
        for node in nodes:
            if node not in self._cluster.cache.brokers:
                raise BrokerNotAvailableError(
                    f"expected one of the live brokers {sorted(self._cluster.cache.brokers)}, found {node}"
                )

    async def _pause(self, failures: int) -> None:
        self._cluster.request_refresh()
        await asyncio.sleep(self._cluster.retry_backoff.after(failures, self._cluster.rng) / 1_000)

    def _timeout_ms(self, timeout: float | None) -> int:
        return self._config.default_api_timeout_ms if timeout is None else max(1, int(timeout * 1_000))

    def _deadline(self, timeout: float | None) -> int:
        return self._cluster.clock.monotonic_ms() + self._timeout_ms(timeout)

    def _left_ms(self, deadline: int, reason: TidelogError | None) -> int:
        left = deadline - self._cluster.clock.monotonic_ms()
        if left <= 0:
            raise reason or RequestTimedOutError("timed out")
        return left

    def _check(self) -> None:
        if self._closed:
            raise ClientClosedError("this admin client is closed")
        if not self._started:
            raise IllegalStateError("call start() first, or use it as 'async with Admin(...) as admin'")


def comes_right(code: ErrorCode) -> bool:
    """Return whether a retriable error passes by itself. A missing topic does not."""
    return code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


def all_or_raise(results: Sequence[T], name: Callable[[T], str]) -> Sequence[T]:
    """Return ``results`` if all of them are good; else see :func:`raise_first`."""
    failed = {
        name(r): exception_for(r.error, f"{name(r)}: {r.error_message or r.error.name}")
        for r in results
        if r.error is not ErrorCode.NONE
    }
    if failed:
        raise_first(failed)
    return results


def found_or_raise(outcomes: Mapping[K, V | TidelogError]) -> dict[K, V]:
    """Return the items found, if none failed; else see :func:`raise_first`."""
    found: dict[K, V] = {}
    failed: dict[str, TidelogError] = {}
    for key, outcome in outcomes.items():
        if isinstance(outcome, TidelogError):
            failed[str(key)] = outcome
        else:
            found[key] = outcome
    if failed:
        raise_first(failed)
    return found


def raise_first(failed: Mapping[str, TidelogError]) -> NoReturn:
    """Raise the first of these errors, the others in its notes, all of them in its ``failures``."""
    first, *others = failed.values()
    for other in others:
        first.add_note(f"also {other}")
    first.failures = failed
    raise first
