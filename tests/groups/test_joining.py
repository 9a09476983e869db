"""JoinGroup: ids, static members, delays, protocols, sizes."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.groups.state.transitions import GroupState
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.group_api import GroupProtocol, JoinGroupRequest

from .conftest import Desk


def test_a_member_is_told_its_id_first(desk: Desk) -> None:
    answer = desk.answers[desk.join(client="consumer-1")]
    assert answer.error is ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id.startswith("consumer-1-")
    assert len(answer.member_id) == len("consumer-1-") + 36
    joined = desk.join(answer.member_id)
    assert joined not in desk.answers
    desk.settle()
    joined = desk.answers[joined]
    assert (joined.error, joined.generation_id, joined.protocol_name) == (ErrorCode.NONE, 1, "range")
    assert joined.leader == joined.member_id == answer.member_id
    assert [member.member_id for member in joined.members] == [answer.member_id]


def test_one_that_is_too_old_to_come_back_is_let_in_at_once(desk: Desk) -> None:
    """JoinGroup before version 4."""
    joined = desk.join(client="old", admit_unknown=True)
    assert joined not in desk.answers
    desk.settle()
    answer = desk.answers[joined]
    assert (answer.error, answer.generation_id) == (ErrorCode.NONE, 1)
    assert answer.member_id.startswith("old-")
    assert not desk.group().pending_joins
    assert desk.error(desk.join("stranger", admit_unknown=True)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_id_that_nobody_comes_back_with_expires(desk: Desk) -> None:
    member_id = desk.member_id()
    desk.pass_time(9_999)
    assert desk.group().pending_joins == {member_id: None}
    desk.pass_time(1)
    assert not desk.has_group()
    assert desk.error(desk.join(member_id)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_id_that_was_not_given_out_is_unknown(desk: Desk) -> None:
    assert desk.error(desk.join("mine")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert not desk.has_group()
    desk.stable()
    assert desk.error(desk.join("mine")) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("session", [5_999, 1_800_001, -1])
def test_session_timeouts_have_bounds(desk: Desk, session: int) -> None:
    assert desk.error(desk.join(session=session)) is ErrorCode.INVALID_SESSION_TIMEOUT
    assert not desk.has_group()


def test_names_have_a_bound(desk: Desk) -> None:
    assert desk.error(desk.join(client="x" * 32_731)) is ErrorCode.INVALID_REQUEST
    assert desk.error(desk.join(instance="x" * 32_731)) is ErrorCode.INVALID_REQUEST
    assert desk.error(desk.join(client="x" * 32_730)) is ErrorCode.MEMBER_ID_REQUIRED


# --- The initial delay --------------------------------------------------------------------------------


def test_an_empty_group_waits_for_others(crowd: Desk) -> None:
    first, waits = crowd.newcomer()
    crowd.pass_time(2_999)
    assert waits not in crowd.answers
    assert crowd.group().state is GroupState.PREPARING_REBALANCE
    crowd.pass_time(1)
    assert crowd.answers[waits].generation_id == 1
    assert crowd.answers[waits].leader == first


def test_the_delay_is_extended_up_to_the_rebalance_timeout(crowd: Desk) -> None:
    """``tryCompleteInitialRebalanceElseSchedule``: by a delay for each round in which somebody came."""
    waits = [crowd.newcomer(rebalance=7_000)[1]]
    crowd.pass_time(2_000)
    waits.append(crowd.newcomer(rebalance=7_000)[1])
    crowd.pass_time(1_000)
    assert not set(waits) & set(crowd.answers)  # extended to 6 s
    crowd.pass_time(2_000)
    waits.append(crowd.newcomer(rebalance=7_000)[1])
    crowd.pass_time(1_000)
    assert not set(waits) & set(crowd.answers)  # to 7 s: no more than the rebalance timeout
    waits.append(crowd.newcomer(rebalance=7_000)[1])
    crowd.pass_time(1_000)
    assert [crowd.answers[waiter].generation_id for waiter in waits] == [1] * 4


def test_without_new_members_the_delay_is_not_extended(crowd: Desk) -> None:
    (_, first), (_, second) = crowd.newcomer(), crowd.newcomer()
    crowd.pass_time(3_000)
    assert crowd.now_ms == 4_000
    assert first not in crowd.answers  # the second came within the first delay
    crowd.pass_time(3_000)
    assert crowd.answers[first].generation_id == crowd.answers[second].generation_id == 1


# --- Protocols ----------------------------------------------------------------------------------------


def test_the_protocol_is_voted_for(crowd: Desk) -> None:
    waits = [
        crowd.newcomer(protocols={"a": b"1", "b": b"2", "x": b""})[1],
        crowd.newcomer(protocols={"b": b"3", "a": b"4", "y": b""})[1],
        crowd.newcomer(protocols={"z": b"", "b": b"5", "a": b"6"})[1],
    ]
    crowd.pass_time(60_000)
    answers = [crowd.answers[waiter] for waiter in waits]
    assert {answer.protocol_name for answer in answers} == {"b"}
    leader = next(answer for answer in answers if answer.members)
    assert [member.metadata for member in leader.members] == [b"2", b"3", b"5"]


@pytest.mark.parametrize(
    "changes",
    [{"protocols": {"other": b""}}, {"protocol_type": "connect"}, {"protocols": {}}, {"protocol_type": ""}],
    ids=["no common protocol", "another type", "no protocols", "no type"],
)
def test_inconsistent_protocols(desk: Desk, changes: dict[str, Any]) -> None:
    desk.stable()
    assert desk.error(desk.join(**changes)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert desk.group().state is GroupState.STABLE


def test_an_empty_group_needs_a_protocol_too(desk: Desk) -> None:
    assert desk.error(desk.join(protocols={})) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert not desk.has_group()


def test_a_protocol_named_twice_counts_once(crowd: Desk) -> None:
    crowd.newcomer(protocols={"a": b"1"})
    twice = (GroupProtocol("b", b""), GroupProtocol("b", b""), GroupProtocol("a", b""))
    request = JoinGroupRequest("g", 10_000, 60_000, "", "i", "consumer", twice, "c")
    crowd.ask(crowd.shard.join, request, "/h")
    crowd.pass_time(6_000)
    assert crowd.group().protocol == "a"


def test_an_empty_group_may_change_its_protocol_type(desk: Desk) -> None:
    (member_id,) = desk.stable()
    desk.leave((member_id, None))
    assert desk.group().state is GroupState.EMPTY
    desk.stable(protocol_type="connect", protocols={"x": b""})
    assert desk.group().protocol_type == "connect"


# --- Size ---------------------------------------------------------------------------------------------


def test_a_full_group_takes_nobody() -> None:
    desk = Desk(max_size=2, initial_rebalance_delay_ms=3_000)
    members = desk.stable(2)
    assert desk.error(desk.join()) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert desk.error(desk.join(instance="i")) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert desk.group().state is GroupState.STABLE
    # Members may join again.
    rejoined = [desk.join(member_id) for member_id in members]
    assert [desk.answers[waiter].error for waiter in rejoined] == [ErrorCode.NONE] * 2


def test_of_a_lowered_size_the_last_to_come_back_go() -> None:
    desk = Desk(initial_rebalance_delay_ms=3_000)
    members = desk.stable(3)
    desk.fail_over(max_size=2)
    assert desk.group().state is GroupState.PREPARING_REBALANCE
    waits = [desk.join(member_id) for member_id in members]
    assert [desk.answers[waiter].error for waiter in waits] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ]
    assert list(desk.group().members) == members[:2]


def test_ids_given_out_are_bounded() -> None:
    desk = Desk(members_max=3)
    ids = [desk.member_id(group=f"g{number}") for number in range(3)]
    assert desk.error(desk.join(group="g9")) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert not desk.has_group("g9")
    joined = desk.join(ids[0], group="g0")
    desk.settle()
    assert desk.error(joined) is ErrorCode.NONE


def test_groups_are_bounded() -> None:
    desk = Desk(groups_max=1)
    desk.stable()
    assert desk.error(desk.join(group="h")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.error(desk.commit({"t-0": 1}, group="h")) is ErrorCode.COORDINATOR_NOT_AVAILABLE


# --- Joining again ------------------------------------------------------------------------------------


def test_a_follower_that_joins_again_unchanged_is_told_of_the_generation(crowd: Desk) -> None:
    _, follower = crowd.stable(2)
    answer = crowd.answers[crowd.join(follower)]
    assert (answer.error, answer.generation_id, answer.members) == (ErrorCode.NONE, 1, ())
    assert crowd.group().state is GroupState.STABLE


def test_a_follower_with_another_subscription_begins_a_rebalance(crowd: Desk) -> None:
    leader, follower = crowd.stable(2)
    waits = crowd.join(follower, protocols={"range": b"other"})
    assert crowd.group().state is GroupState.PREPARING_REBALANCE
    again = crowd.join(leader)
    assert crowd.answers[waits].generation_id == crowd.answers[again].generation_id == 2
    assert [member.metadata for member in crowd.answers[again].members][1] == b"other"


def test_the_leader_that_joins_again_begins_a_rebalance(crowd: Desk) -> None:
    leader, _ = crowd.stable(2)
    crowd.join(leader)
    assert crowd.group().state is GroupState.PREPARING_REBALANCE


def test_a_member_that_missed_the_answer_is_told_again(crowd: Desk) -> None:
    (first, _), (second, _) = crowd.newcomer(), crowd.newcomer()
    crowd.pass_time(6_000)
    assert crowd.group().state is GroupState.COMPLETING_REBALANCE
    assert len(crowd.answers[crowd.join(first)].members) == 2
    assert crowd.answers[crowd.join(second)].members == ()
    assert crowd.group().generation == 1


def test_who_asks_twice_waits_once(crowd: Desk) -> None:
    member_id, first = crowd.newcomer()
    second = crowd.join(member_id)
    assert crowd.error(first) is ErrorCode.REBALANCE_IN_PROGRESS
    crowd.pass_time(3_000)
    assert crowd.error(second) is ErrorCode.NONE


def test_a_new_member_that_waits_too_long_has_to_ask_again(crowd: Desk) -> None:
    crowd.stable(rebalance=600_000, session=1_800_000)
    _, waits = crowd.newcomer(session=6_000)
    crowd.pass_time(299_999)
    assert waits not in crowd.answers
    crowd.pass_time(1)
    assert crowd.error(waits) is ErrorCode.UNKNOWN_MEMBER_ID
    assert len(crowd.group().members) == 1


# --- Static members -----------------------------------------------------------------------------------


def test_static_members_need_no_id_first(desk: Desk) -> None:
    waits = desk.join(instance="i")
    desk.settle()
    assert desk.answers[waits].member_id.startswith("i-")


def test_a_static_member_comes_back_without_a_rebalance(crowd: Desk) -> None:
    leader, follower = crowd.stable(instances=("a", "b"), count=0)
    answer = crowd.answers[crowd.join(instance="b")]
    assert answer.error is ErrorCode.NONE
    assert answer.generation_id == 1
    assert answer.member_id not in (leader, follower)
    assert not answer.skip_assignment
    assert crowd.group().state is GroupState.STABLE
    assert crowd.answers[crowd.sync(answer.member_id, 1, instance="b")].assignment == b"of " + follower.encode()


def test_a_static_leader_that_comes_back_need_not_assign(crowd: Desk) -> None:
    crowd.stable(instances=("a", "b"), count=0)
    answer = crowd.answers[crowd.join(instance="a")]
    assert answer.skip_assignment
    assert answer.leader == answer.member_id
    assert len(answer.members) == 2


def test_the_duplicate_is_fenced(crowd: Desk) -> None:
    _, old = crowd.stable(instances=("a", "b"), count=0)
    crowd.join(instance="b")
    assert crowd.heartbeat(old, 1, "b") is ErrorCode.FENCED_INSTANCE_ID
    assert crowd.error(crowd.sync(old, 1, instance="b")) is ErrorCode.FENCED_INSTANCE_ID
    assert crowd.error(crowd.join(old, instance="b")) is ErrorCode.FENCED_INSTANCE_ID
    assert crowd.error(crowd.commit({"t-0": 1}, old, 1, "b")) is ErrorCode.FENCED_INSTANCE_ID
    assert crowd.leave((old, "b")).members[0].error is ErrorCode.FENCED_INSTANCE_ID
    assert crowd.heartbeat(old, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_fenced_member_that_waits_is_told(crowd: Desk) -> None:
    first = crowd.join(instance="a")
    second = crowd.join(instance="a")
    assert crowd.error(first) is ErrorCode.FENCED_INSTANCE_ID
    assert crowd.answers[first].member_id
    crowd.pass_time(6_000)
    assert crowd.error(second) is ErrorCode.NONE
    third = crowd.join(instance="a")
    assert crowd.error(third) is ErrorCode.NONE  # in CompletingRebalance: a rebalance of one
    assert crowd.answers[third].generation_id == 2


def test_a_static_member_that_comes_back_with_another_choice_begins_a_rebalance(crowd: Desk) -> None:
    crowd.stable(instances=("a", "b"), count=0, protocols={"range": b"", "sticky": b""})
    assert crowd.group().protocol == "range"
    waits = crowd.join(instance="a", protocols={"sticky": b""})
    assert crowd.group().state is GroupState.PREPARING_REBALANCE
    assert waits not in crowd.answers


def test_the_new_id_is_stored_before_it_is_told(crowd: Desk) -> None:
    crowd.stable(instances=("a",), count=0)
    crowd.auto = False
    waits = crowd.join(instance="a")
    assert waits not in crowd.answers
    crowd.end()
    new_id = crowd.answers[waits].member_id
    crowd.fail_over()
    assert crowd.heartbeat(new_id, 1, "a") is ErrorCode.NONE


@pytest.mark.parametrize("how", ["refused", "timed out"])
def test_a_new_id_that_could_not_be_stored(crowd: Desk, how: str) -> None:
    (old,) = crowd.stable(instances=("a",), count=0)
    crowd.auto = False
    waits = crowd.join(instance="a")
    if how == "refused":
        crowd.end(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    else:
        crowd.pass_time(5_000)
    assert crowd.error(waits) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    # A refusal wrote nothing, so the log has the old id; what is only late may come through with the new one.
    old_id_is_fenced = crowd.heartbeat(old, 1, "a") is ErrorCode.FENCED_INSTANCE_ID
    assert old_id_is_fenced is (how == "timed out")
    crowd.auto = True
    crowd.perform([])
    assert crowd.error(crowd.join(instance="a")) is ErrorCode.NONE


def test_a_replaced_static_member_whose_new_id_took_too_long_is_dropped_if_it_stays_away(crowd: Desk) -> None:
    """Its session is over before the answer, which is excused: then it counts again."""
    crowd.fail_over(min_session_timeout_ms=1_000)
    crowd.stable(instances=("a", "b"), count=0, session=3_000)
    crowd.auto = False
    waits = crowd.join(instance="b", session=3_000)
    for _ in range(5):
        crowd.pass_time(1_000)
        crowd.heartbeat(crowd.group().static_members["a"], 1, "a")
    assert crowd.error(waits) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "b" in crowd.group().static_members
    for _ in range(3):
        crowd.pass_time(1_000)
        crowd.heartbeat(crowd.group().static_members["a"], 1, "a")
    assert "b" not in crowd.group().static_members


def test_a_static_member_is_not_dropped_when_it_misses_a_rebalance(crowd: Desk) -> None:
    crowd.stable(1, ("a",), rebalance=5_000, session=60_000)
    leader = crowd.group().leader
    assert leader is not None
    assert crowd.instance_of(leader) is None
    rejoined = crowd.join(leader, rebalance=5_000)
    crowd.pass_time(5_000)
    assert crowd.answers[rejoined].generation_id == 2
    assert len(crowd.answers[rejoined].members) == 2


def test_absent_static_members_alone_are_waited_for_until_their_sessions_end(crowd: Desk) -> None:
    members = crowd.stable(1, ("a",), rebalance=50, session=8_000)
    crowd.leave((members[0], None))
    assert crowd.group().state is GroupState.PREPARING_REBALANCE
    crowd.pass_time(8_000)
    assert crowd.group().state is GroupState.EMPTY
