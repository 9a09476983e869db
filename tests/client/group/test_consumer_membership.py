"""The effect of each answer of a coordinator that assigns on a membership (KIP-848), one by one."""

from __future__ import annotations

from typing import TypeVar

import pytest

from tidelog.client.errors import CommitFailedError, RetriableCommitFailedError, TidelogError
from tidelog.client.group.consumer_membership import Beat, ConsumerMembership, Interest, MemberState, Target
from tidelog.client.group.membership import NEVER_MS, NOBODY, Generation, Next, Pulse
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId, TopicPartition
from tidelog.proto.calls.consumer_group_api import ConsumerGroupHeartbeatResponse, IdAssignment, TopicIdPartitions

TOPIC = TopicId(b"7" * 16)
SOME = Interest(frozenset({"t"}))
INTERVAL, POLL = 200, 10_000
AT = [TopicPartition("t", number) for number in range(4)]
T = TypeVar("T")


def current(value: T) -> T:
    """What a property says at this moment; mypy takes what was asserted of it for true ever after."""
    return value


def answer(epoch: int, *partitions: int, silent: bool = False) -> ConsumerGroupHeartbeatResponse:
    told = IdAssignment((TopicIdPartitions(TOPIC, partitions),) if partitions else ())
    return ConsumerGroupHeartbeatResponse(
        ErrorCode.NONE,
        member_id="m",
        member_epoch=epoch,
        heartbeat_interval_ms=INTERVAL,
        assignment=None if silent else told,
    )


def refusal(code: ErrorCode) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(code, "as the coordinator says")


def beat(membership: ConsumerMembership, now: int = 0) -> Beat:
    sent = membership.heartbeat(now)
    assert sent is not None
    return sent


def take(membership: ConsumerMembership, *partitions: int) -> None:
    assert membership.target is not None
    membership.take(membership.target, {AT[number]: TOPIC for number in partitions}, 0)


def new(*, static: bool = False) -> ConsumerMembership:
    membership = ConsumerMembership(member_id="m", max_poll_interval_ms=POLL, static=static)
    membership.polled(0)
    return membership


def stable(*partitions: int, epoch: int = 5, static: bool = False) -> ConsumerMembership:
    membership = new(static=static)
    assert membership.want(SOME, 0)
    assert membership.on_heartbeat(beat(membership), answer(epoch, *partitions), 0) is Next.STOP
    take(membership, *partitions)
    assert membership.on_heartbeat(beat(membership), answer(epoch, silent=True), 0) is Next.GO_ON
    assert current(membership.state) is MemberState.STABLE
    return membership


def test_a_join_says_everything_and_what_follows_only_what_is_new() -> None:
    membership = new()
    assert membership.pulse(0, True) == (Pulse.WAIT, NEVER_MS)
    assert current(membership.state) is MemberState.OUT
    assert membership.want(SOME, 0)
    assert current(membership.state) is MemberState.JOINING
    assert membership.pulse(0, False) == (Pulse.FIND, 0)
    assert membership.pulse(0, True) == (Pulse.SEND, 0)
    joins = beat(membership)
    assert (joins.epoch, joins.whole, joins.wanted, joins.owned) == (0, True, SOME, frozenset())
    assert current(membership.generation) == NOBODY
    assert membership.on_heartbeat(joins, answer(3, 0, 1), 10) is Next.STOP
    assert current(membership.state) is MemberState.RECONCILING
    quiet = beat(membership, 20)
    assert (quiet.epoch, quiet.whole, quiet.wanted, quiet.owned) == (3, False, None, None)
    take(membership, 0, 1)
    assert current(membership.state) is MemberState.ACKNOWLEDGING
    assert membership.pulse(20, True) == (Pulse.SEND, 20), "it tells at once what it has"
    told = beat(membership, 30)
    assert told.owned == frozenset({(TOPIC, 0), (TOPIC, 1)})
    assert membership.on_heartbeat(told, answer(3, silent=True), 40) is Next.GO_ON
    assert current(membership.state) is MemberState.STABLE
    assert membership.pulse(40, True) == (Pulse.WAIT, 40 + INTERVAL)
    assert current(membership.generation) == Generation(3, "m", None, 1)


