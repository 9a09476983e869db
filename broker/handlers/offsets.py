"""Calls about a partition's offsets, on their way to this node's replicas.

This module checks what a replica manager cannot know: a partition without a replica here may exist elsewhere. A client
that asks for one then learns that its leaders are outdated, not that the partition is unknown
(``ReplicaManager.getPartitionOrError``).
"""

from __future__ import annotations

from dataclasses import replace

from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.services import Calls
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.api import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from tidelog.proto.transport.network import CallContext
from tidelog.replication.manager import ReplicaManager


class Offsets:
    """Queries the replicas, and corrects what they cannot know."""

    def __init__(self, replicas: ReplicaManager, view: MetadataView) -> None:
        self._replicas = replicas
        self._view = view

    def calls(self) -> Calls:
        return {
            ListOffsetsRequest: self.list_offsets,
            OffsetForLeaderEpochRequest: self.offset_for_leader_epoch,
            DeleteRecordsRequest: self.delete_records,
        }

    async def list_offsets(self, request: ListOffsetsRequest, _: CallContext) -> ListOffsetsResponse:
        results = self._replicas.list_offsets(request).results
        return ListOffsetsResponse(
            tuple(replace(found, error=self._error(found.error, found.topic, found.partition)) for found in results)
        )

    async def delete_records(self, request: DeleteRecordsRequest, _: CallContext) -> DeleteRecordsResponse:
        results = (await self._replicas.delete_records(request)).results
        return DeleteRecordsResponse(
            tuple(replace(found, error=self._error(found.error, found.topic, found.partition)) for found in results)
        )

    async def offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest, _: CallContext
    ) -> OffsetForLeaderEpochResponse:
        image = self._view.image
        results = self._replicas.offset_for_leader_epoch(request).results
        return OffsetForLeaderEpochResponse(
            tuple(
                replace(found, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
                if found.error is ErrorCode.UNKNOWN_TOPIC_ID and image.partition(found.topic_id, found.partition)
                else found
                for found in results
            )
        )

    def _error(self, error: ErrorCode, topic: str, partition: int) -> ErrorCode:
        if error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return error
        found = self._view.image.topic(topic)
        exists = found is not None and partition in found.partitions
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if exists else error
