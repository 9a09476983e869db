"""No change that the audit log could not tell of (``audit.on.full=refuse``): it is refused, to be tried again."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from tidelog.broker.access.access import Access, AccessControl
from tidelog.broker.access.changes import CHANGES, Image
from tidelog.broker.access.rules import Rule
from tidelog.broker.notices import Notices
from tidelog.broker.services import Calls
from tidelog.metadata_quorum.controller.refusals import refuse
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.request import Request
from tidelog.proto.transport.network import CallContext, CallHandler
from tidelog.security.audit import Audit
from tidelog.security.authorizer import StandardAuthorizer, Who

ERROR: Final = ErrorCode.THROTTLING_QUOTA_EXCEEDED
TEXT: Final = "the audit log has no room to tell of this change (audit.on.full=refuse): nothing was changed; try again"
_NOBODY: Final = Access(StandardAuthorizer((), allows_unnamed=False), Who("", ""))
"""May do nothing: what the permissions answer it has the form that an answer of the request has."""
_DENIALS: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)


def only_audited(calls: Calls, rules: Mapping[type[Request[Any]], Rule], control: AccessControl, image: Image) -> Calls:
    """The same calls; those that change the cluster find room in the audit log first, or are refused."""
    audit = control.audit
    if audit is None or not audit.refuses:
        return calls
    notices = Notices()

    def wrapped(request_type: type[Request[Any]], handler: CallHandler, audit: Audit) -> CallHandler:
        says = CHANGES.get(request_type)
        if says is None:
            return handler

        async def serve(request: object, context: CallContext) -> Any:
            touched = sum(1 for _ in says(request, None, image()))
            if not touched:
                return await handler(request, context)
            room = audit.reserve(touched)
            if not room:
                now_s = asyncio.get_running_loop().time()
                notices.say(now_s, context.listener, context.peer, "the audit log has no room", "refusing a change of")
                return await _refused(request, rules[request_type], image, lambda rest: handler(rest, context))
            try:
                return await handler(request, context)
            finally:
                audit.release(room)

        return serve

    return {request_type: wrapped(request_type, handler, audit) for request_type, handler in calls.items()}


async def _refused(request: Any, rule: Rule, image: Image, serve: Callable[[Any], Awaitable[Any]]) -> Any:
    """The answer that says of each item, or of all, that it is refused."""

    says = CHANGES[type(request)]

    async def rest(passed: object) -> Any:
        if any(says(passed, None, image())):
            raise _NeedsNoRight
        return await serve(passed)  # what a rule leaves of a request whose items it refuses

    try:
        return _retold(await rule(request, _NOBODY, image(), rest))
    except _NeedsNoRight:
        return refuse(request, ERROR, TEXT)


class _NeedsNoRight(Exception):
    """A rule would let some of a request pass."""


def _retold(found: object) -> Any:
    """The same answer, with denials named as what they are here."""
    if isinstance(found, tuple) and not hasattr(found, "_fields"):
        return tuple(map(_retold, found))
    if not dataclasses.is_dataclass(found) or isinstance(found, type):
        return found
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(found):
        value = getattr(found, field.name)
        if isinstance(value, ErrorCode):
            if value in _DENIALS:
                changes[field.name] = ERROR
                if hasattr(found, "error_message"):
                    changes["error_message"] = TEXT
        elif (told := _retold(value)) is not value:
            changes[field.name] = told
    return dataclasses.replace(found, **changes) if changes else found
