"""A node's settings for the coordinators: consumer groups with their committed offsets, and transactions.

Source: Kafka's ``GroupCoordinatorConfig``, ``TransactionStateManagerConfig`` and ``TransactionLogConfig``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.model.settings.config_def import boolean, integer, listing, long, text
from tidelog.model.settings.topic_config import DAY_MS, SEGMENT_BYTES_MIN

_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True)
class GroupSettings:
    """A node's settings for groups."""

    group_min_session_timeout_ms: int = integer(
        6_000, "Shortest session timeout that a member may ask for.", at_least=1
    )
    group_max_session_timeout_ms: int = integer(
        1_800_000, "Longest session timeout that a member may ask for.", at_least=1
    )
    group_initial_rebalance_delay_ms: int = integer(
        3_000, "How long an empty group waits for more members after the first one has joined.", at_least=0
    )
    group_max_size: int = integer(10_000, "Most members in a group.", at_least=1)
    group_consumer_session_timeout_ms: int = integer(
        45_000, "How long a silent member of the consumer protocol keeps its partitions.", at_least=1
    )
    group_consumer_heartbeat_interval_ms: int = integer(
        5_000, "Time between heartbeats of members of the consumer protocol.", at_least=1
    )
    group_consumer_min_session_timeout_ms: int = integer(
        45_000, "Shortest consumer.session.timeout.ms that a group may set.", at_least=1
    )
    group_consumer_max_session_timeout_ms: int = integer(
        60_000, "Longest consumer.session.timeout.ms that a group may set.", at_least=1
    )
    group_consumer_min_heartbeat_interval_ms: int = integer(
        5_000, "Shortest consumer.heartbeat.interval.ms that a group may set.", at_least=1
    )
    group_consumer_max_heartbeat_interval_ms: int = integer(
        15_000, "Longest consumer.heartbeat.interval.ms that a group may set.", at_least=1
    )
    group_consumer_assignment_interval_ms: int = integer(
        1_000, "Shortest time between two target assignments of a group of the consumer protocol.", at_least=0
    )
    group_consumer_min_assignment_interval_ms: int = integer(
        0, "Smallest consumer.assignment.interval.ms that a group may set.", at_least=0
    )
    group_consumer_max_assignment_interval_ms: int = integer(
        15_000, "Largest consumer.assignment.interval.ms that a group may set.", at_least=0
    )
    group_consumer_max_size: int = integer(10_000, "Most members in a group of the consumer protocol.", at_least=1)
    group_consumer_assignors: tuple[str, ...] = listing(
        ("uniform", "range"),
        "Assignors that members of the consumer protocol may request; the first is the default.",
        choices=("uniform", "range"),
    )
    group_consumer_migration_policy: str = text(
        "bidirectional",
        "Whether a group with members may change to the consumer protocol (upgrade), back to the classic one "
        "(downgrade), both (bidirectional) or neither (disabled).",
        choices=("disabled", "downgrade", "upgrade", "bidirectional"),
        any_case=True,
    )
    group_coordinator_groups_max: int = integer(
        100_000, "Most groups in one partition of __consumer_offsets.", at_least=1
    )
    group_coordinator_members_max: int = integer(
        100_000, "Most members, and ids issued to members, in one partition of __consumer_offsets.", at_least=1
    )
    group_coordinator_offsets_max: int = integer(
        1_000_000, "Most committed offsets in one partition of __consumer_offsets.", at_least=1
    )
    group_coordinator_appends_max: int = integer(
        10_000, "Most unanswered group writes to one partition of __consumer_offsets.", at_least=1
    )
    group_coordinator_work_max: int = integer(
        2_500,
        "Most work on one group in one turn of the event loop, in microseconds or so; larger target assignments are "
        "made over several turns.",
        at_least=1,
    )
    offset_metadata_max_bytes: int = integer(4_096, "Most bytes of metadata with a committed offset.", at_least=0)
    offsets_commit_timeout_ms: int = integer(
        5_000, "Time for a group's write to reach the in-sync replicas.", at_least=1
    )
    offsets_load_buffer_size: int = integer(
        5 * 2**20, "Bytes read at a time while a coordinator loads; a larger batch is read whole.", at_least=1
    )
    offsets_retention_minutes: int = integer(
        7 * 24 * 60, "How long a group keeps its offsets once it is empty, or has left their topic.", at_least=1
    )
    offsets_retention_check_interval_ms: int = long(600_000, "Time between checks for expired offsets.", at_least=1)
    offsets_topic_num_partitions: int = integer(
        50, "Partitions of __consumer_offsets; applies only when first use creates the topic.", at_least=1
    )
    offsets_topic_replication_factor: int = integer(
        3, "Replicas of __consumer_offsets; it is created once there are this many brokers.", at_least=1, at_most=32767
    )
    offsets_topic_segment_bytes: int = integer(
        100 * 2**20,
        "segment.bytes of __consumer_offsets; small, so that it is compacted and loaded sooner.",
        at_least=SEGMENT_BYTES_MIN,
    )


