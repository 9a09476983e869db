"""The consumer protocol, question by question: who may come, what a heartbeat answers, what is fenced, what a log
brings back, and the mistakes that Kafka made on the way."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.groups.consumer.reconciling import next_step
from tidelog.groups.state.consumer_group import ConsumerGroupState, MemberState
from tidelog.groups.state.effects import Append
from tidelog.groups.state.settings import ConsumerTimes
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId
from tidelog.proto.calls.consumer_group_api import ConsumerGroupHeartbeatResponse
from tidelog.proto.calls.group_api import OffsetFetchGroup
from tidelog.proto.logs.consumer_group_records import CurrentAssignment

from .conftest import Desk

STALE = ErrorCode.STALE_MEMBER_EPOCH
NONE = ErrorCode.NONE
T = TopicId(bytes(15) + b"\x01")
"""The id of the first topic that a test makes."""


@pytest.fixture
def desk() -> Desk:
    """Four partitions of topic ``t``."""
    found = Desk()
    assert found.topics.put("t", 4) == T
    return found


def answer(desk: Desk, waiter: int) -> ConsumerGroupHeartbeatResponse:
    found = desk.answers[waiter]
    assert isinstance(found, ConsumerGroupHeartbeatResponse)
    return found


def got(desk: Desk, waiter: int, topic: TopicId = T) -> list[int] | None:
    """The partitions that an answer gives of a topic; None if it says nothing."""
    said = answer(desk, waiter)
    assert said.error is NONE, said
    if said.assignment is None:
        return None
    return [at for each in said.assignment.topics if each.topic_id == topic for at in each.partitions]


def two(desk: Desk) -> None:
    """Members a and b with two partitions each, both at epoch 2."""
    assert got(desk, desk.come("a", "t")) == [0, 1, 2, 3]
    assert got(desk, desk.come("b", "t")) == []
    assert got(desk, desk.beat("a", 1)) == [0, 1]
    desk.beat("a", 1, owned={T: (0, 1)})
    assert got(desk, desk.beat("b", 2)) == [2, 3]
    assert desk.consumer().state is ConsumerGroupState.STABLE


def state_of(desk: Desk) -> Any:
    found = desk.consumer()
    return (
        found.epoch,
        found.assignment_epoch,
        found.members,
        found.current,
        found.target,
        found.owner,
        found.static_members,
        {name: regex.topics for name, regex in found.regexes.items()},
        found.subscribers,
    )


# --- Joining and revoking -------------------------------------------------------------------------------


def test_a_partition_is_given_on_only_once_its_member_has_given_it_up(desk: Desk) -> None:
    desk.come("a", "t")
    assert got(desk, desk.come("b", "t")) == []
    assert desk.consumer().state is ConsumerGroupState.RECONCILING
    told = desk.beat("a", 1)
    assert got(desk, told) == [0, 1]
    assert answer(desk, told).member_epoch == 1, "the epoch stays until the rest is given up"
    assert got(desk, desk.beat("b", 2)) is None
    desk.beat("a", 1, owned={T: (0, 1, 2)})
    assert got(desk, desk.beat("b", 2)) is None, "a still has one of them"
    told = desk.beat("a", 1, owned={T: (0, 1)})
    assert (got(desk, told), answer(desk, told).member_epoch) == (None, 2)
    assert got(desk, desk.beat("b", 2)) == [2, 3]
    assert desk.consumer().state is ConsumerGroupState.STABLE


def test_nothing_is_answered_before_it_is_committed(desk: Desk) -> None:
    desk.auto = False
    first = desk.come("a", "t")
    second = desk.come("b", "t")
    assert not desk.answers
    desk.end()
    assert got(desk, first) == [0, 1, 2, 3]
    assert second not in desk.answers, "what came meanwhile is decided on what is committed"
    desk.end()
    assert got(desk, second) == []


def test_a_refused_change_is_taken_back_and_the_next_one_rests_on_what_is_stored(desk: Desk) -> None:
    two(desk)
    before = state_of(desk)
    desk.auto = False
    waiter = desk.come("c", "t")
    desk.end(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert answer(desk, waiter).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert state_of(desk) == before
    desk.auto = True
    desk.come("c", "t")
    assert desk.consumer().epoch == before[0] + 1
    stored = state_of(desk)
    desk.fail_over()
    assert state_of(desk) == stored


def test_a_change_that_takes_too_long_is_answered_and_may_still_come_through(desk: Desk) -> None:
    desk.auto = False
    first, second = desk.come("a", "t"), desk.come("b", "t")
    desk.pass_time(desk.settings.offsets_commit_timeout_ms)
    assert answer(desk, first).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert answer(desk, second).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    desk.auto = True
    desk.end()
    assert list(desk.consumer().members) == ["a"]


def test_a_heartbeat_without_news_writes_nothing(desk: Desk) -> None:
    two(desk)
    written = len(desk.log)
    assert got(desk, desk.beat("a", 2)) is None
    assert len(desk.log) == written


def test_a_member_that_lost_track_is_told_everything(desk: Desk) -> None:
    two(desk)
    assert got(desk, desk.beat("a", 2, topics=["t"], rebalance=60_000, owned={T: (0, 1)})) == [0, 1]


def test_the_epoch_before_is_good_if_the_answer_was_lost(desk: Desk) -> None:
    two(desk)
    assert answer(desk, desk.beat("a", 1, owned={T: (0, 1)})).member_epoch == 2
    assert answer(desk, desk.beat("a", 1)).error is ErrorCode.FENCED_MEMBER_EPOCH, "it does not say what it has"
    too_much = desk.beat("a", 1, owned={T: (0, 1, 2)})
    assert answer(desk, too_much).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert answer(desk, desk.beat("a", 3)).error is ErrorCode.FENCED_MEMBER_EPOCH


def test_an_epoch_older_than_the_one_before_is_fenced(desk: Desk) -> None:
    two(desk)
    desk.topics.put("t", 6)
    assert answer(desk, desk.beat("a", 2)).member_epoch == 3
    assert answer(desk, desk.beat("a", 1, owned={T: (0, 1)})).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert answer(desk, desk.beat("a", 2, owned={T: (0, 1)})).member_epoch == 3


def test_a_member_may_join_again_at_any_time(desk: Desk) -> None:
    """KAFKA-19233."""
    two(desk)
    assert got(desk, desk.come("a", "t")) == [0, 1]
    assert answer(desk, desk.come("a", "t")).member_epoch == 2, "nothing has changed for the others"


def test_a_topic_that_grows_or_goes_is_noticed_at_the_next_heartbeat(desk: Desk) -> None:
    desk.come("a", "t")
    desk.topics.put("t", 5)
    assert got(desk, desk.beat("a", 1)) == [0, 1, 2, 3, 4]
    desk.topics.delete("t")
    told = desk.beat("a", 2)
    assert got(desk, told) == []
    again = desk.topics.put("t", 2)
    assert got(desk, desk.beat("a", 2, owned={}), again) == [0, 1], "another topic of that name"


def test_other_topics_of_the_metadata_cause_no_rebalance(desk: Desk) -> None:
    desk.come("a", "t")
    desk.topics.put("other", 3)
    assert answer(desk, desk.beat("a", 1)).member_epoch == 1
    assert desk.consumer().epoch == 1


# --- Leaving, silence -------------------------------------------------------------------------------------


def test_what_a_leaving_member_had_is_free_at_once(desk: Desk) -> None:
    two(desk)
    assert answer(desk, desk.beat("b", -1)).member_epoch == -1
    assert got(desk, desk.beat("a", 2)) == [0, 1, 2, 3]
    desk.beat("a", -1)
    assert desk.consumer().state is ConsumerGroupState.EMPTY
    assert desk.consumer().epoch == desk.consumer().assignment_epoch, "KAFKA-20442"


def test_a_silent_member_is_fenced(desk: Desk) -> None:
    two(desk)
    desk.pass_time(desk.settings.consumer_session_timeout_ms - 1)
    desk.beat("a", 2)
    desk.pass_time(1)
    assert list(desk.consumer().members) == ["a"]
    assert answer(desk, desk.beat("b", 2)).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert got(desk, desk.beat("a", 2)) == [0, 1, 2, 3]


def test_a_group_may_have_its_own_times() -> None:
    """Also if they change while members are there."""
    own = {"g": ConsumerTimes(50_000, 7_000)}
    desk = Desk(consumer_times_of=own.get)
    assert answer(desk, desk.come("a", "t")).heartbeat_interval_ms == 7_000
    desk.pass_time(49_999)
    assert list(desk.consumer().members) == ["a"]
    del own["g"]
    assert answer(desk, desk.beat("a", 1)).heartbeat_interval_ms == 5_000
    desk.pass_time(45_000)
    assert not desk.consumer().members


def test_a_member_that_does_not_give_up_in_time_is_fenced(desk: Desk) -> None:
    desk.come("a", "t")
    desk.come("b", "t")
    desk.beat("a", 1)
    for _ in range(6):
        desk.pass_time(10_000)
        desk.beat("a", 1)
        last = desk.beat("b", 2)
    assert list(desk.consumer().members) == ["b"]
    assert got(desk, last) == [0, 1, 2, 3]


def test_a_fence_that_could_not_be_stored_is_tried_again(desk: Desk) -> None:
    two(desk)
    desk.auto = False
    desk.pass_time(desk.settings.consumer_session_timeout_ms)
    while desk.appends:
        desk.end(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert set(desk.consumer().members) == {"a", "b"}
    desk.auto = True
    desk.pass_time(desk.settings.consumer_session_timeout_ms)
    assert not desk.consumer().members


def test_a_member_heard_from_while_its_fence_waited_stays(desk: Desk) -> None:
    two(desk)
    desk.pass_time(desk.settings.consumer_session_timeout_ms - 1)
    desk.beat("b", 2)
    desk.auto = False
    desk.come("c", "t")  # its append is under way
    waiter = desk.beat("a", 2)
    desk.pass_time(1)  # a is silent for too long, but its heartbeat waits already
    desk.auto = True
    desk.end()
    assert answer(desk, waiter).error is NONE
    assert set(desk.consumer().members) == {"a", "b", "c"}


# --- Static members ---------------------------------------------------------------------------------------


def test_a_static_member_keeps_its_place_over_a_restart(desk: Desk) -> None:
    desk.come("a", "t", instance="i")
    desk.come("b", "t")
    desk.beat("a", 1, instance="i")
    desk.beat("a", 1, instance="i", owned={T: (0, 1)})
    desk.beat("b", 2)
    epoch = desk.consumer().epoch
    refused = desk.come("c", "t", instance="i")
    assert answer(desk, refused).error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert answer(desk, desk.beat("a", -2, instance="i")).member_epoch == -2
    assert got(desk, desk.come("c", "t", instance="i")) == [0, 1]
    assert desk.consumer().epoch == epoch, "the others notice nothing"
    assert got(desk, desk.beat("b", 2)) is None
    assert answer(desk, desk.beat("a", 2, instance="i")).error is ErrorCode.FENCED_INSTANCE_ID
    assert answer(desk, desk.beat("c", 2, instance="j")).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.error(desk.commit({"t-0": 7}, "a", 2, "i")) is ErrorCode.UNKNOWN_MEMBER_ID
    stored = state_of(desk)
    desk.fail_over()
    assert state_of(desk) == stored


def test_a_static_member_that_does_not_come_back_loses_its_place(desk: Desk) -> None:
    desk.come("a", "t", instance="i")
    desk.beat("a", -2, instance="i")
    desk.pass_time(desk.settings.consumer_session_timeout_ms)
    assert not desk.consumer().members


def test_a_static_member_may_come_back_with_another_assignor(desk: Desk) -> None:
    """KAFKA-20434."""
    desk.come("a", "t", instance="i", assignor="uniform")
    desk.beat("a", -2, instance="i")
    assert got(desk, desk.come("b", "t", instance="i", assignor="range")) == [0, 1, 2, 3]
    assert desk.shard.describe_consumer("g").assignor == "range"


# --- What is wrong with a request ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch", "changes", "error"),
    [
        (0, {"owned": {}, "topics": ["t"]}, ErrorCode.INVALID_REQUEST),
        (0, {"rebalance": 1, "topics": ["t"]}, ErrorCode.INVALID_REQUEST),
        (0, {"rebalance": 1, "topics": ["t"], "owned": {T: (1,)}}, ErrorCode.INVALID_REQUEST),
        (0, {"rebalance": 1, "owned": {}}, ErrorCode.INVALID_REQUEST),
        (0, {"rebalance": 1, "owned": {}, "topics": ["t"], "instance": ""}, ErrorCode.INVALID_REQUEST),
        (0, {"rebalance": 1, "owned": {}, "topics": ["t"], "instance": "i" * 40_000}, ErrorCode.INVALID_REQUEST),
        (0, {"rebalance": 1, "owned": {}, "topics": ["t"], "assignor": "x"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        (0, {"rebalance": 1, "owned": {}, "regex": "a("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        (0, {"rebalance": 1, "owned": {}, "regex": "(?=a)"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        (0, {"rebalance": 1, "owned": {}, "regex": "a" * 5_000}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        (-2, {}, ErrorCode.INVALID_REQUEST),
        (-3, {}, ErrorCode.INVALID_REQUEST),
        (1, {}, ErrorCode.UNKNOWN_MEMBER_ID),
        (-1, {}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_bad_request_changes_nothing(desk: Desk, epoch: int, changes: dict[str, Any], error: ErrorCode) -> None:
    said = answer(desk, desk.beat("a", epoch, **changes))
    assert said.error is error
    assert said.error_message
    assert not desk.log
    assert not desk.has_group()


def test_groups_have_a_largest_size(desk: Desk) -> None:
    desk = Desk(consumer_max_size=1)
    desk.topics.put("t", 1)
    desk.come("a", "t")
    assert answer(desk, desk.come("b", "t")).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert got(desk, desk.come("a", "t")) == [0], "a known member is no further one"


def test_a_partition_of_the_topic_has_a_largest_number_of_members() -> None:
    desk = Desk(members_max=1)
    desk.topics.put("t", 1)
    desk.come("a", "t")
    assert answer(desk, desk.come("b", "t", group="h")).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert not desk.has_group("h")
    desk.beat("a", -1)
    assert answer(desk, desk.come("b", "t", group="h")).error is NONE


# --- Regular expressions ------------------------------------------------------------------------------------


def test_a_regular_expression_matches_whole_names_of_topics_that_the_member_may_see(desk: Desk) -> None:
    for name in ("ta", "tb", "xta"):
        desk.topics.put(name, 1)
    waiter = desk.beat("a", 0, regex="t.", owned={}, rebalance=1, may_see=lambda name: name != "tb")
    assert [each.topic_id for each in answer(desk, waiter).assignment.topics] == [desk.topics.shapes["ta"].topic_id]  # type: ignore[union-attr]
    assert desk.consumer().is_subscribed("ta")
    assert not desk.consumer().is_subscribed("tb")
    stored = state_of(desk)
    desk.fail_over()
    assert state_of(desk) == stored


def test_a_new_topic_is_matched_within_ten_seconds(desk: Desk) -> None:
    desk.beat("a", 0, regex="n.*", owned={}, rebalance=1)
    new = desk.topics.put("new", 2)
    assert got(desk, desk.beat("a", 1), new) is None
    desk.pass_time(10_000)
    assert got(desk, desk.beat("a", 1), new) == [0, 1]


def test_a_regular_expression_goes_with_its_last_member(desk: Desk) -> None:
    desk.beat("a", 0, regex="t.*", owned={}, rebalance=1)
    desk.beat("b", 0, regex="t", owned={}, rebalance=1)
    desk.beat("a", 1, regex="")
    assert list(desk.consumer().regexes) == ["t"]
    desk.beat("b", -1)
    assert not desk.consumer().regexes


def test_a_catastrophic_pattern_takes_no_time(desk: Desk) -> None:
    desk.topics.put("a" * 200, 1)
    assert answer(desk, desk.beat("a", 0, regex="(a*)*b", owned={}, rebalance=1)).error is NONE


# --- Offsets ------------------------------------------------------------------------------------------------


def test_commits_are_checked_against_epochs(desk: Desk) -> None:
    two(desk)
    assert desk.error(desk.commit({"t-0": 1}, "a", 2)) is NONE
    assert desk.error(desk.commit({"t-0": 2}, "a", 1)) is NONE, "KIP-1251: it has had the partition since epoch 1"
    assert desk.error(desk.commit({"t-2": 2}, "a", 1)) is STALE, "it has the partition no longer"
    assert desk.error(desk.commit({"t-0": 2}, "a", 3)) is STALE
    assert desk.error(desk.commit({"t-2": 2}, "b", 1)) is STALE, "it had nothing at epoch 1"
    assert desk.error(desk.commit({"t-2": 2}, "x", 2)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.error(desk.commit({"t-2": 2})) is ErrorCode.UNKNOWN_MEMBER_ID, "there are members"
    assert desk.error(desk.commit_in((1, 0), {"t-2": 3}, "a", 1)) is ErrorCode.ILLEGAL_GENERATION
    assert desk.error(desk.commit_in((1, 0), {"t-2": 3}, "b", 2)) is NONE
    assert desk.committed() == {"t-0": 2}
    desk.beat("a", -1)
    desk.beat("b", -1)
    assert desk.error(desk.commit({"t-1": 5})) is NONE, "an administrator, in an empty group"


def test_a_member_that_gives_up_may_still_commit_what_it_read(desk: Desk) -> None:
    desk.come("a", "t")
    desk.come("b", "t")
    desk.beat("a", 1)
    assert desk.error(desk.commit({"t-3": 9}, "a", 1)) is NONE
    desk.beat("a", 1, owned={T: (0, 1)})
    assert desk.error(desk.commit({"t-3": 10}, "a", 1)) is STALE
    assert desk.committed() == {"t-3": 9}


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [("a", 2, NONE), ("a", 1, STALE), ("a", 3, STALE), ("x", 2, ErrorCode.UNKNOWN_MEMBER_ID), ("", 0, NONE)],
)
def test_a_member_fetches_offsets_under_its_epoch(desk: Desk, member_id: str, epoch: int, error: ErrorCode) -> None:
    two(desk)
    desk.commit({"t-0": 7}, "a", 2)
    asked = OffsetFetchGroup("g", all_partitions=True, member_id=member_id, member_epoch=epoch)
    found = desk.shard.fetch_offsets(asked, require_stable=False)
    assert found.error is error
    assert [each.offset for each in found.offsets] == ([] if error else [7])


def test_offsets_of_subscribed_topics_cannot_be_deleted(desk: Desk) -> None:
    desk.come("a", "t")
    desk.commit({"t-0": 1}, "a", 1)
    found = desk.answers[desk.delete_offsets("t-0")]
    assert found.results[0].error is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


# --- Deletion, and the other protocol -------------------------------------------------------------------------


def test_a_group_is_deleted_with_its_records_once_it_is_empty(desk: Desk) -> None:
    desk.come("a", "t")
    desk.commit({"t-0": 1}, "a", 1)
    assert desk.error_of_group(desk.delete_group()) is ErrorCode.NON_EMPTY_GROUP
    desk.beat("a", -1)
    assert desk.error_of_group(desk.delete_group()) is NONE
    assert not desk.has_group()
    desk.fail_over()
    assert not desk.has_group()


def test_an_empty_group_without_offsets_disappears(desk: Desk) -> None:
    desk.come("a", "t")
    desk.beat("a", -1)
    desk.pass_time(desk.settings.offsets_retention_check_interval_ms)
    assert not desk.has_group()
    desk.fail_over()
    assert not desk.has_group()


def test_an_empty_group_changes_its_protocol_both_ways_and_keeps_its_offsets(desk: Desk) -> None:
    (member,) = desk.stable(1)
    assert answer(desk, desk.come("a", "t")).error is ErrorCode.GROUP_ID_NOT_FOUND
    desk.commit({"t-0": 5}, member, 1)
    desk.leave((member, None))
    assert got(desk, desk.come("a", "t")) == [0, 1, 2, 3]
    assert [found.group_type for found in desk.shard.list_groups((), ())] == ["consumer"]
    desk.fail_over()
    assert desk.committed() == {"t-0": 5}
    assert got(desk, desk.beat("a", 1)) is None
    desk.beat("a", -1)
    (member,) = desk.stable(1)
    assert [found.group_type for found in desk.shard.list_groups((), ())] == ["classic"]
    desk.fail_over()
    assert list(desk.group().members) == [member]
    assert desk.group().consumer is None
    assert desk.committed() == {"t-0": 5}


def test_a_join_that_meets_the_groups_deletion_in_the_log_stands(desk: Desk) -> None:
    desk.come("a", "t")
    desk.beat("a", -1)
    desk.auto = False
    deleting = desk.delete_group()
    joining = desk.come("b", "t")
    desk.end()
    desk.end()
    assert desk.error_of_group(deleting) is NONE
    assert got(desk, joining) == [0, 1, 2, 3]
    stored = state_of(desk)
    desk.fail_over()
    assert state_of(desk) == stored


# --- Mistakes that Kafka made ---------------------------------------------------------------------------------


def test_a_partition_that_waits_to_be_given_up_may_come_back_to_its_member() -> None:
    """KAFKA-16147, KAFKA-19449: it is nobody else's, and counts as given anew."""
    now = CurrentAssignment(5, 4, MemberState.UNREVOKED_PARTITIONS, {T: {0: 3}}, {T: {1: 3}})
    found = next_step("a", now, 7, {T: frozenset((0, 1))}, {T: frozenset((0,))}, {(T, 0): "a", (T, 1): "a"}, {T})
    assert found == CurrentAssignment(7, 5, MemberState.STABLE, {T: {0: 3, 1: 7}}, {})


