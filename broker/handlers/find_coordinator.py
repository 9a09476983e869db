"""FindCoordinator: which broker coordinates a group or transactional id, and its address.

Source: ``KafkaApis.getCoordinator``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tidelog.broker.handlers.topic_creation import TopicCreation
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE
from tidelog.proto.calls.group_api import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.proto.transport.network import CallContext


class CoordinatorTopic(NamedTuple):
    """The topic whose leaders coordinate one type of key, and the mapping from keys to its partitions."""

    topic: str
    partition_for: Callable[[str], int]


class FindCoordinator:
    """A key's coordinator is the leader of its partition in the topic of its type.

    The topic is created on first use, whatever ``auto.create.topics.enable`` says.
    ``topics`` by key type (``GROUP_COORDINATOR``, ``TRANSACTION_COORDINATOR``).
    """

    def __init__(self, view: MetadataView, creation: TopicCreation, topics: Mapping[int, CoordinatorTopic]) -> None:
        self._view = view
        self._creation = creation
        self._topics = topics

    async def handle(self, request: FindCoordinatorRequest, context: CallContext) -> FindCoordinatorResponse:
        home = self._topics.get(request.key_type)
        if home is None:
            why = f"key type: expected {' or '.join(map(str, self._topics))}, found {request.key_type}"
            return FindCoordinatorResponse(
                tuple(Coordinator(key, ErrorCode.INVALID_REQUEST, error_message=why) for key in request.keys)
            )
        trouble = ""
        if request.keys and self._view.image.topic(home.topic) is None:
            made = await self._creation.create((home.topic,))
            _, trouble = made.get(home.topic, (ErrorCode.NONE, "too many topics are being created"))
        image = self._view.image
        return FindCoordinatorResponse(
            tuple(_coordinator(image, home, key, context.listener, trouble) for key in request.keys)
        )


def _coordinator(image: MetadataImage, home: CoordinatorTopic, key: str, listener: str, trouble: str) -> Coordinator:
    topic = image.topic(home.topic)
    if topic is None:
        return _unavailable(key, f"{home.topic} could not be created: {trouble}")
    partition = home.partition_for(key)
    found = topic.partitions.get(partition)
    if found is None or found.leader == NO_NODE:
        return _unavailable(key, f"{home.topic}-{partition} has no leader")
    broker = image.broker(found.leader)
    endpoint = None if broker is None or broker.fenced else broker.endpoint(listener)
    if endpoint is None:
        return _unavailable(key, f"broker {found.leader}, which leads {home.topic}-{partition}, is not available")
    return Coordinator(key, ErrorCode.NONE, found.leader, endpoint.host, endpoint.port)


def _unavailable(key: str, why: str) -> Coordinator:
    return Coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=why)
