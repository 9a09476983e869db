"""The parts beneath the coordinator: transitions, transactions from records, Kafka's logs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.transition_pages import diagram, table
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, ProducerEpoch, ProducerId, TopicPartition
from tidelog.model.moment import Moment
from tidelog.proto.logs.coordinator_records import CoordinatorRecord
from tidelog.proto.logs.transaction_records import TransactionLogValue, encode_transaction_key, encode_transaction_value
from tidelog.replication.coordinators.coordinator_log import Token
from tidelog.transactions.effects import Append
from tidelog.transactions.shard_state import ShardState
from tidelog.transactions.sinks.deciding import LedgerDeciding, _Move
from tidelog.transactions.transaction import NOBODY, Entry, Identity, Transaction, loaded
from tidelog.transactions.transitions import TRANSITIONS, Cause, TransactionState, Transition

from .conftest import Desk

DOCS = Path(__file__).parents[2] / "docs" / "transactions.md"
A = TopicPartition("a", 0)


def test_the_page_shows_the_table() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert f"```mermaid\n{diagram(TRANSITIONS, TransactionState.EMPTY, TransactionState.DEAD)}\n```" in text
    assert table(TRANSITIONS) in text


def test_each_transition_stands_once() -> None:
    assert len(set(TRANSITIONS)) == len(TRANSITIONS)
    assert {state for before, after, _ in TRANSITIONS for state in (before, after)} == set(TransactionState)
    assert {cause for _, _, cause in TRANSITIONS} == set(Cause)
    assert not [transition for transition in TRANSITIONS if transition.before is TransactionState.DEAD]
    decided = [item for item in TRANSITIONS if item.before.is_decided]
    assert {item.cause for item in decided} == {Cause.MARKED, Cause.SINK_MARKED}, "a decision leads to its completion"
    assert len(decided) == 4, "and nowhere else"


def test_another_transition_is_a_bug(desk: Desk) -> None:
    desk.producer()
    value = loaded(desk.value().stored()._replace(status=2))
    with pytest.raises(AssertionError, match="PREPARE_COMMIT"):
        desk.shard.state.move(desk.entry(), value, Cause.COMMITTED, (), desk.now)


@pytest.mark.parametrize("apart", [-1, 1])
def test_what_ends_under_another_leader_epoch_changes_nothing(apart: int) -> None:
    desk = Desk(auto=False)
    waiter = desk.init()
    (allocation,) = desk.allocations
    other = allocation._replace(leader_epoch=LeaderEpoch(allocation.leader_epoch + apart))
    assert desk.shard.allocated(other, ProducerId(7), desk.now) == []
    desk.allocate()
    other = desk.appends[0].token._replace(leader_epoch=other.leader_epoch)
    assert desk.shard.appended(other, ErrorCode.NONE, desk.now) == []
    assert waiter not in desk.answers
    desk.end_append()
    assert desk.error(waiter) is ErrorCode.NONE


def test_every_transition_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row of the table, brought about by requests, time and appends."""
    seen: set[Transition] = set()
    move = ShardState.move

    def watched(
        self: ShardState, entry: Entry, after: Transaction | None, cause: Cause, *rest: Any, **more: Any
    ) -> None:
        before = TransactionState.EMPTY if entry.value is None else entry.value.state
        seen.add(Transition(before, TransactionState.DEAD if after is None else after.state, cause))
        move(self, entry, after, cause, *rest, **more)

    monkeypatch.setattr(ShardState, "move", watched)
    decide = LedgerDeciding._move

    def watched_decision(self: LedgerDeciding, entry: Entry, *, committed: bool, now: Moment) -> _Move:
        found = decide(self, entry, committed=committed, now=now)
        after = TransactionState.DEAD if found.after is None else found.after.state
        assert entry.value is not None
        seen.add(Transition(entry.value.state, after, found.cause))
        return found

    monkeypatch.setattr(LedgerDeciding, "_move", watched_decision)

    def empty() -> Desk:
        desk = Desk(transactional_id_expiration_ms=3_600_000)
        desk.producer(two_phase=True)
        return desk

    def ended(committed: bool) -> Desk:
        desk = empty()
        desk.add((1_000, 0), A)
        desk.end((1_000, 0), committed)
        return desk

    for make, epoch in ((empty, 0), (lambda: ended(True), 1), (lambda: ended(False), 1)):
        who = (1_000, epoch)
        make().producer()
        make().add(who, A)
        make().prepare(who)
        make().end(who, committed=False)
        desk = make()
        before = desk.state()
        desk.pass_time(2 * 3_600_000)
        assert not desk.has_entry()
        seen.add(Transition(before, TransactionState.DEAD, Cause.EXPIRED))
    desk = Desk()
    who = desk.ongoing(A)
    desk.add(who, TopicPartition("b", 0))
    desk.init()
    desk = Desk()
    desk.ongoing(A)
    desk.pass_time(100_000)
    for committed in (True, False):
        desk = Desk()
        desk.end(desk.prepared(A), committed)
    desk = Desk()
    desk.prepared(A)
    desk.init(keep=True)
    desk.init()
    desk = Desk()
    winner = desk.write_attempt(0, "j", "won")
    desk.write_attempt(0, "j", "lost")
    desk.write_attempt(0, "j", "open", prepare=False)
    desk.begin_sink(0, "j", "empty")
    desk.commit_batch(0, "j", {"won": winner})
    desk.write_attempt(1, "k", "late")
    desk.begin_sink(1, "k", "never used")
    desk.pass_time(2 * 3_600_000)
    assert seen == set(TRANSITIONS)


