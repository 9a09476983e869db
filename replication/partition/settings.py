"""All limits of replication with their defaults; names and meanings are Kafka's if Kafka has the setting."""

from __future__ import annotations

from typing import Final

from tidelog.model.classes.frozen import dataclass
from tidelog.model.settings.broker_config import NodeConfig

FETCH_MAX_BYTES: Final = 8 * 2**20
"""Kafka allows 55 MiB; more than a few MiB costs memory and brings no speed on a stream of frames."""

FLUSH_LOOK_MS_MAX: Final = 1_000
"""By default Kafka never checks for logs to fsync, and so does not honour ``flush.ms`` either."""


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """Times in milliseconds, sizes in bytes."""

    replica_lag_time_max_ms: int = 30_000
    """A follower that has not reached the leader's end for this long leaves the ISR."""
    replica_fetch_wait_max_ms: int = 500
    """Longest wait of a follower's fetch at the leader; also the longest delay of a high watermark that travels
    alone."""
    replica_fetch_idle_wait_max_ms: int = 2_000
    """Longest wait of an idle follower's fetch; never more than a quarter of the lag time."""
    replica_fetch_min_bytes: int = 1
    replica_fetch_max_bytes: int = 2**20
    """Bytes per partition in one answer; a larger first batch is sent whole."""
    replica_fetch_response_max_bytes: int = 4 * 2**20
    """Most bytes in an answer to a follower that the leader may hold and a frame may carry."""
    replica_fetch_backoff_ms: int = 1_000
    """Longest pause after a refused partition or a lost leader; the first is ``retry_first_ms``."""
    replica_socket_timeout_ms: int = 30_000
    """If a leader leaves a fetch unanswered for this long beyond its wait, the stream is lost."""
    replica_connect_timeout_ms: int = 5_000
    """Time in which a leader must accept a follower's stream."""
    retry_first_ms: int = 20
    """First pause of every retry here; doubles up to ``replica_fetch_backoff_ms``, with jitter."""
    replica_high_watermark_checkpoint_interval_ms: int = 5_000
    log_flush_scheduler_interval_ms: int = 1_000
    """How often logs with ``flush.ms`` are checked."""
    fetch_max_bytes: int = FETCH_MAX_BYTES
    """Bytes per answer to a consumer, whatever it asks for."""
    fetch_held_bytes_max: int = 64 * 2**20
    """Bytes that all waiting consumer fetches may hold together; beyond it they are answered immediately."""
    fetch_waiters_max: int = 10_000
    """Most waiting consumer fetches; beyond it they are answered immediately."""
    produce_waiters_max: int = 50_000
    """Most appends that wait for replicas or disk; beyond it produce calls are refused before the append."""
    delete_records_waiters_max: int = 1_000
    fetch_partitions_max: int = 2_000
    """Most partitions that a follower names in one fetch; the rest follow in the next, so that neither side works on
    one message for long."""
    alter_partition_items_max: int = 2_000
    """Most ISR changes in one request to the controller; the rest follow in the next."""

    def fetch_wait_ms(self, fruitless: int) -> int:
        """Return how long a follower's fetch may wait after this many empty ones in a row."""
        idle_ms = min(self.replica_fetch_idle_wait_max_ms, self.replica_lag_time_max_ms // 4)
        longest_ms = max(self.replica_fetch_wait_max_ms, idle_ms)
        return min(self.replica_fetch_wait_max_ms << min(fruitless, 16), longest_ms)

    @classmethod
    def of(cls, config: NodeConfig) -> ReplicationSettings:
        """Return the values from a node's configuration; otherwise the defaults here."""
        return cls(
            replica_lag_time_max_ms=config.replica_lag_time_max_ms,
            replica_fetch_wait_max_ms=config.replica_fetch_wait_max_ms,
            replica_fetch_idle_wait_max_ms=config.replica_fetch_idle_wait_max_ms,
            replica_fetch_min_bytes=config.replica_fetch_min_bytes,
            replica_fetch_max_bytes=config.replica_fetch_max_bytes,
            replica_fetch_response_max_bytes=config.replica_fetch_response_max_bytes,
            replica_fetch_backoff_ms=config.replica_fetch_backoff_ms,
            replica_socket_timeout_ms=config.replica_socket_timeout_ms,
            replica_high_watermark_checkpoint_interval_ms=config.replica_high_watermark_checkpoint_interval_ms,
            fetch_max_bytes=config.fetch_max_bytes,
            fetch_held_bytes_max=config.queued_max_request_bytes,
            log_flush_scheduler_interval_ms=min(config.log_flush_scheduler_interval_ms, FLUSH_LOOK_MS_MAX),
        )
