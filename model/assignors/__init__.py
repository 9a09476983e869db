"""How a consumer group's leader divides partitions among the members, and how users write their own assignors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from tidelog.model.assignors.assignor import Assignment, Assignor, RebalanceProtocol, Subscription
from tidelog.model.assignors.cooperative_sticky import CooperativeStickyAssignor
from tidelog.model.assignors.range import RangeAssignor
from tidelog.model.assignors.round_robin import RoundRobinAssignor
from tidelog.model.assignors.sticky import StickyAssignor

ASSIGNORS: Final[Mapping[str, Callable[[], Assignor]]] = MappingProxyType(
    {
        RangeAssignor.name: RangeAssignor,
        RoundRobinAssignor.name: RoundRobinAssignor,
        StickyAssignor.name: StickyAssignor,
        CooperativeStickyAssignor.name: CooperativeStickyAssignor,
    }
)
"""The assignors that come with Tidelog, by their names in ``partition.assignment.strategy``."""

__all__ = [
    "ASSIGNORS",
    "Assignment",
    "Assignor",
    "CooperativeStickyAssignor",
    "RangeAssignor",
    "RebalanceProtocol",
    "RoundRobinAssignor",
    "StickyAssignor",
    "Subscription",
]
