"""The transaction coordinator of one partition of ``__transaction_state``: pure, without IO, threads or clocks.

Its inputs are requests, append results, producer ids, marker results and the time; its outputs are *effects*
(:mod:`tidelog.transactions.effects`), to be performed in order. State follows the log: an id takes on a record's state
when the record is replicated, and until then no other operation on it begins. No answer and no marker is sent before
its record is replicated. Source: Kafka's ``TransactionCoordinator``, ``TransactionStateManager`` and
``TransactionMarkerChannelManager``; KIP-98, KIP-360, KIP-890, KIP-939.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, ProducerId, TopicPartition
from tidelog.model.moment import Moment
from tidelog.proto.calls.backup_api import HeldPartition
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.proto.calls.sink_api import (
    AbortJobRequest,
    BeginSinkTransactionRequest,
    CommitBatchRequest,
    DeleteSinkRequest,
    DescribedSink,
    ListedSink,
)
from tidelog.proto.calls.transaction_api import (
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
from tidelog.replication.coordinators.coordinator_core import BATCH_BYTES_MAX, CoordinatorCore
from tidelog.replication.coordinators.coordinator_log import Token
from tidelog.transactions.adding import Adding
from tidelog.transactions.counters import TransactionCounters
from tidelog.transactions.describing import describe, listed
from tidelog.transactions.effects import Effect, StopMarkers
from tidelog.transactions.ending import Ending
from tidelog.transactions.expiring import Expiring
from tidelog.transactions.holding import Holding
from tidelog.transactions.initialising import Initialising, unallocated
from tidelog.transactions.lineage import Lineage
from tidelog.transactions.replaying import Replaying
from tidelog.transactions.settings import TransactionSettings
from tidelog.transactions.shard_state import PendingAppend, ShardState, TimerKey, TimerKind
from tidelog.transactions.sinks.beginning import LedgerBeginning
from tidelog.transactions.sinks.deciding import LedgerDeciding
from tidelog.transactions.sinks.describing import describe_sink, list_sinks
from tidelog.transactions.transaction import Identity


class Shard(CoordinatorCore[TimerKey, Effect, PendingAppend]):
    """State machine of one partition under one leader epoch, which is its markers' coordinator epoch."""

    __slots__ = (
        "_adding",
        "_ending",
        "_expiring",
        "_holding",
        "_initialising",
        "_ledger_beginning",
        "_ledger_deciding",
    )

    _state: ShardState

    def __init__(
        self,
        leader_epoch: LeaderEpoch,
        settings: TransactionSettings,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        *,
        counters: TransactionCounters | None = None,
        connections_before: int = 0,
        lineage: Lineage | None = None,
    ) -> None:
        """``connections_before``: this node's newest connection now."""
        self._state = ShardState(
            leader_epoch, settings, batch_bytes_max, counters or TransactionCounters(), connections_before, lineage
        )
        self._ending = Ending(self._state)
        self._initialising = Initialising(self._state, self._ending)
        self._adding = Adding(self._state)
        self._ledger_deciding = LedgerDeciding(self._state, self._ending)
        self._ledger_beginning = LedgerBeginning(self._state, self._ledger_deciding)
        self._expiring = Expiring(self._state)
        self._holding = Holding(self._state)
        self._replaying = Replaying(self._state)

    @property
    def state(self) -> ShardState:
        """For reading: by tests and gauges."""
        return self._state

    # --- Loading ------------------------------------------------------------------------------------

    def loaded(self, now: Moment) -> list[Effect]:
        """Carry out the log's decisions after its full replay, under this leader's epoch.

        Producers of the first protocol must use connections newer than this election. On an older one, a request may
        still be in flight from a time when this node was their coordinator, before another node was.
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
    # ``connection``: see :meth:`tidelog.transactions.transaction.Entry.heard`. A request on one that no longer speaks
    # for the producer gets NETWORK_EXCEPTION.

    def init_producer_id(
        self, request: InitProducerIdRequest, waiter: int, now: Moment, connection: int = 0
    ) -> list[Effect]:
        """Handle a request with a valid ``transactional_id``. Its connection is never a reason to refuse it: the
        request fences the previous producer, and a late one can do no more than that."""
        assert request.transactional_id is not None
        self._initialising.init(request.transactional_id, request, waiter, now, connection)
        return self._effects()

    def add_partitions(
        self, request: AddPartitionsTransaction, waiter: int, now: Moment, connection: int = 0
    ) -> list[Effect]:
        """Add partitions. The answer is an :class:`~tidelog.proto.calls.transaction_api.AddedTransaction`."""
        self._adding.add_partitions(request, waiter, now, connection)
        return self._effects()

    def add_offsets(
        self,
        request: AddOffsetsToTxnRequest,
        waiter: int,
        now: Moment,
        partition: TopicPartition,
        connection: int = 0,
    ) -> list[Effect]:
        """Add a group's offsets; ``partition``: their partition."""
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

    def hold(self, partition: int, hold_id: str, hold_ms: int, now: Moment) -> HeldPartition:
        """See :meth:`tidelog.transactions.holding.Holding.hold`."""
        return self._holding.hold(partition, hold_id, hold_ms, now)

    # --- Time and log -------------------------------------------------------------------------------

    def allocated(self, token: Token, producer_id: ProducerId | None, now: Moment) -> list[Effect]:
        """Note a requested producer id, or None if there is none now."""
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
        """Note marker results. NONE: these partitions have their marker, or no longer exist. Otherwise they refuse it
        permanently."""
        if token.leader_epoch == self._state.leader_epoch:
            self._ending.marked(token.number, partitions, error, now)
        return self._effects()

    def resign(self, now: Moment) -> list[Effect]:
        state = self._state
        error = ErrorCode.NOT_COORDINATOR
        for append in state.appends.values():
            for asker in append.askers:
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
            case TimerKind.ADDS:
                self._adding.give_up(key.transactional_id, now)
            case TimerKind.COMPLETE:
                self._ending.complete_again(key.transactional_id, now)
            case TimerKind.SWEEP:
                self._ledger_deciding.sweep_again(key.transactional_id, now)
            case TimerKind.HOLD:
                self._holding.end()

    def _append_ended(self, pending: PendingAppend, number: int, error: ErrorCode, now: Moment) -> None:
        pending.ended(error, now)

    def _append_late(self, pending: PendingAppend, now: Moment) -> None:
        """Tell waiters to retry; pending writes end in their own time (Kafka's REQUEST_TIMED_OUT)."""
        for asker in pending.askers:
            self._state.answer(asker.waiter, asker.tell(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        pending.askers = ()
