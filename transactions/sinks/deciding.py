"""CommitBatch, AbortJob, DeleteSink, and aborting the transactions that the ledger has abandoned.

A batch's decision is one record batch: the ledger's record, PrepareCommit for each winner, PrepareAbort for the sink's
other transactions. Losers with another pending record, or without room next to the winners, are aborted right
afterwards: the ledger says that they lost. Markers follow from the transactions' own records, so that the next
coordinator sends them, whatever happens to the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from tidelog.model.errors import ErrorCode
from tidelog.model.moment import Moment
from tidelog.model.sinks import SinkAttempt
from tidelog.proto.calls.sink_api import (
    AbortJobRequest,
    AbortJobResponse,
    CommitBatchRequest,
    CommitBatchResponse,
    DeleteSinkRequest,
    DeleteSinkResponse,
)
from tidelog.proto.logs.coordinator_records import CoordinatorRecord
from tidelog.replication.coordinators.coordinator_core import append_error
from tidelog.transactions.ending import Ending, decided
from tidelog.transactions.ledger import NEW, JobStanding, Ledger, Sink
from tidelog.transactions.shard_state import Asker, PendingAppend, ShardState, TimerKey, TimerKind
from tidelog.transactions.transaction import Busy, Entry, Identity, Transaction
from tidelog.transactions.transitions import ALLOWED, Cause, TransactionState, Transition

SWEEP_AGAIN_MS: Final = 100
"""Pause before retrying to abort a transaction that had an operation in progress."""

_BATCH_HEADER_BYTES: Final = 61
_RECORD_OVERHEAD_BYTES: Final = 32


class _Move(NamedTuple):
    """A decision's effect on one transaction; ``after`` None: it is forgotten."""

    entry: Entry
    after: Transaction | None
    cause: Cause
    record: CoordinatorRecord


