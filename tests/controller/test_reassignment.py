"""Moves of replicas, and requested elections. Cases: Kafka's ``ReplicationControlManagerTest``,
``PartitionReassignmentReplicasTest``; KIP-455, KIP-460, KIP-860."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.metadata_quorum.image.snapshot import decode_snapshot, encode_snapshot
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ControllerEpoch, NodeId
from tidelog.proto.calls.reassignment_api import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    NamedPartition,
    PartitionReassignment,
)

from .conftest import Bench

NONE = ErrorCode.NONE


@pytest.fixture
def five(bench: Bench) -> Bench:
    """Five brokers; ``t`` on the first three."""
    bench.up(1, 2, 3, 4, 5)
    assert bench.create("t", (1, 2, 3), min_insync_replicas="2").error is NONE
    return bench


def sets(bench: Bench) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    """(replicas, adding, removing, ISR, leader)"""
    found = bench.partition("t")
    return found.replicas, found.adding_replicas, found.removing_replicas, found.isr, found.leader


def test_a_replica_moves_once_the_new_one_is_in_sync(five: Bench) -> None:
    assert five.move("t", (4, 2, 3)).error is NONE
    assert sets(five) == ((4, 2, 3, 1), (4,), (1,), (1, 2, 3), 1)
    assert five.partition("t").leader_epoch == 0, "nobody has gone yet"
    answer = five.alter_isr("t", (1, 2, 3, 4))
    assert answer.error is ErrorCode.NEW_LEADER_ELECTED
    assert sets(five) == ((4, 2, 3), (), (), (2, 3, 4), 4)
    assert five.partition("t").leader_epoch == 1


def test_a_leader_hears_of_the_end_of_a_reassignment_by_metadata_only(five: Bench) -> None:
    """It stays, but how many in-sync replicas are enough may have changed, and the answer does not say."""
    five.move("t", (1, 2, 4))
    answer = five.alter_isr("t", (1, 2, 3, 4))
    assert answer.error is ErrorCode.INVALID_UPDATE_VERSION
    assert sets(five) == ((1, 2, 4), (), (), (1, 2, 4), 1)
    assert five.partition("t").leader_epoch == 1, "it must forget how far the old replica was"


def test_nothing_ends_before_all_new_replicas_are_in_sync(five: Bench) -> None:
    five.move("t", (4, 5))
    assert five.alter_isr("t", (1, 2, 3, 4)).error is NONE
    assert sets(five) == ((4, 5, 1, 2, 3), (4, 5), (1, 2, 3), (1, 2, 3, 4), 1)
    five.alter_isr("t", (1, 2, 3, 4, 5))
    assert sets(five) == ((4, 5), (), (), (4, 5), 4)


def test_a_reassignment_ends_with_whatever_change_makes_it_possible(five: Bench) -> None:
    """Replica 3 is to be the only other one, and is not in sync; then min.insync.replicas says that 1 is enough."""
    five.alter_isr("t", (1, 2))
    assert five.move("t", (1, 3)).error is NONE
    assert sets(five) == ((1, 3, 2), (), (2,), (1, 2), 1)
    five.set("topic", "t", "min.insync.replicas", "1")
    assert sets(five) == ((1, 3), (), (), (1,), 1)


def test_a_reassignment_ends_with_the_election_that_makes_it_possible(bench: Bench) -> None:
    """None of the old replicas is there. The new one leads, since that is allowed, and completes the reassignment."""
    bench.up(1, 2, 3)
    bench.create("t", (2, 3), unclean_leader_election_enable="true")
    bench.silence(2, 3)
    assert bench.move("t", (2, 1)).error is NONE
    assert sets(bench) == ((2, 1), (), (), (1,), 1)
    assert bench.partition("t").leader_recovery


def test_fewer_replicas_at_once_where_enough_are_in_sync(five: Bench) -> None:
    assert five.move("t", (3,)).error is NONE
    assert sets(five) == ((3,), (), (), (3,), 3)
    assert five.partition("t").leader_epoch == 1


def test_another_order_changes_the_preferred_leader_alone(five: Bench) -> None:
    assert five.move("t", (3, 1, 2)).error is NONE
    assert sets(five) == ((3, 1, 2), (), (), (1, 2, 3), 1)
    assert five.partition("t").leader_epoch == 0


def test_what_is_there_already_is_no_change(five: Bench) -> None:
    offset = five.offset
    assert five.move("t", (1, 2, 3)).error is NONE
    assert five.offset == offset


def test_more_replicas_do_not_raise_what_is_enough_before_they_are_there(bench: Bench) -> None:
    """A topic of one replica that gets three stays writable meanwhile. Kafka counts those that are added."""
    bench.up(1, 2, 3)
    bench.set("broker", "", "min.insync.replicas", "2")
    bench.create("t", (1,))
    assert bench.move("t", (1, 2, 3)).error is NONE
    bench.alter_isr("t", (1, 2))
    bench.silence(2)
    assert bench.partition("t").eligible_leader_replicas == (), "1 alone may commit, so 2 need not have everything"
    bench.beat(2)
    bench.alter_isr("t", (1, 2, 3))
    assert sets(bench) == ((1, 2, 3), (), (), (1, 2, 3), 1)
    bench.silence(2, 3)
    assert bench.partition("t").eligible_leader_replicas == (2, 3)


def test_directories_go_with_their_replicas(five: Bench) -> None:
    places = dict(zip((1, 2, 3), five.partition("t").directories, strict=True))
    five.move("t", (5, 3))
    found = five.partition("t")
    there = dict(zip(found.replicas, found.directories, strict=True))
    assert {node: there[NodeId(node)] for node in (1, 2, 3)} == places
    newcomer = five.controller.committed.broker(NodeId(5))
    assert newcomer is not None
    assert there[NodeId(5)] == newcomer.log_dirs[0]


def test_cancelling_brings_the_old_replicas_back(five: Bench) -> None:
    five.move("t", (4, 5, 1))
    five.alter_isr("t", (1, 2, 3, 4))
    assert five.move("t", None).error is NONE
    assert sets(five) == ((1, 2, 3), (), (), (1, 2, 3), 1)
    assert five.partition("t").leader_epoch == 1
    assert five.move("t", None).error is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_what_would_leave_too_few_in_sync_is_refused(five: Bench) -> None:
    five.move("t", (4, 5))
    five.silence(2, 3)
    assert five.alter_isr("t", (1, 4)).error is NONE
    refused = five.move("t", None)
    assert refused.error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "expected at least 2 in-sync replicas to stay" in refused.error_message
    assert sets(five) == ((4, 5, 1, 2, 3), (4, 5), (1, 2, 3), (1, 4), 1)
    assert five.move("t", (5, 1)).error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    five.beat(2)
    five.alter_isr("t", (1, 2, 4))
    assert five.move("t", None).error is NONE
    assert sets(five) == ((1, 2, 3), (), (), (1, 2), 1)


def test_a_second_wish_replaces_the_first(five: Bench) -> None:
    """A replica that was being added and is no longer requested goes at once; the original ones stay until the end."""
    five.move("t", (4, 2, 3))
    five.alter_isr("t", (1, 2, 3))
    assert five.move("t", (5, 2, 3)).error is NONE
    assert sets(five) == ((5, 2, 3, 1), (5,), (1,), (1, 2, 3), 1)
    assert five.move("t", (1, 2, 3)).error is NONE
    assert sets(five) == ((1, 2, 3), (), (), (1, 2, 3), 1)


def test_a_leader_that_is_only_being_added_gives_up_when_it_is_not_wished_for(five: Bench) -> None:
    five.move("t", (4, 5))
    five.alter_isr("t", (1, 2, 3, 4))
    assert elect(five, "preferred") == [(0, NONE)]
    assert five.partition("t").leader == 4
    assert five.move("t", (1, 2, 5)).error is NONE
    assert sets(five) == ((1, 2, 5, 3), (5,), (3,), (1, 2, 3), 1)


def test_brokers_may_be_down_but_must_be_known(five: Bench) -> None:
    five.silence(5)
    assert five.move("t", (1, 2, 5)).error is NONE
    assert sets(five) == ((1, 2, 5, 3), (5,), (3,), (1, 2, 3), 1)


@pytest.mark.parametrize(
    ("replicas", "more", "error", "text"),
    [
        ((), {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "found none"),
        ((1, 1), {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "different brokers"),
        ((1, 9), {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "found 9, which is none"),
        ((-1, 2), {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "found -1, which is none"),
        ((4, 5), {"allow_factor_change": False}, ErrorCode.INVALID_REPLICATION_FACTOR, "expected 3 replicas"),
        (None, {}, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "whose are not"),
        ((1, 2), {"number": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "found t-7"),
    ],
)
def test_what_is_refused(
    five: Bench, replicas: tuple[int, ...] | None, more: dict[str, Any], error: ErrorCode, text: str
) -> None:
    before = five.controller.committed
    refused = five.move("t", replicas, **more)
    assert refused.error is error
    assert text in refused.error_message
    assert five.controller.committed.partition(*_at(five)) == before.partition(*_at(five))


def _at(bench: Bench) -> tuple[Any, int]:
    return bench.partition("t").topic_id, 0


def test_each_partition_is_judged_by_itself(five: Bench) -> None:
    five.create("u", (1, 2), (2, 1))
    wishes = (
        PartitionReassignment("u", 0, (NodeId(3), NodeId(4))),
        PartitionReassignment("u", 1, ()),
        PartitionReassignment("t", 0, (NodeId(4),)),
        PartitionReassignment("t", 0, (NodeId(5),)),
    )
    answer = five.ask(AlterPartitionReassignmentsRequest(wishes))
    assert [found.error for found in answer.partitions] == [
        NONE,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    listed = five.ask(ListPartitionReassignmentsRequest(all_partitions=True)).reassignments
    assert [(one.topic, one.partition, one.replicas, one.adding, one.removing) for one in listed] == [
        ("u", 0, (3, 4, 1, 2), (3, 4), (1, 2))
    ]
    named = (NamedPartition("t", 0), NamedPartition("u", 0), NamedPartition("u", 0), NamedPartition("no", 3))
    assert five.ask(ListPartitionReassignmentsRequest(named)).reassignments == listed


def test_a_reassignment_outlives_controller_and_snapshot(five: Bench) -> None:
    five.move("t", (4, 2, 3))
    image = five.controller.committed
    assert decode_snapshot(encode_snapshot(image)) == image
    five.controller.resign()
    five.take(five.controller.lead(ControllerEpoch(2), five.now_ms))
    assert sets(five) == ((4, 2, 3, 1), (4,), (1,), (1, 2, 3), 1)
    five.alter_isr("t", (1, 2, 3, 4))
    assert sets(five) == ((4, 2, 3), (), (), (2, 3, 4), 4)


def test_a_leader_that_dies_in_the_midst_is_succeeded_by_who_is_in_sync(five: Bench) -> None:
    five.move("t", (4, 5))
    five.silence(1)
    assert sets(five) == ((4, 5, 1, 2, 3), (4, 5), (1, 2, 3), (2, 3), 2)
    five.alter_isr("t", (2, 3, 4, 5))
    assert sets(five) == ((4, 5), (), (), (4, 5), 4)


def test_an_unclean_election_takes_one_that_is_being_added_last(bench: Bench) -> None:
    bench.up(1, 2, 3, 4)
    bench.create("t", (1, 2), unclean_leader_election_enable="true")
    bench.alter_isr("t", (1,))
    bench.move("t", (4, 1, 2))
    bench.silence(1)
    assert bench.partition("t").leader == 2


def elect(bench: Bench, election: str, *numbers: int) -> list[tuple[int, ErrorCode]]:
    named = tuple(NamedPartition("t", number) for number in numbers)
    answer = bench.ask(ElectLeadersRequest(election, named, all_partitions=not numbers))
    assert answer.error is NONE
    return [(found.partition, found.error) for found in answer.partitions]


def test_the_preferred_leader_is_elected_where_it_does_not_lead(five: Bench) -> None:
    assert elect(five, "preferred", 0) == [(0, ErrorCode.ELECTION_NOT_NEEDED)]
    assert elect(five, "preferred") == []
    five.silence(1)
    assert elect(five, "preferred") == [(0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
    five.beat(1)
    assert elect(five, "preferred", 0) == [(0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)], "it is not in sync yet"
    five.alter_isr("t", (1, 2, 3))
    epoch = five.partition("t").leader_epoch
    assert elect(five, "preferred", 0, 5) == [(0, NONE), (5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert (five.partition("t").leader, five.partition("t").leader_epoch) == (1, epoch + 1)


def test_an_unclean_election_is_for_what_has_no_leader(five: Bench) -> None:
    """By hand, although the topic allows none by itself."""
    five.alter_isr("t", (1,))
    five.set("topic", "t", "min.insync.replicas", "1")
    assert elect(five, "unclean", 0) == [(0, ErrorCode.ELECTION_NOT_NEEDED)]
    five.silence(1)
    assert five.partition("t").leader == -1
    assert elect(five, "unclean") == [(0, NONE)]
    found = five.partition("t")
    assert (found.leader, found.isr, found.leader_recovery) == (2, (2,), True)
    five.silence(2, 3)
    assert elect(five, "unclean") == [(0, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)]


def test_an_election_of_another_kind_is_refused(five: Bench) -> None:
    answer = five.ask(ElectLeadersRequest("popular", all_partitions=True))
    assert answer.error is ErrorCode.INVALID_REQUEST
    assert "expected an election of preferred or unclean, found 'popular'" in answer.error_message
