"""EndTxn of both protocols, timeouts, markers and completion (KIP-98, KIP-890)."""

from __future__ import annotations

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, TopicPartition
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.replication.coordinators.coordinator_log import Token
from tidelog.transactions.transitions import TransactionState

from .conftest import Desk

A = TopicPartition("a", 0)
B = TopicPartition("b", 3)
NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
UNMAPPED = ErrorCode.INVALID_PRODUCER_ID_MAPPING
INVALID = ErrorCode.INVALID_TXN_STATE
PREPARED_STATE = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}
COMPLETE_STATE = {True: TransactionState.COMPLETE_COMMIT, False: TransactionState.COMPLETE_ABORT}
both = pytest.mark.parametrize("committed", [True, False])


@both
def test_the_decision_then_the_answer_and_the_markers_then_completion(committed: bool) -> None:
    desk = Desk(marks=False)
    who = desk.ongoing(A, B)
    desk.auto = False
    waiter = desk.end(who, committed)
    assert desk.error(waiter) is None
    assert not desk.sent, "no marker before the decision is durable"
    desk.end_append()
    assert desk.told(waiter) == (who[0], 1)
    (marker,) = desk.sent
    assert (marker.producer_id, marker.producer_epoch, marker.committed) == (who[0], 1, committed)
    assert marker.transaction_version == 2
    assert (marker.coordinator_epoch, marker.partitions) == (1, (GroupPartition(*A), GroupPartition(*B)))
    desk.mark(None, NONE, B)
    assert not desk.appends, "A has no marker yet"
    assert desk.state() is PREPARED_STATE[committed]
    desk.mark(None, NONE, A)
    desk.end_append()
    assert desk.state() is COMPLETE_STATE[committed]
    assert not desk.value().partitions


@both
def test_a_repeated_end_is_answered_alike_and_the_other_refused(committed: bool) -> None:
    desk = Desk(marks=False)
    who = desk.ongoing()
    first = desk.told(desk.end(who, committed))
    assert desk.told(desk.end(who, committed)) == first, "while markers are on their way"
    assert desk.error(desk.end(who, not committed)) is INVALID
    desk.mark()
    assert desk.told(desk.end(who, committed)) == first
    assert desk.error(desk.end(who, not committed)) is INVALID
    desk.fail_over()
    assert desk.told(desk.end(who, committed)) == first
    assert desk.error(desk.end(who, not committed)) is INVALID
    assert len(desk.sent) == 1


@both
def test_a_late_end_does_not_touch_the_next_transaction(desk: Desk, committed: bool) -> None:
    who = desk.ongoing()
    following = desk.told(desk.end(who))
    desk.add(following, A)
    assert desk.error(desk.end(who, committed)) is FENCED
    assert desk.state() is TransactionState.ONGOING


def test_while_the_decision_is_written_nothing_else_is_taken(desk: Desk) -> None:
    who = desk.ongoing()
    desk.auto = False
    waiter = desk.end(who)
    assert desk.error(desk.end(who)) is CONCURRENT
    assert desk.error(desk.end(who, committed=False)) is CONCURRENT
    assert desk.error(desk.init()) is CONCURRENT
    desk.end_append()
    assert desk.error(waiter) is NONE


def test_a_decision_that_was_refused_can_be_taken_again(desk: Desk) -> None:
    who = desk.ongoing()
    desk.auto = False
    waiter = desk.end(who)
    desk.end_append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert desk.error(waiter) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not desk.sent
    desk.auto = True
    assert desk.told(desk.end(who, committed=False)) == (who[0], 1)
    assert [marker.committed for marker in desk.sent] == [False]


def test_nothing_to_commit_is_an_error_and_nothing_to_abort_is_not(desk: Desk) -> None:
    who = desk.producer()
    assert desk.error(desk.end(who)) is INVALID
    following = desk.told(desk.end(who, committed=False))
    assert following == (who[0], 1)
    assert desk.told(desk.end(who, committed=False)) == following
    assert desk.error(desk.end(following)) is INVALID
    assert desk.told(desk.end(following, committed=False)) == (who[0], 2)
    assert desk.state() is TransactionState.COMPLETE_ABORT
    assert not desk.sent


