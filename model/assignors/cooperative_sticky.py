"""The sticky assignment for members that continue reading the partitions that they keep."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import ClassVar, Final

from tidelog.model.assignors.assignor import (
    NO_GENERATION,
    Assignment,
    RebalanceProtocol,
    Subscription,
    as_assignments,
)
from tidelog.model.assignors.claims import Claim, still_held
from tidelog.model.assignors.sticky import divide_stickily

_GENERATION: Final = struct.Struct(">i")


class CooperativeStickyAssignor:
    """Like :class:`~tidelog.model.assignors.sticky.StickyAssignor`, for cooperative rebalances (KIP-429).

    A partition that moves between members is assigned to nobody at first. Its old owner gives it up and joins again,
    and that second rebalance gives it to the new owner; other partitions are never interrupted. Source: Kafka's
    ``CooperativeStickyAssignor``.
    """

    name: ClassVar[str] = "cooperative-sticky"
    protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def __init__(self) -> None:
        self._generation_id = NO_GENERATION

    def user_data(self, topics: frozenset[str]) -> bytes:
        """The generation of this member's last assignment, for leaders that know only version 1 subscriptions."""
        return _GENERATION.pack(self._generation_id)

    def assign(self, partitions_of: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        """Assign by what the members own, and leave out what the new owner cannot have yet."""
        claims = {member: _claim(said) for member, said in members.items()}
        parts = divide_stickily(partitions_of, members, claims)
        held = still_held(parts, claims)
        return as_assignments(
            {member: [partition for partition in part if partition not in held] for member, part in parts.items()}
        )

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        """Remember the generation."""
        self._generation_id = generation_id


def _claim(said: Subscription) -> Claim:
    """Return a member's partitions, and the generation since which it owns them: from the subscription (version 2) or
    its user data (version 1)."""
    generation = said.generation_id
    if generation < 0 and len(said.user_data) >= _GENERATION.size:
        (generation,) = _GENERATION.unpack_from(said.user_data)
    return Claim(said.owned, max(generation, NO_GENERATION))
