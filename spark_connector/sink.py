"""The sink's streaming and batch writers for Spark's Python data source API.

Each batch is written once, whatever dies and is rerun: tasks write prepared transactions, and the driver lets the
sink's ledger decide about all of them (docs/transactions.md, "Sinks"). Spark creates a writer when it plans a batch and
pickles it into every task; for a stream it creates another one to commit or abort. So a writer holds its options and
the name of its job, and the driver learns the job only from the tasks' messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tidelog.client.admin.blocking import Admin
from tidelog.client.errors import TidelogError
from tidelog.client.sink.blocking_ledger import SinkLedger
from tidelog.client.sink.blocking_writer import SinkWriter
from tidelog.client.sinks import SinkJob, SinkMessage, fresh_name
from tidelog.model.errors import ErrorCode
from tidelog.spark_connector.connections import kept
from tidelog.spark_connector.same_release import packed
from tidelog.spark_connector.sink_columns import SinkColumns
from tidelog.spark_connector.sink_options import SinkOptions
from tidelog.spark_connector.worker_errors import told_in_a_line
from tidelog.spark_connector.worker_process import settle

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties of a micro-batch's tasks. Source: Spark's ``StreamExecution`` and ``MicroBatchExecution``."""

FORGET_TIMEOUT_S: Final = 5.0
"""Longest time spent on dropping the ledger of a finished batch write."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """A task's message to the driver."""

    message: SinkMessage


class StreamSink(DataSourceStreamArrowWriter):
    """Writes micro-batches. The query's id is the sink's name, so a new checkpoint is a new sink."""

    def __init__(self, options: SinkOptions, columns: SinkColumns, job: str | None = None) -> None:
        self._options = options
        self._columns = columns
        self._job = fresh_name(None) if job is None else job

    def __reduce__(self) -> tuple[Any, ...]:
        return packed(StreamSink, self._options, self._columns, self._job)

    @told_in_a_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY_ID)
        batch = None if context is None else context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise RuntimeError(
                f"expected a task of a micro-batch with {QUERY_ID} and {BATCH_ID}, found {query}, {batch}"
            )
        return Written(written(self._options, self._columns, SinkJob(query, int(batch), self._job), iterator))

    @told_in_a_line()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Let the ledger decide the batch. Without messages no task wrote anything."""
        told = _told(messages)
        if told:
            with _ledger(self._options, told[0].sink) as ledger:
                outcome = ledger.commit_batch(told, batch=batchId)
            log.info("batch %s of sink %s: %s", batchId, told[0].sink, outcome)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _abort(self._options, _told(messages))


class BatchSink(DataSourceArrowWriter):
    """Writes one DataFrame, all or nothing; with ``appId`` and ``version`` at most once."""

    def __init__(self, options: SinkOptions, columns: SinkColumns, job: str | None = None) -> None:
        self._options = options
        self._columns = columns
        name = fresh_name(None) if job is None else job
        self._job = SinkJob(options.sink or f"write-{name}", options.version, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return packed(BatchSink, self._options, self._columns, self._job.job)

    @told_in_a_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return Written(written(self._options, self._columns, self._job, iterator))

    @told_in_a_line()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with _ledger(self._options, self._job.sink) as ledger:
            told = _told(messages)
            outcome = ledger.commit_batch(told, batch=self._job.batch)
        if told and all(one.already_committed for one in told):
            log.warning(
                "nothing is written: version %s of appId %s, or a later one, was written to this topic before",
                self._job.batch, self._options.app_id,
            )  # fmt: skip
        log.info("batch %s of sink %s: %s", self._job.batch, self._job.sink, outcome)
        if self._options.sink is None:
            _forget(self._options, self._job.sink)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _abort(self._options, _told(messages))


def written(options: SinkOptions, columns: SinkColumns, job: SinkJob, batches: Iterable[pa.RecordBatch]) -> SinkMessage:
    """Write a task's rows and prepare them. Always read the batch to its end: Spark saves the query's state by that."""
    settle("sink")
    connections = kept(options.ledger)
    writer = SinkWriter(
        options.bootstrap, job, _network=connections.network, _background=connections.loop, **options.producer
    )
    try:
        for batch in batches:
            if batch.num_rows and not writer.already_committed:
                columns.send(writer, batch)
        message = writer.prepare(timeout=options.write_timeout_s)
    except BaseException:
        writer.close(options.abort_timeout_s)
        raise
    writer.close()
    return message


def _ledger(options: SinkOptions, sink: str) -> SinkLedger:
    connections = kept(options.ledger)
    return SinkLedger(
        options.bootstrap, sink, _network=connections.network, _background=connections.loop, **options.ledger
    )


def _told(messages: Sequence[WriterCommitMessage | None]) -> list[SinkMessage]:
    """Return the tasks' messages; tasks that failed or had no partition sent none."""
    return [message.message for message in messages if isinstance(message, Written)]


def _abort(options: SinkOptions, told: list[SinkMessage]) -> None:
    if not told:
        return
    try:
        with _ledger(options, told[0].sink) as ledger:
            ledger.abort_job(told, timeout=options.abort_timeout_s)
    except TidelogError as error:
        log.warning(
            "batch %s of sink %s is not aborted; the next job aborts it: %s", told[0].batch, told[0].sink, error
        )


def _forget(options: SinkOptions, sink: str) -> None:
    """Drop the ledger of a write that cannot be repeated once its markers are written, or each write would leave one. A
    remaining ledger is harmless, but counts towards the brokers' ``transaction.coordinator.sinks.max``."""
    until = time.monotonic() + FORGET_TIMEOUT_S
    wait_s = 0.005
    connections = kept(options.ledger)
    with Admin(
        options.bootstrap, _network=connections.network, _background=connections.loop, **options.ledger
    ) as admin:
        while True:
            try:
                admin.delete_sink(sink, timeout=FORGET_TIMEOUT_S)
                break
            except TidelogError as error:
                if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    break
                if time.monotonic() + wait_s > until:
                    log.warning("the ledger of sink %s stays, its batch is committed: %s", sink, error)
                    break
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, 0.1)
