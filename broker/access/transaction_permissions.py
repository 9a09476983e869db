"""Permissions for requests about producers, transactions and sinks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tidelog.broker.access.access import Access
from tidelog.broker.access.group_permissions import commit_result, none_committed
from tidelog.broker.access.resources import (
    ALTER,
    CLUSTER_ACTION,
    DELETE,
    DESCRIBE,
    NO_CLUSTER,
    NO_TOPIC,
    NO_TRANSACTION,
    NONE,
    READ,
    WRITE,
    of_group,
    of_sink,
    of_topic,
    of_transaction,
    transaction_name,
)
from tidelog.broker.access.rules import Rule, Serve, both, each, shown, whole, woven
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.names import is_internal
from tidelog.model.sinks import is_sinks, sink_key
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.proto.calls.request import Request
from tidelog.proto.calls.sink_api import (
    AbortJobRequest,
    BeginSinkTransactionRequest,
    CommitBatchRequest,
    DeleteSinkRequest,
    DescribedSink,
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
    DescribedTransaction,
    DescribeLineageRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    InitProducerIdRequest,
    LineageEdge,
    ListTransactionsRequest,
    PartitionProducers,
    PrepareTransactionRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenMarker,
)
from tidelog.security.acls import AclOperation


def _init_fault(request: InitProducerIdRequest, access: Access) -> ErrorCode:
    """Check InitProducerId. An idempotent producer only needs to be able to write somewhere (KIP-679). One whose
    transactions can be prepared could hold a log back indefinitely (KIP-939)."""
    if request.transactional_id is not None:
        prepares = request.enable_two_phase_commit
        may = not prepares or access.transaction(AclOperation.TWO_PHASE_COMMIT, request.transactional_id)
        return of_transaction(request, access) if may else NO_TRANSACTION
    # A check by type looks at every entry, so check the cluster first, and again to record a denial.
    may = access.quiet.cluster(AclOperation.IDEMPOTENT_WRITE) or access.any_topic(WRITE)
    return NONE if may or access.cluster(AclOperation.IDEMPOTENT_WRITE) else NO_CLUSTER


def _prepare_fault(request: PrepareTransactionRequest, access: Access) -> ErrorCode:
    """Check as :func:`_init_fault` does. A sink's transactions are bounded in time."""
    name = request.transactional_id
    may = is_sinks(name) or access.transaction(AclOperation.TWO_PHASE_COMMIT, name)
    return of_transaction(request, access) if may else NO_TRANSACTION


async def _add_partitions(
    request: AddPartitionsToTxnRequest, access: Access, _: MetadataImage, serve: Serve
) -> AddPartitionsToTxnResponse:
    """Check AddPartitionsToTxn. Leaders ask on behalf of their clients. A client's transaction gets all partitions or
    none."""
    of_nodes = access.quiet.cluster(CLUSTER_ACTION)
    numbered = () if of_nodes else enumerate(request.transactions)
    refused = {number: found for number, each in numbered if (found := _not_added(each, access))}
    kept = tuple(each for number, each in enumerate(request.transactions) if number not in refused)
    nothing = AddPartitionsToTxnResponse(NONE)
    served: AddPartitionsToTxnResponse = await serve(replace(request, transactions=kept)) if kept else nothing
    if served.error is not NONE:
        return served
    every = map(refused.get, range(len(request.transactions)))
    return replace(served, transactions=woven(every, served.transactions))


def _not_added(asked: AddPartitionsTransaction, access: Access) -> AddedTransaction | None:
    def result(item: GroupPartition) -> ErrorCode:
        if not may_write:
            return NO_TRANSACTION
        return NONE if not is_internal(item.topic) and access.topic(WRITE, item.topic) else NO_TOPIC

    may_write = of_transaction(asked, access) is NONE
    errors = [result(item) for item in asked.partitions]
    if may_write and not any(errors):
        return None
    return AddedTransaction(
        asked.transactional_id,
        tuple(
            AddedPartition(item.topic, item.partition, error or ErrorCode.OPERATION_NOT_ATTEMPTED)
            for item, error in zip(asked.partitions, errors, strict=True)
        ),
    )


