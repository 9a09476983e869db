"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete. Versions that name topics by id are not served."""

from __future__ import annotations

from typing import Any, Final

from tidelog.broker.kafka.calls.common.by_topic import by_topic
from tidelog.broker.kafka.wire.apis import Api, KafkaContext
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_LEADER_EPOCH, LeaderEpoch, Offset
from tidelog.proto.calls.group_api import (
    NO_GENERATION,
    NO_MEMBER,
    CommittedOffset,
    GroupPartition,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResult,
    OffsetDeleteRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResult,
)
from tidelog.proto.kafka.messages import field

_GROUP_ERROR: Final = 2
"""From this version on an answer of OffsetFetch has an error of its own, beside those of partitions."""
_SEVERAL_GROUPS: Final = 8


def committed_partitions(topics: Any) -> tuple[OffsetCommitPartition, ...]:
    """The partitions of an OffsetCommit, or of a TxnOffsetCommit."""
    return tuple(
        OffsetCommitPartition(
            topic.name,
            each.partition_index,
            Offset(each.committed_offset),
            LeaderEpoch(field(each, "committed_leader_epoch", NO_LEADER_EPOCH)),
            each.committed_metadata or "",
        )
        for topic in topics
        for each in topic.partitions
    )


def error_only(result: OffsetCommitResult) -> dict[str, Any]:
    return {"error_code": result.error}


async def offset_commit(request: Any, _: int, context: KafkaContext) -> dict[str, Any]:
    """Retention times, which versions before 5 may name, are passed over: the life of the group decides (KIP-211)."""
    generation_id = field(request, "generation_id_or_member_epoch", NO_GENERATION)
    answer = await context.call(
        OffsetCommitRequest(
            request.group_id,
            generation_id,
            request.member_id,
            field(request, "group_instance_id", None),
            committed_partitions(request.topics),
        )
    )
    topics = (topic.name for topic in request.topics)
    return {"topics": by_topic(answer.results, error_only, topics=topics)}


async def offset_fetch(request: Any, version: int, context: KafkaContext) -> dict[str, Any]:
    asked = (
        tuple({group.group_id: group for group in request.groups}.values())
        if version >= _SEVERAL_GROUPS
        else (request,)
    )
    groups = tuple(
        OffsetFetchGroup(
            group.group_id,
            _named(group.topics),
            all_partitions=group.topics is None,
            member_id=field(group, "member_id", None) or NO_MEMBER,
            member_epoch=field(group, "member_epoch", NO_GENERATION),
        )
        for group in asked
    )
    answer = await context.call(OffsetFetchRequest(groups, field(request, "require_stable", False)))
    found = [_fetched(group, result, version) for group, result in zip(asked, answer.groups, strict=True)]
    return {"groups": found} if version >= _SEVERAL_GROUPS else found[0]


def _named(topics: Any) -> tuple[GroupPartition, ...]:
    return tuple(GroupPartition(topic.name, number) for topic in topics or () for number in topic.partition_indexes)


def _fetched(asked: Any, found: OffsetFetchResult, version: int) -> dict[str, Any]:
    """If the group itself is refused, its error stands alone, or in the oldest version at each partition."""
    refused = found.error is not ErrorCode.NONE and version >= _GROUP_ERROR
    names = () if refused else (topic.name for topic in asked.topics or ())
    return {
        "group_id": found.group_id,
        "error_code": found.error,
        "topics": by_topic(() if refused else found.offsets, _offset, topics=names),
    }


def _offset(found: CommittedOffset) -> dict[str, Any]:
    return {
        "error_code": found.error,
        "committed_offset": found.offset,
        "committed_leader_epoch": found.leader_epoch,
        "metadata": found.metadata,
    }


async def offset_delete(request: Any, _: int, context: KafkaContext) -> dict[str, Any]:
    named = tuple(
        GroupPartition(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
    )
    answer = await context.call(OffsetDeleteRequest(request.group_id, named))
    topics = by_topic(answer.results, lambda result: {"error_code": result.error})
    return {"error_code": answer.error, "topics": topics}


APIS: Final = (
    Api(8, 2, 9, offset_commit),
    Api(9, 1, 9, offset_fetch),
    Api(47, 0, 0, offset_delete),
)
