"""What the group says about partitions, and about the member."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tidelog.client.group_types import ConsumerGroupMetadata, ConsumerRebalanceListener
from tidelog.model.ids import TopicPartition

Told = Callable[[list[TopicPartition]], Awaitable[None] | None]


class Owning(ConsumerRebalanceListener):
    """``own``, ``give_back`` and ``disown`` of either form of ``Workers``."""

    def __init__(self, own: Told, give_back: Told, disown: Told) -> None:
        self._own, self._give_back, self._disown = own, give_back, disown

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        return self._own(partitions)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        return self._give_back(partitions)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        return self._disown(partitions)


def is_member(member: ConsumerGroupMetadata) -> bool:
    """Return whether the group knows the member. If not, its partitions may belong to another one, and a transaction in
    its name would commit offsets that no coordinator checks."""
    return member.generation_id > 0
