"""Whether a sender may do an operation on what a request names, and the error if not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tidelog.broker.access.access import Access
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId
from tidelog.model.sinks import sink_attempt, sink_key
from tidelog.security.acls import AclOperation

READ, WRITE, CREATE, DELETE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE
ALTER, DESCRIBE, CLUSTER_ACTION = AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION
NONE: Final = ErrorCode.NONE
NO_TOPIC: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_TOPIC_ID: Final = ErrorCode.UNKNOWN_TOPIC_ID
NO_GROUP: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_CLUSTER: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
NO_TRANSACTION: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def transaction_name(transactional_id: str) -> str:
    """Return the resource for a transactional id. All transactions of a sink share one: ``__sink/<name>``."""
    attempt = sink_attempt(transactional_id)
    return transactional_id if attempt is None else sink_key(attempt.sink)


def topic_by_id(image: MetadataImage, topic_id: TopicId, access: Access, operation: AclOperation) -> ErrorCode:
    """Check ``operation`` on the topic with this id; a topic that may not be described is unknown."""
    topic = image.topics.get(topic_id)
    if topic is None or access.topic(operation, topic.name):
        return NONE
    return NO_TOPIC if access.quiet.topic(DESCRIBE, topic.name) else NO_TOPIC_ID


def of_topic(operation: AclOperation) -> Callable[[Any, Any, Access, MetadataImage], ErrorCode]:
    """Check an item with a ``topic``."""
    return lambda _, item, access, __: NONE if access.topic(operation, item.topic) else NO_TOPIC


def of_group(operation: AclOperation) -> Callable[[Any, Access], ErrorCode]:
    return lambda request, access: NONE if access.group(operation, request.group_id) else NO_GROUP


def of_transaction(request: Any, access: Access) -> ErrorCode:
    return NONE if access.transaction(WRITE, transaction_name(request.transactional_id)) else NO_TRANSACTION


def of_sink(operation: AclOperation) -> Callable[[Any, Access], ErrorCode]:
    return lambda request, access: NONE if access.transaction(operation, sink_key(request.sink)) else NO_TRANSACTION
