"""The IO of a consumer's membership by the classic protocol: joins, syncs, sends heartbeats, leaves.

Runs where the consumer's IO runs, even while nobody calls poll; :mod:`tidelog.client.group.membership` decides what
answers mean. Poll starts a join and takes its outcome.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidelog.client.cluster.cluster import Cluster
from tidelog.client.config.assignment import Wish, divide, partitions_given, subscriptions_of
from tidelog.client.config.consumer import ConsumerConfig
from tidelog.client.errors import (
    BrokerNotAvailableError,
    RebalanceCallbackError,
    TidelogError,
    exception_for,
)
from tidelog.client.group.coordinator_search import CoordinatorLostError, CoordinatorSearch
from tidelog.client.group.membership import Generation, Membership, Next
from tidelog.model.assignors import Assignor, RebalanceProtocol
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.group_api import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    SyncGroupRequest,
)
from tidelog.proto.logs.consumer_protocol import PROTOCOL_TYPE, BadConsumerProtocol

JOIN_LAPSE_MS: Final = 5_000
"""How much longer than the rebalance timeout to wait for a JoinGroup (Kafka's ``JOIN_GROUP_TIMEOUT_LAPSE``)."""
REASON_LENGTH_MAX: Final = 255

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A rebalance that this member has completed, except for poll's part. ``partitions_of``: on the leader, the number
    of assigned partitions per topic; otherwise ``None``."""

    generation: Generation
    assignment: bytes
    partitions_of: dict[str, int] | None


class GroupCoordinator(CoordinatorSearch):
    """``lock`` guards ``membership``, ``joining`` and ``outcome``, which poll shares; everything else is for the loop
    alone. It calls ``news`` when poll should check, ``on_leading`` when ``pinned`` has changed."""

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
        super().__init__(config, group_id, cluster, membership, lock, news)
        self._membership = membership
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._protocol = protocol
        self._on_leading = on_leading
        self._join_task: asyncio.Task[None] | None = None
        self._closed = False
        self.joining = False
        self.outcome: Outcome | None = None
        self.pinned: frozenset[str] = frozenset()
        """Topics of the whole group, while this member leads it."""

    # --- lifecycle ----------------------------------------------------------------------------------

    async def close(self) -> None:
        self._closed = True
        await self.cancel_join()
        await super().close()

    def _failed(self, error: TidelogError) -> None:
        super()._failed(error)
        with self._lock:
            self.joining = False

    # --- joining ----------------------------------------------------------------------------------------

    def join(self, wish: Wish) -> None:
        """Start a rebalance; poll has set ``joining``, which is unset when there is something to check."""
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
        """Do JoinGroup and SyncGroup once."""
        config, membership, clock = self._config, self._membership, self._cluster.clock
        node = await self.find()
        with self._lock:
            if membership.needs_prepare:
                return Next.STOP  # forgotten since poll asked for this: it has to tell what is lost first
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
        """Assign as the group's leader: learn about all topics that the group wants, and divide them."""
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
        """Return, as a static leader that has come back, what its former self assigned (KIP-814). A topic may have
        grown in between, which nobody else checks; without an answer, that is assumed."""
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
