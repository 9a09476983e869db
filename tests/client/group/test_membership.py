"""The effect of each coordinator's answer on a membership: Kafka's rules, one by one."""

from __future__ import annotations

from typing import TypeVar

import pytest

from tidelog.client.errors import CommitFailedError, RetriableCommitFailedError, TidelogError
from tidelog.client.group.membership import NEVER_MS, NOBODY, Generation, Membership, MemberState, Next, Pulse
from tidelog.model.errors import EXCEPTIONS, ErrorCode
from tidelog.proto.calls.group_api import JoinGroupResponse, SyncGroupResponse

MEMBER = Generation(7, "m-1", "range")
SESSION, BEAT, POLL, BACKOFF = 10_000, 3_000, 60_000, 100


T = TypeVar("T")


def current(value: T) -> T:
    """What a property says at this moment; mypy takes what was asserted of it for true ever after."""
    return value


def new(*, static: bool = False) -> Membership:
    return Membership(
        session_timeout_ms=SESSION,
        heartbeat_interval_ms=BEAT,
        max_poll_interval_ms=POLL,
        retry_backoff_ms=BACKOFF,
        static=static,
    )


def joined(now: int = 0, *, leader: str = "other", static: bool = False) -> Membership:
    """Between JoinGroup and SyncGroup."""
    membership = new(static=static)
    membership.polled(now)
    membership.prepared()
    sent = membership.joining(now)
    answer = JoinGroupResponse(ErrorCode.NONE, 7, "consumer", "range", leader, False, "m-1")
    assert membership.on_join(sent, answer, now) is Next.GO_ON
    return membership


def stable(now: int = 0, *, static: bool = False) -> Membership:
    membership = joined(now, static=static)
    assert membership.on_sync(MEMBER, SyncGroupResponse(ErrorCode.NONE, "consumer", "range", b"x"), now) is Next.GO_ON
    return membership


def test_a_member_joins_with_the_id_it_is_given() -> None:
    membership = new()
    assert current(membership.rejoin_needed)
    assert membership.needs_prepare
    assert not current(membership.may_leave)
    membership.prepared()
    assert membership.joining(5) == NOBODY
    assert current(membership.state) is MemberState.PREPARING
    step = membership.on_join(NOBODY, JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id="m-1"), 6)
    assert step is Next.AGAIN
    sent = membership.joining(7)
    assert sent == Generation(-1, "m-1", None)
    answer = JoinGroupResponse(ErrorCode.NONE, 7, "consumer", "range", "m-1", False, "m-1")
    assert membership.on_join(sent, answer, 8) is Next.GO_ON
    assert current(membership.state) is MemberState.COMPLETING
    assert membership.is_leader
    assert current(membership.stable_generation) is None
    assert membership.on_sync(MEMBER, SyncGroupResponse(ErrorCode.NONE, "", "", b"x"), 9) is Next.GO_ON
    assert current(membership.stable_generation) == MEMBER
    assert not current(membership.rejoin_needed)
    assert membership.may_leave
    assert membership.rebalanced(9) == 4
    assert membership.rebalance_ended_ms == 9


@pytest.mark.parametrize(
    ("code", "step"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Next.LATER),
        (ErrorCode.REBALANCE_IN_PROGRESS, Next.LATER),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, Next.FIND),
        (ErrorCode.NOT_COORDINATOR, Next.FIND),
        (ErrorCode.UNKNOWN_MEMBER_ID, Next.STOP),
        (ErrorCode.FENCED_INSTANCE_ID, Next.STOP),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, Next.STOP),
        (ErrorCode.INVALID_SESSION_TIMEOUT, Next.STOP),
        (ErrorCode.INVALID_GROUP_ID, Next.STOP),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, Next.STOP),
        (ErrorCode.UNKNOWN_SERVER_ERROR, Next.STOP),
    ],
)
def test_what_a_refused_join_means(code: ErrorCode, step: Next) -> None:
    membership = stable()
    membership.request_rejoin("test")
    membership.prepared()
    sent = membership.joining(1)
    assert sent == MEMBER
    assert membership.on_join(sent, JoinGroupResponse(code), 2) is step
    assert current(membership.rejoin_needed)
    if code is ErrorCode.UNKNOWN_MEMBER_ID:
        assert (membership.state, membership.generation) == (MemberState.UNJOINED, NOBODY)
        assert membership.needs_prepare
        assert membership.failure is None
    else:
        assert membership.generation == MEMBER
        assert not membership.needs_prepare
        fatal = None if step is not Next.STOP else type(membership.failure)
        assert fatal is (None if step is not Next.STOP else EXCEPTIONS[code])


