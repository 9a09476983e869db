"""Committed offsets: permission to commit, reads, deletion and expiry."""

from __future__ import annotations

import pytest

from tidelog.groups.state.effects import Append
from tidelog.groups.state.transitions import GroupState
from tidelog.model.assignors import Subscription
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, Offset
from tidelog.proto.calls.group_api import (
    CommittedOffset,
    GroupPartition,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetFetchGroup,
)
from tidelog.proto.logs.consumer_protocol import encode_subscription

from .conftest import Desk

DAY_MS = 86_400_000
RETENTION_MS = 7 * DAY_MS


def _subscribe(*topics: str) -> dict[str, bytes]:
    return {"range": encode_subscription(Subscription(topics))}


# --- Permission to commit -----------------------------------------------------------------------------


def test_a_member_commits_in_its_generation(desk: Desk) -> None:
    (member_id,) = desk.stable()
    assert desk.error(desk.commit({"t-0": 5, "t-1": 6}, member_id, 1, metadata="m")) is ErrorCode.NONE
    found = desk.shard.fetch_offsets(
        OffsetFetchGroup("g", (GroupPartition("t", 1), GroupPartition("t", 9))), require_stable=False
    )
    assert found.error is ErrorCode.NONE
    assert found.offsets == (
        CommittedOffset("t", 1, ErrorCode.NONE, Offset(6), LeaderEpoch(3), "m"),
        CommittedOffset("t", 9, ErrorCode.NONE),
    )


