"""Metadata and DescribeTopicPartitions: partitions with their leaders, and the brokers' addresses.

Every client requests it at its start and on each leader change, so its bytes are cached: a topic's until the topic or
some broker's registration changes, whole answers until the image changes.
"""

from __future__ import annotations

from typing import Any, Final

from tidelog.broker.kafka.calls.cluster.metadata_bytes import OPERATIONS_NOT_ASKED, response_bytes, topic_bytes
from tidelog.broker.kafka.calls.common.authorized_operations import operations_on, operations_on_cluster
from tidelog.broker.kafka.calls.common.translation import answered
from tidelog.broker.kafka.wire.apis import Answer, Api, KafkaContext
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, ZERO_TOPIC_ID, NodeId, TopicId
from tidelog.proto.calls.api import MetadataRequest, MetadataResponse, PartitionMetadata, TopicMetadata
from tidelog.proto.kafka.messages import field
from tidelog.security.acls import ResourceType
from tidelog.security.authorizer import Who

ANSWERS_KEPT_MAX: Final = 64
ANSWER_BYTES_KEPT_MAX: Final = 16 * 2**20
TOPIC_BYTES_KEPT_MAX: Final = 32 * 2**20
"""Limit of the cache; beyond it, everything is dropped and rebuilt on demand."""
FORMS_OF_TOPIC: Final = 8
"""Cached versions and forms per topic of the image; more would belong to deleted topics."""
FORMS_LEAST: Final = 64
PARTITIONS_MAX: Final = 2_000
"""Maximum partitions in an answer to DescribeTopicPartitions (Kafka's ``max.request.partition.size.limit``)."""


def apis(view: MetadataView, node_id: NodeId) -> tuple[Api, ...]:
    """Return the APIs. ``node_id``: the answering broker."""
    return (Api(3, 0, 13, KafkaMetadata(view, node_id).handle), Api(75, 0, 0, describe_topic_partitions))


class KafkaMetadata:
    """Answers Metadata in bytes."""

    def __init__(self, view: MetadataView, node_id: NodeId) -> None:
        self._view = view
        self._node_id = node_id
        self._image: MetadataImage | None = None
        self._answers: dict[tuple[int, str, Who | None, Any], bytes] = {}
        self._answer_bytes = 0
        self._topics: dict[tuple[int, int, TopicId], tuple[TopicMetadata, bytes]] = {}
        self._topic_bytes = 0

    async def handle(self, request: Any, version: int, context: KafkaContext) -> Answer:
        if self._view.image is not self._image:
            self._image = self._view.image
            self._answers.clear()
            self._answer_bytes = 0
        access = context.access
        key = (version, context.listener, None if access is None else access.who, request)
        known = self._answers.get(key)
        if known is not None:
            return known
        asked = _asked(request, version)
        if asked is None:
            names = [topic.name or "" for topic in request.topics]
            topics = [{"name": name, "error_code": ErrorCode.INVALID_REQUEST} for name in names]
            return {"topics": topics}
        image = self._view.image
        answer: MetadataResponse = await context.call(asked)
        about_topics = field(request, "include_topic_authorized_operations", False)
        about_cluster = field(request, "include_cluster_authorized_operations", False)
        made = response_bytes(
            answer,
            [
                self._topic(topic, version, operations_on(access, ResourceType.TOPIC, topic.name))
                if about_topics
                else self._topic(topic, version, OPERATIONS_NOT_ASKED)
                for topic in answer.topics
            ],
            version,
            controller_id=reachable_controller(answer, self._node_id),
            cluster_operations=operations_on_cluster(access) if about_cluster else OPERATIONS_NOT_ASKED,
        )
        if image is self._image is self._view.image and _holds(answer, image):
            self._keep(key, made)
        return made

    def _keep(self, key: tuple[int, str, Who | None, Any], made: bytes) -> None:
        if len(self._answers) >= ANSWERS_KEPT_MAX or self._answer_bytes + len(made) > ANSWER_BYTES_KEPT_MAX:
            self._answers.clear()
            self._answer_bytes = 0
        if len(made) <= ANSWER_BYTES_KEPT_MAX:
            self._answers[key] = made
            self._answer_bytes += len(made)

    def _topic(self, topic: TopicMetadata, version: int, shown: int) -> bytes:
        if topic.error is not ErrorCode.NONE:
            return topic_bytes(topic, version, shown)
        key = (version, shown, topic.topic_id)
        known = self._topics.get(key)
        # Unchanged topics are the same object: see the handler.
        if known is not None and known[0] is topic:
            return known[1]
        made = topic_bytes(topic, version, shown)
        if known is not None:
            del self._topics[key]
            self._topic_bytes -= len(known[1])
        forms_max = FORMS_OF_TOPIC * len(self._view.image.topics) + FORMS_LEAST
        if len(self._topics) >= forms_max or self._topic_bytes + len(made) > TOPIC_BYTES_KEPT_MAX:
            self._topics.clear()
            self._topic_bytes = 0
        if len(made) <= TOPIC_BYTES_KEPT_MAX:
            self._topics[key] = (topic, made)
            self._topic_bytes += len(made)
        return made


