"""Each rule about replicas' content: a run that breaks it, and one like it that does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidelog.chaos.checkers.replication import (
    ReplicaLogJudge,
    StoredBatch,
    VisibleMarkJudge,
    marks_behind,
)
from tidelog.model.ids import NodeId, TopicPartition

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
A, B, C = NodeId(1), NodeId(2), NodeId(3)
Texts = list[list[str]]


def batches(*each: tuple[int, int, int] | tuple[int, int, int, int]) -> list[StoredBatch]:
    """Base offset, last offset, leader epoch and, where it matters, what is in it."""
    return [StoredBatch(one[0], one[1], one[2], one[3] if len(one) == 4 else one[0]) for one in each]


LOG = batches((0, 1, 5), (2, 4, 5), (5, 5, 6))


def see(
    judge: ReplicaLogJudge, node: NodeId, mark: int, log: list[StoredBatch], *, start: int = 0, end: int = -1
) -> list[str]:
    """Sample a replica as a run does: only what is wanted of it is read."""
    log_end = log[-1].last_offset + 1 if end < 0 and log else max(end, 0)
    wanted = judge.wanted(P, node, start, mark, log_end)
    if wanted is None:
        return []
    return judge.observe(P, node, start, mark, log_end, [batch for batch in log if batch.last_offset >= wanted])


def two_leaders(judge: ReplicaLogJudge) -> Texts:
    return [judge.elected(P, 5, A), judge.leads(P, 5, B, 0)]


def leaders_of_two_epochs(judge: ReplicaLogJudge) -> Texts:
    return [judge.elected(P, 5, A), judge.leads(P, 5, A, 0), judge.elected(P, 6, B), judge.elected(Q, 5, B)]


def leader_lacks_a_committed_record(judge: ReplicaLogJudge) -> Texts:
    return [see(judge, A, 5, LOG), judge.elected(P, 6, B), judge.leads(P, 6, B, 4)]


def leader_has_what_is_committed(judge: ReplicaLogJudge) -> Texts:
    return [see(judge, A, 5, LOG), judge.elected(P, 6, B), judge.leads(P, 6, B, 5)]


def leader_of_the_past_lacks_a_record(judge: ReplicaLogJudge) -> Texts:
    return [judge.elected(P, 6, B), see(judge, B, 5, LOG), judge.leads(P, 5, A, 2)]


def other_bytes(judge: ReplicaLogJudge) -> Texts:
    changed = [*LOG[:1], LOG[1]._replace(digest=99), *LOG[2:]]
    return [see(judge, A, 6, LOG), see(judge, B, 6, changed)]


def other_epoch(judge: ReplicaLogJudge) -> Texts:
    return [see(judge, A, 6, LOG), see(judge, B, 6, batches((0, 1, 5), (2, 4, 6), (5, 5, 6)))]


def cut_otherwise(judge: ReplicaLogJudge) -> Texts:
    return [see(judge, A, 6, LOG), see(judge, B, 6, batches((0, 1, 5), (2, 2, 6), (3, 4, 6), (5, 5, 6)))]


def begins_where_none_begins(judge: ReplicaLogJudge) -> Texts:
    return [see(judge, A, 6, LOG), see(judge, B, 6, batches((3, 4, 5), (5, 5, 6)), start=3)]


def equal_below_the_mark(judge: ReplicaLogJudge) -> Texts:
    """Records past the high watermark may differ: they come from another leader's time."""
    other_end = batches((0, 1, 5), (2, 4, 5), (5, 6, 7))
    return [see(judge, A, 5, LOG), see(judge, B, 5, other_end), see(judge, C, 7, other_end)]


def changed_later(judge: ReplicaLogJudge) -> Texts:
    first = see(judge, A, 6, LOG)
    judge.look_again()
    return [first, see(judge, A, 6, batches((0, 1, 5), (2, 4, 5), (5, 5, 7)))]


def looked_at_again(judge: ReplicaLogJudge) -> Texts:
    first = see(judge, A, 6, LOG)
    judge.look_again()
    return [first, see(judge, A, 6, LOG)]


