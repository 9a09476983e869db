"""Each rule of consumer groups: a run that breaks it, and one like it that does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidelog.chaos.checkers.groups import CommitKey, GroupJudge
from tidelog.model.ids import TopicPartition

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
Texts = list[list[str]]


def group(*, second: bool = True) -> GroupJudge:
    """Members a and b in generation 1 and, if wanted, a alone in generation 2. Everything is worked off to 100."""
    judge = GroupJudge()
    for member, partition in (("a", P), ("b", Q)):
        judge.joined(1, member, None, 1.0)
        assert judge.assigned(1, member, None, [partition], 1.5) == []
        judge.worked_off(partition, 0, 99)
    if second:
        judge.joined(2, "a", None, 5.0)
        assert judge.assigned(2, "a", None, [P, Q], 5.5) == []
    return judge


def commit(member: str, generation: int, offset: int, partition: TopicPartition = P) -> CommitKey:
    return CommitKey(member, None, generation, partition, offset)


def two_owners(judge: GroupJudge) -> Texts:
    judge.joined(2, "c", None, 5.0)
    return [judge.assigned(2, "c", None, [Q], 5.6)]


def owners_of_two_generations(judge: GroupJudge) -> Texts:
    judge.joined(3, "c", None, 6.0)
    return [judge.assigned(3, "c", None, [Q], 6.5)]


def assignment_changes(judge: GroupJudge) -> Texts:
    return [judge.assigned(2, "a", None, [P], 5.6)]


def assignment_is_told_twice(judge: GroupJudge) -> Texts:
    return [judge.assigned(2, "a", None, [Q, P], 5.6)]


def static_member_comes_back_within_a_generation(judge: GroupJudge) -> Texts:
    judge.joined(3, "i-1", "i", 6.0)
    first = judge.assigned(3, "i-1", "i", [P], 6.1)
    judge.joined(3, "i-2", "i", 7.0)
    second = judge.assigned(3, "i-2", "i", [P], 7.1)
    late = CommitKey("i-1", "i", 3, P, 5)
    return [first, second, judge.commit_acknowledged(late, 6.9, 7.2)]


def replaced_static_member_commits(judge: GroupJudge) -> Texts:
    judge.joined(3, "i-1", "i", 6.0)
    judge.assigned(3, "i-1", "i", [P], 6.5)
    judge.joined(3, "i-2", "i", 7.0)
    return [judge.commit_acknowledged(CommitKey("i-1", "i", 3, P, 5), 7.1, 7.2)]


def static_member_is_replaced_in_a_generation_that_never_came(judge: GroupJudge) -> Texts:
    """Its coordinator dies before anything of it is stored."""
    judge.joined(3, "i-1", "i", 6.0)
    judge.assigned(3, "i-1", "i", [P], 6.5)
    judge.joined(4, "i-2", "i", 7.0)
    return [judge.commit_acknowledged(CommitKey("i-1", "i", 3, P, 5), 7.1, 7.2)]


def deposed_coordinator_names_a_successor_in_the_same_generation(judge: GroupJudge) -> Texts:
    """Cut off, it numbers a generation as its successor does, for a member that nobody else knows."""
    judge.joined(3, "i-1", "i", 6.0)
    judge.assigned(3, "i-1", "i", [P], 6.5)
    judge.joined(3, "i-0", "i", 7.0, deposed=True)
    return [judge.commit_acknowledged(CommitKey("i-1", "i", 3, P, 5), 7.1, 7.2)]


def zombie_commits(judge: GroupJudge) -> Texts:
    return [judge.commit_acknowledged(commit("b", 1, 5, Q), 5.6, 5.7)]


def commit_is_overtaken_by_a_generation(judge: GroupJudge) -> Texts:
    return [judge.commit_acknowledged(commit("b", 1, 5, Q), 5.4, 5.7)]


def stranger_commits(judge: GroupJudge) -> Texts:
    return [judge.commit_acknowledged(commit("c", 2, 5), 5.6, 5.7)]


def commits_what_another_one_has(judge: GroupJudge) -> Texts:
    judge.joined(3, "a", None, 6.0)
    judge.joined(3, "b", None, 6.0)
    before = judge.assigned(3, "a", None, [P], 6.1)
    held = judge.commit_acknowledged(commit("b", 3, 5, Q), 6.2, 6.3)
    return [before, held, judge.commit_acknowledged(commit("b", 3, 5, P), 6.2, 6.3)]


def commits_what_it_gives_up(judge: GroupJudge) -> Texts:
    judge.joined(3, "b", None, 6.0)
    return [judge.assigned(3, "b", None, [], 6.1), judge.commit_acknowledged(commit("b", 3, 5, Q), 6.2, 6.3)]


def begins_behind_what_was_committed(judge: GroupJudge) -> Texts:
    acknowledged = judge.commit_acknowledged(commit("b", 1, 50, Q), 2.0, 2.1)
    return [acknowledged, judge.commit_sent(commit("a", 2, 40, Q), 6.0)]


def begins_behind_what_was_committed_late(judge: GroupJudge) -> Texts:
    acknowledged = judge.commit_acknowledged(commit("b", 1, 50, Q), 5.4, 5.6)
    return [acknowledged, judge.commit_sent(commit("a", 2, 40, Q), 6.0)]


def held_up_commit_of_an_older_generation_is_no_excuse(judge: GroupJudge) -> Texts:
    judge.commit_arrived(commit("a", 2, 50), 6.0)
    acknowledged = judge.commit_acknowledged(commit("a", 2, 50), 6.0, 6.1)
    judge.commit_arrived(commit("a", 1, 40), 7.0)
    return [acknowledged, judge.committed_read("a", 2, P, 40, 7.2, 7.3)]


def committed_goes_back(judge: GroupJudge) -> Texts:
    acknowledged = judge.commit_acknowledged(commit("a", 2, 50), 6.0, 6.1)
    return [acknowledged, judge.committed_read("a", 2, P, 40, 6.2, 6.3)]


def committed_is_lost(judge: GroupJudge) -> Texts:
    acknowledged = judge.commit_acknowledged(commit("a", 1, 50), 2.0, 2.1)
    return [acknowledged, judge.committed_read("a", 2, P, -1, 6.2, 6.3)]


def committed_was_read_and_goes_back(judge: GroupJudge) -> Texts:
    judge.commit_arrived(commit("a", 2, 50), 6.0)
    return [judge.committed_read("a", 2, P, 50, 6.2, 6.3), judge.committed_read("a", 2, P, 0, 6.4, 6.5)]


def committed_is_read_while_it_changes(judge: GroupJudge) -> Texts:
    acknowledged = judge.commit_acknowledged(commit("a", 2, 50), 6.0, 6.1)
    return [acknowledged, judge.committed_read("a", 2, P, 0, 6.05, 6.3)]


def zombie_reads_what_was(judge: GroupJudge) -> Texts:
    """Its coordinator is one of the past, and so is its generation."""
    acknowledged = judge.commit_acknowledged(commit("a", 2, 50, Q), 6.0, 6.1)
    return [acknowledged, judge.committed_read("b", 1, Q, 10, 6.4, 6.5)]


def held_up_commit_arrives(judge: GroupJudge) -> Texts:
    judge.commit_arrived(commit("a", 2, 50), 6.0)
    acknowledged = judge.commit_acknowledged(commit("a", 2, 50), 6.0, 6.1)
    judge.commit_arrived(commit("a", 2, 40), 7.0)
    return [acknowledged, judge.committed_read("a", 2, P, 40, 7.2, 7.3)]


def commit_that_came_before_is_no_excuse(judge: GroupJudge) -> Texts:
    judge.commit_arrived(commit("a", 2, 40), 5.9)
    judge.commit_arrived(commit("a", 2, 50), 6.0)
    acknowledged = judge.commit_acknowledged(commit("a", 2, 50), 6.0, 6.1)
    return [acknowledged, judge.committed_read("a", 2, P, 40, 7.2, 7.3)]


def member_sends_an_older_commit(judge: GroupJudge) -> Texts:
    return [judge.commit_sent(commit("a", 2, 50), 6.0), judge.commit_sent(commit("a", 2, 40), 6.1)]


def member_sends_a_commit_again(judge: GroupJudge) -> Texts:
    return [judge.commit_sent(commit("a", 2, 50), 6.0), judge.commit_sent(commit("a", 2, 50), 6.1)]


def next_generation_begins_further_back(judge: GroupJudge) -> Texts:
    return [judge.commit_sent(commit("a", 1, 50), 2.0), judge.commit_sent(commit("a", 2, 40), 6.1)]


def commits_what_nobody_worked_off(judge: GroupJudge) -> Texts:
    return [judge.commit_sent(commit("a", 2, 101), 6.0)]


def commits_what_was_worked_off(judge: GroupJudge) -> Texts:
    return [judge.commit_sent(commit("a", 2, 100), 6.0)]


def hands_out_what_it_does_not_own(judge: GroupJudge) -> Texts:
    judge.owns("a", 2, [P])
    return [judge.handed_out("a", Q, 0, 1)]


def hands_out_what_was_revoked(judge: GroupJudge) -> Texts:
    judge.owns("a", 2, [P, Q])
    before = judge.handed_out("a", Q, 0, 1)
    judge.gave_up("a", [Q])
    return [before, judge.handed_out("a", Q, 2, 3)]


def hands_out_before_it_knows_of_anything(judge: GroupJudge) -> Texts:
    return [judge.handed_out("b", Q, 2, 3)]


def hands_out_after_its_end(judge: GroupJudge) -> Texts:
    judge.owns("b", 1, [Q])
    judge.gone("b")
    return [judge.handed_out("b", Q, 2, 3)]


def hands_out_in_order(judge: GroupJudge) -> Texts:
    judge.owns("a", 1, [P])
    first = judge.handed_out("a", P, 10, 12)
    judge.owns("a", 2, [P, Q])
    return [first, judge.handed_out("a", P, 13, 14), judge.handed_out("a", Q, 7, 7)]


def leaves_something_out(judge: GroupJudge) -> Texts:
    judge.owns("a", 1, [P])
    return [judge.handed_out("a", P, 10, 12), judge.handed_out("a", P, 14, 14)]


def repeats_across_a_rebalance_that_left_it_the_partition(judge: GroupJudge) -> Texts:
    judge.owns("a", 1, [P])
    first = judge.handed_out("a", P, 10, 12)
    judge.owns("a", 2, [P, Q])
    return [first, judge.handed_out("a", P, 10, 12)]


def repeats_what_it_lost_and_got_back(judge: GroupJudge) -> Texts:
    judge.owns("a", 1, [P])
    first = judge.handed_out("a", P, 10, 12)
    judge.gave_up("a", [P])
    judge.owns("a", 2, [P])
    return [first, judge.handed_out("a", P, 10, 12)]


def something_is_never_delivered(judge: GroupJudge) -> Texts:
    judge.worked_off(P, 101, 109)
    return [judge.all_delivered({P: 110, Q: 100})]


def everything_is_delivered(judge: GroupJudge) -> Texts:
    judge.worked_off(P, 95, 109)
    assert judge.redelivered == 5
    return [judge.all_delivered({P: 110, Q: 100, TopicPartition("empty", 0): 0})]


def nobody_owns_it_in_the_end(judge: GroupJudge) -> Texts:
    return [judge.settled({"a": [P], "b": []}, [P, Q])]


def two_own_it_in_the_end(judge: GroupJudge) -> Texts:
    return [judge.settled({"a": [P, Q], "b": [Q]}, [P, Q])]


def each_has_one_owner_in_the_end(judge: GroupJudge) -> Texts:
    return [judge.settled({"a": [P], "b": [Q], "c": []}, [P, Q])]


@pytest.mark.parametrize(
    ("run", "rule"),
    [
        (two_owners, "one owner"),
        (assignment_changes, "one owner"),
        (nobody_owns_it_in_the_end, "one owner"),
        (two_own_it_in_the_end, "one owner"),
        (replaced_static_member_commits, "fenced"),
        (zombie_commits, "fenced"),
        (stranger_commits, "fenced"),
        (committed_goes_back, "no regress"),
        (committed_is_lost, "no regress"),
        (committed_was_read_and_goes_back, "no regress"),
        (commit_that_came_before_is_no_excuse, "no regress"),
        (member_sends_an_older_commit, "forward only"),
        (begins_behind_what_was_committed, "forward only"),
        (held_up_commit_of_an_older_generation_is_no_excuse, "no regress"),
        (commits_what_another_one_has, "fenced"),
        (commits_what_nobody_worked_off, "delivered"),
        (something_is_never_delivered, "delivered"),
        (hands_out_what_it_does_not_own, "owned only"),
        (hands_out_what_was_revoked, "owned only"),
        (hands_out_before_it_knows_of_anything, "owned only"),
        (hands_out_after_its_end, "owned only"),
        (leaves_something_out, "in order"),
        (repeats_across_a_rebalance_that_left_it_the_partition, "in order"),
    ],
)
def test_a_broken_rule_is_named(run: Callable[[GroupJudge], Texts], rule: str) -> None:
    *before, last = run(group())
    assert not any(before)
    assert len(last) == 1
    assert last[0].startswith(f"{rule}: ")


@pytest.mark.parametrize(
    "run",
    [
        owners_of_two_generations,
        assignment_is_told_twice,
        static_member_comes_back_within_a_generation,
        static_member_is_replaced_in_a_generation_that_never_came,
        deposed_coordinator_names_a_successor_in_the_same_generation,
        commit_is_overtaken_by_a_generation,
        committed_is_read_while_it_changes,
        zombie_reads_what_was,
        held_up_commit_arrives,
        member_sends_a_commit_again,
        next_generation_begins_further_back,
        begins_behind_what_was_committed_late,
        commits_what_it_gives_up,
        commits_what_was_worked_off,
        hands_out_in_order,
        repeats_what_it_lost_and_got_back,
        everything_is_delivered,
        each_has_one_owner_in_the_end,
    ],
)
def test_what_is_legal_is_left_alone(run: Callable[[GroupJudge], Texts]) -> None:
    assert not any(run(group()))


def test_a_commit_of_the_generation_that_is_complete_is_acknowledged() -> None:
    judge = group(second=False)
    assert judge.commit_acknowledged(commit("a", 1, 5), 2.0, 2.1) == []
    assert judge.commit_acknowledged(CommitKey("", None, -1, P, 5), 2.0, 2.1) == []
    assert judge.newest_generation == 1
