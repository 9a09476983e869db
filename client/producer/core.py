"""The common part of the asyncio and blocking producers: preparing records, appending them, the parts' lifecycle.

The methods here never wait. If there is no room, the caller waits in its own way and tries again.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidelog.client.cluster.cluster import Cluster
from tidelog.client.cluster.metrics import ClientMetrics
from tidelog.client.config.interceptors import (
    ProducerInterceptor,
    ProducerRecord,
    interceptors_of,
    made,
    passed_through,
    tell,
)
from tidelog.client.config.partitioner import KeyPartitioner, Partitioner
from tidelog.client.config.producer import ProducerConfig
from tidelog.client.config.serializers import Serializer, serialize
from tidelog.client.delivery import BulkFuture, Callback, Delivery, DeliveryFuture, RecordMetadata, Timestamps
from tidelog.client.description import shown
from tidelog.client.errors import (
    BufferExhaustedError,
    ClientClosedError,
    IllegalStateError,
    InvalidTopicError,
    RecordTooLargeError,
    RequestTimedOutError,
    SerializationError,
    TidelogError,
)
from tidelog.client.fast_path import Taking
from tidelog.client.producer.accumulator import Accumulator, TopicQueues
from tidelog.client.producer.batch import (
    BATCH_OVERHEAD,
    RECORD_OVERHEAD,
    RECORD_OVERHEAD_MAX,
    Headers,
    ProducerBatch,
    headers_size,
)
from tidelog.client.producer.sender import Sender
from tidelog.client.producer.transaction_state import TransactionMachine, TransactionState
from tidelog.client.producer.transactions import Transactions
from tidelog.model.clock import Clock, SystemClock
from tidelog.proto.transport.network import Address, Network

TIMESTAMP_MS_MAX: Final = (1 << 63) - 1
"""A record batch stores times in 64 bits."""
NEW_PARTITION_MS: Final = 2_000
"""How long a named partition may be missing from the brokers' metadata; Kafka's producer waits ``max.block.ms``."""


@dataclass(slots=True)
class Prepared:
    """A record ready to be appended."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    partition: int | None
    timestamp: int
    callback: Callback | None


@dataclass(slots=True)
class BulkChunk:
    """A planned batch of a ``send_many``."""

    partition: int | None
    first: int
    keys: list[bytes | None] | None
    values: list[bytes | None]
    size: int


class MetadataNeeded(Exception):
    """The cache lacks a topic (``partition_count`` 0), or knows too few of its partitions for ``partition``, which a
    row of columns may have named."""

    def __init__(self, topic: str, partition_count: int, partition: int | None = None, row: int | None = None) -> None:
        super().__init__(topic)
        self.topic = topic
        self.partition_count = partition_count
        self.partition = partition
        self.row = row


