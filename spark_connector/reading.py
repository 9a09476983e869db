"""A task's work: read one range of one partition and hand it to Spark as Arrow batches."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tidelog.client.errors import LogTruncationError, OffsetOutOfRangeError, TidelogError
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId, TopicPartition
from tidelog.proto.records.columns import ColumnBuffer, column_buffer, taken
from tidelog.spark_connector.columns import arrow_schema, record_batch, sliced
from tidelog.spark_connector.losses import DataLoss, report
from tidelog.spark_connector.options import SourceOptions
from tidelog.spark_connector.worker_process import settle

if TYPE_CHECKING:
    from tidelog.client.consumer.range_consumer import RangeConsumer

ROWS_PER_BATCH: Final = 40_000
"""Rows after which an Arrow batch is passed on: with fewer, each batch costs the JVM more than its rows."""
BYTES_PER_BATCH: Final = 8 * 1024 * 1024
"""Bytes of keys, values and headers after which an Arrow batch is passed on."""
IDLE_CONSUMERS_MAX: Final = 4
"""Connected consumers that a worker process keeps for its next tasks."""

log = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """One task's share: offsets of one partition of the topic with this id, from ``start`` to before ``end``, as
    reported by the leader of ``leader_epoch`` (-1: unknown)."""

    def __init__(self, topic: str, partition: int, topic_id: str, start: int, end: int, leader_epoch: int = -1) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.start = start
        self.end = end
        self.leader_epoch = leader_epoch


def read(options: SourceOptions, one: RangePartition) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range.

    Records that were there when the batch was planned and are gone now are data loss: :class:`DataLoss`, or with
    ``failOnDataLoss`` false a warning, and reading continues with the records that are left.
    """
    at = TopicPartition(one.topic, one.partition)
    buffer = column_buffer(headers=options.include_headers)
    to = arrow_schema(options.include_headers, options.columns)
    if one.start >= one.end:
        return
    start = one.start
    idle_s = options.poll_timeout_ms / 1_000
    topic_id = TopicId(bytes.fromhex(one.topic_id))
    with _consumer(options) as consumer:
        while start < one.end:
            try:
                batches = consumer.batches(
                    at, start, one.end, topic_id=topic_id, leader_epoch=one.leader_epoch, idle_timeout=idle_s
                )
                for batch in batches:
                    batch.add_to(buffer, one.end)
                    start = min(batch.next_offset, one.end)
                    if buffer.count >= ROWS_PER_BATCH or buffer.size >= BYTES_PER_BATCH:
                        yield from _batches(buffer, at, to)
                start = one.end
            except TidelogError as error:
                start = _after_loss(options, consumer, at, one, start, error)
    if buffer.count:
        yield from _batches(buffer, at, to)


def _batches(buffer: ColumnBuffer, at: TopicPartition, to: pa.Schema) -> Iterator[pa.RecordBatch]:
    size = buffer.size
    yield from sliced(
        record_batch(taken(buffer), at.topic, at.partition, to), size, 2 * ROWS_PER_BATCH, BYTES_PER_BATCH
    )


def _after_loss(
    options: SourceOptions,
    consumer: RangeConsumer,
    at: TopicPartition,
    one: RangePartition,
    start: int,
    error: TidelogError,
) -> int:
    """Return where to continue reading. Raises ``error`` if it is not a data loss, :class:`DataLoss` if losses are not
    tolerated."""
    code = error.code
    gone = code in (ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
    if not gone and not isinstance(error, OffsetOutOfRangeError):
        raise error
    first = start if gone or isinstance(error, LogTruncationError) else consumer.beginning_offsets([at])[at]
    reason = f"the log starts at {first}" if first > start else str(error)
    what = f"Could not read records in offset [{start}, {one.end}) for topic partition {at}: {reason}."
    report([what], fail=options.fail_on_data_loss)
    return first if first > start else one.end


# --- connections kept from task to task ---------------------------------------------------------------

_idle: dict[object, list[RangeConsumer]] = {}
_owner = os.getpid()


@contextmanager
def _consumer(options: SourceOptions) -> Iterator[RangeConsumer]:
    """Yield a connected consumer: one left by an earlier task of this process, or a new one."""
    from tidelog.client.consumer.range_consumer import RangeConsumer  # planning does without

    settle("reading")
    global _owner
    if _owner != os.getpid():  # a fork: connections and threads stayed behind
        _idle.clear()
        _owner = os.getpid()
    key = (options.bootstrap, tuple(sorted(options.client.items())))
    kept = _idle.setdefault(key, [])
    consumer = kept.pop() if kept else RangeConsumer(options.bootstrap, **options.client)
    try:
        yield consumer
    except BaseException as error:
        if isinstance(error, GeneratorExit):  # Spark needs no more: it reached a limit
            _give_back(key, consumer)
        else:
            consumer.close()
        raise
    _give_back(key, consumer)


def _give_back(key: object, consumer: RangeConsumer) -> None:
    if sum(map(len, _idle.values())) < IDLE_CONSUMERS_MAX:
        _idle.setdefault(key, []).append(consumer)
    else:
        consumer.close()


def close_idle() -> None:
    """Close the consumers that are kept for other tasks."""
    if _owner == os.getpid():
        for kept in _idle.values():
            while kept:
                kept.pop().close()
    _idle.clear()


atexit.register(close_idle)

__all__ = ["DataLoss", "RangePartition", "close_idle", "read"]
