"""Each rule of the quorum's judge: a history that it rejects, and one like it that passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidelog.chaos.checkers.quorum import QuorumJudge, digest_after
from tidelog.model.ids import DirectoryId, NodeId
from tidelog.model.voter_set import Voter

A, B, C = NodeId(1), NodeId(2), NodeId(3)
VA, VB = (Voter(node, DirectoryId(bytes(16))) for node in (A, B))


def log(*terms: int, command: bytes = b"x", first: int = 1) -> list[tuple[bytes, int, int]]:
    """A log that begins with an anchor and has entries of these terms after it."""
    entries = [(b"%s%d.%d" % (command, first + at, term), first + at, term) for at, term in enumerate(terms, 1)]
    return [(b"", first, 0), *entries]


def judged(steps: Callable[[QuorumJudge], list[list[str]]]) -> list[str]:
    return [text for texts in steps(QuorumJudge()) for text in texts]


def two_leaders(judge: QuorumJudge) -> list[list[str]]:
    return [judge.leads(A, 3), judge.leads(B, 3)]


def leaders_of_two_terms(judge: QuorumJudge) -> list[list[str]]:
    return [judge.leads(A, 3), judge.leads(A, 3), judge.leads(B, 4)]


def two_votes(judge: QuorumJudge) -> list[list[str]]:
    return [judge.voted(VA, 3, VA), judge.voted(VA, 3, VB)]


def one_vote_repeated(judge: QuorumJudge) -> list[list[str]]:
    return [judge.voted(VA, 3, VB), judge.voted(VA, 3, VB), judge.voted(VA, 4, VA), judge.voted(VB, 3, VB)]


def same_entry_other_prefix(judge: QuorumJudge) -> list[list[str]]:
    return [judge.holds(A, log(1, 1, 3)), judge.holds(B, log(1, 2, 3))]


def other_entry_same_prefix(judge: QuorumJudge) -> list[list[str]]:
    return [judge.holds(A, log(1, 1, 3)), judge.holds(B, log(1, 1, 2)), judge.holds(B, log(1, 1, 3))]


def same_entry_other_command(judge: QuorumJudge) -> list[list[str]]:
    return [judge.holds(A, log(1, 1)), judge.holds(B, log(1, 1, command=b"y"))]


def gap_in_a_log(judge: QuorumJudge) -> list[list[str]]:
    entries = log(1, 1, 1)
    return [judge.holds(A, entries[:2] + entries[3:])]


def terms_fall_in_a_log(judge: QuorumJudge) -> list[list[str]]:
    return [judge.holds(A, log(2, 1))]


def log_behind_an_anchor_differs(judge: QuorumJudge) -> list[list[str]]:
    whole = log(1, 1, 1, 1)
    cut = [(b"", 3, 1), (b"other", 4, 1)]
    return [judge.holds(A, whole), judge.holds(B, cut)]


def log_is_cut_and_grows(judge: QuorumJudge) -> list[list[str]]:
    whole = log(1, 1, 1, 1)
    return [
        judge.holds(A, whole),
        judge.holds(B, [(b"", 3, 1), whole[3]]),
        judge.holds(B, [(b"", 3, 1), *whole[3:]]),
        judge.holds(A, whole[2:]),
        judge.holds(A, whole[:1]),
        judge.holds(C, [(b"", 9, 4), (b"unseen", 10, 4)]),
        judge.holds(C, [(b"", 9, 4), (b"unseen", 10, 4), (b"more", 11, 4)]),
    ]


def the_middle_changes(judge: QuorumJudge) -> list[list[str]]:
    entries = log(1, 1, 1)
    changed = [*entries[:2], (b"changed", 3, 1), *entries[3:]]
    assert judge.holds(A, entries) == []
    return [judge.holds(A, changed, whole=True)]


def commit(judge: QuorumJudge, node: NodeId, index: int, term: int, payload: bytes, node_term: int = 0) -> list[str]:
    judge.proposed(payload)
    return judge.committed(node, index, term, payload, node_term or term)


def leader_without_a_commit(judge: QuorumJudge) -> list[list[str]]:
    return [commit(judge, A, 2, 1, b"a"), commit(judge, A, 3, 1, b"b"), judge.leads(B, 2, log(1))]


def leader_with_another_entry(judge: QuorumJudge) -> list[list[str]]:
    return [commit(judge, A, 2, 1, b"a"), commit(judge, A, 3, 2, b"b"), judge.leads(B, 3, log(1, 1, 1))]


def leader_with_all_commits(judge: QuorumJudge) -> list[list[str]]:
    return [commit(judge, A, 2, 1, b"a"), commit(judge, A, 3, 1, b"b"), judge.leads(B, 2, log(1, 1, 2))]


def leader_behind_a_snapshot(judge: QuorumJudge) -> list[list[str]]:
    return [commit(judge, A, 2, 1, b"a"), commit(judge, A, 3, 1, b"b"), judge.leads(B, 2, [(b"", 3, 1)])]


def late_leader_of_an_early_term(judge: QuorumJudge) -> list[list[str]]:
    """A commit in term 5 binds no leader of term 4, even if its entry is of term 2."""
    return [commit(judge, A, 2, 2, b"a", node_term=5), judge.leads(B, 4, log())]


def two_commands_at_an_index(judge: QuorumJudge) -> list[list[str]]:
    return [commit(judge, A, 2, 1, b"a"), commit(judge, B, 2, 1, b"b")]


def same_command_other_term(judge: QuorumJudge) -> list[list[str]]:
    return [commit(judge, A, 2, 1, b"a"), commit(judge, B, 2, 2, b"a")]


def heard_with_a_gap(judge: QuorumJudge) -> list[list[str]]:
    return [commit(judge, A, 2, 1, b"a"), commit(judge, A, 4, 1, b"b")]


def heard_twice(judge: QuorumJudge) -> list[list[str]]:
    return [commit(judge, A, 2, 1, b"a"), commit(judge, A, 2, 1, b"a")]


def heard_again_after_a_restart(judge: QuorumJudge) -> list[list[str]]:
    first = [commit(judge, A, 2, 1, b"a"), commit(judge, A, 3, 1, b"b"), commit(judge, B, 2, 1, b"a")]
    judge.started(A)
    return [*first, commit(judge, A, 2, 1, b"a"), commit(judge, A, 3, 1, b"b"), judge.finished()]


def terms_fall_in_the_committed_log(judge: QuorumJudge) -> list[list[str]]:
    return [commit(judge, A, 2, 2, b"a"), commit(judge, A, 3, 1, b"b")]


START = bytes(32)
AFTER_A = digest_after(START, 2, 1, b"a")


def loaded_what_nobody_had(judge: QuorumJudge) -> list[list[str]]:
    return [commit(judge, A, 2, 1, b"a"), judge.loaded(B, 2, digest_after(START, 2, 1, b"other"))]


def loaded_beyond_everything(judge: QuorumJudge) -> list[list[str]]:
    return [commit(judge, A, 2, 1, b"a"), judge.loaded(B, 3, AFTER_A)]


def loaded_backwards(judge: QuorumJudge) -> list[list[str]]:
    return [commit(judge, A, 2, 1, b"a"), commit(judge, A, 3, 1, b"b"), judge.loaded(A, 2, AFTER_A)]


def loaded_a_prefix(judge: QuorumJudge) -> list[list[str]]:
    first = [commit(judge, A, 2, 1, b"a"), commit(judge, A, 3, 1, b"b"), judge.loaded(B, 2, AFTER_A)]
    return [*first, commit(judge, B, 3, 1, b"b"), judge.finished([A, B])]


def acknowledged_elsewhere(judge: QuorumJudge) -> list[list[str]]:
    return [commit(judge, A, 2, 1, b"a"), judge.acknowledged(b"a", 3)]


def acknowledged_in_place(judge: QuorumJudge) -> list[list[str]]:
    return [commit(judge, A, 2, 1, b"a"), judge.acknowledged(b"a", 2), judge.finished()]


def refused_then_committed(judge: QuorumJudge) -> list[list[str]]:
    judge.proposed(b"a")
    return [judge.refused(b"a"), judge.committed(A, 2, 1, b"a", 1)]


def committed_then_refused(judge: QuorumJudge) -> list[list[str]]:
    return [commit(judge, A, 2, 1, b"a"), judge.refused(b"a")]


def unknown_then_committed(judge: QuorumJudge) -> list[list[str]]:
    judge.proposed(b"a")
    judge.outcome_unknown(b"a")
    return [judge.committed(A, 2, 1, b"a", 1), judge.finished()]


def refused_then_proposed_again(judge: QuorumJudge) -> list[list[str]]:
    judge.proposed(b"a")
    return [judge.refused(b"a"), commit(judge, A, 2, 1, b"a"), judge.finished()]


def committed_twice(judge: QuorumJudge) -> list[list[str]]:
    return [commit(judge, A, 2, 1, b"a"), commit(judge, A, 3, 1, b"a")]


def committed_unasked(judge: QuorumJudge) -> list[list[str]]:
    return [judge.committed(A, 2, 1, b"a", 1)]


def leaders_own_entries(judge: QuorumJudge) -> list[list[str]]:
    return [judge.committed(A, 2, 1, b"", 1), judge.committed(A, 3, 2, b"", 2), commit(judge, A, 4, 2, b"a")]


def ended_apart(judge: QuorumJudge) -> list[list[str]]:
    first = [commit(judge, A, 2, 1, b"a"), commit(judge, A, 3, 1, b"b"), commit(judge, B, 2, 1, b"a")]
    return [*first, judge.finished([A, B])]


REJECTED = {
    two_leaders: "election safety",
    two_votes: "election safety",
    same_entry_other_prefix: "log matching",
    same_entry_other_command: "log matching",
    gap_in_a_log: "log matching",
    terms_fall_in_a_log: "log matching",
    log_behind_an_anchor_differs: "log matching",
    the_middle_changes: "log matching",
    terms_fall_in_the_committed_log: "log matching",
    leader_without_a_commit: "leader completeness",
    leader_with_another_entry: "leader completeness",
    two_commands_at_an_index: "state machine safety",
    same_command_other_term: "state machine safety",
    heard_with_a_gap: "state machine safety",
    heard_twice: "state machine safety",
    ended_apart: "state machine safety",
    loaded_what_nobody_had: "snapshot is prefix",
    loaded_beyond_everything: "snapshot is prefix",
    loaded_backwards: "snapshot is prefix",
    acknowledged_elsewhere: "acknowledged survives",
    refused_then_committed: "refused stays out",
    committed_then_refused: "refused stays out",
    committed_twice: "at most once",
    committed_unasked: "at most once",
}
PASSED = [
    leaders_of_two_terms,
    one_vote_repeated,
    other_entry_same_prefix,
    log_is_cut_and_grows,
    leader_with_all_commits,
    leader_behind_a_snapshot,
    late_leader_of_an_early_term,
    heard_again_after_a_restart,
    loaded_a_prefix,
    acknowledged_in_place,
    unknown_then_committed,
    refused_then_proposed_again,
    leaders_own_entries,
]


@pytest.mark.parametrize(("steps", "rule"), REJECTED.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_rejects(steps: Callable[[QuorumJudge], list[list[str]]], rule: str) -> None:
    found = judged(steps)
    assert found
    assert {text.partition(":")[0] for text in found} == {rule}


@pytest.mark.parametrize("steps", PASSED, ids=lambda each: each.__name__)
def test_passes(steps: Callable[[QuorumJudge], list[list[str]]]) -> None:
    assert judged(steps) == []


def test_outcomes_are_told_apart() -> None:
    judge = QuorumJudge()
    assert commit(judge, A, 2, 1, b"a") == judge.acknowledged(b"a", 2) == judge.refused(b"b") == []
    judge.outcome_unknown(b"c")
    assert [judge.outcome_of(name) for name in (b"a", b"b", b"c", b"d")] == [
        "acknowledged",
        "refused",
        "unknown",
        "open",
    ]
    assert judge.command_at(2) == (1, b"a")
    assert judge.command_at(3) is None
