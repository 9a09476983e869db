"""One request's use of a broker, and how its connection or stream is throttled.

A Kafka connection tells its client to wait and reads nothing from it until then (KIP-219). A gRPC stream also reads
nothing; a gRPC call is answered late, because its connection cannot be held back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace
from time import perf_counter
from types import coroutine
from typing import Any, Final, TypeVar

from tidelog.broker.quotas.client_quotas import ClientQuotas, QuotaKind
from tidelog.broker.services import Calls
from tidelog.proto.calls.api import (
    Charged,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    OffsetForLeaderEpochRequest,
)
from tidelog.proto.calls.audit_api import AppendAuditRequest
from tidelog.proto.calls.transaction_api import AddPartitionsToTxnRequest, WriteTxnMarkersRequest
from tidelog.proto.transport.network import CallContext, CallHandler

T = TypeVar("T")

OF_NODES: Final = frozenset(
    (WriteTxnMarkersRequest, AddPartitionsToTxnRequest, OffsetForLeaderEpochRequest, AppendAuditRequest)
)
"""Calls between brokers, whose time is charged to nobody."""
_HOLD_S_MAX: Final = 1.0
"""Maximum time between checks whether a stream may be read again."""


CHARGED: Final = (CreateTopicsRequest, DeleteTopicsRequest, CreatePartitionsRequest)
"""Requests that the controller charges to a client (``controller_mutation_rate``)."""


def charged(context: CallContext, *, strict: bool = True) -> Charged:
    """Return who is charged for the changes of a request."""
    return Charged(context.session.principal.name, context.client_id, strict)


class Stopwatch:
    """Measures the time that work takes on the event loop, without its waits."""

    __slots__ = ("_since", "total_s")

    def __init__(self) -> None:
        self.total_s = 0.0
        self.start()

    def start(self) -> None:
        self._since = perf_counter()

    def stop(self) -> float:
        """Return the time so far."""
        self.total_s += perf_counter() - self._since
        return self.total_s

    @coroutine
    def time(self, work: Awaitable[T]) -> Generator[Any, None, T]:
        """Do the work and time its steps."""
        steps: Any = work.__await__()
        thrown: BaseException | None = None
        while True:
            self.start()
            try:
                waits_for = steps.send(None) if thrown is None else steps.throw(thrown)
            except StopIteration as done:
                found: T = done.value
                return found
            finally:
                self.stop()
            thrown = None
            try:
                yield waits_for
            except BaseException as error:
                thrown = error


class RequestUsage:
    """A Kafka client's request. ``mute`` stops reading its connection for some milliseconds."""

    __slots__ = ("_client_id", "_mute", "_quotas", "_user", "told_ms", "watch")

    def __init__(self, quotas: ClientQuotas, user: str, client_id: str, mute: Callable[[int], None]) -> None:
        self._quotas = quotas
        self._user = user
        self._client_id = client_id
        self._mute = mute
        self.watch = Stopwatch()
        self.told_ms = 0
        """How long the answer asks the client to wait."""

    def produced(self, size: int) -> None:
        """Count a produce request of this size. It will be appended in any case."""
        self._wait(self._quotas.used(self._user, self._client_id, self._quotas.produce, size, 0.0))

    def fetches_at_once(self) -> float | None:
        """Return the maximum that a fetch may read."""
        return self._quotas.fetch.at_once(self._user, self._client_id)

    def fetched(self, size: int) -> bool:
        """Count a fetch answer of this size. Returns whether it may be sent; otherwise the answer is empty."""
        quotas = self._quotas
        wait_ms = quotas.used(self._user, self._client_id, quotas.fetch, size, self.watch.stop())
        if wait_ms:
            quotas.fetch.take_back(self._user, self._client_id, size, quotas.now_ms())
            self._wait(wait_ms)
        return not wait_ms

    def answered(self, told_ms: int = 0) -> None:
        """Count any other request, about to be answered. ``told_ms``: how long its client has to wait anyway."""
        self._wait(told_ms)
        self._wait(self._quotas.used(self._user, self._client_id, None, 0, self.watch.total_s))

    def _wait(self, wait_ms: int) -> None:
        if wait_ms > self.told_ms:
            self.told_ms = wait_ms
            self._mute(wait_ms)


class StreamUsage:
    """A client's gRPC stream."""

    __slots__ = ("_client_id", "_quotas", "_time", "_until_s", "_user")

    def __init__(self, quotas: ClientQuotas, context: CallContext) -> None:
        self._quotas = quotas
        self._user = context.session.principal.name
        self._client_id = context.client_id
        self._time = asyncio.get_running_loop().time
        self._until_s = 0.0

    def hold(self) -> Awaitable[object] | None:
        """Return what to wait for before the stream is read again."""
        if not self._until_s:
            return None
        left_s = self._until_s - self._time()
        if left_s > 0:
            return asyncio.sleep(min(left_s, _HOLD_S_MAX))
        self._until_s = 0.0
        return None

    def produced(self, size: int, seconds: float) -> None:
        if self._quotas.any_set:
            self._used(self._quotas.produce, size, seconds)

    def fetched(self, size: int, seconds: float) -> None:
        if self._quotas.any_set:
            self._used(self._quotas.fetch, size, seconds)

    def fetches_at_once(self) -> float | None:
        """Return the maximum that a fetch may read."""
        return self._quotas.fetch.at_once(self._user, self._client_id) if self._quotas.any_set else None

    def _used(self, kind: QuotaKind, size: int, seconds: float) -> None:
        wait_ms = self._quotas.used(self._user, self._client_id, kind, size, seconds)
        self._until_s = max(self._until_s, self._time() + wait_ms / 1000) if wait_ms else self._until_s


def metered(calls: Calls, quotas: ClientQuotas) -> Calls:
    """Wrap the calls so that their senders are charged for the event loop's time."""

    def meter(handler: CallHandler) -> CallHandler:
        async def serve(request: object, context: CallContext) -> Any:
            if isinstance(request, CHARGED):
                request = replace(request, charged=charged(context))
            if not quotas.any_set:
                return await handler(request, context)
            watch = Stopwatch()
            answer = await watch.time(handler(request, context))
            wait_ms = quotas.used(context.session.principal.name, context.client_id, None, 0, watch.total_s)
            if wait_ms:
                await asyncio.sleep(wait_ms / 1000)
            return answer

        return serve

    return {
        request_type: handler if request_type in OF_NODES else meter(handler) for request_type, handler in calls.items()
    }