class LedgerDeciding:
    """Decides batches."""

    __slots__ = ("_ending", "_shard")

    def __init__(self, shard: ShardState, ending: Ending) -> None:
        self._shard = shard
        self._ending = ending
        shard.watch_idle(self._idle)

    # --- CommitBatch --------------------------------------------------------------------------------

    def commit(self, request: CommitBatchRequest, waiter: int, now: Moment) -> None:
        """Commit a batch. Checks whether the batch is decided before it checks whether the job is fenced."""
        answer = self._commit(request, waiter, now)
        if answer is not None:
            self._shard.answer(waiter, answer)

    def _commit(self, request: CommitBatchRequest, waiter: int, now: Moment) -> CommitBatchResponse | None:
        shard = self._shard
        sink = shard.sinks.get(request.sink)
        ledger = NEW if sink is None else sink.ledger
        standing = ledger.standing(request.batch, request.job)
        if standing is JobStanding.DECIDED:
            return CommitBatchResponse(ErrorCode.NONE, True, ledger.last_batch, ledger.last_job)
        if sink is not None and sink.busy:
            return _commit_error(ErrorCode.CONCURRENT_TRANSACTIONS, "")
        if sink is not None and (refused := refusal(sink, standing, request.job)) is not None:
            return _commit_error(*refused)
        winners: dict[str, Entry] = {}
        for winner in request.winners:
            name = SinkAttempt(request.sink, request.batch, request.job, winner.attempt).transactional_id
            entry = shard.entries.get(name)
            fault = _winner_fault(name, entry, Identity(winner.producer_id, winner.producer_epoch))
            if fault is not None:
                return _commit_error(*fault)
            assert entry is not None
            winners[name] = entry
        if winners and standing is JobStanding.UNKNOWN:
            return _commit_error(
                ErrorCode.INVALID_TXN_STATE, f"job {request.job} of sink {request.sink!r} is not known"
            )
        if len(winners) != len(request.winners):
            return _commit_error(ErrorCode.INVALID_REQUEST, "expected each winner once, found one twice")
        if not shard.can_append:
            return _commit_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
        if sink is None and (sink := shard.new_sink(request.sink)) is None:
            return _commit_error(ErrorCode.POLICY_VIOLATION, shard.sinks_fault())
        return self._decide(sink, winners, request, waiter, now)

    def _decide(
        self, sink: Sink, winners: Mapping[str, Entry], request: CommitBatchRequest, waiter: int, now: Moment
    ) -> CommitBatchResponse | None:
        shard = self._shard
        after = sink.ledger.decided(request.batch, request.job, now.wall_ms)
        ledger_record = shard.ledger_record(sink, after)
        moves = [self._move(entry, committed=True, now=now) for entry in winners.values()]
        room = shard.batch_bytes_max - _BATCH_HEADER_BYTES - _size(ledger_record)
        room -= sum(_size(move.record) for move in moves)
        if room < 0:
            shard.drop_unused(sink)
            return _commit_error(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"the decision about {len(moves)} transactions needs {-room} bytes more than {shard.batch_bytes_max},"
                " which is what a batch of __transaction_state may have (max.message.bytes): use fewer transactions, or"
                " fewer partitions in each",
            )
        for name, entry in sink.transactions.items():
            if name not in winners and entry.busy is None and entry.value and not entry.value.state.is_decided:
                move = self._move(entry, committed=False, now=now)
                room -= _size(move.record)
                if room < 0:
                    break
                moves.append(move)
        for move in moves:
            move.entry.busy = Busy.MOVING

        def ended(error: ErrorCode, then: Moment) -> None:
            for move in moves:
                move.entry.busy = None
            if error is ErrorCode.NONE:
                shard.counters.sink_batches += 1
                for move in moves:
                    self._carry_out(move, then)

        def tell(error: ErrorCode) -> CommitBatchResponse:
            if error is not ErrorCode.NONE:
                return CommitBatchResponse(error)
            return CommitBatchResponse(error, False, request.batch, request.job)

        records = [ledger_record, *(move.record for move in moves)]
        self._write(sink, after, records, Asker(waiter, tell), now, ended=ended, touched=[move.entry for move in moves])
        return None

    def _move(self, entry: Entry, *, committed: bool, now: Moment) -> _Move:
        value = entry.value
        assert value is not None
        cause = Cause.BATCH_COMMITTED if committed else Cause.ABANDONED
        forgotten = value.state is TransactionState.EMPTY and not committed
        after = None if forgotten else decided(value, committed=committed, wall_ms=now.wall_ms)
        state = TransactionState.DEAD if after is None else after.state
        assert Transition(value.state, state, cause) in ALLOWED, f"{value.state} to {state}: {cause}"
        record = CoordinatorRecord(entry.key, None) if after is None else self._shard.record(entry, after)
        return _Move(entry, after, cause, record)

    def _carry_out(self, move: _Move, now: Moment) -> None:
        if move.after is None:
            self._shard.forget(move.entry)
        else:
            self._shard.put(move.entry, move.after)
            self._ending.carry_out(move.entry, move.cause, now)

    # --- AbortJob, DeleteSink -----------------------------------------------------------------------

    def abort(self, request: AbortJobRequest, waiter: int, now: Moment) -> None:
        """Fence the job, even an unknown one. Does nothing once its batch is decided."""
        answer = self._abort(request, waiter, now)
        if answer is not None:
            self._shard.answer(waiter, answer)

    def _abort(self, request: AbortJobRequest, waiter: int, now: Moment) -> AbortJobResponse | None:
        shard = self._shard
        sink = shard.sinks.get(request.sink)
        ledger = NEW if sink is None else sink.ledger
        standing = ledger.standing(request.batch, request.job)
        if standing is JobStanding.DECIDED:
            return AbortJobResponse(ErrorCode.NONE, True, ledger.last_batch, ledger.last_job)
        if sink is not None and sink.busy:
            return _abort_error(ErrorCode.CONCURRENT_TRANSACTIONS, "")
        if standing is JobStanding.FENCED:
            return AbortJobResponse(ErrorCode.NONE, False, ledger.last_batch, ledger.last_job)
        if sink is not None and (refused := refusal(sink, standing, request.job)) is not None:
            return _abort_error(*refused)
        if not shard.can_append:
            return _abort_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
        if sink is None and (sink := shard.new_sink(request.sink)) is None:
            return _abort_error(ErrorCode.POLICY_VIOLATION, shard.sinks_fault())
        after = ledger.aborted(request.batch, request.job, shard.settings.sink_fenced_jobs_max, now.wall_ms)

        def tell(error: ErrorCode) -> AbortJobResponse:
            if error is not ErrorCode.NONE:
                return AbortJobResponse(error)
            return AbortJobResponse(error, False, after.last_batch, after.last_job)

        self._write(sink, after, [shard.ledger_record(sink, after)], Asker(waiter, tell), now)
        return None

    def delete(self, request: DeleteSinkRequest, waiter: int, now: Moment) -> None:
        """Forget a sink without transactions."""
        answer = self._delete(request, waiter, now)
        if answer is not None:
            self._shard.answer(waiter, answer)

    def _delete(self, request: DeleteSinkRequest, waiter: int, now: Moment) -> DeleteSinkResponse | None:
        shard = self._shard
        sink = shard.sinks.get(request.sink)
        if sink is None:
            return DeleteSinkResponse(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, no_such_sink(request.sink))
        if sink.busy:
            return DeleteSinkResponse(ErrorCode.CONCURRENT_TRANSACTIONS)
        if sink.transactions:
            count = len(sink.transactions)
            what = f"expected a sink without transactions, found {count}: abort its job, or wait until they have ended"
            return DeleteSinkResponse(ErrorCode.INVALID_TXN_STATE, what)
        if not shard.can_append:
            return DeleteSinkResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._write(sink, NEW, [CoordinatorRecord(sink.key, None)], Asker(waiter, DeleteSinkResponse), now)
        return None

    def _write(
        self,
        sink: Sink,
        after: Ledger,
        records: Sequence[CoordinatorRecord],
        asker: Asker,
        now: Moment,
        *,
        ended: Callable[[ErrorCode, Moment], None] = lambda error, now: None,
        touched: Sequence[Entry] = (),
    ) -> None:
        """Write these records, including the ledger's; once they are committed, the ledger becomes ``after``. Then
        ``ended`` is called, before the asker is answered."""
        shard = self._shard
        sink.busy = True

        def written(error: ErrorCode, then: Moment) -> None:
            sink.busy = False
            if error is ErrorCode.NONE:
                sink.ledger = after
            ended(error, then)
            for who in pending.askers:
                shard.answer(who.waiter, who.tell(append_error(error)))
            for entry in touched:
                if entry.busy is None:
                    shard.idle(entry, then)
            if error is ErrorCode.NONE:
                self.sweep(sink, then)
            shard.drop_unused(sink)

        pending = PendingAppend((asker,), written)
        shard.append(records, pending, now)

    # --- What the ledger has abandoned --------------------------------------------------------------

    def sweep(self, sink: Sink, now: Moment) -> None:
        """Abort the sink's transactions that can no longer be committed; retry later those with operations in
        progress."""
        for entry in list(sink.transactions.values()):
            if entry.busy is not None or not sink.abandons(entry):
                continue
            if not self._shard.can_append:
                self._sweep_again(sink, now)
                return
            self._ending.discard(entry, Cause.ABANDONED, now)

    def sweep_again(self, name: str, now: Moment) -> None:
        sink = self._shard.sinks.get(name)
        if sink is not None:
            self.sweep(sink, now)

    def _sweep_again(self, sink: Sink, now: Moment) -> None:
        key = TimerKey(TimerKind.SWEEP, transactional_id=sink.name)
        if key not in self._shard.timers:
            self._shard.timers.set(key, now.monotonic_ms + SWEEP_AGAIN_MS)

    def _idle(self, entry: Entry, now: Moment) -> None:
        """Sweep later, not immediately: if a record cannot be written now, this would retry without a pause."""
        sink = self._shard.sink_of(entry)
        if sink is not None and sink.abandons(entry):
            self._sweep_again(sink, now)