@dataclass(frozen=True)
class TransactionSettings:
    """A node's settings for transactions and sinks."""

    transaction_max_timeout_ms: int = integer(
        900_000, "Longest transaction timeout that a producer may ask for.", at_least=1
    )
    transaction_two_phase_commit_enable: bool = boolean(
        False, "Whether producers may prepare transactions, which then wait for an external decision without a timeout."
    )
    transactional_id_expiration_ms: int = integer(
        7 * DAY_MS, "How long the coordinator remembers a transactional id without an open transaction.", at_least=1
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = integer(
        10_000, "Longest time between a transaction's timeout and its abort.", at_least=1
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = integer(
        _HOUR_MS, "Time between checks for expired transactional ids.", at_least=1
    )
    transaction_partition_verification_enable: bool = boolean(
        True,
        "Whether a leader checks that its partition is in a transaction of the first protocol before it appends for "
        "it.",
    )
    transaction_state_log_num_partitions: int = integer(
        50, "Partitions of __transaction_state; applies only when first use creates the topic.", at_least=1
    )
    transaction_state_log_replication_factor: int = integer(
        3, "Replicas of __transaction_state; it is created once there are this many brokers.", at_least=1, at_most=32767
    )
    transaction_state_log_min_isr: int = integer(2, "min.insync.replicas of __transaction_state.", at_least=1)
    transaction_state_log_segment_bytes: int = integer(
        100 * 2**20,
        "segment.bytes of __transaction_state; small, so that it is compacted and loaded sooner.",
        at_least=SEGMENT_BYTES_MIN,
    )
    transaction_state_log_load_buffer_size: int = integer(
        5 * 2**20, "Bytes read at a time while a coordinator loads; a larger batch is read whole.", at_least=1
    )
    transaction_coordinator_ids_max: int = integer(
        100_000, "Most transactional ids in one partition of __transaction_state.", at_least=1
    )
    transaction_coordinator_appends_max: int = integer(
        10_000, "Most unanswered transaction writes to one partition of __transaction_state.", at_least=1
    )
    transaction_partitions_max: int = integer(10_000, "Most partitions in one transaction.", at_least=1)
    transaction_coordinator_waiting_adds_max: int = integer(
        10_000,
        "Most requests to add partitions that wait, in one partition of __transaction_state, for work in progress in "
        "their transaction.",
        at_least=1,
    )
    transaction_coordinator_add_wait_max_ms: int = integer(
        100, "How long a request to add partitions waits before its sender must retry.", at_least=0
    )
    transaction_coordinator_sinks_max: int = integer(
        10_000, "Most sink ledgers in one partition of __transaction_state; they never expire.", at_least=1
    )
    transaction_sink_timeout_ms: int = integer(900_000, "How long a sink's transaction may stay open.", at_least=1)
    transaction_sink_prepared_timeout_ms: int = integer(
        _HOUR_MS,
        "How long a sink's transaction may stay prepared; after that, its batch must be written again.",
        at_least=1,
    )
    transaction_sink_transactions_max: int = integer(10_000, "Most unfinished transactions of one sink.", at_least=1)
    transaction_sink_fenced_jobs_max: int = integer(
        1_000, "Most superseded jobs that a sink's undecided batch remembers; the latest stay.", at_least=1
    )