def test_from_one_revocation_to_the_next_the_epoch_stays() -> None:
    """KAFKA-19974."""
    now = CurrentAssignment(5, 4, MemberState.UNREVOKED_PARTITIONS, {T: {0: 3, 1: 3}}, {T: {2: 3}})
    owners = dict.fromkeys(((T, 0), (T, 1), (T, 2)), "a")
    found = next_step("a", now, 7, {T: frozenset((0,))}, {T: frozenset((0, 1))}, owners, {T})
    assert found == CurrentAssignment(5, 4, MemberState.UNREVOKED_PARTITIONS, {T: {0: 3}}, {T: {1: 3}})


def test_a_topic_that_a_member_no_longer_wants_goes_at_once(desk: Desk) -> None:
    """KAFKA-19431: even while it has yet to give others up, and before there is a new target."""
    other = TopicId(bytes(15) + b"\x02")
    now = CurrentAssignment(5, 4, MemberState.UNREVOKED_PARTITIONS, {T: {0: 3}, other: {0: 3}}, {T: {1: 3}})
    found = next_step("a", now, 7, {}, None, {}, {T})
    expected = {T: {1: 3}, other: {0: 3}}
    assert found == CurrentAssignment(5, 4, MemberState.UNREVOKED_PARTITIONS, {T: {0: 3}}, expected)


def test_a_compacted_log_may_tell_of_a_partition_out_of_order(desk: Desk) -> None:
    """KAFKA-19862: b's record that has the partition may stand before a's that has it no longer."""
    two(desk)
    stored = state_of(desk)
    newest: dict[bytes, int] = {}
    appends = [append for append in desk.log if isinstance(append, Append)]
    flat = [record for append in appends for record in append.records]
    for at, record in enumerate(flat):
        newest[record.key] = at
    for kept in range(len(flat)):  # all records up to here are compacted, the rest is as it was
        log = [record for at, record in enumerate(flat) if at >= kept or newest[record.key] == at]
        other = Desk()
        other.topics = desk.topics
        other.log = [Append(appends[0].token, (record,), 0) for record in log]
        other.fail_over()
        assert state_of(other) == stored, kept


def test_unchanged_members_keep_what_they_have_when_another_is_replaced(desk: Desk) -> None:
    """KAFKA-18688."""
    two(desk)
    desk.beat("b", -1)
    desk.come("c", "t")
    assert desk.consumer().target["a"] == {T: frozenset((0, 1))}
