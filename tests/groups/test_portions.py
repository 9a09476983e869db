"""Large targets and regular expressions are worked out in portions: how long a turn of the event loop may be, and what
holds while the group changes in the meantime."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from tidelog.groups.state.consumer_group import ConsumerGroupState
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId
from tidelog.proto.calls.consumer_group_api import ConsumerGroupHeartbeatResponse

from .conftest import Desk

MEMBERS = 400
LINES_MAX = 80_000
"""Lines of Python in one turn; a target for ``MEMBERS`` takes some 200,000."""


@contextmanager
def counted_turns() -> Iterator[list[int]]:
    """Counts, for each turn of the coordinator, the lines of Python that it runs."""
    found: list[int] = []

    def count(frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            found[-1] += 1
        return count

    before = sys.gettrace()

    def begin(frame: FrameType, event: str, arg: object) -> Any:
        if event == "call" and frame.f_code.co_name in ("tick", "consumer_heartbeat", "appended"):
            found.append(0)
            return count
        return count if found else None

    sys.settrace(begin)
    try:
        yield found
    finally:
        sys.settrace(before)


def large(**changes: Any) -> Desk:
    """Members with ten partitions each, none given out yet but to the first; the target may be made a second later."""
    desk = Desk(consumer_assignment_interval_ms=1_000, **changes)
    for topic in range(10):
        desk.topics.put(f"t{topic}", MEMBERS)
    names = [f"t{topic}" for topic in range(10)]
    for number in range(MEMBERS):
        desk.come(f"m{number:03}", *names)
    desk.pass_time(900)
    assert len(desk.consumer().target) <= 1
    return desk


def small() -> Desk:
    """Four partitions; everything but a heartbeat is worked out in portions."""
    desk = Desk(work_max=20, consumer_assignment_interval_ms=0)
    desk.topics.put("t", 4)
    return desk


T = TopicId(bytes(15) + b"\x01")


def settled(desk: Desk, *members: str, **instances: str) -> None:
    """The members send heartbeats until all have what they are to have."""
    for _ in range(6):
        desk.pass_time(20)
        for member in members:
            current = desk.consumer().current_of(member)
            owned = {topic_id: tuple(epochs) for topic_id, epochs in current.assigned.items()}
            desk.beat(member, current.epoch, owned=owned, instance=instances.get(member))
    desk.pass_time(20)
    assert desk.consumer().state is ConsumerGroupState.STABLE


def has(desk: Desk, member: str) -> set[int]:
    return set(desk.consumer().current_of(member).assigned.get(T, {}))


def test_no_turn_is_long() -> None:
    desk = large()
    desk.pass_time(200)
    with counted_turns() as turns:
        desk.beat("m001", desk.consumer().current_of("m001").epoch)
        desk.pass_time(100)
    group = desk.consumer()
    assert group.assignment_epoch == group.epoch
    assert {sum(map(len, share.values())) for share in group.target.values()} == {10}
    assert sum(turns) > 2 * LINES_MAX, "it is too much for one turn"
    assert max(turns) <= LINES_MAX


def test_many_heartbeats_that_waited_are_no_long_turn_either() -> None:
    desk = large()
    desk.auto = False
    desk.come("new", "t0")
    waiting = [
        desk.beat(f"m{number:03}", desk.consumer().current_of(f"m{number:03}").epoch) for number in range(MEMBERS)
    ]
    desk.auto = True
    with counted_turns() as turns:
        desk.end()
        desk.pass_time(50)
    assert all(desk.answers[waiter].error is ErrorCode.NONE for waiter in waiting)
    assert sum(turns) > LINES_MAX
    assert max(turns) <= LINES_MAX


def test_the_group_goes_on_with_its_old_target_while_a_new_one_is_made() -> None:
    desk = small()
    desk.come("a", "t")
    settled(desk, "a")
    epoch = desk.consumer().assignment_epoch
    desk.come("b", "t")
    assert desk.consumer().work is not None
    assert desk.answers[desk.beat("a", epoch)].error is ErrorCode.NONE
    assert desk.consumer().assignment_epoch == epoch
    assert has(desk, "a") == {0, 1, 2, 3}
    settled(desk, "a", "b")
    assert len(has(desk, "a")) == len(has(desk, "b")) == 2


def test_a_member_of_a_new_group_is_in_it_before_its_target_is_made() -> None:
    """Clients take epoch 0 for not being in."""
    desk = small()
    said = desk.answers[desk.come("a", "t")]
    assert isinstance(said, ConsumerGroupHeartbeatResponse)
    assert said.member_epoch == 1
    assert said.assignment is not None
    assert not said.assignment.topics


def test_who_leaves_while_a_target_is_made_gets_none_and_who_comes_gets_one_later() -> None:
    desk = small()
    for member in ("a", "b"):
        desk.come(member, "t")
    settled(desk, "a", "b")
    desk.come("c", "t")
    work = desk.consumer().work
    assert set(work.members) == {"a", "b", "c"}
    desk.beat("b", -1)
    desk.come("d", "t")
    assert desk.consumer().work is work
    while desk.consumer().assignment_epoch < work.epoch:
        desk.pass_time(1)
    assert set(desk.consumer().target) == {"a", "c"}, "b is gone, and d was not there"
    assert desk.consumer().assignment_epoch < desk.consumer().epoch, "this target does not count for d"
    settled(desk, "a", "c", "d")
    assert has(desk, "a") | has(desk, "c") | has(desk, "d") == {0, 1, 2, 3}
    stored = dict(desk.consumer().target)
    desk.fail_over()
    assert desk.consumer().target == stored


def test_who_takes_a_static_members_place_while_a_target_is_made_gets_its_share() -> None:
    desk = small()
    desk.come("a", "t", instance="i")
    settled(desk, "a", a="i")
    epoch = desk.consumer().epoch
    desk.topics.put("t", 8)
    desk.beat("a", epoch, instance="i")
    desk.beat("a", -2, instance="i")
    assert desk.consumer().work is not None
    desk.come("b", "t", instance="i")
    assert desk.consumer().epoch == epoch + 1, "the change of the topic alone"
    settled(desk, "b", b="i")
    assert has(desk, "b") == set(range(8))


def test_what_is_undone_is_in_no_later_target() -> None:
    """A target for a member whose join was refused is not taken for that of the next one."""
    desk = small()
    desk.come("a", "t")
    settled(desk, "a")
    desk.auto = False
    desk.come("b", "t")
    work = desk.consumer().work
    assert "b" in work.members
    desk.end(ErrorCode.NOT_ENOUGH_REPLICAS)
    desk.come("c", "t")
    assert desk.consumer().epoch == work.epoch
    desk.auto = True
    desk.end()
    settled(desk, "a", "c")
    assert len(has(desk, "a")) == len(has(desk, "c")) == 2


@pytest.mark.parametrize("refused", [0, 1])
def test_a_target_that_is_stored_in_part_is_made_again(refused: int) -> None:
    desk = small()
    for member in ("a", "b"):
        desk.come(member, "t")
    settled(desk, "a", "b")
    desk.come("c", "t")
    desk.auto = False
    for _ in range(40):
        desk.pass_time(1)
    number = 0
    while desk.appends:
        desk.end(ErrorCode.NOT_ENOUGH_REPLICAS if number == refused else ErrorCode.NONE)
        desk.pass_time(1)
        number += 1
    assert number > refused
    desk.auto = True
    desk.beat("c", -1)  # so a and b are to have what they had, but the log may say otherwise
    settled(desk, "a", "b")
    stored = dict(desk.consumer().target)
    desk.fail_over()
    assert desk.consumer().target == stored


def test_a_leader_that_is_replaced_between_two_portions_answers_everybody() -> None:
    desk = small()
    for member in ("a", "b"):
        desk.come(member, "t")
    settled(desk, "a", "b")
    desk.topics.put("t", 8)
    desk.come("c", "t")
    for _ in range(20):
        if desk.consumer().writing is None:
            desk.pass_time(1)
    assert desk.consumer().writing is not None
    waiter = desk.beat("a", desk.consumer().current_of("a").epoch)
    assert waiter not in desk.answers
    desk.fail_over()
    assert desk.answers[waiter].error is ErrorCode.NOT_COORDINATOR
    settled(desk, "a", "b", "c")
    assert has(desk, "a") | has(desk, "b") | has(desk, "c") == set(range(8))


def test_a_regular_expression_over_many_topics_is_matched_in_portions() -> None:
    """Until then, a member has the topics that it names."""
    desk = Desk(consumer_assignment_interval_ms=0, work_max=400)
    assert desk.topics.put("t", 1) == T
    for number in range(500):
        desk.topics.put(f"many{number:03}", 1)
    told = desk.answers[desk.beat("a", 0, topics=("t",), regex="many.*", owned={}, rebalance=1)]
    assert not told.assignment.topics
    assert not desk.consumer().regexes
    desk.pass_time(5)
    assert desk.answers[desk.beat("a", 1)].error is ErrorCode.NONE, "heartbeats are answered meanwhile"
    settled(desk, "a")
    assert len(desk.consumer().regexes["many.*"].topics) == 500
    assert len(desk.consumer().current_of("a").assigned) == 501


def test_targets_are_made_at_most_once_in_an_interval() -> None:
    desk = Desk(consumer_assignment_interval_ms=1_000)
    desk.topics.put("t", 4)
    desk.come("a", "t")
    first = desk.consumer().assignment_epoch
    for member in "bcd":
        desk.come(member, "t")
    assert desk.consumer().state is ConsumerGroupState.ASSIGNING
    desk.pass_time(999)
    desk.beat("a", first)
    assert desk.consumer().assignment_epoch == first
    desk.pass_time(1)
    desk.beat("a", first)
    assert desk.consumer().assignment_epoch == desk.consumer().epoch == first + 3
    desk.come("e", "t")
    desk.wall_ms -= 3_600_000
    desk.beat("b", first)
    assert desk.consumer().assignment_epoch == first + 4, "a clock that was set back holds nobody up"


def test_an_interval_lives_on_in_the_log() -> None:
    desk = Desk(consumer_assignment_interval_ms=1_000)
    desk.topics.put("t", 4)
    desk.come("a", "t")
    desk.fail_over()
    desk.come("b", "t")
    assert desk.consumer().state is ConsumerGroupState.ASSIGNING


def test_who_joins_two_hundred_members_takes_one_partition_and_interrupts_nobody() -> None:
    """No answer takes a partition from a member that keeps it in the end."""
    desk = Desk()
    topic = desk.topics.put("t", 400)
    names = [f"m{number}" for number in range(200)]
    owned: dict[str, frozenset[int]] = {}
    epochs: dict[str, int] = {}
    least: dict[str, frozenset[int]] = {}

    def hear(name: str, waiter: int) -> bool:
        answer = desk.answers[waiter]
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        assert answer.error is ErrorCode.NONE
        epochs[name] = answer.member_epoch
        if answer.assignment is not None:
            owned[name] = frozenset(at for each in answer.assignment.topics for at in each.partitions)
            least[name] = least.get(name, owned[name]) & owned[name]
        return answer.assignment is not None

    def settle() -> None:
        again = True
        while again:
            told = [hear(name, desk.beat(name, epochs[name], owned={topic: tuple(owned[name])})) for name in names]
            again = any(told) or len(set(epochs.values())) > 1

    for name in names:
        hear(name, desk.come(name, "t"))
    settle()
    before = dict(owned)
    assert {len(each) for each in before.values()} == {2}
    least.clear()
    names.append("newcomer")
    hear("newcomer", desk.come("newcomer", "t"))
    settle()
    moved = {name: before[name] - owned[name] for name in before}
    assert sum(map(len, moved.values())) == len(owned["newcomer"]) == 1
    assert all(least.get(name, before[name]) == before[name] - moved[name] for name in before)
