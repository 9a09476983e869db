"""Answers to operators about sinks."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.sink_api import DescribedSink, ListedSink, SinkJob, SinkTransaction
from tidelog.transactions.ledger import Sink
from tidelog.transactions.sinks.deciding import no_such_sink
from tidelog.transactions.transitions import TransactionState


def describe_sink(name: str, sink: Sink | None) -> DescribedSink:
    """Return the ledger, and the remembered transactions."""
    if sink is None:
        return DescribedSink(name, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, error_message=no_such_sink(name))
    ledger = sink.ledger
    transactions = tuple(
        SinkTransaction(
            entry.transactional_id,
            value.state.value,
            *value.identity,
            value.updated_ms if value.state is TransactionState.PREPARED else value.started_ms,
            value.timeout_ms,
            len(value.partitions),
        )
        for entry in sink.transactions.values()
        if (value := entry.value) is not None
    )
    fenced = tuple(SinkJob(batch, job) for job, batch in ledger.fenced.items())
    return DescribedSink(
        name, ErrorCode.NONE, ledger.last_batch, ledger.last_job, ledger.decided_ms, ledger.batch, ledger.job, fenced,
        transactions,
    )  # fmt: skip


def list_sinks(sinks: Iterable[Sink]) -> list[ListedSink]:
    return [ListedSink(sink.name, sink.ledger.last_batch, sink.ledger.batch, len(sink.transactions)) for sink in sinks]
