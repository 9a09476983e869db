"""Poll's part in commits: automatic ones when they are due, and callbacks of those that have ended.

Runs on the user's side, like :mod:`tidelog.client.group.consumer_group`; :mod:`tidelog.client.group.offset_commits`
sends them. Source: Kafka's ``ConsumerCoordinator`` (``maybeAutoCommitOffsetsAsync``,
``invokeCompletedOffsetCommitCallbacks``).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidelog.client.config.consumer import ConsumerConfig
from tidelog.client.errors import RetriableCommitFailedError, TidelogError
from tidelog.client.fetching.positions import Assignment
from tidelog.client.group.io_loop import IoLoop
from tidelog.client.group.membership import Generation, GroupMembership
from tidelog.client.group.offset_commits import WAITING_MAX, Commit, OffsetCommitter
from tidelog.client.group.poll_steps import Steps, Wait
from tidelog.client.group.subscription import SubscribedTopics
from tidelog.client.group_types import CommitCallback, OffsetAndMetadata
from tidelog.model.clock import Clock
from tidelog.model.ids import TopicPartition

log = logging.getLogger(__name__)

Offsets = dict[TopicPartition, OffsetAndMetadata]


@dataclass(slots=True, eq=False)
class SentCommit:
    """A commit in flight."""

    ended: bool = False
    error: TidelogError | None = None


class PollCommits:
    """``positions`` returns the offsets that an automatic commit would cover now; ``news`` is called when a commit has
    ended; ``told_committed`` gets offsets that were committed."""

    def __init__(
        self,
        config: ConsumerConfig,
        group_id: str,
        clock: Clock,
        assignment: Assignment,
        subscription: SubscribedTopics,
        membership: GroupMembership,
        committer: OffsetCommitter,
        lock: threading.Lock,
        io_loop: IoLoop,
        news: Callable[[], None],
        positions: Callable[[], Offsets],
        told_committed: Callable[[Offsets], None],
    ) -> None:
        self.open = 0
        """Commits sent whose callbacks have not run yet."""
        self._config = config
        self._group_id = group_id
        self._clock = clock
        self._assignment = assignment
        self._subscription = subscription
        self._membership = membership
        self._committer = committer
        self._lock = lock
        self._io_loop = io_loop
        self._news = news
        self._positions = positions
        self.told_committed: Final = told_committed
        self._ended: deque[tuple[CommitCallback | None, Offsets, TidelogError | None]] = deque()
        self._automatic: SentCommit | None = None
        self._due_ms = 0

    def sender(self) -> Generation | None:
        """Return the member that commits now. Raises the reason if nothing can be committed."""
        if not self._subscription.grouped:
            return None
        with self._lock:
            error = self._membership.uncommittable()
            if error is not None:
                raise error
            return self._membership.generation

    def send(self, offsets: Offsets, callback: CommitCallback | None, *, retries: bool = False) -> SentCommit:
        """Send a commit; a later poll, commit or close calls ``callback``. Raises ``RetriableCommitFailedError`` while
        too many callbacks are pending."""
        if self.open >= WAITING_MAX and not retries:
            raise RetriableCommitFailedError(
                f"expected at most {WAITING_MAX} commits with pending callbacks: poll() calls them"
            )
        sent = SentCommit()
        self.open += 1

        def ended(error: TidelogError | None) -> None:
            sent.error = error
            sent.ended = True
            self._ended.append((callback, offsets, error))

        def done(error: TidelogError | None) -> None:
            ended(error)
            self._news()

        if not offsets:
            ended(None)
            return sent
        try:
            sender = self.sender()
        except TidelogError as error:
            ended(error)
            return sent
        limit_ms = self._config.max_poll_interval_ms if retries else self._config.default_api_timeout_ms
        commit = Commit(offsets, sender, self._clock.monotonic_ms() + limit_ms, retries, done)
        self._io_loop.call(lambda: self._committer.submit(commit))
        return sent

    def tell(self) -> Steps:
        """Call the callbacks of commits that have ended. Raises a callback's exception; the remaining callbacks run
        later."""
        while self._ended:
            callback, offsets, error = self._ended.popleft()
            self.open -= 1
            if error is None and offsets:
                self.told_committed(offsets)
            if callback is not None:
                raised = yield lambda: callback(offsets, error)  # noqa: B023 - called before the next one is taken
                if raised is not None:
                    raise raised
            elif error is not None:
                log.warning("group %s: a commit failed: %s", self._group_id, error)

    # --- automatic commits --------------------------------------------------------------------------

    def interval_begins(self) -> None:
        """Restart the interval: the next automatic commit is due after one whole interval."""
        self._due_ms = self._clock.monotonic_ms() + self._config.auto_commit_interval_ms

    @property
    def due_ms(self) -> int | None:
        """When the next automatic commit is due; ``None`` if not before something else happens."""
        return self._due_ms if self._config.auto_commits and self._automatic is None else None

    def send_if_due(self) -> None:
        if not self._config.auto_commits:
            return
        now = self._clock.monotonic_ms()
        if (under_way := self._automatic) is not None:
            if not under_way.ended:
                return
            self._automatic = None
            if under_way.error is not None and under_way.error.retriable:
                self._due_ms = now + self._config.retry_backoff_ms
        if now < self._due_ms:
            return
        self.interval_begins()
        if self._subscription.grouped and self._membership.uncommittable() is not None:
            return
        if self.open < WAITING_MAX and (offsets := self._positions()):
            self._automatic = self.send(offsets, None)

    def before_reassigning(self) -> None:
        """Prepare for a change of manually assigned partitions."""
        if self._config.auto_commits and (offsets := self._positions()):
            self.send(offsets, None, retries=True)

    @property
    def unanswered(self) -> int:
        """Commits sent whose outcome is not known yet."""
        return self.open - len(self._ended)

    def before_giving_up(self, partitions: list[TopicPartition], *, withhold: bool) -> Steps:
        """Commit the records handed out of these partitions; if they are withheld, hand out no more."""
        if not self._config.auto_commits:
            return
        going = set(partitions)
        if withhold:
            with self._lock:
                for at in partitions:
                    self._assignment.partitions[at].withheld = True
        offsets = {at: offset for at, offset in self._positions().items() if at in going}
        if not offsets:
            return
        deadline = self._clock.monotonic_ms() + self._config.max_poll_interval_ms
        sent = self.send(offsets, None, retries=True)
        while not sent.ended and self._clock.monotonic_ms() < deadline:
            yield Wait(deadline)
