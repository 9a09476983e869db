"""What is counted of a node's groups, for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True)
class GroupCounters:
    """Since the node's start. The first four are Kafka's sensors of the same names."""

    offset_commits: int = 0
    """Partitions whose commit was asked for and let through."""
    offset_expirations: int = 0
    offset_deletions: int = 0
    completed_rebalances: int = 0
    """Generations whose assignment was stored."""
    begun_rebalances: int = 0
    expired_sessions: int = 0
    appends: int = 0
    failed_appends: int = 0
    loads: int = 0
    """Partitions that were loaded to their end."""
    failed_loads: int = 0
    loaded_records: int = 0
    passed_over_records: int = 0
    """Records of the log that could not be used: of other software, or malformed."""
    load_ms: int = 0
    """Time that loading took, summed over partitions."""


class GroupGauges(NamedTuple):
    """As of now. ``groups`` by state, as Kafka names it."""

    groups: Mapping[str, int]
    members: int
    offsets: int
    partitions_loaded: int
    partitions_loading: int
