"""The settings of a topic.

Names, types, defaults and bounds: Kafka 4's ``LogConfig`` and ``TopicConfig``. If a topic does not set one, it takes
the value of the broker setting named in :data:`BROKER_SYNONYMS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Final, Self

from tidelog.model.classes.frozen import dataclass
from tidelog.model.settings.config_def import (
    LONG_MAX,
    ConfigDef,
    ConfigError,
    boolean,
    double,
    integer,
    listing,
    long,
    structured,
    text,
)
from tidelog.model.settings.throttled_replicas import NOBODY, ThrottledReplicas

DAY_MS: Final = 86_400_000
COMPACT: Final = "compact"
DELETE: Final = "delete"
CREATE_TIME: Final = "CreateTime"
LOG_APPEND_TIME: Final = "LogAppendTime"
PRODUCER_COMPRESSION: Final = "producer"
UNCOMPRESSED: Final = "uncompressed"
COMPRESSION_TYPES: Final = (UNCOMPRESSED, "zstd", "lz4", "snappy", "gzip", PRODUCER_COMPRESSION)
MAX_MESSAGE_BYTES_DEFAULT: Final = 1024 * 1024 + 12
"""A mebibyte plus the 12 bytes of a batch that its length does not count (Kafka's ``LOG_OVERHEAD``)."""
LINK_ACTIVE: Final = "active"
LINK_STOPPED: Final = "stopped"
SEGMENT_BYTES_MIN: Final = 1024 * 1024
"""Smallest segment size (KIP-1030). A log created directly from a :class:`TopicConfig` may have smaller ones."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Every setting of a topic, typed. Durations in milliseconds, sizes in bytes; -1 means "no limit" where it does in
    Kafka.

    The constructor accepts any values (tests need tiny segments); :meth:`parse` checks them.
    """

    cleanup_policy: tuple[str, ...] = listing(
        (DELETE,),
        "What happens to old segments: delete them, compact them by key, or both; empty keeps them forever.",
        choices=(COMPACT, DELETE),
    )
    compression_type: str = text(
        PRODUCER_COMPRESSION, "Codec of stored batches; 'producer' keeps the producer's.", choices=COMPRESSION_TYPES
    )
    delay_dead_letter_topic: str = text("", "Where a delay topic's records go that cannot be delivered.")
    delay_enable: bool = boolean(
        False,
        "Whether this is a delay topic: its leaders move each record to another topic once it is due, and keep it "
        "until then, whatever retention says.",
    )
    delay_pending_max: int = long(
        10_000_000,
        "Most records that a delay topic's partition holds from its oldest undelivered one on; more are refused.",
        at_least=1,
    )
    delay_sources: tuple[str, ...] = listing((), "The delay topics whose records may be moved to this topic.")
    delay_target: str = text("", "Where records of a delay topic go that name no topic themselves.")
    delay_targets: tuple[str, ...] = listing((), "Further topics that records of a delay topic may name.")
    delete_retention_ms: int = long(DAY_MS, "How long a compacted topic keeps tombstones.", at_least=0)
    file_delete_delay_ms: int = long(60_000, "How long a deleted file stays on disk.", at_least=0)
    filter_header: str = text(
        "",
        "The header by which brokers filter for the SDK's consumers: they keep an index of its values for each full "
        "segment.",
    )
    flush_messages: int = long(
        LONG_MAX, "fsync after this many records; the default leaves it to the operating system.", at_least=1
    )
    flush_ms: int = long(
        LONG_MAX, "fsync after this many milliseconds; the default leaves it to the operating system.", at_least=0
    )
    follower_replication_throttled_replicas: ThrottledReplicas = structured(
        NOBODY,
        "Followers throttled to follower.replication.throttled.rate while they are not in sync: "
        "partition:node,… or * for all (KIP-73).",
        read=ThrottledReplicas.parse,
        write=ThrottledReplicas.format,
    )
    index_interval_bytes: int = integer(4096, "Bytes of log between two entries in the offset index.", at_least=0)
    leader_replication_throttled_replicas: ThrottledReplicas = structured(
        NOBODY,
        "Leaders throttled to leader.replication.throttled.rate towards replicas that are not in sync: "
        "partition:node,… or * for all (KIP-73).",
        read=ThrottledReplicas.parse,
        write=ThrottledReplicas.format,
    )
    link_name: str = text(
        "", "The link that copies this topic from another cluster; until its promotion nobody else may write."
    )
    link_source: tuple[str, ...] = listing((), "Where the link's records come from: cluster ids, the nearest first.")
    link_state: str = text(
        LINK_ACTIVE,
        "Whether leaders accept the link's records (active) or nobody's, during the promotion (stopped).",
        choices=(LINK_ACTIVE, LINK_STOPPED),
    )
    max_compaction_lag_ms: int = long(LONG_MAX, "Longest time for which a record may stay uncompacted.", at_least=1)
    max_message_bytes: int = integer(MAX_MESSAGE_BYTES_DEFAULT, "Largest record batch, after compression.", at_least=0)
    message_timestamp_after_max_ms: int = long(
        3_600_000, "How far a record's timestamp may be ahead of the broker's clock (KIP-937).", at_least=0
    )
    message_timestamp_before_max_ms: int = long(
        LONG_MAX, "How far a record's timestamp may be behind the broker's clock (KIP-937).", at_least=0
    )
    message_timestamp_type: str = text(
        CREATE_TIME,
        "Whether a record has its producer's or the broker's time.",
        choices=(CREATE_TIME, LOG_APPEND_TIME),
    )
    message_ttl_ms: int = long(
        -1,
        "How long after its timestamp a record is worth reading: delay topics deliver nothing later than that after "
        "its due time, and TimeToLive of the SDK takes it from here; -1 is no limit.",
        at_least=-1,
    )
    min_cleanable_dirty_ratio: float = double(
        0.5, "Uncompacted share of a log at which compaction begins.", at_least=0, at_most=1
    )
    min_compaction_lag_ms: int = long(0, "Shortest time for which a record stays uncompacted.", at_least=0)
    min_insync_replicas: int = integer(
        1, "Fewest in-sync replicas for acks=all to succeed and the high watermark to advance (KIP-966).", at_least=1
    )
    preallocate: bool = boolean(False, "Whether to create a segment's file at its full size.")
    retention_bytes: int = long(
        -1, "Size of a partition above which old segments are deleted; -1 is no limit.", at_least=-1
    )
    retention_ms: int = long(7 * DAY_MS, "Age at which a segment is deleted; -1 is no limit.", at_least=-1)
    segment_bytes: int = integer(2**30, "Largest size of one segment's log file.", at_least=SEGMENT_BYTES_MIN)
    segment_index_bytes: int = integer(10 * 2**20, "Largest size of one segment's offset index.", at_least=4)
    segment_jitter_ms: int = long(
        0, "Largest random reduction of segment.ms, so that segments do not all roll together.", at_least=0
    )
    segment_ms: int = long(7 * DAY_MS, "Longest time for which a segment accepts writes.", at_least=1)
    unclean_leader_election_enable: bool = boolean(
        False, "Whether a replica that lacks committed records may become leader if no other is available."
    )

    DEFINITION: ClassVar[ConfigDef]

    @classmethod
    def parse(cls, values: Mapping[str, str], defaults: Self | None = None) -> Self:
        """Read settings by their Kafka names; those not in ``values`` come from ``defaults`` (without them, Kafka's
        own). Raises :class:`ConfigError`."""
        parsed = TOPIC_CONFIG_DEF.parse(values)
        made = dataclasses.replace(cls() if defaults is None else defaults, **parsed)
        made._check_together(values)
        return made

    @classmethod
    def layered(cls, values: Mapping[str, str], defaults: Self) -> Self:
        """Read values that were checked layer by layer, like :meth:`parse`, but without checking settings of different
        layers against each other."""
        return dataclasses.replace(defaults, **TOPIC_CONFIG_DEF.parse(values)) if values else defaults

    def describe(self) -> dict[str, str | None]:
        """Return every setting as text, by its Kafka name."""
        return TOPIC_CONFIG_DEF.describe(self)

    @property
    def compacts(self) -> bool:
        return COMPACT in self.cleanup_policy

    @property
    def segment_ms_max(self) -> int:
        """Longest time for which a segment accepts writes. Compaction skips the active segment, so
        ``max.compaction.lag.ms`` bounds this time too (Kafka's ``LogConfig.maxSegmentMs``)."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms

    @property
    def deletes(self) -> bool:
        """Whether old segments go. Those of a delay topic stay until their records were moved."""
        return DELETE in self.cleanup_policy and not self.delay_enable

    @property
    def moves_delayed(self) -> bool:
        """Whether leaders move a delay topic's records. Not while a link fills it: those at the source do."""
        return self.delay_enable and not self.link_name

    @property
    def takes_link(self) -> bool:
        """Whether a link writes this topic, and nobody else may change its logs."""
        return bool(self.link_name) and self.link_state == LINK_ACTIVE

    def link_fault(self, link: str) -> str | None:
        """Return why a leader must refuse records from the link of this name ("": from anybody else); ``None`` if it
        may accept them."""
        if link == self.link_name and (not link or self.link_state == LINK_ACTIVE):
            return None
        if not self.link_name:
            return f"expected a topic that is filled by link {link!r}, found one without a link"
        return (
            f"expected no records but those of link {self.link_name!r}, which fills this topic from another cluster "
            f"(link.state {self.link_state}): `tidelog links promote {self.link_name}` makes it writable"
        )

    def _check_together(self, given: Mapping[str, str]) -> None:
        # Source: LogConfig.validateValues
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise ConfigError(
                "min.compaction.lag.ms: expected at most max.compaction.lag.ms "
                f"({self.max_compaction_lag_ms}), found {self.min_compaction_lag_ms}"
            )
        if self.segment_jitter_ms > self.segment_ms and "segment.jitter.ms" in given:
            raise ConfigError(
                f"segment.jitter.ms: expected at most segment.ms ({self.segment_ms}), found {self.segment_jitter_ms}"
            )
        if self.delay_enable:
            self._check_delay()

    def _check_delay(self) -> None:
        if self.compacts:
            raise ConfigError("delay.enable: expected a topic that is not compacted, found cleanup.policy compact")
        if self.message_timestamp_type != LOG_APPEND_TIME:
            raise ConfigError(
                f"delay.enable: expected message.timestamp.type {LOG_APPEND_TIME}, since delays count from when a "
                f"leader took the record, found {self.message_timestamp_type}"
            )
        if not self.delay_dead_letter_topic:
            raise ConfigError(
                "delay.enable: expected delay.dead.letter.topic, for records that cannot be delivered, found none"
            )


TOPIC_CONFIG_DEF: Final = ConfigDef(TopicConfig)
TopicConfig.DEFINITION = TOPIC_CONFIG_DEF

BROKER_SYNONYMS: Final[dict[str, str]] = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.type": "compression.type",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
"""Topic setting → the broker setting that is its default (``ServerTopicConfigSynonyms``)."""

OTHER_UNITS: Final[dict[str, tuple[str, ...]]] = {
    "log.flush.interval.ms": ("log.flush.scheduler.interval.ms",),
    "log.retention.ms": ("log.retention.minutes", "log.retention.hours"),
    "log.roll.jitter.ms": ("log.roll.jitter.hours",),
    "log.roll.ms": ("log.roll.hours",),
}
"""Broker setting → those that apply while it is unset, in this order (``ServerTopicConfigSynonyms``)."""
