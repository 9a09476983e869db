"""Offsets committed within transactions: TxnOffsetCommit, and the markers that end the transactions.

Source: ``OffsetMetadataManager.commitTransactionalOffset``, ``ClassicGroup.validateOffsetCommit``, KIP-447: a request
that names a member and a generation must come from that member in that generation, so that a former owner of the
partitions can never commit its open transaction. The caller makes sure that the transaction includes this partition
(:mod:`tidelog.groups.adding`).
"""

from __future__ import annotations

from tidelog.groups.offsets.committing import Committing, offset_record, unless_failed
from tidelog.groups.state.consumer_claims import commit_fault
from tidelog.groups.state.effects import Writer
from tidelog.groups.state.group import Group
from tidelog.groups.state.open_transactions import OffsetKey, OpenTransaction, WrittenOffset
from tidelog.groups.state.shard_state import ShardState, offset_error
from tidelog.groups.state.transitions import GroupState
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ProducerEpoch, ProducerId
from tidelog.model.moment import Moment
from tidelog.proto.calls.group_api import NO_MEMBER, OffsetCommitResult
from tidelog.proto.calls.transaction_api import TransactionMarker, TxnOffsetCommitRequest, TxnOffsetCommitResponse
from tidelog.proto.logs.coordinator_records import OffsetCommitValue
from tidelog.replication.coordinators.coordinator_core import append_error


