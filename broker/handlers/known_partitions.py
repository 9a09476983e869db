"""Checks of commits that only the metadata can answer: whether partitions exist, and whether a link may commit to
them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from tidelog.metadata_quorum.image.image import TOPIC, MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.settings.topic_config import LINK_ACTIVE, TopicConfig
from tidelog.proto.calls.group_api import OffsetCommitPartition, OffsetCommitResult

Commit = Callable[[tuple[OffsetCommitPartition, ...]], Awaitable[Sequence[OffsetCommitResult]]]


def has_partition(image: MetadataImage, topic: str, partition: int) -> bool:
    found = image.topic(topic)
    return found is not None and partition in found.partitions


async def commit_known(
    image: MetadataImage, partitions: tuple[OffsetCommitPartition, ...], commit: Commit, link: str = ""
) -> tuple[OffsetCommitResult, ...]:
    """Commit the offsets of existing partitions and, if a ``link`` sends them, of partitions that it fills. Others are
    refused one by one.

    Source: Kafka's ``KafkaApis.handleOffsetCommitRequest`` and ``handleTxnOffsetCommitRequest``.
    """
    refusals = {(item.topic, item.partition): _refusal(image, item, link) for item in partitions}
    known = tuple(item for item in partitions if refusals[item.topic, item.partition] is None)
    results = await commit(known) if known or not partitions else ()
    if len(known) == len(partitions):
        return tuple(results)
    done = {(result.topic, result.partition): result for result in results}
    found = (refusals[item.topic, item.partition] or done.get((item.topic, item.partition)) for item in partitions)
    return tuple(result for result in found if result is not None)


def _refusal(image: MetadataImage, item: OffsetCommitPartition, link: str) -> OffsetCommitResult | None:
    if not has_partition(image, item.topic, item.partition):
        text = f"partition {item.topic}-{item.partition} does not exist"
        return OffsetCommitResult(item.topic, item.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    fault = _linked(image, item.topic).link_fault(link) if link else None
    if fault is not None:
        return OffsetCommitResult(item.topic, item.partition, ErrorCode.INVALID_REQUEST, f"{item.topic}: {fault}")
    return None


def _linked(image: MetadataImage, topic: str) -> TopicConfig:
    """Return a topic's settings about its link."""
    values = image.config(TOPIC, topic)
    return TopicConfig(link_name=values.get("link.name", ""), link_state=values.get("link.state", LINK_ACTIVE))
