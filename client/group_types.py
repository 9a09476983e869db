"""Types for users of a consumer group: committed offsets, the member's identity, the rebalance listener."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidelog.model.ids import TopicPartition


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next record to read. ``leader_epoch`` is the epoch of the record before it, -1 if
    unknown. ``metadata`` is any text from the user; the broker's ``offset.metadata.max.bytes`` bounds it."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


Offsets = Mapping[TopicPartition, OffsetAndMetadata]
CommitCallback = Callable[[dict[TopicPartition, OffsetAndMetadata], BaseException | None], Any]
"""Called when an asynchronous commit ends, with its offsets and the error or ``None``."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """A consumer's identity in its group; generation -1 and no member id while it is not a member."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class ConsumerRebalanceListener:
    """Tells a consumer about changes to its partitions; override the methods that you need.

    ``poll``, ``unsubscribe`` and ``close`` call these methods, in the calling thread (or task). With ``tidelog.aio``
    they may be coroutine functions. They may use the consumer, except for ``poll``, ``subscribe`` and similar calls,
    ``unsubscribe`` and ``close``. Their exceptions reach the caller of ``poll`` as ``RebalanceCallbackError``; the
    rebalance itself continues.
    Source: Kafka's ``ConsumerRebalanceListener``.
    """

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """The partitions just added (with an eager assignor: all partitions), perhaps none. ``seek`` works here."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """The partitions that the consumer is about to give up: the last moment to commit work on them."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """The partitions already lost. Others may read them; the group would refuse a commit.
        By default the same as :meth:`on_partitions_revoked`."""
        return self.on_partitions_revoked(partitions)


def offsets_given(offsets: Mapping[TopicPartition, int | OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Check the offsets that a user wants to commit. Raises ``ValueError``."""
    found = {}
    for at, given in offsets.items():
        offset = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
        if isinstance(offset.offset, bool) or not isinstance(offset.offset, int) or offset.offset < 0:
            raise ValueError(f"{TopicPartition(*at)}: expected an offset of 0 or more, found {offset.offset!r}")
        found[TopicPartition(*at)] = offset
    return found
