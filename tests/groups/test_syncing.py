"""SyncGroup, Heartbeat, LeaveGroup, sessions and rebalance timeouts."""

from __future__ import annotations

import pytest

from tidelog.groups.state.transitions import GroupState
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.group_api import JoinGroupResponse

from .conftest import Desk


def _joined(crowd: Desk, count: int = 2, **changes: int) -> list[JoinGroupResponse]:
    """A group in CompletingRebalance; the answers, the leader's first."""
    waits = [crowd.newcomer(**changes)[1] for _ in range(count)]
    crowd.pass_time(6_000)
    return sorted((crowd.answers[waiter] for waiter in waits), key=lambda answer: not answer.members)


def test_followers_wait_for_the_leader(crowd: Desk) -> None:
    leader, follower = _joined(crowd)
    waits = crowd.sync(follower.member_id, 1)
    assert waits not in crowd.answers
    answer = crowd.sync(leader.member_id, 1, {leader.member_id: b"L", follower.member_id: b"F"})
    assert crowd.answers[answer].assignment == b"L"
    assert crowd.answers[waits].assignment == b"F"
    assert (crowd.answers[waits].protocol_type, crowd.answers[waits].protocol_name) == ("consumer", "range")
    assert crowd.group().state is GroupState.STABLE


def test_the_assignment_is_stored_before_anybody_hears_of_it(crowd: Desk) -> None:
    leader, follower = _joined(crowd)
    crowd.auto = False
    waits = [crowd.sync(follower.member_id, 1), crowd.sync(leader.member_id, 1, {follower.member_id: b"F"})]
    assert not set(waits) & set(crowd.answers)
    assert crowd.group().state is GroupState.COMPLETING_REBALANCE
    crowd.end()
    assert [crowd.answers[waiter].assignment for waiter in waits] == [b"F", b""]
    crowd.fail_over()
    assert crowd.group().state is GroupState.STABLE
    assert crowd.answers[crowd.sync(follower.member_id, 1)].assignment == b"F"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_an_assignment_that_cannot_be_stored(crowd: Desk, error: ErrorCode, told: ErrorCode) -> None:
    leader, follower = _joined(crowd)
    crowd.auto = False
    waits = [crowd.sync(follower.member_id, 1), crowd.sync(leader.member_id, 1, {follower.member_id: b"F"})]
    crowd.end(error)
    assert [crowd.error(waiter) for waiter in waits] == [told, told]
    assert crowd.group().state is GroupState.PREPARING_REBALANCE
    assert [crowd.group().members[member.member_id].assignment for member in (leader, follower)] == [b"", b""]


def test_an_assignment_that_is_not_replicated_in_time_is_void(crowd: Desk) -> None:
    leader, follower = _joined(crowd)
    crowd.auto = False
    waits = crowd.sync(leader.member_id, 1, {})
    crowd.pass_time(5_000)
    assert crowd.error(waits) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert crowd.group().state is GroupState.PREPARING_REBALANCE
    again = [crowd.join(leader.member_id), crowd.join(follower.member_id)]
    assert [crowd.answers[waiter].generation_id for waiter in again] == [2, 2]
    crowd.end()  # the first one comes through after all
    assert crowd.group().state is GroupState.COMPLETING_REBALANCE


def test_a_rebalance_makes_an_assignment_on_its_way_void(crowd: Desk) -> None:
    leader, follower = _joined(crowd)
    crowd.auto = False
    waits = crowd.sync(leader.member_id, 1, {follower.member_id: b"old"})
    crowd.join(follower.member_id, protocols={"range": b"changed"})
    assert crowd.error(waits) is ErrorCode.REBALANCE_IN_PROGRESS
    crowd.join(leader.member_id)
    crowd.end()
    assert crowd.group().state is GroupState.COMPLETING_REBALANCE
    again = crowd.sync(leader.member_id, 2, {follower.member_id: b"new"})
    crowd.end()
    assert crowd.error(again) is ErrorCode.NONE
    assert crowd.group().members[follower.member_id].assignment == b"new"


