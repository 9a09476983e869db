"""The measured costs of work that ship with this version."""

from __future__ import annotations

from typing import Final

from tidelog.cli.work.planner.coefficients import Coefficients

SHIPPED: Final = Coefficients(
    idle_cores=0.01121824,
    append_s=0.0006349916,
    append_shared_s=0.0001239179,
    copy_s=0.0006733131,
    copy_shared_s=0.0001317855,
    send_s=0.0001826146,
    send_shared_s=0.00007304584,
    append_mb_s=0.00172196,
    replicate_mb_s=0.001587792,
    read_mb_s=0.001162924,
    tls_in_mb_s=1.885 * 0.00172196,
    tls_out_mb_s=0.0007078,
    tls_copy_mb_s=0.001057398,
    tls_batch_s=0.0000297749,
    base_bytes=85.258240e6,
    busy_bytes=2.451759e6,
    stream_bytes=77_245.73,
    replica_bytes=6_000,
    connection_bytes=1_660,
    connection_tls_bytes=16_430,
    record_bytes=9.9,
    batch_bytes=61,
    source="measured on two virtual cores of an AMD EPYC (bench/capacity.jsonl, bench/history); calibrate on yours",
)
"""Processor time, and an idle node's memory: fitted to ``bench/capacity.jsonl``, two runs of the loads of
:mod:`tidelog.cli.work.planner.measuring`; a test fits them again. Between nodes, and for batches, TLS is
fitted to ``bench/capacity_tls.jsonl``, and what a busy node's memory is more to ``bench/capacity_bound.jsonl``. From
``bench/history/2026-11.jsonl``: TLS of clients (``tls_produce_cpu``, 2.885 times the cost of an append;
``tls_fetch_1m_cpu`` less ``kafka_fetch_1m_cpu``) and connections (``connection_plain_memory``,
``connection_tls_memory``). A replica's memory: 1,500 of them added 9 MB to each of three nodes. Bytes on disk: Kafka's
record batches of format 2.
"""
