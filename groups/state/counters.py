"""Counters of a node's groups, for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.replication.coordinators.coordinator_shell import CoordinatorCounters


@dataclass(slots=True, kw_only=True)
class GroupCounters(CoordinatorCounters):
    """Since the node's start. The first four are Kafka's sensors of the same names."""

    offset_commits: int = 0
    """Partitions in accepted offset commits."""
    offset_expirations: int = 0
    offset_deletions: int = 0
    completed_rebalances: int = 0
    """Generations whose assignment was stored."""
    begun_rebalances: int = 0
    expired_sessions: int = 0


class GroupGauges(NamedTuple):
    """As of now. ``groups`` by state, as Kafka names it."""

    groups: Mapping[str, int]
    members: int
    offsets: int
    partitions_loaded: int
    partitions_loading: int
