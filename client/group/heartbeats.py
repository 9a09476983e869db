"""The IO of a consumer's membership by the consumer protocol (KIP-848): heartbeats, one at a time.

Runs where the consumer's IO runs, even while nobody calls poll; :mod:`tidelog.client.group.consumer_membership` decides
what a heartbeat says and what its answer means.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Final

from tidelog.client.cluster.cluster import Cluster
from tidelog.client.config.consumer import ConsumerConfig
from tidelog.client.errors import TidelogError
from tidelog.client.group.consumer_membership import Beat, ConsumerMembership, IdPartition
from tidelog.client.group.coordinator_search import CoordinatorSearch
from tidelog.client.group.membership import Next
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId
from tidelog.proto.calls.consumer_group_api import (
    JOIN_EPOCH,
    UNCHANGED_MS,
    ConsumerGroupHeartbeatRequest,
    IdAssignment,
    TopicIdPartitions,
    TopicNames,
)

log = logging.getLogger(__name__)


class Heartbeats(CoordinatorSearch):
    def __init__(
        self,
        config: ConsumerConfig,
        group_id: str,
        cluster: Cluster,
        membership: ConsumerMembership,
        lock: threading.Lock,
        news: Callable[[], None],
    ) -> None:
        super().__init__(config, group_id, cluster, membership, lock, news)
        self._membership: Final = membership
        self._one_at_a_time = asyncio.Lock()
        self._failures = 0

    async def _heartbeat(self) -> None:
        clock, membership = self._cluster.clock, self._membership
        async with self._one_at_a_time:
            with self._lock:
                sent = membership.heartbeat(clock.monotonic_ms())
            if sent is None:
                return
            node = self._node
            try:
                answer = await self.ask(self._request(sent), self._config.request_timeout_ms)
            except TidelogError as error:
                log.debug("group %s: a heartbeat failed: %s", self._group_id, error)
                with self._lock:
                    membership.heartbeat_failed(sent, clock.monotonic_ms())
                step = Next.LATER
                self._unfound(error)
            else:
                self._metrics.heartbeats += 1
                self._metrics.joins += sent.epoch == JOIN_EPOCH
                with self._lock:
                    step = membership.on_heartbeat(sent, answer, clock.monotonic_ms())
                if answer.error is not ErrorCode.NONE:
                    said = answer.error_message or answer.error.name
                    log.info("group %s: a heartbeat was refused: %s", self._group_id, said)
        if step is Next.FIND:
            self.forget(node)
        if step in (Next.FIND, Next.LATER):
            self._failures += 1
            await self._pause(self._failures)
        else:
            self._failures = 0
        if step is Next.STOP:
            self._news()

    def _unfound(self, error: TidelogError) -> None:
        if not error.retriable:
            with self._lock:
                self._membership.refused(error)
            self._news()

    def _request(self, beat: Beat) -> ConsumerGroupHeartbeatRequest:
        config, wanted = self._config, beat.wanted
        return ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self._membership.member_id,
            member_epoch=beat.epoch,
            instance_id=config.group_instance_id,
            rack_id=(config.client_rack or None) if beat.whole else None,
            rebalance_timeout_ms=config.max_poll_interval_ms if beat.whole else UNCHANGED_MS,
            topics=None if wanted is None else TopicNames(tuple(sorted(wanted.topics))),
            regex=None if wanted is None else wanted.regex or "",
            assignor=config.group_remote_assignor if beat.whole else None,
            owned=None if beat.owned is None else _by_topic(beat.owned),
            client_id=config.effective_client_id,
        )

    async def leave(self, reason: str, timeout_ms: int) -> None:
        """End the membership. Tells the coordinator if it is known and answers in time; a heartbeat in flight must
        end first, because it may be a join."""
        await self._leave(reason, timeout_ms, self._membership.leave)

    async def _overdue(self, reason: str) -> None:
        await self._leave(reason, self._membership.heartbeat_interval_ms, self._membership.late)

    async def _leave(self, reason: str, timeout_ms: int, leave: Callable[[], int | None]) -> None:
        with self._lock:
            epoch = leave()
        if epoch is None or self._node is None:
            return
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self._membership.member_id,
            member_epoch=epoch,
            instance_id=self._config.group_instance_id,
            client_id=self._config.effective_client_id,
        )
        log.info("group %s: leaving: %s", self._group_id, reason)
        try:
            async with asyncio.timeout(max(1, timeout_ms) / 1_000), self._one_at_a_time:
                response = await self.ask(request, timeout_ms)
        except (TimeoutError, TidelogError) as error:
            log.info("group %s: leaving was not acknowledged: %s", self._group_id, error)
            return
        if response.error is not ErrorCode.NONE:
            log.info("group %s: leaving was refused: %s", self._group_id, response.error.name)


def _by_topic(owned: frozenset[IdPartition]) -> IdAssignment:
    found: dict[TopicId, list[int]] = {}
    for topic_id, partition in sorted(owned):
        found.setdefault(topic_id, []).append(partition)
    return IdAssignment(tuple(TopicIdPartitions(topic_id, tuple(parts)) for topic_id, parts in found.items()))
