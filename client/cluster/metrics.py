"""Counters of a client, under Kafka's metric names.

Plain integers that the code adds to; :meth:`snapshot` returns them. To get a rate, read a counter twice.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

_NAMES: Final = {
    "requests": "request-total",
    "connections_lost": "connection-lost-total",
    "metadata_refreshes": "metadata-refresh-total",
    "record_sends": "record-send-total",
    "record_errors": "record-error-total",
    "record_retries": "record-retry-total",
    "bytes_sent": "outgoing-byte-total",
    "batches_split": "batch-split-total",
    "epoch_bumps": "producer-epoch-bump-total",
    "buffer_waits": "buffer-exhausted-wait-total",
    "buffer_exhausted": "buffer-exhausted-total",
    "fetches": "fetch-total",
    "bytes_consumed": "bytes-consumed-total",
    "records_consumed": "records-consumed-total",
    "truncations": "log-truncation-total",
    "offset_resets": "offset-reset-total",
    "commits": "commit-total",
    "heartbeats": "heartbeat-total",
    "joins": "join-total",
    "syncs": "sync-total",
    "rebalances": "rebalance-total",
    "failed_rebalances": "failed-rebalance-total",
    "rebalance_latency_ms": "rebalance-latency-total",
    "rebalance_latency_max_ms": "rebalance-latency-max",
    "rebalance_latency_last_ms": "rebalance-latency-last",
}


@dataclass(slots=True)
class ClientMetrics:
    """All counters start at 0 and only increase; only ``rebalance_latency_last_ms`` may decrease."""

    requests: int = 0
    connections_lost: int = 0
    metadata_refreshes: int = 0
    record_sends: int = 0
    record_errors: int = 0
    record_retries: int = 0
    bytes_sent: int = 0
    batches_split: int = 0
    epoch_bumps: int = 0
    buffer_waits: int = 0
    buffer_exhausted: int = 0
    fetches: int = 0
    bytes_consumed: int = 0
    records_consumed: int = 0
    truncations: int = 0
    offset_resets: int = 0
    commits: int = 0
    heartbeats: int = 0
    joins: int = 0
    syncs: int = 0
    rebalances: int = 0
    failed_rebalances: int = 0
    rebalance_latency_ms: int = 0
    rebalance_latency_max_ms: int = 0
    rebalance_latency_last_ms: int = 0

    def rebalanced(self, took_ms: int) -> None:
        """Note that a rebalance is complete, from the first JoinGroup to the last SyncGroup."""
        self.rebalances += 1
        self.rebalance_latency_ms += took_ms
        self.rebalance_latency_last_ms = took_ms
        self.rebalance_latency_max_ms = max(self.rebalance_latency_max_ms, took_ms)

    def snapshot(self) -> dict[str, int]:
        """Return all counters by their metric name (``record-send-total`` …)."""
        return {_NAMES[field.name]: getattr(self, field.name) for field in fields(self)}
