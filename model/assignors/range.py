"""Each topic is cut into ranges of neighbouring partitions, one range a member."""

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
    """Topic by topic: its partitions in order, in ranges of equal length, to its members in order.

    Where the division leaves a rest, the first members get one partition more. Topics with the same number of
    partitions and the same members are cut alike, so equal keys of both reach one member. Racks are not minded.
    Source: Kafka's ``RangeAssignor``.
    """

    name: ClassVar[str] = "range"
    protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (RebalanceProtocol.EAGER,)

    def user_data(self, topics: frozenset[str]) -> bytes:
        """Nothing: the outcome rests on no history."""
        return b""

    def assign(self, partitions_of: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        """Cut each topic among those subscribed to it."""
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
        """Nothing to remember."""
