"""What every admin call stands on: the link to the cluster, its life, asking until time is over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import NoReturn, Protocol, TypeVar, Unpack

from tidelog.client.admin_config import AdminConfig, AdminSettings
from tidelog.client.cluster import Cluster
from tidelog.client.coordinators import TRANSIENT
from tidelog.client.errors import (
    BrokerNotAvailableError,
    ClientClosedError,
    IllegalStateError,
    RequestTimedOutError,
    TidelogError,
    exception_for,
)
from tidelog.client.metrics import ClientMetrics
from tidelog.client.networks import default_network
from tidelog.client.settings import parse_bootstrap
from tidelog.model.clock import Clock, SystemClock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.proto.group_api import ListGroupsResponse
from tidelog.proto.network import Network
from tidelog.proto.request import Request, Response
from tidelog.proto.sink_api import ListSinksResponse
from tidelog.proto.transaction_api import ListTransactionsResponse

A = TypeVar("A", bound="AdminBase")
R = TypeVar("R", bound=Response)


class Result(Protocol):
    """What every item of an answer has."""

    @property
    def error(self) -> ErrorCode: ...
    @property
    def error_message(self) -> str: ...


T = TypeVar("T", bound=Result)
V = TypeVar("V")
K = TypeVar("K")
L = TypeVar("L", ListGroupsResponse, ListTransactionsResponse, ListSinksResponse)


class AdminBase:
    """An admin client without any calls; :class:`tidelog.client.admin.AsyncAdmin` has them."""

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
            _network or default_network(),
            _clock or SystemClock(),
            _rng or random.Random(),
            self._metrics,
        )
        self._started = False
        self._closed = False

    # --- life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin; returns at once, the connection is made in the background."""
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

    def metrics(self) -> dict[str, int]:
        """Counters by Kafka's metric names."""
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
        """Send until no item of the answer has a retriable error, or time is over."""
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
            wait_ms = self._cluster.retry_backoff.after(failures, self._cluster.rng)
            if self._cluster.clock.monotonic_ms() + wait_ms >= deadline:
                return answer
            await asyncio.sleep(wait_ms / 1_000)

    async def _ask_every_broker(self, request: Request[L], timeout: float | None) -> dict[NodeId, L]:
        """Ask all live brokers what they coordinate. If one dies before it has answered, that moves to others: all
        are asked anew."""
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
            raise reason or RequestTimedOutError("time is over")
        return left

    def _check(self) -> None:
        if self._closed:
            raise ClientClosedError("this admin client is closed")
        if not self._started:
            raise IllegalStateError("start() it first, or use it as 'async with Admin(...) as admin'")


def comes_right(code: ErrorCode) -> bool:
    """Of retriable errors: those that the cluster gets over by itself. A missing topic is not one."""
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
    """What was found, if nothing failed; else see :func:`raise_first`."""
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
