"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete. From version 10 on, the first two name topics by id."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, Final

from tidelog.broker.kafka.calls.common.by_topic import by_topic
from tidelog.broker.kafka.calls.common.translation import answered, asked
from tidelog.broker.kafka.wire.apis import Api, KafkaContext
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_LEADER_EPOCH, LeaderEpoch, Offset
from tidelog.proto.calls.group_api import (
    NO_GENERATION,
    GroupPartition,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResult,
)
from tidelog.proto.kafka.messages import field
from tidelog.security.acls import AclOperation

_GROUP_ERROR: Final = 2
"""From this version on, an answer to OffsetFetch has its own error besides those of partitions."""
_SEVERAL_GROUPS: Final = 8
_BY_ID: Final = 10
_offset: Final = partial(answered, offset="committed_offset", leader_epoch="committed_leader_epoch")


def committed_partitions(
    topics: Any, name: Callable[[Any], str | None] = attrgetter("name")
) -> tuple[OffsetCommitPartition, ...]:
    """Convert the partitions of an OffsetCommit or TxnOffsetCommit."""
    return tuple(
        OffsetCommitPartition(
            name(topic) or "",
            each.partition_index,
            Offset(each.committed_offset),
            LeaderEpoch(field(each, "committed_leader_epoch", NO_LEADER_EPOCH)),
            each.committed_metadata or "",
        )
        for topic in topics
        for each in topic.partitions
    )


class _Topics:
    """The topics of one request by name, whether it uses names or ids, and the mapping back. A topic that the sender
    may not describe has no id here."""

    def __init__(self, view: MetadataView, version: int, context: KafkaContext) -> None:
        self._image = view.image
        self._by_id = version >= _BY_ID
        self._access = None if context.access is None else context.access.quiet

    def name(self, topic: Any) -> str | None:
        """Return the name; ``None`` if no topic has this id."""
        if not self._by_id:
            return str(topic.name)
        found = self._image.topics.get(topic.topic_id)
        if found is None or not (self._access is None or self._access.topic(AclOperation.DESCRIBE, found.name)):
            return None
        return found.name

    def known(self, topics: Any) -> list[Any]:
        return [topic for topic in topics or () if self.name(topic) is not None]

    def answered(
        self, asked: Any, found: list[dict[str, Any]], missing: Callable[[Any], list[dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        """Return ``found`` with topics identified as in the request; ``missing`` makes the partitions of a missing one.
        Offsets of a deleted topic have no id; they are left out unless they were ``asked`` for."""
        if not self._by_id:
            return found
        gone = [topic for topic in asked or () if self.name(topic) is None]
        out = [{"topic_id": topic.topic_id, "partitions": missing(topic)} for topic in gone]
        for topic in found:
            topic_id = self._image.topic_ids.get(topic["name"])
            if topic_id is not None:
                out.append({"topic_id": topic_id, **topic})
        return out


async def offset_commit(request: Any, version: int, context: KafkaContext, view: MetadataView) -> dict[str, Any]:
    """Commit offsets. Retention times, which versions before 5 may contain, are ignored: the group's lifetime decides
    (KIP-211)."""
    generation_id = field(request, "generation_id_or_member_epoch", NO_GENERATION)
    topics = _Topics(view, version, context)
    known = topics.known(request.topics)
    partitions = committed_partitions(known, topics.name)
    answer = await context.call(asked(OffsetCommitRequest, request, generation_id=generation_id, partitions=partitions))
    found = by_topic(answer.results, topics=[topics.name(topic) or "" for topic in known])
    return {"topics": topics.answered(request.topics, found, _not_committed)}


def _not_committed(topic: Any) -> list[dict[str, Any]]:
    return [
        {"partition_index": each.partition_index, "error_code": ErrorCode.UNKNOWN_TOPIC_ID} for each in topic.partitions
    ]


async def offset_fetch(request: Any, version: int, context: KafkaContext, view: MetadataView) -> dict[str, Any]:
    topics = _Topics(view, version, context)
    several = version >= _SEVERAL_GROUPS
    wanted = tuple({group.group_id: group for group in request.groups}.values()) if several else (request,)
    groups = tuple(
        asked(
            OffsetFetchGroup,
            group,
            partitions=_named(topics, group.topics),
            all_partitions=group.topics is None,
            member_epoch=field(group, "member_epoch", NO_GENERATION),
        )
        for group in wanted
    )
    answer = await context.call(OffsetFetchRequest(groups, field(request, "require_stable", False)))
    found = [_fetched(group, result, version, topics) for group, result in zip(wanted, answer.groups, strict=True)]
    return {"groups": found} if several else found[0]


def _named(topics: _Topics, asked: Any) -> tuple[GroupPartition, ...]:
    return tuple(
        GroupPartition(topics.name(topic) or "", number)
        for topic in topics.known(asked)
        for number in topic.partition_indexes
    )


def _fetched(asked: Any, found: OffsetFetchResult, version: int, topics: _Topics) -> dict[str, Any]:
    """Answer OffsetFetch. If the group itself is refused, only its error is returned, or in the oldest version each
    partition has it."""
    refused = found.error is not ErrorCode.NONE and version >= _GROUP_ERROR
    names = () if refused else [topics.name(topic) or "" for topic in topics.known(asked.topics)]
    offsets = by_topic(() if refused else found.offsets, _offset, topics=names)
    return {
        "group_id": found.group_id,
        "error_code": found.error,
        "topics": topics.answered(() if refused else asked.topics, offsets, _not_fetched),
    }


def _not_fetched(topic: Any) -> list[dict[str, Any]]:
    unknown = {"committed_offset": -1, "metadata": "", "error_code": ErrorCode.UNKNOWN_TOPIC_ID}
    return [{"partition_index": number, **unknown} for number in topic.partition_indexes]


async def offset_delete(request: Any, _: int, context: KafkaContext) -> dict[str, Any]:
    named = tuple(
        GroupPartition(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
    )
    answer = await context.call(OffsetDeleteRequest(request.group_id, named))
    return {"error_code": answer.error, "topics": by_topic(answer.results)}


def apis(view: MetadataView) -> tuple[Api, ...]:
    """Return the APIs. ``view`` maps topic ids to names."""

    return (
        Api(8, 2, 10, partial(offset_commit, view=view)),
        Api(9, 1, 10, partial(offset_fetch, view=view)),
        Api(47, 0, 0, offset_delete),
    )
