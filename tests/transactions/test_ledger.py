"""Ledgers of sinks: begin, prepare, commit, abort, and every crash that the page on transactions lists."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition
from tidelog.model.sinks import SinkAttempt
from tidelog.proto.calls.sink_api import DescribedSink
from tidelog.proto.logs.coordinator_records import CoordinatorRecord
from tidelog.proto.logs.sink_records import decode_sink_key, decode_sink_value
from tidelog.proto.logs.transaction_records import (
    TransactionLogKey,
    TransactionLogValue,
    decode_transaction_key,
    decode_transaction_value,
)
from tidelog.transactions.transitions import TransactionState

from .conftest import Desk

A = TopicPartition("a", 0)
B = TopicPartition("b", 3)
NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
INVALID = ErrorCode.INVALID_TXN_STATE
UNMAPPED = ErrorCode.INVALID_PRODUCER_ID_MAPPING
POLICY = ErrorCode.POLICY_VIOLATION
HOUR_MS = 3_600_000


def name(batch: int, job: str, attempt: str, sink: str = "s") -> str:
    return SinkAttempt(sink, batch, job, attempt).transactional_id


def state(desk: Desk, batch: int, job: str, attempt: str) -> TransactionState | None:
    """None: forgotten, or never heard of."""
    entry = desk.shard.state.entries.get(name(batch, job, attempt))
    return None if entry is None or entry.value is None else entry.value.state


def sink(desk: Desk, of: str = "s") -> DescribedSink:
    return desk.shard.describe_sink(of)


def outcomes(desk: Desk) -> dict[int, bool]:
    """The outcomes sent to the partitions, by producer id."""
    told: dict[int, bool] = {}
    for marker in desk.sent:
        assert told.setdefault(marker.producer_id, marker.committed) is marker.committed
    return told


def already(desk: Desk, waiter: int) -> bool:
    answer = desk.answers[waiter]
    assert answer.error is NONE, answer
    found: bool = answer.already_committed
    return found


# --- The whole way ----------------------------------------------------------------------------------


def test_a_batch_is_committed_whole(desk: Desk) -> None:
    one = desk.write_attempt(0, "j", "one", A)
    two = desk.write_attempt(0, "j", "two", A, B)
    assert not desk.sent
    answer = desk.answers[desk.commit_batch(0, "j", {"one": one, "two": two})]
    assert (answer.error, answer.already_committed, answer.last_batch, answer.last_job) == (NONE, False, 0, "j")
    assert outcomes(desk) == {one[0]: True, two[0]: True}
    assert not desk.shard.state.entries, "what has ended is forgotten"
    found = sink(desk)
    assert (found.last_batch, found.last_job, found.batch, found.transactions) == (0, "j", -1, ())


def test_the_decision_is_one_record_batch(desk: Desk) -> None:
    desk.auto = desk.marks = False
    steps: tuple[Callable[[], int], ...] = (
        lambda: desk.begin_sink(0, "j", "won"),
        lambda: desk.begin_sink(0, "j", "lost"),
        lambda: desk.begin_sink(0, "j", "empty"),
    )
    for step in steps:
        step()
        desk.allocate()
        desk.end_append()
    desk.auto = True
    for attempt, who in (("won", (1_000, 0)), ("lost", (1_001, 0))):
        desk.add(who, A, transactional_id=name(0, "j", attempt))
        desk.prepare(who, name(0, "j", attempt))
    desk.auto = False
    waiter = desk.commit_batch(0, "j", {"won": (1_000, 0)})
    assert desk.error(waiter) is None
    assert not desk.sent, "no marker before the decision is replicated"
    (append,) = desk.appends
    ledger, *others = append.records
    assert decode_sink_key(ledger.key) == "s"
    assert ledger.value is not None
    assert decode_sink_value(ledger.value)[:2] == (0, "j")
    found: dict[str, TransactionLogValue | None] = {}
    for key, value in others:
        decoded = decode_transaction_key(key)
        assert isinstance(decoded, TransactionLogKey)
        found[decoded.transactional_id] = None if value is None else decode_transaction_value(value)
    won, lost = found[name(0, "j", "won")], found[name(0, "j", "lost")]
    assert won is not None
    assert lost is not None
    assert (won.status, won.producer_epoch) == (2, 1)
    assert (lost.status, lost.producer_epoch) == (3, 1)
    assert found[name(0, "j", "empty")] is None
    desk.end_append()
    assert desk.error(waiter) is NONE
    assert outcomes(desk) == {1_000: True, 1_001: False}


def test_begin_is_idempotent_per_attempt(desk: Desk) -> None:
    first = desk.told(desk.begin_sink(0, "j", "a"))
    written = len(desk.log)
    assert desk.told(desk.begin_sink(0, "j", "a")) == first
    desk.fail_over()
    assert desk.told(desk.begin_sink(0, "j", "a")) == first
    assert len(desk.log) == written
    assert desk.told(desk.begin_sink(0, "j", "b")) != first


def test_begin_asked_twice_at_once_makes_one_transaction(desk: Desk) -> None:
    desk.auto = False
    first, second = desk.begin_sink(0, "j", "a"), desk.begin_sink(0, "j", "a")
    desk.allocate()
    desk.allocate()
    assert desk.error(second) is CONCURRENT
    desk.end_append()
    who = desk.told(first)
    assert desk.told(desk.begin_sink(0, "j", "a")) == who
    assert len(desk.shard.state.entries) == 1


def test_a_batch_that_is_decided_is_not_written_again(desk: Desk) -> None:
    desk.commit_batch(4, "j", {"a": desk.write_attempt(4, "j", "a")})
    for batch in (0, 4):
        waiter = desk.begin_sink(batch, "k", "b")
        assert already(desk, waiter)
        assert (desk.answers[waiter].last_batch, desk.answers[waiter].last_job) == (4, "j")
    assert sink(desk).job == ""


def test_a_batch_without_rows_is_decided_without_winners(desk: Desk) -> None:
    assert not already(desk, desk.commit_batch(0, "j", {}))
    assert sink(desk).last_batch == 0
    desk.fail_over()
    assert already(desk, desk.commit_batch(0, "k", {}))


def test_a_job_without_winners_takes_over_and_decides(desk: Desk) -> None:
    other = desk.write_attempt(0, "j", "a")
    assert not already(desk, desk.commit_batch(0, "k", {}))
    assert outcomes(desk) == {other[0]: False}
    assert (sink(desk).last_batch, sink(desk).last_job) == (0, "k")
    assert already(desk, desk.commit_batch(0, "j", {"a": other}))


@pytest.mark.parametrize("fail_over", [False, True])
def test_another_job_takes_over(desk: Desk, fail_over: bool) -> None:
    prepared = desk.write_attempt(0, "j", "prepared", A)
    ongoing = desk.write_attempt(0, "j", "ongoing", B, prepare=False)
    desk.begin_sink(0, "j", "empty")
    mine = desk.write_attempt(0, "k", "mine", A)
    if fail_over:
        desk.fail_over()
    assert outcomes(desk) == {prepared[0]: False, ongoing[0]: False}
    assert set(desk.shard.state.entries) == {name(0, "k", "mine")}
    assert [(item.batch, item.job) for item in sink(desk).fenced] == [(0, "j")]
    assert desk.error(desk.begin_sink(0, "j", "more")) is FENCED, "it does not take over once more"
    assert desk.error(desk.commit_batch(0, "j", {"prepared": prepared})) is FENCED
    assert desk.error(desk.commit_batch(0, "j", {})) is FENCED
    assert not already(desk, desk.commit_batch(0, "k", {"mine": mine}))
    assert sink(desk).fenced == (), "decided: nobody needs to know"
    assert already(desk, desk.commit_batch(0, "j", {"prepared": prepared})), "decided goes before fenced"
    assert already(desk, desk.begin_sink(0, "j", "more"))


def test_a_sink_of_two_owners_keeps_its_promises(desk: Desk) -> None:
    later = desk.write_attempt(6, "j", "a")
    sooner = desk.write_attempt(5, "k", "a")
    assert outcomes(desk) == {later[0]: False}
    assert not already(desk, desk.commit_batch(5, "k", {"a": sooner}))
    assert [(item.batch, item.job) for item in sink(desk).fenced] == [(6, "j")], "it could take over once more else"
    assert desk.error(desk.begin_sink(6, "j", "b")) is FENCED
    assert already(desk, desk.commit_batch(5, "j", {})), "decided goes before fenced"
    assert not already(desk, desk.commit_batch(6, "l", {}))
    assert sink(desk).fenced == ()


def test_a_winner_has_to_be_prepared_and_the_jobs(desk: Desk) -> None:
    who = desk.write_attempt(0, "j", "a", prepare=False)
    assert desk.error(desk.commit_batch(0, "j", {"a": who})) is INVALID
    desk.prepare(who, name(0, "j", "a"))
    assert desk.error(desk.commit_batch(0, "j", {"a": (who[0], 1)})) is INVALID
    assert desk.error(desk.commit_batch(0, "j", {"a": who, "b": (7, 0)})) is INVALID
    assert desk.error(desk.commit_batch(0, "k", {"a": who})) is INVALID, "a job that has begun nothing has no winners"
    assert desk.error(desk.commit_batch(1, "j", {})) is ErrorCode.INVALID_REQUEST
    assert desk.error(desk.begin_sink(1, "j", "b")) is ErrorCode.INVALID_REQUEST
    assert desk.error(desk.abort_job(1, "j")) is ErrorCode.INVALID_REQUEST
    assert not desk.sent
    assert not already(desk, desk.commit_batch(0, "j", {"a": who}))


def test_what_is_prepared_takes_nothing_in(desk: Desk) -> None:
    who = desk.write_attempt(0, "j", "a", A)
    assert desk.error(desk.add(who, B, transactional_id=name(0, "j", "a"))) is INVALID
    assert desk.error(desk.prepare(who, name(0, "j", "a"))) is NONE
    assert desk.error(desk.begin_sink(0, "j", "a")) is INVALID


def test_sinks_are_apart(desk: Desk) -> None:
    mine = desk.write_attempt(0, "j", "a", sink="mine")
    theirs = desk.write_attempt(0, "j", "a", sink="theirs/with slash")
    desk.commit_batch(0, "j", {"a": mine}, sink="mine")
    assert outcomes(desk) == {mine[0]: True}
    desk.fail_over()
    assert not already(desk, desk.commit_batch(0, "j", {"a": theirs}, sink="theirs/with slash"))
    assert outcomes(desk) == {mine[0]: True, theirs[0]: True}
    assert [item.sink for item in desk.shard.list_sinks()] == ["mine", "theirs/with slash"]


# --- AbortJob ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fail_over", [False, True])
def test_a_job_is_aborted(desk: Desk, fail_over: bool) -> None:
    who = desk.write_attempt(0, "j", "a")
    assert not already(desk, desk.abort_job(0, "j"))
    if fail_over:
        desk.fail_over()
    assert outcomes(desk) == {who[0]: False}
    assert not already(desk, desk.abort_job(0, "j")), "asked again, it is so already"
    assert desk.error(desk.commit_batch(0, "j", {"a": who})) is FENCED
    assert desk.error(desk.begin_sink(0, "j", "b")) is FENCED
    again = desk.write_attempt(0, "k", "a")
    assert not already(desk, desk.commit_batch(0, "k", {"a": again}))


def test_a_job_that_has_written_nothing_is_kept_out(desk: Desk) -> None:
    desk.abort_job(0, "j")
    assert desk.error(desk.begin_sink(0, "j", "a")) is FENCED
    desk.fail_over()
    assert desk.error(desk.begin_sink(0, "j", "a")) is FENCED


def test_aborting_another_job_leaves_the_current_one(desk: Desk) -> None:
    who = desk.write_attempt(0, "k", "a")
    desk.abort_job(0, "j")
    assert not desk.sent
    assert not already(desk, desk.commit_batch(0, "k", {"a": who}))


def test_nothing_is_aborted_once_it_is_decided(desk: Desk) -> None:
    who = desk.write_attempt(0, "j", "a")
    desk.commit_batch(0, "j", {"a": who})
    written = len(desk.log)
    assert already(desk, desk.abort_job(0, "j"))
    assert len(desk.log) == written
    assert outcomes(desk) == {who[0]: True}


def test_a_task_may_abort_its_own_attempt_but_not_commit_it(desk: Desk) -> None:
    who = desk.write_attempt(0, "j", "a")
    other = desk.write_attempt(0, "j", "b")
    assert desk.error(desk.end(who, True, transactional_id=name(0, "j", "a"))) is ErrorCode.INVALID_REQUEST
    assert desk.error(desk.end(who, False, transactional_id=name(0, "j", "a"), bump=False)) is ErrorCode.INVALID_REQUEST
    assert desk.error(desk.end(who, False, transactional_id=name(0, "j", "a"))) is NONE
    assert outcomes(desk) == {who[0]: False}
    assert desk.error(desk.commit_batch(0, "j", {"a": who, "b": other})) is INVALID
    assert not already(desk, desk.commit_batch(0, "j", {"b": other}))


def test_the_ids_are_the_ledgers_alone(desk: Desk) -> None:
    answer = desk.answers[desk.init(name(0, "j", "a"))]
    assert answer.error is ErrorCode.INVALID_REQUEST
    assert "ledgers of sinks" in answer.error_message
    assert desk.error(desk.init("__sink/anything")) is ErrorCode.INVALID_REQUEST
    assert desk.error(desk.add((7, 0), A, transactional_id=name(0, "j", "a"))) is UNMAPPED
    assert not desk.log


# --- Timeouts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fail_over", [False, True])
def test_an_open_transaction_times_out(fail_over: bool) -> None:
    desk = Desk(sink_timeout_ms=60_000, sink_prepared_timeout_ms=HOUR_MS)
    who = desk.write_attempt(0, "j", "a", prepare=False)
    desk.begin_sink(0, "j", "empty")
    if fail_over:
        desk.fail_over()
    desk.pass_time(59_000)
    assert state(desk, 0, "j", "a") is TransactionState.ONGOING
    desk.pass_time(12_000)
    assert outcomes(desk) == {who[0]: False}
    assert not desk.shard.state.entries
    assert desk.error(desk.prepare(who, name(0, "j", "a"))) is UNMAPPED
    assert sink(desk).job == "j", "the job goes on with other attempts"
    again = desk.write_attempt(0, "j", "b")
    assert not already(desk, desk.commit_batch(0, "j", {"b": again}))


@pytest.mark.parametrize("fail_over", [False, True])
def test_a_prepared_one_times_out_later_and_its_batch_is_to_be_run_again(fail_over: bool) -> None:
    desk = Desk(sink_timeout_ms=60_000, sink_prepared_timeout_ms=HOUR_MS)
    who = desk.write_attempt(0, "j", "a")
    if fail_over:
        desk.fail_over()
    desk.pass_time(HOUR_MS - 10_000)
    assert state(desk, 0, "j", "a") is TransactionState.PREPARED
    desk.pass_time(21_000)
    assert outcomes(desk) == {who[0]: False}
    assert desk.error(desk.commit_batch(0, "j", {"a": who})) is INVALID
    again = desk.write_attempt(0, "k", "a")
    assert not already(desk, desk.commit_batch(0, "k", {"a": again}))
    assert outcomes(desk) == {who[0]: False, again[0]: True}


def test_a_ledger_never_expires(desk: Desk) -> None:
    desk.commit_batch(7, "j", {"a": desk.write_attempt(7, "j", "a")})
    desk.pass_time(60 * 24 * HOUR_MS)
    desk.fail_over()
    assert already(desk, desk.begin_sink(7, "k", "a"))


# --- DeleteSink -------------------------------------------------------------------------------------


def test_a_sink_is_forgotten_when_it_is_deleted(desk: Desk) -> None:
    who = desk.write_attempt(3, "j", "a")
    assert desk.error(desk.delete_sink()) is INVALID
    desk.commit_batch(3, "j", {"a": who})
    assert desk.error(desk.delete_sink()) is NONE
    assert desk.log[-1].records == (CoordinatorRecord(desk.log[0].records[0].key, None),)
    for _ in range(2):
        assert not desk.shard.state.sinks
        assert sink(desk).error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        desk.fail_over()
    assert desk.error(desk.delete_sink()) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    again = desk.write_attempt(0, "j", "a")
    assert not already(desk, desk.commit_batch(0, "j", {"a": again}))


def test_a_sink_is_not_deleted_before_its_markers_are_written() -> None:
    desk = Desk(marks=False)
    desk.commit_batch(0, "j", {"a": desk.write_attempt(0, "j", "a")})
    assert desk.error(desk.delete_sink()) is INVALID
    desk.mark()
    assert desk.error(desk.delete_sink()) is NONE


# --- Bounds -----------------------------------------------------------------------------------------


def test_a_decision_that_does_not_fit_is_refused(desk: Desk) -> None:
    desk.batch_bytes_max = 1_000
    desk.fail_over()
    winners = {f"a{number}": desk.write_attempt(0, "j", f"a{number}", A) for number in range(12)}
    answer = desk.answers[desk.commit_batch(0, "j", winners)]
    assert answer.error is ErrorCode.RECORD_LIST_TOO_LARGE
    assert "max.message.bytes" in answer.error_message
    assert not desk.sent
    assert not already(desk, desk.abort_job(0, "j"))
    assert set(outcomes(desk).values()) == {False}


def test_losers_that_do_not_fit_beside_the_winners_are_aborted_after_them(desk: Desk) -> None:
    desk.batch_bytes_max = 1_000
    desk.fail_over()
    attempts = {f"a{number}": desk.write_attempt(0, "j", f"a{number}", A) for number in range(12)}
    assert not already(desk, desk.commit_batch(0, "j", {"a3": attempts["a3"]}))
    assert outcomes(desk) == {who[0]: attempt == "a3" for attempt, who in attempts.items()}
    assert not desk.shard.state.entries


def test_sinks_and_their_transactions_are_bounded() -> None:
    desk = Desk(sinks_max=1, sink_transactions_max=2)
    desk.begin_sink(0, "j", "a")
    assert desk.error(desk.begin_sink(0, "j", "a", sink="t")) is POLICY
    assert desk.error(desk.commit_batch(0, "j", {}, sink="t")) is POLICY
    assert desk.error(desk.abort_job(0, "j", sink="t")) is POLICY
    desk.begin_sink(0, "j", "b")
    answer = desk.answers[desk.begin_sink(0, "j", "c")]
    assert answer.error is POLICY
    assert "transaction.sink.transactions.max" in answer.error_message
    assert desk.error(desk.begin_sink(0, "j", "a")) is NONE


def test_of_many_fenced_jobs_the_oldest_are_forgotten() -> None:
    desk = Desk(sink_fenced_jobs_max=2)
    for job in "abcd":
        desk.write_attempt(0, job, "x")
    assert [item.job for item in sink(desk).fenced] == ["b", "c"]
    for job in "bc":
        assert desk.error(desk.begin_sink(0, job, "y")) is FENCED


@pytest.mark.parametrize("call", ["begin", "commit", "abort", "delete"])
def test_a_record_that_cannot_be_written_changes_nothing(desk: Desk, call: str) -> None:
    who = desk.write_attempt(0, "j", "a")
    if call == "delete":
        desk.commit_batch(0, "j", {"a": who})
    before = sink(desk)
    desk.auto = False
    waiter = {
        "begin": lambda: desk.begin_sink(0, "k", "b"),
        "commit": lambda: desk.commit_batch(0, "j", {"a": who}),
        "abort": lambda: desk.abort_job(0, "j"),
        "delete": lambda: desk.delete_sink(),
    }[call]()
    if desk.allocations:
        desk.allocate()
    meanwhile = desk.commit_batch(0, "j", {"a": who})
    assert desk.error(meanwhile) is (NONE if call == "delete" else CONCURRENT)
    desk.end_append(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert desk.error(waiter) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert sink(desk) == before
    assert len(desk.shard.state.entries) == (0 if call == "delete" else 1)


def test_a_sink_whose_first_record_cannot_be_written_leaves_nothing(desk: Desk) -> None:
    desk.auto = False
    asks: tuple[Callable[[], int], ...] = (
        lambda: desk.begin_sink(0, "j", "a"),
        lambda: desk.commit_batch(0, "j", {}),
        lambda: desk.abort_job(0, "j"),
    )
    for ask in asks:
        ask()
        if desk.allocations:
            desk.allocate()
        desk.end_append(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert not desk.shard.state.sinks
        assert not desk.shard.state.entries


# --- At the same time -------------------------------------------------------------------------------


def test_what_is_being_written_when_another_takes_over_is_aborted_after_it(desk: Desk) -> None:
    who = desk.write_attempt(0, "j", "a", A, prepare=False)
    desk.auto = False
    adding = desk.add(who, B, transactional_id=name(0, "j", "a"))
    desk.begin_sink(0, "k", "b")
    desk.allocate()
    desk.end_append(at=1)
    assert sink(desk).job == "k"
    assert not desk.appends[1:], "nothing is decided about a transaction while it is written"
    desk.end_append()
    assert desk.error(adding) is NONE
    assert not desk.sent
    desk.auto = True
    desk.pass_time(200)
    assert outcomes(desk) == {who[0]: False}
    assert {(item.topic, item.partition) for item in desk.sent[0].partitions} == {A, B}


def test_an_attempt_that_begins_while_its_batch_is_decided_is_told_so(desk: Desk) -> None:
    winner = desk.write_attempt(0, "j", "a")
    desk.auto = False
    late = desk.begin_sink(0, "j", "b")
    desk.allocate()
    commit = desk.commit_batch(0, "j", {"a": winner})
    desk.end_append(at=1)
    assert desk.error(commit) is NONE
    desk.end_append()
    assert already(desk, late)
    desk.auto = True
    desk.pass_time(200)
    assert not desk.shard.state.entries


def test_a_winner_that_is_timing_out_is_not_committed() -> None:
    desk = Desk(sink_prepared_timeout_ms=60_000)
    who = desk.write_attempt(0, "j", "a")
    desk.auto = False
    desk.pass_time(75_000)
    assert desk.error(desk.commit_batch(0, "j", {"a": who})) is CONCURRENT
    desk.end_append()
    assert desk.error(desk.commit_batch(0, "j", {"a": who})) in (INVALID, CONCURRENT)
    assert outcomes(desk) == {who[0]: False}


def test_a_fenced_job_that_is_forgotten_has_no_winners() -> None:
    desk = Desk(sink_fenced_jobs_max=1)
    who = desk.write_attempt(0, "j", "a")
    desk.auto = False
    for job in "kl":
        desk.begin_sink(0, job, "x")
        desk.allocate()
        desk.end_append()
        while desk.appends:
            desk.end_append(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert state(desk, 0, "j", "a") is TransactionState.PREPARED
    assert [item.job for item in sink(desk).fenced] == ["k"]
    assert desk.error(desk.commit_batch(0, "j", {"a": who})) is INVALID


def test_an_abort_that_cannot_be_written_is_tried_again_after_a_pause(desk: Desk) -> None:
    who = desk.write_attempt(0, "j", "a")
    desk.auto = False
    desk.abort_job(0, "j")
    desk.end_append()
    for _ in range(3):
        (append,) = desk.appends
        assert len(append.records) == 1
        desk.end_append(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert not desk.appends, "not at once"
        desk.pass_time(100)
    desk.end_append()
    assert outcomes(desk) == {who[0]: False}


# --- Crashes: each row of the table on the page -----------------------------------------------------


def crash(desk: Desk, *, written: bool) -> None:
    """The coordinator dies with an append under way, of which the log has all or nothing."""
    (append,) = desk.appends
    desk.appends.clear()
    if written:
        desk.log.append(append)
    desk.auto = True
    desk.fail_over()


def rewritten(desk: Desk, batch: int, job: str, expected: dict[int, bool]) -> None:
    """The query has started again, under a new job, and brings the batch to its end."""
    who = desk.write_attempt(batch, job, "again", A)
    desk.fail_over()
    assert not already(desk, desk.commit_batch(batch, job, {"again": who}))
    assert outcomes(desk) == {**expected, who[0]: True}
    desk.fail_over()
    assert not desk.shard.state.entries
    assert outcomes(desk) == {**expected, who[0]: True}


def test_crash_mid_write(desk: Desk) -> None:
    who = desk.write_attempt(0, "j", "a", prepare=False)
    desk.fail_over()
    rewritten(desk, 0, "k", {who[0]: False})


def test_crash_of_the_driver_when_all_is_prepared(desk: Desk) -> None:
    who = desk.write_attempt(0, "j", "a")
    desk.fail_over()
    rewritten(desk, 0, "k", {who[0]: False})


def test_crash_of_a_worker_after_prepare(desk: Desk) -> None:
    orphan = desk.write_attempt(0, "j", "first")
    desk.fail_over()
    second = desk.write_attempt(0, "j", "second")
    desk.fail_over()
    assert not already(desk, desk.commit_batch(0, "j", {"second": second}))
    assert outcomes(desk) == {orphan[0]: False, second[0]: True}


def test_crash_after_the_decision_before_it_is_noted(desk: Desk) -> None:
    who = desk.write_attempt(0, "j", "a")
    desk.commit_batch(0, "j", {"a": who})
    desk.fail_over()
    assert already(desk, desk.begin_sink(0, "k", "a")), "the replay drains"
    assert already(desk, desk.commit_batch(0, "k", {})), "and there is nothing to commit"
    assert outcomes(desk) == {who[0]: True}


def test_an_answer_lost_after_the_decision_and_then_an_abort(desk: Desk) -> None:
    who = desk.write_attempt(0, "j", "a")
    desk.auto = False
    waiter = desk.commit_batch(0, "j", {"a": who})
    crash(desk, written=True)
    assert desk.error(waiter) is ErrorCode.NOT_COORDINATOR, "which says nothing about the outcome"
    assert already(desk, desk.abort_job(0, "j"))
    assert outcomes(desk) == {who[0]: True}


def test_a_request_lost_before_the_decision_and_then_an_abort(desk: Desk) -> None:
    who = desk.write_attempt(0, "j", "a")
    desk.auto = False
    desk.commit_batch(0, "j", {"a": who})
    crash(desk, written=False)
    assert not already(desk, desk.abort_job(0, "j"))
    rewritten(desk, 0, "k", {who[0]: False})


def test_a_frozen_driver_thaws_after_another_has_finished_the_batch(desk: Desk) -> None:
    frozen = desk.write_attempt(0, "j", "a")
    rewritten(desk, 0, "k", {frozen[0]: False})
    assert already(desk, desk.commit_batch(0, "j", {"a": frozen}))
    assert already(desk, desk.abort_job(0, "j"))
    assert already(desk, desk.begin_sink(0, "j", "more"))
    late = desk.add(frozen, A, transactional_id=name(0, "j", "a"))
    assert desk.error(late) is UNMAPPED
    assert outcomes(desk)[frozen[0]] is False


@pytest.mark.parametrize(("written", "marked"), [(False, 0), (True, 0), (True, 1), (True, 2)])
def test_the_broker_dies_around_the_decision(written: bool, marked: int) -> None:
    desk = Desk(marks=False)
    one = desk.write_attempt(0, "j", "one", A)
    two = desk.write_attempt(0, "j", "two", B)
    lost = desk.write_attempt(0, "j", "lost", B)
    winners = {"one": one, "two": two}
    desk.auto = False
    desk.commit_batch(0, "j", winners)
    crash(desk, written=written)
    for _ in range(marked):
        desk.mark()
        desk.fail_over()
    assert already(desk, desk.commit_batch(0, "j", winners)) is written
    while desk.markers:
        desk.mark()
    assert outcomes(desk) == {one[0]: True, two[0]: True, lost[0]: False}
    desk.fail_over()
    assert not desk.shard.state.entries
    assert not desk.markers


def test_winners_are_rolled_forward_whatever_became_of_the_ledger() -> None:
    """Compaction keeps the last record of each key: the ledger may be batches ahead of a winner's decision."""
    desk = Desk(marks=False)
    one = desk.write_attempt(0, "j", "a", A)
    desk.commit_batch(0, "j", {"a": one})
    desk.commit_batch(1, "k", {})
    desk.commit_batch(2, "l", {})
    last: dict[bytes, int] = {}
    for number, append in enumerate(desk.log):
        last.update({key: number for key, _ in append.records})
    compacted = []
    for number, append in enumerate(desk.log):
        kept = tuple(record for record in append.records if last[record.key] == number)
        if kept:
            compacted.append(type(append)(append.token, kept, append.timestamp_ms))
    assert len(compacted) < len(desk.log)
    desk.log = compacted
    desk.sent.clear()
    desk.fail_over()
    desk.mark()
    assert outcomes(desk) == {one[0]: True}
    assert sink(desk).last_batch == 2


def test_a_transaction_whose_ledger_is_lost_is_aborted(desk: Desk) -> None:
    who = desk.write_attempt(0, "j", "a")
    desk.log = [
        type(append)(append.token, kept, append.timestamp_ms)
        for append in desk.log
        if (kept := tuple(record for record in append.records if decode_sink_key(record.key) is None))
    ]
    desk.fail_over()
    assert outcomes(desk) == {who[0]: False}
    assert not desk.shard.state.sinks
