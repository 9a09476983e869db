"""Permissions for requests about groups and their offsets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tidelog.broker.access.access import Access
from tidelog.broker.access.resources import (
    DELETE,
    DESCRIBE,
    NO_GROUP,
    NO_TOPIC,
    NO_TRANSACTION,
    NONE,
    READ,
    of_group,
    of_topic,
    transaction_name,
)
from tidelog.broker.access.rules import TEXTS, Rule, Serve, both, each, shown, whole, woven
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.consumer_group_api import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    DescribedConsumerGroup,
)
from tidelog.proto.calls.group_api import (
    GROUP_COORDINATOR,
    TRANSACTION_COORDINATOR,
    CommittedOffset,
    Coordinator,
    DeletedGroup,
    DeleteGroupsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    GroupPartition,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResult,
    OffsetDeleteRequest,
    OffsetDeleteResult,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResult,
    SyncGroupRequest,
)
from tidelog.proto.calls.request import Request


def _coordinator_fault(request: FindCoordinatorRequest, key: str, access: Access, _: MetadataImage) -> ErrorCode:
    if request.key_type == GROUP_COORDINATOR:
        return NONE if access.group(DESCRIBE, key) else NO_GROUP
    if request.key_type == TRANSACTION_COORDINATOR:
        return NONE if access.transaction(DESCRIBE, transaction_name(key)) else NO_TRANSACTION
    return NONE


def none_committed(request: Any, error: ErrorCode, text: str) -> tuple[OffsetCommitResult, ...]:
    return tuple(OffsetCommitResult(item.topic, item.partition, error, text) for item in request.partitions)


def commit_result(item: OffsetCommitPartition, error: ErrorCode, text: str) -> OffsetCommitResult:
    return OffsetCommitResult(item.topic, item.partition, error, text)


async def _fetched_topics(
    request: OffsetFetchRequest, access: Access, _: MetadataImage, serve: Serve
) -> OffsetFetchResponse:
    """Leave out topics that the client may not describe if the request asks for all of a group's offsets; refuse them
    if it names them."""

    def may(item: GroupPartition) -> bool:
        return access.topic(DESCRIBE, item.topic)

    def seen(item: GroupPartition | CommittedOffset) -> bool:
        return quiet.topic(DESCRIBE, item.topic)

    quiet = access.quiet
    groups = tuple(replace(group, partitions=tuple(filter(may, group.partitions))) for group in request.groups)
    answer: OffsetFetchResponse = await serve(replace(request, groups=groups))
    pairs = zip(request.groups, answer.groups, strict=True)
    return replace(answer, groups=tuple(_fetched_of(group, found, seen) for group, found in pairs))


def _fetched_of(
    group: OffsetFetchGroup, found: OffsetFetchResult, may: Callable[[GroupPartition | CommittedOffset], bool]
) -> OffsetFetchResult:
    if found.error is not NONE:
        return found
    if group.all_partitions:
        return replace(found, offsets=tuple(filter(may, found.offsets)))
    refused = (
        None if may(item) else CommittedOffset(item.topic, item.partition, NO_TOPIC) for item in group.partitions
    )
    return replace(found, offsets=woven(refused, found.offsets))


def _heartbeat_fault(request: ConsumerGroupHeartbeatRequest, access: Access) -> ErrorCode:
    """Require that the member may describe every topic that it names."""
    if not access.group(READ, request.group_id):
        return NO_GROUP
    names = () if request.topics is None else request.topics.names
    return NONE if all(access.topic(DESCRIBE, name) for name in names) else NO_TOPIC


async def _described_members(
    request: ConsumerGroupDescribeRequest, access: Access, _: MetadataImage, serve: Serve
) -> ConsumerGroupDescribeResponse:
    """Hide groups with topics that the sender may not describe."""

    def shown(group: DescribedConsumerGroup) -> DescribedConsumerGroup:
        names = {part.topic for member in group.members for part in (*member.assignment, *member.target)}
        names.update(name for member in group.members for name in member.topics)
        if all(access.topic(DESCRIBE, name) for name in sorted(names)):
            return group
        return DescribedConsumerGroup(group.group_id, NO_TOPIC, TEXTS[NO_TOPIC])

    answer: ConsumerGroupDescribeResponse = await serve(request)
    return replace(answer, groups=tuple(map(shown, answer.groups)))


GROUPS: Final[dict[type[Request[Any]], Rule]] = {
    FindCoordinatorRequest: each(
        "keys", "coordinators", _coordinator_fault, lambda key, error, text: Coordinator(key, error, error_message=text)
    ),
    JoinGroupRequest: whole(of_group(READ)),
    SyncGroupRequest: whole(of_group(READ)),
    HeartbeatRequest: whole(of_group(READ)),
    LeaveGroupRequest: whole(of_group(READ)),
    ConsumerGroupHeartbeatRequest: whole(_heartbeat_fault),
    ConsumerGroupDescribeRequest: both(
        each(
            "group_ids",
            "groups",
            lambda _, group_id, access, __: NONE if access.group(DESCRIBE, group_id) else NO_GROUP,
            lambda group_id, error, text: DescribedConsumerGroup(group_id, error, text),
        ),
        _described_members,
    ),
    OffsetCommitRequest: both(
        whole(of_group(READ), lambda *refused: OffsetCommitResponse(none_committed(*refused))),
        each("partitions", "results", of_topic(READ), commit_result),
    ),
    OffsetFetchRequest: both(
        each(
            "groups",
            "groups",
            lambda _, group, access, __: NONE if access.group(DESCRIBE, group.group_id) else NO_GROUP,
            lambda group, error, text: OffsetFetchResult(group.group_id, error, (), text),
        ),
        _fetched_topics,
    ),
    OffsetDeleteRequest: both(
        whole(of_group(DELETE)),
        each(
            "partitions",
            "results",
            of_topic(READ),
            lambda at, error, _: OffsetDeleteResult(at.topic, at.partition, error),
        ),
    ),
    ListGroupsRequest: shown(
        "groups", lambda group, access: access.cluster(DESCRIBE) or access.group(DESCRIBE, group.group_id)
    ),
    DescribeGroupsRequest: each(
        "group_ids",
        "groups",
        lambda _, group_id, access, __: NONE if access.group(DESCRIBE, group_id) else NO_GROUP,
        lambda group_id, error, text: DescribedGroup(group_id, error, error_message=text),
    ),
    DeleteGroupsRequest: each(
        "group_ids",
        "results",
        lambda _, group_id, access, __: NONE if access.group(DELETE, group_id) else NO_GROUP,
        lambda group_id, error, text: DeletedGroup(group_id, error, text),
    ),
}
