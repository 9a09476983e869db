"""Prepare, and an outside decision (row T5; KIP-939)."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition
from tidelog.transactions.transitions import TransactionState

from .conftest import Desk

A = TopicPartition("a", 0)
B = TopicPartition("b", 3)
NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
UNMAPPED = ErrorCode.INVALID_PRODUCER_ID_MAPPING
INVALID = ErrorCode.INVALID_TXN_STATE
both = pytest.mark.parametrize("committed", [True, False])


def test_what_is_prepared_takes_nothing_in(desk: Desk) -> None:
    who = desk.prepared(A)
    assert desk.state() is TransactionState.PREPARED
    assert desk.error(desk.add(who, B)) is INVALID
    assert desk.error(desk.add(who, A)) is INVALID
    assert desk.error(desk.add(who, A, verify_only=True)) is INVALID
    assert desk.error(desk.add_offsets(who, 3)) is INVALID
    assert desk.shard.describe("t").state == "Prepared"


def test_asked_again_it_is_prepared_already(desk: Desk) -> None:
    who = desk.prepared(A)
    written = len(desk.log)
    assert desk.error(desk.prepare(who)) is NONE
    desk.fail_over()
    assert desk.error(desk.prepare(who)) is NONE
    assert len(desk.log) == written


def test_it_is_told_only_once_it_is_replicated(desk: Desk) -> None:
    who = desk.ongoing(two_phase=True)
    desk.auto = False
    waiter = desk.prepare(who)
    assert desk.error(waiter) is None
    assert desk.error(desk.prepare(who)) is CONCURRENT
    desk.end_append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert desk.error(waiter) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.state() is TransactionState.ONGOING


@both
def test_nothing_times_it_out_and_the_token_ends_it_after_a_move(desk: Desk, committed: bool) -> None:
    token = desk.prepared(A)
    desk.pass_time(10 * 24 * 3_600_000)
    desk.fail_over()
    desk.pass_time(10 * 24 * 3_600_000)
    assert desk.state() is TransactionState.PREPARED
    assert not desk.sent
    following = desk.told(desk.end(token, committed))
    assert following == (token[0], 1)
    assert [marker.committed for marker in desk.sent] == [committed]
    assert desk.told(desk.end(token, committed)) == following, "decided twice alike"
    assert desk.error(desk.end(token, not committed)) is INVALID
    assert desk.error(desk.prepare(token)) is FENCED


def test_the_timeout_counts_until_it_is_prepared_and_for_the_next_one(desk: Desk) -> None:
    who = desk.ongoing(two_phase=True, timeout_ms=15_000)
    assert desk.error(desk.prepare(who)) is NONE
    desk.fail_over()
    following = desk.told(desk.end(who))
    desk.add(following, A)
    desk.pass_time(30_000)
    assert desk.state() is TransactionState.COMPLETE_ABORT


def test_it_has_to_be_asked_for_at_the_beginning(desk: Desk) -> None:
    who = desk.ongoing()
    assert desk.error(desk.prepare(who)) is INVALID
    assert desk.state() is TransactionState.ONGOING


def test_a_transaction_without_partitions_can_be_prepared_too(desk: Desk) -> None:
    who = desk.producer(two_phase=True)
    assert desk.error(desk.prepare(who)) is NONE
    following = desk.told(desk.end(who))
    assert desk.state() is TransactionState.COMPLETE_COMMIT
    assert not desk.sent
    assert desk.error(desk.prepare(following)) is NONE
    assert desk.told(desk.end(following, committed=False)) == (who[0], 2)


def test_the_first_protocol_does_not_end_it(desk: Desk) -> None:
    token = desk.prepared(A)
    assert desk.error(desk.end(token, bump=False)) is INVALID
    assert desk.state() is TransactionState.PREPARED


def test_strangers(desk: Desk) -> None:
    token = desk.prepared(A)
    assert desk.error(desk.prepare((token[0], 1))) is FENCED
    assert desk.error(desk.prepare((token[0] + 1, 0))) is UNMAPPED
    assert desk.error(desk.prepare(token, "nobody")) is UNMAPPED
    assert desk.error(desk.end((token[0], 1))) is FENCED


def test_after_the_decision_there_is_nothing_to_prepare() -> None:
    desk = Desk(marks=False)
    token = desk.prepared(A)
    following = desk.told(desk.end(token))
    assert desk.error(desk.prepare(token)) is INVALID
    assert desk.error(desk.prepare(following)) is CONCURRENT


def test_a_new_producer_aborts_it_unless_it_says_otherwise(desk: Desk) -> None:
    token = desk.prepared(A)
    assert desk.error(desk.init(two_phase=True)) is CONCURRENT
    assert [marker.committed for marker in desk.sent] == [False]
    assert desk.producer(two_phase=True) == (token[0], 2)
    assert desk.error(desk.end(token)) is FENCED


# --- keep_prepared_transaction ----------------------------------------------------------------------


def keep(desk: Desk, **changes: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    waiter = desk.init(two_phase=True, keep=True, **changes)
    answer = desk.answers[waiter]
    return desk.told(waiter), (answer.ongoing_producer_id, answer.ongoing_producer_epoch)


@both
def test_who_keeps_it_learns_of_it_and_gets_an_identity_of_its_own(desk: Desk, committed: bool) -> None:
    token = desk.prepared(A)
    mine, ongoing = keep(desk)
    assert (mine, ongoing) == ((1_001, 0), token)
    assert desk.state() is TransactionState.PREPARED
    desk.fail_over()
    assert desk.error(desk.add(mine, B)) is INVALID, "it ends first"
    assert desk.error(desk.end(mine, committed)) is INVALID, "under its own identity"
    assert desk.told(desk.end(ongoing, committed)) == (token[0], 1)
    assert [marker.producer_epoch for marker in desk.sent] == [1]
    assert desk.told(desk.end(token, committed)) == (token[0], 1), "the former learns nothing of the new one"
    assert desk.error(desk.add((token[0], 1), A)) is UNMAPPED
    assert desk.error(desk.init(expected=token)) is FENCED
    assert desk.error(desk.add(mine, B)) is NONE


def test_the_new_one_waits_for_the_markers_like_anybody() -> None:
    desk = Desk(marks=False)
    token = desk.prepared(A)
    mine, _ = keep(desk)
    desk.end(token)
    waiting = desk.add(mine, B)
    assert desk.error(desk.init(expected=mine)) is CONCURRENT
    assert desk.error(desk.end(mine)) is CONCURRENT
    desk.mark()
    assert desk.error(waiting) is NONE


def test_who_keeps_it_again_fences_the_former_keeper(desk: Desk) -> None:
    token = desk.prepared(A)
    first, _ = keep(desk)
    second, ongoing = keep(desk)
    assert (second, ongoing) == ((first[0], 1), token)
    third, _ = keep(desk, expected=second)
    assert third == (first[0], 2)
    assert desk.error(desk.init(two_phase=True, keep=True, expected=first)) is FENCED
    desk.end(token)
    assert desk.error(desk.add(second, B)) is FENCED
    assert desk.error(desk.add(third, B)) is NONE


def test_who_does_not_keep_what_another_kept_aborts_it(desk: Desk) -> None:
    desk.prepared(A)
    mine, _ = keep(desk)
    assert desk.error(desk.init(two_phase=True)) is CONCURRENT
    assert desk.state() is TransactionState.COMPLETE_ABORT
    assert desk.producer(two_phase=True) == (mine[0], 1)


def test_there_may_be_nothing_to_keep(desk: Desk) -> None:
    assert keep(desk) == ((1_000, 0), (-1, -1))
    who, _ = keep(desk)
    desk.add(who, A)
    assert desk.error(desk.init(two_phase=True, keep=True)) is CONCURRENT, "what is open only is aborted"
    assert keep(desk) == ((who[0], 3), (-1, -1))


def test_a_token_at_the_last_epoch(desk: Desk) -> None:
    token = desk.use_up(desk.producer(two_phase=True))
    desk.add(token, A)
    assert desk.error(desk.prepare(token)) is NONE
    mine, ongoing = keep(desk)
    assert ongoing == token
    assert desk.told(desk.end(ongoing)) == (token[0], 32_767)
    assert desk.sent[0].producer_epoch == 32_767
    assert desk.error(desk.add((token[0], 32_767), A)) is UNMAPPED
    assert desk.error(desk.add(mine, A)) is NONE
