"""Counters of a node's transactions, for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.replication.coordinators.coordinator_shell import CoordinatorCounters


@dataclass(slots=True, kw_only=True)
class TransactionCounters(CoordinatorCounters):
    """Since the node's start."""

    begun: int = 0
    prepared: int = 0
    committed: int = 0
    """Decisions that are durable."""
    aborted: int = 0
    """Likewise, whether a client asked for the abort or not."""
    timed_out: int = 0
    """Those of ``aborted`` whose time was over."""
    fenced: int = 0
    """Likewise."""
    completed: int = 0
    """Transactions with every marker written."""
    refused_markers: int = 0
    """Markers that a partition's leader refused for good, because it has heard from somebody newer."""
    late_connections: int = 0
    """Requests refused because the same producer has spoken on a newer connection."""
    expired_ids: int = 0
    rotated_ids: int = 0
    """Producer ids that were replaced before their epochs ran out."""
    sink_batches: int = 0
    """Batches of sinks that were decided."""
    sink_takeovers: int = 0
    """Jobs that began to write a sink's batch."""


class TransactionGauges(NamedTuple):
    """As of now. ``transactions`` by state, as Kafka names it."""

    transactions: Mapping[str, int]
    waiting_for_markers: int
    """Partitions whose markers are on their way."""
    sinks: int
    """Ledgers in memory."""
    partitions_loaded: int
    partitions_loading: int
