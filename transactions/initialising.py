"""InitProducerId: gives a transactional id a new identity, which fences the previous producer.

Source: ``TransactionCoordinator.handleInitProducerId`` and ``prepareInitProducerIdTransit``, KIP-360, KIP-939. One
difference: in Kafka, a fenced producer that names its epoch can abort the open transaction of the one that fenced it
(Kafka checks the epoch only if nothing is open); here it immediately gets PRODUCER_FENCED.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ProducerEpoch, ProducerId
from tidelog.model.moment import Moment
from tidelog.model.sinks import is_sinks
from tidelog.proto.calls.transaction_api import InitProducerIdRequest, InitProducerIdResponse
from tidelog.transactions.ending import Ending
from tidelog.transactions.shard_state import Asker, ShardState
from tidelog.transactions.transaction import NO_PARTITIONS, NO_START, NOBODY, Entry, Identity, Transaction
from tidelog.transactions.transitions import Cause, TransactionState


class Initialising:
    """Assigns producer identities."""

    __slots__ = ("_ending", "_shard")

    def __init__(self, shard: ShardState, ending: Ending) -> None:
        self._shard = shard
        self._ending = ending

    def init(
        self,
        transactional_id: str,
        request: InitProducerIdRequest,
        waiter: int,
        now: Moment,
        connection: int = 0,
    ) -> None:
        """Start to answer ``waiter`` for the request's valid ``transactional_id``. From now on, the admitted producer
        uses ``connection`` or a newer one."""
        if is_sinks(transactional_id):
            what = f"{transactional_id[:100]!r}: only the ledgers of sinks give out and end such ids (AbortJob)"
            self._shard.answer(waiter, InitProducerIdResponse(ErrorCode.INVALID_REQUEST, error_message=what))
            return
        error = self._fault(request)
        if error is None:
            error = self._init(transactional_id, request, waiter, now)
        if error is not None:
            self._shard.answer(waiter, InitProducerIdResponse(error))
        elif connection != 0:
            self._shard.entries[transactional_id].connection = connection

    def _fault(self, request: InitProducerIdRequest) -> ErrorCode | None:
        settings = self._shard.settings
        two_phase = request.enable_two_phase_commit or request.keep_prepared_transaction
        if two_phase and not settings.two_phase_commit_enable:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if not 0 < request.transaction_timeout_ms <= settings.max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        if (request.producer_id < 0) != (request.producer_epoch < 0):
            return ErrorCode.INVALID_REQUEST
        return None if self._shard.can_append else ErrorCode.COORDINATOR_NOT_AVAILABLE

    def _init(
        self, transactional_id: str, request: InitProducerIdRequest, waiter: int, now: Moment
    ) -> ErrorCode | None:
        """Start the steps that answer ``waiter``, or return the error that answers it."""
        entry = self._shard.entries.get(transactional_id)
        if entry is None:
            return self._create(transactional_id, request, waiter)
        if entry.busy is not None:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        value = entry.value
        assert value is not None, "an id without a record is busy with it"
        expected = None if request.producer_id < 0 else Identity(request.producer_id, request.producer_epoch)
        repeated = expected is not None and expected == value.previous and not value.kept
        if expected is not None and expected not in (value.identity, value.following) and not repeated:
            return ErrorCode.PRODUCER_FENCED
        match value.state:
            case TransactionState.PREPARE_COMMIT | TransactionState.PREPARE_ABORT:
                return ErrorCode.CONCURRENT_TRANSACTIONS
            case TransactionState.ONGOING:
                self._fence(entry, waiter, now)
            case TransactionState.PREPARED if request.keep_prepared_transaction:
                self._keep(entry, value, request, waiter, now)
            case TransactionState.PREPARED:
                self._fence(entry, waiter, now)
            case _ if repeated:
                self._give(entry, request, value.identity, value.previous, waiter, now)
            case _:
                self._next(entry, value, request, expected, waiter, now)
        return None

    def _create(self, transactional_id: str, request: InitProducerIdRequest, waiter: int) -> ErrorCode | None:
        entry = self._shard.new_entry(transactional_id)
        if entry is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        created = entry

        def got(producer_id: ProducerId, now: Moment) -> None:
            self._give(created, request, Identity(producer_id, ProducerEpoch(0)), NOBODY, waiter, now)

        self._shard.allocate(entry, (_asker(waiter, NOBODY),), got, lambda: self._shard.forget(created))
        return None

    def _next(
        self,
        entry: Entry,
        value: Transaction,
        request: InitProducerIdRequest,
        expected: Identity | None,
        waiter: int,
        now: Moment,
    ) -> None:
        """Assign the next epoch, or a new producer id if there is none. ``previous`` is set only for a producer that
        identifies itself. Otherwise the producer is new, and no request of the previous one may count as a
        repetition."""
        previous = NOBODY if expected is None else value.identity
        if not value.identity.is_last:
            self._give(entry, request, value.identity.next, previous, waiter, now)
            return

        def got(producer_id: ProducerId, then: Moment) -> None:
            self._shard.counters.rotated_ids += 1
            self._give(entry, request, Identity(producer_id, ProducerEpoch(0)), previous, waiter, then)

        self._shard.allocate(entry, (_asker(waiter, NOBODY),), got)

    def _give(
        self,
        entry: Entry,
        request: InitProducerIdRequest,
        identity: Identity,
        previous: Identity,
        waiter: int,
        now: Moment,
    ) -> None:
        version = 0 if entry.value is None else entry.value.client_version
        after = Transaction(
            TransactionState.EMPTY,
            identity,
            request.transaction_timeout_ms,
            now.wall_ms,
            previous,
            two_phase=request.enable_two_phase_commit,
            client_version=version,
            partitions=NO_PARTITIONS,
            started_ms=NO_START,
        )
        self._shard.move(entry, after, Cause.INITIALISED, (_asker(waiter, identity),), now)

    def _fence(self, entry: Entry, waiter: int, now: Moment) -> None:
        """Abort the open transaction; the client must retry after that, for an epoch after the fence."""

        def tell(error: ErrorCode) -> InitProducerIdResponse:
            return InitProducerIdResponse(ErrorCode.CONCURRENT_TRANSACTIONS if error is ErrorCode.NONE else error)

        self._ending.abort(entry, Cause.FENCED, (Asker(waiter, tell),), now)

    def _keep(self, entry: Entry, value: Transaction, request: InitProducerIdRequest, waiter: int, now: Moment) -> None:
        """Keep the transaction prepared; the client gets its own identity for later transactions."""
        if value.following != NOBODY and not value.following.is_last:
            self._kept(entry, value, request, value.following.next, waiter, now)
            return

        def got(producer_id: ProducerId, then: Moment) -> None:
            self._kept(entry, value, request, Identity(producer_id, ProducerEpoch(0)), waiter, then)

        self._shard.allocate(entry, (_asker(waiter, NOBODY),), got)

    def _kept(
        self,
        entry: Entry,
        value: Transaction,
        request: InitProducerIdRequest,
        following: Identity,
        waiter: int,
        now: Moment,
    ) -> None:
        after = replace(
            value,
            following=following,
            kept=True,
            timeout_ms=request.transaction_timeout_ms,
            two_phase=request.enable_two_phase_commit,
            updated_ms=now.wall_ms,
        )
        self._shard.move(entry, after, Cause.KEPT, (_asker(waiter, following, value.identity),), now)


def _asker(waiter: int, identity: Identity, ongoing: Identity = NOBODY) -> Asker:
    def tell(error: ErrorCode) -> InitProducerIdResponse:
        if error is not ErrorCode.NONE:
            return InitProducerIdResponse(error)
        return InitProducerIdResponse(error, *identity, "", *ongoing)

    return Asker(waiter, tell)


def unallocated(askers: Sequence[Asker], shard: ShardState) -> None:
    """Tell the client to retry, because there is no producer id now (Kafka's ``RPCProducerIdManager``)."""
    for asker in askers:
        shard.answer(asker.waiter, asker.tell(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