def test_the_next_end_comes_back_while_markers_are_on_their_way() -> None:
    desk = Desk(marks=False)
    following = desk.told(desk.end(desk.ongoing()))
    assert desk.error(desk.end(following, committed=False)) is CONCURRENT


def test_strangers(desk: Desk) -> None:
    who = desk.ongoing()
    assert desk.error(desk.end((who[0] + 9, 0))) is UNMAPPED
    assert desk.error(desk.end((who[0], 1))) is FENCED
    assert desk.error(desk.end(who, transactional_id="nobody")) is UNMAPPED
    assert desk.error(desk.end((who[0], 1), bump=False)) is FENCED
    assert desk.error(desk.end((who[0] + 9, 0), bump=False)) is UNMAPPED
    assert desk.error(desk.end(who, transactional_id="nobody", bump=False)) is UNMAPPED


@both
def test_the_last_epoch_is_followed_by_a_new_producer_id(committed: bool) -> None:
    desk = Desk(marks=False)
    last = desk.use_up(desk.producer())
    desk.add(last, A)
    following = desk.told(desk.end(last, committed))
    assert following == (1_001, 0)
    (marker,) = desk.sent
    assert (marker.producer_id, marker.producer_epoch) == (1_000, 32_767), "which no producer ever had"
    assert desk.told(desk.end(last, committed)) == following
    waiting = desk.add(following, B)
    desk.fail_over()
    assert desk.error(waiting) is ErrorCode.NOT_COORDINATOR
    assert desk.told(desk.end(last, committed)) == following, "the new one is in the log"
    desk.mark()
    assert desk.told(desk.end(last, committed)) == following
    assert desk.error(desk.add(following, B)) is NONE
    assert desk.error(desk.end(last, committed)) is UNMAPPED


def test_without_a_new_producer_id_the_end_is_tried_again(desk: Desk) -> None:
    last = desk.use_up(desk.producer())
    desk.add(last, A)
    desk.auto = False
    waiter = desk.end(last)
    assert desk.error(desk.end(last)) is CONCURRENT
    desk.allocate(answered=False)
    assert desk.error(waiter) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    desk.auto = True
    assert desk.told(desk.end(last)) == (1_001, 0)


# --- The first protocol -----------------------------------------------------------------------------


@both
def test_the_first_protocol_keeps_its_epoch(committed: bool) -> None:
    desk = Desk(marks=False)
    who = desk.ongoing()
    assert desk.told(desk.end(who, committed, bump=False)) == who
    assert (desk.sent[0].producer_epoch, desk.sent[0].transaction_version) == (0, 1)
    assert desk.error(desk.end(who, committed, bump=False)) is CONCURRENT
    assert desk.error(desk.end(who, not committed, bump=False)) is INVALID
    desk.mark()
    assert desk.told(desk.end(who, committed, bump=False)) == who
    assert desk.error(desk.end(who, not committed, bump=False)) is INVALID
    assert desk.error(desk.add(who, A)) is NONE


def test_the_first_protocol_has_nothing_to_end_in_an_empty_one(desk: Desk) -> None:
    who = desk.producer()
    assert desk.error(desk.end(who, bump=False)) is INVALID
    assert desk.error(desk.end(who, committed=False, bump=False)) is INVALID


def test_the_first_protocol_does_not_end_what_was_aborted_above_it(desk: Desk) -> None:
    who = desk.ongoing(timeout_ms=1_000)
    desk.pass_time(20_000)
    assert desk.error(desk.end(who, committed=False, bump=False)) is FENCED
    assert desk.error(desk.end((who[0], 1), committed=False, bump=False)) is INVALID


# --- Timeouts ---------------------------------------------------------------------------------------


