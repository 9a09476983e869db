"""The active controller also authorizes changes: by its own image, for the client that a broker names (KIP-590).

So a broker with an old image lets through only what the controller then refuses. A broker that lies about its client is
not detected, but leaves that name in the controller's audit log. Source: Kafka's ``ControllerApis``, ``EnvelopeUtils``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidelog.broker.access.access import AccessControl
from tidelog.broker.access.changes import Image, api_of, audited
from tidelog.broker.access.permissions import PERMISSIONS
from tidelog.broker.access.rules import Rule
from tidelog.broker.services import Calls
from tidelog.model.names import is_internal
from tidelog.proto.calls.api import CreateTopicsRequest
from tidelog.proto.calls.request import Change
from tidelog.proto.transport.network import CallContext, CallHandler


def judged(calls: Calls, control: AccessControl, image: Image, active: Callable[[], bool], *, local: bool) -> Calls:
    """Wrap a controller's calls so that changes are limited to their client's rights. ``local``: for the broker of the
    same node, which records its changes itself."""
    if control.authorizer is None and control.audit is None:
        return calls
    told = calls if local else audited(calls, control, image, forwarded=True)

    def wrapped(request_type: type[Any], handler: CallHandler) -> CallHandler:
        rule, name = PERMISSIONS[request_type], api_of(request_type)
        judges = _judging(name, rule, told[request_type], control, image, local=local)

        async def serve(request: object, context: CallContext) -> Any:
            # Other controllers may have an old image; they answer that they are not active.
            return await (judges if active() else handler)(request, context)

        return serve

    return {
        request_type: wrapped(request_type, handler) if issubclass(request_type, Change) else handler
        for request_type, handler in calls.items()
    }


def _judging(
    name: str, rule: Rule, handler: CallHandler, control: AccessControl, image: Image, *, local: bool
) -> CallHandler:
    async def serve(request: Change[Any], context: CallContext) -> Any:
        if request.forwarded is None and (local or _is_of_cluster(request)):
            return await handler(request, context)
        access = control.of(context, name, request.forwarded)
        if access is None:
            return await handler(request, context)
        return await rule(request, access, image(), lambda passed: handler(passed, context))

    return serve


def _is_of_cluster(request: Change[Any]) -> bool:
    """Return whether any node may request it in its own name, because it creates the cluster's own topics."""
    return isinstance(request, CreateTopicsRequest) and all(is_internal(topic.name) for topic in request.topics)
