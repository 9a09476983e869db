"""The partitions of a transaction: each is added before anything is written to it, or verified to be in it.

Source: ``TransactionCoordinator.handleAddPartitionsToTransaction`` and ``handleVerifyPartitionsInTransaction``,
KIP-890. One difference: if another operation on the id is in progress, or the previous transaction is being completed,
a request waits for that (``add_wait_max_ms`` at most) instead of immediately getting CONCURRENT_TRANSACTIONS; all
waiting requests are then written as one record. In the second protocol the leaders of all partitions of a transaction
ask at about the same time, and the next transaction begins while markers are still being sent: a retry after a pause
would cost more than the wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition
from tidelog.model.moment import Moment
from tidelog.proto.calls.transaction_api import AddedPartition, AddedTransaction, AddPartitionsTransaction
from tidelog.transactions.shard_state import Answered, Asker, ShardState, TimerKey, TimerKind
from tidelog.transactions.transaction import NOBODY, Entry, Identity, Transaction, WaitingAdd
from tidelog.transactions.transitions import Cause, TransactionState

Tell = Callable[[ErrorCode], Answered]


class Adding:
    """Decides which partitions may take part."""

    __slots__ = ("_shard",)

    def __init__(self, shard: ShardState) -> None:
        self._shard = shard
        shard.watch_idle(self.serve)

    def add_partitions(self, request: AddPartitionsTransaction, waiter: int, now: Moment, connection: int = 0) -> None:
        """Add all the partitions or none, or only check them (``verify_only``)."""
        if request.verify_only:
            self._shard.answer(waiter, self._verify(request))
            return
        partitions = tuple(TopicPartition(item.topic, item.partition) for item in request.partitions)
        asker = Identity(request.producer_id, request.producer_epoch)
        self.add(
            request.transactional_id, asker, partitions, waiter, lambda error: added(request, error), now, connection
        )

    def add(
        self,
        transactional_id: str,
        asker: Identity,
        partitions: tuple[TopicPartition, ...],
        waiter: int,
        tell: Tell,
        now: Moment,
        connection: int = 0,
    ) -> None:
        entry = self._shard.entries.get(transactional_id)
        if entry is None:
            self._shard.answer(waiter, tell(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
            return
        if not entry.heard(asker, connection):
            self._shard.counters.late_connections += 1
            self._shard.answer(waiter, tell(ErrorCode.NETWORK_EXCEPTION))
            return
        deadline = now.monotonic_ms + self._shard.settings.add_wait_max_ms
        add = WaitingAdd(deadline, waiter, asker, partitions, tell)
        if not self._must_wait(entry, asker):
            self._add_all(entry, (add,), now)
        elif self._shard.waiting_adds >= self._shard.settings.waiting_adds_max:
            self._shard.answer(waiter, tell(ErrorCode.CONCURRENT_TRANSACTIONS))
        else:
            if not entry.adds:
                self._set_timer(entry, deadline)
            entry.adds.append(add)
            self._shard.waiting_adds += 1

    def serve(self, entry: Entry, now: Moment) -> None:
        """Serve the waiting requests, as the id is free again."""
        if not entry.adds:
            return
        waiting, entry.adds = entry.adds, []
        ready = [add for add in waiting if not self._must_wait(entry, add.asker)]
        entry.adds = [add for add in waiting if self._must_wait(entry, add.asker)]
        self._shard.waiting_adds -= len(ready)
        self._add_all(entry, ready, now)
        if not entry.adds:
            self._shard.timers.cancel(_key(entry))

    def give_up(self, transactional_id: str, now: Moment) -> None:
        """Tell requests that have waited too long to retry."""
        entry = self._shard.entries.get(transactional_id)
        if entry is None:
            return
        while entry.adds and entry.adds[0].deadline <= now.monotonic_ms:
            add = entry.adds.pop(0)
            self._shard.waiting_adds -= 1
            self._shard.answer(add.waiter, add.tell(ErrorCode.CONCURRENT_TRANSACTIONS))
        if entry.adds:
            self._set_timer(entry, entry.adds[0].deadline)

    def _set_timer(self, entry: Entry, deadline: int) -> None:
        self._shard.timers.set(_key(entry), deadline)

    def _must_wait(self, entry: Entry, asker: Identity) -> bool:
        value = entry.value
        if entry.busy is not None:
            return True
        return value is not None and value.state.is_decided and asker in (value.identity, value.following)

    def _add_all(self, entry: Entry, adds: Iterable[WaitingAdd], now: Moment) -> None:
        """Add all suitable partitions, in order, in one record."""
        value = entry.value
        union: dict[TopicPartition, None] = {}
        askers: list[Asker] = []
        for add in adds:
            error = self._fault(value, add.asker)
            missing: tuple[TopicPartition, ...] = ()
            if error is None and value is not None:
                known = value.partitions if value.state is TransactionState.ONGOING else {}
                missing = tuple(item for item in add.partitions if item not in known)
                if not missing and value.state is TransactionState.ONGOING:
                    error = ErrorCode.NONE
                elif len(known) + len(union) + len(missing) > self._shard.settings.partitions_max:
                    error = ErrorCode.TRANSACTION_ABORTABLE
                elif not self._shard.can_append:
                    error = ErrorCode.COORDINATOR_NOT_AVAILABLE
                elif not self._fits(entry, value, {**union, **dict.fromkeys(missing)}, now):
                    error = ErrorCode.TRANSACTION_ABORTABLE
            if error is not None:
                self._shard.answer(add.waiter, add.tell(error))
                continue
            union.update(dict.fromkeys(missing))
            askers.append(Asker(add.waiter, add.tell))
        if askers:
            assert value is not None
            begins = value.state is not TransactionState.ONGOING

            def moved(then: Moment) -> None:
                self._shard.counters.begun += begins

            self._shard.move(entry, self._with(value, union, now), Cause.ADDED, askers, now, moved=moved)

    def _with(self, value: Transaction, partitions: dict[TopicPartition, None], now: Moment) -> Transaction:
        if value.state is TransactionState.ONGOING:
            return replace(value, partitions={**value.partitions, **partitions}, updated_ms=now.wall_ms)
        return replace(
            value,
            state=TransactionState.ONGOING,
            previous=NOBODY,
            partitions=partitions,
            started_ms=now.wall_ms,
            updated_ms=now.wall_ms,
            kept=False,
        )

    def _fits(self, entry: Entry, value: Transaction, partitions: dict[TopicPartition, None], now: Moment) -> bool:
        """Return whether a transaction's record can be written; if not, its end could not be written either."""
        count = len(value.partitions) + len(partitions)
        if self._shard.fits_surely(entry, count):
            return True
        return self._shard.fits(self._shard.record(entry, self._with(value, partitions, now)))

    def _fault(self, value: Transaction | None, asker: Identity) -> ErrorCode | None:
        if value is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if value.state is TransactionState.PREPARED and asker in (value.identity, value.following):
            return ErrorCode.INVALID_TXN_STATE
        if asker.producer_id != value.identity.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return None if asker == value.identity else ErrorCode.PRODUCER_FENCED

    def _verify(self, request: AddPartitionsTransaction) -> AddedTransaction:
        """Check partitions, ignoring operations in progress: the partition's leader checks again when it appends (as in
        Kafka)."""
        found = self._shard.known(request.transactional_id)
        value = None if found is None else found[1]
        error = self._fault(value, Identity(request.producer_id, request.producer_epoch))
        if error is None and value is not None and value.state.is_decided:
            error = ErrorCode.CONCURRENT_TRANSACTIONS
        if error is not None:
            return added(request, error)
        inside = {} if value is None or value.state is not TransactionState.ONGOING else value.partitions
        results = (
            AddedPartition(
                item.topic,
                item.partition,
                ErrorCode.NONE
                if TopicPartition(item.topic, item.partition) in inside
                else ErrorCode.TRANSACTION_ABORTABLE,
            )
            for item in request.partitions
        )
        return AddedTransaction(request.transactional_id, tuple(results))


def added(request: AddPartitionsTransaction, error: ErrorCode) -> AddedTransaction:
    """Return the same answer for each partition."""
    results = (AddedPartition(item.topic, item.partition, error) for item in request.partitions)
    return AddedTransaction(request.transactional_id, tuple(results))


def _key(entry: Entry) -> TimerKey:
    return TimerKey(TimerKind.ADDS, transactional_id=entry.transactional_id)
