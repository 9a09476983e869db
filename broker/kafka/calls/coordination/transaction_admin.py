"""Administration of transactions: DescribeTransactions, ListTransactions, DescribeProducers, WriteTxnMarkers.

Kafka's tools end a hanging transaction by writing an abort marker themselves, with the epochs that DescribeProducers
returns. They do not know prepared transactions: these are reported as ongoing, as in Kafka's coordinator (KIP-939).
"""

from __future__ import annotations

from typing import Any, Final

from tidelog.broker.kafka.calls.common.by_topic import by_topic
from tidelog.broker.kafka.wire.apis import Api, KafkaContext
from tidelog.model.ids import ProducerEpoch, ProducerId
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.proto.calls.transaction_api import (
    AddedPartition,
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
        "error_code": each.error,
        "transactional_id": each.transactional_id,
        "transaction_state": _shown(each.state),
        "transaction_timeout": each.transaction_timeout_ms,
        "transaction_start_time": each.start_time_ms,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
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
            tuple(ProducerId(each) for each in request.producer_id_filters),
            field(request, "duration_filter", -1),
            field(request, "transactional_id_pattern", None) or "",
        )
    )
    return {
        "error_code": answer.error,
        "unknown_state_filters": [name for name in request.state_filters if name.lower() not in _STATES],
        "transaction_states": [
            {
                "transactional_id": each.transactional_id,
                "producer_id": each.producer_id,
                "transaction_state": _shown(each.state),
            }
            for each in answer.transactions
        ],
    }


def _shown(state: str) -> str:
    return _ONGOING if state == _PREPARED else state


async def describe_producers(request: Any, _: int, context: KafkaContext) -> dict[str, Any]:
    asked = dict.fromkeys(GroupPartition(topic.name, at) for topic in request.topics for at in topic.partition_indexes)
    answer = await context.call(DescribeProducersRequest(tuple(asked), any_replica=True))
    return {"topics": by_topic(answer.partitions, _producers)}


def _producers(found: PartitionProducers) -> dict[str, Any]:
    return {
        "error_code": found.error,
        "error_message": found.error_message or None,
        "active_producers": [
            {
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "last_sequence": each.last_sequence,
                "last_timestamp": each.last_timestamp_ms,
                "coordinator_epoch": each.coordinator_epoch,
                "current_txn_start_offset": each.transaction_start_offset,
            }
            for each in found.producers
        ],
    }


async def write_markers(request: Any, _: int, context: KafkaContext) -> dict[str, Any]:
    markers = tuple(
        TransactionMarker(
            ProducerId(each.producer_id),
            ProducerEpoch(each.producer_epoch),
            each.transaction_result,
            each.coordinator_epoch,
            tuple(GroupPartition(topic.name, at) for topic in each.topics for at in topic.partition_indexes),
            field(each, "transaction_version", _OWN_EPOCH),
        )
        for each in request.markers
    )
    answer = await context.call(WriteTxnMarkersRequest(markers))
    return {
        "markers": [
            {"producer_id": each.producer_id, "topics": by_topic(each.results, _written)} for each in answer.markers
        ]
    }


def _written(result: AddedPartition) -> dict[str, Any]:
    return {"error_code": result.error}


APIS: Final = (
    Api(65, 0, 0, describe_transactions),
    Api(66, 0, 2, list_transactions),
    Api(61, 0, 0, describe_producers),
    Api(27, 1, 2, write_markers),
)
