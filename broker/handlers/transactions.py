"""The calls of transactions, on their way to this node's coordinators and partitions.

This module checks what a coordinator cannot know, from the metadata: whether a partition that is to join a transaction
exists. A partition that the coordinator's own metadata lacks must not join, because the marker would have nowhere to
go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tidelog.broker.handlers.known_partitions import commit_known, has_partition
from tidelog.broker.handlers.producer_ids import InitProducerId
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.services import Calls
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tidelog.proto.calls.backup_api import HoldTransactionsRequest
from tidelog.proto.calls.group_api import OffsetCommitPartition, OffsetCommitResult
from tidelog.proto.calls.sink_api import (
    AbortJobRequest,
    BeginSinkTransactionRequest,
    CommitBatchRequest,
    DeleteSinkRequest,
    DescribeSinksRequest,
    ListSinksRequest,
)
from tidelog.proto.calls.transaction_api import (
    AddedPartition,
    AddedTransaction,
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsTransaction,
    DescribeLineageRequest,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    PrepareTransactionRequest,
    TransactionMarker,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenMarker,
)
from tidelog.proto.transport.network import CallContext
from tidelog.replication.manager import ReplicaManager
from tidelog.transactions.coordinator import TransactionCoordinator
from tidelog.transactions.transaction import EPOCH_MAX

METADATA_WAIT_S: Final = 0.5
"""How long to wait for a partition that a transaction adds; it may be new."""


class MarkerWriting:
    """Writes transaction markers to the logs that this node leads."""

    def __init__(self, groups: GroupCoordinator, replicas: ReplicaManager) -> None:
        self._groups = groups
        self._replicas = replicas

    async def write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Write markers. Those for committed offsets go through the group coordinator, which acts on them, the others
        straight into their logs (``KafkaApis.handleWriteTxnMarkersRequest``). All are appended before this waits."""
        through_groups = {
            (number, at.partition): self._groups.complete_transaction(at.partition, marker)
            for number, marker in enumerate(request.markers)
            for at in marker.partitions
            if at.topic == GROUP_OFFSETS_TOPIC
        }
        if not through_groups:
            return await self._replicas.write_markers(request)
        written = await self._replicas.write_markers(
            WriteTxnMarkersRequest(tuple(_of_clients(marker) for marker in request.markers))
        )
        made: list[WrittenMarker] = []
        for number, (marker, found) in enumerate(zip(request.markers, written.markers, strict=True)):
            by_partition = {(result.topic, result.partition): result for result in found.results}
            results = []
            for at in marker.partitions:
                if at.topic == GROUP_OFFSETS_TOPIC:
                    error = await through_groups[number, at.partition]
                    results.append(AddedPartition(at.topic, at.partition, error))
                else:
                    results.append(by_partition[at.topic, at.partition])
            made.append(WrittenMarker(marker.producer_id, tuple(results)))
        return WriteTxnMarkersResponse(tuple(made))