def test_what_is_open_too_long_is_aborted_and_its_producer_told(desk: Desk) -> None:
    who = desk.ongoing(timeout_ms=15_000)
    desk.pass_time(10_000)
    assert desk.state() is TransactionState.ONGOING
    desk.pass_time(10_000)
    assert desk.state() is TransactionState.COMPLETE_ABORT
    assert [marker.committed for marker in desk.sent] == [False]
    assert desk.error(desk.add(who, A)) is FENCED
    assert desk.error(desk.end(who)) is INVALID, "it did not commit"
    assert desk.told(desk.end(who, committed=False)) == (who[0], 1), "and goes on from here"
    assert desk.shard.state.counters.timed_out == 1


def test_a_timeout_runs_from_the_first_partition_on_and_through_a_move(desk: Desk) -> None:
    desk.producer(timeout_ms=15_000)
    desk.pass_time(60_000)
    desk.add((1_000, 0), A)
    desk.pass_time(10_000)
    desk.add((1_000, 0), B)
    desk.fail_over()
    assert desk.state() is TransactionState.ONGOING
    desk.pass_time(10_000)
    assert desk.state() is TransactionState.COMPLETE_ABORT


def test_a_timeout_at_the_last_epoch_rotates_too(desk: Desk) -> None:
    last = desk.use_up(desk.producer(timeout_ms=1_000))
    desk.add(last, A)
    desk.pass_time(10_000)
    assert desk.told(desk.end(last, committed=False)) == (1_001, 0)


def test_a_timeout_waits_for_what_is_under_way(desk: Desk) -> None:
    who = desk.ongoing(timeout_ms=1_000)
    desk.auto = False
    waiter = desk.end(who)
    desk.pass_time(10_000)
    assert len(desk.appends) == 1
    desk.end_append()
    assert desk.error(waiter) is NONE
    assert desk.state() is TransactionState.PREPARE_COMMIT


def test_a_refused_timeout_is_tried_again(desk: Desk) -> None:
    desk.ongoing(timeout_ms=1_000)
    desk.auto = False
    desk.pass_time(10_000)
    desk.end_append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert desk.state() is TransactionState.ONGOING
    desk.auto = True
    desk.pass_time(10_000)
    assert desk.state() is TransactionState.COMPLETE_ABORT


# --- Markers and completion -------------------------------------------------------------------------


@both
def test_the_next_coordinator_sends_the_markers_again_under_its_epoch(committed: bool) -> None:
    desk = Desk(marks=False)
    who = desk.ongoing(A, B)
    desk.end(who, committed)
    desk.mark(None, NONE, A)
    desk.fail_over()
    marker = desk.sent[-1]
    assert (marker.coordinator_epoch, marker.committed, marker.producer_epoch) == (2, committed, 1)
    assert marker.transaction_version == 2
    assert marker.partitions == (GroupPartition(*A), GroupPartition(*B)), "what was written is not known"
    desk.mark()
    assert desk.state() is COMPLETE_STATE[committed]


def test_markers_of_a_former_coordinator_are_no_news() -> None:
    desk = Desk(marks=False)
    desk.end(desk.ongoing(A))
    desk.fail_over()
    (new,) = desk.markers
    old = Token(LeaderEpoch(new.leader_epoch - 1), new.number)
    assert desk.shard.marked(old, [GroupPartition(*A)], NONE, desk.now) == []
    assert desk.state() is TransactionState.PREPARE_COMMIT


