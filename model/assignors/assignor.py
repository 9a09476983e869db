"""Partition assignors: their inputs and results, and the protocol that users implement.

Source: Kafka's ``ConsumerPartitionAssignor`` and ``AbstractPartitionAssignor``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from tidelog.model.classes.frozen import dataclass
from tidelog.model.ids import TopicPartition

NO_GENERATION: Final = -1
"""The generation of a member that has none: it never was in the group, or was evicted."""


class RebalanceProtocol(enum.IntEnum):
    """How a member treats its partitions during a rebalance (KIP-429); numbers as in Kafka.

    A consumer follows the highest protocol that *all* of its assignors speak.
    """

    EAGER = 0
    """It gives up all of them before it joins."""
    COOPERATIVE = 1
    """It keeps them, then gives up those that went to others and joins again."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """One member's part of a join. Bytes: :mod:`tidelog.proto.logs.consumer_protocol`.

    ``topics``: its subscription; order and repetitions mean nothing. ``user_data``: its assignor's data, empty for
    none. ``owned``: the partitions that it reads now, since ``generation_id`` (-1: not given). ``rack_id``: its rack,
    for rack-aware assignors. ``group_instance_id``: a static member's id (KIP-345); not part of the bytes, the
    coordinator sends it to the group's leader.
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

    Each consumer has its own instances. A rebalance calls, in this order and never concurrently:

    1. ``user_data`` in every member, when it joins;
    2. ``assign`` in one member, the group's leader, for all of them;
    3. ``on_assignment`` in every member, when it gets its assignment.

    To write one, define a class with the members below and, if a setting is to name it, no required constructor
    arguments. Every consumer of the group must offer an assignor of the same ``name``: the coordinator chooses a name
    that all members know, by their order of preference. A round robin that gives each topic to one member::

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

    The whole rebalance waits while ``assign`` runs, so it should take well under a second. An exception from any of the
    three methods reaches the caller of ``poll`` in the consumer that raised it.
    """

    @property
    def name(self) -> str:
        """The name by which members agree on an assignor; unique among a consumer's assignors."""

    @property
    def protocols(self) -> tuple[RebalanceProtocol, ...]:
        """The rebalance protocols under which this assignor is correct.

        COOPERATIVE promises that ``assign`` gives no partition to a member while another one still owns it
        (``Subscription.owned``): it leaves such a partition to the next rebalance.
        """

    def user_data(self, topics: frozenset[str]) -> bytes:
        """Return what the leader's ``assign`` should know about this member, which subscribes to ``topics``; empty:
        nothing."""

    def assign(self, partitions_of: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        """Divide the partitions of all topics that members are subscribed to.

        ``partitions_of``: number of partitions of each topic that exists; ``members``: by member id. The result has
        every member, including those that get nothing, and gives each partition to at most one member, which subscribes
        to its topic. The order of either mapping should not affect the result.
        """

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        """Receive this member's assignment and its generation of the group."""


def subscribed_topics(partitions_of: Mapping[str, int], members: Mapping[str, Subscription]) -> dict[str, int]:
    """Return the topics that have subscribers and partitions, by name."""
    wanted = {topic for member in members.values() for topic in member.topics}
    return {topic: partitions_of[topic] for topic in sorted(wanted) if partitions_of.get(topic, 0) > 0}


def members_in_order(members: Mapping[str, Subscription]) -> list[str]:
    """Return static members by instance id, then the others by member id.

    So the order survives a restart of static members, which changes their member ids. Source:
    ``AbstractPartitionAssignor.MemberInfo.compareTo``.
    """

    def rank(member: str) -> tuple[bool, str, str]:
        instance = members[member].group_instance_id
        return (instance is None, instance or "", member)

    return sorted(members, key=rank)


def as_assignments(parts: Mapping[str, Iterable[TopicPartition]]) -> dict[str, Assignment]:
    """Return each member's partitions as an assignment without user data, ordered by member id."""
    return {member: Assignment(tuple(parts[member])) for member in sorted(parts)}
