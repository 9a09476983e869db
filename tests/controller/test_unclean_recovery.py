"""A leader where every safe replica stopped uncleanly: the table in ``unclean_recovery.py``."""

from __future__ import annotations

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import BrokerEpoch, ControllerEpoch, LeaderEpoch, NodeId, Offset, TopicId
from tidelog.proto.calls.controller_api import LogEnd, ReportLogEndsRequest

from .conftest import Bench

TIMEOUT_MS = 300_000
"""The default of ``unclean.recovery.timeout.ms``, that of KIP-966."""


def state(bench: Bench) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(leader, ISR, ELR, last known ELR)"""
    found = bench.partition("t")
    return found.leader, found.isr, found.eligible_leader_replicas, found.last_known_elr


def report(
    bench: Bench, node: int, last_epoch: int, end: int, *, leader_epoch: int | None = None, epoch: int | None = None
) -> ErrorCode:
    """A broker reports how far its log of the topic reaches."""
    known = bench.partition("t")
    broker_epoch = bench.epochs[node] if epoch is None else BrokerEpoch(epoch)
    under = known.leader_epoch if leader_epoch is None else LeaderEpoch(leader_epoch)
    found = LogEnd(known.topic_id, 0, under, LeaderEpoch(last_epoch), Offset(end))
    response = bench.ask(ReportLogEndsRequest(NodeId(node), broker_epoch, (found,)))
    error: ErrorCode = response.error
    return error


def pass_time(bench: Bench, until_ms: int) -> None:
    """Live brokers go on speaking; the controller looks at the time once in a while."""
    while bench.now_ms < until_ms:
        bench.now_ms = min(bench.now_ms + 500, until_ms)
        for node, found in bench.controller.draft.brokers.items():
            if not found.fenced:
                bench.beat(node)
        bench.take(bench.controller.recover(bench.now_ms))


@pytest.fixture
def killed(bench: Bench) -> Bench:
    """A topic on three brokers that were all killed at once; none of them is back."""
    bench.up(1, 2, 3)
    bench.create("t", (1, 2, 3), min_insync_replicas="2")
    bench.silence(1, 2, 3)
    assert state(bench) == (-1, (), (1, 2, 3), ())
    return bench


def test_nobody_leads_before_all_have_reported(killed: Bench) -> None:
    killed.up(1, 2)
    assert state(killed) == (-1, (), (3,), (1, 2))
    report(killed, 1, 1, 100)  # broker 3 is eligible still: nobody asked
    killed.up(3)
    assert state(killed) == (-1, (), (), (1, 2, 3))
    report(killed, 1, 1, 100)
    report(killed, 3, 1, 90)
    assert state(killed) == (-1, (), (), (1, 2, 3))
    report(killed, 2, 1, 110)
    assert state(killed) == (2, (2,), (), (1, 3))
    assert killed.partition("t").leader_recovery


@pytest.mark.parametrize(
    ("ends", "leader"),
    [
        # The same epoch: the longer log.
        ({1: (3, 10), 2: (3, 12), 3: (3, 11)}, 2),
        # A later epoch goes before a longer log: it descends from a leader that had everything.
        ({1: (3, 99), 2: (4, 50), 3: (3, 98)}, 2),
        ({1: (-1, 0), 2: (3, 1), 3: (-1, 0)}, 2),
        # As long: the first in the order of the replicas.
        ({1: (3, 10), 2: (4, 12), 3: (4, 12)}, 2),
        ({1: (-1, 0), 2: (-1, 0), 3: (-1, 0)}, 1),
    ],
)
def test_the_log_that_reaches_furthest_leads(killed: Bench, ends: dict[int, tuple[int, int]], leader: int) -> None:
    killed.up(1, 2, 3)
    for node, reach in ends.items():
        report(killed, node, *reach)
    assert state(killed)[:2] == (leader, (leader,))


def test_the_longest_log_is_waited_for_if_it_went_away_after_its_report(killed: Bench) -> None:
    killed.up(1, 2, 3)
    report(killed, 1, 1, 100)
    killed.silence(1)
    report(killed, 2, 1, 90)
    report(killed, 3, 1, 90)
    assert state(killed)[0] == -1
    # It comes back as another process, which has lost more since.
    killed.up(1)
    pass_time(killed, killed.now_ms + 5_000)
    assert state(killed)[0] == -1, "what the former process had is not what this one has"
    report(killed, 1, 1, 70)
    assert state(killed)[0] == 2


def test_who_has_less_need_not_be_there_any_more(killed: Bench) -> None:
    killed.up(1, 2, 3)
    report(killed, 1, 1, 80)
    killed.silence(1)
    report(killed, 2, 1, 90)
    report(killed, 3, 1, 85)
    assert state(killed)[0] == 2


def test_a_report_of_another_leader_epoch_or_process_counts_for_nothing(killed: Bench) -> None:
    killed.up(1, 2, 3)
    report(killed, 1, 1, 100)
    report(killed, 2, 1, 100)
    under = killed.partition("t").leader_epoch
    assert report(killed, 3, 1, 120, leader_epoch=under - 1) is ErrorCode.NONE
    assert report(killed, 3, 1, 120, leader_epoch=under + 1) is ErrorCode.NONE
    assert report(killed, 3, 1, 120, epoch=killed.epochs[3] - 1) is ErrorCode.STALE_BROKER_EPOCH
    assert state(killed)[0] == -1
    assert report(killed, 3, 1, 99) is ErrorCode.NONE
    assert state(killed)[0] == 1


def test_reports_die_with_the_controller_and_come_again(killed: Bench) -> None:
    killed.up(1, 2, 3)
    report(killed, 1, 1, 100)
    report(killed, 2, 1, 90)
    controller = killed.controller
    controller.resign()
    killed.take(controller.lead(ControllerEpoch(2), killed.now_ms))
    report(killed, 3, 1, 95)
    assert state(killed)[0] == -1
    report(killed, 2, 1, 90)
    report(killed, 1, 1, 100)
    assert state(killed)[0] == 1


def test_a_missing_replica_is_waited_for_until_the_time_is_over(killed: Bench) -> None:
    killed.silence()
    killed.up(1, 2)
    killed.register(3)
    # Broker 3 runs and is fenced: it says nothing.
    report(killed, 1, 1, 80)
    report(killed, 2, 1, 90)
    killed.take(killed.controller.recover(killed.now_ms))
    begun = killed.now_ms
    pass_time(killed, begun + TIMEOUT_MS - 1)
    assert state(killed)[0] == -1
    pass_time(killed, begun + TIMEOUT_MS)
    assert state(killed) == (2, (2,), (), (1, 3))


def test_after_the_time_somebody_who_had_everything_must_have_reported(killed: Bench) -> None:
    """Not one that has been away for long: rather no leader than one that never had the records."""
    bench = killed
    bench.register(2)
    bench.register(3)
    bench.register(1)
    assert state(bench) == (-1, (), (), (1, 2, 3))
    pass_time(bench, bench.now_ms + 2 * TIMEOUT_MS)
    assert state(bench)[0] == -1
    bench.beat(3)
    report(bench, 3, 1, 5)
    assert state(bench)[0] == 3


def test_a_replica_that_was_not_asked_counts_if_its_log_reaches_further(bench: Bench) -> None:
    """Broker 1 was fenced first, though it had everything; the other two lost their tails."""
    bench.up(1, 2, 3)
    bench.create("t", (1, 2, 3), min_insync_replicas="2")
    bench.silence(1)
    bench.silence(2, 3)
    bench.up(1, 2, 3)
    assert state(bench) == (-1, (), (), (2, 3))
    report(bench, 2, 1, 80)
    report(bench, 1, 1, 100)
    assert state(bench)[0] == -1
    report(bench, 3, 1, 85)
    assert state(bench) == (1, (1,), (), (2, 3))


def test_a_replica_that_was_not_asked_is_not_enough(bench: Bench) -> None:
    bench.up(1, 2, 3)
    bench.create("t", (1, 2, 3), min_insync_replicas="2")
    bench.silence(1)
    bench.silence(2, 3)
    bench.register(2)
    bench.register(3)
    bench.up(1)
    report(bench, 1, 1, 100)
    pass_time(bench, bench.now_ms + 2 * TIMEOUT_MS)
    assert state(bench)[0] == -1


def test_a_replaced_disk_is_not_waited_for(killed: Bench) -> None:
    killed.up(1, 2)
    killed.up(3, dirs=(903,))
    assert state(killed) == (-1, (), (), (1, 2))
    report(killed, 1, 1, 80)
    report(killed, 3, -1, 0)
    report(killed, 2, 1, 79)
    assert state(killed) == (1, (1,), (), (2,))


def test_the_last_one_left_leads_without_a_report(killed: Bench) -> None:
    killed.up(2, dirs=(902,))
    killed.up(3, dirs=(903,))
    killed.up(1)
    assert state(killed) == (1, (1,), (), ())


def test_a_failed_directory_does_not_lead_whatever_it_reported(killed: Bench) -> None:
    killed.up(1, 2, 3)
    report(killed, 1, 1, 100)
    killed.beat(1, offline=(101,))
    report(killed, 2, 1, 80)
    report(killed, 3, 1, 90)
    assert state(killed)[0] == -1
    pass_time(killed, killed.now_ms + TIMEOUT_MS + 500)
    assert state(killed)[0] == 3


def test_who_leads_after_a_recovery_may_lose_its_log_as_well(killed: Bench) -> None:
    """Until more is committed, the others are not forgotten."""
    killed.up(1, 2, 3)
    for node, end in ((1, 100), (2, 110), (3, 90)):
        report(killed, node, 1, end)
    assert state(killed) == (2, (2,), (), (1, 3))
    killed.silence(2)
    killed.up(2)
    assert state(killed) == (-1, (), (), (1, 2, 3))
    for node, end in ((1, 100), (2, 50), (3, 90)):
        report(killed, node, 1, end)
    assert state(killed) == (1, (1,), (), (2, 3))
    killed.alter_isr("t", (1, 3))
    assert state(killed) == (1, (1, 3), (), ())


def test_reports_under_an_earlier_leader_epoch_are_forgotten(killed: Bench) -> None:
    """Also where the leader that came of them is gone again before the controller has looked at the time."""
    killed.up(1, 2, 3)
    for node, end in ((1, 100), (2, 110), (3, 90)):
        report(killed, node, 1, end)
    killed.silence(2)
    killed.up(2)
    report(killed, 2, 2, 120)
    assert state(killed) == (-1, (), (), (1, 2, 3))
    for node in (1, 3):
        report(killed, node, 1, 90)
    assert state(killed) == (2, (2,), (), (1, 3))


def test_unclean_elections_wait_for_no_reports(bench: Bench) -> None:
    bench.up(1, 2, 3)
    bench.create("t", (1, 2, 3), min_insync_replicas="2", unclean_leader_election_enable="true")
    bench.silence(1, 2, 3)
    bench.up(2)
    assert state(bench)[:2] == (2, (2,))


def test_reports_of_unknown_partitions_are_passed_over(killed: Bench) -> None:
    killed.up(1, 2, 3)
    nowhere = LogEnd(TopicId(b"x" * 16), 0, LeaderEpoch(1), LeaderEpoch(1), Offset(5))
    strange = LogEnd(killed.partition("t").topic_id, 7, LeaderEpoch(1), LeaderEpoch(1), Offset(5))
    response = killed.ask(ReportLogEndsRequest(NodeId(1), killed.epochs[1], (nowhere, strange)))
    assert response.error is ErrorCode.NONE


def test_a_deleted_topic_is_forgotten(killed: Bench) -> None:
    from tidelog.proto.calls.api import DeleteTopicsRequest

    killed.up(1, 2, 3)
    report(killed, 1, 1, 100)
    killed.ask(DeleteTopicsRequest(("t",)))
    assert killed.controller.recover(killed.now_ms) == []
    assert not killed.controller._recovery._searches
