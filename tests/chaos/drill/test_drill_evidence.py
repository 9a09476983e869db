"""A drill's measures, from the observations of its clients and its watcher."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.chaos.drill.evidence import (
    TROUBLES_MAX,
    Acknowledged,
    Committed,
    Evidence,
    ReadBack,
    Seen,
    committed_after,
    compare,
    first_seen,
    longest_commit,
    longest_gap,
    longest_leaderless,
    longest_silence,
    resumed,
)
from tidelog.chaos.drill.objectives import WORDS, Judgement, Limits, Objective, judged, limit_words, value_words
from tidelog.chaos.laboratory.faults.observer import ClusterStanding
from tidelog.cli.local.watch import PartitionState
from tidelog.model.ids import TopicPartition


def test_a_partition_is_back_with_the_first_record_that_was_sent_after_the_fault() -> None:
    """One that was sent before may have had its answer before; what counts is the end, not the order of sending."""
    told = [
        Acknowledged(0.9, 1.4, 0),
        Acknowledged(1.1, 3.0, 0),
        Acknowledged(1.2, 2.5, 0),
        Acknowledged(1.0, 1.5, 2),
        Acknowledged(0.2, 1.6, 1),
    ]
    assert resumed(told, 1.0, [0, 1]) == {0: 1.5, 1: None}


def test_what_was_acknowledged_since() -> None:
    told = [Acknowledged(0.1, 0.5, 0), Acknowledged(0.2, 1.0, 0), Acknowledged(0.3, 1.5, 0)]
    evidence = Evidence(acknowledgements=told)
    assert evidence.acknowledged_since(1.0) == told[1:]
    assert evidence.acknowledged_since(0.0) == told
    assert evidence.acknowledged_since(2.0) == []


def test_a_change_that_was_asked_for_before_the_fault_does_not_count() -> None:
    commits = [Committed(0.9, 1.1), Committed(1.2, 2.0), Committed(1.3, 1.9)]
    assert committed_after(commits, 1.0) == pytest.approx(0.9)
    assert committed_after(commits[:1], 1.0) is None
    assert longest_commit(commits, 1.0, 2.0) == pytest.approx(0.8)
    assert longest_commit(commits, 5.0, 6.0) is None


def test_silence_counts_up_to_the_edges_of_the_window() -> None:
    assert longest_gap([2.0, 2.5], 0.0, 10.0) == (2.5, 7.5)
    assert longest_gap([], 1.0, 4.0) == (1.0, 3.0)
    assert longest_gap([0.5, 9.0], 1.0, 4.0) == (1.0, 3.0)
    told = [Acknowledged(0.0, float(at), 0) for at in range(1, 10)] + [Acknowledged(0.0, 4.0, 1)]
    assert longest_silence(told, [0, 1], 0.0, 10.0) == (1, 4.0, 6.0)
    assert longest_silence(told, [0], 0.0, 10.0) == (0, 0.0, 1.0)
    assert longest_silence(told, [0, 7], 0.0, 10.0) == (7, 0.0, 10.0)
    assert longest_silence(told, [], 0.0, 10.0) == (-1, 0.0, 0.0)


@given(st.lists(st.floats(0, 20), max_size=12), st.floats(0, 9), st.floats(10, 20))
def test_no_other_gap_is_longer(times: list[float], from_s: float, to_s: float) -> None:
    began, length = longest_gap(times, from_s, to_s)
    assert not any(began < time < began + length - 1e-9 for time in times)
    for start in [from_s, *times]:
        if from_s <= start <= to_s:
            end = min((time for time in [*times, to_s] if start < time <= to_s), default=to_s)
            assert end - start <= length + 1e-9


def test_what_was_seen_before_the_fault_does_not_count() -> None:
    seen = [Seen(0.5, ClusterStanding(3)), Seen(1.5, ClusterStanding(-1)), Seen(2.0, ClusterStanding(2))]
    assert first_seen(seen, 1.0, lambda standing: standing.controller == 2) == 1.0
    assert first_seen(seen, 1.0, lambda standing: standing.controller == 3) is None


def test_how_long_a_partition_was_seen_without_a_leader() -> None:
    def seen(at_s: float, *leaders: int) -> Seen:
        partitions = {TopicPartition("t", n): PartitionState(leader, (1,), (1,)) for n, leader in enumerate(leaders)}
        return Seen(at_s, ClusterStanding(1, partitions=partitions))

    looks = [seen(0.0, 1, 2), seen(1.0, -1, 2), seen(1.4, -1, -1), Seen(1.5, ClusterStanding()), seen(1.7, 2, -1)]
    assert longest_leaderless(looks, 0.0, 1.8) == pytest.approx(0.7)
    assert longest_leaderless(looks, 0.0, 3.0) == pytest.approx(1.6), "it still has none"
    assert longest_leaderless(looks[:1], 0.0, 3.0) == 0.0


@pytest.mark.parametrize(
    ("log", "lost", "duplicated"),
    [
        ([(0, 0, 0), (1, 1, 0), (2, 0, 1)], 0, 0),
        ([(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1)], 0, 0),  # 3 was sent and never acknowledged
        ([(0, 0, 0), (2, 0, 1)], 1, 0),
        ([(0, 0, 0), (1, 0, 1), (2, 0, 2)], 2, 0),  # there, and not where it was acknowledged
        ([(0, 0, 0), (1, 1, 0), (2, 0, 1), (2, 0, 2)], 0, 1),
        ([], 3, 0),
    ],
)
def test_what_is_lost_and_what_is_there_twice(log: list[tuple[int, int, int]], lost: int, duplicated: int) -> None:
    places = {0: (0, 0), 1: (1, 0), 2: (0, 1)}
    assert compare(places, log) == ReadBack(len(log), lost, duplicated)


def test_errors_beyond_the_bound_are_counted_and_not_kept() -> None:
    evidence = Evidence()
    for number in range(TROUBLES_MAX + 5):
        evidence.trouble(number, "reader", ValueError("no"))
    assert evidence.errors == TROUBLES_MAX + 5
    assert len(evidence.troubles) == TROUBLES_MAX
    assert evidence.troubles[0].text == "ValueError: no"


def test_an_objective_is_missed_by_a_value_above_it_and_by_none_at_all() -> None:
    objectives = [Objective("whole_s", 10.0), Objective("lost", 0), Objective("commit_s", 1.0)]
    found = judged(objectives, {"whole_s": 10.0, "lost": 1})
    assert [one.met for one in found] == [True, False, False]
    assert found[2] == Judgement(objectives[2], None)


def test_words_and_units() -> None:
    assert Objective("whole_s", 2.5).words == "every replica in sync after the start: at most 2.5 s"
    assert limit_words("lost", 0) == "none"
    assert value_words("lost", 1_234) == "1,234"
    assert value_words("whole_s", 1.239) == "1.24 s"
    assert value_words("whole_s", None) == "it did not happen"
    assert Limits() == Limits(3.0, 1.0, 10.0)
    assert all(measure in WORDS for measure in ("lost", "duplicated", "errors", "unhealthy"))
