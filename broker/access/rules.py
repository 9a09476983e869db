"""The kinds of permission rules: for a whole request, for each of its items, for each item of its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from tidelog.broker.access.access import Access
from tidelog.metadata_quorum.controller.refusals import refuse as refuse_whole
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.security.acls import AclOperation

T = TypeVar("T")
Serve = Callable[[Any], Awaitable[Any]]
"""A request's handler, without its context."""
Rule = Callable[[Any, Access, MetadataImage, Serve], Awaitable[Any]]
"""Serves the part of a request that its sender may do; refuses the rest."""
Refuse = Callable[[Any, ErrorCode, str], Any]
"""Makes an answer to a request or item that reports an error for all of it."""

TEXTS: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "Delegation Token authorization failed.",
    ErrorCode.UNKNOWN_TOPIC_ID: "no topic has this id",
}
"""Kafka's texts; they reveal nothing to a stranger."""


def woven(refused: Iterable[T | None], served: Iterable[T]) -> tuple[T, ...]:
    """Merge the results of served items with those of refused ones. Items that a request names repeatedly may be served
    once; then there are fewer results, but none is lost."""
    rest = iter(served)
    between = (next(rest, None) if each is None else each for each in refused)
    return tuple(each for each in between if each is not None)


def free() -> Rule:
    """Allow everybody."""

    async def rule(request: object, _: Access, __: MetadataImage, serve: Serve) -> Any:
        return await serve(request)

    return rule


def whole(fault: Callable[[Any, Access], ErrorCode], refuse: Refuse = refuse_whole) -> Rule:
    """Refuse the whole request with the error that ``fault`` returns, unless it is NONE."""

    async def rule(request: object, access: Access, _: MetadataImage, serve: Serve) -> Any:
        error = fault(request, access)
        return await serve(request) if error is ErrorCode.NONE else refuse(request, error, TEXTS[error])

    return rule


def on_cluster(operation: AclOperation, refuse: Refuse = refuse_whole) -> Rule:
    """Require ``operation`` on the cluster for the whole request."""
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return whole(lambda _, access: ErrorCode.NONE if access.cluster(operation) else denied, refuse)


def each(
    items: str, answered: str, fault: Callable[[Any, Any, Access, MetadataImage], ErrorCode], refuse: Refuse
) -> Rule:
    """Check the items of the field ``items`` one by one: serve those without a fault, and insert the results of the
    others, in the order of the request, into the answer's field ``answered``. ``fault`` gets the request and an
    item."""

    async def rule(request: Any, access: Access, image: MetadataImage, serve: Serve) -> Any:
        given: Sequence[Any] = getattr(request, items)
        faults = [fault(request, item, access, image) for item in given]
        if not any(faults):
            return await serve(request)
        kept = tuple(item for item, error in zip(given, faults, strict=True) if not error)
        answer = await serve(replace(request, **{items: kept}))
        found = getattr(answer, answered)
        if len(found) != len(kept):
            return answer  # the whole request was refused
        refused = [
            refuse(item, error, TEXTS[error]) if error else None for item, error in zip(given, faults, strict=True)
        ]
        return replace(answer, **{answered: woven(refused, found)})

    return rule


def shown(answered: str, may_see: Callable[[Any, Access], bool]) -> Rule:
    """Keep only what the sender may see in the answer's field ``answered``."""

    async def rule(request: object, access: Access, _: MetadataImage, serve: Serve) -> Any:
        answer, quiet = await serve(request), access.quiet
        return replace(answer, **{answered: tuple(item for item in getattr(answer, answered) if may_see(item, quiet))})

    return rule


def both(first: Rule, second: Rule) -> Rule:
    """Apply ``second`` to what ``first`` lets through."""

    async def rule(request: object, access: Access, image: MetadataImage, serve: Serve) -> Any:
        async def go_on(passed: object) -> Any:
            return await second(passed, access, image, serve)

        return await first(request, access, image, go_on)

    return rule
