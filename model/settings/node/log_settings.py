"""A node's settings for logs: topics' defaults (:mod:`tidelog.model.settings.topic_config`) and log maintenance.

Source: Kafka's ``LogConfig``, ``CleanerConfig`` and ``ServerLogConfigs``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from tidelog.model.settings.config_def import LONG_MAX, Update, boolean, double, integer, listing, long, text
from tidelog.model.settings.topic_config import (
    COMPACT,
    COMPRESSION_TYPES,
    CREATE_TIME,
    DAY_MS,
    DELETE,
    LOG_APPEND_TIME,
    MAX_MESSAGE_BYTES_DEFAULT,
    PRODUCER_COMPRESSION,
    SEGMENT_BYTES_MIN,
    TopicConfig,
)

_CLUSTER_WIDE: Final = Update.CLUSTER_WIDE
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True)
class LogSettings:
    """A node's settings for logs."""

    message_max_bytes: int = integer(
        MAX_MESSAGE_BYTES_DEFAULT,
        "Largest record batch, after compression; socket.request.max.bytes also bounds its request.",
        at_least=0,
        update=_CLUSTER_WIDE,
    )
    log_cleanup_policy: tuple[str, ...] = listing(
        (DELETE,), "Default of cleanup.policy; empty keeps everything.", choices=(COMPACT, DELETE), update=_CLUSTER_WIDE
    )
    compression_type: str = text(
        PRODUCER_COMPRESSION, "Default of compression.type.", choices=COMPRESSION_TYPES, update=_CLUSTER_WIDE
    )
    log_cleaner_enable: bool = boolean(
        True, "Whether the cleaner compacts compacted topics; __consumer_offsets is one of them."
    )
    log_cleaner_threads: int = integer(
        1,
        "Number of logs compacted at the same time.",
        at_least=1,
        update=_CLUSTER_WIDE,
    )
    log_cleaner_backoff_ms: int = long(
        15_000, "Time between checks for logs to clean, while there are none.", at_least=1, update=_CLUSTER_WIDE
    )
    log_cleaner_dedupe_buffer_size: int = long(
        128 * 2**20,
        "Most bytes for the keys' offsets while a log is cleaned, 24 a key; keys that do not fit wait for the next "
        "pass over the log.",
        at_least=2**20,
        update=_CLUSTER_WIDE,
    )
    log_cleaner_io_buffer_load_factor: float = double(
        0.9, "How full that buffer may become.", at_least=0.01, at_most=0.99, update=_CLUSTER_WIDE
    )
    log_cleaner_io_buffer_size: int = integer(
        512 * 1024,
        "Bytes that the cleaner reads at a time; a larger batch is read whole.",
        at_least=4096,
        update=_CLUSTER_WIDE,
    )
    log_cleaner_io_max_bytes_per_second: float = double(
        sys.float_info.max,
        "Most bytes per second that cleaning reads and writes, on average.",
        at_least=1,
        update=_CLUSTER_WIDE,
    )
    log_scrub_interval_ms: int = long(
        7 * DAY_MS,
        "Time in which the scrub reads every segment once and checks its batches against their CRCs; -1: never, 0: as "
        "fast as log.scrub.io.max.bytes.per.second allows.",
        at_least=-1,
        update=_CLUSTER_WIDE,
    )
    log_scrub_io_max_bytes_per_second: float = double(
        16 * 2**20,
        "Most bytes per second that the scrub reads, on average; if that is too little, a pass takes longer. A "
        "segment's copy without damage is written no faster either.",
        at_least=1,
        update=_CLUSTER_WIDE,
    )
    log_cleaner_delete_retention_ms: int = long(
        DAY_MS, "Default of delete.retention.ms.", at_least=0, update=_CLUSTER_WIDE
    )
    log_cleaner_max_compaction_lag_ms: int = long(
        LONG_MAX, "Default of max.compaction.lag.ms.", at_least=1, update=_CLUSTER_WIDE
    )
    log_cleaner_min_compaction_lag_ms: int = long(
        0, "Default of min.compaction.lag.ms.", at_least=0, update=_CLUSTER_WIDE
    )
    log_cleaner_min_cleanable_ratio: float = double(
        0.5, "Default of min.cleanable.dirty.ratio.", at_least=0, at_most=1, update=_CLUSTER_WIDE
    )
    log_flush_interval_messages: int = long(LONG_MAX, "Default of flush.messages.", at_least=1, update=_CLUSTER_WIDE)
    log_flush_interval_ms: int | None = long(
        None, "Default of flush.ms; unset: log.flush.scheduler.interval.ms.", at_least=0, update=_CLUSTER_WIDE
    )
    log_flush_scheduler_interval_ms: int = long(
        LONG_MAX, "Time between checks for logs to fsync, but never more than 1000.", at_least=1
    )
    log_flush_offset_checkpoint_interval_ms: int = integer(
        60_000, "Time between two checkpoints of recovery points and log start offsets.", at_least=1
    )
    log_index_interval_bytes: int = integer(4096, "Default of index.interval.bytes.", at_least=0, update=_CLUSTER_WIDE)
    log_index_size_max_bytes: int = integer(
        10 * 2**20, "Default of segment.index.bytes.", at_least=4, update=_CLUSTER_WIDE
    )
    log_message_timestamp_after_max_ms: int = long(
        _HOUR_MS, "Default of message.timestamp.after.max.ms.", at_least=0, update=_CLUSTER_WIDE
    )
    log_message_timestamp_before_max_ms: int = long(
        LONG_MAX, "Default of message.timestamp.before.max.ms.", at_least=0, update=_CLUSTER_WIDE
    )
    log_message_timestamp_type: str = text(
        CREATE_TIME, "Default of message.timestamp.type.", choices=(CREATE_TIME, LOG_APPEND_TIME), update=_CLUSTER_WIDE
    )
    log_preallocate: bool = boolean(False, "Default of preallocate.", update=_CLUSTER_WIDE)
    log_retention_bytes: int = long(-1, "Default of retention.bytes.", at_least=-1, update=_CLUSTER_WIDE)
    log_retention_ms: int | None = long(
        None, "Default of retention.ms; unset: log.retention.minutes.", at_least=-1, update=_CLUSTER_WIDE
    )
    log_retention_minutes: int | None = integer(
        None, "Default of retention.ms, in minutes; unset: log.retention.hours.", at_least=-1
    )
    log_retention_hours: int = integer(168, "Default of retention.ms, in hours.", at_least=-1)
    log_retention_check_interval_ms: int = long(300_000, "Time between checks for segments to delete.", at_least=1)
    log_roll_ms: int | None = long(
        None, "Default of segment.ms; unset: log.roll.hours.", at_least=1, update=_CLUSTER_WIDE
    )
    log_roll_hours: int = integer(168, "Default of segment.ms, in hours.", at_least=1)
    log_roll_jitter_ms: int | None = long(
        None, "Default of segment.jitter.ms; unset: log.roll.jitter.hours.", at_least=0, update=_CLUSTER_WIDE
    )
    log_roll_jitter_hours: int = integer(0, "Default of segment.jitter.ms, in hours.", at_least=0)
    log_segment_bytes: int = integer(
        2**30, "Default of segment.bytes.", at_least=SEGMENT_BYTES_MIN, update=_CLUSTER_WIDE
    )
    log_segment_delete_delay_ms: int = long(
        60_000, "Default of file.delete.delay.ms.", at_least=0, update=_CLUSTER_WIDE
    )
    min_insync_replicas: int = integer(1, "Default of min.insync.replicas.", at_least=1, update=_CLUSTER_WIDE)
    unclean_leader_election_enable: bool = boolean(
        False, "Default of unclean.leader.election.enable.", update=_CLUSTER_WIDE
    )

    def topic_defaults(self) -> TopicConfig:
        """Return the settings of a topic that sets none itself."""
        return TopicConfig(
            cleanup_policy=self.log_cleanup_policy,
            compression_type=self.compression_type,
            delete_retention_ms=self.log_cleaner_delete_retention_ms,
            file_delete_delay_ms=self.log_segment_delete_delay_ms,
            flush_messages=self.log_flush_interval_messages,
            flush_ms=_first(self.log_flush_interval_ms, self.log_flush_scheduler_interval_ms),
            index_interval_bytes=self.log_index_interval_bytes,
            max_compaction_lag_ms=self.log_cleaner_max_compaction_lag_ms,
            max_message_bytes=self.message_max_bytes,
            message_timestamp_after_max_ms=self.log_message_timestamp_after_max_ms,
            message_timestamp_before_max_ms=self.log_message_timestamp_before_max_ms,
            message_timestamp_type=self.log_message_timestamp_type,
            min_cleanable_dirty_ratio=self.log_cleaner_min_cleanable_ratio,
            min_compaction_lag_ms=self.log_cleaner_min_compaction_lag_ms,
            min_insync_replicas=self.min_insync_replicas,
            preallocate=self.log_preallocate,
            retention_bytes=self.log_retention_bytes,
            retention_ms=_first(
                self.log_retention_ms,
                _scaled(self.log_retention_minutes, 60_000),
                _scaled(self.log_retention_hours, _HOUR_MS),
            ),
            segment_bytes=self.log_segment_bytes,
            segment_index_bytes=self.log_index_size_max_bytes,
            segment_jitter_ms=_first(self.log_roll_jitter_ms, self.log_roll_jitter_hours * _HOUR_MS),
            segment_ms=_first(self.log_roll_ms, self.log_roll_hours * _HOUR_MS),
            unclean_leader_election_enable=self.unclean_leader_election_enable,
        )


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def _scaled(value: int | None, factor: int) -> int | None:
    return value if value is None or value < 0 else value * factor
