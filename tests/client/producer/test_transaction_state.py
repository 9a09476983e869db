"""The state machine of transactions: its table, and random calls against a simple model of what Kafka's does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.client.errors import IllegalStateError, TidelogError, TransactionAbortedError, exception_for
from tidelog.client.producer.transaction_state import MOVES, TransactionMachine, TransactionState
from tidelog.client.transaction_errors import Meaning, error_of, of_coordinator, of_offsets, of_records
from tidelog.model.errors import ErrorCode

S = TransactionState
CALLS = {
    "initialize": ({S.UNINITIALIZED}, S.INITIALIZING),
    "begin": ({S.READY}, S.IN_TRANSACTION),
    "prepare": ({S.IN_TRANSACTION}, S.PREPARING),
    "commit": ({S.IN_TRANSACTION, S.PREPARED}, S.COMMITTING),
    "abort": ({S.IN_TRANSACTION, S.PREPARED, S.ABORTABLE_ERROR}, S.ABORTING),
}
"""Which states a user's call is good in, and where it leads."""


def test_every_state_is_reached_and_left_as_the_table_says() -> None:
    reached, front = {S.UNINITIALIZED}, [S.UNINITIALIZED]
    while front:
        for after in MOVES[front.pop()] - reached:
            reached.add(after)
            front.append(after)
    assert reached == set(TransactionState) == set(MOVES)
    assert all(S.FATAL_ERROR in moves for state, moves in MOVES.items() if state is not S.FATAL_ERROR)
    assert not MOVES[S.FATAL_ERROR]
    for before in (S.PREPARED, S.READY, S.UNINITIALIZED, S.INITIALIZING, S.ABORTING):
        assert S.ABORTABLE_ERROR not in MOVES[before]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [*CALLS, "ask", "answer", "answer", "answer", "prepared elsewhere", "abortable", "fatal", "send"]
        ),
        max_size=40,
    )
)
def test_random_calls_and_answers(steps: list[str]) -> None:
    machine = TransactionMachine()
    epoch = 0
    used: list[object] = []
    spoilt: TidelogError | None = None
    for step in steps:
        before = machine.state
        if step in CALLS:
            good, after = CALLS[step]
            call = getattr(machine, step)
            if before in good:
                call()
                assert machine.state is after
                if step == "begin":
                    assert machine.identity not in used, "two transactions under one identity"
                    assert not machine.started
            else:
                with pytest.raises(TidelogError) as caught:
                    call()
                assert machine.state is before
                if before in (S.ABORTABLE_ERROR, S.FATAL_ERROR):
                    assert caught.value is spoilt
                else:
                    assert isinstance(caught.value, IllegalStateError)
        elif step == "send":
            if before is S.IN_TRANSACTION:
                machine.check_open("send()")
                machine.sent()
            else:
                with pytest.raises(TidelogError):
                    machine.check_open("send()")
        elif step == "ask":
            if before in (S.PREPARING, S.COMMITTING, S.ABORTING):
                machine.ask(before, step)
                with pytest.raises(TidelogError):
                    machine.ask(S.READY, step)
                assert machine.asked
        elif step in ("answer", "prepared elsewhere"):
            if before is S.FATAL_ERROR and machine.asked:
                machine.ended((1, epoch))
                assert not machine.asked
            elif before is S.INITIALIZING:
                epoch += 1
                ongoing = (1, epoch) if step == "prepared elsewhere" else None
                epoch += 1
                machine.initialized((1, epoch), ongoing)
                assert machine.state is (S.READY if ongoing is None else S.PREPARED)
            elif before is S.PREPARING:
                machine.prepared()
                assert machine.ongoing == machine.identity
            elif before in (S.COMMITTING, S.ABORTING):
                if machine.started:
                    used.append(machine.identity)
                    epoch += 1
                machine.ended((1, epoch))
                assert machine.state is S.READY
                assert machine.error is None
        else:
            error = TransactionAbortedError(step)
            late = machine.asked and step != "fatal"
            changed = machine.failed(error, fatal=step == "fatal")
            assert not (late and changed)
            assert changed == (machine.state is not before)
            if changed:
                spoilt = error
                assert machine.error is error
                assert error.fatal != error.abortable
                assert machine.state is (S.FATAL_ERROR if error.fatal else S.ABORTABLE_ERROR)
            if step == "fatal":
                assert machine.state is S.FATAL_ERROR
            if before in (S.READY, S.PREPARED, S.UNINITIALIZED) and step == "abortable":
                assert machine.state is before
        assert machine.state is before or machine.state in MOVES[before]


@pytest.mark.parametrize("asked", [False, True])
def test_once_the_coordinator_is_asked_only_its_answer_counts(asked: bool) -> None:
    machine = TransactionMachine()
    machine.initialize()
    machine.initialized((1, 0), None)
    machine.begin()
    machine.sent()
    machine.commit()
    if asked:
        machine.ask(TransactionState.COMMITTING, "commit_transaction()")
    late = exception_for(ErrorCode.INVALID_TXN_STATE, "a record that was lost")
    assert machine.failed(late, fatal=False) is not asked
    assert (machine.state is TransactionState.COMMITTING) is asked


def test_what_errors_mean() -> None:
    for code in ErrorCode:
        meanings = {of_coordinator(code), of_offsets(code), of_records(code)}
        if code.retriable:
            assert {of_coordinator(code), of_offsets(code)} == {Meaning.RETRY}
        elif code is ErrorCode.NONE:
            assert of_coordinator(code) is of_offsets(code) is Meaning.DONE
        else:
            assert meanings <= {Meaning.ABORT, Meaning.GIVE_UP}
    fenced = type(exception_for(ErrorCode.PRODUCER_FENCED))
    for code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
        assert type(error_of(code, "x")) is fenced
        assert of_coordinator(code) is of_offsets(code) is Meaning.GIVE_UP
    assert of_records(ErrorCode.INVALID_PRODUCER_EPOCH) is Meaning.ABORT
    assert of_records(ErrorCode.PRODUCER_FENCED) is Meaning.GIVE_UP
    assert of_coordinator(ErrorCode.TRANSACTION_ABORTABLE) is Meaning.ABORT
    assert of_coordinator(ErrorCode.INVALID_TXN_STATE) is Meaning.ABORT
    assert not TidelogError().abortable
    assert not TidelogError().fatal
