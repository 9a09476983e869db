"""Pace and account of the demo's sending."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.local.watch import PartitionState, WatchFailed, leads_most, wait_until
from tidelog.demo.log import paced_sending
from tidelog.demo.log.flights import Flight
from tidelog.demo.log.paced_sending import Account, Failover, Pace


def test_the_pace_lasts_as_long_as_asked() -> None:
    pace = Pace(1000, 20.0, started=100.0)
    assert pace.allowed(110.0) == 500
    assert pace.allowed(119.9) < 1000
    assert pace.allowed(121.0) == 1000
    assert pace.allowed(500.0) == 1000


def test_a_hold_slows_to_a_trickle_and_does_not_catch_up() -> None:
    pace = Pace(100_000, 20.0, started=0.0)
    pace.hold_at(0.1)
    assert pace.allowed(10.0) == 10_000
    assert pace.allowed(11.0) == 10_000 + paced_sending.TRICKLE_PER_S
    pace.hold_at(1.0)
    assert pace.allowed(12.0) == 15_000 + paced_sending.TRICKLE_PER_S


@given(st.lists(st.tuples(st.floats(0, 3), st.sampled_from([None, 0.2, 0.6, 1.0])), max_size=30))
def test_the_pace_never_falls_and_never_exceeds_the_rows(steps: list[tuple[float, float | None]]) -> None:
    pace, now, last = Pace(5_000, 20.0, started=0.0), 0.0, 0
    for passed, hold in steps:
        now += passed
        if hold is not None:
            pace.hold_at(hold)
        allowed = pace.allowed(now)
        assert last <= allowed <= 5_000
        assert allowed <= now * pace.rate + 1
        last = allowed


def placed(partition: int, offset: int = 0) -> SimpleNamespace:
    return SimpleNamespace(partition=partition, offset=offset)


def test_only_rows_sent_after_the_kill_end_a_failover() -> None:
    account = Account()
    account.failover = Failover(100, frozenset({0, 2}), started=0.0)
    account.settled(99, placed(0), None)  # sent before: may have been on its way
    account.settled(101, placed(1), None)  # another leader's
    account.settled(102, placed(2), ValueError("refused"))
    assert account.failover.seconds == {}
    account.settled(103, placed(0), None)
    account.settled(104, placed(0), None)
    assert not account.failover.done.is_set()
    account.settled(105, placed(2), None)
    assert account.failover.done.is_set()
    assert set(account.failover.seconds) == {0, 2}
    assert account.failed[0][0] == 102


def test_what_is_on_its_way_is_pending_until_its_outcome() -> None:
    account = Account()
    sent: list[tuple[int, object]] = []

    class Producer:
        def send(self, topic: str, value: object = None, key: object = None, **more: object) -> None:
            sent.append((len(sent), more["on_delivery"]))

    flights = (Flight(row, b"AA%d" % (row % 3), b"{}") for row in range(10))
    paced_sending.send_paced(
        Producer(), "flights", flights, Pace(10, 0.05, 0.0), account, lambda: False, lambda _: None
    )
    assert account.sent == 10
    assert account.pending == set(range(10))
    for row, callback in sent[:4]:
        callback(placed(0, row), None)  # type: ignore[operator]
    assert account.pending == set(range(4, 10))
    assert account.acknowledged[3] == (0, 3)


def test_the_node_that_leads_most_is_found() -> None:
    def led_by(leader: int) -> PartitionState:
        return PartitionState(leader, (1, 2, 3), (1, 2, 3))

    assert leads_most({0: led_by(1), 1: led_by(2), 2: led_by(2)}) == (2, 2)
    assert leads_most({0: led_by(3), 1: led_by(2)}) == (2, 1)
    with pytest.raises(WatchFailed, match="found none"):
        leads_most({0: led_by(-1)})


def test_an_isr_is_whole_only_with_all_replicas_and_a_leader() -> None:
    assert PartitionState(1, (2, 1), (1, 2)).whole
    assert not PartitionState(1, (1,), (1, 2)).whole
    assert not PartitionState(-1, (1, 2), (1, 2)).whole


def test_waiting_in_vain_says_for_what_and_how_it_stood() -> None:
    with pytest.raises(WatchFailed, match="waited 0 s for a miracle; found nothing"):
        wait_until("a miracle", lambda: False, 0, lambda: "nothing")
