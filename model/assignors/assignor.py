"""Partition assignors: their inputs and results, and the protocol that users implement.

Source: Kafka's ``ConsumerPartitionAssignor`` and ``AbstractPartitionAssignor``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from tidelog.model.ids import TopicPartition

NO_GENERATION: Final = -1
"""The generation of a member that says none: it never was in the group, or lost its place."""


class RebalanceProtocol(enum.IntEnum):
    """A member's handling of its partitions during a rebalance (KIP-429); numbers as in Kafka.

    A consumer follows the highest protocol that *all* of its assignors speak.
    """

    EAGER = 0
    """Gives all of them up before it joins."""
    COOPERATIVE = 1
    """Keeps them, and gives up afterwards those that went to others; then it joins again."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """One member's part of a join. Bytes: :mod:`tidelog.proto.logs.consumer_protocol`.

    ``topics``: what it wants to read; the order and repetitions mean nothing. ``user_data``: what its assignor
    had to say, empty for nothing. ``owned``: what it reads at this moment, and still did in ``generation_id``
    (-1: it says none). ``rack_id``: where it stands, for assignors that mind. ``group_instance_id``: of a static
    member (KIP-345); it is no part of the bytes, the coordinator tells it to the group's leader.
    """

    topics: tuple[str, ...]
    user_data: bytes = b""
    owned: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION
    rack_id: str | None = None
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """One member's assignment; ``user_data`` goes to its assignor's ``on_assignment``, empty for none."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes = b""


class Assignor(Protocol):
    """A way to divide partitions among the members of a group. Users may write their own.

    Each consumer holds its own instances. A rebalance calls, in this order and never two at once:

    1. ``user_data`` in every member, when it joins;
    2. ``assign`` in one member, the group's leader, for all of them;
    3. ``on_assignment`` in every member, when it has its part.

    To write one: a class with the four things below and, if it is to be named in a setting, no required constructor
    arguments. Every consumer of the group must offer an assignor of the same ``name``: the coordinator chooses a
    name that all members know, by their order of preference. A round robin that gives each topic to one member::

        class WholeTopics:
            name = "whole-topics"
            protocols = (RebalanceProtocol.EAGER,)

            def user_data(self, topics):
                return b""

            def assign(self, partitions_of, members):
                mine = {member: [] for member in members}
                for number, topic in enumerate(sorted(partitions_of)):
                    wanting = sorted(member for member, said in members.items() if topic in said.topics)
                    if wanting:
                        owner = wanting[number % len(wanting)]
                        mine[owner] += [TopicPartition(topic, p) for p in range(partitions_of[topic])]
                return {member: Assignment(tuple(partitions)) for member, partitions in mine.items()}

            def on_assignment(self, assignment, generation_id):
                pass

        consumer = Consumer(bootstrap, group_id="g", partition_assignment_strategy=[WholeTopics])

    A whole rebalance waits while ``assign`` runs, so it should take well under a second. An exception out of any of
    the three reaches the caller of ``poll`` in the consumer where it was raised.
    """

    @property
    def name(self) -> str:
        """By this name members agree on an assignor; unique among the assignors of a consumer."""

    @property
    def protocols(self) -> tuple[RebalanceProtocol, ...]:
        """The rebalance protocols under which this assignor is right.

        Whoever names COOPERATIVE promises that ``assign`` gives no partition to a member while another one still
        owns it (``Subscription.owned``): it leaves such a partition out, for the rebalance that follows.
        """

    def user_data(self, topics: frozenset[str]) -> bytes:
        """Say what the leader's ``assign`` should know of this member, which is to read ``topics``; empty: nothing."""

    def assign(self, partitions_of: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        """Divide the partitions of all topics that members are subscribed to.

        ``partitions_of``: number of partitions of each topic that exists; ``members``: by member id. The answer
        has every member, also those that get nothing, and gives a partition to one member at most, which is
        subscribed to its topic. The order of either mapping should not show in the answer.
        """

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        """Take note of what this member got, and of the group's generation in which it did."""


def subscribed_topics(partitions_of: Mapping[str, int], members: Mapping[str, Subscription]) -> dict[str, int]:
    """The topics that somebody is subscribed to and that have partitions, in order of their names."""
    wanted = {topic for member in members.values() for topic in member.topics}
    return {topic: partitions_of[topic] for topic in sorted(wanted) if partitions_of.get(topic, 0) > 0}


def members_in_order(members: Mapping[str, Subscription]) -> list[str]:
    """Static members by their instance ids, then the others by their member ids.

    So the order outlives a restart of static members, whose member ids change.
    Source: ``AbstractPartitionAssignor.MemberInfo.compareTo``.
    """

    def rank(member: str) -> tuple[bool, str, str]:
        instance = members[member].group_instance_id
        return (instance is None, instance or "", member)

    return sorted(members, key=rank)


def as_assignments(parts: Mapping[str, Iterable[TopicPartition]]) -> dict[str, Assignment]:
    """Each member's part as an assignment without user data, members in order of their ids."""
    return {member: Assignment(tuple(parts[member])) for member in sorted(parts)}