# --- Logs that others wrote -------------------------------------------------------------------------


def written(desk: Desk, *records: tuple[bytes, bytes | None]) -> None:
    for record in records:
        desk.log.append(Append(Token(LeaderEpoch(0), 0), (CoordinatorRecord(*record),), desk.wall_ms))
    desk.fail_over()


def kafkas(status: int, epoch: int, **changes: Any) -> tuple[bytes, bytes]:
    """As Kafka 4.1 writes it: without the producer ids before and after, without the last epoch."""
    value = TransactionLogValue(
        ProducerId(77), ProducerEpoch(epoch), 60_000, status, (A,), 1_699_999_999_000, 1_699_999_998_000
    )
    changed = value._replace(**{"client_version": 2, **changes})
    return encode_transaction_key("t"), encode_transaction_value(changed)


def test_a_decision_of_kafkas_is_carried_out(desk: Desk) -> None:
    written(desk, kafkas(2, 4))
    (marker,) = desk.sent
    assert (marker.producer_id, marker.producer_epoch, marker.committed) == (77, 4, True)
    assert desk.told(desk.end((77, 3))) == (77, 4), "a repetition is known by the epoch"


def test_after_the_first_protocol_no_repetition_is_seen(desk: Desk) -> None:
    written(desk, kafkas(4, 4, client_version=0))
    assert desk.error(desk.end((77, 3))) is ErrorCode.PRODUCER_FENCED


def test_an_open_transaction_of_kafkas_times_out(desk: Desk) -> None:
    written(desk, kafkas(1, 4))
    assert desk.state() is TransactionState.ONGOING
    desk.pass_time(70_000)
    assert desk.state() is TransactionState.COMPLETE_ABORT


def test_a_transaction_that_kafka_would_not_time_out_is_not_timed_out(desk: Desk) -> None:
    written(desk, kafkas(1, 4, timeout_ms=2**31 - 1))
    desk.wall_ms += 2**32
    desk.pass_time(100_000)
    assert desk.state() is TransactionState.ONGOING


def test_the_following_producer_id_of_kafkas_begins_with_epoch_0() -> None:
    value = TransactionLogValue(
        ProducerId(77), ProducerEpoch(32_767), 60_000, 2, (), 0, 0, next_producer_id=ProducerId(99)
    )
    found = loaded(value)
    assert found is not None
    assert found.after == Identity(ProducerId(99), ProducerEpoch(0))
    idle = loaded(value._replace(status=4))
    assert idle is not None
    assert idle.following == NOBODY


def test_records_that_cannot_be_used_stop_nothing(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    key, value = kafkas(0, 4)
    with caplog.at_level(logging.WARNING):
        written(
            desk,
            (b"\x00\x07other", b"x"),
            (b"", b"x"),
            (key, b"\x00\x05"),
            (key, kafkas(6, 4)[1]),
            (key, kafkas(0, -1)[1]),
            (key, value),
            (encode_transaction_key("u"), value),
            (encode_transaction_key("u"), None),
            (encode_transaction_key("never"), None),
        )
    assert (desk.shard.replayed, desk.shard.passed_over) == (9, 5)
    assert set(desk.shard.state.entries) == {"t"}
    assert len(caplog.records) == 2
