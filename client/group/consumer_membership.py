"""A consumer's place in its group by the consumer protocol (KIP-848): what each answer of the coordinator means. Pure.

=============  =======================================================  =============================================
state          is left when                                             for
=============  =======================================================  =============================================
OUT            poll says what it wants                                  JOINING
JOINING        a heartbeat with epoch 0 is answered                     RECONCILING, or STABLE with nothing to take
RECONCILING    poll has given up what must go and taken what is new     ACKNOWLEDGING
ACKNOWLEDGING  a heartbeat that says what poll has now is answered      STABLE, or RECONCILING with a newer target
STABLE         a heartbeat's answer brings another target               RECONCILING
any            the coordinator no longer knows the member or its        FENCED
               epoch, it refuses the member, or poll was late
FENCED         poll has told the listener what is lost                  OUT
=============  =======================================================  =============================================

The coordinator says what the member may have (``target``); ``owned`` is what poll has. A heartbeat says only what is
new, and everything after one whose answer did not come, so that the coordinator tells its part again. An answer to a
heartbeat of an earlier life changes nothing (KAFKA-19335). Source: Kafka's ``ConsumerMembershipManager``,
``ConsumerHeartbeatRequestManager`` and ``CommitRequestManager``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tidelog.client.errors import CommitFailedError, RetriableCommitFailedError, TidelogError, exception_for
from tidelog.client.group.membership import MOVED, NEVER_MS, NOBODY, NOT_IN_GROUP, Generation, Next, Pulse, fenced
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId, TopicPartition
from tidelog.proto.calls.consumer_group_api import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroupHeartbeatResponse,
)

FIRST_INTERVAL_MS: Final = 5_000
"""Used until the coordinator tells the heartbeat interval."""
_FENCING: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
_WHAT_TO_DO: Final = {
    ErrorCode.UNSUPPORTED_VERSION: "; or use group_protocol='classic'",
    ErrorCode.GROUP_ID_NOT_FOUND: "; or use group_protocol='classic'",
}

IdPartition = tuple[TopicId, int]


class MemberState(enum.Enum):
    OUT = "out"
    JOINING = "joining"
    RECONCILING = "reconciling"
    ACKNOWLEDGING = "acknowledging"
    STABLE = "stable"
    FENCED = "fenced"


class Interest(NamedTuple):
    """What the member subscribes to: names, or a regular expression for the coordinator."""

    topics: frozenset[str] = frozenset()
    regex: str | None = None


class Target(NamedTuple):
    """What the member may have, according to the coordinator; each message has another number."""

    number: int
    partitions: frozenset[IdPartition]


class Beat(NamedTuple):
    """A heartbeat. A ``None`` field that is not ``whole`` is unchanged since the last one."""

    joined: int
    epoch: int
    whole: bool
    wanted: Interest | None
    owned: frozenset[IdPartition] | None
    taken: int
    """The number of the target that poll has adopted."""


class ConsumerMembership:
    """Times are in ms of a monotonic clock. For one thread at a time: its users hold the consumer's lock."""

    def __init__(self, *, member_id: str, max_poll_interval_ms: int, static: bool) -> None:
        self.member_id: Final = member_id
        """Its own choice, for all its lives (KIP-1082), so that a join whose answer is lost leaves nobody behind."""
        self._max_poll_interval_ms = max_poll_interval_ms
        self._static = static
        self.heartbeat_interval_ms = FIRST_INTERVAL_MS
        self.epoch = JOIN_EPOCH
        self.joined = 0
        """Increases at the start and end of each life as a member."""
        self.target: Target | None = None
        self.failure: TidelogError | None = None
        """The error that the next poll raises, once."""
        self.polled_ms = 0
        self.rebalance_ended_ms: int | None = None
        self.heartbeat_sent_ms: int | None = None
        self._rebalance_started_ms: int | None = None
        self._is_member = False
        self._is_fenced = False
        self._is_known = False
        """The coordinator may know it, because a heartbeat was sent."""
        self._wanted = self._wanted_told = Interest()
        self._owned: frozenset[IdPartition] = frozenset()
        self._since: dict[TopicPartition, int] = {}
        """The epoch in which poll took each of its partitions."""
        self._taken = self._taken_told = 0
        """The numbers of the target that poll has adopted, and of the one that the coordinator knows to be adopted."""
        self._targets = 0
        self._whole = True
        self._due_ms = 0

    # --- what others ask ----------------------------------------------------------------------------

    @property
    def state(self) -> MemberState:
        if self._is_fenced:
            return MemberState.FENCED
        if not self._is_member:
            return MemberState.OUT
        if self.target is None:
            return MemberState.JOINING
        if self._taken != self.target.number:
            return MemberState.RECONCILING
        return MemberState.STABLE if self._taken_told == self._taken else MemberState.ACKNOWLEDGING

    @property
    def generation(self) -> Generation:
        """How commits identify the member."""
        if not self._is_member or self.epoch == JOIN_EPOCH:
            return NOBODY
        return Generation(self.epoch, self.member_id, None, self.joined)

    @property
    def has_lost(self) -> bool:
        return not self._is_member or self.epoch == JOIN_EPOCH

    # --- what poll and the user do ------------------------------------------------------------------

    def polled(self, now: int) -> None:
        self.polled_ms = now

    def want(self, wanted: Interest, now: int) -> bool:
        """Set the subscription, and join if not a member. Returns whether there is something to tell."""
        if self._is_fenced or (self._is_member and wanted == self._wanted):
            return False
        self._wanted = wanted
        if not self._is_member:
            self._is_member = True
            self._begin(now)
        self._due_ms = 0
        return True

    def _begin(self, now: int) -> None:
        self.joined += 1
        self.epoch = JOIN_EPOCH
        self.target = None
        self._owned = frozenset()
        self._since = {}
        self._taken = self._taken_told = 0
        self._whole = True
        self._due_ms = 0
        self._rebalance_started_ms = now

    def take(self, target: Target, owned: Mapping[TopicPartition, TopicId], now: int) -> int | None:
        """Note that poll has given up what is not in ``owned`` and taken the rest, as far as it knows the target's
        topics. The coordinator must be told. Returns how long the rebalance took, if it is complete."""
        self._owned = frozenset((topic_id, at.partition) for at, topic_id in owned.items())
        self._since = {at: self._since.get(at, self.epoch) for at in owned}
        self._taken = target.number
        if self._taken_told == self._taken:
            self._taken_told = -1  # a part of it that was unknown before
        self._due_ms = 0
        if self.target is None or self.target.number != target.number or self._rebalance_started_ms is None:
            return None
        started, self._rebalance_started_ms = self._rebalance_started_ms, None
        self.rebalance_ended_ms = now
        return now - started

    def told_lost(self) -> None:
        """Note that poll has told the listener, and has no partitions any more."""
        self._is_fenced = False

    def leave(self) -> int | None:
        """End the membership. Returns the epoch to report, if the coordinator may know the member."""
        known, self._is_known = self._is_known, False
        self._end()
        self._is_fenced = False
        if not known:
            return None
        return LEAVE_STATIC_EPOCH if self._static else LEAVE_EPOCH

    def late(self) -> int | None:
        """End the membership because poll was not called in time, as :meth:`leave` does; poll must tell the listener
        what is lost."""
        left = self.leave()
        self._is_fenced = True
        return left

    def _end(self) -> None:
        self.joined += 1
        self._is_member = False
        self.epoch = JOIN_EPOCH
        self.target = None

    def _fence(self) -> Next:
        self._end()
        self._is_known = False
        self._is_fenced = True
        return Next.STOP

    # --- heartbeats -----------------------------------------------------------------------------------

    def pulse(self, now: int, coordinator_known: bool) -> tuple[Pulse, int]:
        if not self._is_member:
            return Pulse.WAIT, NEVER_MS
        overdue = self.polled_ms + self._max_poll_interval_ms
        if now >= overdue:
            return Pulse.POLL_OVERDUE, now
        if not coordinator_known:
            return Pulse.FIND, now
        if now >= self._due_ms:
            return Pulse.SEND, now
        return Pulse.WAIT, min(overdue, self._due_ms)

    def coordinator_found(self, now: int) -> None:
        """Do nothing: only the coordinator knows how long it may be silent."""

    def heartbeat(self, now: int) -> Beat | None:
        """Return the content of the next heartbeat; ``None`` if it is no longer a member."""
        if not self._is_member:
            return None
        self.heartbeat_sent_ms = now
        self._due_ms = now + self.heartbeat_interval_ms
        self._is_known = True
        says = self._whole or self._wanted != self._wanted_told
        has = self._whole or self._taken != self._taken_told
        return Beat(
            self.joined,
            self.epoch,
            self._whole,
            self._wanted if says else None,
            self._owned if has else None,
            self._taken,
        )

    def heartbeat_failed(self, sent: Beat, now: int) -> None:
        """Note that there was no answer, or one that asks for a retry: the coordinator may or may not have received the
        heartbeat."""
        if sent.joined == self.joined:
            self._whole = True
            self._due_ms = 0

    def on_heartbeat(self, sent: Beat, answer: ConsumerGroupHeartbeatResponse, now: int) -> Next:
        """Process a heartbeat's answer; STOP means that poll has something to do."""
        if sent.joined != self.joined:
            return Next.GO_ON
        code = answer.error
        if code is ErrorCode.NONE:
            return self._answered(sent, answer, now)
        if code in MOVED or code.retriable:
            self.heartbeat_failed(sent, now)
            return Next.FIND if code in MOVED else Next.LATER
        if code in _FENCING:
            return self._fence()
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self.failure = fenced()
        else:
            said = answer.error_message or code.name
            self.failure = exception_for(code, f"the group refused the consumer: {said}{_WHAT_TO_DO.get(code, '')}")
        return self._fence()

    def _answered(self, sent: Beat, answer: ConsumerGroupHeartbeatResponse, now: int) -> Next:
        self.epoch = answer.member_epoch
        self.heartbeat_interval_ms = answer.heartbeat_interval_ms or self.heartbeat_interval_ms
        self._due_ms = self._due_ms and now + self.heartbeat_interval_ms
        self._whole = False
        if sent.wanted is not None:
            self._wanted_told = sent.wanted
        if sent.owned is not None and sent.taken == self._taken and sent.owned == self._owned:
            self._taken_told = self._taken
        if answer.assignment is None:
            return Next.GO_ON
        told = frozenset((each.topic_id, part) for each in answer.assignment.topics for part in each.partitions)
        if self.target is not None and told == self.target.partitions == self._owned == sent.owned:
            return Next.GO_ON  # it has everything, and has said so
        self._targets += 1
        self.target = Target(self._targets, told)
        if self._rebalance_started_ms is None:
            self._rebalance_started_ms = now
        return Next.STOP

    def refused(self, error: TidelogError) -> None:
        """Note the reason why it cannot be a member."""
        if self._is_member:
            self.failure = error
            self._fence()

    # --- commits --------------------------------------------------------------------------------------

    def uncommittable(self) -> TidelogError | None:
        if self.generation == NOBODY:
            return CommitFailedError(f"nothing was committed: {NOT_IN_GROUP}")
        return None

    def may_commit(self, sender: Generation, partitions: Iterable[TopicPartition]) -> Generation | TidelogError:
        """Return the generation for a commit: the newest epoch if the member has had the partitions since the commit
        was requested. Otherwise the epoch of that time, so that the coordinator refuses it if others have had them
        since (KIP-1251)."""
        error = self.uncommittable()
        if error is not None:
            return error
        if sender.joined != self.joined:
            return CommitFailedError(f"nothing was committed, the membership of that time is over: {NOT_IN_GROUP}")
        held = all(self._since.get(at, NEVER_MS) <= sender.generation_id for at in partitions)
        return self.generation if held else sender

    def on_commit_error(self, sent: Generation, code: ErrorCode, message: str) -> TidelogError:
        if code is ErrorCode.STALE_MEMBER_EPOCH and sent.joined == self.joined:
            if sent.generation_id == self.epoch:
                return RetriableCommitFailedError(f"the next heartbeat brings the epoch to commit under: {message}")
            return CommitFailedError(f"nothing was committed, a partition was given up: {message}")
        if code in _FENCING or code is ErrorCode.STALE_MEMBER_EPOCH:
            return CommitFailedError(f"nothing was committed ({code.name}): {NOT_IN_GROUP}")
        if code is ErrorCode.FENCED_INSTANCE_ID:
            return fenced()
        if code.retriable:
            return RetriableCommitFailedError(f"the commit was not accepted; you may try again: {message or code.name}")
        return exception_for(code, message or code.name)
