"""What an operator sets of transactions, with Kafka's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Settings of the coordinator of a node. Source: ``TransactionStateManagerConfig`` and
    ``TransactionLogConfig``, where not said otherwise."""

    max_timeout_ms: int = 900_000
    """``transaction.max.timeout.ms``: what a producer may ask for at most."""
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
    """``transaction.state.log.load.buffer.size``: bytes of the log that are read and replayed at a time."""
    request_timeout_ms: int = 30_000
    """``request.timeout.ms``: how long an answer waits for its record to be replicated. Kafka waits for the
    transaction's own timeout."""
    ids_max: int = 100_000
    """``transaction.coordinator.ids.max`` (Tidelog's own): transactional ids of one partition of
    ``__transaction_state``; one more is refused with COORDINATOR_NOT_AVAILABLE."""
    appends_max: int = 10_000
    """``transaction.coordinator.appends.max`` (Tidelog's own): appends under way of one partition of
    ``__transaction_state``; beyond them COORDINATOR_NOT_AVAILABLE. The last records of decided ones go beyond."""
    partitions_max: int = 10_000
    """``transaction.partitions.max`` (Tidelog's own): partitions of one transaction; one more is refused with
    TRANSACTION_ABORTABLE."""
    waiting_adds_max: int = 10_000
    """``transaction.coordinator.waiting.adds.max`` (Tidelog's own): AddPartitions and AddOffsets of one partition of
    ``__transaction_state`` that wait for what is under way; beyond them CONCURRENT_TRANSACTIONS."""
    add_wait_max_ms: int = 100
    """``transaction.coordinator.add.wait.max.ms`` (Tidelog's own): how long they wait before they are told to ask
    again (CONCURRENT_TRANSACTIONS). Short, since others of the same request wait along."""
    sink_timeout_ms: int = 900_000
    """``transaction.sink.timeout.ms`` (Tidelog's own): how long a sink's transaction may be open."""
    sink_prepared_timeout_ms: int = 3_600_000
    """``transaction.sink.prepared.timeout.ms`` (Tidelog's own): how long one may be prepared. Its batch is then to be
    written anew; until then it keeps readers of committed records from going on."""
    sinks_max: int = 10_000
    """``transaction.coordinator.sinks.max`` (Tidelog's own): ledgers of one partition of ``__transaction_state``, which
    never expire; one more is refused with POLICY_VIOLATION."""
    sink_transactions_max: int = 10_000
    """``transaction.sink.transactions.max`` (Tidelog's own): transactions of one sink that are not ended; one more is
    refused with POLICY_VIOLATION."""
    sink_fenced_jobs_max: int = 1_000
    """``transaction.sink.fenced.jobs.max`` (Tidelog's own): superseded jobs of an undecided batch that are kept from
    taking over again; the oldest beyond them are forgotten."""