class OpenTaking(Taking[DeliveryFuture]):
    """The shortest path of a producer's ``send``: into an open batch that has room."""

    def __init__(self, lock: threading.Lock, now_ns: Callable[[], int], keys: KeyPartitioner) -> None:
        super().__init__(lock.locked, now_ns, DeliveryFuture)
        self._lock: Final = lock
        self._now_ns: Final = now_ns
        self._keys: Final = keys

    def take_locked(self, topic: str, value: Any, key: Any) -> DeliveryFuture | None:
        if value.__class__ is not bytes:
            return None
        queues: TopicQueues | None
        size = len(value) + RECORD_OVERHEAD
        if key is None:
            if (queues := self.plain_topics.get(topic)) is None:
                return None
            with self._lock:
                batch = queues.open_sticky
                if batch is None or batch.room < size:
                    return None
                if (now_ns := self._now_ns()) >= batch.tick_ns:
                    batch.note(now_ns // 1_000_000)
                return _added(batch, value, size)
        if key.__class__ is not bytes or (queues := self.keyed_topics.get(topic)) is None:
            return None
        size += len(key)
        with self._lock:
            batch = queues.open.get(self._keys.partition(key, queues.partition_count))
            if batch is None or batch.room < size:
                return None
            if (now_ns := self._now_ns()) >= batch.keyed_tick_ns:
                batch.note(now_ns // 1_000_000, keyed=True)
            batch.keys.append(key)
            return _added(batch, value, size)


def _added(batch: ProducerBatch, value: bytes, size: int) -> DeliveryFuture:
    index = batch.count
    batch.values.append(value)  # type: ignore[union-attr]  # an open batch has its columns
    batch.count = index + 1
    batch.room -= size
    return DeliveryFuture(batch.delivery, index)


class ProducerCore:
    """Created on any thread; :meth:`start` and :meth:`close` run on the loop."""

    def __init__(
        self,
        bootstrap: tuple[Address, ...],
        config: ProducerConfig,
        network: Network,
        clock: Clock,
        rng: random.Random,
        on_room: Callable[[], None],
        on_wake: Callable[[], None],
    ) -> None:
        self.config: Final = config
        self.clock: Final = clock
        self.metrics: Final = ClientMetrics()
        self.lock: Final = threading.Lock()
        self.accumulator: Final = Accumulator(config, rng)
        self.cluster: Final = Cluster(
            bootstrap, config, network, clock, rng, self.metrics, allow_auto_topic_creation=True
        )
        machine = None if config.transactional_id is None else TransactionMachine()
        self.sender: Final = Sender(
            config, self.accumulator, self.lock, self.cluster, on_room, self.begin_close, machine, self.retake
        )
        self.transactions: Final = (
            None
            if machine is None
            else Transactions(
                config, self.cluster, self.sender, machine, self.lock, self.retake, on_room, lambda: self.flush(None)
            )
        )
        self.keys: Final = KeyPartitioner()
        self.custom: Final[Partitioner | None] = made(config.partitioner_class)
        self.interceptors: Final = interceptors_of(config.interceptor_classes, ProducerInterceptor, config)
        self.closed = False
        self.refuses = False
        """Whether records are refused, because the producer is closed or no transaction is open."""
        self.wake: Final = on_wake
        self._plain: Final = not (self.interceptors or self.custom or config.value_serializer)
        self._keyed: Final = self._plain and not (config.key_serializer or config.partitioner_ignore_keys)
        self.taking: Final = OpenTaking(self.lock, now_ns_of(clock), self.keys)
        """Knows no topics if user hooks must see the records."""
        self.retake()

    def shown(self, name: str) -> str:
        """Return the ``repr`` of the client called ``name``."""
        owner = self.config.transactional_id
        details = f"transactional id {owner!r}" if owner is not None else ""
        return shown(name, self.cluster.servers, self.closed, details)

    def start(self) -> None:
        self.cluster.start()
        self.sender.start()

    def begin_close(self) -> None:
        """Accept no more records, from any thread."""
        with self.lock:
            self.closed = True
            self.retake()

    def retake(self) -> None:
        """Accept records from now on, or no more, depending on the producer's state; the lock is held. A record that
        another thread still adds to an open batch shares the batch's outcome."""
        open_state = TransactionState.IN_TRANSACTION
        taking = not self.closed and (self.transactions is None or self.transactions.state is open_state)
        self.refuses = not taking
        self.taking.plain_topics = self.accumulator.topics if taking and self._plain else {}
        self.taking.keyed_topics = self.accumulator.topics if taking and self._keyed else {}

    def refusal(self, call: str) -> TidelogError:
        """Return why records are refused now."""
        if self.closed or self.transactions is None:
            return ClientClosedError("this producer is closed")
        return self.transactions.machine.refusal(call)

    def require_transactions(self) -> Transactions:
        """Return the transactions. Raises ``IllegalStateError`` without a ``transactional_id``."""
        if self.transactions is None:
            raise IllegalStateError("transactions need a transactional_id, found none")
        return self.transactions

    async def close(self, timeout: float | None) -> None:
        """Flush within ``timeout`` seconds, then stop; undelivered records fail, and an open transaction is aborted."""
        if self.transactions is not None:
            await self.transactions.close(timeout)
        try:
            await self.flush(timeout)
        except RequestTimedOutError:
            pass
        finally:
            self.accumulator.closed = True
            await self.sender.close()
            self.sender.fail_all(
                lambda b: ClientClosedError(
                    f"{b.topic}-{b.partition}: the producer was closed before {b.count} records were acknowledged"
                )
            )
            await self.cluster.close()

    def close_interceptors(self) -> None:
        """Close interceptors, last of all. Runs on the user's side."""
        tell(self.interceptors, lambda each: each.close())

    async def flush(self, timeout: float | None) -> None:
        """Send waiting records without lingering; wait for the outcome of everything sent so far."""
        self.accumulator.flushing += 1
        self.sender.wake()
        try:
            async with asyncio.timeout(timeout):
                for delivery in self.undelivered():
                    await delivery.wait_async()
        except TimeoutError:
            raise RequestTimedOutError(f"some records were not acknowledged within {timeout} s") from None
        finally:
            self.accumulator.flushing -= 1

    # --- one record -----------------------------------------------------------------------------------

    def prepare(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: Callback | None,
    ) -> Prepared:
        """Run interceptors and serializers, and check the result.

        Raises ``ClientClosedError``, ``SerializationError``, ``InvalidTopicError``, ``RecordTooLargeError``,
        ``ValueError``.
        """
        if self.refuses:
            raise self.refusal("send()")
        if self.interceptors:
            record = ProducerRecord(topic, value, key, headers or (), partition, timestamp_ms)
            record = passed_through(self.interceptors, record, lambda each, sent: each.on_send(sent))
            topic, value, key, headers = record.topic, record.value, record.key, record.headers
            partition, timestamp_ms = record.partition, record.timestamp
        if not topic:
            raise InvalidTopicError("expected a topic name, found an empty one")
        raw_key = serialize(self.config.key_serializer, topic, key, "key")
        raw_value = serialize(self.config.value_serializer, topic, value, "value")
        if self.interceptors:
            ready = ProducerRecord(topic, raw_value, raw_key, headers or (), partition, timestamp_ms)
            headers, on_delivery = self._serialized(ready, on_delivery)
        if headers:
            _check_headers(headers)
        if partition is not None and partition < 0:
            raise ValueError(f"partition: expected 0 or more, found {partition}")
        if timestamp_ms is not None and not 0 <= timestamp_ms <= TIMESTAMP_MS_MAX:
            raise ValueError(f"timestamp_ms: expected 0 to {TIMESTAMP_MS_MAX}, found {timestamp_ms}")
        size = BATCH_OVERHEAD + RECORD_OVERHEAD_MAX + len(raw_key or b"") + len(raw_value or b"")
        if headers:
            size += headers_size(headers)
        self._check_size(size)
        timestamp = self.clock.now_ms() if timestamp_ms is None else timestamp_ms
        return Prepared(topic, raw_key, raw_value, headers or None, partition, timestamp, on_delivery)

    def append(self, record: Prepared) -> DeliveryFuture | None:
        """Append to the right open batch; ``None`` if there is no room. Raises :class:`MetadataNeeded`."""
        with self.lock:
            if self.refuses:
                raise self.refusal("send()")
            topic = self.topic_queues(record.topic, record.partition)
            partition = self._partition(topic, record) if record.partition is None else record.partition
            batch = self.accumulator.append(
                topic, partition, record.key, record.value, record.headers, record.timestamp, self.clock.monotonic_ms()
            )
            if batch is None:
                return None
            index = batch.count - 1
            if record.callback is not None:
                batch.delivery.call_back(index, record.callback)
            news, self.accumulator.news = self.accumulator.news, False
        if news:
            self.wake()
        return DeliveryFuture(batch.delivery, index)

    def topic_queues(self, name: str, partition: int | None) -> TopicQueues:
        """Return a topic's queues; the lock is held. Raises :class:`MetadataNeeded` if the topic or the partition is
        unknown."""
        view = self.cluster.cache.topics.get(name)
        if view is None or (partition is not None and partition >= len(view.partitions)):
            raise MetadataNeeded(name, 0 if view is None else len(view.partitions))
        return self.accumulator.topic(name, len(view.partitions))

    async def learn(self, need: MetadataNeeded, partition: int | None) -> None:
        """Get the missing metadata. Raises ``ValueError`` for a partition that does not exist, or the reason why a
        topic's metadata did not come within ``max_block_ms``.

        A broker may not know a new partition yet, so we ask more than once.
        """
        if not need.partition_count:
            await self.cluster.topic(need.topic, self.config.max_block_ms)
            return
        asked = 0
        try:
            async with asyncio.timeout(min(self.config.max_block_ms, NEW_PARTITION_MS) / 1_000):
                while 0 < self._partition_count(need.topic) <= (partition or 0):
                    if asked:
                        await asyncio.sleep(self.cluster.retry_backoff.after(asked, self.cluster.rng) / 1_000)
                    await self.cluster.refreshed()
                    asked += 1
        except TimeoutError:
            count = self._partition_count(need.topic)
            raise ValueError(f"partition: expected 0 to {count - 1} of topic {need.topic}, found {partition}") from None

    def _partition_count(self, topic: str) -> int:
        view = self.cluster.cache.topics.get(topic)
        return 0 if view is None else len(view.partitions)

    def _partition(self, topic: TopicQueues, record: Prepared) -> int:
        if self.custom is not None:
            chosen = self.custom.partition(topic.name, record.key, record.value, range(topic.partition_count))
            if chosen is not None:
                if not 0 <= chosen < topic.partition_count:
                    raise ValueError(
                        f"the partitioner chose {chosen}; expected 0 to {topic.partition_count - 1} of {topic.name}"
                    )
                return chosen
        if record.key is not None and not self.config.partitioner_ignore_keys:
            return self.keys.partition(record.key, topic.partition_count)
        return self._sticky(topic, RECORD_OVERHEAD + len(record.value or b""))

    def _sticky(self, topic: TopicQueues, size: int) -> int:
        return self.accumulator.sticky_partition(topic, size, lambda: self.cluster.cache.with_leader(topic.name))

    def next_sticky(self, topic: TopicQueues) -> int:
        """Return a partition for a batch of keyless records; the lock is held."""
        self.accumulator.leave_sticky(topic)
        chosen = self._sticky(topic, 0)
        self.accumulator.leave_sticky(topic)
        return chosen

    # --- many records -----------------------------------------------------------------------------------

    def plan_bulk(
        self, topic_name: str, values: Sequence[Any], keys: Sequence[Any] | None, partition: int | None
    ) -> tuple[Delivery, list[BulkChunk]]:
        """Cut a ``send_many`` into batches.

        Raises the errors of :meth:`prepare`, and :class:`MetadataNeeded`, before it takes any record.
        """
        if self.refuses:
            raise self.refusal("send_many()")
        if self.interceptors:
            raise IllegalStateError("send_many would bypass this producer's interceptors: use send()")
        raw_values = self._raw(self.config.value_serializer, topic_name, values, "value")
        raw_keys = None if keys is None else self._raw(self.config.key_serializer, topic_name, keys, "key")
        if raw_keys is not None and len(raw_keys) != len(raw_values):
            raise ValueError(f"expected as many keys as values, found {len(raw_keys)} and {len(raw_values)}")
        if partition is not None and partition < 0:
            raise ValueError(f"partition: expected 0 or more, found {partition}")
        with self.lock:
            count = self.topic_queues(topic_name, partition).partition_count
        delivery = Delivery(topic_name, Timestamps([0], [self.clock.now_ms()]))
        delivery.expect(len(raw_values))
        chunks: list[BulkChunk] = []
        if raw_keys is None or partition is not None or self.config.partitioner_ignore_keys:
            self._cut(partition, raw_values, raw_keys, 0, chunks)
        else:
            groups: dict[int, list[int]] = {}
            choose = self.keys.partition
            for index, key in enumerate(raw_keys):
                chosen = -1 if key is None else choose(key, count)
                groups.setdefault(chosen, []).append(index)
            first = 0
            for chosen, indices in groups.items():
                self._cut(
                    None if chosen < 0 else chosen,
                    [raw_values[i] for i in indices],
                    [raw_keys[i] for i in indices],
                    first,
                    chunks,
                )
                first += len(indices)
        return delivery, chunks

    def _raw(
        self, serializer: Serializer | None, topic: str, items: Sequence[Any], what: str
    ) -> Sequence[bytes | None]:
        if serializer is None and set(map(type, items)) <= {bytes, type(None)}:
            return items
        return [serialize(serializer, topic, item, what) for item in items]

    def _cut(
        self,
        partition: int | None,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        first: int,
        chunks: list[BulkChunk],
    ) -> None:
        """Cut records of one partition (or of any) into chunks of the bulk batch size."""
        target = self.config.bulk_bytes
        sizes = [RECORD_OVERHEAD + len(value or b"") for value in values]
        if keys is not None:
            sizes = [size + len(key or b"") for size, key in zip(sizes, keys, strict=True)]
        if not sizes:
            return
        largest = max(sizes)
        self._check_size(largest - RECORD_OVERHEAD + RECORD_OVERHEAD_MAX + BATCH_OVERHEAD)
        start = 0
        if min(sizes) == largest:
            step = max(1, (target - BATCH_OVERHEAD) // largest)
            cuts = [*range(step, len(sizes), step), len(sizes)]
        else:
            cuts, total = [], BATCH_OVERHEAD
            for at, size in enumerate(sizes):
                if total + size > target and at:
                    cuts.append(at)
                    total = BATCH_OVERHEAD
                total += size
            cuts.append(len(sizes))
        for stop in cuts:
            chunk_keys = None if keys is None else list(keys[start:stop])
            size = BATCH_OVERHEAD + sum(sizes[start:stop])
            chunks.append(BulkChunk(partition, first + start, chunk_keys, list(values[start:stop]), size))
            start = stop

    def append_chunk(self, delivery: Delivery, chunk: BulkChunk) -> bool:
        """Append one chunk; false if there is no room. Raises :class:`MetadataNeeded`."""
        with self.lock:
            if self.refuses:
                raise self.refusal("send_many()")
            topic = self.topic_queues(delivery.topic, chunk.partition)
            partition = chunk.partition
            if partition is None:
                partition = self.next_sticky(topic)
            taken = self.accumulator.append_bulk(
                topic,
                partition,
                delivery,
                chunk.first,
                chunk.keys,
                chunk.values,
                chunk.size,
                delivery.timestamps.times[0],
                self.clock.monotonic_ms(),
            )
        if taken:
            self.wake()
        return taken

    def abandon_bulk(self, delivery: Delivery, chunks: Sequence[BulkChunk], at: int, error: Exception) -> None:
        """Fail the chunks from ``at`` on, for which there was no room; ``error`` gets a note of how many records were
        queued. A transaction must not commit part of a ``send_many``."""
        if at and self.transactions is not None:
            self.transactions.spoil(error)
        for left in chunks[at:]:
            delivery.fail(left.first, len(left.values), error)
        queued, left_out = (sum(len(c.values) for c in part) for part in (chunks[:at], chunks[at:]))
        error.add_note(f"{queued} of {queued + left_out} records were queued before")

    # --- waiting, flushing ------------------------------------------------------------------------------

    def exhausted(self, size: int) -> BufferExhaustedError:
        """Return the error for a caller that waited for room in vain."""
        self.metrics.buffer_exhausted += 1
        return BufferExhaustedError(
            f"expected room for {size} bytes in buffer_memory = {self.config.buffer_memory} within "
            f"max_block_ms = {self.config.max_block_ms}, found {self.accumulator.memory_free} bytes free"
        )

    def undelivered(self) -> list[Delivery]:
        """Return the deliveries that are not done now."""
        with self.lock:
            found: dict[Delivery, None] = {}
            for queue in self.accumulator.queues():
                for batch in (*queue.in_flight, *queue.pending):
                    found[batch.delivery] = None
        return [delivery for delivery in found if not delivery.done]

    def _check_size(self, size: int) -> None:
        limit = self.config.max_request_size
        if size > limit:
            raise RecordTooLargeError(
                f"expected a record of at most max_request_size = {limit} bytes with its batch header, found {size}"
            )
        if size > self.config.buffer_memory:
            raise RecordTooLargeError(
                f"expected a record of at most buffer_memory = {self.config.buffer_memory} bytes, found {size}"
            )

    def _serialized(self, record: ProducerRecord, callback: Callback | None) -> tuple[Headers, Callback]:
        """Return the record's headers with those that interceptors add, and what to call with its outcome."""
        interceptors = self.interceptors
        headers = [*record.headers]
        outcomes: dict[ProducerInterceptor, Callback] = {}

        def serialized(each: ProducerInterceptor) -> None:
            added, outcome = each.on_serialized(record)
            headers.extend(added)
            if outcome is not None:
                outcomes[each] = outcome

        def acknowledge(metadata: RecordMetadata | None, error: BaseException | None) -> None:
            tell(interceptors, lambda each: each.on_acknowledgement(metadata, error))
            tell(outcomes, lambda each: outcomes[each](metadata, error))
            if callback is not None:
                callback(metadata, error)

        tell(interceptors, serialized)
        return headers, acknowledge


def now_ns_of(clock: Clock) -> Callable[[], int]:
    """Return the clock in ns; the machine's own clock is called directly."""
    return time.time_ns if type(clock) is SystemClock else lambda: clock.now_ms() * 1_000_000


def _check_headers(headers: Headers) -> None:
    for header in headers:
        if not (isinstance(header, tuple) and len(header) == 2 and isinstance(header[0], str)):
            raise SerializationError(f"headers: expected pairs of a str and bytes or None, found {header!r}")
        if header[1] is not None and not isinstance(header[1], bytes):
            raise SerializationError(f"header {header[0]!r}: expected bytes or None, found {type(header[1]).__name__}")


__all__ = [
    "BulkChunk",
    "BulkFuture",
    "Partitioner",
    "Prepared",
    "ProducerCore",
    "now_ns_of",
]
