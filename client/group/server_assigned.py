"""A consumer's part in a group of the consumer protocol (KIP-848): it gives up and takes what the coordinator says.

Runs on the user's side, see :mod:`tidelog.client.group.polled_group`. Only removed partitions are revoked, and only new
ones assigned; the rest are read on without a break. Source: Kafka's ``ConsumerMembershipManager``.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from typing import Final

from tidelog.client.errors import TidelogError
from tidelog.client.group.consumer_membership import ConsumerMembership, MemberState, Target
from tidelog.client.group.heartbeats import Heartbeats
from tidelog.client.group.membership import Generation
from tidelog.client.group.poll_steps import Steps, Wait, reported
from tidelog.client.group.polled_group import PolledGroup, Surroundings
from tidelog.client.group.subscription import SubscribedTopics
from tidelog.model.ids import TopicId, TopicPartition

log = logging.getLogger(__name__)


class ServerAssignedGroup(PolledGroup):
    def __init__(self, around: Surroundings) -> None:
        config, cluster = around.config, around.cluster
        self.membership: Final = ConsumerMembership(
            member_id=str(uuid.UUID(int=cluster.rng.getrandbits(128), version=4)),
            max_poll_interval_ms=config.max_poll_interval_ms,
            static=config.group_instance_id is not None,
        )
        self.heartbeats: Final = Heartbeats(config, around.group_id, cluster, self.membership, around.lock, around.news)
        subscription = SubscribedTopics(config.exclude_internal_topics, by_server=True)
        super().__init__(around, subscription, self.membership, self.heartbeats)
        self._owned: dict[TopicPartition, TopicId] = {}
        """What poll has taken, as the coordinator knows it."""
        self._seen: object = None
        """What poll has acted on."""
        self._told = -1
        """The life in which the listener heard of an assignment."""
        self._refreshes = 0

    # --- topics -----------------------------------------------------------------------------------------

    def _pin(self) -> None:
        subscription = self.subscription
        every = subscription.wanted_by_pattern
        if every and self._cluster.has_all_topics:
            with self._lock:
                changed = subscription.match(self._cluster.cache.topics)
            if changed:
                self._news()
        self._cluster.pin(subscription.topics, every=every)

    def _on_metadata(self, changed: set[TopicPartition]) -> None:
        subscription, cluster = self.subscription, self._cluster
        if not subscription.grouped:
            return
        with self._lock:
            is_other = cluster.has_all_topics and subscription.match(cluster.cache.topics)
            target = self.membership.target
        unknown = target is not None and any(not self._is_known(*each) for each in target.partitions)
        if is_other:
            self._pin()
        if is_other or self.membership.state is MemberState.RECONCILING or changed:
            self._news()
        if unknown:
            self._refreshes += 1
            cluster.refresh_after(max(1, cluster.retry_backoff.after(self._refreshes, cluster.rng)))
        else:
            self._refreshes = 0

    def _is_known(self, topic_id: TopicId, partition: int) -> bool:
        """Return whether our metadata has it: the coordinator's may be newer."""
        view = self._cluster.cache.topics.get(self._cluster.cache.name_of(topic_id) or "")
        return view is not None and partition < len(view.partitions)

    def _known(self, target: Target) -> dict[TopicPartition, TopicId]:
        """Return the part of the target that we know by name and still want. The lock is held."""
        cache, subscription = self._cluster.cache, self.subscription
        open_only = subscription.regex is not None and self.config.exclude_internal_topics
        found: dict[TopicPartition, TopicId] = {}
        for topic_id, partition in sorted(target.partitions):
            name = cache.name_of(topic_id)
            if name is None or not self._is_known(topic_id, partition):
                self._io_loop.call(self._cluster.request_refresh)
            elif subscription.covers(at := TopicPartition(name, partition)) and not (
                open_only and cache.topics[name].is_internal
            ):
                found[at] = topic_id
        return found

    # --- rebalances -------------------------------------------------------------------------------------

    def _next_work(self) -> Steps | None:
        membership, subscription = self.membership, self.subscription
        with self._lock:
            if membership.state is MemberState.FENCED:
                return self._lose()
            if not subscription.matched:
                return None
            target = membership.target
            seen = (membership.joined, target and target.number, self._cluster.cache.version, subscription.interest)
            if target is not None and seen != self._seen:
                known = self._known(target)
                is_new = self._told != membership.joined or membership.state is MemberState.RECONCILING
                if is_new or known != self._owned:
                    return self._reconcile(target, known, membership.joined)
                self._seen = seen
            is_other = membership.want(subscription.interest, self._clock.monotonic_ms())
        if is_other:
            self._io_loop.call(self.heartbeats.wake)
        return None

    def _lose(self) -> Steps:
        """Handle the end of the membership, voluntary or not: others may have the partitions."""
        try:
            if self._owned:
                yield from self._give_up(list(self._owned), [], lost=True)
        finally:
            with self._lock:
                self.membership.told_lost()

    def _reconcile(self, target: Target, known: dict[TopicPartition, TopicId], life: int) -> Steps:
        """Give up first; then take what the coordinator knows to be free; then tell it."""
        membership = self.membership
        revoked = [at for at, topic_id in self._owned.items() if known.get(at) != topic_id]
        failure: TidelogError | None = None
        if revoked:
            yield from self._settle(revoked)
            if membership.joined != life:
                return
            try:
                yield from self._give_up(revoked, [at for at in self._owned if at not in set(revoked)])
            except TidelogError as error:
                failure = error
        added = [at for at in known if at not in self._owned]
        raised: BaseException | None = None
        with self._lock:
            goes_on = membership.joined == life and self.subscription.grouped
        if goes_on:
            self._owned = dict(known)
            self._assign(known)
            self.commits.interval_begins()
            log.info("group %s: has %s", self.group_id, ", ".join(map(str, known)) or "nothing")
            told = self.subscription.listener.on_partitions_assigned
            is_first, self._told = self._told != life, life
            try:
                if added or is_first:
                    raised = yield lambda: told(added)
            finally:
                self._acknowledge(target, life)
        if failure is not None:
            raise failure
        if raised is not None:
            raise reported("on_partitions_assigned", raised)

    def _settle(self, going: list[TopicPartition]) -> Steps:
        """Settle before partitions go: commit what was returned from them, and await the outcome of all commits."""
        deadline = self._clock.monotonic_ms() + self.config.max_poll_interval_ms
        yield from self.commits.before_giving_up(going, withhold=True)
        while self.commits.unanswered and self._clock.monotonic_ms() < deadline:
            yield Wait(deadline)

    def _acknowledge(self, target: Target, life: int) -> None:
        now = self._clock.monotonic_ms()
        with self._lock:
            if self.membership.joined != life:
                return
            subscription = self.subscription
            if subscription.regex is not None:
                subscription.topics = frozenset(at.topic for at in self._owned)
            self.membership.want(subscription.interest, now)
            took_ms = self.membership.take(target, self._owned, now)
        if took_ms is not None:
            self._metrics.rebalanced(took_ms)
        self._io_loop.call(self.heartbeats.wake)

    def _assign(self, partitions: Iterable[TopicPartition]) -> None:
        stays = list(partitions)
        super()._assign(stays)
        self._owned = {at: self._owned[at] for at in stays}

    # --- leaving ------------------------------------------------------------------------------------

    async def leave(self, reason: str, timeout_ms: int) -> None:
        self._seen = None
        await self.heartbeats.leave(reason, timeout_ms)

    # --- questions ------------------------------------------------------------------------------------

    def _identity(self) -> Generation:
        """Return the member's identity. Its epoch increases only after it has given up what it must, so the newest is
        valid for what poll has."""
        return self.membership.generation

    def enforce_rebalance(self, reason: str) -> None:
        log.warning("group %s: a rebalance cannot be enforced with group_protocol=consumer", self.group_id)
