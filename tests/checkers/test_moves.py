"""The judge of moved replicas: histories that pass, and one of each kind that it must reject."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tidelog.chaos.checkers.moves import moved, placed
from tidelog.model.ids import UNASSIGNED_DIRECTORY, LeaderEpoch, NodeId, PartitionEpoch, TopicId
from tidelog.proto.logs.metadata_records import PartitionRecord

MOVING = PartitionRecord(
    topic_id=TopicId(bytes(16)),
    partition=0,
    replicas=tuple(map(NodeId, (4, 2, 3, 1))),
    isr=tuple(map(NodeId, (1, 2, 3))),
    eligible_leader_replicas=(),
    last_known_elr=(),
    removing_replicas=(NodeId(1),),
    adding_replicas=(NodeId(4),),
    leader=NodeId(1),
    leader_epoch=LeaderEpoch(5),
    partition_epoch=PartitionEpoch(9),
    leader_recovery=False,
    directories=(UNASSIGNED_DIRECTORY,) * 4,
)


def after(*, epochs: int = 1, **fields: Any) -> PartitionRecord:
    made: dict[str, Any] = {
        name: tuple(map(NodeId, found)) if isinstance(found, tuple) else found for name, found in fields.items()
    }
    return dataclasses.replace(MOVING, partition_epoch=PartitionEpoch(MOVING.partition_epoch + epochs), **made)


OVER: dict[str, Any] = {
    "replicas": (4, 2, 3), "adding_replicas": (), "removing_replicas": (), "isr": (2, 3, 4), "leader": NodeId(4),
    "leader_epoch": LeaderEpoch(6),
}  # fmt: skip


@pytest.mark.parametrize(
    "now",
    [
        after(isr=(1, 2, 3, 4)),
        after(isr=(1,), eligible_leader_replicas=(2, 3)),
        after(**OVER),
        after(**{**OVER, "replicas": (1, 2, 3), "isr": (1, 2, 3), "leader": NodeId(1)}),
        after(epochs=2, **{**OVER, "isr": (2,), "leader_epoch": LeaderEpoch(5)}),
    ],
)
def test_what_may_happen_passes(now: PartitionRecord) -> None:
    """The last: what came between was not heard of, so it is not judged."""
    assert moved("t-0", MOVING, now, 2) == []


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (after(**{**OVER, "isr": (2, 3), "leader": NodeId(2)}), "moved to [4, 2, 3] before [4] were in sync"),
        (after(**{**OVER, "leader_epoch": LeaderEpoch(5)}), "lost the replicas [1] and kept leader epoch 5"),
        (after(**{**OVER, "isr": (4,)}), "let go of [1] while only (4,) are in sync; 2 are to be"),
    ],
)
def test_what_may_not_is_told(now: PartitionRecord, text: str) -> None:
    (found,) = moved("t-0", MOVING, now, 2)
    assert text in found


@pytest.mark.parametrize(
    ("before", "now", "cordoned", "found"),
    [
        ((1, 2), (1, 3), (), []),
        ((1, 2), (2, 1), (1, 2), []),
        ((1, 2), (1, 3), (2,), []),
        ((1, 2), (1, 3), (3,), ["moves: t-0 got a replica on [3], which are cordoned or unregistered"]),
        ((), (1, 3), (3,), ["moves: t-0 got a replica on [3], which are cordoned or unregistered"]),
    ],
)
def test_nothing_new_stands_on_a_cordoned_broker(
    before: tuple[int, ...], now: tuple[int, ...], cordoned: tuple[int, ...], found: list[str]
) -> None:
    assert placed("t-0", map(NodeId, before), map(NodeId, now), [*map(NodeId, cordoned)]) == found
