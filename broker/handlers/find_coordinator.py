"""FindCoordinator: which broker looks after a group or a transactional id, and where it is reached.

Source: ``KafkaApis.getCoordinator``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tidelog.broker.handlers.topic_creation import TopicCreation
from tidelog.broker.metadata_view import MetadataView
from tidelog.metadata_quorum.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE
from tidelog.proto.group_api import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.proto.network import CallContext


class Place(NamedTuple):
    """Whose leaders coordinate keys of one type: a topic, and to which of its partitions a key falls."""

    topic: str
    partition_for: Callable[[str], int]


class FindCoordinator:
    """A key's coordinator is the leader of the partition that it falls to, of its type's topic.

    The topic is made when it is asked for first, whatever ``auto.create.topics.enable`` says.
    ``places`` by key type (``GROUP_COORDINATOR``, ``TRANSACTION_COORDINATOR``).
    """

    def __init__(self, view: MetadataView, creation: TopicCreation, places: Mapping[int, Place]) -> None:
        self._view = view
        self._creation = creation
        self._places = places

    async def handle(self, request: FindCoordinatorRequest, context: CallContext) -> FindCoordinatorResponse:
        place = self._places.get(request.key_type)
        if place is None:
            why = f"key type: expected {' or '.join(map(str, self._places))}, found {request.key_type}"
            return FindCoordinatorResponse(
                tuple(Coordinator(key, ErrorCode.INVALID_REQUEST, error_message=why) for key in request.keys)
            )
        trouble = ""
        if request.keys and self._view.image.topic(place.topic) is None:
            made = await self._creation.create((place.topic,))
            _, trouble = made.get(place.topic, (ErrorCode.NONE, "too many topics are being made"))
        image = self._view.image
        return FindCoordinatorResponse(
            tuple(_coordinator(image, place, key, context.listener, trouble) for key in request.keys)
        )


def _coordinator(image: MetadataImage, place: Place, key: str, listener: str, trouble: str) -> Coordinator:
    topic = image.topic(place.topic)
    if topic is None:
        return _unavailable(key, f"{place.topic} could not be made: {trouble}")
    partition = place.partition_for(key)
    found = topic.partitions.get(partition)
    if found is None or found.leader == NO_NODE:
        return _unavailable(key, f"{place.topic}-{partition} has no leader")
    broker = image.broker(found.leader)
    endpoint = None if broker is None or broker.fenced else broker.endpoint(listener)
    if endpoint is None:
        return _unavailable(key, f"broker {found.leader}, which leads {place.topic}-{partition}, is away")
    return Coordinator(key, ErrorCode.NONE, found.leader, endpoint.host, endpoint.port)


def _unavailable(key: str, why: str) -> Coordinator:
    return Coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=why)
