"""BeginSinkTransaction: a separate transaction for one attempt of a sink's job.

A job unknown to the ledger takes the sink over with one record batch: the ledger's record and the new transaction's.
Undecided transactions of the previous job are aborted afterwards (see :mod:`tidelog.transactions.ledger`).
"""

from __future__ import annotations

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ProducerEpoch, ProducerId
from tidelog.model.moment import Moment
from tidelog.model.sinks import SinkAttempt
from tidelog.proto.calls.sink_api import BeginSinkTransactionRequest, BeginSinkTransactionResponse
from tidelog.replication.coordinators.coordinator_core import append_error
from tidelog.transactions.ledger import JobStanding, Ledger, Sink
from tidelog.transactions.shard_state import Asker, PendingAppend, ShardState
from tidelog.transactions.sinks.deciding import LedgerDeciding, refusal
from tidelog.transactions.transaction import Busy, Entry, Identity, Transaction
from tidelog.transactions.transitions import TransactionState


class LedgerBeginning:
    """Decides which job may write a batch."""

    __slots__ = ("_deciding", "_shard")

    def __init__(self, shard: ShardState, deciding: LedgerDeciding) -> None:
        self._shard = shard
        self._deciding = deciding

    def begin(self, request: BeginSinkTransactionRequest, waiter: int, now: Moment) -> None:
        """Begin an attempt. The request's names are valid."""
        attempt = SinkAttempt(request.sink, request.batch, request.job, request.attempt)
        answer = self._judge(attempt)
        if answer is not None:
            self._shard.answer(waiter, answer)
            return

        def got(producer_id: ProducerId, then: Moment) -> None:
            changed = self._judge(attempt)
            if changed is not None:
                self._shard.answer(waiter, changed)
            else:
                self._write(attempt, Identity(producer_id, ProducerEpoch(0)), waiter, then)

        self._shard.allocate(None, (Asker(waiter, BeginSinkTransactionResponse),), got)

    def _judge(self, attempt: SinkAttempt) -> BeginSinkTransactionResponse | None:
        """Return the answer if no record is needed; None if one must be written."""
        shard = self._shard
        settings = shard.settings
        sink = shard.sinks.get(attempt.sink)
        if sink is None:
            if len(shard.sinks) >= settings.sinks_max:
                return _error(ErrorCode.POLICY_VIOLATION, shard.sinks_fault())
        else:
            answer = self._standing(sink, attempt)
            if answer is not None:
                return answer
        entry = shard.entries.get(attempt.transactional_id)
        if entry is not None:
            return _again(entry)
        if sink is not None and len(sink.transactions) >= settings.sink_transactions_max:
            return _error(
                ErrorCode.POLICY_VIOLATION,
                f"sink {sink.name!r} has {len(sink.transactions)} transactions already, as many as "
                "transaction.sink.transactions.max allows",
            )
        if len(shard.entries) >= settings.ids_max or not shard.can_append:
            return _error(ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
        return None

    def _standing(self, sink: Sink, attempt: SinkAttempt) -> BeginSinkTransactionResponse | None:
        standing = sink.ledger.standing(attempt.batch, attempt.job)
        if standing is JobStanding.DECIDED:
            return _decided(sink.ledger)
        if sink.busy:
            return _error(ErrorCode.CONCURRENT_TRANSACTIONS, "")
        refused = refusal(sink, standing, attempt.job)
        return None if refused is None else _error(*refused)

    def _write(self, attempt: SinkAttempt, identity: Identity, waiter: int, now: Moment) -> None:
        shard = self._shard
        entry = shard.new_entry(attempt.transactional_id)
        assert entry is not None, "there was room just now"
        sink = shard.sink_of(entry)
        assert sink is not None
        created, owner = entry, sink
        value = Transaction(
            TransactionState.EMPTY,
            identity,
            shard.settings.sink_timeout_ms,
            now.wall_ms,
            started_ms=now.wall_ms,
            two_phase=True,
        )
        records = [shard.record(created, value)]
        after: Ledger | None = None
        if owner.ledger.standing(attempt.batch, attempt.job) is JobStanding.UNKNOWN:
            fenced_max = shard.settings.sink_fenced_jobs_max
            after = owner.ledger.taken_over(attempt.batch, attempt.job, fenced_max, now.wall_ms)
            records.insert(0, shard.ledger_record(owner, after))
            owner.busy = True
        created.busy = Busy.MOVING

        def ended(error: ErrorCode, then: Moment) -> None:
            created.busy = None
            if after is not None:
                owner.busy = False
            if error is ErrorCode.NONE:
                if after is not None:
                    owner.ledger = after
                    shard.counters.sink_takeovers += 1
                shard.put(created, value)
            else:
                shard.forget(created)
            for asker in pending.askers:
                shard.answer(asker.waiter, asker.tell(append_error(error)))
            shard.idle(created, then)
            if after is not None and error is ErrorCode.NONE:
                self._deciding.sweep(owner, then)

        def tell(error: ErrorCode) -> BeginSinkTransactionResponse:
            if error is not ErrorCode.NONE:
                return BeginSinkTransactionResponse(error)
            return self._standing(owner, attempt) or _begun(attempt.transactional_id, identity)

        pending = PendingAppend((Asker(waiter, tell),), ended)
        shard.append(records, pending, now)


def _again(entry: Entry) -> BeginSinkTransactionResponse:
    """Return the answer for an attempt that has begun, or is beginning."""
    value = entry.value
    if entry.busy is not None or value is None:
        return _error(ErrorCode.CONCURRENT_TRANSACTIONS, "")
    if value.state in (TransactionState.EMPTY, TransactionState.ONGOING):
        return _begun(entry.transactional_id, value.identity)
    return _error(
        ErrorCode.INVALID_TXN_STATE,
        f"{entry.transactional_id}: expected an attempt that is still writing, found one that is {value.state.value}",
    )


def _begun(transactional_id: str, identity: Identity) -> BeginSinkTransactionResponse:
    return BeginSinkTransactionResponse(ErrorCode.NONE, transactional_id, *identity)


def _decided(ledger: Ledger) -> BeginSinkTransactionResponse:
    return BeginSinkTransactionResponse(
        ErrorCode.NONE, already_committed=True, last_batch=ledger.last_batch, last_job=ledger.last_job
    )


def _error(error: ErrorCode, message: str) -> BeginSinkTransactionResponse:
    return BeginSinkTransactionResponse(error, error_message=message)
