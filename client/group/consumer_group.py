"""A consumer's group as poll sees it: rebalances, listeners, automatic commits.

Everything here runs on the user's side, in the thread (or task) that calls poll, and never waits. It yields calls and
waits to the form of the consumer (:mod:`tidelog.client.group.poll_steps`), which resumes it when they are done. So
callbacks run in the user's thread, and a rebalance that is under way does not hold up partitions that stay. The
requests go out from :mod:`tidelog.client.group.coordinator` and :mod:`tidelog.client.group.offset_commits`. Source:
Kafka's ``ConsumerCoordinator``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final

from tidelog.client.cluster.cluster import Cluster
from tidelog.client.config.assignment import Wish, rebalance_protocol
from tidelog.client.config.consumer import ConsumerConfig
from tidelog.client.errors import RebalanceCallbackError, TidelogError
from tidelog.client.fetching.positions import Assignment
from tidelog.client.group.coordinator import GroupCoordinator, Outcome
from tidelog.client.group.io_loop import IoLoop
from tidelog.client.group.membership import NOBODY, Membership, MemberState
from tidelog.client.group.offset_commits import OffsetCommitter
from tidelog.client.group.poll_commits import PollCommits
from tidelog.client.group.poll_steps import Steps, Wait, nested, reported
from tidelog.client.group.subscription import SubscribedTopics
from tidelog.client.group_types import ConsumerGroupMetadata, OffsetAndMetadata, Offsets
from tidelog.model.assignors import Assignor, RebalanceProtocol
from tidelog.model.ids import TopicPartition
from tidelog.proto.logs.consumer_protocol import BadConsumerProtocol, decode_assignment

log = logging.getLogger(__name__)


class ConsumerGroup:
    """``positions`` returns the offsets that an automatic commit would cover now; ``told_committed`` is called on the
    user's side with those that were committed."""

    def __init__(
        self,
        config: ConsumerConfig,
        group_id: str,
        cluster: Cluster,
        assignment: Assignment,
        lock: threading.Lock,
        io_loop: IoLoop,
        news: Callable[[], None],
        positions: Callable[[], dict[TopicPartition, OffsetAndMetadata]],
        wake_fetcher: Callable[[], None],
        told_committed: Callable[[Offsets], None],
    ) -> None:
        self.config: Final = config
        self.group_id: Final = group_id
        self.assignors: Final[tuple[Assignor, ...]] = config.assignors()
        self.protocol: Final = rebalance_protocol(self.assignors)
        self.subscription: Final = SubscribedTopics(config.exclude_internal_topics)
        self.membership: Final = Membership(
            session_timeout_ms=config.session_timeout_ms,
            heartbeat_interval_ms=config.heartbeat_interval_ms,
            max_poll_interval_ms=config.max_poll_interval_ms,
            retry_backoff_ms=config.retry_backoff_ms,
            static=config.group_instance_id is not None,
        )
        self.coordinator: Final = GroupCoordinator(
            config,
            group_id,
            cluster,
            self.membership,
            self.assignors,
            self.protocol,
            lock,
            news,
            self._pin,
        )
        self.committer: Final = OffsetCommitter(config, group_id, cluster, self.coordinator, self.membership, lock)
        self.commits: Final = PollCommits(
            config,
            group_id,
            cluster.clock,
            assignment,
            self.subscription,
            self.membership,
            self.committer,
            lock,
            io_loop,
            news,
            positions,
            told_committed,
        )
        self._cluster = cluster
        self._clock = cluster.clock
        self._metrics = cluster.metrics
        self._assignment = assignment
        self._lock = lock
        self._io_loop = io_loop
        self._news = news
        self._wake_fetcher = wake_fetcher
        self._joined: frozenset[str] | None = None
        """The topics of the last join."""
        self._taken = NOBODY
        """The generation of the assignment that poll has adopted."""
        self._led: dict[str, int] | None = None
        """The assignment that this member made as the leader: partitions by topic."""
        self._work: Steps | None = None
        """A part of a rebalance that waits for a commit; the next poll resumes it."""
        self._running = False
        self._refreshes = 0
        self._started_ms = self._poll_began_ms = self._poll_ended_ms = 0
        self._in_polls_ms = self._between_polls_max_ms = 0
        cluster.on_change(self._on_metadata)

    # --- lifecycle ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Where IO runs."""
        now = self._clock.monotonic_ms()
        self._started_ms = self._poll_ended_ms = now
        self.membership.polled(now)
        self.commits.interval_begins()
        self.coordinator.start()

    async def stop(self) -> None:
        """Where IO runs: end without telling the coordinator."""
        await self.committer.close()
        await self.coordinator.close()

    # --- subscription ---------------------------------------------------------------------------------

    def subscription_changed(self) -> None:
        """The user has changed the subscription: keep its metadata, hand out nothing else."""
        with self._lock:
            for at, state in self._assignment.partitions.items():
                state.withheld = self.subscription.grouped and not self.subscription.covers(at)
        self._io_loop.call(self._pin)

    def _pin(self) -> None:
        """Where IO runs: keep the topics' metadata."""
        every = self.subscription.pattern is not None
        if every and self._cluster.has_all_topics:
            with self._lock:
                changed = self.subscription.match(self._cluster.cache.topics)
            if changed:
                self._news()
        self._cluster.pin(self.subscription.topics | self.coordinator.pinned, every=every)

    def _on_metadata(self, _: set[TopicPartition]) -> None:
        """Where IO runs: topics and partitions come and go."""
        subscription, cache = self.subscription, self._cluster.cache
        if not subscription.grouped:
            return
        with self._lock:
            changed = self._cluster.has_all_topics and subscription.match(cache.topics)
            changed = changed or self._topics_changed()
        if changed:
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
        """The lock is held. Whether the leader would now assign other partitions."""
        led, topics = self._led, self._cluster.cache.topics
        if led is None or not self.membership.is_leader:
            return False
        views = [(name, topics.get(name)) for name in self.coordinator.pinned]
        return led != {name: len(view.partitions) for name, view in views if view is not None}

    # --- polling ------------------------------------------------------------------------------------

    def turn(self) -> Steps:
        """Poll's share of the work, as far as possible now. Raises the errors that poll should raise."""
        if self._running:
            raise nested()
        self._running = True
        try:
            with self._lock:
                self.membership.polled(self._clock.monotonic_ms())
                failure, self.membership.failure = self.membership.failure, None
            yield from self.commits.tell()
            if failure is not None:
                raise failure
            if self.subscription.grouped:
                yield from self._rebalance()
            self.commits.send_if_due()
        finally:
            self._running = False

    @property
    def due_in_s(self) -> float:
        """In how many seconds :meth:`turn` must run again even if nothing happens."""
        config = self.config
        wait_ms = min(config.heartbeat_interval_ms, max(1, config.max_poll_interval_ms // 3))
        due_ms = self.commits.due_ms
        if due_ms is not None:
            wait_ms = min(wait_ms, max(1, due_ms - self._clock.monotonic_ms()))
        return wait_ms / 1_000

    def poll_began(self) -> None:
        now = self._clock.monotonic_ms()
        self._between_polls_max_ms = max(self._between_polls_max_ms, now - self._poll_ended_ms)
        self._poll_began_ms = now

    def poll_ended(self) -> None:
        now = self._clock.monotonic_ms()
        self._in_polls_ms += now - self._poll_began_ms
        self._poll_ended_ms = now
        self.membership.polled(now)

    def gauges(self) -> dict[str, float]:
        """The gauges, by Kafka's names."""
        now = self._clock.monotonic_ms()
        with self._lock:
            membership = self.membership
            ended, sent, polled = membership.rebalance_ended_ms, membership.heartbeat_sent_ms, membership.polled_ms
            assigned = len(self._assignment.partitions)
        lived = max(1, now - self._started_ms)
        return {
            "assigned-partitions": assigned,
            "last-rebalance-seconds-ago": -1 if ended is None else (now - ended) / 1_000,
            "last-heartbeat-seconds-ago": -1 if sent is None else (now - sent) / 1_000,
            "last-poll-seconds-ago": (now - polled) / 1_000,
            "poll-idle-ratio-avg": min(1.0, self._in_polls_ms / lived),
            "time-between-poll-max": self._between_polls_max_ms,
        }

    def _rebalance(self) -> Steps:
        while True:
            if self._work is None:
                self._work = self._next_work()
                if self._work is None:
                    return
            step: BaseException | None = None
            work = self._work
            while True:
                try:
                    call = work.send(step)
                except StopIteration:
                    self._work = None
                    break
                except BaseException:
                    self._work = None
                    raise
                if isinstance(call, Wait):
                    return
                try:
                    step = yield call
                except BaseException as error:
                    self._work = None
                    work.throw(error)  # it finishes its work, and raises the same
                    raise

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
        """Before a join: commit, and give up the partitions that must go (Kafka's ``onJoinPrepare``)."""
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

    def _give_up(self, gone: list[TopicPartition], kept: list[TopicPartition], *, lost: bool = False) -> Steps:
        listener = self.subscription.listener
        told = listener.on_partitions_lost if lost else listener.on_partitions_revoked
        gone = sorted(gone)
        log.info(
            "group %s: %s %s", self.group_id, "lost" if lost else "giving up", ", ".join(map(str, gone)) or "nothing"
        )
        error: BaseException | None = None
        try:
            error = yield lambda: told(gone)
        finally:
            self._assign(kept)
        if error is not None:
            raise reported("on_partitions_lost" if lost else "on_partitions_revoked", error)

    def _complete(self, outcome: Outcome) -> Steps:
        """After a SyncGroup: adopt the assignment (Kafka's ``onJoinComplete``)."""
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
                return  # over already; the next preparation deals with it
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

    def _assign(self, partitions: Iterable[TopicPartition]) -> None:
        with self._lock:
            self._assignment.assign(partitions)
        self._wake_fetcher()

    def tell_commits(self) -> Steps:
        """Call the callbacks of commits that have ended, unless this runs within such a callback or a listener."""
        if not self._running:
            yield from self.commits.tell()

    # --- leaving ------------------------------------------------------------------------------------

    def leaving(self, deadline_ms: int, offsets: dict[TopicPartition, OffsetAndMetadata]) -> Steps:
        """Give up everything before a leave: commit ``offsets``, take the commits' outcomes, tell the listener. Raises
        the listener's exception once all is done."""
        if self._running:
            raise nested()
        self._running = True
        failure: BaseException | None = None
        try:
            self._work = None
            if self.config.auto_commits and offsets:
                self.commits.send(offsets, None, retries=True)
            while True:
                try:
                    yield from self.commits.tell()
                except Exception as error:
                    failure = failure or error
                    continue
                if not self.commits.open or self._clock.monotonic_ms() >= deadline_ms:
                    break
                yield Wait(deadline_ms)
            owned = list(self._assignment.partitions)
            if self.subscription.grouped and owned:
                lost = not self.membership.has_generation or self.membership.rebalancing
                try:
                    yield from self._give_up(owned, [], lost=lost)
                except TidelogError as error:
                    failure = failure or error
        finally:
            self._running = False
        if failure is not None:
            raise failure

    async def leave(self, reason: str, timeout_ms: int) -> None:
        """Where IO runs."""
        await self.coordinator.cancel_join()
        self._joined = None
        self._led = None
        await self.coordinator.leave(reason, timeout_ms)

    # --- questions ------------------------------------------------------------------------------------

    def metadata(self) -> ConsumerGroupMetadata:
        """As of the last assignment that poll has adopted, while the membership lasts."""
        with self._lock:
            generation = NOBODY if self.membership.state is MemberState.UNJOINED else self._taken
        return ConsumerGroupMetadata(
            self.group_id, generation.generation_id, generation.member_id, self.config.group_instance_id
        )

    def enforce_rebalance(self, reason: str) -> None:
        with self._lock:
            self.membership.request_rejoin(reason)
