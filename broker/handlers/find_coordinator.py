"""FindCoordinator: which broker looks after a group, and where it is reached. Source: ``KafkaApis.getCoordinator``."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.broker.handlers.topic_creation import TopicCreation
from tidelog.broker.metadata_view import MetadataView
from tidelog.metadata_quorum.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE
from tidelog.model.names import GROUP_OFFSETS_TOPIC
from tidelog.proto.group_api import (
    GROUP_COORDINATOR,
    TRANSACTION_COORDINATOR,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.proto.network import CallContext


class FindCoordinator:
    """A group's coordinator is the leader of the partition of ``__consumer_offsets`` that the group falls to.

    The topic is made when it is asked for first, whatever ``auto.create.topics.enable`` says.
    ``partition_for`` says to which partition a group falls.
    """

    def __init__(self, view: MetadataView, creation: TopicCreation, partition_for: Callable[[str], int]) -> None:
        self._view = view
        self._creation = creation
        self._partition_for = partition_for

    async def handle(self, request: FindCoordinatorRequest, context: CallContext) -> FindCoordinatorResponse:
        if request.key_type != GROUP_COORDINATOR:
            why = (
                "this version has no transactions"
                if request.key_type == TRANSACTION_COORDINATOR
                else f"key type: expected 0 or 1, found {request.key_type}"
            )
            return FindCoordinatorResponse(
                tuple(Coordinator(key, ErrorCode.INVALID_REQUEST, error_message=why) for key in request.keys)
            )
        trouble = ""
        if request.keys and self._view.image.topic(GROUP_OFFSETS_TOPIC) is None:
            made = await self._creation.create((GROUP_OFFSETS_TOPIC,))
            _, trouble = made.get(GROUP_OFFSETS_TOPIC, (ErrorCode.NONE, "too many topics are being made"))
        image = self._view.image
        return FindCoordinatorResponse(
            tuple(self._coordinator(image, key, context.listener, trouble) for key in request.keys)
        )

    def _coordinator(self, image: MetadataImage, key: str, listener: str, trouble: str) -> Coordinator:
        topic = image.topic(GROUP_OFFSETS_TOPIC)
        if topic is None:
            return _unavailable(key, f"{GROUP_OFFSETS_TOPIC} could not be made: {trouble}")
        partition = self._partition_for(key)
        found = topic.partitions.get(partition)
        if found is None or found.leader == NO_NODE:
            return _unavailable(key, f"{GROUP_OFFSETS_TOPIC}-{partition} has no leader")
        broker = image.broker(found.leader)
        endpoint = None if broker is None or broker.fenced else broker.endpoint(listener)
        if endpoint is None:
            return _unavailable(key, f"broker {found.leader}, which leads {GROUP_OFFSETS_TOPIC}-{partition}, is away")
        return Coordinator(key, ErrorCode.NONE, found.leader, endpoint.host, endpoint.port)


def _unavailable(key: str, why: str) -> Coordinator:
    return Coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=why)
