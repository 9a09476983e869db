"""Requests offsets from leaders: earliest, latest, by time; and where a leader epoch ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from tidelog.client.cluster.cluster import Cluster
from tidelog.client.errors import (
    BrokerNotAvailableError,
    RequestTimedOutError,
    TidelogError,
    UnknownTopicOrPartitionError,
    exception_for,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, Offset, TopicPartition
from tidelog.proto.calls.api import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsResult


class OffsetAndTimestamp(NamedTuple):
    """An offset found by time; ``timestamp`` is the record's, ``leader_epoch`` -1 if unknown."""

    offset: int
    timestamp: int
    leader_epoch: int


async def look_up(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    read_committed: bool,
    timeout_ms: int,
    sizes: Mapping[TopicPartition, tuple[int, int]] = MappingProxyType({}),
) -> dict[TopicPartition, ListOffsetsResult]:
    """Ask each partition's leader for the offset of a timestamp (-1 latest, -2 earliest, -3 highest time; -100: after
    as many bytes as ``sizes`` says, from the offset that it names).

    Retries retriable errors until ``timeout_ms``, then raises the reason; raises other errors immediately. An unknown
    partition may be new, so metadata is requested once more before raising ``UnknownTopicOrPartitionError``.
    """
    found: dict[TopicPartition, ListOffsetsResult] = {}
    reason: TidelogError | None = None
    failures = 0
    deadline = cluster.clock.monotonic_ms() + timeout_ms
    version = cluster.cache.version
    while len(found) < len(wanted):
        left_ms = deadline - cluster.clock.monotonic_ms()
        if left_ms <= 0:
            raise reason or RequestTimedOutError(f"no offsets within {timeout_ms} ms")
        by_node: dict[int, list[ListOffsetsPartition]] = {}
        for at, timestamp in wanted.items():
            if at in found:
                continue
            view = await cluster.topic(at.topic, left_ms)
            if not 0 <= at.partition < len(view.partitions):
                reason = UnknownTopicOrPartitionError(
                    f"{at}: expected a partition from 0 to {len(view.partitions) - 1} of topic {at.topic}"
                )
                if cluster.cache.version != version:
                    raise reason
                continue
            node = cluster.cache.leader_of(*at)
            if node == NO_NODE:
                reason = exception_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{at}: has no leader")
                continue
            epoch = view.partitions[at.partition].leader_epoch
            start, size = sizes.get(at, (0, 0))
            item = ListOffsetsPartition(at.topic, at.partition, timestamp, epoch, Offset(start), size)
            by_node.setdefault(node, []).append(item)
        requests = {node: ListOffsetsRequest(tuple(items), read_committed) for node, items in by_node.items()}
        answers = await asyncio.gather(
            *(cluster.call(request, timeout_ms=left_ms, node=node) for node, request in requests.items()),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, ListOffsetsResponse):
                problem = _collect(answer.results, found)
                reason = problem or reason
            elif isinstance(answer, (BrokerNotAvailableError, RequestTimedOutError)):
                reason = answer
            else:
                raise answer
        if len(found) < len(wanted):
            failures += 1
            await pause(cluster, failures, deadline)
    return found


def _collect(
    results: Iterable[ListOffsetsResult], found: dict[TopicPartition, ListOffsetsResult]
) -> TidelogError | None:
    reason = None
    for result in results:
        at = TopicPartition(result.topic, result.partition)
        if result.error is ErrorCode.NONE:
            found[at] = result
            continue
        reason = exception_for(result.error, f"{at}: {result.error_message or result.error.name}")
        if not reason.retriable:
            raise reason
    return reason


async def pause(cluster: Cluster, failures: int, deadline_ms: int) -> None:
    """Wait before another try, and fetch metadata in the meantime."""
    cluster.request_refresh()
    wait_ms = cluster.retry_backoff.after(failures, cluster.rng)
    left_ms = max(0, deadline_ms - cluster.clock.monotonic_ms())
    await asyncio.sleep(min(wait_ms, left_ms) / 1_000)
