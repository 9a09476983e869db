"""InitProducerId: new identities, and the producers that they fence (KIP-98, KIP-360)."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition
from tidelog.transactions.transitions import TransactionState

from .conftest import Desk

A = TopicPartition("a", 0)
NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED


def test_a_new_id_begins_with_epoch_0(desk: Desk) -> None:
    assert desk.producer() == (1_000, 0)
    assert desk.state() is TransactionState.EMPTY


def test_nobody_is_answered_before_the_record_is_replicated() -> None:
    desk = Desk(auto=False)
    waiter = desk.init()
    desk.allocate()
    assert desk.error(waiter) is None
    desk.end_append()
    assert desk.told(waiter) == (1_000, 0)


def test_the_next_one_gets_the_next_epoch_and_the_former_is_fenced(desk: Desk) -> None:
    old = desk.producer()
    assert desk.producer() == (1_000, 1)
    assert desk.error(desk.add(old, A)) is FENCED
    assert desk.error(desk.end(old)) is FENCED
    assert desk.error(desk.init(expected=old)) is FENCED


def test_while_one_is_answered_another_is_to_come_back() -> None:
    desk = Desk(auto=False)
    first = desk.init()
    assert desk.error(desk.init()) is CONCURRENT
    desk.allocate()
    assert desk.error(desk.init()) is CONCURRENT
    desk.end_append()
    assert desk.told(first) == (1_000, 0)


def test_a_producer_that_says_who_it_is_may_ask_again(desk: Desk) -> None:
    first = desk.producer()
    second = desk.producer(expected=first)
    assert second == (1_000, 1)
    assert desk.producer(expected=first) == second, "the answer was lost"
    desk.fail_over()
    assert desk.producer(expected=first) == second, "and the coordinator has moved"
    assert desk.producer(expected=second) == (1_000, 2)
    assert desk.error(desk.init(expected=first)) is FENCED


def test_no_repetition_is_seen_where_another_has_spoken_since(desk: Desk) -> None:
    first = desk.producer()
    desk.producer()
    assert desk.error(desk.init(expected=first)) is FENCED


def test_no_repetition_is_seen_once_the_new_epoch_was_used(desk: Desk) -> None:
    first = desk.producer()
    second = desk.producer(expected=first)
    desk.add(second, A)
    assert desk.error(desk.init(expected=first)) is FENCED
    assert desk.state() is TransactionState.ONGOING, "a fenced producer does not abort what is open"


def test_an_unknown_producer_id_is_fenced(desk: Desk) -> None:
    desk.producer()
    assert desk.error(desk.init(expected=(7, 0))) is FENCED


def test_an_id_that_nobody_knows_any_more_begins_anew(desk: Desk) -> None:
    assert desk.producer(expected=(7, 3)) == (1_000, 0)


def test_what_is_open_is_aborted_first_and_the_asker_comes_back() -> None:
    desk = Desk(marks=False)
    old = desk.ongoing()
    assert desk.error(desk.init()) is CONCURRENT
    assert desk.state() is TransactionState.PREPARE_ABORT
    (marker,) = desk.sent
    assert (marker.producer_id, marker.producer_epoch, marker.committed) == (old[0], 1, False)
    assert desk.error(desk.init()) is CONCURRENT, "markers are on their way"
    desk.mark()
    assert desk.state() is TransactionState.COMPLETE_ABORT
    assert desk.producer() == (old[0], 2)
    assert desk.error(desk.end(old, committed=False)) is FENCED


def test_the_fence_is_told_only_when_it_is_replicated() -> None:
    desk = Desk(marks=False)
    desk.ongoing()
    desk.auto = False
    waiter = desk.init()
    assert desk.error(waiter) is None
    assert not desk.sent
    desk.end_append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert desk.error(waiter) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.state() is TransactionState.ONGOING
    assert not desk.sent


def test_before_its_epochs_run_out_an_id_is_replaced(desk: Desk) -> None:
    last = desk.use_up(desk.producer())
    assert desk.producer() == (1_001, 0)
    assert desk.error(desk.add(last, A)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert desk.shard.state.counters.rotated_ids == 1


def test_the_replacement_is_told_again_to_whom_it_was_told(desk: Desk) -> None:
    last = desk.use_up(desk.producer())
    fresh = desk.producer(expected=last)
    assert fresh == (1_001, 0)
    assert desk.producer(expected=last) == fresh
    assert desk.producer(expected=fresh) == (1_001, 1)
    assert desk.error(desk.init(expected=last)) is FENCED


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_beyond_the_bounds_is_refused(desk: Desk, timeout_ms: int) -> None:
    waiter = desk.init(timeout_ms=timeout_ms)
    assert desk.error(waiter) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert not desk.has_entry()


@pytest.mark.parametrize("changes", [{"two_phase": True}, {"keep": True}])
def test_two_phase_commit_has_to_be_allowed(changes: dict[str, Any]) -> None:
    desk = Desk(two_phase_commit_enable=False)
    assert desk.error(desk.init(**changes)) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_half_an_identity_is_refused(desk: Desk) -> None:
    assert desk.error(desk.init(expected=(5, -1))) is ErrorCode.INVALID_REQUEST
    assert desk.error(desk.init(expected=(-1, 5))) is ErrorCode.INVALID_REQUEST


def test_without_a_producer_id_nothing_is_left_behind() -> None:
    desk = Desk(auto=False)
    waiter = desk.init()
    added = desk.add((1, 0), A)
    desk.allocate(answered=False)
    assert desk.error(waiter) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert desk.error(added) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert not desk.has_entry()


def test_a_record_that_is_refused_leaves_nothing_behind() -> None:
    desk = Desk(auto=False)
    waiter = desk.init()
    desk.allocate()
    added = desk.add((1_000, 0), A)
    desk.end_append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert desk.error(waiter) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.error(added) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert not desk.has_entry()


def test_ids_are_bounded() -> None:
    desk = Desk(ids_max=1)
    desk.producer("t")
    assert desk.error(desk.init("u")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.producer("t") == (1_000, 1)


def test_ids_of_sinks_writers_are_bounded_too() -> None:
    desk = Desk(ids_max=1)
    desk.write_attempt(0, "j", "a")
    assert desk.error(desk.begin_sink(0, "j", "b")) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_appends_are_bounded() -> None:
    desk = Desk(auto=False, appends_max=1)
    desk.init("t")
    assert desk.error(desk.init("u")) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_an_answer_does_not_wait_for_ever_but_the_record_counts() -> None:
    desk = Desk(auto=False)
    waiter = desk.init()
    desk.allocate()
    desk.pass_time(30_000)
    assert desk.error(waiter) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.error(desk.init()) is CONCURRENT, "what is written is not forgotten"
    desk.end_append()
    again = desk.init()
    desk.end_append()
    assert desk.told(again) == (1_000, 1)


def test_whoever_waits_when_leadership_ends_is_sent_on() -> None:
    desk = Desk(auto=False)
    allocating, appending = desk.init("t"), desk.init("u")
    desk.allocate(at=1)
    waiting = desk.add((1_000, 0), A, transactional_id="u")
    desk.perform(desk.shard.resign(desk.now))
    assert {desk.error(waiter) for waiter in (allocating, appending, waiting)} == {ErrorCode.NOT_COORDINATOR}


def test_an_append_that_ended_with_leadership_is_its_end() -> None:
    desk = Desk(auto=False)
    waiters = [desk.init("t"), desk.init("u")]
    desk.allocate()
    desk.allocate()
    desk.end_append(ErrorCode.NOT_COORDINATOR)
    assert {desk.error(waiter) for waiter in waiters} == {ErrorCode.NOT_COORDINATOR}
    assert not desk.shard.state.entries
