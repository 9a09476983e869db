"""The admin client's answers about groups: listings, descriptions, states."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Self

from tidelog.model.ids import NodeId, TopicPartition


class StateName(enum.StrEnum):
    """States, by the names that brokers give them."""

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse a broker's name for a state, ignoring case; ``UNKNOWN`` for one from a later version."""
        return next((state for state in cls if state.value.lower() == text.lower()), cls("Unknown"))


class GroupState(StateName):
    """Kafka's ``GroupState`` for both protocols; the values are Kafka's own names."""

    PREPARING_REBALANCE = "PreparingRebalance"
    """The coordinator waits for members to join."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The coordinator waits for the leader's assignment."""
    ASSIGNING = "Assigning"
    """In the consumer protocol: the coordinator has not yet assigned the partitions again."""
    RECONCILING = "Reconciling"
    """In the consumer protocol: members are giving up partitions and getting others."""
    STABLE = "Stable"
    """Every member has its assignment."""
    EMPTY = "Empty"
    """No members; committed offsets remain until they expire."""
    DEAD = "Dead"
    """The group is gone."""
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class GroupListing:
    """An existing group. ``protocol_type`` is "consumer" for consumers, empty for a group that has only committed
    offsets."""

    group_id: str
    protocol_type: str
    state: GroupState
    group_type: str

    @property
    def is_simple_consumer_group(self) -> bool:
        """Whether its members, if any, assign partitions to themselves."""
        return not self.protocol_type


@dataclass(frozen=True, slots=True)
class CoordinatorNode:
    """The broker that coordinates a group."""

    node_id: NodeId
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group. ``assignment`` and ``subscription`` (topics) are ``None`` if the member's bytes do not
    follow Kafka's consumer protocol. ``upgraded``: whether a member of a group of the consumer protocol speaks it, or
    still the classic one."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...] | None
    subscription: tuple[str, ...] | None
    upgraded: bool | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members. ``partition_assignor`` is the protocol that the members agreed on, empty until then."""

    group_id: str
    protocol_type: str
    partition_assignor: str
    state: GroupState
    coordinator: CoordinatorNode
    members: tuple[MemberDescription, ...]

    @property
    def is_simple_consumer_group(self) -> bool:
        """Whether it has only committed offsets."""
        return not self.protocol_type
