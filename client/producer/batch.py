"""One batch of a producer: columns of records while it is open, bytes once it is first sent."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.client.delivery import Delivery, Timestamps
from tidelog.client.fast_path import OpenColumns
from tidelog.proto.records.batches import Batch, set_producer_state
from tidelog.proto.records.compression import Compression
from tidelog.proto.records.decoder import decode_records
from tidelog.proto.records.encoder import BatchBuilder, encode_columns, encode_values

RECORD_OVERHEAD: int = 12
"""Bytes allowed per record besides key, value and headers: enough for the varints in all but huge records."""
BATCH_OVERHEAD: int = 61
RECORD_OVERHEAD_MAX: int = 21
"""``DefaultRecord.MAX_RECORD_OVERHEAD``: no record's frame takes more."""
SEQUENCE_MASK: int = 0x7FFF_FFFF
"""Sequences run from 0 to 2^31 - 1 and then start again (``DefaultRecordBatch.incrementSequence``)."""

Headers = Sequence[tuple[str, bytes | None]]


def headers_size(headers: Headers) -> int:
    """Return the most bytes that ``headers`` can take in a record."""
    return sum(len(name.encode()) + 10 + (0 if value is None else len(value)) for name, value in headers)


class ProducerBatch(OpenColumns):
    """Records for one partition that travel and fail together.

    ``sequence`` is -1 until an idempotent producer first sends the batch. ``attempt`` counts how often the sender took
    it; answers to older attempts do not count.
    """

    delivery: Delivery

    __slots__ = (
        "attempt",
        "bulk",
        "compression",
        "created_ms",
        "decided",
        "encoded",
        "failures",
        "finished",
        "first",
        "full",
        "headers",
        "last_time",
        "memory",
        "partition",
        "producer",
        "sealed",
        "sequence",
        "size",
        "split",
        "timestamps",
        "topic",
        "transactional",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        size_max: int,
        memory: int,
        created_ms: int,
        compression: Compression,
        transactional: bool = False,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.compression = compression
        self.transactional = transactional
        """Part of a transaction, and marked so."""
        self.created_ms = created_ms
        """Monotonic; the delivery timeout counts from here."""
        self.memory = memory
        """Its share of the buffer memory, in bytes."""
        self.room = size_max - BATCH_OVERHEAD
        self.size = BATCH_OVERHEAD
        self.count = 0
        self.values = []
        self.keys = None
        self.headers: list[Headers] | None = None
        self.timestamps = Timestamps([], [])
        self.last_time = -1 << 62
        self.tick_ns = 0
        self.keyed_tick_ns = 0
        self.delivery = Delivery(topic, self.timestamps)
        self.first = 0
        """Index of its first record within its delivery."""
        self.full = False
        """It need not linger, but takes records until it can be sent."""
        self.sealed = False
        self.bulk = False
        self.split = False
        self.finished = False
        """The user has the outcome, although the batch may still be in flight."""
        self.decided = False
        """It will not be sent again."""
        self.attempt = 0
        self.failures = 0
        self.sequence = -1
        self.producer: tuple[int, int] = (-1, -1)
        self.encoded: bytearray | None = None

    def note(self, time_ms: int, *, keyed: bool = False) -> None:
        """Note the time of the next record, which is only a value or (``keyed``) has a key: enter it in every column
        that needs it except values and keys."""
        if time_ms != self.last_time:
            self.last_time = time_ms
            self.timestamps.starts.append(self.count)
            self.timestamps.times.append(time_ms)
        self.tick_ns = self.keyed_tick_ns = 0
        until_ns = (time_ms + 1) * 1_000_000
        if self.headers is not None:
            self.headers.append(())
        elif self.keys is None:
            self.tick_ns = 0 if keyed else until_ns
        else:
            self.keyed_tick_ns = until_ns
        if self.keys is not None:
            if not keyed:
                self.keys.append(None)
        elif keyed:
            self.keys = [None] * self.count
            if self.headers is None:
                self.keyed_tick_ns = until_ns

    def seal(self) -> None:
        """Take no more records."""
        if not self.sealed:
            self.sealed = True
            if not self.bulk and not self.split:
                self.delivery.expect(self.count)

    @property
    def next_sequence(self) -> int:
        return (self.sequence + self.count) & SEQUENCE_MASK

    def assign(self, producer: tuple[int, int], sequence: int) -> None:
        """Set a producer's identity (id, epoch) and a base sequence, or replace them (KIP-360)."""
        if self.encoded is not None and (producer, sequence) != (self.producer, self.sequence):
            set_producer_state(
                self.encoded, producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence
            )
        self.producer = producer
        self.sequence = sequence

    def encode(self) -> bytearray:
        """Return its bytes. The first call creates them and drops the columns."""
        if self.encoded is None:
            assert self.values is not None
            producer_id, epoch = self.producer
            if (
                self.keys is None
                and self.headers is None
                and len(self.timestamps.times) == 1
                and None not in self.values
            ):
                self.encoded = encode_values(
                    self.values,  # type: ignore[arg-type]  # no None among them
                    self.timestamps.times[0],
                    compression=self.compression,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    base_sequence=self.sequence,
                    is_transactional=self.transactional,
                )
            else:
                self.encoded = encode_columns(
                    self.timestamps.expand(self.count),
                    self.keys,
                    self.values,
                    self.headers,
                    compression=self.compression,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    base_sequence=self.sequence,
                    is_transactional=self.transactional,
                )
            self.values = self.keys = self.headers = None
        return self.encoded

    def halves(self) -> tuple[ProducerBatch, ProducerBatch]:
        """Split a batch that a broker found too large; the halves belong to the same delivery.

        The halves take its sequences, because a refused batch was not appended. Source: KIP-126.
        """
        assert self.encoded is not None
        assert self.count > 1
        records = decode_records(Batch(memoryview(self.encoded)))
        middle = self.count // 2
        halves = []
        for start, stop in ((0, middle), (middle, self.count)):
            half = ProducerBatch(
                self.topic,
                self.partition,
                size_max=0,
                memory=self.memory // 2 if start else self.memory - self.memory // 2,
                created_ms=self.created_ms,
                compression=self.compression,
                transactional=self.transactional,
            )
            half.split = half.sealed = True
            half.delivery = self.delivery
            half.first = self.first + start
            half.count = stop - start
            half.producer = self.producer
            half.sequence = (self.sequence + start) & SEQUENCE_MASK if self.sequence >= 0 else -1
            half.failures = self.failures
            half.attempt = 1
            builder = BatchBuilder(self.compression)
            for record in records[start:stop]:
                builder.append(record.timestamp, record.key, record.value, record.headers)
            half.encoded = builder.build(
                producer_id=half.producer[0],
                producer_epoch=half.producer[1],
                base_sequence=half.sequence,
                is_transactional=half.transactional,
            )
            half.size = len(half.encoded)
            halves.append(half)
        return halves[0], halves[1]

    def succeed(self, base_offset: int, append_time: int) -> None:
        """Report success to the user, unless a timeout came first."""
        if not self.finished:
            self.finished = True
            self.delivery.succeed(self.first, self.count, self.partition, base_offset, append_time)

    def fail(self, error: BaseException) -> None:
        if not self.finished:
            self.finished = True
            self.delivery.fail(self.first, self.count, error)

    def __repr__(self) -> str:
        return (
            f"<ProducerBatch {self.topic}-{self.partition} of {self.count} records, {self.producer} "
            f"sequence {self.sequence}, attempt {self.attempt}>"
        )
