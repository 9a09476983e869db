"""Operator settings for transactions, with Kafka's names and defaults."""

from __future__ import annotations

from tidelog.model.classes.frozen import dataclass


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Settings of a node's coordinator. Source, unless noted otherwise: ``TransactionStateManagerConfig`` and
    ``TransactionLogConfig``."""

    max_timeout_ms: int = 900_000
    """``transaction.max.timeout.ms``: the longest timeout that a producer may ask for."""
    two_phase_commit_enable: bool = False
    """``transaction.two.phase.commit.enable`` (KIP-939)"""
    transactional_id_expiration_ms: int = 604_800_000
    """``transactional.id.expiration.ms``: an id without an open transaction is forgotten after this."""
    abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    """``transaction.abort.timed.out.transaction.cleanup.interval.ms``"""
    remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    """``transaction.remove.expired.transaction.cleanup.interval.ms``"""
    state_log_num_partitions: int = 50
    """``transaction.state.log.num.partitions``"""
    state_log_replication_factor: int = 3
    """``transaction.state.log.replication.factor``"""
    state_log_min_isr: int = 2
    """``transaction.state.log.min.isr``"""
    state_log_segment_bytes: int = 100 * 1024 * 1024
    """``transaction.state.log.segment.bytes``"""
    state_log_load_buffer_size: int = 5 * 1024 * 1024
    """``transaction.state.log.load.buffer.size``: bytes of the log to read and replay at a time."""
    request_timeout_ms: int = 30_000
    """``request.timeout.ms``: how long an answer waits for its record to be replicated. Kafka waits for the
    transaction's own timeout."""
    ids_max: int = 100_000
    """``transaction.coordinator.ids.max`` (Tidelog's own): most transactional ids in one partition of
    ``__transaction_state``; further ones get COORDINATOR_NOT_AVAILABLE."""
    appends_max: int = 10_000
    """``transaction.coordinator.appends.max`` (Tidelog's own): most pending appends in one partition of
    ``__transaction_state``; beyond them COORDINATOR_NOT_AVAILABLE. The final records of decided transactions may exceed
    it."""
    partitions_max: int = 10_000
    """``transaction.partitions.max`` (Tidelog's own): most partitions of one transaction; further ones get
    TRANSACTION_ABORTABLE."""
    waiting_adds_max: int = 10_000
    """``transaction.coordinator.waiting.adds.max`` (Tidelog's own): most AddPartitions and AddOffsets of one partition
    of ``__transaction_state`` that wait for another operation; beyond them CONCURRENT_TRANSACTIONS."""
    add_wait_max_ms: int = 100
    """``transaction.coordinator.add.wait.max.ms`` (Tidelog's own): how long they wait before they must be retried
    (CONCURRENT_TRANSACTIONS). Short, because the rest of the same request waits too."""
    sink_timeout_ms: int = 900_000
    """``transaction.sink.timeout.ms`` (Tidelog's own): how long a sink's transaction may be open."""
    sink_prepared_timeout_ms: int = 3_600_000
    """``transaction.sink.prepared.timeout.ms`` (Tidelog's own): how long one may be prepared. After that, its batch
    must be written again; until then, it blocks readers of committed records."""
    sinks_max: int = 10_000
    """``transaction.coordinator.sinks.max`` (Tidelog's own): most ledgers in one partition of ``__transaction_state``.
    They never expire; further ones get POLICY_VIOLATION."""
    sink_transactions_max: int = 10_000
    """``transaction.sink.transactions.max`` (Tidelog's own): most unfinished transactions of one sink; further ones get
    POLICY_VIOLATION."""
    sink_fenced_jobs_max: int = 1_000
    """``transaction.sink.fenced.jobs.max`` (Tidelog's own): superseded jobs of an undecided batch that are kept from
    taking over again; the oldest beyond them are forgotten."""
