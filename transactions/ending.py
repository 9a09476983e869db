"""How transactions end: prepare, commit, abort, timeouts, markers, completion.

The decision is a record, PrepareCommit or PrepareAbort. The answer is sent once it is replicated, and the decision
never changes. Then each partition gets its marker, and a final record says that all have it. Source:
``TransactionCoordinator.endTransaction``, ``TransactionMarkerChannelManager``, KIP-890.

In the second protocol the decision takes the next epoch, and the markers carry it, so late requests of this transaction
are refused everywhere. Differences from Kafka: a repeated EndTxn gets its answer even while the markers are being sent,
since the decision is made (Kafka: CONCURRENT_TRANSACTIONS); aborts that no client requested also rotate the producer id
before its epochs run out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ProducerEpoch, ProducerId, TopicPartition
from tidelog.model.moment import Moment
from tidelog.model.sinks import is_sinks, sink_key
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.proto.calls.transaction_api import (
    EndTxnRequest,
    EndTxnResponse,
    PrepareTransactionRequest,
    PrepareTransactionResponse,
    TransactionMarker,
)
from tidelog.transactions.effects import SendMarkers, StopMarkers
from tidelog.transactions.shard_state import TIMEOUTS_KEY, Asker, ShardState, TimerKey, TimerKind
from tidelog.transactions.transaction import (
    NO_PARTITIONS,
    NO_START,
    NOBODY,
    Busy,
    Entry,
    Identity,
    Transaction,
)
from tidelog.transactions.transitions import Cause, TransactionState

_COMPLETE_AGAIN_MS: Final = 500
_FIRST_PROTOCOL: Final = 1
_SECOND_PROTOCOL: Final = 2

_DECIDED: Final = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}
_COMPLETED: Final = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}
_OUTCOME: Final = {
    TransactionState.PREPARE_COMMIT: True,
    TransactionState.COMPLETE_COMMIT: True,
    TransactionState.PREPARE_ABORT: False,
    TransactionState.COMPLETE_ABORT: False,
}


class Ending:
    """Decides how transactions end, and ensures that they do."""

    __slots__ = ("_shard",)

    def __init__(self, shard: ShardState) -> None:
        self._shard = shard

    # --- Prepare ------------------------------------------------------------------------------------

    def prepare(self, request: PrepareTransactionRequest, waiter: int, now: Moment) -> None:
        """Freeze a transaction, even one without partitions. A repeated request changes nothing."""
        error = self._prepare(request, waiter, now)
        if error is not None:
            self._shard.answer(waiter, PrepareTransactionResponse(error))

    def _prepare(self, request: PrepareTransactionRequest, waiter: int, now: Moment) -> ErrorCode | None:
        found = self._shard.known(request.transactional_id)
        if found is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        entry, value = found
        asker = Identity(request.producer_id, request.producer_epoch)
        if entry.busy in (Busy.ALLOCATING, Busy.MOVING):
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if value.state.is_decided:
            if asker == value.previous:
                return ErrorCode.INVALID_TXN_STATE
            if asker in (value.identity, value.following):
                return ErrorCode.CONCURRENT_TRANSACTIONS
        if asker != value.identity:
            return _stranger(value, asker)
        if value.state is TransactionState.PREPARED:
            return ErrorCode.NONE
        if not value.two_phase:
            return ErrorCode.INVALID_TXN_STATE
        if not self._shard.can_append:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        idle = value.state.is_idle
        after = replace(
            value,
            state=TransactionState.PREPARED,
            previous=NOBODY,
            partitions=NO_PARTITIONS if idle else value.partitions,
            started_ms=now.wall_ms if idle else value.started_ms,
            timeout_ms=value.timeout_ms if entry.attempt is None else self._shard.settings.sink_prepared_timeout_ms,
            updated_ms=now.wall_ms,
            kept=False,
            client_version=_SECOND_PROTOCOL,
        )

        def moved(then: Moment) -> None:
            self._shard.counters.prepared += 1

        self._shard.move(entry, after, Cause.PREPARED, (Asker(waiter, PrepareTransactionResponse),), now, moved=moved)
        return None

    # --- The decision -------------------------------------------------------------------------------

    def end(self, request: EndTxnRequest, waiter: int, now: Moment, connection: int = 0) -> None:
        """Commit or abort at a producer's request. ``connection`` matters only in the first protocol."""
        answer: EndTxnResponse | ErrorCode | None
        if is_sinks(request.transactional_id) and (request.committed or not request.bump_epoch):
            what = "a sink's transaction is committed by CommitBatch alone; its own writer may abort it"
            answer = EndTxnResponse(ErrorCode.INVALID_REQUEST, error_message=what)
        elif request.bump_epoch:
            answer = self._end(request, waiter, now)
        else:
            answer = self._end_first_protocol(request, waiter, now, connection)
        if answer is not None:
            response = answer if isinstance(answer, EndTxnResponse) else EndTxnResponse(answer)
            self._shard.answer(waiter, response)

    def _end(self, request: EndTxnRequest, waiter: int, now: Moment) -> EndTxnResponse | ErrorCode | None:
        """End a transaction of the second protocol (see the table in ``endTransaction``)."""
        found = self._shard.known(request.transactional_id)
        if found is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        entry, value = found
        asker = Identity(request.producer_id, request.producer_epoch)
        if entry.busy in (Busy.ALLOCATING, Busy.MOVING):
            return ErrorCode.CONCURRENT_TRANSACTIONS
        outcome = _OUTCOME.get(value.state)
        if outcome is not None and asker == value.previous:
            if outcome is not request.committed:
                return ErrorCode.INVALID_TXN_STATE
            return EndTxnResponse(ErrorCode.NONE, *value.told_after)
        if value.state.is_decided and asker in (value.identity, value.following):
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if asker != value.identity:
            return _stranger(value, asker)
        if value.state.is_idle and request.committed:
            return ErrorCode.INVALID_TXN_STATE
        if not self._shard.can_append:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._decide(
            entry,
            committed=request.committed,
            cause=Cause.COMMITTED if request.committed else Cause.ABORTED,
            asker=lambda after: (Asker(waiter, _tell_ended(after.told_after)),),
            unanswered=(Asker(waiter, EndTxnResponse),),
            now=now,
        )
        return None

    def _end_first_protocol(
        self, request: EndTxnRequest, waiter: int, now: Moment, connection: int
    ) -> EndTxnResponse | ErrorCode | None:
        """End a transaction of the first protocol: the producer keeps its epoch (``endTransactionWithTV1``)."""
        found = self._shard.known(request.transactional_id)
        if found is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        entry, value = found
        asker = Identity(request.producer_id, request.producer_epoch)
        if asker != value.identity:
            return _stranger(value, asker)
        if not entry.heard(asker, connection):
            self._shard.counters.late_connections += 1
            return ErrorCode.NETWORK_EXCEPTION
        if entry.busy in (Busy.ALLOCATING, Busy.MOVING):
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if value.state is not TransactionState.ONGOING:
            outcome = _OUTCOME.get(value.state)
            if outcome is not request.committed or value.previous != NOBODY:
                return ErrorCode.INVALID_TXN_STATE  # or the second protocol ended it, under another epoch
            if value.state.is_decided:
                return ErrorCode.CONCURRENT_TRANSACTIONS
            return EndTxnResponse(ErrorCode.NONE, *asker)
        if not self._shard.can_append:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        after = replace(
            value, state=_DECIDED[request.committed], previous=NOBODY, updated_ms=now.wall_ms, client_version=0
        )
        cause = Cause.COMMITTED if request.committed else Cause.ABORTED
        self._write_decision(entry, after, cause, (Asker(waiter, _tell_ended(asker)),), now)
        return None

    def abort(self, entry: Entry, cause: Cause, askers: Sequence[Asker], now: Moment) -> None:
        """Abort the open or prepared transaction, and fence its producer."""
        self._decide(entry, committed=False, cause=cause, asker=lambda after: askers, unanswered=askers, now=now)

    def _decide(
        self,
        entry: Entry,
        *,
        committed: bool,
        cause: Cause,
        asker: Callable[[Transaction], Sequence[Asker]],
        unanswered: Sequence[Asker],
        now: Moment,
    ) -> None:
        """Decide under the next epoch; if that is the last one, a new producer id follows."""
        value = entry.value
        assert value is not None

        def write(following: Identity, then: Moment) -> None:
            assert value is not None
            after = decided(value, committed=committed, following=following, wall_ms=then.wall_ms)
            self._write_decision(entry, after, cause, asker(after), then)

        if value.state is TransactionState.PREPARED and value.following != NOBODY:
            write(value.following, now)
        elif value.identity.is_last:

            def got(producer_id: ProducerId, then: Moment) -> None:
                self._shard.counters.rotated_ids += 1
                write(Identity(producer_id, ProducerEpoch(0)), then)

            self._shard.allocate(entry, unanswered, got)
        else:
            write(NOBODY, now)

    def carry_out(self, entry: Entry, cause: Cause, now: Moment) -> None:
        """Carry out a decision that is committed in the log."""
        counters = self._shard.counters
        assert entry.value is not None
        if entry.value.state is TransactionState.PREPARE_COMMIT:
            counters.committed += 1
            name = entry.transactional_id if entry.attempt is None else sink_key(entry.attempt.sink)
            self._shard.lineage.wrote(name, (at.topic for at in entry.value.partitions), now.wall_ms)
        else:
            counters.aborted += 1
            counters.timed_out += cause in (Cause.TIMED_OUT, Cause.SINK_TIMED_OUT)
            counters.fenced += cause is Cause.FENCED
        self.send_markers(entry, now)

    def discard(self, entry: Entry, cause: Cause, now: Moment) -> None:
        """Abort a transaction that has no waiting client; an empty one of a sink is just forgotten."""
        if entry.attempt is not None and entry.value is not None and entry.value.state is TransactionState.EMPTY:
            self._shard.move(entry, None, cause, (), now)
        else:
            self.abort(entry, cause, (), now)

    def _write_decision(
        self, entry: Entry, after: Transaction, cause: Cause, askers: Sequence[Asker], now: Moment
    ) -> None:
        def moved(then: Moment) -> None:
            self.carry_out(entry, cause, then)

        self._shard.move(entry, after, cause, askers, now, moved=moved)

    # --- Timeouts -----------------------------------------------------------------------------------

    def schedule(self, now: Moment) -> None:
        interval = self._shard.settings.abort_timed_out_transaction_cleanup_interval_ms
        self._shard.timers.set(TIMEOUTS_KEY, now.monotonic_ms + interval)

    def abort_timed_out(self, now: Moment) -> None:
        """Abort transactions that were open for too long, or prepared for too long if a sink owns them. Those that
        cannot be aborted now are aborted later."""
        for entry in list(self._shard.ongoing.values()):
            if not self._shard.can_append:
                break
            if entry.busy is None and entry.value is not None and entry.has_timed_out(now.wall_ms):
                ongoing = entry.value.state is TransactionState.ONGOING
                self.discard(entry, Cause.TIMED_OUT if ongoing else Cause.SINK_TIMED_OUT, now)
        self.schedule(now)

    # --- Markers ------------------------------------------------------------------------------------

    def send_markers(self, entry: Entry, now: Moment) -> None:
        """Send the markers, as the decision is committed in the log."""
        value = entry.value
        assert value is not None
        assert value.state.is_decided
        entry.unmarked = dict.fromkeys(value.partitions)
        if not entry.unmarked:
            self._complete(entry, now)
            return
        entry.sending = self._shard.number()
        self._shard.sendings[entry.sending] = entry
        marker = TransactionMarker(
            *value.identity,
            value.state is TransactionState.PREPARE_COMMIT,
            self._shard.leader_epoch,
            tuple(GroupPartition(*partition) for partition in entry.unmarked),
            _SECOND_PROTOCOL if value.client_version >= _SECOND_PROTOCOL else _FIRST_PROTOCOL,
        )
        self._shard.effects.append(SendMarkers(self._shard.token(entry.sending), marker))

    def marked(self, number: int, partitions: Sequence[GroupPartition], error: ErrorCode, now: Moment) -> None:
        """Note that these partitions have their marker, or no longer exist. With an error they refuse it, because they
        know a newer coordinator, or a newer epoch of the producer; then nothing more is needed (as in Kafka)."""
        entry = self._shard.sendings.get(number)
        if entry is None:
            return
        if error is not ErrorCode.NONE:
            self._shard.counters.refused_markers += len(partitions)
            del self._shard.sendings[number]
            entry.sending = -1
            self._shard.effects.append(StopMarkers(self._shard.token(number)))
            return
        for item in partitions:
            entry.unmarked.pop(TopicPartition(item.topic, item.partition), None)
        if not entry.unmarked:
            del self._shard.sendings[number]
            entry.sending = -1
            self._shard.effects.append(StopMarkers(self._shard.token(number)))
            self._complete(entry, now)

    # --- Completion ---------------------------------------------------------------------------------

    def complete_again(self, transactional_id: str, now: Moment) -> None:
        entry = self._shard.entries.get(transactional_id)
        if entry is not None and entry.busy is Busy.COMPLETING:
            self._complete(entry, now)

    def _complete(self, entry: Entry, now: Moment) -> None:
        """Record that all markers are written, and retry until that succeeds. A sink's transaction has no successor;
        this record forgets it."""
        value = entry.value
        assert value is not None
        completed = replace(
            value,
            state=_COMPLETED[value.state],
            identity=value.after,
            following=NOBODY,
            partitions=NO_PARTITIONS,
            updated_ms=now.wall_ms,
        )
        after, cause = (completed, Cause.MARKED) if entry.attempt is None else (None, Cause.SINK_MARKED)

        def moved(then: Moment) -> None:
            self._shard.counters.completed += 1

        def refused(error: ErrorCode, then: Moment) -> None:
            key = TimerKey(TimerKind.COMPLETE, transactional_id=entry.transactional_id)
            self._shard.timers.set(key, then.monotonic_ms + _COMPLETE_AGAIN_MS)

        self._shard.move(entry, after, cause, (), now, moved=moved, busy=Busy.COMPLETING, refused=refused)


def decided(value: Transaction, *, committed: bool, following: Identity = NOBODY, wall_ms: int) -> Transaction:
    """Return the transaction after its decision: the markers carry its next epoch."""
    idle = value.state.is_idle
    return replace(
        value,
        state=_DECIDED[committed],
        identity=value.identity.next,
        previous=value.identity,
        following=following,
        partitions=NO_PARTITIONS if idle else value.partitions,
        started_ms=wall_ms if idle or value.started_ms == NO_START else value.started_ms,
        updated_ms=wall_ms,
        kept=value.kept and value.state is TransactionState.PREPARED,
        client_version=_SECOND_PROTOCOL,
    )


def _stranger(value: Transaction, asker: Identity) -> ErrorCode:
    """Return why this producer does not own the id."""
    if asker == value.following:
        return ErrorCode.INVALID_TXN_STATE  # the prepared transaction ends first, under its own identity
    if asker.producer_id == value.identity.producer_id:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.INVALID_PRODUCER_ID_MAPPING


def _tell_ended(after: Identity) -> Callable[[ErrorCode], EndTxnResponse]:
    return lambda error: EndTxnResponse(error, *after) if error is ErrorCode.NONE else EndTxnResponse(error)
