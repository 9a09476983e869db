"""The IO of a consumer's group membership: finds the coordinator, joins, syncs, sends heartbeats, leaves.

Runs where the consumer's IO runs, even while nobody calls poll; :mod:`tidelog.client.group.membership` decides what
answers mean. Poll starts a join and takes its outcome.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from tidelog.client.cluster.cluster import Cluster
from tidelog.client.config.assignment import Wish, divide, partitions_given, subscriptions_of
from tidelog.client.config.consumer import ConsumerConfig
from tidelog.client.errors import (
    BrokerNotAvailableError,
    RebalanceCallbackError,
    RequestTimedOutError,
    TidelogError,
    exception_for,
)
from tidelog.client.group.membership import NEVER_MS, Generation, Membership, Next, Pulse
from tidelog.model.assignors import Assignor, RebalanceProtocol
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.proto.calls.group_api import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    SyncGroupRequest,
)
from tidelog.proto.calls.request import Request, Response
from tidelog.proto.logs.consumer_protocol import PROTOCOL_TYPE, BadConsumerProtocol

JOIN_LAPSE_MS: Final = 5_000
"""How much longer than the rebalance timeout we wait for a JoinGroup (Kafka's ``JOIN_GROUP_TIMEOUT_LAPSE``)."""
REASON_LENGTH_MAX: Final = 255

R = TypeVar("R", bound=Response)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A rebalance that this member has completed, except for poll's part. ``partitions_of``: on the leader, the number
    of partitions assigned of each topic; otherwise ``None``."""

    generation: Generation
    assignment: bytes
    partitions_of: dict[str, int] | None


class CoordinatorLostError(BrokerNotAvailableError):
    """The coordinator was unreachable, or its answer did not come: the outcome is unknown."""


class GroupCoordinator:
    """``lock`` guards ``membership``, ``joining`` and ``outcome``, which poll shares; everything else is for the
    loop alone. It calls ``news`` when poll should look, ``on_leading`` when ``pinned`` has changed."""

    def __init__(
        self,
        config: ConsumerConfig,
        group_id: str,
        cluster: Cluster,
        membership: Membership,
        assignors: tuple[Assignor, ...],
        protocol: RebalanceProtocol,
        lock: threading.Lock,
        news: Callable[[], None],
        on_leading: Callable[[], None],
    ) -> None:
        self._config = config
        self._group_id = group_id
        self._cluster = cluster
        self._membership = membership
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._protocol = protocol
        self._lock = lock
        self._news = news
        self._on_leading = on_leading
        self._metrics = cluster.metrics
        self._node: NodeId | None = None
        self._finding: asyncio.Task[NodeId] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._join_task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._closed = False
        self.joining = False
        self.outcome: Outcome | None = None
        self.pinned: frozenset[str] = frozenset()
        """Topics of the whole group, while this member leads it."""

    # --- lifecycle ----------------------------------------------------------------------------------

    def start(self) -> None:
        if self._beating is None:
            self._beating = self._task(self._beat(), "group heartbeats")

    async def close(self) -> None:
        self._closed = True
        tasks = [task for task in (self._beating, self._join_task, self._finding) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _task(self, work: object, name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work, name=name)  # type: ignore[arg-type]
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The next poll raises an unexpected exception."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.critical("the consumer's group membership failed", exc_info=error)
            failure = error if isinstance(error, TidelogError) else TidelogError(f"a bug in the client: {error!r}")
            failure.__cause__ = error
            with self._lock:
                self._membership.failure = failure
                self.joining = False
            self._news()

    # --- the coordinator --------------------------------------------------------------------------------

    @property
    def known(self) -> bool:
        return self._node is not None

    def forget(self, node: NodeId | None = None) -> None:
        """It is gone, or is no longer the coordinator."""
        if node is None or node == self._node:
            self._node = None

    async def find(self) -> NodeId:
        """The coordinator's node; looks it up if necessary, however long that takes. Raises permanent errors."""
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
                            self._membership.coordinator_found(self._cluster.clock.monotonic_ms())
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
        """Send one request to the coordinator, once. Raises ``CoordinatorLostError``, and as :meth:`find`."""
        node = await self.find()
        try:
            return await self._cluster.call(request, timeout_ms=max(1, timeout_ms), node=node)
        except (BrokerNotAvailableError, RequestTimedOutError) as error:
            self.forget(node)
            raise CoordinatorLostError(f"group {self._group_id}: {error}") from error

    async def _pause(self, failures: int) -> None:
        wait_ms = max(1, self._cluster.retry_backoff.after(failures, self._cluster.rng))
        await asyncio.sleep(wait_ms / 1_000)

    # --- joining ----------------------------------------------------------------------------------------

    def join(self, wish: Wish) -> None:
        """Begin a rebalance; poll has set ``joining`` and finds it unset when there is something to look at."""
        if self._closed:
            return
        self._join_task = self._task(self._join(wish), "join group")

    async def cancel_join(self) -> None:
        task = self._join_task
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])
        with self._lock:
            self.joining = False
            self.outcome = None

    async def _join(self, wish: Wish) -> None:
        failures = 0
        while True:
            try:
                step = await self._round(wish)
            except CoordinatorLostError as error:
                log.info("group %s: rejoining: %s", self._group_id, error)
                step = Next.FIND
            except TidelogError as error:
                with self._lock:
                    self._membership.failure = error
                step = Next.STOP
            if step in (Next.GO_ON, Next.STOP):
                break
            if step is not Next.AGAIN:
                self._metrics.failed_rebalances += 1
                failures += 1
                await self._pause(failures)
        with self._lock:
            self.joining = False
        self._wake.set()
        self._news()

    async def _round(self, wish: Wish) -> Next:
        """JoinGroup and SyncGroup, once."""
        config, membership, clock = self._config, self._membership, self._cluster.clock
        node = await self.find()
        with self._lock:
            sent = membership.joining(clock.monotonic_ms())
            reason = membership.rejoin_reason[:REASON_LENGTH_MAX]
        join = JoinGroupRequest(
            group_id=self._group_id,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            member_id=sent.member_id,
            group_instance_id=config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=wish.protocols(sent.generation_id),
            client_id=config.effective_client_id,
            reason=reason,
        )
        joined = await self.ask(join, max(config.request_timeout_ms, config.max_poll_interval_ms + JOIN_LAPSE_MS))
        self._metrics.joins += 1
        with self._lock:
            step = membership.on_join(sent, joined, clock.monotonic_ms())
            generation = membership.generation
            leads = membership.is_leader
        self._wake.set()
        if step is not Next.GO_ON:
            if step is Next.FIND:
                self.forget(node)
            return step
        assignments: tuple[MemberAssignment, ...] = ()
        partitions_of: dict[str, int] | None = None
        if not leads:
            self._lead(frozenset())
        else:
            assignments, partitions_of = await self._assign(joined)
        sync = SyncGroupRequest(
            group_id=self._group_id,
            generation_id=generation.generation_id,
            member_id=generation.member_id,
            group_instance_id=config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=generation.protocol or "",
            assignments=assignments,
        )
        synced = await self.ask(sync, max(config.request_timeout_ms, config.max_poll_interval_ms + JOIN_LAPSE_MS))
        self._metrics.syncs += 1
        with self._lock:
            now = clock.monotonic_ms()
            step = membership.on_sync(generation, synced, now)
            if step is Next.GO_ON:
                self.outcome = Outcome(generation, synced.assignment, partitions_of)
                self._metrics.rebalanced(membership.rebalanced(now))
        if step is Next.FIND:
            self.forget(node)
        return step

    async def _assign(self, joined: JoinGroupResponse) -> tuple[tuple[MemberAssignment, ...], dict[str, int]]:
        """As the group's leader: learn of all topics that the group wants, and divide them."""
        members = subscriptions_of(joined.members)
        topics = sorted({topic for said in members.values() for topic in said.topics})
        self._lead(frozenset(topics))
        cache = self._cluster.cache
        failures = 0
        while any(topic not in cache.topics and topic not in cache.errors for topic in topics):
            try:
                await self._cluster.refreshed()
            except BrokerNotAvailableError as error:
                log.debug("group %s: no metadata yet: %s", self._group_id, error)
                failures += 1
                await self._pause(failures)
        if joined.skip_assignment:
            return (), await self._given()
        partitions_of = {topic: len(cache.topics[topic].partitions) for topic in topics if topic in cache.topics}
        assignor = self._assignors.get(joined.protocol_name)
        if assignor is None:
            raise exception_for(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"expected the group to choose one of {', '.join(self._assignors)}, found {joined.protocol_name!r}",
            )
        try:
            return divide(assignor, self._protocol, partitions_of, members), partitions_of
        except TidelogError:
            raise
        except Exception as error:
            raise RebalanceCallbackError(f"assignor {assignor.name} raised {error!r}") from error

    async def _given(self) -> dict[str, int]:
        """As a static leader that has come back: what its former self assigned (KIP-814). A topic may have grown in
        between, which nobody else looks for; where the answer does not come, that is found to be so too."""
        response = await self.ask(DescribeGroupsRequest((self._group_id,)), self._config.request_timeout_ms)
        (group,) = response.groups
        if group.error is not ErrorCode.NONE:
            log.info("group %s: cannot report the assignment: %s", self._group_id, group.error.name)
            return {}
        try:
            return partitions_given(group.members)
        except BadConsumerProtocol as error:
            log.info("group %s: cannot read the assignment: %s", self._group_id, error)
            return {}

    def _lead(self, topics: frozenset[str]) -> None:
        if topics != self.pinned:
            self.pinned = topics
            self._on_leading()

    # --- heartbeats ---------------------------------------------------------------------------------

    async def _beat(self) -> None:
        clock = self._cluster.clock
        failures = 0
        while True:
            self._wake.clear()
            now = clock.monotonic_ms()
            with self._lock:
                pulse, at = self._membership.pulse(now, self.known)
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
                        async with asyncio.timeout(self._config.heartbeat_interval_ms / 1_000):
                            await self.find()
                        failures = 0
                    except TimeoutError:
                        pass
                    except TidelogError as error:
                        log.warning("group %s: %s", self._group_id, error)
                        failures += 1
                        await self._pause(failures)
                case Pulse.POLL_OVERDUE:
                    log.warning(
                        "group %s: poll() was not called for max_poll_interval_ms (%d): leaving the group; "
                        "process less per poll (max_poll_records), or raise that limit",
                        self._group_id,
                        self._config.max_poll_interval_ms,
                    )
                    await self.leave("consumer poll timeout has expired.", self._config.heartbeat_interval_ms)
                    self._news()

    async def _wait(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _heartbeat(self) -> None:
        clock, membership = self._cluster.clock, self._membership
        with self._lock:
            sent = membership.heartbeat_sent(clock.monotonic_ms())
        request = HeartbeatRequest(self._group_id, sent.generation_id, sent.member_id, self._config.group_instance_id)
        node = self._node
        try:
            response = await self.ask(request, min(self._config.request_timeout_ms, self._config.session_timeout_ms))
        except TidelogError as error:
            log.debug("group %s: a heartbeat failed: %s", self._group_id, error)
            with self._lock:
                membership.heartbeat_failed(clock.monotonic_ms())
            await self._pause(1)
            return
        self._metrics.heartbeats += 1
        with self._lock:
            step = membership.on_heartbeat(sent, response.error, clock.monotonic_ms())
        if step is Next.FIND:
            self.forget(node)
            await self._pause(1)
        elif step is Next.STOP:
            self._news()

    # --- leaving --------------------------------------------------------------------------------------

    async def leave(self, reason: str, timeout_ms: int) -> None:
        """Give up the membership, and tell the coordinator if it is known and answers in time."""
        with self._lock:
            member_id = self._membership.generation.member_id
            tell = self._membership.may_leave and self._node is not None
            self._membership.leave(reason)
        self._lead(frozenset())
        if not tell:
            return
        request = LeaveGroupRequest(self._group_id, (LeavingMember(member_id, None, reason[:REASON_LENGTH_MAX]),))
        try:
            async with asyncio.timeout(max(1, timeout_ms) / 1_000):
                response = await self.ask(request, timeout_ms)
        except (TimeoutError, TidelogError) as error:
            log.info("group %s: leaving was not acknowledged: %s", self._group_id, error)
            return
        if response.error is not ErrorCode.NONE:
            log.info("group %s: leaving was refused: %s", self._group_id, response.error.name)


def _seen(task: asyncio.Task[NodeId]) -> None:
    """Its waiters have its error, if any are left."""
    if not task.cancelled():
        task.exception()
