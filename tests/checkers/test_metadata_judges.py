"""Each rule of the cluster's metadata: a run that breaks it, and one like it that does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidelog.chaos.checkers.metadata import ImageJudge, PartitionStanding, StandingJudge
from tidelog.model.ids import NO_NODE, NodeId, TopicPartition

P = TopicPartition("t", 0)
A, B, C, D = NodeId(1), NodeId(2), NodeId(3), NodeId(4)
Texts = list[list[str]]

FIRST = PartitionStanding(P, A, 5, 10, (A, B, C), (A, B), (C,))


def changed(**fields: Any) -> PartitionStanding:
    """The first standing, changed, with the next partition epoch."""
    return FIRST._replace(partition_epoch=11)._replace(**fields)


def brokers(judge: StandingJudge, fenced: tuple[NodeId, ...] = ()) -> Texts:
    return [judge.broker(node, 100 + node, fenced=node in fenced, at_s=0.0) for node in (A, B, C, D)]


def then(*standings: PartitionStanding, fenced: tuple[NodeId, ...] = ()) -> Callable[[StandingJudge], Texts]:
    return lambda judge: [*brokers(judge, fenced), *(judge.partition(standing) for standing in (FIRST, *standings))]


def unclean(judge: StandingJudge) -> Texts:
    standing = changed(leader=D, leader_epoch=6, isr=(D,), replicas=(A, D))
    return [*brokers(judge), judge.partition(FIRST), judge.partition(standing, unclean=True)]


def led_by_who_ended_a_move(judge: StandingJudge) -> Texts:
    standing = changed(leader=D, leader_epoch=6, isr=(B, D), replicas=(B, D))
    return [*brokers(judge), judge.partition(FIRST), judge.partition(standing, moved=True)]


def made_anew(judge: StandingJudge) -> Texts:
    first = [*brokers(judge), judge.partition(FIRST)]
    judge.forgotten(P)
    return [*first, judge.partition(FIRST._replace(leader=C, leader_epoch=0, partition_epoch=0, isr=(C,)))]


def broker_epoch_falls(judge: StandingJudge) -> Texts:
    return [judge.broker(A, 7, fenced=True, at_s=0.0), judge.broker(A, 6, fenced=False, at_s=1.0)]


def old_epoch_is_granted(judge: StandingJudge) -> Texts:
    return [*registered_twice(judge), judge.granted(A, 7, "a heartbeat", asked_s=2.5)]


def old_epoch_asked_before(judge: StandingJudge) -> Texts:
    return [*registered_twice(judge), judge.granted(A, 7, "a heartbeat", asked_s=1.5)]


def new_epoch_is_granted(judge: StandingJudge) -> Texts:
    granted = judge.granted(A, 9, "a heartbeat", asked_s=2.5)
    return [*registered_twice(judge), granted, judge.granted(B, 1, "a heartbeat", asked_s=2.5)]


def fenced_is_granted(judge: StandingJudge) -> Texts:
    return [*registered_twice(judge), judge.granted(A, 9, "a change of the ISR", asked_s=2.5, needs_unfenced=True)]


def unfenced_is_granted(judge: StandingJudge) -> Texts:
    return [*registered_twice(judge), judge.granted(A, 9, "a change of the ISR", asked_s=3.5, needs_unfenced=True)]


def fenced_beats_on(judge: StandingJudge) -> Texts:
    return [*registered_twice(judge), judge.granted(A, 9, "a heartbeat", asked_s=2.5)]


def unregistered_and_back(epoch: int) -> Callable[[StandingJudge], Texts]:
    """Epoch 7 until 2 s, ``epoch`` from 3 s on."""

    def steps(judge: StandingJudge) -> Texts:
        first = judge.broker(A, 7, fenced=True, at_s=1.0)
        judge.unregistered(A, 2.0)
        return [first, judge.broker(A, epoch, fenced=True, at_s=3.0)]

    return steps


def granted_to_an_unregistered_one(judge: StandingJudge) -> Texts:
    first = judge.broker(A, 7, fenced=True, at_s=1.0)
    judge.unregistered(A, 2.0)
    return [first, judge.granted(A, 7, "a heartbeat", asked_s=1.5), judge.granted(A, 7, "a heartbeat", asked_s=2.5)]


def registered_twice(judge: StandingJudge) -> Texts:
    """Epoch 7 at 1 s, epoch 9 at 2 s, fenced until 3 s."""
    return [
        judge.broker(A, 7, fenced=False, at_s=1.0),
        judge.broker(A, 9, fenced=True, at_s=2.0),
        judge.broker(A, 9, fenced=False, at_s=3.0),
    ]


REJECTED: dict[str, tuple[str, Callable[[StandingJudge], Texts]]] = {
    "changed under the same partition epoch": ("partition epochs", then(changed(isr=(A,), partition_epoch=10))),
    "partition epoch falls": ("partition epochs", then(changed(isr=(A,), partition_epoch=9))),
    "leader epoch falls": ("partition epochs", then(changed(leader_epoch=4))),
    "another leader in the same leader epoch": ("partition epochs", then(changed(leader=B))),
    "a stranger is in sync": ("in-sync replicas", then(changed(isr=(A, B, D)))),
    "the leader is not in sync": ("in-sync replicas", then(changed(isr=(B,)))),
    "a fenced node joins": ("in-sync replicas", then(changed(isr=(A, B, C)), fenced=(C,))),
    "an unclean leader": ("clean elections", then(changed(leader=D, leader_epoch=6, isr=(D,), replicas=(A, D)))),
    "a broker epoch falls": ("fencing", broker_epoch_falls),
    "granted under an old epoch": ("fencing", old_epoch_is_granted),
    "granted while fenced": ("fencing", fenced_is_granted),
    "granted to an unregistered broker": ("fencing", granted_to_an_unregistered_one),
    "an unregistered broker's epoch again": ("fencing", unregistered_and_back(7)),
}
PASSED: dict[str, Callable[[StandingJudge], Texts]] = {
    "nothing changes": then(FIRST),
    "the ISR shrinks": then(changed(isr=(A,))),
    "a leader from the ISR": then(changed(leader=B, leader_epoch=6, isr=(B,))),
    "an eligible leader": then(changed(leader=C, leader_epoch=6, isr=(C,))),
    "no leader": then(changed(leader=NO_NODE, leader_epoch=6)),
    "an unfenced node joins": then(changed(isr=(A, B, C)), fenced=(D,)),
    "an unclean leader that was meant": unclean,
    "a leader whose being in sync ended a reassignment": led_by_who_ended_a_move,
    "a topic made anew": made_anew,
    "asked under the epoch of its time": old_epoch_asked_before,
    "granted under the new epoch": new_epoch_is_granted,
    "granted when unfenced": unfenced_is_granted,
    "a fenced broker's heartbeat": fenced_beats_on,
    "a new epoch after an unregistered broker's": unregistered_and_back(8),
}


@pytest.mark.parametrize(("rule", "steps"), [pytest.param(*each, id=name) for name, each in REJECTED.items()])
def test_rejects(rule: str, steps: Callable[[StandingJudge], Texts]) -> None:
    found = [text for texts in steps(StandingJudge()) for text in texts]
    assert found
    assert {text.partition(":")[0] for text in found} == {rule}


@pytest.mark.parametrize("steps", [pytest.param(each, id=name) for name, each in PASSED.items()])
def test_passes(steps: Callable[[StandingJudge], Texts]) -> None:
    assert [text for texts in steps(StandingJudge()) for text in texts] == []


def images() -> ImageJudge:
    judge = ImageJudge()
    assert judge.committed(2, 1) == judge.committed(3, 1) == judge.committed(4, 2) == judge.committed(3, 1) == []
    return judge


def test_images_that_follow_the_log() -> None:
    judge = images()
    assert judge.observe(A, 2, 1, "two") == judge.observe(B, 2, 1, "two") == judge.observe(A, 4, 2, "four") == []
    assert judge.observe(A, 4, 2) == judge.observe(B, 3, 1) == judge.observe(B, 4, 2, "four") == []
    judge.restarted(A)
    assert judge.observe(A, 3, 1) == []


@pytest.mark.parametrize(
    ("offset", "epoch", "digest", "words"),
    [
        (2, 1, None, "went back from 3 to 2"),
        (5, 2, None, "is at 5; committed is 4"),
        (4, 1, None, "is of epoch 1, committed is 2"),
        (3, 1, "other", "nodes 2 and 1 have different images at 3"),
    ],
)
def test_images_that_do_not(offset: int, epoch: int, digest: str | None, words: str) -> None:
    judge = images()
    assert judge.observe(A, 3, 1) == judge.observe(B, 3, 1, "three") == []
    (text,) = judge.observe(A, offset, epoch, digest)
    assert words in text


def test_an_offset_committed_with_two_epochs() -> None:
    assert len(images().committed(4, 3)) == 1
