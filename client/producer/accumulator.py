"""Holds a producer's waiting records: an open batch per partition, bounded memory, and what to send next. Pure.

Not thread-safe by itself: the producer holds one lock around every call. Time and randomness come in
as arguments. Source: Kafka's ``RecordAccumulator`` and ``BuiltInPartitioner``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from tidelog.client.config.partitioner import choose_sticky
from tidelog.client.config.producer import ProducerConfig
from tidelog.client.delivery import Delivery
from tidelog.client.fast_path import OpenBatches
from tidelog.client.producer.batch import BATCH_OVERHEAD, RECORD_OVERHEAD, Headers, ProducerBatch, headers_size
from tidelog.client.producer.partition_queue import NO_PRODUCER, Outcome, PartitionQueue

NEVER_MS: Final = 1 << 62


class Leaders(Protocol):
    """What the accumulator needs from the cluster's metadata."""

    def leader_of(self, topic: str, partition: int) -> int:
        """Return the node that leads a partition, -1 if unknown."""


@dataclass(slots=True)
class Ready:
    """Nodes with something to send, when to look again, and topics without a known leader."""

    nodes: dict[int, list[PartitionQueue]] = field(default_factory=dict)
    look_again_ms: int = NEVER_MS
    without_leader: set[str] = field(default_factory=set)


class TopicQueues(OpenBatches[ProducerBatch]):
    """One topic's queues, and the partition that currently takes keyless records."""

    __slots__ = ("last_used_ms", "name", "queues", "sticky", "sticky_bytes")

    def __init__(self, name: str, partition_count: int) -> None:
        self.name = name
        self.partition_count = partition_count
        self.last_used_ms = -1 << 62
        """When it last started, or planned, a batch."""
        self.queues: dict[int, PartitionQueue] = {}
        self.open = {}
        self.sticky = -1
        self.sticky_bytes = 0
        """Bytes that the sticky partition received in sealed batches."""
        self.open_sticky = None


