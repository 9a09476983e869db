"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords, translated."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import Any, Final

from tidelog.broker.kafka.calls.common.translation import answered, asked
from tidelog.broker.kafka.wire.apis import Answer, Api, KafkaContext
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.proto.calls.api import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    EpochEnd,
    EpochEndPartition,
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from tidelog.proto.kafka.messages import field
from tidelog.security.acls import AclOperation

_NEVER: Final = 1 << 15
_SPECIAL_SINCE: Final = MappingProxyType(
    {
        LATEST_TIMESTAMP: 1,
        EARLIEST_TIMESTAMP: 1,
        MAX_TIMESTAMP: 7,
        EARLIEST_LOCAL_TIMESTAMP: 8,
        LATEST_TIERED_TIMESTAMP: 9,
        EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
    }
)
"""Special timestamps → the version of ListOffsets that introduced them."""


def apis(view: MetadataView) -> tuple[Api, ...]:
    """Return the APIs. ``view`` maps topic names to ids."""
    epochs = partial(offset_for_leader_epoch, view=view)
    return (Api(2, 1, 11, list_offsets), Api(21, 0, 2, delete_records), Api(23, 2, 4, epochs))


async def list_offsets(request: Any, version: int, context: KafkaContext) -> Answer:
    partitions = tuple(
        asked(ListOffsetsPartition, item, topic=topic.name, partition=item.partition_index)
        for topic in request.topics
        for item in topic.partitions
        if not _unknown_time(item.timestamp, version)
    )
    read_committed = field(request, "isolation_level", 0) == 1
    answer = await context.call(ListOffsetsRequest(partitions, read_committed))
    found = iter(answer.results)

    def one(item: Any) -> dict[str, Any]:
        if _unknown_time(item.timestamp, version):
            return {"partition_index": item.partition_index, "error_code": ErrorCode.UNSUPPORTED_VERSION}
        return answered(next(found)) | {"partition_index": item.partition_index}

    return {
        "topics": [
            {"name": topic.name, "partitions": [one(item) for item in topic.partitions]} for topic in request.topics
        ]
    }


def _unknown_time(timestamp: int, version: int) -> bool:
    """Return whether this version lacks the special timestamp
    (``ListOffsetsRequest.isListOffsetsTimestampUnsupported``)."""
    return timestamp < 0 and version < _SPECIAL_SINCE.get(timestamp, _NEVER)


async def offset_for_leader_epoch(request: Any, _: int, context: KafkaContext, view: MetadataView) -> Answer:
    """Look up the end of an epoch. A topic that this node's metadata lacks is unknown; one that the sender may not
    describe is refused, whether it exists or not."""
    names = {topic.topic for topic in request.topics if _may_describe(context, topic.topic)}
    ids = {name: found for name in names if (found := view.image.topic_ids.get(name)) is not None}
    answer = await context.call(
        OffsetForLeaderEpochRequest(
            tuple(
                asked(EpochEndPartition, item, topic_id=ids[topic.topic])
                for topic in request.topics
                if topic.topic in ids
                for item in topic.partitions
            ),
            NodeId(field(request, "replica_id", -2)),
        )
    )
    results = iter(answer.results)
    topics = []
    for topic in request.topics:
        ends = (
            [_epoch_end(next(results)) for _ in topic.partitions]
            if topic.topic in ids
            else [
                {"partition": item.partition, "error_code": _missing(topic.topic, names)} for item in topic.partitions
            ]
        )
        topics.append({"topic": topic.topic, "partitions": ends})
    return {"topics": topics}


def _may_describe(context: KafkaContext, name: str) -> bool:
    access = context.access
    if access is None or access.quiet.cluster(AclOperation.CLUSTER_ACTION):
        return True
    return access.topic(AclOperation.DESCRIBE, name)


def _missing(name: str, described: set[str]) -> ErrorCode:
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name in described else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _epoch_end(found: EpochEnd) -> dict[str, Any]:
    # A request by name gets names back: the id was looked up here.
    unknown = found.error is ErrorCode.UNKNOWN_TOPIC_ID
    return answered(found) | {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if unknown else found.error}


async def delete_records(request: Any, _: int, context: KafkaContext) -> Answer:
    partitions = tuple(
        asked(DeleteRecordsPartition, item, topic=topic.name, partition=item.partition_index)
        for topic in request.topics
        for item in topic.partitions
    )
    answer = await context.call(DeleteRecordsRequest(partitions, request.timeout))
    results = iter(answer.results)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    answered(next(results)) | {"partition_index": item.partition_index} for item in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }
