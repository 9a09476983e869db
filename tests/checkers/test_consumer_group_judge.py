"""The judge of groups whose coordinator assigns rejects each kind of bad history, and nothing but bad ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidelog.chaos.checkers.consumer_groups import ConsumerGroupJudge
from tidelog.chaos.checkers.groups import CommitKey
from tidelog.model.ids import TopicPartition

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
SESSION_S, REBALANCE_S = 3.0, 5.0


def group() -> ConsumerGroupJudge:
    """Member a (client ca) has both partitions in epoch 1, and is told in epoch 1 that q must go."""
    judge = ConsumerGroupJudge(SESSION_S, REBALANCE_S)
    judge.has_nothing("a")
    judge.heard("a", 1, 1.0)
    assert judge.told("a", 1, [P, Q], 1.0) == []
    judge.owns("ca", 1, [P, Q])
    assert judge.says("ca", "a", 1, [P, Q]) == []
    judge.has_nothing("b")
    judge.heard("a", 1, 2.0)
    assert judge.told("a", 1, [P], 2.0) == []
    return judge


def given_up(judge: ConsumerGroupJudge) -> list[str]:
    """And a gives q up, and b gets it in epoch 2."""
    judge.gave_up("ca", [Q])
    found = judge.says("ca", "a", 1, [P])
    judge.heard("a", 2, 2.5)
    return found + judge.told("b", 2, [Q], 3.0)


def commit(member: str, epoch: int, partition: TopicPartition, offset: int = 5) -> CommitKey:
    return CommitKey(member, None, epoch, partition, offset)


def test_a_hand_over_is_good_and_what_the_former_owner_could_forge_is_known() -> None:
    judge = group()
    assert given_up(judge) == []
    assert judge.former == [("a", 1, Q)]
    assert judge.commit_acknowledged(commit("b", 2, Q), 3.5, 3.6) == []
    assert judge.commit_acknowledged(commit("a", 1, Q), 2.9, 3.6) == [], "it came before b was told"
    assert judge.newest_generation == 2


def not_given_up(judge: ConsumerGroupJudge) -> list[str]:
    return judge.told("b", 2, [Q], 3.0)


def says_so_too_early(judge: ConsumerGroupJudge) -> list[str]:
    return judge.says("ca", "a", 1, [P])


def former_commits(judge: ConsumerGroupJudge) -> list[str]:
    return given_up(judge) + judge.commit_acknowledged(commit("a", 1, Q), 3.5, 3.6)


def stranger_commits(judge: ConsumerGroupJudge) -> list[str]:
    return judge.commit_acknowledged(commit("x", 1, P), 3.5, 3.6)


def goes_back(judge: ConsumerGroupJudge) -> list[str]:
    found = judge.commit_acknowledged(commit("a", 1, Q, 9), 2.2, 2.3) + given_up(judge)
    judge.worked_off(Q, 0, 8)
    return found + judge.commit_sent(commit("b", 2, Q, 4), 4.0)


@pytest.mark.parametrize(
    ("rule", "act"),
    [
        ("one owner", not_given_up),
        ("owned only", says_so_too_early),
        ("fenced", former_commits),
        ("fenced", stranger_commits),
        ("forward only", goes_back),
    ],
)
def test_a_broken_rule_shows(rule: str, act: Callable[[ConsumerGroupJudge], list[str]]) -> None:
    (text,) = act(group())
    assert text.startswith(f"{rule}: ")


def test_who_is_silent_or_slow_may_have_been_removed() -> None:
    judge = group()
    assert judge.told("b", 2, [Q], 2.0 + SESSION_S) == []
    judge = group()
    judge.heard("a", 1, 6.9)
    assert judge.told("b", 2, [P, Q], 2.0 + REBALANCE_S) == [], "it lost everything over the one that it kept"
    judge.heard("b", 2, 7.0)
    assert judge.told("a", 3, [P, Q], 7.1) != [], "now it is b's"


def test_who_leaves_or_joins_anew_has_nothing() -> None:
    judge = group()
    judge.has_nothing("a")
    assert judge.told("b", 2, [P, Q], 2.5) == []
