"""What the admin client tells about groups: listings, descriptions, states."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from tidelog.model.ids import NodeId, TopicPartition


class GroupState(enum.StrEnum):
    """Kafka's ``GroupState``, as far as the classic protocol knows it; the values are Kafka's own words."""

    PREPARING_REBALANCE = "PreparingRebalance"
    """Members are being waited for."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The leader's assignment is being waited for."""
    STABLE = "Stable"
    """Every member has its assignment."""
    EMPTY = "Empty"
    """No members; committed offsets remain until they expire."""
    DEAD = "Dead"
    """Gone."""
    UNKNOWN = "Unknown"

    @classmethod
    def of(cls, text: str) -> GroupState:
        """Read a broker's word, in any case; ``UNKNOWN`` for one that a later version may have."""
        return _STATES.get(text.lower(), cls.UNKNOWN)


_STATES: Final = {state.value.lower(): state for state in GroupState}


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group that exists. ``protocol_type`` is "consumer" for consumers, empty for a group of committed
    offsets alone."""

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
    """The broker that keeps a group."""

    node_id: NodeId
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group. ``assignment`` and ``subscription`` are ``None`` where a member's bytes are not
    those of Kafka's consumer protocol; ``subscription`` are topics."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...] | None
    subscription: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members. ``partition_assignor`` is the protocol that the members agreed on, empty
    before they have."""

    group_id: str
    protocol_type: str
    partition_assignor: str
    state: GroupState
    coordinator: CoordinatorNode
    members: tuple[MemberDescription, ...]

    @property
    def is_simple_consumer_group(self) -> bool:
        """Whether it consists of committed offsets alone."""
        return not self.protocol_type
