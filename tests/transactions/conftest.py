"""A shard that a test drives by hand, with its log beside it, and ``__transaction_state`` in memory for the shell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.coordinators import MemoryLog, ShardDesk
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, ProducerEpoch, ProducerId, TopicPartition
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.proto.calls.sink_api import (
    AbortJobRequest,
    BeginSinkTransactionRequest,
    CommitBatchRequest,
    DeleteSinkRequest,
    SinkWinner,
)
from tidelog.proto.calls.transaction_api import (
    AddOffsetsToTxnRequest,
    AddPartitionsTransaction,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    PrepareTransactionRequest,
    TransactionMarker,
)
from tidelog.proto.records.encoder import BatchBuilder
from tidelog.replication.coordinators.coordinator_core import BATCH_BYTES_MAX
from tidelog.replication.coordinators.coordinator_log import Token
from tidelog.transactions.effects import Allocate, Answer, Append, Effect, SendMarkers, StopMarkers
from tidelog.transactions.settings import TransactionSettings
from tidelog.transactions.shard import Shard
from tidelog.transactions.transaction import Entry, Identity, Transaction
from tidelog.transactions.transitions import TransactionState

A = TopicPartition("a", 0)
B = TopicPartition("b", 3)


class Desk(ShardDesk[Shard, TransactionSettings, Append]):
    """See :class:`ShardDesk`; producer ids and markers are the test's to end as well.

    ``auto``: a producer id too is given as soon as it is asked for; ``marks``: so are markers written.
    """

    def __init__(
        self, *, auto: bool = True, marks: bool = True, epoch: int = 1, first_id: int = 1_000, **changes: Any
    ) -> None:
        self.marks = marks
        self.allocations: list[Token] = []
        self.markers: dict[Token, TransactionMarker] = {}
        self.sent: list[TransactionMarker] = []
        self.next_id = first_id
        self.batch_bytes_max = BATCH_BYTES_MAX
        self.connections_before = 0
        settings = replace(TransactionSettings(two_phase_commit_enable=True), **changes)
        super().__init__(settings, auto=auto, epoch=epoch, now_ms=5_000)

    def _shard(self, epoch: int) -> Shard:
        return Shard(
            LeaderEpoch(epoch), self.settings, self.batch_bytes_max, connections_before=self.connections_before
        )

    def _built(self, append: Append) -> bytearray:
        builder = BatchBuilder()
        for key, value in append.records:
            builder.append(append.timestamp_ms, key, value)
        return builder.build()

    def has_entry(self, transactional_id: str = "t") -> bool:
        return transactional_id in self.shard.state.entries

    def entry(self, transactional_id: str = "t") -> Entry:
        return self.shard.state.entries[transactional_id]

    def value(self, transactional_id: str = "t") -> Transaction:
        value = self.entry(transactional_id).value
        assert value is not None
        return value

    def state(self, transactional_id: str = "t") -> TransactionState:
        return self.value(transactional_id).state

    # --- Effects ------------------------------------------------------------------------------------

    def perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Answer(waiter, response):
                    self.answer(waiter, response)
                case Append():
                    self.appends.append(effect)
                case Allocate(token):
                    self.allocations.append(token)
                case SendMarkers(token, marker):
                    assert token not in self.markers
                    self.markers[token] = marker
                    self.sent.append(marker)
                case StopMarkers(token):
                    del self.markers[token]
        while self.auto and (self.appends or self.allocations):
            if self.allocations:
                self.allocate()
            else:
                self.end_append()
        if self.marks:
            for token in list(self.markers):
                self.mark(token)

    def allocate(self, *, answered: bool = True, at: int = 0) -> None:
        token = self.allocations.pop(at)
        found = None
        if answered:
            found = ProducerId(self.next_id)
            self.next_id += 1
        self.perform(self.shard.allocated(token, found, self.now))

    def mark(self, token: Token | None = None, error: ErrorCode = ErrorCode.NONE, *partitions: TopicPartition) -> None:
        """The partitions (all, unless named) have their marker."""
        if token is None:
            token = next(iter(self.markers))
        marker = self.markers.get(token)
        if marker is None:
            return
        told: Sequence[GroupPartition] = [GroupPartition(*item) for item in partitions] or marker.partitions
        self.perform(self.shard.marked(token, told, error, self.now))

    def resigned(self) -> None:
        assert not self.markers, "a coordinator that has resigned sends no markers"
        self.allocations.clear()
        super().resigned()

    # --- Requests -----------------------------------------------------------------------------------

    def init(self, transactional_id: str = "t", expected: tuple[int, int] = (-1, -1), **changes: Any) -> int:
        request = InitProducerIdRequest(
            transactional_id,
            changes.pop("timeout_ms", 60_000),
            ProducerId(expected[0]),
            ProducerEpoch(expected[1]),
            changes.pop("two_phase", False),
            changes.pop("keep", False),
        )
        assert not changes
        return self.ask(self.shard.init_producer_id, request)

    def add(
        self,
        identity: tuple[int, int],
        *partitions: TopicPartition,
        transactional_id: str = "t",
        verify_only: bool = False,
    ) -> int:
        request = AddPartitionsTransaction(
            transactional_id,
            ProducerId(identity[0]),
            ProducerEpoch(identity[1]),
            tuple(GroupPartition(*item) for item in partitions),
            verify_only,
        )
        return self.ask(self.shard.add_partitions, request)

    def add_offsets(self, identity: tuple[int, int], partition: int, transactional_id: str = "t") -> int:
        request = AddOffsetsToTxnRequest(transactional_id, ProducerId(identity[0]), ProducerEpoch(identity[1]), "g")
        return self.ask(self.shard.add_offsets, request, TopicPartition("__consumer_offsets", partition))

    def prepare(self, identity: tuple[int, int], transactional_id: str = "t") -> int:
        request = PrepareTransactionRequest(transactional_id, ProducerId(identity[0]), ProducerEpoch(identity[1]))
        return self.ask(self.shard.prepare, request)

    def end(
        self,
        identity: tuple[int, int],
        committed: bool = True,
        *,
        transactional_id: str = "t",
        bump: bool = True,
    ) -> int:
        request = EndTxnRequest(transactional_id, ProducerId(identity[0]), ProducerEpoch(identity[1]), committed, bump)
        return self.ask(self.shard.end, request)

    # --- Requests of sinks --------------------------------------------------------------------------

    def begin_sink(self, batch: int, job: str, attempt: str, sink: str = "s") -> int:
        request = BeginSinkTransactionRequest(sink, batch, job, attempt)
        return self.ask(self.shard.begin_sink_transaction, request)

    def commit_batch(self, batch: int, job: str, winners: Mapping[str, tuple[int, int]], sink: str = "s") -> int:
        """``winners``: attempts and their identities."""
        named = tuple(SinkWinner(name, ProducerId(who[0]), ProducerEpoch(who[1])) for name, who in winners.items())
        return self.ask(self.shard.commit_batch, CommitBatchRequest(sink, batch, job, named))

    def abort_job(self, batch: int, job: str, sink: str = "s") -> int:
        return self.ask(self.shard.abort_job, AbortJobRequest(sink, batch, job))

    def delete_sink(self, sink: str = "s") -> int:
        return self.ask(self.shard.delete_sink, DeleteSinkRequest(sink))

    def write_attempt(
        self, batch: int, job: str, attempt: str, *partitions: TopicPartition, sink: str = "s", prepare: bool = True
    ) -> tuple[int, int]:
        """A task's work from Begin to Prepare, over the partitions (A and B, unless named)."""
        waiter = self.begin_sink(batch, job, attempt, sink)
        who = self.told(waiter)
        name = self.answers[waiter].transactional_id
        assert self.error(self.add(who, *(partitions or (A, B)), transactional_id=name)) is ErrorCode.NONE
        if prepare:
            assert self.error(self.prepare(who, name)) is ErrorCode.NONE
        return who

    def listed(self, **changes: Any) -> list[str]:
        found = self.shard.list_transactions(ListTransactionsRequest(**changes), self.now)
        return [item.transactional_id for item in found]

    # --- Shorthand ----------------------------------------------------------------------------------

    def error(self, waiter: int) -> ErrorCode | None:
        """The answer to ``waiter``; None so far."""
        answer = self.answers.get(waiter)
        if answer is None:
            return None
        if hasattr(answer, "results"):
            errors = {item.error for item in answer.results}
            assert len(errors) == 1, errors
            found: ErrorCode = errors.pop()
            return found
        return answer.error  # type: ignore[no-any-return]

    def told(self, waiter: int) -> tuple[int, int]:
        """The identity that ``waiter`` was told."""
        answer = self.answers[waiter]
        assert answer.error is ErrorCode.NONE, answer
        return answer.producer_id, answer.producer_epoch

    def producer(self, transactional_id: str = "t", **changes: Any) -> tuple[int, int]:
        return self.told(self.init(transactional_id, **changes))

    def ongoing(self, *partitions: TopicPartition, transactional_id: str = "t", **changes: Any) -> tuple[int, int]:
        """Begin a transaction over the partitions (A and B by default); returns its producer."""
        identity = self.producer(transactional_id, **changes)
        waiter = self.add(identity, *(partitions or (A, B)), transactional_id=transactional_id)
        assert self.error(waiter) is ErrorCode.NONE
        return identity

    def use_up(self, identity: tuple[int, int], transactional_id: str = "t") -> tuple[int, int]:
        """Let the producer id be at the last epoch that a producer may have, as a log may say."""
        last = Identity(ProducerId(identity[0]), ProducerEpoch(32_766))
        self.entry(transactional_id).value = replace(self.value(transactional_id), identity=last)
        return last

    def prepared(self, *partitions: TopicPartition) -> tuple[int, int]:
        """The same, prepared."""
        identity = self.ongoing(*partitions, two_phase=True)
        assert self.error(self.prepare(identity)) is ErrorCode.NONE
        return identity


@pytest.fixture
def desk_type() -> type[Desk]:
    return Desk


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def memory_log() -> MemoryLog:
    return MemoryLog()
