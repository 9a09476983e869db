"""The round-robin assignor: it deals out all partitions of all topics one by one."""

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


class RoundRobinAssignor:
    """Deals partitions, in order of topic and number, to the members in order, over and over.

    Members that do not subscribe to a partition's topic are skipped. With equal subscriptions the members' loads differ
    by at most one; with unequal ones they may differ widely. Source: Kafka's ``RoundRobinAssignor``.
    """

    name: ClassVar[str] = "roundrobin"
    protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (RebalanceProtocol.EAGER,)

    def user_data(self, topics: frozenset[str]) -> bytes:
        """Return nothing: the result depends on no history."""
        return b""

    def assign(self, partitions_of: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        """Deal the partitions out."""
        order = members_in_order(members)
        topics_of = [frozenset(members[member].topics) for member in order]
        parts: dict[str, list[TopicPartition]] = {member: [] for member in members}
        turn = 0
        for topic, count in subscribed_topics(partitions_of, members).items():
            for partition in range(count):
                while topic not in topics_of[turn]:
                    turn = (turn + 1) % len(order)
                parts[order[turn]].append(TopicPartition(topic, partition))
                turn = (turn + 1) % len(order)
        return as_assignments(parts)

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        """Do nothing: there is nothing to remember."""
