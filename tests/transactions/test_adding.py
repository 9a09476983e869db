"""The partitions of a transaction: adding, waiting for one's turn, verifying (KIP-98, KIP-890)."""

from __future__ import annotations

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition
from tidelog.proto.logs.transaction_records import decode_transaction_value
from tidelog.transactions.transitions import TransactionState

from .conftest import Desk

A = TopicPartition("a", 0)
B = TopicPartition("b", 3)
C = TopicPartition("c", 1)
NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
UNMAPPED = ErrorCode.INVALID_PRODUCER_ID_MAPPING
ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE


def test_the_first_partition_begins_the_transaction(desk: Desk) -> None:
    who = desk.producer()
    assert desk.error(desk.add(who, A)) is NONE
    described = desk.shard.describe("t")
    assert (described.state, described.start_time_ms) == ("Ongoing", desk.wall_ms)
    assert [(item.topic, item.partition) for item in described.partitions] == [A]


def test_nobody_is_answered_before_the_record_is_replicated(desk: Desk) -> None:
    who = desk.producer()
    desk.auto = False
    waiter = desk.add(who, A)
    assert desk.error(waiter) is None
    assert desk.state() is TransactionState.EMPTY
    desk.end_append()
    assert desk.error(waiter) is NONE


def test_what_is_in_it_needs_no_record(desk: Desk) -> None:
    who = desk.ongoing(A, B)
    written = len(desk.log)
    assert desk.error(desk.add(who, B)) is NONE
    assert len(desk.log) == written


def test_offsets_of_a_group_are_a_partition_too(desk: Desk) -> None:
    who = desk.ongoing(A)
    assert desk.error(desk.add_offsets(who, 7)) is NONE
    assert list(desk.value().partitions) == [A, ("__consumer_offsets", 7)]


def test_leaders_that_ask_at_once_share_a_record(desk: Desk) -> None:
    who = desk.producer()
    desk.auto = False
    waiters = [desk.add(who, A), desk.add(who, B), desk.add(who, C), desk.add(who, A)]
    assert len(desk.appends) == 1
    desk.end_append()
    assert [desk.error(waiter) for waiter in waiters] == [NONE, None, None, NONE]
    (append,) = desk.appends
    assert append.records[0].value is not None
    assert decode_transaction_value(append.records[0].value).partitions == (A, B, C)
    desk.end_append()
    assert {desk.error(waiter) for waiter in waiters} == {NONE}


def test_those_who_waited_are_judged_when_their_turn_comes(desk: Desk) -> None:
    who = desk.producer()
    desk.auto = False
    desk.init()
    waiter = desk.add(who, A)
    assert desk.error(waiter) is None
    desk.end_append()
    assert desk.error(waiter) is FENCED


def test_after_a_refused_append_others_have_their_turn(desk: Desk) -> None:
    who = desk.producer()
    desk.auto = False
    first, second = desk.add(who, A), desk.add(who, B)
    desk.end_append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert desk.error(first) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    desk.end_append()
    assert desk.error(second) is NONE
    assert list(desk.value().partitions) == [B]


def test_the_next_transaction_waits_for_the_markers_of_the_former() -> None:
    desk = Desk(marks=False)
    who = desk.ongoing(A)
    following = desk.told(desk.end(who))
    waiter = desk.add(following, B)
    assert desk.error(waiter) is None
    desk.mark()
    assert desk.error(waiter) is NONE
    assert list(desk.value().partitions) == [B]


def test_who_waits_too_long_is_to_ask_again() -> None:
    desk = Desk(marks=False, add_wait_max_ms=1_000)
    following = desk.told(desk.end(desk.ongoing(A)))
    first = desk.add(following, B)
    desk.pass_time(600)
    second = desk.add(following, C)
    desk.pass_time(400)
    assert desk.error(first) is CONCURRENT
    assert desk.error(second) is None
    desk.pass_time(600)
    assert desk.error(second) is CONCURRENT
    desk.mark()
    assert desk.state() is TransactionState.COMPLETE_COMMIT


def test_waiting_is_bounded() -> None:
    desk = Desk(marks=False, waiting_adds_max=1)
    following = desk.told(desk.end(desk.ongoing(A)))
    first = desk.add(following, B)
    assert desk.error(desk.add(following, C)) is CONCURRENT
    desk.mark()
    assert desk.error(first) is NONE
    assert desk.shard.state.waiting_adds == 0


def test_late_requests_of_the_former_transaction_are_fenced() -> None:
    desk = Desk(marks=False)
    who = desk.ongoing(A)
    following = desk.told(desk.end(who))
    assert desk.error(desk.add(who, A)) is FENCED, "while markers are on their way"
    desk.mark()
    assert desk.error(desk.add(who, A)) is FENCED
    desk.add(following, B)
    assert desk.error(desk.add(who, A)) is FENCED
    assert list(desk.value().partitions) == [B]


def test_strangers(desk: Desk) -> None:
    who = desk.producer()
    assert desk.error(desk.add((who[0] + 7, 0), A)) is UNMAPPED
    assert desk.error(desk.add((who[0], 1), A)) is FENCED
    assert desk.error(desk.add(who, A, transactional_id="nobody")) is UNMAPPED
    assert desk.error(desk.add_offsets((who[0], 1), 7)) is FENCED


@pytest.mark.parametrize("bound", ["count", "bytes"])
def test_a_transaction_does_not_outgrow_what_can_be_ended(bound: str) -> None:
    desk = Desk(partitions_max=3 if bound == "count" else 10_000)
    if bound == "bytes":
        desk.shard.state.batch_bytes_max = 400
    who = desk.ongoing(A)
    names = [TopicPartition("x" * 80, 0), B, C]
    assert desk.error(desk.add(who, *names)) is ABORTABLE
    assert list(desk.value().partitions) == [A]
    assert desk.error(desk.end(who, committed=False)) is NONE


def test_verifying_adds_nothing(desk: Desk) -> None:
    who = desk.ongoing(A)
    answer = desk.answers[desk.add(who, A, B, verify_only=True)]
    assert [(item.topic, item.error) for item in answer.results] == [("a", NONE), ("b", ABORTABLE)]
    assert list(desk.value().partitions) == [A]


def test_verifying_says_why_not() -> None:
    desk = Desk(marks=False)
    who = desk.ongoing(A)
    assert desk.error(desk.add((who[0], 9), A, verify_only=True)) is FENCED
    assert desk.error(desk.add((7, 0), A, verify_only=True)) is UNMAPPED
    assert desk.error(desk.add(who, A, transactional_id="nobody", verify_only=True)) is UNMAPPED
    desk.end(who, bump=False)
    assert desk.error(desk.add(who, A, verify_only=True)) is CONCURRENT
    desk.mark()
    assert desk.error(desk.add(who, A, verify_only=True)) is ABORTABLE, "it is not in the next one"
