"""Finds the coordinator of a group or transactional id, asks it, and finds it again after it has moved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from tidelog.client.cluster.backoff import Backoff
from tidelog.client.cluster.cluster import Cluster
from tidelog.client.errors import BrokerNotAvailableError, RequestTimedOutError, exception_for
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.proto.calls.group_api import FindCoordinatorRequest
from tidelog.proto.calls.request import Request, Response

R = TypeVar("R", bound=Response)

MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT})
"""The coordinator must be looked up again."""
CONCURRENT_BACKOFF: Final = Backoff(5, 100)
"""Wait in ms before asking again while the previous transaction's markers are being written, usually a matter of
milliseconds."""

log = logging.getLogger(__name__)


class CoordinatorLink:
    """Used only on the IO loop. Requests are sent one at a time, because callers wait for the answers."""

    def __init__(self, cluster: Cluster, key: str, key_type: int, request_timeout_ms: int) -> None:
        self._cluster = cluster
        self._key = key
        self._key_type = key_type
        self._request_timeout_ms = request_timeout_ms
        self._node: NodeId | None = None
        self.trouble = ""
        """Why the last attempt at the current request failed."""

    async def ask(self, request: Request[R], code_of: Callable[[R], ErrorCode]) -> R:
        """Send ``request`` until its answer is final, however long that takes: it is repeated after a lost connection,
        at a new coordinator, and after transient errors. So it must be safe to carry out twice.

        ``code_of`` returns the error that decides about an answer; answers with non-retriable errors are returned.
        Raises permanent errors of the search for the coordinator.
        """
        cluster = self._cluster
        failures = concurrent = 0
        while True:
            try:
                node = await self._find()
                response = await cluster.call(request, timeout_ms=self._request_timeout_ms, node=node)
            except (BrokerNotAvailableError, RequestTimedOutError) as error:
                reason = self.trouble = str(error)
                self._node = None
            else:
                code = code_of(response)
                if not code.retriable:
                    self.trouble = ""
                    return response
                reason = code.name
                if code in MOVED:
                    self._node = None
                self.trouble = reason
                if code is ErrorCode.CONCURRENT_TRANSACTIONS:
                    concurrent += 1
                    await asyncio.sleep(max(1, CONCURRENT_BACKOFF.after(concurrent, cluster.rng)) / 1_000)
                    continue
            failures += 1
            log.debug("%s for %s: retrying because of %s", type(request).__name__, self._key, reason)
            await asyncio.sleep(max(1, cluster.retry_backoff.after(failures, cluster.rng)) / 1_000)

    async def _find(self) -> NodeId:
        """Find the coordinator. Raises ``BrokerNotAvailableError`` if there is none, and permanent errors."""
        if self._node is not None:
            return self._node
        cluster = self._cluster
        request = FindCoordinatorRequest((self._key,), self._key_type)
        response = await cluster.call(request, timeout_ms=self._request_timeout_ms)
        (found,) = response.coordinators
        if found.error is not ErrorCode.NONE:
            message = f"coordinator of {self._key}: {found.error_message or found.error.name}"
            if found.error.retriable:
                cluster.request_refresh()
                raise BrokerNotAvailableError(message)
            raise exception_for(found.error, message)
        if found.node_id not in cluster.cache.brokers:
            await cluster.refreshed()
            if found.node_id not in cluster.cache.brokers:
                raise BrokerNotAvailableError(f"coordinator of {self._key}: node {found.node_id} is not known")
        self._node = found.node_id
        return found.node_id