def cut_below_what_was_committed(judge: ReplicaLogJudge) -> Texts:
    return [see(judge, A, 6, LOG), see(judge, A, 2, LOG[:1])]


def cut_above_what_was_committed(judge: ReplicaLogJudge) -> Texts:
    return [see(judge, A, 5, LOG), see(judge, A, 5, LOG[:2])]


def another_life_knows_less(judge: ReplicaLogJudge) -> Texts:
    first = see(judge, A, 6, LOG)
    judge.restarted(A)
    return [first, see(judge, A, 2, LOG[:1]), see(judge, A, 6, LOG)]


def deleted_from_the_start(judge: ReplicaLogJudge) -> Texts:
    """A log may begin in the midst of a batch."""
    return [see(judge, A, 2, LOG), see(judge, B, 6, LOG[1:], start=3), see(judge, A, 6, LOG[1:], start=3)]


def expired_before_anybody_looked(judge: ReplicaLogJudge) -> Texts:
    """A leader commits two batches and deletes the first at once; followers learn later that it was committed."""
    return [see(judge, A, 2, LOG), see(judge, A, 6, LOG[2:], start=5), see(judge, B, 6, LOG), see(judge, C, 6, LOG)]


def expired_and_different_elsewhere(judge: ReplicaLogJudge) -> Texts:
    other = batches((0, 1, 5), (2, 4, 6), (5, 5, 6))
    return [see(judge, A, 2, LOG), see(judge, A, 6, LOG[2:], start=5), see(judge, B, 6, LOG), see(judge, C, 6, other)]


def hole(judge: ReplicaLogJudge) -> Texts:
    return [see(judge, A, 6, [LOG[0], LOG[2]])]


def overlap(judge: ReplicaLogJudge) -> Texts:
    return [see(judge, A, 5, batches((0, 1, 5), (1, 4, 5)))]


def ends_before_the_mark(judge: ReplicaLogJudge) -> Texts:
    return [see(judge, A, 6, LOG[:2], end=6)]


def epochs_fall(judge: ReplicaLogJudge) -> Texts:
    return [see(judge, A, 5, batches((0, 1, 6), (2, 4, 5)))]


def epochs_fall_between_samples(judge: ReplicaLogJudge) -> Texts:
    return [see(judge, A, 2, batches((0, 1, 6))), see(judge, A, 5, batches((0, 1, 6), (2, 4, 5)))]


def one_epoch_two_batches(judge: ReplicaLogJudge) -> Texts:
    return [see(judge, A, 2, LOG), see(judge, B, 2, batches((0, 1, 5), (2, 4, 5, 99)))]


def two_epochs_two_batches(judge: ReplicaLogJudge) -> Texts:
    return [see(judge, A, 2, LOG), see(judge, B, 2, batches((0, 1, 5), (2, 4, 6, 99)))]


def mark_beyond_the_log(judge: ReplicaLogJudge) -> Texts:
    return [see(judge, A, 7, LOG)]


def mark_at_the_end(judge: ReplicaLogJudge) -> Texts:
    return [see(judge, A, 6, LOG)]


def lost_legally(judge: ReplicaLogJudge) -> Texts:
    first = see(judge, A, 6, LOG)
    judge.lost(P, 2)
    anew = batches((0, 1, 5), (2, 3, 7))
    return [first, judge.elected(P, 7, B), judge.leads(P, 7, B, 2), see(judge, A, 4, anew), see(judge, B, 4, anew)]


def lost_legally_and_something_below_too(judge: ReplicaLogJudge) -> Texts:
    first = see(judge, A, 6, LOG)
    judge.lost(P, 2)
    return [first, judge.elected(P, 7, B), judge.leads(P, 7, B, 1)]


def settled_apart(judge: ReplicaLogJudge) -> Texts:
    return [see(judge, A, 6, LOG), judge.settled(P, {A: (6, 6), B: (5, 6)})]


def settled_short(judge: ReplicaLogJudge) -> Texts:
    return [see(judge, A, 6, LOG), judge.settled(P, {A: (5, 5), B: (5, 5)})]


def settled(judge: ReplicaLogJudge) -> Texts:
    return [see(judge, A, 6, LOG), judge.settled(P, {A: (6, 6), B: (6, 6)})]


