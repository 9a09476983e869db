"""A shard that a test drives by hand, with its log beside it, and ``__transaction_state`` in memory for the shell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import LeaderEpoch, Offset, ProducerEpoch, ProducerId, TopicPartition
from tidelog.model.moment import Moment
from tidelog.proto.group_api import GroupPartition
from tidelog.proto.record_encoder import BatchBuilder
from tidelog.proto.records import patch_batch, split_batches
from tidelog.proto.sink_api import (
    AbortJobRequest,
    BeginSinkTransactionRequest,
    CommitBatchRequest,
    DeleteSinkRequest,
    SinkWinner,
)
from tidelog.proto.transaction_api import (
    AddOffsetsToTxnRequest,
    AddPartitionsTransaction,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    PrepareTransactionRequest,
    TransactionMarker,
)
from tidelog.replication.coordinator_log import LogRange, LogSlice, Token
from tidelog.transactions.effects import Allocate, Answer, Append, Effect, SendMarkers, StopMarkers
from tidelog.transactions.settings import TransactionSettings
from tidelog.transactions.shard import Shard
from tidelog.transactions.transaction import Identity
from tidelog.transactions.transitions import TransactionState

WALL_MS = 1_700_000_000_000
A = TopicPartition("a", 0)
B = TopicPartition("b", 3)


class Desk:
    """Requests in, answers by the handle that each returns; appends, producer ids and markers are the test's to end.

    ``auto``: an append is committed, and a producer id given, as soon as it is asked for; ``marks``: so are markers
    written. ``log``: the batches that were written.
    """

    def __init__(
        self, *, auto: bool = True, marks: bool = True, epoch: int = 1, first_id: int = 1_000, **changes: Any
    ) -> None:
        self.settings = replace(TransactionSettings(two_phase_commit_enable=True), **changes)
        self.auto = auto
        self.marks = marks
        self.now_ms = 5_000
        self.wall_ms = WALL_MS
        self.answers: dict[int, Any] = {}
        self.appends: list[Append] = []
        self.allocations: list[Token] = []
        self.markers: dict[Token, TransactionMarker] = {}
        self.sent: list[TransactionMarker] = []
        self.log: list[Append] = []
        self.epoch = epoch
        self.next_id = first_id
        self.batch_bytes_max = 1_048_588
        self.shard = self._shard(epoch)
        self._waiter = 0
        self.perform(self.shard.loaded(self.now))

    def _shard(self, epoch: int) -> Shard:
        return Shard(LeaderEpoch(epoch), self.settings, self.batch_bytes_max)

    @property
    def now(self) -> Moment:
        return Moment(self.now_ms, self.wall_ms)

    def entry(self, transactional_id: str = "t") -> Any:
        return self.shard.state.entries.get(transactional_id)

    def state(self, transactional_id: str = "t") -> TransactionState:
        state: TransactionState = self.entry(transactional_id).value.state
        return state

    # --- Effects ------------------------------------------------------------------------------------

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Answer(waiter, response):
                    assert waiter not in self.answers, f"{waiter} is answered twice"
                    self.answers[waiter] = response
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

    def end_append(self, error: ErrorCode = ErrorCode.NONE, at: int = 0) -> None:
        """End the append at ``at`` of those under way."""
        append = self.appends.pop(at)
        if error is ErrorCode.NONE:
            self.log.append(append)
        self.perform(self.shard.appended(append.token, error, self.now))

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

    def pass_time(self, ms: int) -> None:
        """Let time pass, timer by timer."""
        until = self.now_ms + ms
        while True:
            deadline = self.shard.next_deadline()
            if deadline is None or deadline > until:
                break
            self.wall_ms += max(deadline - self.now_ms, 0)
            self.now_ms = max(deadline, self.now_ms)
            self.perform(self.shard.tick(self.now))
        self.wall_ms += until - self.now_ms
        self.now_ms = until

    def fail_over(self, **changes: Any) -> None:
        """Another coordinator loads what was written."""
        self.perform(self.shard.resign())
        assert not self.markers, "who has resigned sends no markers"
        self.appends.clear()
        self.allocations.clear()
        self.epoch += 1
        self.settings = replace(self.settings, **changes)
        self.shard = self._shard(self.epoch)
        for batch in self.batches():
            self.shard.replay(batch)
        self.perform(self.shard.loaded(self.now))

    def batches(self) -> list[Any]:
        data = bytearray()
        offset = 0
        for append in self.log:
            builder = BatchBuilder()
            for key, value in append.records:
                builder.append(append.timestamp_ms, key, value)
            built = builder.build()
            patch_batch(built, 0, base_offset=offset, leader_epoch=0)
            offset += len(append.records)
            data += built
        return split_batches(bytes(data)) if data else []

    # --- Requests -----------------------------------------------------------------------------------

    def ask(self, call: Callable[..., list[Effect]], *request: Any) -> int:
        self._waiter += 1
        waiter = self._waiter
        self.perform(call(*request, waiter, self.now))
        return waiter

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
        """``winners``: attempts and who they are."""
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
        """What ``waiter`` was told; None so far."""
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
        """A transaction over the partitions (A and B, unless named); who has it open."""
        identity = self.producer(transactional_id, **changes)
        waiter = self.add(identity, *(partitions or (A, B)), transactional_id=transactional_id)
        assert self.error(waiter) is ErrorCode.NONE
        return identity

    def use_up(self, identity: tuple[int, int], transactional_id: str = "t") -> tuple[int, int]:
        """Let the producer id be at the last epoch that a producer may have, as a log may say."""
        entry = self.entry(transactional_id)
        last = Identity(ProducerId(identity[0]), ProducerEpoch(32_766))
        entry.value = replace(entry.value, identity=last)
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


class MemoryLog:
    """Implements :class:`tidelog.replication.coordinator_log.CoordinatorLog`: one log per partition."""

    def __init__(self) -> None:
        self.data: dict[int, bytearray] = {}
        self.ends: dict[int, int] = {}
        self.held = False
        """Appends wait for :meth:`release`."""
        self.refuse: ErrorCode | None = None
        self.waiting: list[asyncio.Future[ErrorCode]] = []
        self.broken: Refusal | None = None

    def append(self, partition: int, leader_epoch: LeaderEpoch, batch: bytearray) -> Awaitable[ErrorCode]:
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        if self.refuse is not None:
            future.set_result(self.refuse)
            return future
        end = self.ends.get(partition, 0)
        patch_batch(batch, 0, base_offset=end, leader_epoch=leader_epoch)
        self.data.setdefault(partition, bytearray()).extend(batch)
        self.ends[partition] = end + split_batches(bytes(batch))[0].record_count
        if self.held:
            self.waiting.append(future)
        else:
            future.set_result(ErrorCode.NONE)
        return future

    def release(self, error: ErrorCode = ErrorCode.NONE) -> None:
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            future.set_result(error)

    def range(self, partition: int, leader_epoch: LeaderEpoch) -> LogRange | Refusal:
        if self.broken is not None:
            return self.broken
        return LogRange(Offset(0), Offset(self.ends.get(partition, 0)))

    async def read(
        self, partition: int, leader_epoch: LeaderEpoch, offset: Offset, bytes_max: int
    ) -> LogSlice | Refusal:
        await asyncio.sleep(0)
        batches = [batch for batch in split_batches(bytes(self.data[partition])) if batch.next_offset > offset]
        taken = batches[:1]
        for batch in batches[1:]:
            if sum(item.size for item in taken) + batch.size > bytes_max:
                break
            taken.append(batch)
        return LogSlice(b"".join(bytes(item.view) for item in taken), Offset(taken[-1].next_offset))

    async def committed(self, partition: int, leader_epoch: LeaderEpoch, offset: Offset) -> ErrorCode:
        return ErrorCode.NONE

    def batch_bytes_max(self, partition: int) -> int:
        return 1_048_588


@pytest.fixture
def memory_log() -> MemoryLog:
    return MemoryLog()