class Accumulator:
    """The unacknowledged records, at most ``buffer_memory`` bytes of them."""

    def __init__(self, config: ProducerConfig, rng: random.Random) -> None:
        self.config = config
        self.compression = config.compression
        self.memory_free = config.buffer_memory
        self.topics: dict[str, TopicQueues] = {}
        self.flushing = 0
        """While greater than 0, nothing lingers."""
        self.closed = False
        self.batches = 0
        """Batches without a final answer, open ones included."""
        self.retired: dict[tuple[str, int], tuple[tuple[int, int], int]] = {}
        """Identity and next sequence of partitions whose topics were forgotten. Leaders remember them, and would take a
        batch that starts again at 0 for a duplicate."""
        self.news = False
        """Something that the sender must know: a new batch that lingers, or a full one."""
        self._rng = rng
        self._transactional = config.transactional_id is not None
        self._batch_size_max = min(max(config.batch_size, config.batch_size_max), config.max_request_size)
        self._waiting: dict[PartitionQueue, None] = {}
        """Queues with something pending."""
        self._sending: dict[PartitionQueue, None] = {}
        """Queues with something in flight."""
        self._in_flight_max = (
            min(5, config.max_in_flight_requests_per_connection)
            if config.enable_idempotence
            else (config.max_in_flight_requests_per_connection)
        )

    # --- taking records -----------------------------------------------------------------------------

    def topic(self, name: str, partition_count: int) -> TopicQueues:
        """Return the queues of a topic, created or grown to ``partition_count``."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicQueues(name, partition_count)
        found.partition_count = partition_count
        return found

    def drop_idle(self, known: Container[str], used_before_ms: int) -> list[str]:
        """Forget topics that have nothing undelivered and are unknown by now, or were last used before then."""
        idle = [
            name
            for name, topic in self.topics.items()
            if (name not in known or topic.last_used_ms < used_before_ms)
            and not any(queue.pending or queue.in_flight for queue in topic.queues.values())
        ]
        for name in idle:
            topic = self.topics.pop(name)
            topic.open_sticky = None
            topic.open.clear()
            for queue in topic.queues.values():
                if queue.producer != NO_PRODUCER:
                    self.retired[name, queue.partition] = (queue.producer, queue.next_sequence)
        return idle

    def queue(self, topic: TopicQueues, partition: int) -> PartitionQueue:
        found = topic.queues.get(partition)
        if found is None:
            found = topic.queues[partition] = PartitionQueue(
                topic.name, partition, self._in_flight_max, transactional=self._transactional
            )
            found.producer, found.next_sequence = self.retired.pop((topic.name, partition), (NO_PRODUCER, 0))
        return found

    def sticky_partition(self, topic: TopicQueues, size: int, with_leader: Callable[[], Sequence[int]]) -> int:
        """Return the partition for a keyless record of ``size`` bytes; a different one after each batch's worth of
        bytes. ``with_leader`` lists the partitions with a reachable leader."""
        batch = topic.open_sticky
        if batch is not None and batch.room < size:
            self.leave_sticky(topic)
        if topic.sticky < 0:
            usable = with_leader() or range(topic.partition_count)
            queued = None
            if self.config.partitioner_adaptive_partitioning_enable and topic.queues:
                step = max(1, self.config.batch_size)
                queued = [topic.queues[p].pending_bytes // step if p in topic.queues else 0 for p in usable]
            topic.sticky = choose_sticky(usable, queued, self._rng)
            topic.sticky_bytes = 0
        return topic.sticky

    def append(
        self,
        topic: TopicQueues,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp: int,
        now_ms: int,
    ) -> ProducerBatch | None:
        """Add a record to a partition's open batch; the record's index is ``batch.count - 1``.

        ``None`` if the buffer memory has no room; then nothing changed.
        """
        queue = self.queue(topic, partition)
        size = RECORD_OVERHEAD + (len(value) if value is not None else 0) + (len(key) if key is not None else 0)
        if headers:
            size += headers_size(headers)
        batch = topic.open.get(partition)
        if batch is not None and size > batch.room:
            step = max(self.config.batch_size, size)
            if batch.memory + step > self._batch_size_max:
                self.seal(topic, batch)
                batch = None
            elif step > self.memory_free:
                return None
            else:  # it is full, and ready; but while it cannot be sent, it keeps growing
                self.memory_free -= step
                batch.memory += step
                batch.room += step
                batch.full = self.news = True
        if batch is None:
            memory = max(self.config.batch_size, size + BATCH_OVERHEAD)
            if memory > self.memory_free:
                return None
            self.memory_free -= memory
            batch = ProducerBatch(
                topic.name,
                partition,
                size_max=memory,
                memory=memory,
                created_ms=now_ms,
                compression=self.compression,
                transactional=self._transactional,
            )
            queue.pending.append(batch)
            topic.open[partition] = batch
            topic.last_used_ms = now_ms
            self.batches += 1
            self._waiting[queue] = None
            self.news = True
        count = batch.count
        if key is not None or batch.keys is not None:
            if batch.keys is None:
                batch.keys = [None] * count
            batch.keys.append(key)
        if headers or batch.headers is not None:
            if batch.headers is None:
                batch.headers = [()] * count
            batch.headers.append(headers or ())
        if timestamp != batch.last_time:
            batch.last_time = timestamp
            batch.timestamps.starts.append(count)
            batch.timestamps.times.append(timestamp)
        batch.tick_ns = batch.keyed_tick_ns = 0
        assert batch.values is not None
        batch.values.append(value)
        batch.count = count + 1
        batch.room -= size
        if partition == topic.sticky:
            topic.open_sticky = batch
        return batch

    def leave_sticky(self, topic: TopicQueues) -> None:
        """Let the next record choose another partition, because the sticky one has received a batch's worth of
        records."""
        batch = topic.open_sticky
        topic.open_sticky = None
        topic.sticky = -1
        if batch is not None and not batch.sealed:
            batch.full = self.news = True

    def seal(self, topic: TopicQueues, batch: ProducerBatch) -> None:
        """Take no more records into ``batch``, and free its unused memory."""
        if batch.sealed:
            return
        batch.seal()
        if topic.open_sticky is batch:
            topic.open_sticky = None
        if topic.open.get(batch.partition) is batch:
            del topic.open[batch.partition]
        if batch.partition == topic.sticky:
            topic.sticky_bytes += batch.memory - batch.room
            if topic.sticky_bytes >= self.config.batch_size:
                topic.sticky = -1
        if batch.room > 0:
            self.memory_free += batch.room
            batch.memory -= batch.room
            batch.room = 0

    def seal_all(self) -> None:
        """Take no more records into any batch."""
        for topic in self.topics.values():
            for batch in list(topic.open.values()):
                self.seal(topic, batch)

    def append_bulk(
        self,
        topic: TopicQueues,
        partition: int,
        delivery: Delivery,
        first: int,
        keys: list[bytes | None] | None,
        values: list[bytes | None],
        size: int,
        timestamp: int,
        now_ms: int,
    ) -> bool:
        """Add a whole batch of ``send_many``. Returns False if the buffer memory has no room."""
        batch = self._bulk(topic, partition, delivery, first, len(values), size, now_ms)
        if batch is None:
            return False
        batch.timestamps = delivery.timestamps
        batch.keys = keys
        batch.values = values
        return True

    def append_encoded(
        self,
        topic: TopicQueues,
        partition: int,
        delivery: Delivery,
        first: int,
        count: int,
        size: int,
        encoded: bytearray,
        now_ms: int,
    ) -> bool:
        """Add a batch that is already encoded, without a producer's identity. Returns False if there is no room."""
        batch = self._bulk(topic, partition, delivery, first, count, size, now_ms)
        if batch is None:
            return False
        batch.timestamps = delivery.timestamps
        batch.values = None
        batch.encoded = encoded
        return True

    def _bulk(
        self, topic: TopicQueues, partition: int, delivery: Delivery, first: int, count: int, size: int, now_ms: int
    ) -> ProducerBatch | None:
        if size > self.memory_free:
            return None
        self.memory_free -= size
        queue = self.queue(topic, partition)
        before = topic.open.get(partition)
        if before is not None:
            self.seal(topic, before)
        batch = ProducerBatch(
            topic.name,
            partition,
            size_max=size,
            memory=size,
            created_ms=now_ms,
            compression=self.compression,
            transactional=self._transactional,
        )
        batch.bulk = batch.sealed = True
        batch.delivery = delivery
        batch.first = first
        batch.count = count
        batch.room = 0
        queue.pending.append(batch)
        topic.last_used_ms = now_ms
        self.batches += 1
        self._waiting[queue] = None
        return batch

    # --- sending ----------------------------------------------------------------------------------

    def ready(self, leaders: Leaders, now_ms: int, *, exhausted: bool) -> Ready:
        """Find ready batches: full ones, those that have lingered, retries; or all of them while flushing, closing, or
        ``exhausted`` (a caller waits for memory)."""
        found = Ready()
        linger_ms = self.config.linger_ms
        hurry = bool(self.flushing) or self.closed or exhausted or not linger_ms
        for queue in list(self._waiting):
            if not queue.pending:
                del self._waiting[queue]
                continue
            node = leaders.leader_of(queue.topic, queue.partition)
            if node < 0:
                found.without_leader.add(queue.topic)
                continue
            if queue.needs_epoch:
                if not queue.in_flight:
                    found.nodes.setdefault(node, []).append(queue)
                continue
            if now_ms < queue.retry_at_ms:
                found.look_again_ms = min(found.look_again_ms, queue.retry_at_ms)
                continue
            if not queue.may_take(now_ms, node):
                continue
            head = queue.pending[0]
            if not (hurry or head.sealed or head.full):
                due_ms = head.created_ms + linger_ms
                if due_ms > now_ms:
                    found.look_again_ms = min(found.look_again_ms, due_ms)
                    continue
            found.nodes.setdefault(node, []).append(queue)
        return found

    def drain(
        self, node: int, leaders: Leaders, now_ms: int, bytes_max: int, producer: tuple[int, int] | None
    ) -> list[ProducerBatch]:
        """Take at most one batch of each partition that ``node`` leads, of ``bytes_max`` bytes together (one batch at
        least). Batches that still linger go along, because the request is sent anyway."""
        taken: list[ProducerBatch] = []
        total = 0
        moved: list[PartitionQueue] = []
        for queue in self._waiting:
            if leaders.leader_of(queue.topic, queue.partition) != node:
                continue
            if not queue.needs_epoch and not queue.may_take(now_ms, node):
                continue
            head = queue.pending[0]
            size = head.memory if head.sealed else head.memory - head.room
            if taken and total + size > bytes_max:
                break
            if not head.sealed:
                self.seal(self.topics[queue.topic], head)
            batch = queue.take(now_ms, node, producer)
            if batch is None:
                continue
            total += size
            taken.append(batch)
            moved.append(queue)
        for queue in moved:  # to the end, so that every partition gets its turn
            del self._waiting[queue]
            if queue.pending:
                self._waiting[queue] = None
            self._sending[queue] = None
        return taken

    def answer(self, batch: ProducerBatch, attempt: int, outcome: Outcome, retry_at_ms: int) -> Outcome | None:
        """Pass an answer on to the batch's queue (:meth:`PartitionQueue.answer`) and keep count."""
        queue = self.queue_of(batch)
        if queue is None:
            return None
        found = queue.answer(batch, attempt, outcome, retry_at_ms)
        if found is Outcome.SPLIT:
            self.batches += 1
        self.requeued(queue)
        return found

    def expire(self, created_before_ms: int) -> tuple[list[ProducerBatch], list[ProducerBatch]]:
        """Find batches created before then: those now forgotten, and those that stay in flight."""
        gone: list[ProducerBatch] = []
        in_flight: list[ProducerBatch] = []
        for queue in self.queues():
            late, sent = queue.expire(created_before_ms)
            for batch in late:
                self.seal(self.topics[queue.topic], batch)
                self.release(batch)
            gone += late
            in_flight += sent
            self.requeued(queue)
        return gone, in_flight

    def give_up(self) -> list[ProducerBatch]:
        """Forget everything, for a producer that closes or aborts a transaction; returns the forgotten batches."""
        every: list[ProducerBatch] = []
        for queue in self.queues():
            for batch in queue.drain_all():
                self.seal(self.topics[queue.topic], batch)
                self.release(batch)
                every.append(batch)
            self.requeued(queue)
        return every

    def requeued(self, queue: PartitionQueue) -> None:
        """Note that a batch came back to ``queue``, or is no longer in flight."""
        if queue.pending:
            self._waiting[queue] = None
        else:
            self._waiting.pop(queue, None)
        if not queue.in_flight:
            self._sending.pop(queue, None)

    def release(self, batch: ProducerBatch) -> None:
        """Free the memory of a finished batch."""
        self.memory_free += batch.memory
        self.batches -= 1

    def queue_of(self, batch: ProducerBatch) -> PartitionQueue | None:
        """Return the queue; ``None`` if the batch was given up and its topic has since been forgotten."""
        topic = self.topics.get(batch.topic)
        return None if topic is None else topic.queues.get(batch.partition)

    def queues(self) -> Iterable[PartitionQueue]:
        """Return every queue with something pending or in flight."""
        return {**self._waiting, **self._sending}.keys()

    def next_expiry_ms(self) -> int:
        """Return when the oldest batch's delivery timeout is up."""
        oldest = NEVER_MS
        for queue in self.queues():
            for batch in (queue.pending[0] if queue.pending else None, queue.in_flight[0] if queue.in_flight else None):
                if batch is not None and not batch.finished:
                    oldest = min(oldest, batch.created_ms)
        return oldest + self.config.delivery_timeout_ms if oldest != NEVER_MS else NEVER_MS
