"""The settings of a node, whatever its roles.

Names, types and defaults: Kafka 4's ``KafkaConfig`` and the classes it is put together from
(``ServerConfigs``, ``ServerLogConfigs``, ``ReplicationConfigs``, ``KRaftConfigs``, ``QuorumConfig``,
``SocketServerConfigs``, ``GroupCoordinatorConfig``). Where a default is another one on purpose,
:data:`DEVIATIONS` says why; the settings that Kafka does not have are in :data:`OWN_SETTINGS`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Self

from tidelog.model.config_def import (
    LONG_MAX,
    ConfigDef,
    ConfigError,
    Update,
    boolean,
    double,
    integer,
    listing,
    long,
    structured,
    text,
    unknown_setting,
)
from tidelog.model.ids import NodeId
from tidelog.model.listeners import (
    Listener,
    Voter,
    format_items,
    format_optional_listener,
    format_protocol_map,
    parse_listeners,
    parse_optional_listener,
    parse_protocol_map,
    parse_voters,
)
from tidelog.model.properties import parse_properties
from tidelog.model.topic_config import (
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

BROKER: Final = "broker"
CONTROLLER: Final = "controller"
_CLUSTER_WIDE: Final = Update.CLUSTER_WIDE
_HOUR_MS: Final = 3_600_000
_HTTP_DEFAULT: Final = Listener("HTTP", "127.0.0.1", 9095)


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Every setting of a node, typed. Making one checks the settings against each other (``ConfigError``);
    :meth:`parse` and :meth:`from_properties` check each by itself as well."""

    # --- Who the node is, and where it listens ---
    node_id: NodeId = integer(-1, "This node's id, unique in the cluster.", at_least=0, required=True)
    process_roles: tuple[str, ...] = listing(
        (BROKER, CONTROLLER), "What this node is: broker, controller or both.", choices=(BROKER, CONTROLLER)
    )
    listeners: tuple[Listener, ...] = structured(
        (),
        "Where this node listens, NAME://host:port,…; by default KAFKA, CLIENT, REPLICATION and CONTROLLER, as its "
        "roles want them, on ports 9096 and 9092 to 9094 of the loopback address.",
        read=parse_listeners,
        write=format_items,
    )
    advertised_listeners: tuple[Listener, ...] = structured(
        (), "Where others reach these listeners, if not where they are bound.", read=parse_listeners, write=format_items
    )
    listener_security_protocol_map: tuple[tuple[str, str], ...] = structured(
        (),
        "NAME:PROTOCOL,…; only PLAINTEXT so far, which is the default.",
        read=parse_protocol_map,
        write=format_protocol_map,
    )
    inter_broker_listener_name: str | None = text(
        None, "The listener on which brokers replicate; by default REPLICATION if there is one, else the first."
    )
    controller_listener_names: tuple[str, ...] = listing(
        ("CONTROLLER",), "The listeners of the controller role, also of nodes that have not got it."
    )
    kafka_listener_names: tuple[str, ...] = listing(
        ("KAFKA",), "The listeners, of those for clients, that speak Kafka's wire protocol."
    )
    controller_quorum_voters: tuple[Voter, ...] = structured(
        (),
        "The controllers, id@host:port,…; a node of both roles may leave it out and is alone then.",
        read=parse_voters,
        write=format_items,
    )
    http_listener: Listener | None = structured(  # noqa: RUF009 - a field, like the others
        _HTTP_DEFAULT,
        "Where metrics and health are served; empty for nowhere.",
        read=parse_optional_listener,
        write=format_optional_listener,
    )
    broker_rack: str | None = text(None, "The rack this broker stands in; replicas are spread over racks.")

    # --- Directories ---
    log_dir: str = text("data", "The log directory where log.dirs is not set.")
    log_dirs: tuple[str, ...] = listing((), "The log directories; a failed one is taken out of service alone.")
    metadata_log_dir: str | None = text(None, "The directory of the metadata log; by default the first log directory.")

    # --- Controller ---
    broker_heartbeat_interval_ms: int = integer(250, "Longest time between two heartbeats of a broker.", at_least=1)
    broker_session_timeout_ms: int = integer(
        700, "Time without a heartbeat after which a broker is fenced.", at_least=1
    )
    initial_broker_registration_timeout_ms: int = integer(
        60_000, "Time in which a starting broker must have registered.", at_least=1
    )
    controller_quorum_election_timeout_ms: int = integer(
        650, "Shortest time without word from the leader after which a controller stands for election.", at_least=100
    )
    controller_quorum_request_timeout_ms: int = integer(
        2_000, "Time in which a controller must answer a broker; then the next one is asked.", at_least=1
    )
    controller_quorum_retry_backoff_ms: int = integer(
        20, "First wait after no controller was the active one; it doubles up to 250.", at_least=1
    )
    unclean_recovery_timeout_ms: int = long(
        300_000,
        "Time in which the logs of all replicas that may hold everything are asked for, where each of them stopped "
        "uncleanly; then the best of those that are there leads.",
        at_least=0,
    )
    metadata_log_max_record_bytes_between_snapshots: int = long(
        20 * 2**20, "Bytes of metadata log after which a snapshot is made.", at_least=1
    )
    metadata_log_max_snapshot_interval_ms: int = long(
        _HOUR_MS, "Time after which a snapshot is made if there was a change; 0 is never.", at_least=0
    )
    auto_leader_rebalance_enable: bool = boolean(True, "Whether preferred leaders are elected by themselves.")
    leader_imbalance_check_interval_seconds: int = long(300, "Time between two checks of it.", at_least=1)
    leader_imbalance_per_broker_percentage: int = integer(
        10, "Share of partitions not led by their preferred leader above which they are moved.", at_least=0, at_most=100
    )
    controller_partitions_max: int = integer(200_000, "Most partitions of the cluster.", at_least=1)
    controller_brokers_max: int = integer(1_000, "Most registered brokers of the cluster.", at_least=1)
    controller_requests_max: int = integer(1_000, "Most changes waiting for their commit.", at_least=1)

    # --- New topics ---
    auto_create_topics_enable: bool = boolean(True, "Whether a topic is made when it is first used.")
    num_partitions: int = integer(1, "Partitions of a new topic that names no number.", at_least=1)
    default_replication_factor: int = integer(
        1, "Replicas of a new topic that names no number.", at_least=1, at_most=32767
    )
    delete_topic_enable: bool = boolean(True, "Whether topics may be deleted.")

    # --- Replication ---
    replica_lag_time_max_ms: int = long(
        30_000, "Time behind the leader after which a follower leaves the ISR.", at_least=1
    )
    replica_fetch_max_bytes: int = integer(2**20, "Bytes asked for per partition in one fetch.", at_least=0)
    replica_fetch_response_max_bytes: int = integer(4 * 2**20, "Bytes asked for in one fetch.", at_least=0)
    replica_fetch_wait_max_ms: int = integer(500, "Longest wait of a follower's fetch at the leader.", at_least=0)
    replica_fetch_idle_wait_max_ms: int = integer(
        2_000,
        "To what that wait grows while nothing comes; never beyond a quarter of replica.lag.time.max.ms. "
        "Not a setting of Kafka's.",
        at_least=0,
    )
    replica_fetch_min_bytes: int = integer(1, "Fewest bytes that end the wait.", at_least=0)
    replica_fetch_backoff_ms: int = integer(1_000, "Wait after a partition's fetch failed.", at_least=0)
    replica_socket_timeout_ms: int = integer(30_000, "Time in which a leader must answer.", at_least=1)
    replica_high_watermark_checkpoint_interval_ms: int = long(5_000, "Time between two of its checkpoints.", at_least=1)

    leader_replication_throttled_rate: int = long(
        LONG_MAX,
        "Bytes a second that this broker sends, as a leader, to throttled replicas that are not in sync (KIP-73).",
        at_least=0,
        update=Update.PER_BROKER,
    )
    follower_replication_throttled_rate: int = long(
        LONG_MAX,
        "Bytes a second that this broker's own throttled replicas fetch while they are not in sync (KIP-73).",
        at_least=0,
        update=Update.PER_BROKER,
    )

    # --- Requests and their bounds ---
    message_max_bytes: int = integer(
        MAX_MESSAGE_BYTES_DEFAULT, "Largest record batch, after compression.", at_least=0, update=_CLUSTER_WIDE
    )
    fetch_max_bytes: int = integer(
        8 * 2**20, "Most bytes of one fetch answer; a larger first batch is sent whole.", at_least=1024
    )
    request_timeout_ms: int = integer(30_000, "Time in which another node must answer.", at_least=1)
    socket_request_max_bytes: int = integer(100 * 2**20, "Largest request.", at_least=1)
    queued_max_requests: int = integer(
        64, "Most unanswered requests of one produce or fetch stream; then it is not read.", at_least=1
    )
    queued_max_request_bytes: int = long(
        64 * 2**20,
        "Most bytes held for producers, and as many for consumers; then no more of theirs is read.",
        at_least=1,
    )
    max_connections: int = integer(
        10_000,
        "Most connections to each listener; a further one is closed at once.",
        at_least=1,
        at_most=1_000_000,  # gRPC's core aborts the process at the largest number of 32 bits
    )
    max_requests_under_way: int = integer(
        20_000, "Most calls and open streams of each listener; a further one is refused.", at_least=1
    )
    connections_max_idle_ms: int = long(
        600_000, "Time after which a connection without calls and streams is closed; -1 is never.", at_least=-1
    )
    controlled_shutdown_enable: bool = boolean(True, "Whether a stopping broker hands over its leaderships first.")
    controlled_shutdown_timeout_ms: int = integer(10_000, "Longest time for that; then it stops anyway.", at_least=0)

    # --- Producers ---
    producer_id_expiration_ms: int = integer(86_400_000, "Time after which an idle producer's state goes.", at_least=1)
    producer_id_expiration_check_interval_ms: int = integer(600_000, "Time between two looks for such.", at_least=1)
    producer_ids_max: int = integer(100_000, "Most producers remembered per partition; the oldest goes.", at_least=1)

    # --- Consumer groups and their committed offsets (``GroupCoordinatorConfig``) ---
    group_min_session_timeout_ms: int = integer(
        6_000, "Shortest session timeout that a member may ask for.", at_least=1
    )
    group_max_session_timeout_ms: int = integer(
        1_800_000, "Longest session timeout that a member may ask for.", at_least=1
    )
    group_initial_rebalance_delay_ms: int = integer(
        3_000, "How long an empty group waits for more members once the first one has come.", at_least=0
    )
    group_max_size: int = integer(10_000, "Most members of a group.", at_least=1)
    group_coordinator_groups_max: int = integer(
        100_000, "Most groups of one partition of __consumer_offsets.", at_least=1
    )
    group_coordinator_members_max: int = integer(
        100_000, "Most members, and ids given out to members, of one partition of __consumer_offsets.", at_least=1
    )
    group_coordinator_offsets_max: int = integer(
        1_000_000, "Most committed offsets of one partition of __consumer_offsets.", at_least=1
    )
    group_coordinator_appends_max: int = integer(
        10_000, "Most unanswered writes of groups to one partition of __consumer_offsets.", at_least=1
    )
    offset_metadata_max_bytes: int = integer(4_096, "Longest metadata of a committed offset.", at_least=0)
    offsets_commit_timeout_ms: int = integer(
        5_000, "Time in which what a group writes must have reached the in-sync replicas.", at_least=1
    )
    offsets_load_buffer_size: int = integer(
        5 * 2**20, "Bytes read at a time while a coordinator loads; a larger batch is read whole.", at_least=1
    )
    offsets_retention_minutes: int = integer(
        7 * 24 * 60, "How long an empty group's offsets, and those of topics it has left, are kept.", at_least=1
    )
    offsets_retention_check_interval_ms: int = long(
        600_000, "Time between two looks for offsets to forget.", at_least=1
    )
    offsets_topic_num_partitions: int = integer(
        50, "Partitions of __consumer_offsets; only looked at when it is made, on first use.", at_least=1
    )
    offsets_topic_replication_factor: int = integer(
        3, "Replicas of it; it is not made before there are so many brokers.", at_least=1, at_most=32767
    )
    offsets_topic_segment_bytes: int = integer(
        100 * 2**20, "Its segment.bytes, so that it is compacted and loaded sooner.", at_least=SEGMENT_BYTES_MIN
    )

    # --- Transactions (``TransactionStateManagerConfig``, ``TransactionLogConfig``) ---
    transaction_max_timeout_ms: int = integer(
        900_000, "Longest transaction timeout that a producer may ask for.", at_least=1
    )
    transaction_two_phase_commit_enable: bool = boolean(
        False, "Whether producers may prepare transactions, which then wait for an outside decision without a timeout."
    )
    transactional_id_expiration_ms: int = integer(
        7 * DAY_MS, "How long a transactional id without an open transaction is remembered.", at_least=1
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = integer(
        10_000, "Longest time between a transaction's timeout and its abort.", at_least=1
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = integer(
        _HOUR_MS, "Time between two looks for transactional ids to forget.", at_least=1
    )
    transaction_partition_verification_enable: bool = boolean(
        True,
        "Whether a leader that is sent a transaction of the first protocol asks first whether its partition is in it.",
    )
    transaction_state_log_num_partitions: int = integer(
        50, "Partitions of __transaction_state; only looked at when it is made, on first use.", at_least=1
    )
    transaction_state_log_replication_factor: int = integer(
        3, "Replicas of it; it is not made before there are so many brokers.", at_least=1, at_most=32767
    )
    transaction_state_log_min_isr: int = integer(2, "Its min.insync.replicas.", at_least=1)
    transaction_state_log_segment_bytes: int = integer(
        100 * 2**20, "Its segment.bytes, so that it is compacted and loaded sooner.", at_least=SEGMENT_BYTES_MIN
    )
    transaction_state_log_load_buffer_size: int = integer(
        5 * 2**20, "Bytes read at a time while a coordinator loads; a larger batch is read whole.", at_least=1
    )
    transaction_coordinator_ids_max: int = integer(
        100_000, "Most transactional ids of one partition of __transaction_state.", at_least=1
    )
    transaction_coordinator_appends_max: int = integer(
        10_000, "Most unanswered writes of transactions to one partition of __transaction_state.", at_least=1
    )
    transaction_partitions_max: int = integer(10_000, "Most partitions of one transaction.", at_least=1)
    transaction_coordinator_waiting_adds_max: int = integer(
        10_000,
        "Most requests to add partitions to transactions of one partition of __transaction_state that wait for what "
        "is under way in their transaction.",
        at_least=1,
    )
    transaction_coordinator_add_wait_max_ms: int = integer(
        100, "How long such a request waits before it has to ask again.", at_least=0
    )
    transaction_coordinator_sinks_max: int = integer(
        10_000, "Most ledgers of sinks in one partition of __transaction_state; they never expire.", at_least=1
    )
    transaction_sink_timeout_ms: int = integer(900_000, "How long a sink's transaction may be open.", at_least=1)
    transaction_sink_prepared_timeout_ms: int = integer(
        _HOUR_MS, "How long one may be prepared; its batch has to be written anew after that.", at_least=1
    )
    transaction_sink_transactions_max: int = integer(
        10_000, "Most transactions of one sink that have not ended.", at_least=1
    )
    transaction_sink_fenced_jobs_max: int = integer(
        1_000, "Most superseded jobs of a sink's undecided batch that are remembered, the latest.", at_least=1
    )

    # --- Logs: defaults of topics (see model/topic_config.py) and their upkeep ---
    log_cleanup_policy: tuple[str, ...] = listing(
        (DELETE,), "Default of cleanup.policy.", choices=(COMPACT, DELETE), update=_CLUSTER_WIDE
    )
    compression_type: str = text(
        PRODUCER_COMPRESSION, "Default of compression.type.", choices=COMPRESSION_TYPES, update=_CLUSTER_WIDE
    )
    log_cleaner_enable: bool = boolean(
        True, "Whether compacted topics are compacted; the topic of committed offsets is one of them."
    )
    log_cleaner_threads: int = integer(
        1,
        "How many logs are compacted at once.",
        at_least=1,
        update=_CLUSTER_WIDE,
    )
    log_cleaner_backoff_ms: int = long(
        15_000, "Time between two looks for logs to clean, while there is none.", at_least=1, update=_CLUSTER_WIDE
    )
    log_cleaner_dedupe_buffer_size: int = long(
        128 * 2**20,
        "Most bytes for the offsets of keys while a log is cleaned, 24 a key; what does not fit waits for the next "
        "pass over the log.",
        at_least=2**20,
        update=_CLUSTER_WIDE,
    )
    log_cleaner_io_buffer_load_factor: float = double(
        0.9, "How full that buffer may become.", at_least=0.01, at_most=0.99, update=_CLUSTER_WIDE
    )
    log_cleaner_io_buffer_size: int = integer(
        512 * 1024,
        "Bytes read at once by the cleaner; a larger batch is read whole.",
        at_least=4096,
        update=_CLUSTER_WIDE,
    )
    log_cleaner_io_max_bytes_per_second: float = double(
        sys.float_info.max,
        "Most bytes a second that cleaning reads and writes, on average.",
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
        LONG_MAX, "Time between two looks for logs to fsync, but never more than 1000.", at_least=1
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
    log_retention_minutes: int | None = integer(None, "The same in minutes; unset: log.retention.hours.", at_least=-1)
    log_retention_hours: int = integer(168, "The same in hours.", at_least=-1)
    log_retention_check_interval_ms: int = long(300_000, "Time between two looks for segments to delete.", at_least=1)
    log_roll_ms: int | None = long(
        None, "Default of segment.ms; unset: log.roll.hours.", at_least=1, update=_CLUSTER_WIDE
    )
    log_roll_hours: int = integer(168, "The same in hours.", at_least=1)
    log_roll_jitter_ms: int | None = long(
        None, "Default of segment.jitter.ms; unset: log.roll.jitter.hours.", at_least=0, update=_CLUSTER_WIDE
    )
    log_roll_jitter_hours: int = integer(0, "The same in hours.", at_least=0)
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

    DEFINITION: ClassVar[ConfigDef]

    def __post_init__(self) -> None:
        for setting in ("controller_listener_names", "kafka_listener_names"):
            object.__setattr__(self, setting, tuple(name.upper() for name in getattr(self, setting)))
        if not self.listeners:
            object.__setattr__(self, "listeners", self._default_listeners())
        self._check_roles()
        self._check_listeners()
        self._check_voters()
        if self.broker_heartbeat_interval_ms >= self.broker_session_timeout_ms:
            raise ConfigError(
                "broker.heartbeat.interval.ms: expected less than broker.session.timeout.ms "
                f"({self.broker_session_timeout_ms}), found {self.broker_heartbeat_interval_ms}"
            )
        # Source: KafkaConfig.validateValues
        if self.replica_fetch_wait_max_ms > self.replica_lag_time_max_ms:
            raise ConfigError(
                "replica.fetch.wait.max.ms: expected at most replica.lag.time.max.ms "
                f"({self.replica_lag_time_max_ms}), found {self.replica_fetch_wait_max_ms}"
            )
        if self.message_max_bytes > self.socket_request_max_bytes:
            raise ConfigError(
                "message.max.bytes: expected at most socket.request.max.bytes "
                f"({self.socket_request_max_bytes}), found {self.message_max_bytes}"
            )
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise ConfigError(
                "group.min.session.timeout.ms: expected at most group.max.session.timeout.ms "
                f"({self.group_max_session_timeout_ms}), found {self.group_min_session_timeout_ms}"
            )
        if not self.log_cleanup_policy:
            raise ConfigError("log.cleanup.policy: expected compact, delete or both, found none")

    # --- Reading ---

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """Read settings by their Kafka names. Raises :class:`ConfigError`."""
        for name in values:
            _refuse_unknown(name)
        parsed = NODE_CONFIG_DEF.parse(values)
        for setting in NODE_CONFIG_DEF.settings.values():
            if setting.required and setting.name not in values:
                raise ConfigError(f"{setting.name}: expected {setting.expectation()}, found nothing")
        return cls(**parsed)

    @classmethod
    def from_properties(cls, source: str | Path, overrides: Mapping[str, str] | None = None) -> Self:
        """Read a ``.properties`` file (a ``Path``) or its text. ``overrides`` win. Raises
        :class:`ConfigError` naming the file and the line, and ``OSError`` where the file cannot be read."""
        where = f"{source}: " if isinstance(source, Path) else ""
        try:
            content = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
        except UnicodeDecodeError as error:
            raise ConfigError(f"{where}expected UTF-8 text, found byte {error.object[error.start]:#x}") from None
        try:
            found = parse_properties(content)
        except ConfigError as error:
            raise ConfigError(f"{where}{error}") from None
        for name, (value, line) in found.items():
            try:
                _refuse_unknown(name)
                NODE_CONFIG_DEF.require(name).parse(value)
            except ConfigError as error:
                raise ConfigError(f"{where}line {line}: {error}") from None
        merged = {name: value for name, (value, _) in found.items()} | dict(overrides or {})
        try:
            return cls.parse(merged)
        except ConfigError as error:
            raise ConfigError(f"{where}{error}") from None

    def describe(self) -> dict[str, str | None]:
        """Every setting as text, by its Kafka name."""
        return NODE_CONFIG_DEF.describe(self)

    # --- What follows from the settings ---

    @property
    def is_broker(self) -> bool:
        return BROKER in self.process_roles

    @property
    def is_controller(self) -> bool:
        return CONTROLLER in self.process_roles

    @property
    def controller_listeners(self) -> tuple[Listener, ...]:
        """Where this node listens as a controller; empty without that role."""
        return tuple(found for found in self.listeners if found.name in self.controller_listener_names)

    @property
    def broker_listeners(self) -> tuple[Listener, ...]:
        """Where this node listens as a broker, for clients and for other brokers."""
        return tuple(found for found in self.listeners if found.name not in self.controller_listener_names)

    @property
    def kafka_listeners(self) -> tuple[Listener, ...]:
        """Those of the broker's listeners that speak Kafka's wire protocol."""
        return tuple(found for found in self.broker_listeners if found.name in self.kafka_listener_names)

    @property
    def replication_listener(self) -> str:
        """Name of the listener on which other brokers reach this one."""
        if self.inter_broker_listener_name is not None:
            return self.inter_broker_listener_name.upper()
        names = [found.name for found in self.broker_listeners if found.name not in self.kafka_listener_names]
        return "REPLICATION" if "REPLICATION" in names or not names else names[0]

    @property
    def directories(self) -> tuple[str, ...]:
        """The log directories."""
        return self.log_dirs or (self.log_dir,)

    @property
    def metadata_directory(self) -> str:
        return self.metadata_log_dir or self.directories[0]

    @property
    def voters(self) -> tuple[Voter, ...]:
        """The controllers; a node of both roles without ``controller.quorum.voters`` is the only one."""
        if self.controller_quorum_voters:
            return self.controller_quorum_voters
        own = self.controller_listeners[0]
        return (Voter(self.node_id, own.host, own.port),)

    def advertised(self, bound_ports: Mapping[str, int]) -> tuple[Listener, ...]:
        """Where others reach this broker's listeners. ``bound_ports``: real port by name, of those that are bound."""
        by_name = {found.name: found for found in self.advertised_listeners}
        made = [by_name.get(own.name, own) for own in self.broker_listeners if own.name in bound_ports]
        return tuple(found if found.port else found._replace(port=bound_ports[found.name]) for found in made)

    def topic_defaults(self) -> TopicConfig:
        """The settings of a topic that sets none itself."""
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

    # --- Checks across settings ---

    def _default_listeners(self) -> tuple[Listener, ...]:
        own: list[Listener] = []
        if BROKER in self.process_roles:
            own += [Listener(name, "127.0.0.1", 9096) for name in self.kafka_listener_names[:1]]
            own += [Listener("CLIENT", "127.0.0.1", 9092), Listener("REPLICATION", "127.0.0.1", 9093)]
        if CONTROLLER in self.process_roles and self.controller_listener_names:
            own.append(Listener(self.controller_listener_names[0], "127.0.0.1", 9094))
        return tuple(own)

    def _check_roles(self) -> None:
        if self.node_id < 0:
            raise ConfigError(f"node.id: expected a whole number of at least 0, found {self.node_id}")
        if not self.process_roles:
            raise ConfigError("process.roles: expected broker, controller or both, found none")
        if not self.controller_listener_names:
            raise ConfigError("controller.listener.names: expected at least one name, found none")

    def _check_listeners(self) -> None:
        names = [found.name for found in self.listeners]
        shown = format_items(self.listeners)
        if self.is_controller and not self.controller_listeners:
            wanted = self.controller_listener_names[0]
            raise ConfigError(f"listeners: expected one named {wanted} (controller.listener.names), found {shown}")
        if not self.is_controller and self.controller_listeners:
            wanted = self.controller_listeners[0].name
            raise ConfigError(f"listeners: expected none named {wanted}, as this node is no controller, found {shown}")
        if self.is_broker and not self.broker_listeners:
            raise ConfigError(f"listeners: expected one for clients and brokers, found {shown}")
        if not self.is_broker and self.broker_listeners:
            raise ConfigError(f"listeners: expected only those in controller.listener.names, found {shown}")
        kafka = [found.name for found in self.kafka_listeners]
        brokers = [found.name for found in self.broker_listeners if found.name not in kafka]
        if self.is_broker and not brokers:
            raise ConfigError(
                f"listeners: expected one beside {', '.join(kafka)} (kafka.listener.names): brokers replicate by "
                f"another protocol, found {shown}"
            )
        if self.is_broker and self.replication_listener not in brokers:
            raise ConfigError(
                f"inter.broker.listener.name: expected one of {', '.join(brokers)}, found {self.replication_listener}"
            )
        advertised = {found.name: found for found in self.advertised_listeners}
        for found in self.advertised_listeners:
            if found.name not in names:
                raise ConfigError(f"advertised.listeners: expected one of {', '.join(names)}, found {found.name}")
            if found.wildcard:
                raise ConfigError(f"advertised.listeners: expected an address that others can reach, found {found}")
        for found in self.broker_listeners:
            if found.wildcard and found.name not in advertised:
                raise ConfigError(
                    f"advertised.listeners: expected an entry for {found}, which binds everywhere, found none"
                )

    def _check_voters(self) -> None:
        if not self.controller_quorum_voters:
            if not self.is_controller:
                raise ConfigError("controller.quorum.voters: expected id@host:port,…, found none")
            return
        ids = [voter.node_id for voter in self.controller_quorum_voters]
        shown = format_items(self.controller_quorum_voters)
        if self.is_controller and self.node_id not in ids:
            raise ConfigError(f"controller.quorum.voters: expected node.id {self.node_id} among them, found {shown}")
        if not self.is_controller and self.node_id in ids:
            raise ConfigError(
                f"controller.quorum.voters: expected them without {self.node_id}, which is no controller, found {shown}"
            )
        if any(voter.port == 0 for voter in self.controller_quorum_voters):
            raise ConfigError(f"controller.quorum.voters: expected ports other than 0, found {shown}")


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def _scaled(value: int | None, factor: int) -> int | None:
    return value if value is None or value < 0 else value * factor


_NOT_YET: Final = {
    "ssl.": "TLS is not there yet",
    "sasl.": "SASL is not there yet",
    "security.": "TLS and SASL are not there yet",
    "authorizer.": "authorization is not there yet",
    "zookeeper.": "there is no ZooKeeper; the metadata quorum takes its place",
    "remote.log.": "tiered storage is not there yet",
    "group.consumer.": "groups speak the classic protocol; KIP-848's is not there yet",
    "group.share.": "share groups are not there yet",
    "group.streams.": "groups speak the classic protocol; KIP-1071's is not there yet",
}


_WITHOUT_COUNTERPART: Final = {
    "group.coordinator.append.linger.ms": "a coordinator appends at once",
    "group.coordinator.rebalance.protocols": "groups speak the classic protocol",
    "group.coordinator.threads": "a node serves on one event loop",
    "offsets.topic.compression.codec": "what a group writes is not compressed",
    "transaction.state.log.compression.codec": "what a transaction's coordinator writes is not compressed",
    "add.partitions.to.txn.retry.backoff.ms": "a transaction's coordinator lets such requests wait",
    "add.partitions.to.txn.retry.backoff.max.ms": "a transaction's coordinator lets such requests wait",
    "log.flush.start.offset.checkpoint.interval.ms": "log.flush.offset.checkpoint.interval.ms covers both checkpoints",
    "max.connections.per.ip": "max.connections bounds each listener",
    "max.connections.per.ip.overrides": "max.connections bounds each listener",
    "max.connection.creation.rate": "max.connections bounds each listener",
    "replica.alter.log.dirs.io.max.bytes.per.second": "replicas do not move between the directories of a node",
    "max.incremental.fetch.session.cache.slots": "a fetch session lives and ends with its stream, or there is none",
    "max.request.partition.size.limit": "metadata is answered whole",
    "num.io.threads": "a node serves on one event loop",
    "num.network.threads": "a node serves on one event loop",
    "num.replica.fetchers": "there is one stream to each leader",
    "socket.send.buffer.bytes": "the transport sizes its own buffers",
    "socket.receive.buffer.bytes": "the transport sizes its own buffers",
}
"""Settings of Kafka that nothing here could obey, and why."""


def _refuse_unknown(name: str) -> None:
    if name in NODE_CONFIG_DEF.settings:
        return
    if (why := _WITHOUT_COUNTERPART.get(name)) is not None:
        raise ConfigError(f"unknown setting {name!r}: Kafka's has no counterpart here, as {why}")
    if name == "broker.id":
        raise ConfigError("unknown setting 'broker.id'; did you mean node.id?")
    for prefix, why in _NOT_YET.items():
        if name.startswith(prefix):
            raise ConfigError(f"unknown setting {name[:80]!r}: {why}")
    raise ConfigError(unknown_setting(name, NODE_CONFIG_DEF.settings))


def is_kafkas_alone(name: str) -> bool:
    """Whether a setting is one of Kafka's that has no counterpart here, on purpose."""
    return name in _WITHOUT_COUNTERPART


NODE_CONFIG_DEF: Final = ConfigDef(NodeConfig)
NodeConfig.DEFINITION = NODE_CONFIG_DEF

DEVIATIONS: Final[dict[str, str]] = {
    "process.roles": "Kafka has no default; a node that names no roles has both here",
    "listeners": "Kafka listens everywhere on 9092; here only on the loopback address",
    "log.dir": "Kafka's is /tmp/kafka-logs, which a reboot empties",
    "broker.heartbeat.interval.ms": "2000 in Kafka; leader failover within a second needs it shorter",
    "broker.session.timeout.ms": "9000 in Kafka; leader failover within a second needs it shorter",
    "controller.quorum.election.timeout.ms": "1000 in Kafka; controller failover within a second needs it shorter",
    "replica.fetch.response.max.bytes": "10 MiB in Kafka; 4 MiB is what one frame of a stream carries",
    "fetch.max.bytes": "55 MiB in Kafka; beyond 8 MiB an answer costs memory and brings no speed",
    "queued.max.requests": "500 for all clients together in Kafka; here each stream has its own",
    "queued.max.request.bytes": "no limit in Kafka; nothing is unbounded here",
    "max.connections": "no limit in Kafka; nothing is unbounded here",
    "group.max.size": "no limit in Kafka; nothing is unbounded here",
}
"""Settings whose default is not Kafka's, and why."""

OWN_SETTINGS: Final = frozenset(
    {
        "kafka.listener.names",
        "http.listener",
        "controlled.shutdown.timeout.ms",
        "controller.partitions.max",
        "controller.brokers.max",
        "controller.requests.max",
        "max.requests.under.way",
        "producer.ids.max",
        "group.coordinator.groups.max",
        "group.coordinator.members.max",
        "group.coordinator.offsets.max",
        "group.coordinator.appends.max",
        "transaction.coordinator.ids.max",
        "transaction.coordinator.appends.max",
        "transaction.coordinator.waiting.adds.max",
        "transaction.coordinator.add.wait.max.ms",
        "transaction.partitions.max",
        "transaction.coordinator.sinks.max",
        "transaction.sink.timeout.ms",
        "transaction.sink.prepared.timeout.ms",
        "transaction.sink.transactions.max",
        "transaction.sink.fenced.jobs.max",
    }
)
"""Settings that Kafka does not have."""
