"""A consumer's place in its group by the classic protocol: what each answer of the coordinator means. Pure.

===========  ==================================================  ==========================================
state        is left when                                        for
===========  ==================================================  ==========================================
UNJOINED     poll has given up what must go and a join is sent   PREPARING
PREPARING    JoinGroup is answered                               COMPLETING
COMPLETING   SyncGroup is answered                               STABLE
STABLE       a rejoin is needed, poll has prepared it            PREPARING
any          the coordinator no longer knows the member or its   UNJOINED; member id and generation are
             generation, or poll was not called in time          forgotten (the id is kept if it may be good)
===========  ==================================================  ==========================================

A rejoin is *needed* once the coordinator says that the group rebalances, the subscription or the topics have changed,
or the user asks for it. Before it, poll *prepares*: it commits, and gives up partitions. An answer to a request of
another generation changes nothing, except what it says about the coordinator. Heartbeats go out in COMPLETING and
STABLE. Source: Kafka's ``AbstractCoordinator``, ``ConsumerCoordinator`` and ``Heartbeat``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from tidelog.client.errors import (
    CommitFailedError,
    RetriableCommitFailedError,
    TidelogError,
    exception_for,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition
from tidelog.proto.calls.group_api import NO_GENERATION, NO_MEMBER, JoinGroupResponse, SyncGroupResponse
from tidelog.proto.logs.consumer_protocol import PROTOCOL_TYPE

NEVER_MS: Final = 1 << 62


class MemberState(enum.Enum):
    UNJOINED = "unjoined"
    PREPARING = "preparing"
    """JoinGroup is in flight."""
    COMPLETING = "completing"
    """SyncGroup is in flight."""
    STABLE = "stable"


class Generation(NamedTuple):
    """How a request to the coordinator identifies its sender."""

    generation_id: int = NO_GENERATION
    """In the consumer protocol: the member's epoch."""
    member_id: str = NO_MEMBER
    protocol: str | None = None
    joined: int = 0
    """In the consumer protocol, where ids and epochs of a member's several lives may be equal: which life."""


NOBODY: Final = Generation()


class Next(enum.Enum):
    """What to do after a request's answer."""

    GO_ON = "continue"
    AGAIN = "join again immediately"
    LATER = "try again after the backoff"
    FIND = "look up the coordinator, then as LATER"
    STOP = "poll must prepare first, or was given an error"


class Pulse(enum.Enum):
    """What the heartbeat does next."""

    WAIT = "wait"
    SEND = "send a heartbeat"
    FIND = "find the coordinator"
    SESSION_OVER = "no heartbeat was answered for a session timeout: doubt the coordinator"
    POLL_OVERDUE = "poll was not called for max_poll_interval_ms: leave"


class GroupMembership(Protocol):
    """The part of a member's state machine that both group protocols share."""

    failure: TidelogError | None
    polled_ms: int
    rebalance_ended_ms: int | None
    heartbeat_sent_ms: int | None

    @property
    def heartbeat_interval_ms(self) -> int: ...

    @property
    def generation(self) -> Generation: ...

    @property
    def has_lost(self) -> bool:
        """Whether the consumer's partitions may belong to others by now."""

    def polled(self, now: int) -> None: ...

    def coordinator_found(self, now: int) -> None: ...

    def pulse(self, now: int, coordinator_known: bool) -> tuple[Pulse, int]:
        """Return what to do now, and for WAIT the latest time to check again."""

    def uncommittable(self) -> TidelogError | None:
        """Return why nothing can be committed now."""

    def may_commit(self, sender: Generation, partitions: Iterable[TopicPartition]) -> Generation | TidelogError:
        """Return how to send a commit that the member requested as ``sender``, or why it must not be sent."""

    def on_commit_error(self, sent: Generation, code: ErrorCode, message: str) -> TidelogError:
        """Return the error that a refused commit raises."""


MOVED: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
_FORGOTTEN: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
NOT_IN_GROUP: Final = (
    "the consumer is not part of an active group for automatic partition assignment: it was probably removed, "
    "because poll() was not called within max_poll_interval_ms or no heartbeat arrived within session_timeout_ms"
)
_REBALANCING: Final = "the group is rebalancing: call poll() to complete it, then commit again"