@pytest.mark.parametrize(
    ("code", "step"),
    [
        (ErrorCode.REBALANCE_IN_PROGRESS, Next.AGAIN),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, Next.FIND),
        (ErrorCode.NOT_COORDINATOR, Next.FIND),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Next.LATER),
        (ErrorCode.UNKNOWN_MEMBER_ID, Next.STOP),
        (ErrorCode.ILLEGAL_GENERATION, Next.STOP),
        (ErrorCode.FENCED_INSTANCE_ID, Next.STOP),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, Next.STOP),
    ],
)
def test_what_a_refused_sync_means(code: ErrorCode, step: Next) -> None:
    membership = joined()
    assert membership.on_sync(MEMBER, SyncGroupResponse(code), 1) is step
    assert current(membership.rejoin_needed)
    if code is ErrorCode.UNKNOWN_MEMBER_ID:
        assert membership.generation == NOBODY
        assert membership.needs_prepare
    elif code is ErrorCode.ILLEGAL_GENERATION:
        assert membership.generation == Generation(-1, "m-1", None), "the member id may still be good"
        assert membership.needs_prepare
    elif step is Next.STOP:
        assert isinstance(membership.failure, EXCEPTIONS[code])


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NOT_COORDINATOR],
)
def test_who_is_forgotten_while_it_rejoins_does_not_join_before_poll_has_told_what_is_lost(code: ErrorCode) -> None:
    """Otherwise it commits, in its new generation, what it read of partitions that are another's by now."""
    membership = stable()
    membership.request_rejoin("test")
    membership.prepared()
    sent = membership.joining(1)
    membership.on_commit_error(MEMBER, ErrorCode.UNKNOWN_MEMBER_ID, "")
    answer = JoinGroupResponse(code, 8, "consumer", "range", "other", False, "m-1")
    assert membership.on_join(sent, answer, 2) is Next.STOP
    assert membership.needs_prepare
    assert membership.has_lost
    membership = joined()
    membership.on_heartbeat(MEMBER, ErrorCode.UNKNOWN_MEMBER_ID, 1)
    assert membership.on_sync(MEMBER, SyncGroupResponse(code), 2) is Next.STOP
    assert membership.needs_prepare


def test_another_protocol_than_the_group_chose_is_an_error() -> None:
    membership = joined()
    assert membership.on_sync(MEMBER, SyncGroupResponse(ErrorCode.NONE, "consumer", "sticky", b""), 1) is Next.STOP
    assert isinstance(membership.failure, EXCEPTIONS[ErrorCode.INCONSISTENT_GROUP_PROTOCOL])
    membership = new()
    sent = membership.joining(0)
    answer = JoinGroupResponse(ErrorCode.NONE, 1, "connect", "range", "x", False, "m-1")
    assert membership.on_join(sent, answer, 0) is Next.STOP
    assert "found connect" in str(membership.failure)


def test_answers_that_come_after_a_leave_change_nothing() -> None:
    membership = new()
    sent = membership.joining(0)
    membership.leave("closing")
    answer = JoinGroupResponse(ErrorCode.NONE, 7, "consumer", "range", "x", False, "m-1")
    assert membership.on_join(sent, answer, 1) is Next.STOP
    assert membership.generation == NOBODY
    membership = joined()
    membership.leave("closing")
    assert membership.on_sync(MEMBER, SyncGroupResponse(ErrorCode.NONE, "", "", b"x"), 1) is Next.STOP
    assert current(membership.state) is MemberState.UNJOINED


def test_heartbeats_keep_the_session_and_tell_of_rebalances() -> None:
    membership = stable(1_000)
    assert membership.pulse(1_000, True) == (Pulse.WAIT, 1_000 + BEAT)
    assert membership.pulse(1_000 + BEAT, True)[0] is Pulse.SEND
    assert membership.heartbeat_sent(1_000 + BEAT) == MEMBER
    assert membership.pulse(1_001 + BEAT, True) == (Pulse.WAIT, 1_000 + 2 * BEAT)
    assert membership.on_heartbeat(MEMBER, ErrorCode.NONE, 5_000) is Next.GO_ON
    assert membership.pulse(5_000 + SESSION, True)[0] is Pulse.SESSION_OVER
    older = Generation(6, "m-1", "range")
    assert membership.on_heartbeat(older, ErrorCode.REBALANCE_IN_PROGRESS, 6_000) is Next.GO_ON, "it is over"
    assert not current(membership.rejoin_needed)
    assert membership.on_heartbeat(MEMBER, ErrorCode.REBALANCE_IN_PROGRESS, 6_000) is Next.STOP
    assert current(membership.rejoin_needed)
    assert current(membership.state) is MemberState.STABLE, "it goes on until poll rejoins"
    assert membership.on_heartbeat(MEMBER, ErrorCode.REBALANCE_IN_PROGRESS, 6_001) is Next.GO_ON, "said once"
    assert membership.pulse(6_002 + SESSION - 2, True)[0] is Pulse.SEND, "a rebalance is a sign of life, too"


def test_a_rebalance_heard_of_while_syncing_is_nothing_new() -> None:
    membership = joined()
    assert membership.on_heartbeat(MEMBER, ErrorCode.REBALANCE_IN_PROGRESS, 1) is Next.GO_ON
    assert current(membership.state) is MemberState.COMPLETING


def test_no_heartbeat_without_a_generation() -> None:
    membership = new()
    assert membership.pulse(10**9, True) == (Pulse.WAIT, NEVER_MS)
    membership.joining(0)
    assert membership.pulse(10**9, True) == (Pulse.WAIT, NEVER_MS)


