"""Sends columns of a table to the accumulator, batch by batch, for the asyncio and the blocking producer.

Nothing here waits. If there is no room, or metadata is missing, the caller waits in its own way and continues.
"""

from __future__ import annotations

from typing import Final

from tidelog.client.delivery import BulkFuture, Delivery, Timestamps
from tidelog.client.errors import IllegalStateError, InvalidTopicError, RecordTooLargeError
from tidelog.client.producer.core import MetadataNeeded, ProducerCore
from tidelog.proto.records.encoder import encode_rows
from tidelog.proto.records.row_writer import Findings, RowWriter, row_writer
from tidelog.proto.records.sent_columns import Fault, RecordColumns


class ColumnSending:
    """One ``send_columns``: :meth:`plan` until :attr:`planned`, then :meth:`append` while there is something
    :attr:`left`. Raises ``IllegalStateError`` for a producer that must see each record, ``ValueError``."""

    def __init__(self, core: ProducerCore, topic: str, columns: RecordColumns, partition: int | None) -> None:
        if not topic:
            raise InvalidTopicError("expected a topic name, found an empty one")
        if partition is not None and partition < 0:
            raise ValueError(f"partition: expected 0 or more, found {partition}")
        config = core.config
        for what, found in (
            ("interceptors", core.interceptors),
            ("its own partitioner", core.custom),
            ("a serializer", config.key_serializer or config.value_serializer),
        ):
            if found:
                raise IllegalStateError(
                    f"send_columns does not handle single records; this producer has {what}: use send()"
                )
        self._core: Final = core
        self._topic: Final = topic
        self._partition: Final = partition
        self._writer: Final[RowWriter] = row_writer(columns)
        self._rows: Final = columns.rows
        self._now_ms: Final = core.clock.now_ms()
        self._delivery: Final = Delivery(topic, Timestamps([0], [self._now_ms]))
        self._groups: list[tuple[int, int, int]] = []
        """Partition, next row and end, in the writer's order; the last entry is in progress."""
        self._batch: tuple[bytearray, int, int] | None = None
        """An encoded batch for which there is no room yet."""
        self._queued = 0
        self.planned = False

    def plan(self) -> None:
        """Choose partitions. Raises :class:`MetadataNeeded`, or an error about a row, before any row is taken."""
        core = self._core
        if core.refuses:
            raise core.refusal("send_columns()")
        config = core.config
        size_max = min(config.max_request_size, config.buffer_memory)
        with core.lock:
            topic = core.topic_queues(self._topic, self._partition)
            topic.last_used_ms = core.clock.monotonic_ms()  # or the topic is forgotten while we wait for a partition
            count = topic.partition_count
        wanted = -1 if self._partition is None else self._partition
        fault, row, number = self._writer.plan(count, wanted, config.partitioner_ignore_keys, size_max)
        if fault:
            self._raise((fault, row, number), count)
        step = config.bulk_bytes
        picks = []
        if number:
            with core.lock:
                picks = [core.next_sticky(topic) for _ in range(number // step + 1)]
        self._groups = self._writer.group(picks, step)[::-1]
        self._delivery.expect(self._rows)
        self.planned = True

    def _raise(self, findings: Findings, partition_count: int) -> None:
        fault, row, number = findings
        match Fault(fault):
            case Fault.UNKNOWN_PARTITION:
                raise MetadataNeeded(self._topic, partition_count, number, row)
            case Fault.NEGATIVE_PARTITION:
                raise ValueError(f"row {row}: partition: expected 0 or more, found {number}")
            case Fault.NEGATIVE_TIMESTAMP:
                raise ValueError(f"row {row}: timestamp: expected 0 µs or more, found {number}")
            case Fault.NAMELESS_HEADER:
                raise ValueError(f"row {row}: headers: expected a name for each, found null")
            case Fault.TOO_LARGE:
                config = self._core.config
                name = "max_request_size" if number > config.max_request_size else "buffer_memory"
                limit = min(config.max_request_size, config.buffer_memory)
                raise RecordTooLargeError(
                    f"row {row}: expected a record of at most {name} = {limit} bytes with its batch header, "
                    f"found {number}"
                )
            case Fault.LAYOUT | Fault.NONE:
                raise ValueError(f"row {row}: expected its data within the column's buffers, found it outside")

    async def learn(self, need: MetadataNeeded) -> None:
        """Get the missing metadata, as :meth:`ProducerCore.learn` does; errors name the row."""
        try:
            await self._core.learn(need, self._partition if need.partition is None else need.partition)
        except ValueError as error:
            raise (error if need.row is None else ValueError(f"row {need.row}: {error}")) from None

    @property
    def left(self) -> bool:
        """Whether some rows are not queued yet."""
        return bool(self._groups)

    @property
    def size(self) -> int:
        """Bytes of the batch that needs room."""
        return 0 if self._batch is None else self._batch[2]

    def append(self) -> bool:
        """Queue the next batch; false if there is no room. Raises :class:`MetadataNeeded`."""
        core = self._core
        partition, start, stop = self._groups[-1]
        if self._batch is None:
            self._batch = encode_rows(
                self._writer,
                start,
                stop,
                core.config.bulk_bytes,
                self._now_ms,
                compression=core.accumulator.compression,
                is_transactional=core.transactions is not None,
            )
        encoded, after, size = self._batch
        with core.lock:
            if core.refuses:
                raise core.refusal("send_columns()")
            taken = core.accumulator.append_encoded(
                core.topic_queues(self._topic, partition),
                partition,
                self._delivery,
                start,
                after - start,
                min(size, len(encoded)),
                encoded,
                core.clock.monotonic_ms(),
            )
        if taken:
            self._batch = None
            self._queued = after
            if after < stop:
                self._groups[-1] = (partition, after, stop)
            else:
                self._groups.pop()
            core.wake()
        return taken

    def abandon(self, error: Exception) -> None:
        """Fail the remaining rows, for which there was no room; ``error`` gets a note of how many were queued. A
        transaction must not commit part of a ``send_columns``."""
        queued = self._queued
        if queued and self._core.transactions is not None:
            self._core.transactions.spoil(error)
        self._delivery.fail(queued, self._rows - queued, error)
        error.add_note(f"{queued} of {self._rows} records were queued before")

    @property
    def future(self) -> BulkFuture:
        return BulkFuture(self._delivery, self._rows)
