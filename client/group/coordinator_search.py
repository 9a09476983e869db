"""The common part of both group protocols: finds the coordinator, sends it requests, and keeps heartbeats going.

Runs where the consumer's IO runs, even while nobody calls poll. The pure state machine behind it
(:class:`tidelog.client.group.membership.GroupMembership`) says what the heartbeat does next.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from tidelog.client.cluster.cluster import Cluster
from tidelog.client.config.consumer import ConsumerConfig
from tidelog.client.errors import BrokerNotAvailableError, RequestTimedOutError, TidelogError, exception_for
from tidelog.client.group.membership import NEVER_MS, GroupMembership, Pulse
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.proto.calls.group_api import FindCoordinatorRequest
from tidelog.proto.calls.request import Request, Response

R = TypeVar("R", bound=Response)
log = logging.getLogger(__name__)


class CoordinatorLostError(BrokerNotAvailableError):
    """The coordinator was unreachable, or its answer did not arrive: the outcome is unknown."""


class CoordinatorSearch(ABC):
    """``lock`` guards ``membership``, which poll shares; everything else is for the loop alone. It calls ``news`` when
    poll should check."""

    def __init__(
        self,
        config: ConsumerConfig,
        group_id: str,
        cluster: Cluster,
        membership: GroupMembership,
        lock: threading.Lock,
        news: Callable[[], None],
    ) -> None:
        self._config = config
        self._group_id = group_id
        self._cluster = cluster
        self._heart = membership
        self._lock = lock
        self._news = news
        self._metrics = cluster.metrics
        self._node: NodeId | None = None
        self._finding: asyncio.Task[NodeId] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    # --- lifecycle ----------------------------------------------------------------------------------

    def start(self) -> None:
        if self._beating is None:
            self._beating = self._task(self._beat(), "group heartbeats")

    async def close(self) -> None:
        tasks = [task for task in (self._beating, self._finding) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def wake(self) -> None:
        """Wake the heartbeat, because poll has given it something to say."""
        self._wake.set()

    def _task(self, work: object, name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work, name=name)  # type: ignore[arg-type]
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Let the next poll raise an unexpected exception."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.critical("the consumer's group membership failed", exc_info=error)
            failure = error if isinstance(error, TidelogError) else TidelogError(f"a bug in the client: {error!r}")
            failure.__cause__ = error
            self._failed(failure)
            self._news()

    def _failed(self, error: TidelogError) -> None:
        """Let the next poll raise the error."""
        with self._lock:
            self._heart.failure = error

    # --- the coordinator --------------------------------------------------------------------------------

    @property
    def known(self) -> bool:
        return self._node is not None

    def forget(self, node: NodeId | None = None) -> None:
        """Forget the coordinator: it is gone, or is no longer the coordinator."""
        if node is None or node == self._node:
            self._node = None

    async def find(self) -> NodeId:
        """Return the coordinator's node; look it up if necessary, however long that takes. Raises permanent errors."""
        if self._node is not None:
            return self._node
        if self._finding is None or self._finding.done():
            self._finding = asyncio.get_running_loop().create_task(self._find(), name="find coordinator")
            self._finding.add_done_callback(_seen)
        return await asyncio.shield(self._finding)

    async def _find(self) -> NodeId:
        failures = 0
        while True:
            reason = ""
            try:
                request = FindCoordinatorRequest((self._group_id,))
                response = await self._cluster.call(request, timeout_ms=self._config.request_timeout_ms)
                (found,) = response.coordinators
                if found.error is ErrorCode.NONE:
                    if found.node_id not in self._cluster.cache.brokers:
                        await self._cluster.refreshed()
                    if found.node_id in self._cluster.cache.brokers:
                        self._node = found.node_id
                        with self._lock:
                            self._heart.coordinator_found(self._cluster.clock.monotonic_ms())
                        log.debug("group %s: the coordinator is node %d", self._group_id, found.node_id)
                        self._wake.set()
                        return found.node_id
                    reason = f"node {found.node_id} is not among the known brokers"
                elif not found.error.retriable:
                    raise exception_for(
                        found.error, f"group {self._group_id}: {found.error_message or found.error.name}"
                    )
                else:
                    reason = found.error_message or found.error.name
            except (BrokerNotAvailableError, RequestTimedOutError) as error:
                reason = str(error)
            failures += 1
            log.debug("group %s: no coordinator yet: %s", self._group_id, reason)
            self._cluster.request_refresh()
            await self._pause(failures)

    async def ask(self, request: Request[R], timeout_ms: int) -> R:
        """Send one request to the coordinator, once. Raises ``CoordinatorLostError``, and the errors of
        :meth:`find`."""
        node = await self.find()
        try:
            return await self._cluster.call(request, timeout_ms=max(1, timeout_ms), node=node)
        except (BrokerNotAvailableError, RequestTimedOutError) as error:
            self.forget(node)
            raise CoordinatorLostError(f"group {self._group_id}: {error}") from error

    async def _pause(self, failures: int) -> None:
        wait_ms = max(1, self._cluster.retry_backoff.after(failures, self._cluster.rng))
        await asyncio.sleep(wait_ms / 1_000)

    # --- heartbeats ---------------------------------------------------------------------------------

    async def _beat(self) -> None:
        clock = self._cluster.clock
        failures = 0
        while True:
            self._wake.clear()
            now = clock.monotonic_ms()
            with self._lock:
                pulse, at = self._heart.pulse(now, self.known)
            match pulse:
                case Pulse.WAIT:
                    await self._wait((at - now) / 1_000 if at < NEVER_MS else None)
                case Pulse.SEND:
                    await self._heartbeat()
                case Pulse.SESSION_OVER:
                    log.info("group %s: no heartbeat was answered for a session timeout", self._group_id)
                    self.forget()
                case Pulse.FIND:
                    try:
                        async with asyncio.timeout(self._heart.heartbeat_interval_ms / 1_000):
                            await self.find()
                        failures = 0
                    except TimeoutError:
                        pass
                    except TidelogError as error:
                        log.warning("group %s: %s", self._group_id, error)
                        self._unfound(error)
                        failures += 1
                        await self._pause(failures)
                case Pulse.POLL_OVERDUE:
                    log.warning(
                        "group %s: poll() was not called for max_poll_interval_ms (%d): leaving the group; "
                        "process less per poll (max_poll_records), or raise that limit",
                        self._group_id,
                        self._config.max_poll_interval_ms,
                    )
                    await self._overdue("consumer poll timeout has expired.")
                    self._news()

    async def _wait(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    @abstractmethod
    async def _heartbeat(self) -> None:
        """Send heartbeats while the membership lasts."""

    @abstractmethod
    async def leave(self, reason: str, timeout_ms: int) -> None:
        """Give up the membership, and tell the coordinator if it is known and answers in time."""

    async def _overdue(self, reason: str) -> None:
        """Leave, because poll was not called in time."""
        await self.leave(reason, self._heart.heartbeat_interval_ms)

    def _unfound(self, error: TidelogError) -> None:  # noqa: B027  # a protocol may leave it out
        """Handle a permanent error that prevented finding the coordinator."""


def _seen(task: asyncio.Task[NodeId]) -> None:
    """Mark the error as seen: its waiters have it, if any are left."""
    if not task.cancelled():
        task.exception()