def refusal(sink: Sink, standing: JobStanding, job: str) -> tuple[ErrorCode, str] | None:
    """Return why a job with this standing cannot continue with an undecided batch; None if it can."""
    match standing:
        case JobStanding.FENCED:
            return ErrorCode.PRODUCER_FENCED, f"job {job} of sink {sink.name!r} was aborted, or another has taken over"
        case JobStanding.ANOTHER_BATCH:
            return (
                ErrorCode.INVALID_REQUEST,
                f"job {job} of sink {sink.name!r} writes batch {sink.ledger.batch}: a job is one run of one batch",
            )
        case _:
            return None


def no_such_sink(name: str) -> str:
    return f"expected a sink that has written, found none called {name!r}"


def _winner_fault(name: str, entry: Entry | None, identity: Identity) -> tuple[ErrorCode, str] | None:
    """Return why this transaction cannot be committed; None if it can."""
    if entry is not None and entry.busy is not None:
        return ErrorCode.CONCURRENT_TRANSACTIONS, ""
    found = "none: it has timed out, or was aborted"
    if entry is not None and entry.value is not None:
        value = entry.value
        if value.state is TransactionState.PREPARED and value.identity == identity:
            return None
        found = f"one that is {value.state.value}, of producer {value.identity.producer_id}"
    return (
        ErrorCode.INVALID_TXN_STATE,
        f"{name}: expected a prepared transaction of {identity.producer_id}, found {found}",
    )


def _size(record: CoordinatorRecord) -> int:
    return len(record.key) + len(record.value or b"") + _RECORD_OVERHEAD_BYTES


def _commit_error(error: ErrorCode, message: str) -> CommitBatchResponse:
    return CommitBatchResponse(error, error_message=message)


def _abort_error(error: ErrorCode, message: str) -> AbortJobResponse:
    return AbortJobResponse(error, error_message=message)
