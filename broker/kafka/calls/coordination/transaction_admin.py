"""Administration of transactions: DescribeTransactions, ListTransactions, DescribeProducers, WriteTxnMarkers.

Kafka's tools end a hanging transaction by writing an abort marker themselves, with the epochs that DescribeProducers
returns. They do not know prepared transactions: these are reported as ongoing, as in Kafka's coordinator (KIP-939).
"""

from __future__ import annotations

from typing import Any, Final

from tidelog.broker.kafka.calls.common.by_topic import by_topic
from tidelog.broker.kafka.calls.common.translation import answered, asked, partitions_of
from tidelog.broker.kafka.wire.apis import Api, KafkaContext
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.proto.calls.transaction_api import (
    DescribedTransaction,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    PartitionProducers,
    TransactionMarker,
    WriteTxnMarkersRequest,
)
from tidelog.proto.kafka.messages import field
from tidelog.transactions.transitions import TransactionState

_OWN_EPOCH: Final = 1
"""The version of a marker that carries its transaction's epoch, instead of the next one."""
_STATES: Final = {state.value.lower() for state in TransactionState}
_ONGOING: Final = TransactionState.ONGOING.value
_PREPARED: Final = TransactionState.PREPARED.value


async def describe_transactions(request: Any, _: int, context: KafkaContext) -> dict[str, Any]:
    answer = await context.call(DescribeTransactionsRequest(tuple(dict.fromkeys(request.transactional_ids))))
    return {"transaction_states": [_described(each) for each in answer.transactions]}


def _described(each: DescribedTransaction) -> dict[str, Any]:
    topics: dict[str, list[int]] = {}
    for at in each.partitions:
        topics.setdefault(at.topic, []).append(at.partition)
    return {
        **answered(each, start_time_ms="transaction_start_time"),
        "transaction_state": _shown(each.state),
        "topics": [{"topic": name, "partitions": numbers} for name, numbers in topics.items()],
    }


async def list_transactions(request: Any, _: int, context: KafkaContext) -> dict[str, Any]:
    """List transactions. Unknown states match nothing, and are returned."""
    states = tuple(request.state_filters)
    if _ONGOING.lower() in {name.lower() for name in states}:
        states = (*states, _PREPARED)
    answer = await context.call(
        ListTransactionsRequest(
            states,
            tuple(request.producer_id_filters),
            field(request, "duration_filter", -1),
            field(request, "transactional_id_pattern", None) or "",
        )
    )
    return {
        "error_code": answer.error,
        "unknown_state_filters": [name for name in request.state_filters if name.lower() not in _STATES],
        "transaction_states": [
            {**answered(each), "transaction_state": _shown(each.state)} for each in answer.transactions
        ],
    }


def _shown(state: str) -> str:
    return _ONGOING if state == _PREPARED else state


async def describe_producers(request: Any, _: int, context: KafkaContext) -> dict[str, Any]:
    wanted = dict.fromkeys(partitions_of(GroupPartition, request.topics, "partition_indexes"))
    answer = await context.call(DescribeProducersRequest(tuple(wanted), any_replica=True))
    return {"topics": by_topic(answer.partitions, _producers)}


def _producers(found: PartitionProducers) -> dict[str, Any]:
    return answered(found, producers="active_producers", transaction_start_offset="current_txn_start_offset")


async def write_markers(request: Any, _: int, context: KafkaContext) -> dict[str, Any]:
    markers = tuple(
        asked(
            TransactionMarker,
            each,
            committed=each.transaction_result,
            partitions=partitions_of(GroupPartition, each.topics, "partition_indexes"),
            transaction_version=field(each, "transaction_version", _OWN_EPOCH),
        )
        for each in request.markers
    )
    answer = await context.call(WriteTxnMarkersRequest(markers))
    return {"markers": [{"producer_id": each.producer_id, "topics": by_topic(each.results)} for each in answer.markers]}


APIS: Final = (
    Api(65, 0, 0, describe_transactions),
    Api(66, 0, 2, list_transactions),
    Api(61, 0, 0, describe_producers),
    Api(27, 1, 2, write_markers),
)