def test_after_a_lost_answer_it_says_everything_and_hears_everything() -> None:
    membership = stable(0, 1)
    lost = beat(membership)
    membership.heartbeat_failed(lost, 0)
    again = beat(membership)
    assert (again.epoch, again.whole, again.wanted) == (5, True, SOME)
    assert again.owned == frozenset({(TOPIC, 0), (TOPIC, 1)})
    assert membership.on_heartbeat(again, answer(5, 0, 1), 0) is Next.GO_ON, "it has that already, and has said so"
    assert membership.on_heartbeat(beat(membership), answer(6, 0), 0) is Next.STOP
    assert current(membership.state) is MemberState.RECONCILING


def test_a_target_that_is_what_it_had_before_is_acknowledged_too() -> None:
    """Two answers while poll was busy: first more, then as before. The coordinator waits to hear that the member does
    not have what it was offered in between."""
    membership = stable(0)
    membership.on_heartbeat(beat(membership), answer(6, 0, 1), 0)
    membership.on_heartbeat(beat(membership), answer(6, 0), 0)
    assert current(membership.state) is MemberState.RECONCILING
    take(membership, 0)
    assert beat(membership).owned == frozenset({(TOPIC, 0)})


def test_what_poll_took_of_an_older_target_does_not_count_for_a_newer_one() -> None:
    membership = stable(0, 1)
    membership.on_heartbeat(beat(membership), answer(6, 0), 0)
    older = membership.target
    assert older is not None
    membership.on_heartbeat(beat(membership), answer(6), 0)
    assert membership.take(older, {AT[0]: TOPIC}, 0) is None
    assert current(membership.state) is MemberState.RECONCILING


def test_a_partition_whose_topic_was_not_known_is_told_later() -> None:
    membership = stable(0)
    membership.on_heartbeat(beat(membership), answer(6, 0, 1), 0)
    take(membership, 0)
    membership.on_heartbeat(beat(membership), answer(6, silent=True), 0)
    take(membership, 0, 1)
    assert current(membership.state) is MemberState.ACKNOWLEDGING
    assert beat(membership).owned == frozenset({(TOPIC, 0), (TOPIC, 1)})


def test_an_answer_of_an_earlier_life_changes_nothing() -> None:
    """KAFKA-19335: a member that had left and joined anew took the old answer's epoch, and joined with -1."""
    membership = stable(0)
    old = beat(membership)
    assert membership.leave() == -1
    assert membership.want(SOME, 0)
    for late in (answer(9, 3), answer(-1, silent=True), refusal(ErrorCode.UNKNOWN_MEMBER_ID)):
        assert membership.on_heartbeat(old, late, 0) is Next.GO_ON
    membership.heartbeat_failed(old, 0)
    assert current(membership.state) is MemberState.JOINING
    joins = beat(membership)
    assert (joins.epoch, joins.owned) == (0, frozenset())


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
def test_a_fenced_member_tells_first_and_joins_anew(code: ErrorCode) -> None:
    membership = stable(0)
    assert membership.on_heartbeat(beat(membership), refusal(code), 0) is Next.STOP
    assert current(membership.state) is MemberState.FENCED
    assert membership.failure is None
    assert membership.has_lost
    assert not membership.want(SOME, 0), "not before the listener knows"
    assert membership.heartbeat(0) is None
    membership.told_lost()
    assert membership.want(SOME, 0)
    assert beat(membership)._replace(joined=0) == Beat(0, 0, True, SOME, frozenset(), 0)


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_coordinator_that_moved_is_looked_up(code: ErrorCode) -> None:
    membership = stable(0)
    assert membership.on_heartbeat(beat(membership), refusal(code), 0) is Next.FIND
    assert beat(membership).whole


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNRELEASED_INSTANCE_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ],
)
def test_a_refused_member_says_why_and_is_none(code: ErrorCode) -> None:
    membership = new()
    membership.want(SOME, 0)
    assert membership.on_heartbeat(beat(membership), refusal(code), 0) is Next.STOP
    assert membership.failure is not None
    assert membership.failure.code is code
    assert current(membership.state) is MemberState.FENCED
    assert membership.leave() is None, "nobody is left there"