REJECTED = {
    two_leaders: "one leader an epoch",
    leader_lacks_a_committed_record: "leader completeness",
    lost_legally_and_something_below_too: "leader completeness",
    other_epoch: "byte-identical",
    cut_otherwise: "byte-identical",
    begins_where_none_begins: "byte-identical",
    changed_later: "byte-identical",
    cut_below_what_was_committed: "byte-identical",
    settled_apart: "byte-identical",
    expired_and_different_elsewhere: "byte-identical",
    settled_short: "byte-identical",
    hole: "no holes",
    overlap: "no holes",
    ends_before_the_mark: "no holes",
    epochs_fall: "no holes",
    epochs_fall_between_samples: "no holes",
    one_epoch_two_batches: "epoch matching",
    mark_beyond_the_log: "marks behind",
}
PASSED = [
    leaders_of_two_epochs,
    leader_has_what_is_committed,
    leader_of_the_past_lacks_a_record,
    equal_below_the_mark,
    looked_at_again,
    cut_above_what_was_committed,
    another_life_knows_less,
    deleted_from_the_start,
    expired_before_anybody_looked,
    two_epochs_two_batches,
    mark_at_the_end,
    lost_legally,
    settled,
]


def judged(steps: Callable[[ReplicaLogJudge], Texts]) -> list[str]:
    return [text for texts in steps(ReplicaLogJudge()) for text in texts]


@pytest.mark.parametrize(("steps", "rule"), REJECTED.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_rejects(steps: Callable[[ReplicaLogJudge], Texts], rule: str) -> None:
    found = judged(steps)
    assert found
    assert {text.partition(":")[0] for text in found} == {rule}


@pytest.mark.parametrize("steps", PASSED, ids=lambda each: each.__name__)
def test_passes(steps: Callable[[ReplicaLogJudge], Texts]) -> None:
    assert judged(steps) == []


def test_other_bytes_break_both_rules() -> None:
    assert {text.partition(":")[0] for text in judged(other_bytes)} == {"epoch matching", "byte-identical"}


def test_nothing_is_wanted_twice() -> None:
    judge = ReplicaLogJudge()
    assert judge.wanted(P, A, 0, 5, 6) == 0
    assert judge.observe(P, A, 0, 5, 6, LOG) == []
    assert judge.wanted(P, A, 0, 5, 6) is None
    assert judge.wanted(P, A, 0, 6, 6) == 5
    assert judge.committed_end(P) == 5
    assert judge.committed_end(Q) == 0


def test_what_is_wrong_is_said_once() -> None:
    judge = ReplicaLogJudge()
    assert len(see(judge, A, 6, [LOG[0], LOG[2]])) == 1
    assert see(judge, A, 6, [LOG[0], LOG[2]]) == []
    judge.restarted(A)
    assert len(see(judge, A, 6, [LOG[0], LOG[2]])) == 1
    assert see(judge, B, 6, LOG) == judge.elected(P, 7, C) == []
    assert len(judge.leads(P, 7, C, 2)) == 1
    assert judge.leads(P, 7, C, 2) == []


def test_a_mark_ahead_of_an_in_sync_replica() -> None:
    ends = {A: 6, B: 5}
    (text,) = marks_behind(P, A, 6, ends, [A, B])
    assert text.startswith("marks behind: node 1 has the high watermark of t-0 at 6; in-sync node 2")
    assert marks_behind(P, A, 5, ends, [A, B]) == []
    assert marks_behind(P, A, 6, ends, [A]) == []
    assert marks_behind(P, A, 6, ends, [A, C]) == []


def test_a_mark_that_a_consumer_was_told_goes_back() -> None:
    judge = VisibleMarkJudge()
    assert judge.observe("c", P, 5) == judge.observe("c", P, 5) == judge.observe("d", P, 4) == []
    assert judge.observe("c", Q, 1) == []
    (text,) = judge.observe("c", P, 4)
    assert text == "visible marks: c was told 4 for t-0 after 5"
    judge.lost(P, 2)
    assert judge.observe("c", P, 2) == []