class TransactionCalls:
    """Passes calls on in the order of arrival."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        groups: GroupCoordinator,
        replicas: ReplicaManager,
        view: MetadataView,
        markers: MarkerWriting,
        idempotent: InitProducerId,
    ) -> None:
        """``idempotent`` serves producers without a transactional id."""
        self._coordinator = coordinator
        self._groups = groups
        self._replicas = replicas
        self._view = view
        self._markers = markers
        self._idempotent = idempotent

    def calls(self) -> Calls:
        coordinator = self._coordinator
        return {
            InitProducerIdRequest: self.init_producer_id,
            AddPartitionsToTxnRequest: self.add_partitions,
            AddOffsetsToTxnRequest: coordinator.add_offsets,
            PrepareTransactionRequest: coordinator.prepare,
            EndTxnRequest: coordinator.end,
            DescribeTransactionsRequest: coordinator.describe,
            ListTransactionsRequest: coordinator.list_transactions,
            DescribeLineageRequest: coordinator.describe_lineage,
            BeginSinkTransactionRequest: coordinator.begin_sink_transaction,
            CommitBatchRequest: coordinator.commit_batch,
            AbortJobRequest: coordinator.abort_job,
            DeleteSinkRequest: coordinator.delete_sink,
            DescribeSinksRequest: coordinator.describe_sinks,
            ListSinksRequest: coordinator.list_sinks,
            HoldTransactionsRequest: coordinator.hold,
            TxnOffsetCommitRequest: self.commit_offsets,
            WriteTxnMarkersRequest: self.write_markers,
            DescribeProducersRequest: self.describe_producers,
        }

    async def init_producer_id(self, request: InitProducerIdRequest, context: CallContext) -> InitProducerIdResponse:
        if request.transactional_id is None:
            return await self._idempotent.handle(request, context)
        return await self._coordinator.init_producer_id(request, context)

    # --- Taking part --------------------------------------------------------------------------------

    async def add_partitions(
        self, request: AddPartitionsToTxnRequest, context: CallContext
    ) -> AddPartitionsToTxnResponse:
        """Add partitions. Missing ones are refused one by one (``KafkaApis.handleAddPartitionsToTxnRequest``)."""
        if all(_has_all(self._view.image, given) for given in request.transactions):
            return await self._coordinator.add_partitions(request, context)
        await self._view.wait_until(
            lambda image: all(_has_all(image, given) for given in request.transactions), timeout_s=METADATA_WAIT_S
        )
        image = self._view.image
        known = tuple(
            replace(
                given,
                partitions=tuple(item for item in given.partitions if has_partition(image, item.topic, item.partition)),
            )
            for given in request.transactions
        )
        answer = await self._coordinator.add_partitions(AddPartitionsToTxnRequest(known), context)
        if answer.error is not ErrorCode.NONE:
            return answer
        return AddPartitionsToTxnResponse(
            ErrorCode.NONE,
            tuple(
                _with_unknown(given, found)
                for given, found in zip(request.transactions, answer.transactions, strict=True)
            ),
        )

    async def commit_offsets(self, request: TxnOffsetCommitRequest, context: CallContext) -> TxnOffsetCommitResponse:
        async def commit(known: tuple[OffsetCommitPartition, ...]) -> Sequence[OffsetCommitResult]:
            return (await self._groups.commit_transactional(replace(request, partitions=known), context)).results

        results = await commit_known(self._view.image, request.partitions, commit)
        self._coordinator.read(request, results, context.client_id)
        return TxnOffsetCommitResponse(results)

    # --- Markers ------------------------------------------------------------------------------------

    async def write_markers(self, request: WriteTxnMarkersRequest, _: CallContext) -> WriteTxnMarkersResponse:
        """Write markers from any sender; invalid ones are refused individually."""
        faulty = [_marker_fault(marker) for marker in request.markers]
        if not any(faulty):
            return await self._markers.write(request)
        good = tuple(marker for marker, fault in zip(request.markers, faulty, strict=True) if not fault)
        written = iter((await self._markers.write(WriteTxnMarkersRequest(good))).markers)
        return WriteTxnMarkersResponse(
            tuple(
                _refused(marker) if fault else next(written)
                for marker, fault in zip(request.markers, faulty, strict=True)
            )
        )

    async def describe_producers(self, request: DescribeProducersRequest, _: CallContext) -> DescribeProducersResponse:
        return self._replicas.describe_producers(request)


def _marker_fault(marker: TransactionMarker) -> bool:
    """Return whether a marker is invalid: its producer cannot exist, or only the transaction coordinator writes to its
    log."""
    return (
        marker.producer_id < 0
        or not 0 <= marker.producer_epoch <= EPOCH_MAX
        or any(at.topic == TRANSACTION_STATE_TOPIC for at in marker.partitions)
    )


def _refused(marker: TransactionMarker) -> WrittenMarker:
    results = tuple(AddedPartition(at.topic, at.partition, ErrorCode.INVALID_REQUEST) for at in marker.partitions)
    return WrittenMarker(marker.producer_id, results)


def _of_clients(marker: TransactionMarker) -> TransactionMarker:
    """Keep only the partitions of clients' topics."""
    kept = tuple(at for at in marker.partitions if at.topic != GROUP_OFFSETS_TOPIC)
    return replace(marker, partitions=kept)


def _has_all(image: MetadataImage, given: AddPartitionsTransaction) -> bool:
    return all(has_partition(image, item.topic, item.partition) for item in given.partitions)


def _with_unknown(given: AddPartitionsTransaction, found: AddedTransaction) -> AddedTransaction:
    done = {(result.topic, result.partition): result for result in found.results}
    return AddedTransaction(
        given.transactional_id,
        tuple(
            done.get((item.topic, item.partition))
            or AddedPartition(item.topic, item.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            for item in given.partitions
        ),
    )
