"""The transaction coordinator of one partition of ``__transaction_state``: pure, without IO, threads or clocks.

Requests, ends of appends, producer ids, news of markers and the passing of time go in; *effects*
(:mod:`tidelog.transactions.effects`) come out, to be performed in order. State follows the log: an id becomes
what a record says when that is replicated, and until then nothing else begins with it. Nobody is
answered, and no marker is sent, before the record behind it is. Source: Kafka's ``TransactionCoordinator``,
``TransactionStateManager`` and ``TransactionMarkerChannelManager``; KIP-98, KIP-360, KIP-890, KIP-939.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, ProducerId, TopicPartition
from tidelog.model.moment import Moment
from tidelog.proto.group_api import GroupPartition
from tidelog.proto.records import Batch
from tidelog.proto.sink_api import (
    AbortJobRequest,
    BeginSinkTransactionRequest,
    CommitBatchRequest,
    DeleteSinkRequest,
    DescribedSink,
    ListedSink,
)
from tidelog.proto.transaction_api import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsTransaction,
    DescribedTransaction,
    EndTxnRequest,
    InitProducerIdRequest,
    ListedTransaction,
    ListTransactionsRequest,
    PrepareTransactionRequest,
)
from tidelog.replication.coordinator_log import Token
from tidelog.transactions.adding import Adding
from tidelog.transactions.counters import TransactionCounters
from tidelog.transactions.describing import describe, listed
from tidelog.transactions.effects import Effect, StopMarkers
from tidelog.transactions.ending import Ending
from tidelog.transactions.expiring import Expiring
from tidelog.transactions.initialising import Initialising, unallocated
from tidelog.transactions.ledger_beginning import LedgerBeginning
from tidelog.transactions.ledger_deciding import LedgerDeciding
from tidelog.transactions.ledger_describing import describe_sink, list_sinks
from tidelog.transactions.replaying import Replaying
from tidelog.transactions.settings import TransactionSettings
from tidelog.transactions.shard_state import ShardState, TimerKey, TimerKind
from tidelog.transactions.transaction import Identity


class Shard:
    """State machine of one partition under one leader epoch, which is the coordinator epoch of its markers."""

    __slots__ = (
        "_adding",
        "_ending",
        "_expiring",
        "_initialising",
        "_ledger_beginning",
        "_ledger_deciding",
        "_replaying",
        "_state",
    )

    def __init__(
        self,
        leader_epoch: LeaderEpoch,
        settings: TransactionSettings,
        batch_bytes_max: int = 1_048_588,
        *,
        counters: TransactionCounters | None = None,
        connections_before: int = 0,
    ) -> None:
        """``connections_before``: the newest connection that this node has now."""
        self._state = ShardState(
            leader_epoch, settings, batch_bytes_max, counters or TransactionCounters(), connections_before
        )
        self._ending = Ending(self._state)
        self._initialising = Initialising(self._state, self._ending)
        self._adding = Adding(self._state)
        self._ledger_deciding = LedgerDeciding(self._state, self._ending)
        self._ledger_beginning = LedgerBeginning(self._state, self._ledger_deciding)
        self._expiring = Expiring(self._state)
        self._replaying = Replaying(self._state)

    @property
    def state(self) -> ShardState:
        """For reading: by tests and gauges."""
        return self._state

    @property
    def replayed(self) -> int:
        """Records of the log that were looked at."""
        return self._replaying.records

    @property
    def passed_over(self) -> int:
        """Records of the log that could not be used."""
        return self._replaying.passed_over

    # --- Loading ------------------------------------------------------------------------------------

    def replay(self, batch: Batch) -> None:
        """Take one batch of the log. Raises :class:`~tidelog.proto.corrupt_batch.CorruptBatch`."""
        self._replaying.batch(batch)

    def loaded(self, now: Moment) -> list[Effect]:
        """All of the log is replayed: what was decided is carried out, under this leader's epoch.

        Producers of the first protocol are to speak on connections that are newer than its election: on an older one
        something may still be under way from a time when this node coordinated them before, and since then another.
        """
        for entry in list(self._state.entries.values()):
            entry.connection = self._state.connections_before + 1
            if entry.value is not None and entry.value.state.is_decided:
                self._ending.send_markers(entry, now)
        for sink in list(self._state.sinks.values()):
            self._ledger_deciding.sweep(sink, now)
        self._ending.schedule(now)
        self._expiring.schedule(now)
        return self._effects()

    # --- Requests -----------------------------------------------------------------------------------

    #
    # ``connection``: see :meth:`tidelog.transactions.transaction.Entry.heard`. What comes on one that does not speak
    # for the producer any more is refused with NETWORK_EXCEPTION.

    def init_producer_id(
        self, request: InitProducerIdRequest, waiter: int, now: Moment, connection: int = 0
    ) -> list[Effect]:
        """``request.transactional_id`` is there and fit to be one. Never refused for its connection: whoever comes
        fences who was there before, and that is all that a late one can do."""
        assert request.transactional_id is not None
        self._initialising.init(request.transactional_id, request, waiter, now, connection)
        return self._effects()

    def add_partitions(
        self, request: AddPartitionsTransaction, waiter: int, now: Moment, connection: int = 0
    ) -> list[Effect]:
        """The answer is an :class:`~tidelog.proto.transaction_api.AddedTransaction`."""
        self._adding.add_partitions(request, waiter, now, connection)
        return self._effects()

    def add_offsets(
        self,
        request: AddOffsetsToTxnRequest,
        partition: TopicPartition,
        waiter: int,
        now: Moment,
        connection: int = 0,
    ) -> list[Effect]:
        """``partition``: where the group's offsets are."""
        asker = Identity(request.producer_id, request.producer_epoch)
        self._adding.add(
            request.transactional_id, asker, (partition,), waiter, AddOffsetsToTxnResponse, now, connection
        )
        return self._effects()

    def prepare(self, request: PrepareTransactionRequest, waiter: int, now: Moment) -> list[Effect]:
        self._ending.prepare(request, waiter, now)
        return self._effects()

    def end(self, request: EndTxnRequest, waiter: int, now: Moment, connection: int = 0) -> list[Effect]:
        self._ending.end(request, waiter, now, connection)
        return self._effects()

    # --- Ledgers of sinks ---------------------------------------------------------------------------

    def begin_sink_transaction(self, request: BeginSinkTransactionRequest, waiter: int, now: Moment) -> list[Effect]:
        self._ledger_beginning.begin(request, waiter, now)
        return self._effects()

    def commit_batch(self, request: CommitBatchRequest, waiter: int, now: Moment) -> list[Effect]:
        self._ledger_deciding.commit(request, waiter, now)
        return self._effects()

    def abort_job(self, request: AbortJobRequest, waiter: int, now: Moment) -> list[Effect]:
        self._ledger_deciding.abort(request, waiter, now)
        return self._effects()

    def delete_sink(self, request: DeleteSinkRequest, waiter: int, now: Moment) -> list[Effect]:
        self._ledger_deciding.delete(request, waiter, now)
        return self._effects()

    def describe_sink(self, name: str) -> DescribedSink:
        return describe_sink(name, self._state.sinks.get(name))

    def list_sinks(self) -> list[ListedSink]:
        return list_sinks(self._state.sinks.values())

    # --- Administration -----------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> DescribedTransaction:
        return describe(transactional_id, self._state.entries.get(transactional_id))

    def list_transactions(self, request: ListTransactionsRequest, now: Moment) -> list[ListedTransaction]:
        return listed(self._state.entries.values(), request, now.wall_ms)

    # --- Time and log -------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When :meth:`tick` is due, monotonic ms. It may find nothing then."""
        return self._state.timers.next_deadline()

    def tick(self, now: Moment) -> list[Effect]:
        """Do what has come due."""
        for key in self._state.timers.due(now.monotonic_ms):
            if key not in self._state.timers:  # else what came due before it set it anew
                self._due(key, now)
        return self._effects()

    def appended(self, token: Token, error: ErrorCode, now: Moment) -> list[Effect]:
        """An append ended: NONE, it is in the log for good; NOT_COORDINATOR, leadership ended, as does this;
        else nothing of it was written. A token of another epoch, or one that ended before, changes nothing."""
        state = self._state
        if token.leader_epoch != state.leader_epoch:
            return []
        if error is ErrorCode.NOT_COORDINATOR:
            return self.resign()
        under = state.appends.pop(token.number, None)
        if under is None:
            return []
        state.timers.cancel(TimerKey(TimerKind.APPEND, token.number))
        under.ended(error, now)
        return self._effects()

    def allocated(self, token: Token, producer_id: ProducerId | None, now: Moment) -> list[Effect]:
        """A producer id that was asked for, or None where there is none now."""
        if token.leader_epoch != self._state.leader_epoch:
            return []
        allocation = self._state.allocations.pop(token.number, None)
        if allocation is None:
            return []
        entry = allocation.entry
        if entry is not None:
            entry.busy = None
        if producer_id is not None:
            allocation.got(producer_id, now)
        else:
            allocation.missed()
            unallocated(allocation.askers, self._state)
            if entry is not None:
                self._state.idle(entry, now)
        return self._effects()

    def marked(self, token: Token, partitions: Sequence[GroupPartition], error: ErrorCode, now: Moment) -> list[Effect]:
        """NONE: these partitions have their marker, or are no more. Else they refuse it for good."""
        if token.leader_epoch == self._state.leader_epoch:
            self._ending.marked(token.number, partitions, error, now)
        return self._effects()

    def resign(self) -> list[Effect]:
        """Leadership ended: everybody who waits is told to look for the new coordinator, and all is forgotten. What
        was being written may be in the log or not."""
        state = self._state
        error = ErrorCode.NOT_COORDINATOR
        for under in state.appends.values():
            for asker in under.askers:
                state.answer(asker.waiter, asker.tell(error))
        for allocation in state.allocations.values():
            for asker in allocation.askers:
                state.answer(asker.waiter, asker.tell(error))
        for entry in state.entries.values():
            for add in entry.adds:
                state.answer(add.waiter, add.tell(error))
        for number in state.sendings:
            state.effects.append(StopMarkers(state.token(number)))
        state.waiting_adds = 0
        state.appends.clear()
        state.allocations.clear()
        state.sendings.clear()
        state.entries.clear()
        state.ongoing.clear()
        state.sinks.clear()
        state.timers.clear()
        return self._effects()

    def _due(self, key: TimerKey, now: Moment) -> None:
        match key.kind:
            case TimerKind.TIMEOUTS:
                self._ending.abort_timed_out(now)
            case TimerKind.EXPIRY:
                self._expiring.check(now)
            case TimerKind.APPEND:
                self._give_up_append(key.number)
            case TimerKind.ADDS:
                self._adding.give_up(key.transactional_id, now)
            case TimerKind.COMPLETE:
                self._ending.complete_again(key.transactional_id, now)
            case TimerKind.SWEEP:
                self._ledger_deciding.sweep_again(key.transactional_id, now)

    def _give_up_append(self, number: int) -> None:
        """Who waits is told to ask again; what is written ends in its own time (Kafka's REQUEST_TIMED_OUT)."""
        under = self._state.appends.get(number)
        if under is not None:
            for asker in under.askers:
                self._state.answer(asker.waiter, asker.tell(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            under.askers = ()

    def _effects(self) -> list[Effect]:
        effects, self._state.effects = self._state.effects, []
        return effects
