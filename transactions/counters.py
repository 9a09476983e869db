"""Counters of a node's transactions, for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.replication.coordinators.coordinator_shell import CoordinatorCounters


@dataclass(slots=True, kw_only=True)
class TransactionCounters(CoordinatorCounters):
    """Counts since the node's start."""

    begun: int = 0
    prepared: int = 0
    committed: int = 0
    """Durable commit decisions."""
    aborted: int = 0
    """Durable abort decisions, whether a client requested the abort or not."""
    timed_out: int = 0
    """Those of ``aborted`` that timed out."""
    fenced: int = 0
    """Those of ``aborted`` whose producer was fenced."""
    completed: int = 0
    """Transactions with every marker written."""
    refused_markers: int = 0
    """Markers that a partition's leader refused permanently, because it knows a newer coordinator or epoch."""
    late_connections: int = 0
    """Requests refused because the same producer has used a newer connection."""
    expired_ids: int = 0
    rotated_ids: int = 0
    """Producer ids that were replaced before their epochs ran out."""
    sink_batches: int = 0
    """Decided batches of sinks."""
    sink_takeovers: int = 0
    """Jobs that started to write a sink's batch."""


class TransactionGauges(NamedTuple):
    """Current values. ``transactions`` by state, as Kafka names it."""

    transactions: Mapping[str, int]
    waiting_for_markers: int
    """Partitions whose markers are being sent."""
    sinks: int
    """Ledgers in memory."""
    partitions_loaded: int
    partitions_loading: int
