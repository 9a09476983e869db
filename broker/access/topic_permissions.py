"""Permissions for requests about topics and their records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tidelog.broker.access.access import Access
from tidelog.broker.access.resources import (
    ALTER,
    CLUSTER_ACTION,
    CREATE,
    DELETE,
    DESCRIBE,
    NO_TOPIC,
    NO_TOPIC_ID,
    NONE,
    of_topic,
    topic_by_id,
)
from tidelog.broker.access.rules import TEXTS, Rule, Serve, each, woven
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ZERO_TOPIC_ID
from tidelog.proto.calls.api import (
    CreatedTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteRecordsResult,
    DeleteTopicsRequest,
    EpochEnd,
    ListOffsetsRequest,
    ListOffsetsResult,
    MetadataRequest,
    MetadataResponse,
    OffsetForLeaderEpochRequest,
    TopicMetadata,
    TopicResult,
)
from tidelog.proto.calls.request import Request
from tidelog.security.acls import AclOperation


async def _metadata(request: MetadataRequest, access: Access, image: MetadataImage, serve: Serve) -> MetadataResponse:
    """Answer with the visible topics, if all are requested. Named topics are refused one by one if the sender may not
    see them, or if they are missing and it may not create them."""
    if request.all_topics:
        answer: MetadataResponse = await serve(request)
        seen = access.quiet
        return replace(answer, topics=tuple(found for found in answer.topics if seen.topic(DESCRIBE, found.name)))
    if request.topic_ids:
        answer = await serve(request)
        return replace(answer, topics=tuple(_seen_by_id(found, access) for found in answer.topics))
    faults = {name: _metadata_fault(name, request, access, image) for name in request.topics}
    kept = tuple(name for name, fault in faults.items() if not fault)
    answer = await serve(replace(request, topics=kept))
    text = TEXTS[NO_TOPIC]
    refused = (
        TopicMetadata(NO_TOPIC, name, ZERO_TOPIC_ID, False, (), text) if fault else None
        for name, fault in faults.items()
    )
    return replace(answer, topics=woven(refused, answer.topics))


async def metadata_of_what_is_there(
    request: MetadataRequest, access: Access, image: MetadataImage, serve: Serve
) -> MetadataResponse:
    """The rule where first use creates no topic, so a missing one is missing, whatever the sender may create."""
    return await _metadata(replace(request, allow_auto_topic_creation=False), access, image, serve)


def _metadata_fault(name: str, request: MetadataRequest, access: Access, image: MetadataImage) -> bool:
    if not access.topic(DESCRIBE, name):
        return True
    makes = request.allow_auto_topic_creation and image.topic(name) is None
    return makes and not (access.quiet.cluster(CREATE) or access.topic(CREATE, name))


def _seen_by_id(found: TopicMetadata, access: Access) -> TopicMetadata:
    if found.error is NO_TOPIC_ID or access.topic(DESCRIBE, found.name):
        return found
    return TopicMetadata(NO_TOPIC_ID, "", found.topic_id, False, (), TEXTS[NO_TOPIC_ID])


def _create_fault(_: object, topic: Any, access: Access, __: MetadataImage) -> ErrorCode:
    return NONE if access.quiet.cluster(CREATE) or access.topic(CREATE, topic.name) else NO_TOPIC


async def _delete_topics(request: DeleteTopicsRequest, access: Access, image: MetadataImage, serve: Serve) -> Any:
    def may(name: str) -> bool:
        return access.topic(DESCRIBE, name) and access.topic(DELETE, name)

    faults = [NONE if may(name) else NO_TOPIC for name in request.names]
    faults += [topic_by_id(image, topic_id, access, DELETE) for topic_id in request.topic_ids]
    if not any(faults):
        return await serve(request)
    names = tuple(name for name, error in zip(request.names, faults, strict=False) if not error)
    ids = tuple(each for each, error in zip(request.topic_ids, faults[len(request.names) :], strict=True) if not error)
    answer = await serve(replace(request, names=names, topic_ids=ids))
    asked = [(name, ZERO_TOPIC_ID) for name in request.names] + [("", topic_id) for topic_id in request.topic_ids]
    refused = (
        TopicResult(name, error, TEXTS[error], topic_id) if error else None
        for (name, topic_id), error in zip(asked, faults, strict=True)
    )
    return replace(answer, topics=woven(refused, answer.topics))


def _epoch_fault(_: object, item: Any, access: Access, image: MetadataImage) -> ErrorCode:
    return NONE if access.quiet.cluster(CLUSTER_ACTION) else topic_by_id(image, item.topic_id, access, DESCRIBE)


def _named(operation: AclOperation) -> Callable[[Any, Any, Access, MetadataImage], ErrorCode]:
    """Check a topic with a ``name``."""
    return lambda _, item, access, __: NONE if access.topic(operation, item.name) else NO_TOPIC


TOPICS: Final[dict[type[Request[Any]], Rule]] = {
    MetadataRequest: _metadata,
    CreateTopicsRequest: each(
        "topics", "topics", _create_fault, lambda topic, error, text: CreatedTopic(topic.name, error, text)
    ),
    DeleteTopicsRequest: _delete_topics,
    CreatePartitionsRequest: each(
        "topics", "topics", _named(ALTER), lambda topic, error, text: TopicResult(topic.name, error, text)
    ),
    ListOffsetsRequest: each(
        "partitions",
        "results",
        of_topic(DESCRIBE),
        lambda at, error, text: ListOffsetsResult(at.topic, at.partition, error, error_message=text),
    ),
    OffsetForLeaderEpochRequest: each(
        "partitions", "results", _epoch_fault, lambda at, error, _: EpochEnd(at.topic_id, at.partition, error)
    ),
    DeleteRecordsRequest: each(
        "partitions",
        "results",
        of_topic(DELETE),
        lambda at, error, text: DeleteRecordsResult(at.topic, at.partition, error, error_message=text),
    ),
}
