"""The calls of consumer groups, on their way to this node's coordinator.

What a coordinator cannot know is judged here, from the metadata: whether a topic partition exists whose
offset is committed or forgotten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tidelog.broker.metadata_view import MetadataView
from tidelog.broker.services import Calls
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.model.errors import ErrorCode
from tidelog.proto.group_api import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResult,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResult,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from tidelog.proto.network import CallContext, CallHandler


class GroupCalls:
    """Hands calls on in the order in which they come."""

    def __init__(self, coordinator: GroupCoordinator, view: MetadataView) -> None:
        self._coordinator = coordinator
        self._view = view

    def calls(self) -> Calls:
        coordinator = self._coordinator
        return {
            JoinGroupRequest: _handed_on(coordinator.join),
            SyncGroupRequest: _handed_on(coordinator.sync),
            HeartbeatRequest: _handed_on(coordinator.heartbeat),
            LeaveGroupRequest: _handed_on(coordinator.leave),
            OffsetCommitRequest: self.commit_offsets,
            OffsetFetchRequest: _handed_on(coordinator.fetch_offsets),
            OffsetDeleteRequest: self.delete_offsets,
            ListGroupsRequest: _handed_on(coordinator.list_groups),
            DescribeGroupsRequest: _handed_on(coordinator.describe),
            DeleteGroupsRequest: _handed_on(coordinator.delete_groups),
        }

    async def commit_offsets(self, request: OffsetCommitRequest, context: CallContext) -> OffsetCommitResponse:
        """Partitions that do not exist are refused one by one (``KafkaApis.handleOffsetCommitRequest``)."""
        known = tuple(item for item in request.partitions if self._exists(item.topic, item.partition))
        if len(known) == len(request.partitions):
            return await self._coordinator.commit_offsets(request, context)
        done: dict[tuple[str, int], OffsetCommitResult] = {}
        if known:
            some = OffsetCommitRequest(
                request.group_id, request.generation_id, request.member_id, request.group_instance_id, known
            )
            answer = await self._coordinator.commit_offsets(some, context)
            done = {(result.topic, result.partition): result for result in answer.results}
        return OffsetCommitResponse(
            tuple(
                done.get((item.topic, item.partition))
                or OffsetCommitResult(
                    item.topic,
                    item.partition,
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"there is no partition {item.topic}-{item.partition}",
                )
                for item in request.partitions
            )
        )

    async def delete_offsets(self, request: OffsetDeleteRequest, context: CallContext) -> OffsetDeleteResponse:
        """What is wrong with the group goes before what is wrong with a partition."""
        image = self._view.image
        known = tuple(item for item in request.partitions if image.topic(item.topic) is not None)
        answer = await self._coordinator.delete_offsets(OffsetDeleteRequest(request.group_id, known), context)
        if answer.error is not ErrorCode.NONE:
            return answer
        done = {(result.topic, result.partition): result for result in answer.results}
        return OffsetDeleteResponse(
            ErrorCode.NONE,
            tuple(
                done.get((item.topic, item.partition))
                or OffsetDeleteResult(item.topic, item.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                for item in request.partitions
            ),
        )

    def _exists(self, topic: str, partition: int) -> bool:
        found = self._view.image.topic(topic)
        return found is not None and partition in found.partitions


def _handed_on(work: Callable[[Any, CallContext], Awaitable[Any]]) -> CallHandler:
    async def serve(request: Any, context: CallContext) -> Any:
        return await work(request, context)

    return serve