class Transactional:
    """Handles the transactions of one partition of ``__consumer_offsets``."""

    __slots__ = ("_committing", "_shard")

    def __init__(self, shard: ShardState, committing: Committing) -> None:
        self._shard = shard
        self._committing = committing

    def has_open(self, producer_id: ProducerId, epoch: ProducerEpoch) -> bool:
        """Return whether this transaction has something here, and no marker is being written."""
        found = self._shard.transactions.get(producer_id)
        return found is not None and found.epoch == epoch and not found.markers

    # --- TxnOffsetCommit ----------------------------------------------------------------------------

    def commit(self, request: TxnOffsetCommitRequest, waiter: int, now: Moment) -> None:
        """Answer now if there is nothing to write, else when it is committed in the log."""
        shard = self._shard
        group = shard.groups.get(request.group_id)
        refusal, text = self._refusal(group, request)
        if refusal is ErrorCode.NONE and group is None:
            group = shard.new_group(request.group_id, now)
            if group is None:
                refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
                text = f"expected fewer than {shard.settings.groups_max} groups here (group.coordinator.groups.max)"
        if refusal is not ErrorCode.NONE:
            shard.answer(waiter, txn_commit_answer(request, refusal, text))
            return
        assert group is not None
        results: list[OffsetCommitResult] = []
        values: dict[OffsetKey, OffsetCommitValue] = {}
        for item in request.partitions:
            result = self._committing.partition_result(group, item)
            results.append(result)
            if result.error is ErrorCode.NONE:
                value = OffsetCommitValue(item.offset, item.leader_epoch, item.metadata, now.wall_ms)
                values[group, item.topic, item.partition] = value
        if not values:
            shard.answer(waiter, TxnOffsetCommitResponse(tuple(results)))
            shard.forget_if_idle(group, now)
            return
        shard.counters.offset_commits += len(values)
        transaction = shard.transactions.began(request.producer_id, request.producer_epoch, values)
        records = [
            offset_record(request.group_id, topic, partition, value) for (_, topic, partition), value in values.items()
        ]
        pending = _TransactionalAppend(shard, group, transaction, values, tuple(results), waiter)
        shard.append(records, pending, now, Writer(request.producer_id, request.producer_epoch))

    def _refusal(self, group: Group | None, request: TxnOffsetCommitRequest) -> tuple[ErrorCode, str]:
        shard = self._shard
        generation, member_id, instance_id = request.generation_id, request.member_id, request.group_instance_id
        if not shard.can_append:
            text = f"expected fewer than {shard.settings.appends_max} appends under way (group.coordinator.appends.max)"
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, text
        known = shard.transactions.get(request.producer_id)
        if known is not None and request.producer_epoch < known.epoch:
            text = f"expected epoch {known.epoch} or later from producer {request.producer_id}"
            return ErrorCode.INVALID_PRODUCER_EPOCH, f"{text}, found {request.producer_epoch}"
        if known is not None and known.markers:
            # Retriable for clients, without a search for another coordinator.
            text = f"expected producer {request.producer_id} to have no transaction that is just ending"
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text
        if group is None:
            return (ErrorCode.NONE, "") if generation < 0 else (ErrorCode.ILLEGAL_GENERATION, "")
        if group.consumer is not None:
            error, text = commit_fault(
                group.consumer,
                shard.topics(),
                member_id,
                instance_id,
                generation,
                request.partitions,
                in_transaction=True,
            )
            # Producers do not know member epochs (``GroupCoordinatorService.commitTransactionalOffsets``).
            return (ErrorCode.ILLEGAL_GENERATION if error is ErrorCode.STALE_MEMBER_EPOCH else error), text
        if generation < 0 and group.state is GroupState.EMPTY:
            return ErrorCode.NONE, ""
        if generation < 0 and member_id == NO_MEMBER and instance_id is None:
            return ErrorCode.NONE, ""  # from a producer that does not know its group, as in the oldest version
        refusal = group.refusal(member_id, instance_id)
        if refusal is not ErrorCode.NONE:
            return refusal, ""
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION, f"expected generation {group.generation}, found {generation}"
        return ErrorCode.NONE, ""

    # --- Markers ------------------------------------------------------------------------------------

    def complete(self, marker: TransactionMarker, waiter: int, now: Moment) -> None:
        """Write the marker, whether or not anything is open here; the answer is an error code.

        A marker of the second protocol carries the epoch after its transaction's. With the open transaction's own epoch
        it is late, and meant for an earlier transaction (KIP-1228).
        """
        shard = self._shard
        transaction = shard.transactions.get(marker.producer_id)
        if not shard.can_append:
            shard.answer(waiter, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif transaction is not None and marker.producer_epoch < transaction.epoch + (marker.transaction_version >= 2):
            shard.answer(waiter, ErrorCode.INVALID_PRODUCER_EPOCH)
        else:
            transaction = shard.transactions.ending(marker.producer_id)
            pending = _MarkerAppend(shard, transaction, waiter, committed=marker.committed)
            writer = Writer(marker.producer_id, marker.producer_epoch)
            shard.append_marker(writer, marker.coordinator_epoch, pending, now, committed=marker.committed)


class _TransactionalAppend:
    """A transaction's offsets are being written. After ``offsets.commit.timeout.ms``, the waiter learns that the
    outcome is unknown."""

    __slots__ = ("_group", "_results", "_shard", "_transaction", "_values", "_waiter")

    def __init__(
        self,
        shard: ShardState,
        group: Group,
        transaction: OpenTransaction,
        values: dict[OffsetKey, OffsetCommitValue],
        results: tuple[OffsetCommitResult, ...],
        waiter: int,
    ) -> None:
        self._shard = shard
        self._group = group
        self._transaction = transaction
        self._values = values
        self._results = results
        self._waiter: int | None = waiter

    def ended(self, number: int, error: ErrorCode, now: Moment) -> None:
        transactions = self._shard.transactions
        if error is ErrorCode.NONE:
            written = {key: WrittenOffset(number, value) for key, value in self._values.items()}
            transactions.written(self._transaction, written)
        else:
            transactions.refused(self._transaction, self._values)
        self._tell(error)
        self._shard.forget_if_idle(self._group, now)

    def timed_out(self, now: Moment) -> None:
        self._tell(ErrorCode.REQUEST_TIMED_OUT)

    def abandoned(self, error: ErrorCode) -> None:
        self._tell(error)

    def _tell(self, error: ErrorCode) -> None:
        if self._waiter is None:
            return
        if error is not ErrorCode.NONE:
            error = offset_error(error)
        results = tuple(unless_failed(result, error) for result in self._results)
        self._shard.answer(self._waiter, TxnOffsetCommitResponse(results))
        self._waiter = None


class _MarkerAppend:
    """A marker is being written; its waiters wait until that ends."""

    __slots__ = ("_committed", "_shard", "_transaction", "_waiter")

    def __init__(self, shard: ShardState, transaction: OpenTransaction | None, waiter: int, *, committed: bool) -> None:
        self._shard = shard
        self._transaction = transaction
        self._waiter = waiter
        self._committed = committed

    def ended(self, number: int, error: ErrorCode, now: Moment) -> None:
        transactions = self._shard.transactions
        if self._transaction is not None:
            if error is ErrorCode.NONE:
                for group in transactions.ended(self._transaction, committed=self._committed):
                    self._shard.forget_if_idle(group, now)
            else:
                transactions.not_ended(self._transaction)
        self._shard.answer(self._waiter, error)

    def timed_out(self, now: Moment) -> None:
        pass

    def abandoned(self, error: ErrorCode) -> None:
        self._shard.answer(self._waiter, error)


def txn_commit_answer(
    request: TxnOffsetCommitRequest, error: ErrorCode, error_message: str = ""
) -> TxnOffsetCommitResponse:
    """Return the same error for each partition."""
    return TxnOffsetCommitResponse(
        tuple(OffsetCommitResult(item.topic, item.partition, error, error_message) for item in request.partitions)
    )


def adding_error(error: ErrorCode) -> ErrorCode:
    """Return the answer if the transaction's coordinator did not add the partition. NETWORK_EXCEPTION becomes an error
    that clients retry without looking for another coordinator. Source: ``GroupCoordinatorService``."""
    match error:
        case ErrorCode.NETWORK_EXCEPTION | ErrorCode.CONCURRENT_TRANSACTIONS:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        case ErrorCode.NOT_COORDINATOR | ErrorCode.COORDINATOR_NOT_AVAILABLE:
            # The transaction's coordinator, not the group's: a new search for the group's would find this one.
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        case _:
            return append_error(error)
