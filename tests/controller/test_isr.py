"""AlterPartition. Cases: Kafka's ``ReplicationControlManagerTest``; KIP-497, KIP-841, KIP-903."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import BrokerEpoch, LeaderEpoch, NodeId, PartitionEpoch, TopicId
from tidelog.proto.calls.controller_api import AlterPartitionItem, AlterPartitionRequest, IsrMember

from .conftest import Bench

NONE = ErrorCode.NONE


@pytest.fixture
def three(bench: Bench) -> Bench:
    bench.up(1, 2, 3)
    assert bench.create("t", (1, 2, 3), min_insync_replicas="2").error is NONE
    return bench


def test_shrink_and_expand(three: Bench) -> None:
    shrunk = three.alter_isr("t", (1, 3))
    assert (shrunk.error, shrunk.isr, shrunk.leader, shrunk.leader_epoch, shrunk.partition_epoch) == (
        NONE,
        (1, 3),
        1,
        0,
        1,
    )
    grown = three.alter_isr("t", (1, 3, 2))
    assert (grown.error, grown.isr, grown.partition_epoch) == (NONE, (1, 3, 2), 2)


def test_same_isr_changes_nothing(three: Bench) -> None:
    offset = three.offset
    same = three.alter_isr("t", (1, 2, 3))
    assert (same.error, same.partition_epoch) == (NONE, 0)
    assert three.offset == offset


def test_below_min_isr_who_leaves_stays_eligible(three: Bench) -> None:
    three.alter_isr("t", (1,))
    assert three.partition("t").eligible_leader_replicas == (2, 3)
    three.alter_isr("t", (1, 2))
    assert three.partition("t").eligible_leader_replicas == ()


def test_a_leader_hears_of_eligible_replicas_by_metadata_only(bench: Bench) -> None:
    """A leader that goes by 1, and has not heard that it takes 2, would commit alone records that replicas 2 and 3 are
    supposed to have."""
    bench.up(1, 2, 3)
    assert bench.create("t", (1, 2, 3), min_insync_replicas="1").error is NONE
    bench.set("topic", "t", "min.insync.replicas", "2")
    assert bench.alter_isr("t", (1, 2)).error is NONE
    assert bench.alter_isr("t", (1,)).error is ErrorCode.INVALID_UPDATE_VERSION
    assert bench.partition("t").isr == (1,)
    assert bench.partition("t").eligible_leader_replicas == (2,)
    assert bench.alter_isr("t", (1, 2)).error is NONE


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"partition_epoch": 5}, ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": 5}, ErrorCode.NOT_CONTROLLER),
        ({"sender": 2}, ErrorCode.INVALID_REQUEST),
        ({"isr": (2, 3)}, ErrorCode.INVALID_REQUEST),
        ({"isr": ()}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 1)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 9)}, ErrorCode.INVALID_REQUEST),
        ({"number": 0, "epochs": {2: 77}}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_refused(three: Bench, how: dict[str, Any], error: ErrorCode) -> None:
    isr = how.pop("isr", (1, 2))
    result = three.alter_isr("t", isr, **how)
    assert result.error is error
    assert (result.leader, result.partition_epoch, result.isr) == (1, 0, (1, 2, 3)), "the answer says how it stands"


def test_older_epochs_are_fenced(three: Bench) -> None:
    three.alter_isr("t", (1, 2))
    assert three.alter_isr("t", (1,), partition_epoch=0).error is ErrorCode.INVALID_UPDATE_VERSION
    three.silence(1)
    assert three.partition("t").leader == 2
    three.beat(1)
    zombie = three.alter_isr("t", (1, 2), sender=1, leader_epoch=0, partition_epoch=1)
    assert zombie.error is ErrorCode.FENCED_LEADER_EPOCH


def test_stale_leader_process_is_refused(three: Bench) -> None:
    old = three.epochs[1]
    three.silence(1)
    three.up(1)
    response = three.ask(AlterPartitionRequest(NodeId(1), old, ()))
    assert response.error is ErrorCode.STALE_BROKER_EPOCH


def test_fenced_or_leaving_replica_may_not_join(three: Bench) -> None:
    three.silence(3)
    assert three.alter_isr("t", (1, 2, 3)).error is ErrorCode.INELIGIBLE_REPLICA
    three.beat(3)
    assert three.alter_isr("t", (1, 2, 3)).error is NONE
    three.beat(3, want_fence=True)
    assert three.alter_isr("t", (1, 2, 3)).error is ErrorCode.INELIGIBLE_REPLICA


def test_restarted_follower_joins_only_under_its_new_epoch(three: Bench) -> None:
    """KIP-903: what the leader saw the old process fetch says nothing about the new one."""
    old = three.epochs[3]
    three.silence(3)
    three.up(3)
    assert three.alter_isr("t", (1, 2, 3), epochs={3: old}).error is ErrorCode.INELIGIBLE_REPLICA
    assert three.alter_isr("t", (1, 2, 3), epochs={3: -1}).error is ErrorCode.INELIGIBLE_REPLICA
    assert three.alter_isr("t", (1, 2, 3)).error is NONE


def test_member_that_is_in_need_not_be_named_by_epoch(three: Bench) -> None:
    assert three.alter_isr("t", (1, 2), epochs={2: -1}).error is NONE


def test_leader_that_goes_on_has_recovered(bench: Bench) -> None:
    """KIP-704: our brokers ask for an ISR only once they have."""
    bench.up(1, 2)
    bench.create("t", (1, 2), unclean_leader_election_enable="true")
    bench.alter_isr("t", (1,))
    bench.silence(1)
    assert bench.partition("t").leader == 2
    assert bench.partition("t").leader_recovery
    bench.beat(1)
    assert bench.alter_isr("t", (2, 1)).error is NONE
    assert not bench.partition("t").leader_recovery


def test_each_partition_is_judged_by_itself(three: Bench) -> None:
    three.create("u", (1, 2, 3))
    unknown = TopicId(b"?" * 16)
    topics = three.controller.committed.topic_ids
    me = (IsrMember(NodeId(1), three.epochs[1]), IsrMember(NodeId(2), three.epochs[2]))

    def item(topic_id: TopicId, number: int, epoch: int = 0) -> AlterPartitionItem:
        return AlterPartitionItem(topic_id, number, LeaderEpoch(epoch), me, PartitionEpoch(0))

    request = AlterPartitionRequest(
        NodeId(1),
        BrokerEpoch(three.epochs[1]),
        (item(topics["t"], 0), item(topics["t"], 0), item(unknown, 0), item(topics["t"], 7), item(topics["u"], 0)),
    )
    response = three.ask(request)
    assert [found.error for found in response.partitions] == [
        NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        NONE,
    ]
    assert three.partition("t").isr == (1, 2)
    assert three.partition("u").isr == (1, 2)


def test_partition_without_a_leader_takes_no_isr(bench: Bench) -> None:
    bench.up(1, 2)
    bench.create("t", (1,))
    bench.silence(1)
    result = bench.alter_isr("t", (2,), sender=2)
    assert result.error is ErrorCode.INVALID_REQUEST
