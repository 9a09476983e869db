"""A hold: nothing new is begun, what was decided is completed, and it ends by itself."""

from __future__ import annotations

from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.backup_api import HeldLedger, HeldPartition
from tidelog.transactions.transitions import TransactionState

from .conftest import A, Desk

REFUSED = ErrorCode.COORDINATOR_NOT_AVAILABLE


def held(desk: Desk, hold_ms: int = 1_000) -> HeldPartition:
    return desk.shard.hold(0, "h", hold_ms, desk.now)


def test_nothing_is_begun_decided_or_prepared_while_it_lasts() -> None:
    desk = Desk()
    who = desk.ongoing(two_phase=True)
    job = desk.write_attempt(1, "job", "a")
    first = held(desk)
    assert (first.partition, first.leader_epoch, first.settled, first.unbroken) == (0, 1, True, False)
    written = len(desk.batches())
    refused = [
        desk.end(who),
        desk.end(who, committed=False),
        desk.prepare(who),
        desk.add(who, A._replace(partition=7)),
        desk.init("new"),
        desk.init("t"),
        desk.commit_batch(1, "job", {"a": job}),
        desk.abort_job(1, "job"),
        desk.begin_sink(2, "job2", "a"),
    ]
    for waiter in refused:
        answer = desk.answers[waiter]
        error = answer.results[0].error if hasattr(answer, "results") else answer.error
        assert error is REFUSED, answer
    assert len(desk.batches()) == written
    assert held(desk).unbroken
    assert held(desk, 0).unbroken
    assert desk.told(desk.end(who)) == (who[0], who[1] + 1)


def test_it_is_settled_once_what_was_decided_is_complete() -> None:
    desk = Desk(marks=False)
    who = desk.ongoing()
    desk.auto = False
    waiter = desk.end(who)
    assert not held(desk).settled, "the decision is being written"
    desk.end_append()
    assert desk.error(waiter) is ErrorCode.NONE
    assert not held(desk).settled, "the markers are on their way"
    desk.mark()
    assert not held(desk).settled, "their completion is being written"
    desk.end_append()
    assert held(desk).settled
    assert desk.state() is TransactionState.COMPLETE_COMMIT


def test_an_id_that_was_asked_for_before_leads_to_no_decision_unseen() -> None:
    desk = Desk()
    who = desk.use_up(desk.ongoing())
    desk.auto = False
    desk.end(who)
    assert desk.allocations
    assert not held(desk).settled
    desk.auto = True
    desk.allocate()
    assert held(desk).settled
    assert desk.state() is TransactionState.COMPLETE_COMMIT


def test_nothing_times_out_meanwhile_and_a_hold_that_nobody_prolongs_ends() -> None:
    desk = Desk(abort_timed_out_transaction_cleanup_interval_ms=10)
    who = desk.ongoing(timeout_ms=100)
    held(desk, 5_000)
    desk.pass_time(4_000)
    assert desk.state() is TransactionState.ONGOING
    assert held(desk, 5_000).unbroken
    desk.pass_time(6_000)
    assert not held(desk).unbroken, "it had ended"
    assert desk.state() is TransactionState.COMPLETE_ABORT
    assert desk.error(desk.end(who)) is not ErrorCode.NONE


def test_the_next_coordinator_knows_of_no_hold() -> None:
    desk = Desk()
    who = desk.ongoing()
    held(desk)
    desk.fail_over()
    assert desk.error(desk.end(who)) is ErrorCode.NONE
    found = held(desk)
    assert (found.leader_epoch, found.unbroken) == (2, False)


def test_it_tells_what_sinks_have_decided() -> None:
    desk = Desk()
    desk.commit_batch(7, "job", {"a": desk.write_attempt(7, "job", "a")})
    desk.begin_sink(0, "first", "a", sink="without a decision")
    assert held(desk).ledgers == (HeldLedger("s", 7, "job"),)