def test_the_first_assignment_counts(crowd: Desk) -> None:
    leader, follower = _joined(crowd)
    crowd.auto = False
    first = crowd.sync(leader.member_id, 1, {follower.member_id: b"1"})
    second = crowd.sync(leader.member_id, 1, {follower.member_id: b"2"})
    assert crowd.error(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert len(crowd.appends) == 1
    crowd.end()
    assert crowd.error(second) is ErrorCode.NONE
    assert crowd.answers[crowd.sync(follower.member_id, 1)].assignment == b"1"


def test_syncs_that_are_refused(crowd: Desk) -> None:
    assert crowd.error(crowd.sync("nobody", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    leader, follower = crowd.stable(2)
    assert crowd.error(crowd.sync("nobody", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert crowd.error(crowd.sync(leader, 0)) is ErrorCode.ILLEGAL_GENERATION
    assert crowd.error(crowd.sync(leader, 1, protocol_name="other")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert crowd.error(crowd.sync(leader, 1, protocol_type="other")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert crowd.error(crowd.sync(leader, 1, protocol_name="range", protocol_type="consumer")) is ErrorCode.NONE
    crowd.join(leader)
    assert crowd.error(crowd.sync(follower, 1)) is ErrorCode.REBALANCE_IN_PROGRESS


# --- Heartbeats ---------------------------------------------------------------------------------------


def test_heartbeats(crowd: Desk) -> None:
    assert crowd.heartbeat("nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    leader, follower = _joined(crowd)
    assert crowd.heartbeat(leader.member_id, 1) is ErrorCode.NONE  # CompletingRebalance
    assert crowd.heartbeat(leader.member_id, 0) is ErrorCode.ILLEGAL_GENERATION
    crowd.synced([leader, follower])
    assert crowd.heartbeat(leader.member_id, 1) is ErrorCode.NONE
    crowd.join(leader.member_id)
    assert crowd.heartbeat(follower.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_session_lasts_as_long_as_heartbeats_come(crowd: Desk) -> None:
    leader, follower = crowd.stable(2)
    for _ in range(10):
        crowd.pass_time(9_999)
        assert crowd.heartbeat(leader, 1) is ErrorCode.NONE
        assert crowd.heartbeat(follower, 1) is ErrorCode.NONE
    crowd.pass_time(9_999)
    crowd.heartbeat(leader, 1)
    crowd.pass_time(1)
    assert crowd.group().state is GroupState.PREPARING_REBALANCE
    assert list(crowd.group().members) == [leader]
    assert crowd.heartbeat(follower, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_last_session_that_ends_leaves_an_empty_group(desk: Desk) -> None:
    desk.stable()
    desk.pass_time(10_000)
    assert desk.group().state is GroupState.EMPTY
    assert desk.group().generation == 2
    desk.fail_over()
    assert (desk.group().state, desk.group().generation) == (GroupState.EMPTY, 2)


def test_commits_keep_a_session(desk: Desk) -> None:
    (member_id,) = desk.stable()
    for _ in range(3):
        desk.pass_time(9_999)
        assert desk.error(desk.commit({"t-0": 1}, member_id, 1)) is ErrorCode.NONE
    assert desk.group().members


def test_who_waits_for_the_group_needs_no_heartbeats(crowd: Desk) -> None:
    leader, follower = crowd.stable(2, rebalance=100_000)
    waits = crowd.join(leader, rebalance=100_000)
    for _ in range(9):
        crowd.pass_time(9_999)
        crowd.heartbeat(follower, 1)
    assert waits not in crowd.answers
    again = crowd.join(follower, rebalance=100_000)
    assert crowd.answers[waits].generation_id == crowd.answers[again].generation_id == 2


def test_what_falls_together_with_the_end_of_the_join_phase_counts_anew(crowd: Desk) -> None:
    """A session that comes due in the same instant in which the member is told of its generation."""
    leader, follower = crowd.stable(2, rebalance=10_000, session=10_000)
    crowd.join(leader, rebalance=10_000)
    late = crowd.join(follower, rebalance=10_000, protocols={"range": b"x"})
    assert crowd.answers[late].generation_id == 2
    crowd.sync(leader, 2, {})
    crowd.sync(follower, 2)
    waits = crowd.join(leader, rebalance=10_000)
    crowd.heartbeat(follower, 2)
    crowd.pass_time(10_000)
    assert crowd.answers[waits].generation_id == 3
    assert list(crowd.group().members) == [leader]


# --- Time limits of a rebalance -----------------------------------------------------------------------


def test_members_that_miss_the_rebalance_are_dropped(crowd: Desk) -> None:
    leader, follower = crowd.stable(2, rebalance=20_000, session=60_000)
    waits = crowd.join(follower, rebalance=20_000, session=60_000, protocols={"range": b"x"})
    crowd.pass_time(19_999)
    crowd.heartbeat(leader, 1)
    assert waits not in crowd.answers
    crowd.pass_time(1)
    answer = crowd.answers[waits]
    assert (answer.generation_id, answer.leader) == (2, follower)
    assert [member.member_id for member in answer.members] == [follower]
    assert crowd.heartbeat(leader, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_longest_rebalance_timeout_counts(crowd: Desk) -> None:
    waits = [crowd.newcomer(rebalance=ms, session=60_000)[1] for ms in (10_000, 30_000)]
    crowd.pass_time(6_000)
    members = crowd.synced([crowd.answers[waiter] for waiter in waits])
    crowd.join(members[0], rebalance=10_000, session=60_000)
    crowd.pass_time(29_999)
    assert crowd.group().state is GroupState.PREPARING_REBALANCE
    crowd.pass_time(1)
    assert crowd.group().state is GroupState.COMPLETING_REBALANCE


def test_members_that_do_not_sync_are_dropped(crowd: Desk) -> None:
    leader, _ = _joined(crowd, rebalance=20_000, session=60_000)
    crowd.sync(leader.member_id, 1, {})
    assert crowd.group().state is GroupState.STABLE
    crowd.pass_time(20_000)
    assert list(crowd.group().members) == [leader.member_id]
    assert crowd.group().state is GroupState.PREPARING_REBALANCE


def test_a_leader_that_does_not_assign_is_dropped(crowd: Desk) -> None:
    _, follower = _joined(crowd, rebalance=20_000, session=60_000)
    waits = crowd.sync(follower.member_id, 1)
    crowd.pass_time(20_000)
    assert crowd.error(waits) is ErrorCode.REBALANCE_IN_PROGRESS
    assert list(crowd.group().members) == [follower.member_id]
    assert crowd.group().leader == follower.member_id


def test_all_that_synced_stay(crowd: Desk) -> None:
    crowd.stable(2, rebalance=20_000, session=60_000)
    crowd.pass_time(59_999)
    assert crowd.group().state is GroupState.STABLE


# --- Leaving ------------------------------------------------------------------------------------------


def test_members_leave_together_and_the_group_rebalances_once(crowd: Desk) -> None:
    leader, _, third = crowd.stable(2, ("a",))
    dynamic = [member for member in (leader, third) if crowd.instance_of(member) is None]
    begun = crowd.shard.state.counters.begun_rebalances
    response = crowd.leave((dynamic[0], None), ("", "a"), ("nobody", None), ("", "unknown"), ("", None))
    assert [member.error for member in response.members] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert len(crowd.group().members) == 1
    assert crowd.shard.state.counters.begun_rebalances == begun + 1


def test_who_leaves_while_it_waits_is_answered(crowd: Desk) -> None:
    leader, follower = crowd.stable(2)
    waits = crowd.join(follower, protocols={"range": b"x"})
    crowd.leave((follower, None))
    assert crowd.error(waits) is ErrorCode.UNKNOWN_MEMBER_ID
    rejoined = crowd.answers[crowd.join(leader)]
    assert rejoined.generation_id == 2
    waits = crowd.sync(leader, 2, {})
    assert crowd.error(waits) is ErrorCode.NONE


def test_who_leaves_while_it_waits_for_its_assignment_is_answered(crowd: Desk) -> None:
    _, follower = _joined(crowd)
    waits = crowd.sync(follower.member_id, 1)
    crowd.leave((follower.member_id, None))
    assert crowd.error(waits) is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_id_that_was_given_out_can_be_given_back(desk: Desk) -> None:
    member_id = desk.member_id()
    assert desk.leave((member_id, None)).members[0].error is ErrorCode.NONE
    assert not desk.has_group()


def test_leaving_no_group(desk: Desk) -> None:
    response = desk.leave(("x", "i"))
    assert response.error is ErrorCode.NONE
    assert response.members[0].error is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_others_need_not_wait_for_who_left(crowd: Desk) -> None:
    leader, follower, third = crowd.stable(3)
    waits = [crowd.join(leader), crowd.join(third)]
    assert not set(waits) & set(crowd.answers)
    crowd.leave((follower, None))
    assert [crowd.answers[waiter].generation_id for waiter in waits] == [2, 2]


def test_a_pending_member_that_goes_is_not_waited_for(crowd: Desk) -> None:
    (leader,) = crowd.stable()
    pending = crowd.member_id()
    waits = crowd.join(leader)
    assert waits not in crowd.answers
    crowd.leave((pending, None))
    assert crowd.answers[waits].generation_id == 2


def test_a_pending_member_that_expires_is_not_waited_for(crowd: Desk) -> None:
    (leader,) = crowd.stable(session=60_000)
    crowd.member_id(session=6_000)
    waits = crowd.join(leader)
    crowd.pass_time(6_000)
    assert crowd.answers[waits].generation_id == 2


# --- Losing leadership --------------------------------------------------------------------------------


def test_who_waits_is_sent_to_the_new_coordinator(crowd: Desk) -> None:
    joining = crowd.newcomer()[1]
    crowd.auto = False
    committing = crowd.commit({"t-0": 1}, group="i")
    deleting = crowd.commit({"t-0": 1}, group="j")
    crowd.perform(crowd.shard.resign(crowd.now))
    assert {crowd.error(waiter) for waiter in (joining, committing, deleting)} == {ErrorCode.NOT_COORDINATOR}
    assert crowd.shard.next_deadline() is None


def test_the_end_of_an_append_of_an_older_epoch_changes_nothing(crowd: Desk) -> None:
    crowd.auto = False
    waits = crowd.commit({"t-0": 1})
    append = crowd.appends[0]
    crowd.fail_over()
    assert crowd.error(waits) is ErrorCode.NOT_COORDINATOR
    again = crowd.commit({"t-0": 2})
    assert append.token.number == crowd.appends[0].token.number
    assert crowd.shard.appended(append.token, ErrorCode.NONE, crowd.now) == []
    assert crowd.committed() == {}
    assert again not in crowd.answers


def test_an_append_that_ended_is_not_ended_again(desk: Desk) -> None:
    desk.commit({"t-0": 1})
    assert desk.shard.appended(desk.log[-1].token, ErrorCode.COORDINATOR_NOT_AVAILABLE, desk.now) == []
    assert desk.committed() == {"t-0": 1}


def test_an_append_that_tells_of_lost_leadership_ends_the_shard(crowd: Desk) -> None:
    joining = crowd.newcomer()[1]
    crowd.auto = False
    waits = crowd.commit({"t-0": 1}, group="h")
    crowd.end(ErrorCode.NOT_COORDINATOR)
    assert crowd.error(waits) is crowd.error(joining) is ErrorCode.NOT_COORDINATOR
