"""The states of a group and all transitions, which the code checks and the docs draw.

Source: ``ClassicGroupState``. Here each pair of states is split by cause, without the pairs that Kafka allows but never
uses.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple


class GroupState(enum.Enum):
    """The value is the name that ``describe`` and ``list`` show, as in Kafka."""

    EMPTY = "Empty"
    """No members; offsets may be committed, also by consumers that assign partitions themselves."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """The group waits for all members' JoinGroup."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """A generation has begun; the group waits for the leader's assignment, or stores it."""
    STABLE = "Stable"
    """The assignment is stored, and members can ask for it."""
    DEAD = "Dead"
    """Removed, or now on another node. Nothing more happens to it."""


class Cause(enum.Enum):
    """Why a group changes its state."""

    MEMBER_CAME = "a member joins an empty group"
    MEMBER_CHANGED = "a member joins, or joins with other protocols"
    MEMBER_GONE = "a member leaves, or its session times out"
    SYNC_MISSED = "members did not sync within the rebalance timeout"
    ASSIGNMENT_LOST = "the assignment could not be stored"
    CONVERTED = "the last member of the consumer protocol has left a mixed group"
    OVER_CAPACITY = "loaded with more members than group.max.size"
    JOINED = "all members joined, or the rebalance timeout is over"
    NOBODY_LEFT = "no member is left"
    ASSIGNMENT_STORED = "the leader's assignment is stored"
    REMOVED = "deleted, or nothing of it is left"
    UNLOADED = "the partition's leader is another node"


class Transition(NamedTuple):
    before: GroupState
    after: GroupState
    cause: Cause


_EMPTY = GroupState.EMPTY
_PREPARING = GroupState.PREPARING_REBALANCE
_COMPLETING = GroupState.COMPLETING_REBALANCE
_STABLE = GroupState.STABLE
_DEAD = GroupState.DEAD

TRANSITIONS: Final = (
    Transition(_EMPTY, _PREPARING, Cause.MEMBER_CAME),
    Transition(_PREPARING, _COMPLETING, Cause.JOINED),
    Transition(_PREPARING, _EMPTY, Cause.NOBODY_LEFT),
    Transition(_COMPLETING, _STABLE, Cause.ASSIGNMENT_STORED),
    Transition(_COMPLETING, _PREPARING, Cause.MEMBER_CHANGED),
    Transition(_COMPLETING, _PREPARING, Cause.MEMBER_GONE),
    Transition(_COMPLETING, _PREPARING, Cause.SYNC_MISSED),
    Transition(_COMPLETING, _PREPARING, Cause.ASSIGNMENT_LOST),
    Transition(_STABLE, _PREPARING, Cause.MEMBER_CHANGED),
    Transition(_STABLE, _PREPARING, Cause.MEMBER_GONE),
    Transition(_STABLE, _PREPARING, Cause.SYNC_MISSED),
    Transition(_STABLE, _PREPARING, Cause.CONVERTED),
    Transition(_STABLE, _PREPARING, Cause.OVER_CAPACITY),
    Transition(_EMPTY, _DEAD, Cause.REMOVED),
    Transition(_EMPTY, _DEAD, Cause.UNLOADED),
    Transition(_PREPARING, _DEAD, Cause.UNLOADED),
    Transition(_COMPLETING, _DEAD, Cause.UNLOADED),
    Transition(_STABLE, _DEAD, Cause.UNLOADED),
)
"""All transitions. A loaded group begins Stable if its record names members, else Empty; a new one Empty."""

ALLOWED: Final = frozenset(TRANSITIONS)