class Membership:
    """Times are in ms of a monotonic clock. For one thread at a time: its users hold the consumer's lock."""

    def __init__(
        self,
        *,
        session_timeout_ms: int,
        heartbeat_interval_ms: int,
        max_poll_interval_ms: int,
        retry_backoff_ms: int,
        static: bool,
    ) -> None:
        self._session_timeout_ms = session_timeout_ms
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self._max_poll_interval_ms = max_poll_interval_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._static = static
        self.state = MemberState.UNJOINED
        self.generation = NOBODY
        self.rejoin_needed = True
        self.rejoin_reason = ""
        self.needs_prepare = True
        """Poll has to prepare before the next join."""
        self.is_leader = False
        self.failure: TidelogError | None = None
        """The error that the next poll raises, once."""
        self.polled_ms = 0
        self.rebalance_started_ms: int | None = None
        self.rebalance_ended_ms: int | None = None
        self.heartbeat_sent_ms: int | None = None
        self._heartbeat_due_ms = 0
        self._session_over_ms = NEVER_MS

    # --- what others ask ----------------------------------------------------------------------------

    @property
    def stable_generation(self) -> Generation | None:
        """The generation for commits; ``None`` if there is none."""
        return self.generation if self.state is MemberState.STABLE else None

    @property
    def has_generation(self) -> bool:
        return self.generation.generation_id != NO_GENERATION and self.generation.member_id != NO_MEMBER

    @property
    def may_leave(self) -> bool:
        """Whether to tell the coordinator about leaving: static members keep their place (KIP-345)."""
        return not self._static and self.state is not MemberState.UNJOINED and self.generation.member_id != NO_MEMBER

    @property
    def rebalancing(self) -> bool:
        return self.state in (MemberState.PREPARING, MemberState.COMPLETING)

    @property
    def has_lost(self) -> bool:
        """Whether the consumer's partitions may belong to others by now."""
        return not self.has_generation or self.rebalancing

    def uncommittable(self) -> TidelogError | None:
        """Return why nothing can be committed now."""
        if self.state is MemberState.STABLE:
            return None
        if self.rebalancing:
            return exception_for(ErrorCode.REBALANCE_IN_PROGRESS, _REBALANCING)
        return CommitFailedError(f"nothing was committed: {NOT_IN_GROUP}")

    # --- what poll and the user do ------------------------------------------------------------------

    def polled(self, now: int) -> None:
        self.polled_ms = now

    def request_rejoin(self, reason: str) -> None:
        self.rejoin_needed = True
        self.rejoin_reason = reason

    def prepared(self) -> None:
        """Note that poll has given up the partitions that had to go."""
        self.needs_prepare = False
        self.is_leader = False

    def leave(self, reason: str) -> None:
        """End the membership, whatever the coordinator thinks."""
        self._reset(reason, forget_member=True)

    def _reset(self, reason: str, *, forget_member: bool) -> None:
        self.state = MemberState.UNJOINED
        self.generation = NOBODY if forget_member else Generation(member_id=self.generation.member_id)
        self.is_leader = False
        self.needs_prepare = True
        self.request_rejoin(reason)

    # --- joining --------------------------------------------------------------------------------------

    def joining(self, now: int) -> Generation:
        """Note that a JoinGroup is sent. Returns how it identifies its sender."""
        self.state = MemberState.PREPARING
        if self.rebalance_started_ms is None:
            self.rebalance_started_ms = now
        return self.generation

    def on_join(self, sent: Generation, response: JoinGroupResponse, now: int) -> Next:
        """Process a JoinGroup's answer; GO_ON means SyncGroup next."""
        code = response.error
        if self.state is not MemberState.PREPARING:
            return Next.STOP  # left in the meantime, or forgotten: poll has to tell what is lost before the next join
        if code is ErrorCode.NONE:
            if response.protocol_type not in ("", PROTOCOL_TYPE):
                return self._fail(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                    f"expected a group of protocol type {PROTOCOL_TYPE}, found {response.protocol_type}",
                )
            self.state = MemberState.COMPLETING
            self.generation = Generation(response.generation_id, response.member_id, response.protocol_name)
            self.is_leader = response.leader == response.member_id
            self._restart_timers(now)
            return Next.GO_ON
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.generation = Generation(member_id=response.member_id)
            self.request_rejoin("need to re-join with the given member id")
            return Next.AGAIN
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._reset("the coordinator does not know the member", forget_member=True)
            return Next.STOP
        if code in MOVED:
            return Next.FIND
        if code.retriable or code is ErrorCode.REBALANCE_IN_PROGRESS:
            return Next.LATER
        return self._fail(code, f"could not join the group: {response.error_message or code.name}")

    def on_sync(self, sent: Generation, response: SyncGroupResponse, now: int) -> Next:
        """Process a SyncGroup's answer; GO_ON means that the assignment is valid."""
        code = response.error
        if self.state is not MemberState.COMPLETING or self.generation != sent:
            return Next.STOP  # a heartbeat has learned in the meantime that the generation is over
        if code is ErrorCode.NONE:
            if response.protocol_type not in ("", PROTOCOL_TYPE) or response.protocol_name not in ("", sent.protocol):
                return self._fail(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                    f"expected protocol {PROTOCOL_TYPE} {sent.protocol}, "
                    f"found {response.protocol_type} {response.protocol_name}",
                )
            self.state = MemberState.STABLE
            self.rejoin_needed = False
            self.rejoin_reason = ""
            return Next.GO_ON
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            return Next.AGAIN
        if code in _FORGOTTEN:
            self._reset(f"{code.name} to a SyncGroup", forget_member=code is ErrorCode.UNKNOWN_MEMBER_ID)
            return Next.STOP
        if code in MOVED:
            return Next.FIND
        if code.retriable:
            return Next.LATER
        return self._fail(code, f"could not complete the rebalance: {response.error_message or code.name}")

    def rebalanced(self, now: int) -> int:
        """Note that the rebalance is complete. Returns how long it took."""
        started = now if self.rebalance_started_ms is None else self.rebalance_started_ms
        self.rebalance_started_ms = None
        self.rebalance_ended_ms = now
        return now - started

    def _fail(self, code: ErrorCode, message: str) -> Next:
        self.failure = exception_for(code, message)
        self.request_rejoin(f"rebalance failed: {code.name}")
        return Next.STOP

    # --- heartbeats -----------------------------------------------------------------------------------

    def pulse(self, now: int, coordinator_known: bool) -> tuple[Pulse, int]:
        """Return what to do now, and for WAIT the latest time to check again."""
        if self.state in (MemberState.UNJOINED, MemberState.PREPARING):
            return Pulse.WAIT, NEVER_MS
        overdue = self.polled_ms + self._max_poll_interval_ms
        if now >= overdue:
            return Pulse.POLL_OVERDUE, now
        if not coordinator_known:
            return Pulse.FIND, now
        if now >= self._session_over_ms:
            return Pulse.SESSION_OVER, now
        if now >= self._heartbeat_due_ms:
            return Pulse.SEND, now
        return Pulse.WAIT, min(overdue, self._heartbeat_due_ms, self._session_over_ms)

    def heartbeat_sent(self, now: int) -> Generation:
        self.heartbeat_sent_ms = now
        self._heartbeat_due_ms = now + self.heartbeat_interval_ms
        return self.generation

    def heartbeat_failed(self, now: int) -> None:
        """Note that there was no answer, or one that asks for a retry."""
        self._heartbeat_due_ms = min(self._heartbeat_due_ms, now + self._retry_backoff_ms)

    def coordinator_found(self, now: int) -> None:
        self._session_over_ms = now + self._session_timeout_ms

    def on_heartbeat(self, sent: Generation, code: ErrorCode, now: int) -> Next:
        """Process a heartbeat's answer; STOP means that the membership is over, and poll must know."""
        if code is ErrorCode.NONE:
            self._session_over_ms = now + self._session_timeout_ms
            return Next.GO_ON
        if code in MOVED:
            self.heartbeat_failed(now)
            return Next.FIND
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._session_over_ms = now + self._session_timeout_ms
            if self.state is MemberState.STABLE and self.generation == sent and not self.rejoin_needed:
                self.request_rejoin("the group is rebalancing")
                return Next.STOP
            return Next.GO_ON
        if code in _FORGOTTEN or code is ErrorCode.FENCED_INSTANCE_ID:
            if self.generation != sent:
                return Next.GO_ON
            self._reset(f"{code.name} to a heartbeat", forget_member=code is not ErrorCode.ILLEGAL_GENERATION)
            if code is ErrorCode.FENCED_INSTANCE_ID:
                self.failure = fenced()
            return Next.STOP
        if code.retriable:
            self.heartbeat_failed(now)
            return Next.LATER
        self.failure = exception_for(code, f"a heartbeat was refused: {code.name}")
        self.heartbeat_failed(now)
        return Next.STOP

    def _restart_timers(self, now: int) -> None:
        self._session_over_ms = now + self._session_timeout_ms
        self._heartbeat_due_ms = now + self.heartbeat_interval_ms
        self.polled_ms = now

    # --- commits --------------------------------------------------------------------------------------

    def may_commit(self, sender: Generation, partitions: Iterable[TopicPartition]) -> Generation | TidelogError:
        """Return how to send a commit that the member requested as ``sender``, or why it must not be sent."""
        error = self.uncommittable()
        if error is None and self.generation != sender:
            error = CommitFailedError("nothing was committed: the generation in which commit() was called is over")
        return error or sender

    def on_commit_error(self, sent: Generation, code: ErrorCode, message: str) -> TidelogError:
        """Return the error that a refused commit raises."""
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            if self.generation == sent:
                self.request_rejoin("a commit found the group rebalancing")
            return exception_for(code, _REBALANCING)
        if code in _FORGOTTEN:
            if self.generation != sent:
                return self._stale()
            self._reset(f"{code.name} to a commit", forget_member=code is ErrorCode.UNKNOWN_MEMBER_ID)
            return CommitFailedError(f"nothing was committed ({code.name}): {NOT_IN_GROUP}")
        if code is ErrorCode.FENCED_INSTANCE_ID:
            return fenced() if self.generation == sent else self._stale()
        if code.retriable:
            return RetriableCommitFailedError(f"the commit was not accepted; you may try again: {message or code.name}")
        return exception_for(code, message or code.name)

    def _stale(self) -> TidelogError:
        """Return the error for a refused commit of an earlier generation."""
        if self.rebalancing:
            return exception_for(ErrorCode.REBALANCE_IN_PROGRESS, _REBALANCING)
        return CommitFailedError(f"nothing was committed, the generation is over: {NOT_IN_GROUP}")


def fenced() -> TidelogError:
    return exception_for(
        ErrorCode.FENCED_INSTANCE_ID,
        "another consumer has joined with this group_instance_id; each instance needs one of its own",
    )
