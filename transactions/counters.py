"""What is counted of a node's transactions, for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True)
class TransactionCounters:
    """Since the node's start."""

    begun: int = 0
    prepared: int = 0
    committed: int = 0
    """Decisions that are durable."""
    aborted: int = 0
    """Likewise, whoever asked for it."""
    timed_out: int = 0
    """Of those aborted."""
    fenced: int = 0
    """Likewise."""
    completed: int = 0
    """Transactions of which all markers are written."""
    refused_markers: int = 0
    """Markers that a partition's leader refused for good, since somebody newer has spoken."""
    late_connections: int = 0
    """Requests that were refused, as the same producer has spoken on a newer connection."""
    expired_ids: int = 0
    rotated_ids: int = 0
    """Producer ids that were replaced before their epochs ran out."""
    sink_batches: int = 0
    """Batches of sinks that were decided."""
    sink_takeovers: int = 0
    """Jobs that began to write a sink's batch."""
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


class TransactionGauges(NamedTuple):
    """As of now. ``transactions`` by state, as Kafka names it."""

    transactions: Mapping[str, int]
    waiting_for_markers: int
    """Partitions whose markers are on their way."""
    sinks: int
    """Ledgers that are kept."""
    partitions_loaded: int
    partitions_loading: int
