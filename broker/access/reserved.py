"""Keeps what belongs to delay topics' leaders from everybody else, where no authorizer does.

Their transactional ids and groups are asked about at listeners between nodes only. With an authorizer, whoever uses
them needs CLUSTER_ACTION (:meth:`tidelog.broker.access.access.Access.group`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from tidelog.broker.access.access import Access
from tidelog.broker.access.permissions import PERMISSIONS
from tidelog.broker.services import Calls
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.names import is_delay_service
from tidelog.proto.calls.consumer_group_api import ConsumerGroupHeartbeatRequest
from tidelog.proto.calls.group_api import (
    DeleteGroupsRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
)
from tidelog.proto.calls.request import Request
from tidelog.proto.calls.transaction_api import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from tidelog.proto.transport.network import CallContext, CallHandler
from tidelog.security.acls import AclOperation

_CHANGES: Final[tuple[type[Request[Any]], ...]] = (
    AddOffsetsToTxnRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    TxnOffsetCommitRequest,
)


class _Anybody:
    """What a client may do where nobody is asked: everything but this."""

    @property
    def quiet(self) -> _Anybody:
        return self

    denials_only = quiet

    def group(self, operation: AclOperation, name: str) -> bool:
        return operation is AclOperation.DESCRIBE or not is_delay_service(name)

    def transaction(self, operation: AclOperation, name: str) -> bool:
        return self.group(operation, name)

    def topic(self, operation: AclOperation, name: str) -> bool:
        return True

    def cluster(self, operation: AclOperation) -> bool:
        return True

    def any_topic(self, operation: AclOperation) -> bool:
        return True


def reserving(calls: Calls, node_listeners: frozenset[str], image: Callable[[], MetadataImage]) -> Calls:
    """The same calls, of which those that name what is reserved are refused to clients."""
    anybody = cast(Access, _Anybody())

    def wrapped(request_type: type[Request[Any]], handler: CallHandler) -> CallHandler:
        rule = PERMISSIONS[request_type]

        async def serve(request: object, context: CallContext) -> object:
            if context.listener in node_listeners:
                return await handler(request, context)
            return await rule(request, anybody, image(), lambda passed: handler(passed, context))

        return serve

    return {
        request_type: wrapped(request_type, handler) if request_type in _CHANGES else handler
        for request_type, handler in calls.items()
    }
