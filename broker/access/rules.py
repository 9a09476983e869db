"""The forms that a permission has: for a request as a whole, for each of its items, for each item of its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from tidelog.broker.access.access import Access
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.security.acls import AclOperation

T = TypeVar("T")
Serve = Callable[[Any], Awaitable[Any]]
"""The handler of a request, without its context."""
Rule = Callable[[Any, Access, MetadataImage, Serve], Awaitable[Any]]
"""Serves a request as far as its sender may; refuses the rest."""
Refuse = Callable[[Any, ErrorCode, str], Any]
"""Makes the answer to a request, or to an item, that says an error for all of it."""

TEXTS: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "Delegation Token authorization failed.",
    ErrorCode.UNKNOWN_TOPIC_ID: "there is no topic of this id",
}
"""Kafka's words; they tell a stranger nothing."""


def woven(refused: Iterable[T | None], served: Iterable[T]) -> tuple[T, ...]:
    """The results of what was served, between those of what was refused. What a request names repeatedly may be served
    once: then there are fewer results, and none is missed."""
    rest = iter(served)
    between = (next(rest, None) if each is None else each for each in refused)
    return tuple(each for each in between if each is not None)


def free() -> Rule:
    """Everybody may."""

    async def rule(request: Any, _: Access, __: MetadataImage, serve: Serve) -> Any:
        return await serve(request)

    return rule


def whole(fault: Callable[[Any, Access], ErrorCode], refuse: Refuse) -> Rule:
    """``fault`` says why the request is refused; NONE if it is not."""

    async def rule(request: Any, access: Access, _: MetadataImage, serve: Serve) -> Any:
        error = fault(request, access)
        return await serve(request) if error is ErrorCode.NONE else refuse(request, error, TEXTS[error])

    return rule


def on_cluster(operation: AclOperation, refuse: Refuse) -> Rule:
    """The whole request needs ``operation`` on the cluster."""
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return whole(lambda _, access: ErrorCode.NONE if access.cluster(operation) else denied, refuse)


def each(
    items: str, answered: str, fault: Callable[[Any, Any, Access, MetadataImage], ErrorCode], refuse: Refuse
) -> Rule:
    """The items of the field ``items`` are judged one by one: those without fault are served, the results of the
    others stand between theirs, in the order of the request, in the answer's field ``answered``. ``fault`` takes
    the request and an item."""

    async def rule(request: Any, access: Access, image: MetadataImage, serve: Serve) -> Any:
        given: Sequence[Any] = getattr(request, items)
        faults = [fault(request, item, access, image) for item in given]
        if not any(faults):
            return await serve(request)
        kept = tuple(item for item, error in zip(given, faults, strict=True) if not error)
        answer = await serve(replace(request, **{items: kept}))
        found = getattr(answer, answered)
        if len(found) != len(kept):
            return answer  # refused as a whole
        refused = [
            refuse(item, error, TEXTS[error]) if error else None for item, error in zip(given, faults, strict=True)
        ]
        return replace(answer, **{answered: woven(refused, found)})

    return rule


def shown(answered: str, may_see: Callable[[Any, Access], bool]) -> Rule:
    """Of the answer's field ``answered``, only what the sender may see is left."""

    async def rule(request: Any, access: Access, _: MetadataImage, serve: Serve) -> Any:
        answer, quiet = await serve(request), access.quiet
        return replace(answer, **{answered: tuple(item for item in getattr(answer, answered) if may_see(item, quiet))})

    return rule


def both(first: Rule, second: Rule) -> Rule:
    """What ``first`` lets through is judged by ``second``."""

    async def rule(request: Any, access: Access, image: MetadataImage, serve: Serve) -> Any:
        async def go_on(passed: Any) -> Any:
            return await second(passed, access, image, serve)

        return await first(request, access, image, go_on)

    return rule
