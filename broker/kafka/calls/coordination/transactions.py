"""Transactions of Kafka clients, in both protocols.

The versions show which protocol a client uses. With ``transaction.version`` 2 finalized, a client of the second
protocol ends with EndTxn 5 and commits offsets with TxnOffsetCommit 5, and lets leaders and coordinators add partitions
to its transactions. A client of the first protocol adds them itself (AddPartitionsToTxn, AddOffsetsToTxn) and keeps its
epoch. So its requests carry the number of their connection, and the coordinator refuses those on a connection that the
client has left (:meth:`tidelog.transactions.transaction.Entry.heard`). That refusal closes the connection. No error
code would do: a client that is gone receives none, and a client with several connections would retry on the same one
indefinitely, or take the error as fatal. This way it reconnects.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tidelog.broker.kafka.calls.common.by_topic import by_topic
from tidelog.broker.kafka.calls.common.translation import answered, asked, partitions_of
from tidelog.broker.kafka.calls.coordination.group_offsets import committed_partitions
from tidelog.broker.kafka.wire.apis import Api, KafkaContext
from tidelog.broker.kafka.wire.pending import CloseConnection
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ProducerEpoch, ProducerId
from tidelog.proto.calls.group_api import NO_GENERATION, NO_MEMBER, GroupPartition, OffsetCommitResult
from tidelog.proto.calls.transaction_api import (
    AddedPartition,
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsTransaction,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from tidelog.proto.kafka.messages import field

_SECOND_PROTOCOL: Final = 5
"""The version of EndTxn and TxnOffsetCommit."""
_SEVERAL_TRANSACTIONS: Final = 4


def told(error: ErrorCode, version: int, *, fenced: int = 0, abortable: int = 0) -> ErrorCode:
    """Map the error to one that a client of this version knows: PRODUCER_FENCED from version ``fenced`` of the request
    on, TRANSACTION_ABORTABLE from ``abortable`` on. Source: ``KafkaApis``, ``AddPartitionsToTxnManager``."""
    if error is ErrorCode.PRODUCER_FENCED and version < fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < abortable:
        return ErrorCode.INVALID_TXN_STATE
    return error


async def _call(request: Any, context: KafkaContext) -> Any:
    """Make the call with the number of the connection."""
    numbered = replace(context.call_context, connection=context.connection)
    return await context.calls[type(request)](request, numbered)


def _close_if_left(error: ErrorCode, transactional_id: str) -> None:
    if error is ErrorCode.NETWORK_EXCEPTION:
        text = f"expected the producer of {transactional_id!r} on its newest connection"
        raise CloseConnection(f"{text}, found a request on one that it used before")


async def init_producer_id(request: Any, version: int, context: KafkaContext) -> dict[str, Any]:
    answer = await _call(asked(InitProducerIdRequest, request), context)
    return answered(answer) | {"error_code": told(answer.error, version, fenced=4, abortable=5)}


async def add_partitions(request: Any, version: int, context: KafkaContext) -> dict[str, Any]:
    """Add partitions: one transaction for clients; for Kafka brokers several, some only to be verified (from version 4
    on)."""
    if version >= _SEVERAL_TRANSACTIONS:
        wanted = tuple(
            asked(AddPartitionsTransaction, each, partitions=partitions_of(GroupPartition, each.topics))
            for each in request.transactions
        )
    else:
        wanted = (
            AddPartitionsTransaction(
                request.v3_and_below_transactional_id,
                ProducerId(request.v3_and_below_producer_id),
                ProducerEpoch(request.v3_and_below_producer_epoch),
                partitions_of(GroupPartition, request.v3_and_below_topics),
            ),
        )
    answer: AddPartitionsToTxnResponse = await _call(AddPartitionsToTxnRequest(wanted), context)
    for each in answer.transactions:
        for result in each.results:
            _close_if_left(result.error, each.transactional_id)

    def added(result: AddedPartition) -> dict[str, Any]:
        return {"partition_error_code": told(result.error, version, fenced=2, abortable=5)}

    results = [
        {
            "transactional_id": each.transactional_id,
            "topic_results": by_topic(each.results, added, partitions="results_by_partition"),
        }
        for each in answer.transactions
    ]
    if version >= _SEVERAL_TRANSACTIONS:
        return {"error_code": answer.error, "results_by_transaction": results}
    return {"results_by_topic_v3_and_below": results[0]["topic_results"]}


async def add_offsets(request: Any, version: int, context: KafkaContext) -> dict[str, Any]:
    answer = await _call(asked(AddOffsetsToTxnRequest, request), context)
    _close_if_left(answer.error, request.transactional_id)
    return {"error_code": told(answer.error, version, fenced=2, abortable=4)}


async def end_transaction(request: Any, version: int, context: KafkaContext) -> dict[str, Any]:
    answer = await _call(asked(EndTxnRequest, request, bump_epoch=version >= _SECOND_PROTOCOL), context)
    _close_if_left(answer.error, request.transactional_id)
    return answered(answer) | {"error_code": told(answer.error, version, fenced=2, abortable=4)}


async def commit_offsets(request: Any, version: int, context: KafkaContext) -> dict[str, Any]:
    """Commit offsets. Each partition carries an error about the member, by the names that version 3 introduced
    (KIP-447)."""
    answer = await context.call(
        asked(
            TxnOffsetCommitRequest,
            request,
            generation_id=field(request, "generation_id", NO_GENERATION),
            member_id=field(request, "member_id", NO_MEMBER),
            partitions=committed_partitions(request.topics),
            verify_only=version < _SECOND_PROTOCOL,
        )
    )

    def committed(result: OffsetCommitResult) -> dict[str, Any]:
        return {"error_code": told(result.error, version, fenced=2, abortable=4)}

    topics = (topic.name for topic in request.topics)
    return {"topics": by_topic(answer.results, committed, topics=topics)}


APIS: Final = (
    Api(22, 0, 5, init_producer_id),
    Api(24, 0, 5, add_partitions),
    Api(25, 0, 4, add_offsets),
    Api(26, 0, 5, end_transaction),
    Api(28, 0, 5, commit_offsets),
)