def test_a_late_poll_ends_the_membership_and_a_static_one_keeps_its_place() -> None:
    membership = stable(0, static=True)
    assert membership.pulse(POLL, True) == (Pulse.POLL_OVERDUE, POLL)
    assert membership.late() == -2
    assert current(membership.state) is MemberState.FENCED
    assert membership.pulse(POLL, True) == (Pulse.WAIT, NEVER_MS)


def test_a_changed_subscription_is_told_at_once() -> None:
    membership = stable(0)
    by_pattern = Interest(frozenset(), "t.*")
    assert membership.want(by_pattern, 5)
    assert membership.pulse(5, True) == (Pulse.SEND, 5)
    sent = beat(membership)
    assert (sent.wanted, sent.whole) == (by_pattern, False)
    membership.on_heartbeat(sent, answer(6, silent=True), 5)
    assert beat(membership).wanted is None


# --- commits ----------------------------------------------------------------------------------------


def test_a_commit_goes_out_under_the_newest_epoch_if_nobody_else_can_have_had_the_partition() -> None:
    membership = stable(0, 1)
    sender = membership.generation
    membership.on_heartbeat(beat(membership), answer(6, 0, 2), 0)
    assert membership.may_commit(sender, [AT[0]]) == membership.generation
    take(membership, 0)
    membership.on_heartbeat(beat(membership), answer(7, 0, 1), 0)
    take(membership, 0, 1)
    assert membership.may_commit(sender, [AT[0]]) == membership.generation
    assert membership.may_commit(sender, [AT[0], AT[1]]) == sender, "another may have had 1 in between"


def test_a_commit_of_an_earlier_life_is_not_sent() -> None:
    membership = stable(0)
    sender = membership.generation
    membership.on_heartbeat(beat(membership), refusal(ErrorCode.FENCED_MEMBER_EPOCH), 0)
    assert isinstance(membership.may_commit(sender, [AT[0]]), CommitFailedError)
    membership.told_lost()
    membership.want(SOME, 0)
    membership.on_heartbeat(beat(membership), answer(5, 0), 0)
    assert membership.generation._replace(joined=0) == sender._replace(joined=0)
    assert isinstance(membership.may_commit(sender, [AT[0]]), CommitFailedError)


@pytest.mark.parametrize(
    ("epoch", "code", "kind"),
    [
        (5, ErrorCode.STALE_MEMBER_EPOCH, RetriableCommitFailedError),
        (4, ErrorCode.STALE_MEMBER_EPOCH, CommitFailedError),
        (5, ErrorCode.UNKNOWN_MEMBER_ID, CommitFailedError),
        (5, ErrorCode.NOT_COORDINATOR, RetriableCommitFailedError),
        (5, ErrorCode.OFFSET_METADATA_TOO_LARGE, TidelogError),
    ],
)
def test_what_a_refused_commit_means(epoch: int, code: ErrorCode, kind: type[TidelogError]) -> None:
    membership = stable(0)
    sent = membership.generation._replace(generation_id=epoch)
    error = membership.on_commit_error(sent, code, "t-0")
    assert isinstance(error, kind)
    assert error.retriable == (kind is RetriableCommitFailedError)


def test_a_target_has_a_number_of_its_own_each_time() -> None:
    membership = stable(0)
    first = membership.target
    membership.on_heartbeat(beat(membership), answer(6), 0)
    take(membership)
    membership.on_heartbeat(beat(membership), answer(7, 0), 0)
    assert membership.target == Target(3, frozenset({(TOPIC, 0)}))
    assert first is not None
    assert first.partitions == membership.target.partitions
