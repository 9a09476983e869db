"""What a plan of moves may not do, rule by rule, without a cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import nullcontext

import pytest

from tidelog.cli.failure import CommandFailed
from tidelog.cli.work.replicas.placement import Overview, Placed
from tidelog.cli.work.replicas.safe_moves import check_brokers, check_in_sync, unmovable
from tidelog.client.admin.reassignments import OngoingReassignment
from tidelog.model.ids import BrokerEpoch, NodeId, TopicPartition
from tidelog.proto.calls.api import ClusterBroker
from tidelog.proto.calls.controller_api import Endpoint

AT = TopicPartition("t", 0)


def overview(
    placed: Mapping[TopicPartition, Placed],
    down: Collection[int] = (),
    ongoing: Mapping[TopicPartition, OngoingReassignment] = {},
) -> Overview:
    """Four brokers."""
    brokers = {node: ClusterBroker(NodeId(node), BrokerEpoch(1), node in down, False, None, ()) for node in range(1, 5)}
    return Overview(brokers, dict(placed), dict(ongoing), {})


def test_brokers_on_a_machine_are_in_one_rack_of_a_plan() -> None:
    brokers = {
        node: ClusterBroker(NodeId(node), BrokerEpoch(1), False, False, None, (Endpoint("CLIENT", host, 9092),))
        for node, host in ((1, "a"), (1001, "a"), (2, "b"))
    }
    assert [target.rack for target in Overview(brokers, {}, {}, {}).targets] == ["host a", "host b", "host a"]


@pytest.mark.parametrize(
    ("gone", "down", "dead", "said"),
    [
        ([3], (), False, ""),
        ([3], (3,), True, ""),
        ([4], (4,), False, ""),  # nothing is on it
        ([9], (), False, r"expected brokers among \[1, 2, 3, 4\], found 9"),
        ([3], (3,), False, "expected a live broker, found 3, which is down: start it"),
        ([3], (), True, "expected brokers that are down, found 3, which is live: leave out --dead"),
    ],
)
def test_whom_to_drain(gone: list[int], down: tuple[int, ...], dead: bool, said: str) -> None:
    found = overview({AT: Placed((3, 1), 1, (1,))}, down)
    with pytest.raises(CommandFailed, match=said) if said else nullcontext():
        check_brokers(found, gone, dead=dead)


@pytest.mark.parametrize(
    ("placed", "wanted", "said"),
    [
        (Placed((1, 2, 3), 1, (1, 2, 3)), (1, 2, 4), ""),
        (Placed((1, 2, 3), 1, (1, 3)), (1, 2, 4), ""),  # 2 lags, and 4 will be in sync once it has everything
        (Placed((1, 2, 3), 1, (1,)), (4,), ""),  # more than there will be is not asked for
        (Placed((1, 2, 3), -1, (1,)), (1, 2, 4), "found none for t-0: start broker 3, or delete the topic"),
        (Placed((1, 2, 3), 1, (1, 3)), (1, 2), "t-0: expected 2 in-sync .* found 1: first start broker 2, or wait"),
    ],
)
def test_a_move_that_could_not_end_is_not_begun(placed: Placed, wanted: tuple[int, ...], said: str) -> None:
    found = overview({AT: placed}, (3,))
    with pytest.raises(CommandFailed, match=said) if said else nullcontext():
        check_in_sync(found, {AT: wanted}, {"t": 2})


def test_what_a_rebalance_leaves_alone() -> None:
    moving, headless, behind, whole = (TopicPartition("t", number) for number in range(4))
    placed = {
        moving: Placed((1, 2, 3), 1, (1, 2, 3)),
        headless: Placed((1, 2), -1, (1, 2)),
        behind: Placed((1, 2), 1, (1,)),
        whole: Placed((1, 2), 1, (1, 2)),
    }
    move = OngoingReassignment((NodeId(1), NodeId(2), NodeId(3)), (NodeId(3),), (NodeId(1),))
    assert unmovable(overview(placed, ongoing={moving: move})) == {moving, headless, behind}