def _holds(answer: MetadataResponse, image: MetadataImage) -> bool:
    """Return whether the answer is valid as long as the image is. An error may change, because the topic is being
    created, and a fenced broker is named only for a while."""
    return all(topic.error is ErrorCode.NONE for topic in answer.topics) and not any(
        _fenced(image, broker.node_id) for broker in answer.brokers
    )


def _fenced(image: MetadataImage, node_id: NodeId) -> bool:
    found = image.broker(node_id)
    return found is None or found.fenced


def _asked(request: Any, version: int) -> MetadataRequest | None:
    """Convert the request to our own call; ``None`` if this version cannot express it
    (``KafkaApis.handleTopicMetadataRequest``)."""
    create = field(request, "allow_auto_topic_creation", True)
    if request.topics is None or (version == 0 and not request.topics):
        return MetadataRequest(all_topics=True, allow_auto_topic_creation=create)
    ids = [topic.topic_id for topic in request.topics if field(topic, "topic_id", ZERO_TOPIC_ID) != ZERO_TOPIC_ID]
    if version < 12 and (ids or any(topic.name is None for topic in request.topics)):
        return None
    if ids:
        return MetadataRequest(topic_ids=tuple(map(TopicId, ids)))
    names = tuple(topic.name for topic in request.topics if topic.name is not None)
    return MetadataRequest(names, allow_auto_topic_creation=create)


def reachable_controller(answer: MetadataResponse, own: NodeId) -> NodeId:
    """Return the broker to which clients should send controller requests; any broker forwards them.

    It is the answering broker, ``own``, because it is alive and reachable. The real controller may have just died, or
    may not be a broker, and some clients would wait for it as long as they can (Kafka names any live broker:
    ``MetadataCache.getRandomAliveBrokerId``).
    """
    nodes = [broker.node_id for broker in answer.brokers]
    if own in nodes or not nodes:
        return own if nodes else NO_NODE
    return answer.controller_id if answer.controller_id in nodes else nodes[0]


async def describe_topic_partitions(request: Any, _: int, context: KafkaContext) -> Answer:
    """Describe topics page by page, ordered by name (KIP-966, ``DescribeTopicPartitionsRequestHandler``)."""
    names = tuple(sorted({topic.name for topic in request.topics}))
    cursor = request.cursor
    first_partition = 0
    if cursor is not None:
        if cursor.partition_index < 0:
            return {"topics": [{"name": name, "error_code": ErrorCode.INVALID_REQUEST} for name in names]}
        names = tuple(name for name in names if name >= cursor.topic_name)
    asks_all = not request.topics
    answer: MetadataResponse = await context.call(
        MetadataRequest(all_topics=True) if asks_all else MetadataRequest(names)
    )
    left = max(min(request.response_partition_limit, PARTITIONS_MAX), 1)
    topics: list[dict[str, Any]] = []
    for topic in answer.topics:
        if cursor is not None and topic.name < cursor.topic_name:
            continue
        first_partition = cursor.partition_index if cursor is not None and topic.name == cursor.topic_name else 0
        if left <= 0:
            return {"topics": topics, "next_cursor": {"topic_name": topic.name, "partition_index": first_partition}}
        shown = topic.partitions[first_partition : first_partition + left]
        left -= len(shown)
        topics.append(
            {
                "error_code": topic.error,
                "name": topic.name,
                "topic_id": topic.topic_id,
                "is_internal": topic.is_internal,
                "partitions": list(map(_partition, shown)),
                "topic_authorized_operations": operations_on(context.access, ResourceType.TOPIC, topic.name),
            }
        )
        end = first_partition + len(shown)
        if end < len(topic.partitions):
            return {"topics": topics, "next_cursor": {"topic_name": topic.name, "partition_index": end}}
    return {"topics": topics}


def _partition(found: PartitionMetadata) -> dict[str, Any]:
    names = {"partition": "partition_index", "leader": "leader_id", "replicas": "replica_nodes", "isr": "isr_nodes"}
    return answered(found, **names)
