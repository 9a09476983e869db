"""Requests about groups and transactional ids: each goes to its coordinator, and is repeated if that has moved or is
loading.

Source of the rules: Kafka's ``AdminApiDriver`` and ``CoordinatorStrategy``: look-ups take many keys at once; after
NOT_COORDINATOR and COORDINATOR_NOT_AVAILABLE, a key's coordinator is looked up again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from tidelog.client.admin.group_types import CoordinatorNode
from tidelog.client.cluster.cluster import Cluster
from tidelog.client.errors import (
    BrokerNotAvailableError,
    RequestTimedOutError,
    TidelogError,
    exception_for,
)
from tidelog.client.fetching.offset_lookup import pause
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.group_api import GROUP_COORDINATOR, FindCoordinatorRequest
from tidelog.proto.calls.request import Request, Response

R = TypeVar("R", bound=Response)
V = TypeVar("V")

MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
"""The coordinator must be looked up again."""

TRANSIENT: Final = MOVED | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.REQUEST_TIMED_OUT,
}
"""Errors at a coordinator that pass by themselves."""


class Said(NamedTuple, Generic[V]):
    """A coordinator's answer about one key; ``value`` is valid if there is no error."""

    error: ErrorCode
    message: str
    value: V


class Asked(NamedTuple):
    """One request's keys. ``uncertain``: keys whose earlier request may have taken effect."""

    keys: tuple[str, ...]
    coordinator: CoordinatorNode
    uncertain: frozenset[str]


class Deadline(NamedTuple):
    """When a call must end, on the monotonic clock, and how long one of its requests may take."""

    at_ms: int
    request_ms: int


async def ask_coordinators(
    cluster: Cluster,
    keys: Iterable[str],
    request: Callable[[tuple[str, ...]], Request[R]],
    read: Callable[[R, Asked], Mapping[str, Said[V]]],
    deadline: Deadline,
    *,
    key_type: int = GROUP_COORDINATOR,
    singly: bool = False,
) -> dict[str, V | TidelogError]:
    """Send ``request`` about some keys to each key's coordinator. Returns each key's outcome, in order.

    Retries transient errors until the deadline; then the last reason is the outcome. After a lost connection, it
    repeats the request, so that must be safe to carry out twice. ``key_type`` is the keys' type (``GROUP_COORDINATOR``,
    ``TRANSACTION_COORDINATOR``); ``singly``: a request has room for one key.
    """
    wanted = tuple(dict.fromkeys(keys))
    found: dict[str, V | TidelogError] = {}
    where: dict[str, CoordinatorNode] = {}
    reasons: dict[str, TidelogError] = {}
    uncertain: set[str] = set()
    failures = 0
    while unanswered := [key for key in wanted if key not in found]:
        left_ms = deadline.at_ms - cluster.clock.monotonic_ms()
        if left_ms <= 0:
            for key in unanswered:
                found[key] = reasons.get(key) or RequestTimedOutError(f"{key}: no answer in time")
            break
        missing = [key for key in unanswered if key not in where]
        if missing:
            located = await _locate(cluster, missing, key_type, left_ms)
            for key, node in located.items():
                if isinstance(node, CoordinatorNode):
                    where[key] = node
                elif node.retriable:
                    if key not in reasons or cluster.clock.monotonic_ms() < deadline.at_ms:
                        reasons[key] = node
                else:
                    found[key] = node
        by_node: dict[CoordinatorNode, list[str]] = {}
        for key in unanswered:
            if key in where and key not in found:
                by_node.setdefault(where[key], []).append(key)
        asked = [
            Asked(together, node, frozenset(uncertain))
            for node, some in by_node.items()
            for together in ([(key,) for key in some] if singly else [tuple(some)])
        ]
        left_ms = max(1, min(deadline.at_ms - cluster.clock.monotonic_ms(), deadline.request_ms))
        answers = await asyncio.gather(
            *(cluster.call(request(one.keys), timeout_ms=left_ms, node=one.coordinator.node_id) for one in asked),
            return_exceptions=True,
        )
        for one, answer in zip(asked, answers, strict=True):
            if isinstance(answer, (BrokerNotAvailableError, RequestTimedOutError)):
                uncertain.update(one.keys)
                over = cluster.clock.monotonic_ms() >= deadline.at_ms
                for key in one.keys:
                    if not (over and key in reasons):  # our own timeout during a request says nothing new
                        reasons[key] = answer
                    del where[key]
                continue
            if isinstance(answer, BaseException):
                raise answer
            said = read(answer, one)
            for key in one.keys:
                error, message, value = said[key]
                if error is ErrorCode.NONE:
                    found[key] = value
                    continue
                reason = exception_for(error, f"{key}: {message or error.name}")
                if error not in TRANSIENT:
                    found[key] = reason
                    continue
                reasons[key] = reason
                if error in MOVED:
                    del where[key]
        if len(found) < len(wanted):
            failures += 1
            await pause(cluster, failures, deadline.at_ms)
    return {key: found[key] for key in wanted}


async def _locate(
    cluster: Cluster, keys: list[str], key_type: int, timeout_ms: int
) -> dict[str, CoordinatorNode | TidelogError]:
    """Ask any broker for the coordinators of these keys, and make sure that their addresses are known."""
    try:
        async with asyncio.timeout(timeout_ms / 1_000):
            answer = await cluster.ask_anyone(FindCoordinatorRequest(tuple(keys), key_type))
            nodes = {c.node_id for c in answer.coordinators if c.error is ErrorCode.NONE}
            if not nodes <= cluster.cache.brokers.keys():
                await cluster.refreshed()
    except BrokerNotAvailableError as error:
        return dict.fromkeys(keys, error)
    except TimeoutError:
        return dict.fromkeys(keys, RequestTimedOutError(f"no coordinator found within {timeout_ms} ms"))
    located: dict[str, CoordinatorNode | TidelogError] = {}
    for found in answer.coordinators:
        if found.error is not ErrorCode.NONE:
            located[found.key] = exception_for(found.error, f"{found.key}: {found.error_message or found.error.name}")
        elif found.node_id in cluster.cache.brokers:
            located[found.key] = CoordinatorNode(found.node_id, found.host, found.port)
        else:
            located[found.key] = BrokerNotAvailableError(
                f"{found.key}: its coordinator, node {found.node_id}, is not among the live brokers"
            )
    return located