@pytest.mark.parametrize(
    ("code", "left"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, NOBODY),
        (ErrorCode.ILLEGAL_GENERATION, Generation(-1, "m-1", None)),
        (ErrorCode.FENCED_INSTANCE_ID, NOBODY),
    ],
)
def test_a_heartbeat_that_learns_that_the_membership_is_over(code: ErrorCode, left: Generation) -> None:
    membership = stable(static=True)
    assert membership.on_heartbeat(Generation(6, "m-1", "range"), code, 1) is Next.GO_ON, "of an older generation"
    assert membership.generation == MEMBER
    assert membership.on_heartbeat(MEMBER, code, 1) is Next.STOP
    assert membership.generation == left
    assert current(membership.rejoin_needed)
    assert membership.needs_prepare
    assert not membership.has_generation
    assert (membership.failure is not None) == (code is ErrorCode.FENCED_INSTANCE_ID)


def test_a_coordinator_that_moved_is_looked_for() -> None:
    membership = stable()
    assert membership.on_heartbeat(MEMBER, ErrorCode.NOT_COORDINATOR, 100) is Next.FIND
    assert membership.pulse(100, False)[0] is Pulse.FIND
    membership.coordinator_found(150)
    assert membership.pulse(150, True) == (Pulse.WAIT, 100 + BACKOFF)
    assert membership.on_heartbeat(MEMBER, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 200) is Next.LATER
    assert membership.on_heartbeat(MEMBER, ErrorCode.UNKNOWN_SERVER_ERROR, 200) is Next.STOP
    assert isinstance(membership.failure, TidelogError)


def test_poll_must_be_called_in_time() -> None:
    membership = stable(0)
    membership.polled(5_000)
    for now in range(0, 5_000 + POLL, 1_000):
        if membership.pulse(now, True)[0] is Pulse.SEND:
            membership.heartbeat_sent(now)
            membership.on_heartbeat(MEMBER, ErrorCode.NONE, now)
    assert membership.pulse(5_000 + POLL - 1, True)[0] is not Pulse.POLL_OVERDUE
    assert membership.pulse(5_000 + POLL, True)[0] is Pulse.POLL_OVERDUE
    assert membership.pulse(5_000 + POLL, False)[0] is Pulse.POLL_OVERDUE
    membership.leave("overdue")
    assert membership.pulse(5_000 + POLL, True) == (Pulse.WAIT, NEVER_MS)
    assert isinstance(membership.uncommittable(), CommitFailedError)


def test_static_members_do_not_leave() -> None:
    assert stable().may_leave
    assert not stable(static=True).may_leave


def test_when_nothing_can_be_committed() -> None:
    membership = new()
    assert isinstance(membership.uncommittable(), CommitFailedError)
    membership.joining(0)
    assert isinstance(membership.uncommittable(), EXCEPTIONS[ErrorCode.REBALANCE_IN_PROGRESS])
    assert isinstance(joined().uncommittable(), EXCEPTIONS[ErrorCode.REBALANCE_IN_PROGRESS])
    assert stable().uncommittable() is None


@pytest.mark.parametrize(
    ("code", "same", "older"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, CommitFailedError, CommitFailedError),
        (ErrorCode.ILLEGAL_GENERATION, CommitFailedError, CommitFailedError),
        (ErrorCode.FENCED_INSTANCE_ID, EXCEPTIONS[ErrorCode.FENCED_INSTANCE_ID], CommitFailedError),
        (
            ErrorCode.REBALANCE_IN_PROGRESS,
            EXCEPTIONS[ErrorCode.REBALANCE_IN_PROGRESS],
            EXCEPTIONS[ErrorCode.REBALANCE_IN_PROGRESS],
        ),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, RetriableCommitFailedError, RetriableCommitFailedError),
        (ErrorCode.NOT_COORDINATOR, RetriableCommitFailedError, RetriableCommitFailedError),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, RetriableCommitFailedError, RetriableCommitFailedError),
        (
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
            EXCEPTIONS[ErrorCode.OFFSET_METADATA_TOO_LARGE],
            EXCEPTIONS[ErrorCode.OFFSET_METADATA_TOO_LARGE],
        ),
    ],
)
def test_what_a_refused_commit_means(code: ErrorCode, same: type[Exception], older: type[Exception]) -> None:
    membership = stable()
    assert type(membership.on_commit_error(MEMBER, code, "")) is same
    lost = code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
    assert membership.has_generation != lost
    assert current(membership.rejoin_needed) == (lost or code is ErrorCode.REBALANCE_IN_PROGRESS)
    membership = stable()
    assert type(membership.on_commit_error(Generation(6, "m-1", "range"), code, "")) is older
    assert membership.generation == MEMBER, "a zombie's commit says nothing of the present generation"
    assert not current(membership.rejoin_needed)


def test_a_commit_of_the_generation_before_is_to_be_tried_again_after_the_rebalance() -> None:
    for code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID):
        error = joined().on_commit_error(Generation(6, "m-1", "range"), code, "")
        assert isinstance(error, EXCEPTIONS[ErrorCode.REBALANCE_IN_PROGRESS])
