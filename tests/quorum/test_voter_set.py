"""Sets of voters: bytes, and, by going through all of them, that a change keeps majorities together."""

from collections.abc import Iterator
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.ids import DirectoryId, NodeId
from tidelog.model.voter_set import Voter, VoterSet


def voter(node: int, copy: int = 0) -> Voter:
    return Voter(NodeId(node), DirectoryId(bytes([copy]) * 16))


def majorities(voters: VoterSet) -> Iterator[set[Voter]]:
    """Every group of voters that decides under a set."""
    for size in range(len(voters.voters) + 1):
        for group in combinations(voters.voters, size):
            if voters.has_majority(group):
                yield set(group)


def overlap(old: VoterSet, new: VoterSet) -> bool:
    return all(one & other for one in majorities(old) for other in majorities(new))


SETS = [
    VoterSet(tuple(voter(node) for node in range(size) if node not in vacant), vacant)
    for size in range(1, 8)
    for vacancies in range(size)
    for vacant in combinations(map(NodeId, range(size)), vacancies)
]


def test_any_two_majorities_of_a_set_and_of_those_one_step_from_it_overlap() -> None:
    steps = 0
    for old in SETS:
        after = [old, *(old.admitting(voter(seat, 1)) for seat in old.vacant)]
        if len(old.voters) > 1:
            after += [old.without(left.node_id) for left in old.voters]
        steps += len(after)
        assert all(overlap(old, new) for new in after)
    assert steps > 1000


def test_an_exchange_in_a_single_step_would_not_do() -> None:
    old = VoterSet((voter(1), voter(2), voter(3)))
    new = old.without(NodeId(2)).admitting(voter(2, 1))
    assert not overlap(old, new)  # 2 and 3 before, 1 and the new 2 after


def test_who_is_no_voter_counts_for_nothing() -> None:
    voters = VoterSet((voter(1), voter(2), voter(3)))
    assert voters.has_majority([voter(1), voter(3)])
    assert not voters.has_majority([voter(1), voter(1), voter(2, 1), voter(9)])
    assert voter(2) in voters
    assert voter(2, 1) not in voters


def test_a_seat_that_is_taken_admits_nobody() -> None:
    with pytest.raises(ValueError, match=r"expected a vacant seat of \(\), found node 1 with directory"):
        VoterSet((voter(1),)).admitting(voter(1, 1))


def test_a_set_without_voters_or_with_one_twice_is_refused() -> None:
    for voters, vacant in (((), (1,)), ((voter(2), voter(1)), ()), ((voter(1), voter(1, 1)), ()), ((voter(1),), (1,))):
        with pytest.raises(ValueError, match="expected at least one voter"):
            VoterSet(voters, tuple(map(NodeId, vacant)))


@given(st.sampled_from(SETS))
def test_what_is_encoded_is_decoded(voters: VoterSet) -> None:
    assert VoterSet.decode(voters.encode()) == voters
    assert voters.seats == tuple(range(len(voters.seats)))


@given(st.binary(max_size=80))
def test_garbage_is_refused(data: bytes) -> None:
    try:
        assert VoterSet.decode(data).encode() == data
    except ValueError:
        pass
