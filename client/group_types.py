"""What users of a consumer group see: committed offsets, who they are in the group, the rebalance listener."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidelog.model.ids import TopicPartition


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next record to read. ``leader_epoch`` is that of the record before it, -1
    unknown; ``metadata`` any text of the user's, bounded by the broker's ``offset.metadata.max.bytes``."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


Offsets = Mapping[TopicPartition, OffsetAndMetadata]
CommitCallback = Callable[[dict[TopicPartition, OffsetAndMetadata], BaseException | None], Any]
"""Told how an asynchronous commit ended: what was to be committed, and the error or ``None``."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """Who a consumer is in its group; generation -1 and no member id while it is not a member."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class ConsumerRebalanceListener:
    """What a consumer is told about its partitions; override what is of interest.

    The methods are called from within ``poll``, ``unsubscribe`` and ``close``, in the thread (or task) that
    called these. With ``tidelog.aio`` they may be coroutine functions. Within them all of the consumer may be
    used except ``poll``, ``subscribe`` and their like, ``unsubscribe`` and ``close``. What they raise reaches the
    caller of ``poll`` as ``RebalanceCallbackError``; the rebalance itself goes on.
    Source: Kafka's ``ConsumerRebalanceListener``.
    """

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """These were added (with an eager assignor: all there are), perhaps none. ``seek`` works here."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """These are about to be given up in good order: the last moment to commit what was done with them."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """These were taken away already, and others may read them; a commit would be refused.
        Unless overridden, the same as :meth:`on_partitions_revoked`."""
        return self.on_partitions_revoked(partitions)


def offsets_given(offsets: Mapping[TopicPartition, int | OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Check what a user wants to be committed. Raises ``ValueError``."""
    found = {}
    for at, given in offsets.items():
        offset = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
        if isinstance(offset.offset, bool) or not isinstance(offset.offset, int) or offset.offset < 0:
            raise ValueError(f"{TopicPartition(*at)}: expected an offset of 0 or more, found {offset.offset!r}")
        found[TopicPartition(*at)] = offset
    return found
