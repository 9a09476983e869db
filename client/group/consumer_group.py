"""A consumer's part in a group of the classic protocol: it prepares, joins, and adopts what the leader assigned.

Runs on the user's side, see :mod:`tidelog.client.group.polled_group`. :mod:`tidelog.client.group.coordinator` sends the
requests. Source: Kafka's ``ConsumerCoordinator``.
"""

from __future__ import annotations

import logging
from typing import Final

from tidelog.client.config.assignment import Wish, rebalance_protocol
from tidelog.client.errors import RebalanceCallbackError, TidelogError
from tidelog.client.group.coordinator import GroupCoordinator, Outcome
from tidelog.client.group.membership import NOBODY, Generation, Membership, MemberState
from tidelog.client.group.poll_steps import Steps, reported
from tidelog.client.group.polled_group import PolledGroup, Surroundings
from tidelog.client.group.subscription import SubscribedTopics
from tidelog.model.assignors import Assignor, RebalanceProtocol
from tidelog.model.ids import TopicPartition
from tidelog.proto.logs.consumer_protocol import BadConsumerProtocol, decode_assignment

log = logging.getLogger(__name__)


class ConsumerGroup(PolledGroup):
    def __init__(self, around: Surroundings) -> None:
        config = around.config
        self.assignors: Final[tuple[Assignor, ...]] = config.assignors()
        self.protocol: Final = rebalance_protocol(self.assignors)
        self.membership: Final = Membership(
            session_timeout_ms=config.session_timeout_ms,
            heartbeat_interval_ms=config.heartbeat_interval_ms,
            max_poll_interval_ms=config.max_poll_interval_ms,
            retry_backoff_ms=config.retry_backoff_ms,
            static=config.group_instance_id is not None,
        )
        self.coordinator: Final = GroupCoordinator(
            config,
            around.group_id,
            around.cluster,
            self.membership,
            self.assignors,
            self.protocol,
            around.lock,
            around.news,
            self._pin,
        )
        super().__init__(around, SubscribedTopics(config.exclude_internal_topics), self.membership, self.coordinator)
        self._joined: frozenset[str] | None = None
        """The topics of the last join."""
        self._taken = NOBODY
        """The generation of the assignment that poll has adopted."""
        self._led: dict[str, int] | None = None
        """The assignment that this member made as the leader: partitions by topic."""
        self._refreshes = 0

    # --- subscription ---------------------------------------------------------------------------------

    def _pin(self) -> None:
        every = self.subscription.pattern is not None
        if every and self._cluster.has_all_topics:
            with self._lock:
                changed = self.subscription.match(self._cluster.cache.topics)
            if changed:
                self._news()
        self._cluster.pin(self.subscription.topics | self.coordinator.pinned, every=every)

    def _on_metadata(self, changed: set[TopicPartition]) -> None:
        subscription, cache = self.subscription, self._cluster.cache
        if not subscription.grouped:
            return
        with self._lock:
            is_other = self._cluster.has_all_topics and subscription.match(cache.topics)
            is_other = is_other or self._topics_changed()
        if is_other:
            self._pin()
            self._news()
        missing = [topic for topic in sorted(subscription.topics) if topic in cache.errors]
        if missing:  # it may be created at any time
            self._refreshes += 1
            wait_ms = max(1, self._cluster.retry_backoff.after(self._refreshes, self._cluster.rng))
            self._cluster.refresh_after(wait_ms)
        else:
            self._refreshes = 0

    def _topics_changed(self) -> bool:
        """Return whether the leader would now assign other partitions. The lock is held."""
        led, topics = self._led, self._cluster.cache.topics
        if led is None or not self.membership.is_leader:
            return False
        views = [(name, topics.get(name)) for name in self.coordinator.pinned]
        return led != {name: len(view.partitions) for name, view in views if view is not None}

    def _next_work(self) -> Steps | None:
        membership, coordinator = self.membership, self.coordinator
        with self._lock:
            outcome, coordinator.outcome = coordinator.outcome, None
            if outcome is not None:
                return self._complete(outcome)
            if coordinator.joining:
                return None
            if not membership.rejoin_needed:
                if self._joined is not None and self._joined != self.subscription.topics:
                    membership.request_rejoin("the subscription has changed")
                elif self._topics_changed():
                    membership.request_rejoin("topics or partitions have changed")
            if not membership.rejoin_needed or not self.subscription.matched:
                return None
            if membership.needs_prepare:
                return self._prepare()
        self._join()
        return None

    def _join(self) -> None:
        topics = self.subscription.topics
        user_data = []
        for assignor in self.assignors:
            try:
                user_data.append((assignor.name, assignor.user_data(topics)))
            except Exception as error:
                raise RebalanceCallbackError(f"assignor {assignor.name} raised {error!r}") from error
        with self._lock:
            owned = tuple(self._assignment.partitions)
            self.coordinator.joining = True
            self._joined = topics
            self._led = None
        wish = Wish(tuple(sorted(topics)), owned, tuple(user_data), self.config.client_rack or None)
        self._io_loop.call(lambda: self.coordinator.join(wish))

    def _prepare(self) -> Steps:
        """Prepare for a join: commit, and give up the partitions that must go (Kafka's ``onJoinPrepare``)."""
        membership = self.membership
        eager = self.protocol is RebalanceProtocol.EAGER
        if membership.has_generation:
            yield from self.commits.before_giving_up(list(self._assignment.partitions), withhold=eager)
        with self._lock:
            owned = list(self._assignment.partitions)
            lost = not membership.has_generation
            membership.prepared()
        if lost:
            if owned:
                yield from self._give_up(owned, [], lost=True)
        elif eager:
            yield from self._give_up(owned, [])
        else:
            kept = [at for at in owned if self.subscription.covers(at)]
            if len(kept) < len(owned):
                yield from self._give_up([at for at in owned if at not in set(kept)], kept)

    def _complete(self, outcome: Outcome) -> Steps:
        """Complete a rebalance after SyncGroup: adopt the assignment (Kafka's ``onJoinComplete``)."""
        membership = self.membership
        generation = outcome.generation
        try:
            assignment = decode_assignment(outcome.assignment)
        except BadConsumerProtocol as error:
            with self._lock:
                self._rejoin_prepared("an unreadable assignment")
            raise TidelogError(f"the group's leader sent an unreadable assignment: {error}") from error
        wanted = sorted(assignment.partitions)
        with self._lock:
            if membership.generation != generation:
                return  # already over; the next preparation handles it
            self._led = outcome.partitions_of
            self._taken = generation
            if not all(self.subscription.covers(at) for at in wanted):
                self._rejoin_prepared("the assignment does not match the subscription, which has changed")
                return
            owned = list(self._assignment.partitions)
        given = set(wanted)
        revoked = [at for at in owned if at not in given]
        kept = [at for at in owned if at in given]
        added = [at for at in wanted if at not in set(owned)]
        failure: Exception | None = None
        if revoked:
            yield from self.commits.before_giving_up(revoked, withhold=True)
            with self._lock:
                if membership.generation != generation:
                    return
        with self._lock:
            membership.needs_prepare = True
            if revoked:
                membership.request_rejoin("need to give up partitions and re-join")
        try:
            if revoked:
                try:
                    yield from self._give_up(revoked, kept)
                except TidelogError as error:
                    failure = error
        finally:
            with self._lock:
                self.subscription.add_matching(at.topic for at in wanted)
                if self._joined is not None:
                    self._joined |= {at.topic for at in wanted}
            self._assign(wanted)
            self.commits.interval_begins()
        for assignor in self.assignors:
            if assignor.name == generation.protocol:
                try:
                    assignor.on_assignment(assignment, generation.generation_id)
                except Exception as error:
                    failure = failure or RebalanceCallbackError(f"assignor {assignor.name} raised {error!r}")
                    failure.__cause__ = failure.__cause__ or error
        log.info("group %s: assigned %s", self.group_id, ", ".join(map(str, wanted)) or "nothing")
        told = self.subscription.listener.on_partitions_assigned
        raised = yield lambda: told(added)
        if failure is not None:
            raise failure
        if raised is not None:
            raise reported("on_partitions_assigned", raised)

    def _rejoin_prepared(self, reason: str) -> None:
        """The lock is held."""
        self.membership.needs_prepare = True
        self.membership.request_rejoin(reason)

    # --- leaving ------------------------------------------------------------------------------------

    async def leave(self, reason: str, timeout_ms: int) -> None:
        await self.coordinator.cancel_join()
        self._joined = None
        self._led = None
        await self.coordinator.leave(reason, timeout_ms)

    # --- questions ------------------------------------------------------------------------------------

    def _identity(self) -> Generation:
        return NOBODY if self.membership.state is MemberState.UNJOINED else self._taken

    def enforce_rebalance(self, reason: str) -> None:
        with self._lock:
            self.membership.request_rejoin(reason)
