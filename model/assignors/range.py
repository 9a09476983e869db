"""The range assignor: it cuts each topic into ranges of neighbouring partitions, one per member."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tidelog.model.assignors.assignor import (
    Assignment,
    RebalanceProtocol,
    Subscription,
    as_assignments,
    members_in_order,
    subscribed_topics,
)
from tidelog.model.ids import TopicPartition


class RangeAssignor:
    """Assigns each topic's partitions, in order and in ranges of equal length, to its members in order.

    If there is a remainder, the first members get one more partition each. Topics with the same number of partitions
    and the same members are cut alike, so equal keys of both reach one member. Racks are ignored. Source: Kafka's
    ``RangeAssignor``.
    """

    name: ClassVar[str] = "range"
    protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (RebalanceProtocol.EAGER,)

    def user_data(self, topics: frozenset[str]) -> bytes:
        """Return nothing: the result depends on no history."""
        return b""

    def assign(self, partitions_of: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        """Cut each topic among its subscribers."""
        counts = subscribed_topics(partitions_of, members)
        members_of: dict[str, list[str]] = {topic: [] for topic in counts}
        for member in members_in_order(members):
            for topic in set(members[member].topics) & counts.keys():
                members_of[topic].append(member)
        parts: dict[str, list[TopicPartition]] = {member: [] for member in members}
        for topic, count in counts.items():
            shortest, longer = divmod(count, len(members_of[topic]))
            start = 0
            for rank, member in enumerate(members_of[topic]):
                end = start + shortest + (rank < longer)
                parts[member] += [TopicPartition(topic, partition) for partition in range(start, end)]
                start = end
        return as_assignments(parts)

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        """Do nothing: there is nothing to remember."""
