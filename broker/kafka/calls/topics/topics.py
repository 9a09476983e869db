"""CreateTopics, DeleteTopics and CreatePartitions, translated; the controller decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from tidelog.broker.kafka.calls.common.translation import answered, asked, asked_each
from tidelog.broker.kafka.calls.topics.configs import shown
from tidelog.broker.kafka.wire.apis import Answer, Api, KafkaContext
from tidelog.broker.metadata.dynamic_config import Settings
from tidelog.broker.quotas.usage import charged
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ZERO_TOPIC_ID, NodeId, TopicId
from tidelog.proto.calls.api import (
    ConfigEntry,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewTopic,
    PartitionGrowth,
    ReplicaAssignment,
    TopicResult,
)
from tidelog.security.acls import AclOperation

STRICT_CREATE_TOPICS: Final = 6
STRICT_DELETE_TOPICS: Final = 5
STRICT_CREATE_PARTITIONS: Final = 3
"""From these versions on, clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


def apis(settings: Callable[[], Settings]) -> tuple[Api, ...]:
    """Return the APIs. ``settings`` returns the settings in force on this node."""
    create = partial(create_topics, settings=settings)
    return (Api(19, 2, 7, create), Api(20, 1, 6, delete_topics), Api(37, 0, 3, create_partitions))


async def create_topics(request: Any, version: int, context: KafkaContext, settings: Callable[[], Settings]) -> Answer:
    """Create topics. From version 5 on, the answer contains the topic's settings (KIP-525)."""
    topics = tuple(map(_new_topic, request.topics))
    pays = charged(context.call_context, strict=version >= STRICT_CREATE_TOPICS)
    answer = await context.call(CreateTopicsRequest(topics, request.timeout, request.validate_only, pays))
    given = {topic.name: topic.configs for topic in topics}
    results = []
    for made in answer.topics:
        result = answered(made)
        if version >= 5 and made.error is ErrorCode.NONE and not _may_see_configs(context, made.name):
            result |= {"topic_config_error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
            result |= {"num_partitions": -1, "replication_factor": -1}
        elif version >= 5 and made.error is ErrorCode.NONE:
            values = {entry.name: entry.value for entry in given[made.name] if entry.value is not None}
            result["configs"] = list(map(shown, settings().describe_topic(values)))
        results.append(result)
    return {"topics": results, "throttle_time": answer.throttle_time_ms}


def _may_see_configs(context: KafkaContext, name: str) -> bool:
    return context.access is None or context.access.quiet.topic(AclOperation.DESCRIBE_CONFIGS, name)


def _new_topic(topic: Any) -> NewTopic:
    assignments = tuple(
        ReplicaAssignment(given.partition_index, tuple(map(NodeId, given.broker_ids))) for given in topic.assignments
    )
    return asked(NewTopic, topic, assignments=assignments, configs=asked_each(ConfigEntry, topic.configs))


async def delete_topics(request: Any, version: int, context: KafkaContext) -> Answer:
    """Delete topics by name, and from version 6 on by id (KIP-516). Answers are in the order of the request."""
    items: list[tuple[str | None, TopicId]] = (
        [(topic.name, TopicId(topic.topic_id)) for topic in request.topics]
        if version >= 6
        else [(name, ZERO_TOPIC_ID) for name in request.topic_names]
    )
    names = [name for name, topic_id in items if name is not None and topic_id == ZERO_TOPIC_ID]
    ids = [topic_id for name, topic_id in items if name is None and topic_id != ZERO_TOPIC_ID]
    pays = charged(context.call_context, strict=version >= STRICT_DELETE_TOPICS)
    answer = await context.call(DeleteTopicsRequest(tuple(names), tuple(ids), request.timeout, pays))
    by_name, by_id = iter(answer.topics[: len(names)]), iter(answer.topics[len(names) :])
    results = []
    for name, topic_id in items:
        if (name is None) is (topic_id == ZERO_TOPIC_ID):
            found = "neither" if name is None else "both"
            text = f"expected either the name or the id of a topic, found {found}"
            results.append(answered(TopicResult("", ErrorCode.INVALID_REQUEST, text, topic_id)) | {"name": name})
            continue
        results.append(_deleted(next(by_id) if name is None else next(by_name), name, version))
    return {"responses": results, "throttle_time": answer.throttle_time_ms}


def _deleted(done: TopicResult, name: str | None, version: int) -> dict[str, Any]:
    error = done.error
    if error is ErrorCode.TOPIC_DELETION_DISABLED and version < 3:
        error = ErrorCode.INVALID_REQUEST  # these versions do not know the other error
    return answered(done) | {"name": done.name or name, "error_code": error}  # an empty name may be requested too


async def create_partitions(request: Any, version: int, context: KafkaContext) -> Answer:
    growths = tuple(
        PartitionGrowth(topic.name, topic.count, _new_partitions(topic.count, topic.assignments))
        for topic in request.topics
    )
    pays = charged(context.call_context, strict=version >= STRICT_CREATE_PARTITIONS)
    answer = await context.call(CreatePartitionsRequest(growths, request.timeout, request.validate_only, pays))
    return answered(answer, topics="results")


def _new_partitions(count: int, assignments: Sequence[Any] | None) -> tuple[ReplicaAssignment, ...]:
    """Return the replicas of the last partitions of ``count``. Kafka does not number them, because they can only be the
    last."""
    if assignments is None:
        return ()
    if not assignments:
        return (ReplicaAssignment(count, ()),)  # assignments for no partition are refused, unlike no assignments at all
    first = count - len(assignments)
    return tuple(
        ReplicaAssignment(first + at, tuple(map(NodeId, given.broker_ids))) for at, given in enumerate(assignments)
    )