def _transactional_group(request: object, access: Access) -> ErrorCode:
    return of_transaction(request, access) or of_group(READ)(request, access)


def _not_written(request: WriteTxnMarkersRequest, error: ErrorCode, _: str) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        tuple(
            WrittenMarker(
                each.producer_id, tuple(AddedPartition(at.topic, at.partition, error) for at in each.partitions)
            )
            for each in request.markers
        )
    )


async def _described_topics(
    request: DescribeTransactionsRequest, access: Access, _: MetadataImage, serve: Serve
) -> DescribeTransactionsResponse:
    answer: DescribeTransactionsResponse = await serve(request)

    quiet = access.quiet

    def seen(found: DescribedTransaction) -> DescribedTransaction:
        return replace(found, partitions=tuple(at for at in found.partitions if quiet.topic(DESCRIBE, at.topic)))

    return replace(answer, transactions=tuple(map(seen, answer.transactions)))


def _id_fault(_: object, transactional_id: str, access: Access, __: MetadataImage) -> ErrorCode:
    return NONE if access.transaction(DESCRIBE, transaction_name(transactional_id)) else NO_TRANSACTION


def _may_see_edge(found: LineageEdge, access: Access) -> bool:
    return (
        access.transaction(DESCRIBE, found.transactional_id)
        and access.topic(DESCRIBE, found.topic)
        and (not found.group_id or access.group(DESCRIBE, found.group_id))
    )


TRANSACTIONS: Final[dict[type[Request[Any]], Rule]] = {
    InitProducerIdRequest: whole(_init_fault),
    AddPartitionsToTxnRequest: _add_partitions,
    AddOffsetsToTxnRequest: whole(_transactional_group),
    PrepareTransactionRequest: whole(_prepare_fault),
    EndTxnRequest: whole(of_transaction),
    TxnOffsetCommitRequest: both(
        whole(_transactional_group, lambda *refused: TxnOffsetCommitResponse(none_committed(*refused))),
        each("partitions", "results", of_topic(READ), commit_result),
    ),
    WriteTxnMarkersRequest: whole(
        lambda _, access: NONE if access.quiet.cluster(CLUSTER_ACTION) or access.cluster(ALTER) else NO_CLUSTER,
        _not_written,
    ),
    DescribeTransactionsRequest: both(
        each(
            "transactional_ids",
            "transactions",
            _id_fault,
            lambda name, error, text: DescribedTransaction(name, error, error_message=text),
        ),
        _described_topics,
    ),
    ListTransactionsRequest: shown(
        "transactions",
        lambda found, access: access.transaction(DESCRIBE, transaction_name(found.transactional_id)),
    ),
    DescribeLineageRequest: shown("edges", _may_see_edge),
    DescribeProducersRequest: each(
        "partitions",
        "partitions",
        of_topic(READ),
        lambda at, error, text: PartitionProducers(at.topic, at.partition, error, error_message=text),
    ),
    BeginSinkTransactionRequest: whole(of_sink(WRITE)),
    CommitBatchRequest: whole(of_sink(WRITE)),
    AbortJobRequest: whole(of_sink(WRITE)),
    DeleteSinkRequest: whole(of_sink(DELETE)),
    DescribeSinksRequest: each(
        "sinks",
        "sinks",
        lambda _, sink, access, __: NONE if access.transaction(DESCRIBE, sink_key(sink)) else NO_TRANSACTION,
        lambda sink, error, text: DescribedSink(sink, error, error_message=text),
    ),
    ListSinksRequest: shown("sinks", lambda found, access: access.transaction(DESCRIBE, sink_key(found.sink))),
}
