"""Compares the replicas of partitions over the network, like Kafka's ``kafka-replica-verification``: each replica
answers for its own log, whether it leads or not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.client.admin.admin import AsyncAdmin
from tidelog.client.errors import TidelogError
from tidelog.client.fetching.raw_fetch import RawFetcher
from tidelog.client.links.comparing import Comparison, Read, compare
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicPartition
from tidelog.model.settings.config_def import split_list
from tidelog.model.settings.topic_config import COMPACT
from tidelog.proto.calls.api import ConfigResource
from tidelog.proto.records.batches import Batch, CorruptBatch, split_batches
from tidelog.proto.transport.network import ConnectionLost

PIECE_BYTES: Final = 4 * 2**20
AT_ONCE: Final = 4
"""How many partitions to compare at a time."""
ASK_MS: Final = 30_000
_TOPIC: Final = "topic"
_POLICY: Final = "cleanup.policy"


@dataclass(frozen=True, slots=True)
class ComparedReplicas:
    """Two replicas of a partition, by their brokers, from ``start`` to the high watermark that both know. ``fault``:
    the first difference, why they could not be compared, or ""."""

    at: TopicPartition
    brokers: tuple[int, int]
    start: int
    end: int
    batches: int
    size: int
    fault: str


class Unreadable(Exception):
    """A replica does not answer, or not with records; the text says which and why."""


class ReplicaComparer(AsyncAdmin):
    """An admin client that compares replicas."""

    async def compare_replicas(self, topics: Sequence[str] = ()) -> list[ComparedReplicas]:
        """Compare each partition's first replica with its others. Without ``topics``, all topics, including internal
        ones."""
        self._check()
        names = list(topics) or [topic.name for topic in await self.list_topics(internal=True)]
        if not names:
            return []
        described = await self.describe_topics(names)
        configs = await self.describe_configs([ConfigResource(_TOPIC, name) for name in names])
        compacts = {
            one.name: COMPACT in split_list(found[_POLICY].value or "")
            for one, found in configs.items()
            if _POLICY in found
        }
        raw = RawFetcher(self._cluster, PIECE_BYTES)
        room = asyncio.Semaphore(AT_ONCE)

        async def of(at: TopicPartition, replicas: Sequence[int]) -> list[ComparedReplicas]:
            async with room:
                pairs = [(replicas[0], other) for other in replicas[1:]]
                return [await _compared(raw, at, pair, compacts=compacts.get(at.topic, False)) for pair in pairs]

        try:
            found = await asyncio.gather(
                *(
                    of(TopicPartition(topic.name, part.partition), [int(node) for node in part.replicas])
                    for topic in described
                    for part in topic.partitions
                )
            )
        finally:
            await raw.close()
        return [one for some in found for one in some]


async def _compared(
    raw: RawFetcher, at: TopicPartition, brokers: tuple[int, int], *, compacts: bool
) -> ComparedReplicas:
    start = end = 0
    result = Comparison()
    try:
        spans = [await _span(raw, at, node) for node in brokers]
        start, end = max(first for first, _ in spans), min(mark for _, mark in spans)
        one, other = (_reader(raw, at, node) for node in brokers)
        names = (f"replica on broker {brokers[0]}", f"replica on broker {brokers[1]}")
        result = await compare(one, other, start, end, 0, compacts=compacts, names=names, epochs=not compacts)
    except Unreadable as reason:
        result.fault = str(reason)
    return ComparedReplicas(at, brokers, start, max(start, end), result.batches, result.size, result.fault)


async def _span(raw: RawFetcher, at: TopicPartition, node: int) -> tuple[int, int]:
    """Return where a replica's log starts, and the high watermark that it knows."""
    found = await _fetched(raw, at, node, 0)
    return found[0], found[1]


def _reader(raw: RawFetcher, at: TopicPartition, node: int) -> Read:
    async def read(offset: int) -> list[Batch]:
        return (await _fetched(raw, at, node, offset))[2]

    return read


async def _fetched(raw: RawFetcher, at: TopicPartition, node: int, offset: int) -> tuple[int, int, list[Batch]]:
    try:
        found = await raw.fetch_from(node, at, offset, ASK_MS)
    except (TidelogError, ConnectionLost, TimeoutError) as error:
        raise Unreadable(f"broker {node} does not answer: {error}") from None
    try:
        batches = [batch for records in found.records for batch in split_batches(records)]
    except CorruptBatch as error:
        raise Unreadable(f"at offset {offset}, broker {node} sent something other than batches: {error}") from None
    if found.error is ErrorCode.OFFSET_OUT_OF_RANGE and offset < found.log_start_offset:
        return found.log_start_offset, found.high_watermark, []
    if found.error is not ErrorCode.NONE:
        raise Unreadable(f"at offset {offset}, broker {node} answers {found.error.name}")
    return found.log_start_offset, found.high_watermark, batches