@pytest.mark.parametrize("error", [ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_marker_refused_for_good_ends_the_sending(error: ErrorCode) -> None:
    desk = Desk(marks=False)
    desk.end(desk.ongoing(A, B))
    desk.mark(None, error, A)
    assert not desk.markers
    assert desk.state() is TransactionState.PREPARE_COMMIT
    assert desk.shard.state.counters.refused_markers == 1
    desk.fail_over()
    desk.mark()
    assert desk.state() is TransactionState.COMPLETE_COMMIT


def test_completion_is_tried_until_it_is_written(desk: Desk) -> None:
    who = desk.ongoing()
    desk.auto = False
    desk.end(who)
    desk.end_append()
    for _ in range(3):
        desk.end_append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert not desk.appends
        assert desk.error(desk.end(who)) is NONE
        assert desk.error(desk.init()) is CONCURRENT
        desk.pass_time(500)
    waiting = desk.add((who[0], 1), A)
    desk.end_append()
    desk.end_append()
    assert desk.error(waiting) is NONE


# --- Expiry, lists ----------------------------------------------------------------------------------

HOUR_MS = 3_600_000


def test_an_idle_id_is_forgotten_and_begins_anew() -> None:
    desk = Desk(transactional_id_expiration_ms=24 * HOUR_MS)
    who = desk.producer()
    desk.told(desk.end(who, committed=False))
    desk.pass_time(23 * HOUR_MS)
    assert desk.has_entry()
    desk.pass_time(2 * HOUR_MS)
    assert not desk.has_entry()
    assert desk.log[-1].records[0].value is None
    desk.fail_over()
    assert not desk.has_entry()
    assert desk.producer() == (1_001, 0)


def test_an_open_transaction_is_never_forgotten() -> None:
    desk = Desk(marks=False, transactional_id_expiration_ms=1, max_timeout_ms=2**31 - 2)
    desk.ongoing(A, transactional_id="open", timeout_ms=2**31 - 2)
    desk.ongoing(A, transactional_id="prepared", two_phase=True)
    desk.prepare(desk.value("prepared").identity, "prepared")
    who = desk.ongoing(A, transactional_id="decided")
    desk.end(who, transactional_id="decided")
    desk.producer("idle")
    desk.pass_time(100 * HOUR_MS)
    assert set(desk.shard.state.entries) == {"open", "prepared", "decided"}


def test_while_an_id_is_being_forgotten_nothing_begins_with_it() -> None:
    desk = Desk(transactional_id_expiration_ms=1)
    who = desk.producer()
    desk.auto = False
    desk.pass_time(HOUR_MS)
    assert desk.error(desk.init()) is CONCURRENT
    waiting = desk.add(who, A)
    desk.end_append()
    assert desk.error(waiting) is UNMAPPED


def test_a_refused_tombstone_leaves_the_id_as_it_was() -> None:
    desk = Desk(transactional_id_expiration_ms=1)
    who = desk.producer()
    desk.auto = False
    desk.pass_time(HOUR_MS)
    desk.end_append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    waiter = desk.add(who, A)
    desk.end_append()
    assert desk.error(waiter) is NONE


def test_tombstones_come_in_batches_that_the_topic_takes() -> None:
    desk = Desk(transactional_id_expiration_ms=1)
    desk.shard.state.batch_bytes_max = 1_000
    for number in range(50):
        desk.producer(f"transactional-{number}")
    written = len(desk.log)
    desk.pass_time(HOUR_MS)
    assert not desk.shard.state.entries
    assert 2 < len(desk.log) - written < 50
    assert sum(len(append.records) for append in desk.log[written:]) == 50


def test_listing() -> None:
    desk = Desk(marks=False)
    desk.producer("empty")
    desk.ongoing(A, transactional_id="open")
    desk.pass_time(5_000)
    desk.end(desk.ongoing(A, transactional_id="decided"), transactional_id="decided")
    assert desk.listed() == ["empty", "open", "decided"]
    assert desk.listed(states=("ongoing", "PrepareCommit")) == ["open", "decided"]
    assert desk.listed(producer_ids=(1_001,)) == ["open"]
    assert desk.listed(duration_ms=4_000) == ["open"]
    assert desk.listed(id_pattern=".*d") == ["decided"]
    assert desk.listed(states=("Nonsense",)) == []


def test_describing(desk: Desk) -> None:
    assert desk.shard.describe("nobody").error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    who = desk.producer()
    described = desk.shard.describe("t")
    assert (described.state, described.start_time_ms, described.partitions) == ("Empty", -1, ())
    desk.add(who, A)
    desk.end(who)
    described = desk.shard.describe("t")
    assert (described.state, described.start_time_ms, described.producer_epoch) == ("CompleteCommit", -1, 1)
