"""A consumer's group as poll sees it, in either protocol: turns, listeners, automatic commits, leaving.

Everything here runs on the user's side, in the thread (or task) that calls poll, and never waits. It yields calls and
waits to the consumer's form (:mod:`tidelog.client.group.poll_steps`), which resumes it when they are done. So callbacks
run in the user's thread, and a rebalance in progress does not hold up partitions that stay. A
:class:`tidelog.client.group.coordinator_search.CoordinatorSearch` and :mod:`tidelog.client.group.offset_commits` send
the requests. Source: Kafka's ``ConsumerCoordinator``.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from tidelog.client.cluster.cluster import Cluster
from tidelog.client.config.consumer import ConsumerConfig
from tidelog.client.errors import TidelogError
from tidelog.client.fetching.positions import Assignment
from tidelog.client.group.coordinator_search import CoordinatorSearch
from tidelog.client.group.io_loop import IoLoop
from tidelog.client.group.membership import Generation, GroupMembership
from tidelog.client.group.offset_commits import OffsetCommitter
from tidelog.client.group.poll_commits import PollCommits
from tidelog.client.group.poll_steps import Steps, Wait, nested, reported
from tidelog.client.group.subscription import SubscribedTopics
from tidelog.client.group_types import ConsumerGroupMetadata, OffsetAndMetadata, Offsets
from tidelog.model.ids import TopicPartition

log = logging.getLogger(__name__)


class Surroundings(NamedTuple):
    """What a group needs from its consumer. ``positions`` returns the offsets that an automatic commit would cover now;
    ``told_committed`` is called on the user's side with committed offsets."""

    config: ConsumerConfig
    group_id: str
    cluster: Cluster
    assignment: Assignment
    lock: threading.Lock
    io_loop: IoLoop
    news: Callable[[], None]
    positions: Callable[[], dict[TopicPartition, OffsetAndMetadata]]
    wake_fetcher: Callable[[], None]
    told_committed: Callable[[Offsets], None]


class PolledGroup(ABC):
    """A member's group, as poll sees it; each protocol adds its own steps."""

    def __init__(
        self,
        around: Surroundings,
        subscription: SubscribedTopics,
        membership: GroupMembership,
        coordinator: CoordinatorSearch,
    ) -> None:
        config, group_id, cluster, lock = around.config, around.group_id, around.cluster, around.lock
        self.config: Final = config
        self.group_id: Final = group_id
        self.subscription: Final = subscription
        self.committer: Final = OffsetCommitter(config, group_id, cluster, coordinator, membership, lock)
        self.commits: Final = PollCommits(
            config,
            group_id,
            cluster.clock,
            around.assignment,
            subscription,
            membership,
            self.committer,
            lock,
            around.io_loop,
            around.news,
            around.positions,
            around.told_committed,
        )
        self._member: Final = membership
        self._search: Final = coordinator
        self._cluster = cluster
        self._clock = cluster.clock
        self._metrics = cluster.metrics
        self._assignment = around.assignment
        self._lock = lock
        self._io_loop = around.io_loop
        self._news = around.news
        self._wake_fetcher = around.wake_fetcher
        self._work: Steps | None = None
        """A part of a rebalance that waits for a commit; the next poll resumes it."""
        self._running = False
        self._started_ms = self._poll_began_ms = self._poll_ended_ms = 0
        self._in_polls_ms = self._between_polls_max_ms = 0
        cluster.on_change(self._on_metadata)

    # --- lifecycle ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start. Runs where IO runs."""
        now = self._clock.monotonic_ms()
        self._started_ms = self._poll_ended_ms = now
        self._member.polled(now)
        self.commits.interval_begins()
        self._search.start()

    async def stop(self) -> None:
        """End without telling the coordinator. Runs where IO runs."""
        await self.committer.close()
        await self._search.close()

    # --- subscription ---------------------------------------------------------------------------------

    def subscription_changed(self) -> None:
        """Adopt a changed subscription: keep its metadata, return nothing else."""
        with self._lock:
            for at, state in self._assignment.partitions.items():
                state.withheld = self.subscription.grouped and not self.subscription.covers(at)
        self._io_loop.call(self._pin)

    # --- what a protocol adds -------------------------------------------------------------------------

    @abstractmethod
    def _pin(self) -> None:
        """Keep the topics' metadata. Runs where IO runs."""

    @abstractmethod
    def _on_metadata(self, changed: set[TopicPartition]) -> None:
        """Handle topics and partitions that come and go. Runs where IO runs."""

    @abstractmethod
    def _next_work(self) -> Steps | None:
        """Return the next part of a rebalance, if there is one."""

    @abstractmethod
    async def leave(self, reason: str, timeout_ms: int) -> None:
        """Leave the group. Runs where IO runs."""

    @abstractmethod
    def enforce_rebalance(self, reason: str) -> None:
        """Begin a rebalance although nothing has changed."""

    @abstractmethod
    def _identity(self) -> Generation:
        """Return how the member's transactions identify it now. The lock is held."""

    def metadata(self) -> ConsumerGroupMetadata:
        """Return the identity as of the last assignment that poll has adopted, while the membership lasts."""
        with self._lock:
            generation = self._identity()
        return ConsumerGroupMetadata(
            self.group_id, generation.generation_id, generation.member_id, self.config.group_instance_id
        )

    # --- polling ------------------------------------------------------------------------------------

    def turn(self) -> Steps:
        """Do poll's share of the work, as far as possible now. Raises the errors that poll should raise."""
        if self._running:
            raise nested()
        self._running = True
        try:
            with self._lock:
                self._member.polled(self._clock.monotonic_ms())
                failure, self._member.failure = self._member.failure, None
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
        wait_ms = min(self._member.heartbeat_interval_ms, max(1, self.config.max_poll_interval_ms // 3))
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
        self._member.polled(now)

    def gauges(self) -> dict[str, float]:
        """Return the gauges, by Kafka's names."""
        now = self._clock.monotonic_ms()
        with self._lock:
            membership = self._member
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
                    work.throw(error)  # it finishes its work, and raises the same error
                    raise

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
        """Give up everything before leaving: commit ``offsets``, await the commits' outcomes, call the listener. Raises
        the listener's exception once everything is done."""
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
                lost = self._member.has_lost
                try:
                    yield from self._give_up(owned, [], lost=lost)
                except TidelogError as error:
                    failure = failure or error
        finally:
            self._running = False
        if failure is not None:
            raise failure
