"""What a consumer returns: records, and whole batches that are decoded only on use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.client.errors import CorruptRecordError
from tidelog.model.ids import TopicPartition
from tidelog.proto.records.batches import Batch, CorruptBatch
from tidelog.proto.records.columns import ColumnBuffer, add_batch
from tidelog.proto.records.decoder import decode_as, decode_fields, decode_values
from tidelog.proto.records.walk import RecordHeaders


class ConsumerRecord(NamedTuple):
    """One record. ``timestamp`` in ms since the epoch: the producer's, or with LogAppendTime the broker's.

    ``key`` and ``value`` are bytes or ``None``, unless deserializers convert them.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders
    topic: str
    partition: int
    leader_epoch: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class ConsumerBatch:
    """Records of one partition, still packed. Iterating unpacks them; ``len`` does not.

    ``records()``, ``values()`` and ``add_to()`` skip records before the consumer's position at the time of the
    fetch. All raise ``CorruptRecordError``.
    """

    __slots__ = ("_batch", "_from", "partition", "topic")

    def __init__(self, topic: str, partition: int, batch: Batch, from_offset: int) -> None:
        self.topic = topic
        self.partition = partition
        self._batch = batch
        self._from = from_offset

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def base_offset(self) -> int:
        """Offset of the first record in the batch from the consumer's position on."""
        return max(self._from, self._batch.base_offset)

    @property
    def next_offset(self) -> int:
        """Offset after the batch."""
        return self._batch.next_offset

    @property
    def max_timestamp(self) -> int:
        return self._batch.max_timestamp

    @property
    def size_bytes(self) -> int:
        """The batch as stored, with its header, perhaps compressed."""
        return self._batch.size

    def __len__(self) -> int:
        """Return the number of records; exact unless the position lies within a batch that was compacted."""
        batch = self._batch
        return batch.record_count if self._from <= batch.base_offset else max(0, batch.next_offset - self._from)

    def records(self) -> list[ConsumerRecord]:
        """Decode the batch. Raises ``CorruptRecordError``."""
        try:
            found = decode_as(ConsumerRecord, self._batch, (self.topic, self.partition, self._batch.leader_epoch))
        except CorruptBatch as error:
            raise self._corrupt(error) from None
        if self._from > self._batch.base_offset:
            return [record for record in found if record.offset >= self._from]
        return found

    def values(self) -> list[bytes | None]:
        """Return only the values, the fastest way to read them. Raises ``CorruptRecordError``."""
        try:
            if self._from > self._batch.base_offset:
                return [field[3] for field in decode_fields(self._batch) if field[0] >= self._from]
            return decode_values(self._batch)
        except CorruptBatch as error:
            raise self._corrupt(error) from None

    def add_to(self, columns: ColumnBuffer, end: int) -> None:
        """Add the records before offset ``end`` to columns, without those before the consumer's position."""
        try:
            add_batch(columns, self._batch, self._from, end)
        except CorruptBatch as error:
            raise self._corrupt(error) from None

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return iter(self.records())

    def _corrupt(self, error: CorruptBatch) -> CorruptRecordError:
        return corrupt(self.topic, self.partition, self._batch.base_offset, error)


def corrupt(topic: str, partition: int, offset: int, error: CorruptBatch) -> CorruptRecordError:
    """Return the error for an unreadable batch: its position, and how to get past it."""
    return CorruptRecordError(
        f"{topic}-{partition}: the batch at offset {offset} cannot be read: {error}; seek past it to continue"
    )
