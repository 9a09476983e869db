"""The rows of ``groups describe``: committed offsets, log ends, lag and readers put together."""

from __future__ import annotations

from tidelog.cli.work.group_offsets import GroupStanding, standings
from tidelog.client.admin.group_types import CoordinatorNode, GroupDescription, GroupState, MemberDescription
from tidelog.model.ids import NodeId, TopicPartition

A, B, C, GONE = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 2), TopicPartition("old", 0)


def group(*members: MemberDescription) -> GroupDescription:
    where = CoordinatorNode(NodeId(1), "127.0.0.1", 9092)
    return GroupDescription("g", "consumer", "range", GroupState.STABLE, where, members)


def member(name: str, *partitions: TopicPartition) -> MemberDescription:
    return MemberDescription(name, None, f"client-{name}", "10.0.0.1", partitions, ("t",))


def test_partitions_come_first_then_members_that_read_none() -> None:
    found = standings(group(member("m1", A, B), member("m2")), {A: 5, C: 7, GONE: 3}, {A: 9, B: 4, C: 7})
    assert found == [
        GroupStanding("g", "old", 0, 3, None, None, None, None, None),
        GroupStanding("g", "t", 0, 5, 9, 4, "m1", "10.0.0.1", "client-m1"),
        GroupStanding("g", "t", 1, None, 4, None, "m1", "10.0.0.1", "client-m1"),
        GroupStanding("g", "t", 2, 7, 7, 0, None, None, None),
        GroupStanding("g", None, None, None, None, None, "m2", "10.0.0.1", "client-m2"),
    ]


def test_a_committed_offset_beyond_the_end_is_no_negative_lag() -> None:
    (found,) = standings(group(), {A: 9}, {A: 5})
    assert (found.current_offset, found.log_end_offset, found.lag) == (9, 5, 0)


def test_a_member_whose_assignment_cannot_be_read_is_still_shown() -> None:
    strange = MemberDescription("m", None, "c", "h", None, None)
    assert [row.consumer_id for row in standings(group(strange), {}, {})] == ["m"]
