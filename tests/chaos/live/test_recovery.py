"""Recovery against its objectives: judged figures, those that are only shown, and those that the machine is to blame
for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tidelog.chaos.checkers.history import History, Outcome, Sent, TransactionKey
from tidelog.chaos.laboratory.faults.schedule import ACTS, ENDS
from tidelog.chaos.laboratory.history.history_file import Recorded
from tidelog.chaos.laboratory.history.machine import stalled_s
from tidelog.chaos.laboratory.judge.objectives import CONTROLLER, LEADER, PROGRESS, Sample, results, samples
from tidelog.chaos.laboratory.judge.timeline import OTHER, covered_s, fault_spans, timeline
from tidelog.model.ids import TopicPartition

AT = TopicPartition("log", 0)


def fault(
    at: float, act: str, episode: int = 1, nodes: Sequence[int] = (1,), until: float | None = None, **more: Any
) -> dict[str, Any]:
    row = {"kind": "fault", "episode": episode, "act": act, "target": "leader:0", "options": {}, "nodes": list(nodes)}
    return {
        **row,
        "at": at,
        "until": at if until is None else until,
        "leads": [],
        "controls": False,
        "trouble": "",
        **more,
    }


def a_run(
    *faults: Mapping[str, Any], silent: tuple[float, float] = (0.0, 0.0), every_s: float = 0.1, to_s: float = 30.0
) -> Recorded:
    """Records are sent evenly; those sent while it is silent are acknowledged when that is over."""
    sends = []
    for number in range(int(to_s / every_s)):
        began = number * every_s
        ended = silent[1] if silent[0] <= began < silent[1] else began + 0.01
        sends.append(Sent("p0", number, AT, b"p0:%d:" % number, Outcome.OK, number, began, ended))
    return Recorded({"nodes": 3, "seed": 1}, History(sends), faults=list(faults), standings=[standing(0.5)])


def standing(at: float, isr: Sequence[int] = (1, 2, 3)) -> dict[str, Any]:
    return {"at": at, "controller": 1, "partitions": [["log", 0, 1, list(isr)]]}


def of(recorded: Recorded, objective: str) -> list[Sample]:
    return [sample for sample in samples(recorded, "run") if sample.objective == objective]


KILL = fault(10.0, "kill", leads=[["log", 0]])
START = fault(14.0, "start")


def test_a_kill_is_measured_until_the_next_acknowledgement() -> None:
    (sample,) = of(a_run(KILL, START, silent=(9.99, 10.8)), "leader")
    assert sample.waited_s == pytest.approx(0.8)
    assert sample.judged
    leader = results([sample])[0]
    assert (leader.count, leader.held, leader.missed) == (1, True, ())
    assert leader.median_s == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("waits", "held"),
    [([0.9, 0.95, 2.9], True), ([0.9, 1.1, 1.2], False), ([0.5, 0.5, 3.1], False), ([0.5, None], False), ([], True)],
)
def test_median_and_worst_are_bounded(waits: Sequence[float | None], held: bool) -> None:
    found = [Sample(LEADER.name, "run", 1.0, wait, "kill") for wait in waits]
    result = next(one for one in results(found) if one.objective is LEADER)
    assert result.held is held
    assert result.count == len(waits)


def test_what_is_not_judged_does_not_count() -> None:
    found = [Sample(CONTROLLER.name, "run", 1.0, 9.0, "kill, links cut", judged=False)]
    result = next(one for one in results(found) if one.objective is CONTROLLER)
    assert (result.held, result.count, result.worst_s) == (True, 0, None)


def test_a_kill_under_another_fault_is_shown_and_not_judged() -> None:
    slow = fault(9.0, "impair", episode=2, options={"kind": "latency"})
    healed = fault(12.0, "heal", episode=2)
    (sample,) = of(a_run(slow, KILL, healed, START, silent=(9.99, 14.0)), "leader")
    assert sample.waited_s == pytest.approx(4.0)
    assert not sample.judged


@pytest.mark.parametrize(
    ("next_at", "silent_to", "judged"), [(10.06, 14.0, False), (10.9, 10.8, True), (11.5, 14.0, True)]
)
def test_what_goes_wrong_together_with_a_kill_is_not_judged_and_what_comes_later_is_no_excuse(
    next_at: float, silent_to: float, judged: bool
) -> None:
    slow = fault(next_at, "impair", episode=2, options={"kind": "loss"})
    healed = fault(next_at + 3.0, "heal", episode=2)
    (sample,) = of(a_run(KILL, slow, healed, fault(18.0, "start"), silent=(9.99, silent_to)), "leader")
    assert sample.judged is judged


def test_records_within_transactions_are_shown_by_themselves() -> None:
    recorded = a_run(KILL, START, silent=(9.99, 11.3))
    plain = list(recorded.history.sends)
    recorded.history.sends[:] = [sent._replace(transaction=TransactionKey("w", sent.number)) for sent in plain]
    assert of(recorded, "leader") == []
    (sample,) = of(recorded, "leader, in transactions")
    assert sample.judged
    assert sample.waited_s == pytest.approx(1.3)
    assert all(result.held for result in results([sample] * 3))
    recorded.history.sends.extend(sent._replace(ended_s=sent.began_s + 0.01) for sent in plain)
    (sample,) = of(recorded, "leader")
    assert sample.waited_s == pytest.approx(0.01)


def test_a_kill_that_meets_a_cluster_that_is_not_whole_is_shown_and_not_judged() -> None:
    recorded = a_run(KILL, START, silent=(9.99, 14.0))
    recorded.standings.append(standing(9.0, (1, 2)))
    (sample,) = of(recorded, "leader")
    assert (sample.judged, sample.what) == (False, "leader:0: node 1, the cluster was not whole before")


@pytest.mark.parametrize(
    ("standings", "next_at", "waits"),
    [
        ([(10.5, 2), (16.0, 3)], None, [2.0]),  # missed at once, back two seconds after its start
        ([(14.7, 2), (16.0, 3)], None, [2.0]),  # missed only after its start
        ([(10.5, 2), (13.0, 3)], None, []),  # whole before the fault's end
        ([(10.5, 2)], None, [None]),  # never whole again
        ([(10.5, 2), (40.0, 3)], 20.0, []),  # the next fault came too soon to say
        ([(10.5, 2), (40.0, 3)], 25.0, [11.0]),  # it had had its time
        ([(19.0, 2), (21.0, 3)], None, []),  # something else, later
    ],
)
def test_copies_are_in_sync_again(
    standings: Sequence[tuple[float, int]], next_at: float | None, waits: Sequence[float | None]
) -> None:
    further = [] if next_at is None else [fault(next_at, "kill", episode=2), fault(next_at, "start", episode=2)]
    recorded = a_run(KILL, START, *further)
    recorded.standings += [standing(at, (1, 2, 3)[:copies]) for at, copies in standings]
    assert [sample.waited_s for sample in of(recorded, "whole") if sample.at_s == 14.0] == waits


def test_where_nobody_sends_steadily_the_wait_is_the_senders() -> None:
    (sample,) = of(a_run(KILL, START, every_s=4.0), "leader")
    assert sample.waited_s == pytest.approx(2.01)
    assert not sample.judged


def test_only_a_stall_that_explains_the_excess_excuses_it() -> None:
    def judged(late: float) -> tuple[int, int]:
        recorded = a_run(KILL, START, silent=(9.99, 13.5))
        recorded.stalls = [{"at": 10.2, "late": late}]
        result = results(of(recorded, "leader"))[0]
        return len(result.missed), len(result.excused)

    assert judged(0.2) == (1, 0)
    assert judged(0.6) == (1, 1)


def test_stalls_count_as_far_as_they_lie_in_the_span() -> None:
    stalls: list[Mapping[str, float]] = [{"at": 1.0, "late": 2.0}, {"at": 5.0, "late": 1.0}, {"at": 9.0, "late": 9.0}]
    assert stalled_s(stalls, 2.0, 10.0) == pytest.approx(1.0 + 1.0 + 1.0)


def test_progress_is_asked_for_under_long_faults_of_one_node() -> None:
    cut: dict[str, Any] = {"options": {"topology": "isolate", "kind": "cut"}}
    recorded = a_run(fault(10.0, "impair", **cut), fault(18.0, "heal"), silent=(10.5, 17.0))
    (sample,) = of(recorded, PROGRESS.name)
    assert sample.waited_s == pytest.approx(17.0 - 10.41, abs=0.15)
    assert not next(one for one in results([sample]) if one.objective is PROGRESS).held
    assert of(a_run(fault(10.0, "impair", **cut), fault(12.0, "heal")), PROGRESS.name) == []
    assert of(a_run(fault(10.0, "kill-all", nodes=(1, 2, 3)), fault(18.0, "start-all")), PROGRESS.name) == []


def test_faults_end_with_what_undoes_them() -> None:
    rows = [
        fault(1.0, "impair"), fault(1.1, "kill"), fault(2.0, "start", until=2.5), fault(3.0, "heal"),
        fault(4.0, "roll", episode=2, until=9.0),
        fault(10.0, "disk-slow", episode=3), fault(12.0, "disk-mend", episode=3),
        fault(20.0, "pause", episode=4), fault(21.0, "kill", episode=5, trouble="nobody is meant"),
    ]  # fmt: skip
    spans = {(span.act, span.episode): (span.begin_s, span.end_s) for span in fault_spans(rows, 30.0)}
    assert spans == {
        ("impair", 1): (1.0, 3.0),
        ("kill", 1): (1.1, 2.5),
        ("roll", 2): (4.0, 9.0),
        ("disk-slow", 3): (10.0, 12.0),
        ("pause", 4): (20.0, 30.0),
        ("kill", 5): (21.0, 21.0),
    }
    assert covered_s(spans.values()) == pytest.approx(2.0 + 5.0 + 2.0 + 10.0)


def test_every_act_has_a_lane() -> None:
    spans = fault_spans([fault(1.0, act) for act in ACTS if act not in ENDS], 2.0)
    assert [span.act for span in spans if span.kind == OTHER] == []


def test_a_time_line_counts_what_was_told_when() -> None:
    recorded = a_run(KILL, START, silent=(9.99, 10.8))
    recorded.standings = [
        {"at": 1.0, "controller": 1, "partitions": [["log", 0, 1, [1, 2, 3]]]},
        {"at": 10.5, "controller": 2, "partitions": [["log", 0, 1, [1, 2, 3]]]},
        {"at": 10.8, "controller": 2, "partitions": [["log", 0, 2, [2, 3]]]},
    ]
    line = timeline(recorded)
    bins = line.bins
    assert sum(bins.acknowledged) == 300
    assert (bins.unknown, bins.failed) == ([0] * len(bins.unknown), [0] * len(bins.failed))
    silent = int(10.3 / bins.width_s)
    assert bins.acknowledged[silent] == 0
    assert bins.p99_s[silent] is None
    late = bins.p99_s[int(10.8 / bins.width_s)]
    assert late is not None
    assert late == pytest.approx(0.8, abs=0.05)
    assert [(span.begin_s, span.leader, span.isr) for span in line.leaders["log-0"]] == [
        (1.0, 1, (1, 2, 3)), (10.8, 2, (2, 3)),
    ]  # fmt: skip
    assert [span.leader for span in line.controller] == [1, 2]
