"""One batch of a producer: columns of records while it is open, bytes once it is first sent."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.client.delivery import Delivery, Timestamps
from tidelog.proto.compression import Compression
from tidelog.proto.record_decoder import decode_records
from tidelog.proto.record_encoder import BatchBuilder, encode_columns, encode_values
from tidelog.proto.records import Batch, set_producer_state

RECORD_OVERHEAD: int = 12
"""Bytes reckoned for a record besides key, value and headers: what the varints take in all but huge ones."""
BATCH_OVERHEAD: int = 61
RECORD_OVERHEAD_MAX: int = 21
"""``DefaultRecord.MAX_RECORD_OVERHEAD``: no record's frame takes more."""
SEQUENCE_MASK: int = 0x7FFF_FFFF
"""Sequences run from 0 to 2^31 - 1 and then start again (``DefaultRecordBatch.incrementSequence``)."""

Headers = Sequence[tuple[str, bytes | None]]


def headers_size(headers: Headers) -> int:
    """At most what ``headers`` take in a record."""
    return sum(len(name.encode()) + 10 + (0 if value is None else len(value)) for name, value in headers)


class ProducerBatch:
    """Records for one partition that travel and fail together.

    ``sequence`` is -1 until the batch is first sent by an idempotent producer. ``attempt`` counts the
    times it was handed to the sender; an answer to an older attempt is not an answer.
    """

    __slots__ = (
        "attempt",
        "bulk",
        "compression",
        "count",
        "created_ms",
        "decided",
        "delivery",
        "encoded",
        "failures",
        "finished",
        "first",
        "full",
        "headers",
        "keyed_tick_ns",
        "keys",
        "last_time",
        "memory",
        "partition",
        "producer",
        "room",
        "sealed",
        "sequence",
        "size",
        "split",
        "tick_ns",
        "timestamps",
        "topic",
        "transactional",
        "values",
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
        """Bytes held of the buffer memory."""
        self.room = size_max - BATCH_OVERHEAD
        """Bytes left until it is full."""
        self.size = BATCH_OVERHEAD
        self.count = 0
        self.values: list[bytes | None] | None = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Headers] | None = None
        self.timestamps = Timestamps([], [])
        self.last_time = -1 << 62
        self.tick_ns = 0
        """Until this time (ns since the epoch) a value alone may join as it is: neither its timestamp nor any
        other column needs an entry."""
        self.keyed_tick_ns = 0
        """The same for a key and a value."""
        self.delivery = Delivery(topic, self.timestamps)
        self.first = 0
        """Index of its first record within its delivery."""
        self.full = False
        """It need not linger; while it cannot be sent it still takes records."""
        self.sealed = False
        self.bulk = False
        self.split = False
        self.finished = False
        """The user has the outcome; the batch may still be in flight."""
        self.decided = False
        """It will not be sent again."""
        self.attempt = 0
        self.failures = 0
        self.sequence = -1
        self.producer: tuple[int, int] = (-1, -1)
        self.encoded: bytearray | None = None

    def note(self, time_ms: int, *, keyed: bool = False) -> None:
        """The next record is of this time, a value alone or (``keyed``) with a key: enter it in the columns
        that need it, but for those of values and of keys."""
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
        """Give it a producer's identity (id, epoch) and a base sequence, again if it had one (KIP-360)."""
        if self.encoded is not None and (producer, sequence) != (self.producer, self.sequence):
            set_producer_state(
                self.encoded, producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence
            )
        self.producer = producer
        self.sequence = sequence

    def encode(self) -> bytearray:
        """Its bytes; made once, and the columns let go of."""
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
        """Split a batch that a broker found too large; the halves answer to the same delivery.

        Its sequences go to the halves: what was refused was not appended. Source: KIP-126.
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
        """Tell the user, unless a timeout did before."""
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