def test_commits_that_are_refused(crowd: Desk) -> None:
    leader, _ = crowd.stable(2)
    for member_id, generation, error in (
        (leader, 0, ErrorCode.ILLEGAL_GENERATION),
        (leader, 2, ErrorCode.ILLEGAL_GENERATION),
        (leader, -1, ErrorCode.ILLEGAL_GENERATION),
        ("nobody", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert crowd.error(crowd.commit({"t-0": 1}, member_id, generation)) is error
    assert crowd.error(crowd.commit({"t-0": 1}, leader, 1, "i")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert crowd.committed() == {}


def test_a_member_commits_what_it_has_while_others_join_but_not_while_they_sync(crowd: Desk) -> None:
    leader, follower = crowd.stable(2)
    joining = crowd.join(leader)
    assert crowd.error(crowd.commit({"t-0": 1}, follower, 1)) is ErrorCode.NONE
    crowd.join(follower)
    assert crowd.answers[joining].generation_id == 2
    assert crowd.error(crowd.commit({"t-0": 2}, follower, 2)) is ErrorCode.REBALANCE_IN_PROGRESS
    assert crowd.error(crowd.commit({"t-0": 2}, follower, 1)) is ErrorCode.ILLEGAL_GENERATION
    assert crowd.committed() == {"t-0": 1}


def test_a_zombie_is_refused(desk: Desk) -> None:
    (zombie,) = desk.stable()
    desk.pass_time(10_000)
    assert desk.error(desk.commit({"t-0": 1}, zombie, 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    desk.stable()
    assert desk.error(desk.commit({"t-0": 1}, zombie, desk.group().generation)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_without_members_anybody_commits(desk: Desk) -> None:
    assert desk.error(desk.commit({"t-0": 1}, generation=3)) is ErrorCode.ILLEGAL_GENERATION
    assert not desk.has_group()
    assert desk.error(desk.commit({"t-0": 1})) is ErrorCode.NONE
    assert desk.group().protocol_type is None
    (member_id,) = desk.stable()
    assert desk.error(desk.commit({"t-0": 2})) is ErrorCode.UNKNOWN_MEMBER_ID
    desk.leave((member_id, None))
    assert desk.error(desk.commit({"t-0": 3})) is ErrorCode.NONE
    assert desk.committed() == {"t-0": 3}


def test_metadata_has_a_bound_in_bytes(desk: Desk) -> None:
    assert desk.error(desk.commit({"t-0": 1}, metadata="é" * 2_049)) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert not desk.has_group()
    assert desk.error(desk.commit({"t-0": 1}, metadata="é" * 2_048)) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("name", "error"), [("-0", ErrorCode.INVALID_TOPIC_EXCEPTION), ("t/-0", ErrorCode.INVALID_TOPIC_EXCEPTION)]
)
def test_names_that_no_topic_has(desk: Desk, name: str, error: ErrorCode) -> None:
    answer = desk.answers[desk.commit({name: 1, "t-0": 2})]
    assert [result.error for result in answer.results] == [error, ErrorCode.NONE]
    assert desk.committed() == {"t-0": 2}


def test_offsets_are_bounded() -> None:
    desk = Desk(offsets_max=2)
    desk.commit({"t-0": 1, "t-1": 1})
    assert desk.error(desk.commit({"t-2": 1})) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.error(desk.commit({"t-1": 2})) is ErrorCode.NONE
    desk.delete_offsets("t-0")
    assert desk.error(desk.commit({"t-2": 1})) is ErrorCode.NONE


def test_appends_under_way_are_bounded() -> None:
    desk = Desk(auto=False, appends_max=1)
    desk.commit({"t-0": 1})
    assert desk.error(desk.commit({"t-0": 2})) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.error(desk.delete_offsets("t-0")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.error_of_group(desk.delete_group()) is ErrorCode.COORDINATOR_NOT_AVAILABLE


# --- What is read when --------------------------------------------------------------------------------


def test_what_is_not_replicated_is_not_read(desk: Desk) -> None:
    desk.commit({"t-0": 1})
    desk.auto = False
    waits = desk.commit({"t-0": 2})
    assert waits not in desk.answers
    assert desk.committed() == {"t-0": 1}
    desk.end()
    assert desk.error(waits) is ErrorCode.NONE
    assert desk.committed() == {"t-0": 2}


def test_what_is_on_its_way_is_unstable(desk: Desk) -> None:
    desk.auto = False
    desk.commit({"t-0": 2})
    asked = OffsetFetchGroup("g", (GroupPartition("t", 0), GroupPartition("t", 1)))
    found = desk.shard.fetch_offsets(asked, require_stable=True)
    assert [item.error for item in found.offsets] == [ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.NONE]
    desk.end()
    found = desk.shard.fetch_offsets(asked, require_stable=True)
    assert found.offsets[0].offset == 2


@pytest.mark.parametrize("order", [(0, 0), (1, 0)], ids=["in order", "the later first"])
def test_the_later_commit_wins_in_whatever_order_they_end(desk: Desk, order: tuple[int, int]) -> None:
    desk.auto = False
    desk.commit({"t-0": 1})
    desk.commit({"t-0": 2})
    for at in order:
        desk.end(at=at)
    assert desk.committed() == {"t-0": 2}


def test_of_one_request_the_last_wins_as_in_the_log(desk: Desk) -> None:
    items = tuple(OffsetCommitPartition("t", 0, Offset(offset)) for offset in (7, 3))
    desk.ask(desk.shard.commit_offsets, OffsetCommitRequest("g", -1, "", None, items))
    assert desk.committed() == {"t-0": 3}
    desk.fail_over()
    assert desk.committed() == {"t-0": 3}


def test_a_refused_append_leaves_the_old_offset(desk: Desk) -> None:
    desk.commit({"t-0": 1})
    desk.auto = False
    waits = desk.commit({"t-0": 2})
    desk.end(ErrorCode.MESSAGE_TOO_LARGE)
    assert desk.error(waits) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert desk.committed() == {"t-0": 1}


def test_a_refused_first_commit_leaves_no_group(desk: Desk) -> None:
    desk.auto = False
    waits = desk.commit({"t-0": 2})
    desk.end(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert desk.error(waits) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not desk.has_group()
    assert desk.shard.state.population.offsets == 0


def test_a_commit_that_takes_too_long_counts_all_the_same_when_it_is_through(desk: Desk) -> None:
    desk.auto = False
    waits = desk.commit({"t-0": 2})
    desk.pass_time(4_999)
    assert waits not in desk.answers
    desk.pass_time(1)
    assert desk.error(waits) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.committed() == {}
    desk.end()
    assert desk.committed() == {"t-0": 2}


def test_a_group_that_is_not_there_has_committed_nothing(desk: Desk) -> None:
    found = desk.shard.fetch_offsets(OffsetFetchGroup("g", (GroupPartition("t", 0),)), require_stable=True)
    assert found.error is ErrorCode.NONE
    assert found.offsets == (CommittedOffset("t", 0, ErrorCode.NONE),)
    assert desk.committed() == {}


# --- Deleting -----------------------------------------------------------------------------------------


def test_offsets_of_topics_in_use_are_not_deleted(desk: Desk) -> None:
    (member_id,) = desk.stable(protocols=_subscribe("t"))
    desk.commit({"t-0": 1, "u-0": 2}, member_id, 1)
    answer = desk.answers[desk.delete_offsets("t-0", "u-0", "u-1")]
    assert [result.error for result in answer.results] == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    assert desk.committed() == {"t-0": 1}
    desk.fail_over()
    assert desk.committed() == {"t-0": 1}


def test_offsets_are_not_deleted_where_subscriptions_cannot_be_read(desk: Desk) -> None:
    (member_id,) = desk.stable(protocols={"range": b"?"})
    desk.commit({"t-0": 1}, member_id, 1)
    assert desk.answers[desk.delete_offsets("t-0")].results[0].error is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_offsets_of_no_group_and_of_others_than_consumers(desk: Desk) -> None:
    assert desk.error(desk.delete_offsets("t-0")) is ErrorCode.GROUP_ID_NOT_FOUND
    desk.stable(protocol_type="connect")
    assert desk.error(desk.delete_offsets("t-0")) is ErrorCode.NON_EMPTY_GROUP


def test_a_group_is_deleted_with_its_offsets(desk: Desk) -> None:
    assert desk.error_of_group(desk.delete_group()) is ErrorCode.GROUP_ID_NOT_FOUND
    (member_id,) = desk.stable()
    desk.commit({"t-0": 1}, member_id, 1)
    assert desk.error_of_group(desk.delete_group()) is ErrorCode.NON_EMPTY_GROUP
    desk.leave((member_id, None))
    assert desk.error_of_group(desk.delete_group()) is ErrorCode.NONE
    assert not desk.has_group()
    desk.fail_over()
    assert not desk.has_group()
    assert desk.committed() == {}
    assert desk.shard.state.population.offsets == 0


def test_a_group_that_somebody_joins_while_it_is_deleted_lives_on_without_its_offsets(desk: Desk) -> None:
    desk.commit({"t-0": 1})
    desk.auto = False
    waits = desk.delete_group()
    desk.newcomer()
    desk.end()
    assert desk.error_of_group(waits) is ErrorCode.NONE
    assert desk.committed() == {}
    assert len(desk.group().members) == 1


def test_a_refused_deletion_leaves_all(desk: Desk) -> None:
    desk.commit({"t-0": 1})
    desk.auto = False
    waits = desk.delete_group()
    desk.end(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert desk.error_of_group(waits) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.committed() == {"t-0": 1}


def test_what_does_not_fit_one_batch_goes_in_several() -> None:
    desk = Desk()
    desk.shard.state.batch_bytes_max = 400
    for number in range(20):
        desk.commit({f"topic-{number}": 1})
    before = len(desk.log)
    assert desk.error_of_group(desk.delete_group()) is ErrorCode.NONE
    assert len(desk.log) - before > 2
    assert not desk.has_group()
    desk.fail_over()
    assert not desk.has_group()


def test_offsets_of_deleted_topics_go(desk: Desk) -> None:
    (member_id,) = desk.stable()
    desk.commit({"t-0": 1, "t-1": 1, "u-0": 2}, member_id, 1)
    desk.commit({"t-0": 3}, group="simple")
    desk.perform(desk.shard.topics_deleted(["t", "t", "other"], desk.now))
    assert desk.committed() == {"u-0": 2}
    assert not desk.has_group("simple")
    desk.fail_over()
    assert desk.committed() == {"u-0": 2}
    assert not desk.has_group("simple")


# --- Expiry -------------------------------------------------------------------------------------------


def test_offsets_expire_after_the_group_became_empty(desk: Desk) -> None:
    (member_id,) = desk.stable(session=1_800_000)
    desk.commit({"t-0": 1}, member_id, 1)
    for _ in range(30):
        desk.pass_time(DAY_MS // 100)
        desk.heartbeat(member_id, 1)
    desk.leave((member_id, None))
    desk.pass_time(RETENTION_MS - 1)
    assert desk.committed() == {"t-0": 1}
    desk.pass_time(600_000)
    assert desk.committed() == {}
    assert not desk.has_group()
    desk.fail_over()
    assert not desk.has_group()


def test_simple_offsets_expire_after_their_commit(desk: Desk) -> None:
    desk.commit({"t-0": 1})
    desk.pass_time(RETENTION_MS // 2)
    desk.commit({"t-1": 1})
    desk.pass_time(RETENTION_MS // 2 + 600_000)
    assert desk.committed() == {"t-1": 1}
    desk.pass_time(RETENTION_MS)
    assert not desk.has_group()


def test_a_stable_consumer_group_loses_offsets_of_topics_it_gave_up() -> None:
    desk = Desk(offsets_retention_minutes=10, offsets_retention_check_interval_ms=1_000)
    (member_id,) = desk.stable(session=1_800_000, protocols=_subscribe("t"))
    desk.commit({"t-0": 1, "u-0": 1}, member_id, 1)
    desk.pass_time(599_999)
    assert desk.committed() == {"t-0": 1, "u-0": 1}
    desk.pass_time(1_001)
    assert desk.committed() == {"t-0": 1}


def test_a_group_of_another_type_with_members_loses_nothing() -> None:
    desk = Desk(offsets_retention_minutes=1, offsets_retention_check_interval_ms=1_000)
    (member_id,) = desk.stable(session=1_800_000, protocol_type="connect")
    desk.commit({"t-0": 1}, member_id, 1)
    desk.pass_time(120_000)
    assert desk.committed() == {"t-0": 1}


def test_what_is_on_its_way_does_not_expire() -> None:
    desk = Desk(offsets_retention_minutes=1, offsets_retention_check_interval_ms=1_000)
    desk.commit({"t-0": 1})
    desk.auto = False
    desk.commit({"t-0": 2})
    desk.pass_time(120_000)
    assert len(desk.appends) == 1
    desk.end()
    assert desk.committed() == {"t-0": 2}


def test_an_empty_group_without_offsets_goes_at_the_next_check(desk: Desk) -> None:
    (member_id,) = desk.stable()
    desk.leave((member_id, None))
    assert desk.group().state is GroupState.EMPTY
    desk.pass_time(600_000)
    assert not desk.has_group()
    assert isinstance(append := desk.log[-1], Append)
    assert append.records[0].value is None
    desk.fail_over()
    assert not desk.has_group()


def test_a_refused_tombstone_is_written_by_a_later_check() -> None:
    desk = Desk(offsets_retention_minutes=1, offsets_retention_check_interval_ms=1_000)
    desk.commit({"t-0": 1})
    desk.auto = False
    desk.pass_time(60_000)
    desk.end(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert desk.committed() == {"t-0": 1}
    desk.auto = True
    desk.pass_time(1_000)
    assert desk.committed() == {}


def test_a_check_looks_at_many_groups_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.groups.offsets.expiring._LOOKED_AT_ONCE", 10)
    desk = Desk(offsets_retention_minutes=1, offsets_retention_check_interval_ms=1_000)
    for number in range(50):
        desk.commit({"t-0": 1}, group=f"g{number}")
    desk.wall_ms += 60_000
    desk.now_ms += 1_000
    desk.perform(desk.shard.tick(desk.now))
    assert 40 < len(desk.shard.state.groups) < 50
    assert desk.shard.next_deadline() == desk.now_ms
    desk.settle()
    assert not desk.shard.state.groups
