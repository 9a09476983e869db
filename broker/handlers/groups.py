"""The calls of consumer groups, on their way to this node's coordinator.

This module checks what a coordinator cannot know, from the metadata: whether the topic partition exists whose offset is
committed or deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from tidelog.broker.access.access import AccessControl
from tidelog.broker.handlers.known_partitions import commit_known
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.services import Calls
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.consumer_group_api import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidelog.proto.calls.group_api import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResult,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResult,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from tidelog.proto.transport.network import CallContext
from tidelog.security.acls import AclOperation


class GroupCalls:
    """Passes calls on in the order of arrival."""

    def __init__(self, coordinator: GroupCoordinator, view: MetadataView, access: AccessControl) -> None:
        self._coordinator = coordinator
        self._view = view
        self._access = access
        self._of_links: dict[asyncio.Future[OffsetCommitResponse], None] = {}
        """Commits of links in progress."""

    def calls(self) -> Calls:
        coordinator = self._coordinator
        return {
            JoinGroupRequest: coordinator.join,
            SyncGroupRequest: coordinator.sync,
            HeartbeatRequest: coordinator.heartbeat,
            LeaveGroupRequest: coordinator.leave,
            ConsumerGroupHeartbeatRequest: self.consumer_heartbeat,
            ConsumerGroupDescribeRequest: coordinator.describe_consumer,
            OffsetCommitRequest: self.commit_offsets,
            OffsetFetchRequest: coordinator.fetch_offsets,
            OffsetDeleteRequest: self.delete_offsets,
            ListGroupsRequest: coordinator.list_groups,
            DescribeGroupsRequest: coordinator.describe,
            DeleteGroupsRequest: coordinator.delete_groups,
        }

    async def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, context: CallContext
    ) -> ConsumerGroupHeartbeatResponse:
        """Pass on a heartbeat. A regular expression matches no topic that the member may not describe."""
        fault = await self._view.gate_fault(type(request))
        if fault is not None:
            return ConsumerGroupHeartbeatResponse(ErrorCode.UNSUPPORTED_VERSION, fault)
        access = self._access.of(context, "ConsumerGroupHeartbeat")
        quiet = None if access is None else access.quiet

        def may_see(topic: str) -> bool:
            return quiet is None or quiet.topic(AclOperation.DESCRIBE, topic)

        return await self._coordinator.consumer_heartbeat(request, context, may_see)

    async def commit_offsets(self, request: OffsetCommitRequest, context: CallContext) -> OffsetCommitResponse:
        """Commit offsets. A link learns that it may no longer commit only after its earlier commits have ended: a
        promotion waits for that."""
        under_way = tuple(self._of_links)

        async def commit(known: tuple[OffsetCommitPartition, ...]) -> Sequence[OffsetCommitResult]:
            committed = self._coordinator.commit_offsets(replace(request, partitions=known), context)
            if request.link:
                self._of_links[committed] = None
                committed.add_done_callback(self._of_links.pop)
            return (await committed).results

        results = await commit_known(self._view.image, request.partitions, commit, request.link)
        if request.link and under_way and any(found.error is ErrorCode.INVALID_REQUEST for found in results):
            await asyncio.wait(under_way)
        return OffsetCommitResponse(results)

    async def delete_offsets(self, request: OffsetDeleteRequest, context: CallContext) -> OffsetDeleteResponse:
        """Delete offsets. An error of the group takes precedence over an error of a partition."""
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
