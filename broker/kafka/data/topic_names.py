"""Maps topic names in Kafka's data requests to the ids of replicas and back, by the newest image."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.broker.access.access import Access
from tidelog.broker.access.resources import topic_by_id
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_LEADER_EPOCH, NO_NODE, LeaderEpoch, NodeId, TopicId
from tidelog.proto.kafka.endpoints import NodeEndpoint
from tidelog.security.acls import AclOperation


def text_of(name: bytes) -> str:
    """Decode a name. Invalid UTF-8 names no topic."""
    return name.decode("utf-8", "replace")


class TopicNames:
    """Looks up topics named by one listener's requests. Names are kept as received, in UTF-8."""

    def __init__(self, view: MetadataView, listener: str) -> None:
        self._view = view
        self._listener = listener
        self._image: MetadataImage | None = None
        self._ids: dict[bytes, TopicId] = {}
        self._version = 0

    @property
    def version(self) -> int:
        """Rises with each image: a lookup under another one may have another result now."""
        self._look()
        return self._version

    def _look(self) -> None:
        image = self._view.image
        if image is not self._image:
            self._image = image
            self._ids.clear()
            self._version += 1

    def id_of(self, name: bytes) -> TopicId | None:
        """Return the topic's id, ``None`` if it does not exist."""
        self._look()
        found = self._ids.get(name)
        if found is None:
            found = self._view.image.topic_ids.get(text_of(name))
            if found is not None:
                self._ids[name] = found
        return found

    def by_id(self, topic_id: TopicId, access: Access, operation: AclOperation) -> ErrorCode:
        """Check an operation on a topic; one that may not be described is unknown."""
        return topic_by_id(self._view.image, topic_id, access, operation)

    def not_here(self, topic_id: TopicId, partition: int, *, by_id: bool) -> tuple[ErrorCode, NodeId, LeaderEpoch]:
        """Return the error for a partition without a replica here, and its leader."""
        topic = self._view.image.topics.get(topic_id)
        if topic is None:
            error = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return error, NO_NODE, NO_LEADER_EPOCH
        found = topic.partitions.get(partition)
        if found is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_NODE, NO_LEADER_EPOCH
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, found.leader, found.leader_epoch

    def is_zstd(self, topic_id: TopicId) -> bool:
        """Return whether the topic's own ``compression.type`` is zstd."""
        image = self._view.image
        topic = image.topics.get(topic_id)
        return topic is not None and image.config("topic", topic.name).get("compression.type") == "zstd"

    def endpoints(self, nodes: Iterable[NodeId]) -> list[NodeEndpoint]:
        """Return the live brokers' addresses at this listener."""
        image = self._view.image
        out = []
        for node_id in sorted(nodes):
            broker = image.broker(node_id)
            found = None if broker is None or broker.fenced else broker.endpoint(self._listener)
            if broker is not None and found is not None:
                out.append(NodeEndpoint(node_id, found.host, found.port, broker.rack))
        return out
