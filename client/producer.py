"""The producer for asyncio."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from tidelog.client.column_sending import ColumnSending
from tidelog.client.delivery import BulkFuture, Callback, Delivery, DeliveryFuture, RecordMetadata
from tidelog.client.errors import IllegalStateError
from tidelog.client.group_types import ConsumerGroupMetadata, OffsetAndMetadata, offsets_given
from tidelog.client.metadata import PartitionView
from tidelog.client.networks import default_network
from tidelog.client.prepared import decide_prepared
from tidelog.client.producer_batch import RECORD_OVERHEAD, Headers
from tidelog.client.producer_config import ProducerConfig, ProducerSettings
from tidelog.client.producer_core import BulkChunk, MetadataNeeded, Prepared, ProducerCore, append_keyed, now_ns_of
from tidelog.client.settings import parse_bootstrap
from tidelog.client.transaction_scope import AsyncTransaction, Scope
from tidelog.model.clock import Clock, SystemClock
from tidelog.model.ids import TopicPartition
from tidelog.proto.network import Network
from tidelog.proto.sent_columns import RecordColumns

if TYPE_CHECKING:
    from tidelog.client.consumer import AsyncConsumer

P = TypeVar("P", bound="AsyncProducer")


class AsyncProducer:
    """Sends records to topics; ``tidelog.aio.Producer``.

    Use it on one event loop, as ``async with Producer("localhost:9092") as producer:``, or call
    :meth:`start` and :meth:`close`. Settings are keyword arguments (:class:`ProducerSettings`); a wrong
    one raises ``ConfigError``. Idempotent and acks=all unless told otherwise: a record is written once
    and in order per partition, whatever is retried.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        _network: Network | None = None,
        _clock: Clock | None = None,
        _rng: random.Random | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        config = ProducerConfig.of(settings)
        clock = _clock or SystemClock()
        self._now_ns = now_ns_of(clock)
        self._max_block_ms = config.max_block_ms
        self._core = ProducerCore(
            parse_bootstrap(bootstrap_servers),
            config,
            _network or default_network(),
            clock,
            _rng or random.Random(),
            on_room=self._on_room,
            on_wake=self._on_wake,
        )
        self._lock = self._core.lock
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._started = False

    # --- life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin; returns at once, the connection is made in the background."""
        if not self._started:
            self._started = True
            self._core.start()

    async def __aenter__(self: P) -> P:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def flush(self, timeout: float | None = None) -> None:
        """Send what waits, and wait until everything sent so far has its outcome (which may be an error).

        ``timeout`` in seconds; raises ``RequestTimedOutError`` when it is over.
        """
        await self._core.flush(timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then stop. ``timeout`` in seconds bounds the flush (without one, ``delivery_timeout_ms``
        does); what is not delivered by then fails with ``ClientClosedError``. May be called twice."""
        if not self._core.closed:
            self._core.begin_close()
            self._on_room()
            await self._core.close(timeout)

    # --- sending ------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: Callback | None = None,
    ) -> DeliveryFuture:
        """Queue one record and return its future, which may be awaited for a :class:`RecordMetadata`.

        Without a ``partition`` the key's hash chooses one; without a key, a sticky partition does.
        ``on_delivery(metadata, error)`` is called on the event loop; what it raises is logged.

        Waits only for the topic's metadata and for room in ``buffer_memory``, both within
        ``max_block_ms``: then ``BufferExhaustedError`` or what kept the metadata away. A record over
        ``max_request_size`` raises ``RecordTooLargeError`` at once.
        """
        plain = headers is None and partition is None and timestamp_ms is None and on_delivery is None
        if (
            plain
            and key is None
            and value.__class__ is bytes
            and (queues := self._core.plain_topics.get(topic)) is not None
        ):  # the shortest path: a value alone, into an open batch that has room
            size = len(value) + RECORD_OVERHEAD
            with self._lock:
                batch = queues.open_sticky
                if batch is not None and batch.room >= size:
                    if (now_ns := self._now_ns()) >= batch.tick_ns:
                        batch.note(now_ns // 1_000_000)
                    index = batch.count
                    batch.values.append(value)  # type: ignore[union-attr]  # an open batch has its columns
                    batch.count = index + 1
                    batch.room -= size
                    return DeliveryFuture((batch.delivery, index))
        elif (
            plain
            and key.__class__ is value.__class__ is bytes
            and (queues := self._core.keyed_topics.get(topic)) is not None
        ):
            future = append_keyed(queues, key, value, self._core.keys, self._lock, self._now_ns)
            if future is not None:
                return future
        record = self._core.prepare(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        self._check_started()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._max_block_ms / 1_000
        while True:
            try:
                future = self._core.append(record)
            except MetadataNeeded as need:
                await self._core.learn(need, record.partition)
                continue
            if future is not None:
                return future
            await self._room(deadline, _size(record))

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """:meth:`send` one record and wait until it is delivered."""
        sent = await self.send(topic, value, key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
        return await sent

    async def send_many(
        self, topic: str, values: Sequence[Any], *, keys: Sequence[Any] | None = None, partition: int | None = None
    ) -> BulkFuture:
        """Queue many records at once, the fastest way; return one future for all of them.

        Records go in batches of ``bulk_batch_size``: to ``partition``, or by their keys, or (neither)
        each batch to a partition of its own. Order holds within a partition. Waits for room as
        :meth:`send` does, per batch: an error then says how many records were queued before.
        """
        self._check_started()
        core = self._core
        while True:
            try:
                delivery, chunks = core.plan_bulk(topic, values, keys, partition)
                break
            except MetadataNeeded as need:
                await core.learn(need, partition)
        for at, chunk in enumerate(chunks):
            try:
                await self._append_chunk(delivery, chunk)
            except Exception as error:
                core.abandon_bulk(delivery, chunks, at, error)
                raise
        return BulkFuture(delivery, len(values))

    async def _append_chunk(self, delivery: Delivery, chunk: BulkChunk) -> None:
        deadline = asyncio.get_running_loop().time() + self._max_block_ms / 1_000
        while True:
            try:
                if self._core.append_chunk(delivery, chunk):
                    return
            except MetadataNeeded as need:
                await self._core.learn(need, chunk.partition)
                continue
            await self._room(deadline, chunk.size)

    async def send_columns(self, topic: str, columns: RecordColumns, *, partition: int | None = None) -> BulkFuture:
        """Queue the rows of a table's columns, without an object for each; return one future for all of them.

        A row goes to ``partition``, else to its own, else its key's hash chooses; what is left is dealt out as by
        :meth:`send_many`. Rows of one partition keep their order. Waits for room as :meth:`send` does, per batch of
        ``bulk_batch_size``. The columns are bytes as they are to be written: a producer with interceptors,
        serializers or a ``partitioner_class`` raises ``IllegalStateError``.

        What is wrong with a row raises before any is queued and names the first such row, counted from 0:
        ``RecordTooLargeError``, or ``ValueError`` for a partition or a timestamp that cannot be, or a header without a
        name. ``ValueError`` also for columns that have less than they say.
        """
        self._check_started()
        sending = ColumnSending(self._core, topic, columns, partition)
        while not sending.planned:
            try:
                sending.plan()
            except MetadataNeeded as need:
                await sending.learn(need)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._max_block_ms / 1_000
        try:
            while sending.left:
                try:
                    if sending.append():
                        deadline = loop.time() + self._max_block_ms / 1_000
                        continue
                except MetadataNeeded as need:
                    await sending.learn(need)
                    continue
                await self._room(deadline, sending.size)
        except Exception as error:
            sending.abandon(error)
            raise
        return sending.future

    # --- transactions -------------------------------------------------------------------------------

    async def init_transactions(self, keep_prepared: bool = False, *, timeout: float | None = None) -> None:
        """Take over the ``transactional_id``: whoever used it before is fenced, and what that left open is aborted.
        To be called once, before anything else; :meth:`transaction` does it by itself.

        ``keep_prepared`` (KIP-939): a transaction that was left prepared is kept, to be decided with
        :meth:`complete_transaction`, :meth:`commit_transaction` or :meth:`abort_transaction`.

        Here and below: ``timeout`` in seconds (default ``max_block_ms``), then ``RequestTimedOutError``; the
        call goes on in the background, and made again waits on for it. An error's ``abortable`` says that the
        transaction can only be aborted, ``fatal`` that this producer has done its last one
        (``ProducerFencedError`` …). ``IllegalStateError`` says that the call does not fit now.
        """
        self._check_started()
        await self._core.require_transactions().initialize(timeout, keep_prepared=keep_prepared)

    async def begin_transaction(self) -> None:
        """What is sent from now on belongs to one transaction."""
        self._core.require_transactions().begin()

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
        *,
        timeout: float | None = None,
    ) -> None:
        """Have a consumer's ``offsets`` (the next to read) committed if and when the transaction is.
        ``group_metadata`` is the consumer's own (KIP-447); one that is no longer in its group, or in that
        generation, gets ``CommitFailedError``, and the transaction can only be aborted."""
        transactions = self._core.require_transactions()
        await transactions.send_offsets(offsets_given(offsets), group_metadata, timeout)

    async def commit_transaction(self, *, timeout: float | None = None) -> None:
        """Flush, then make everything visible at once. If any record failed, its error is raised and
        nothing is committed: abort then."""
        await self._core.require_transactions().commit(timeout)

    async def abort_transaction(self, *, timeout: float | None = None) -> None:
        """Have nothing of it seen by readers of what is committed; what was not sent yet is dropped
        (``TransactionAbortedError``)."""
        await self._core.require_transactions().abort(timeout)

    async def prepare_transaction(self, *, timeout: float | None = None) -> str:
        """Flush, and freeze the transaction for a decision that outlives this process (KIP-939): it never
        times out. Returns a token to keep with the decision, and to end it with: :meth:`commit_prepared` or
        :meth:`abort_prepared`, anywhere. Needs ``transaction_two_phase_commit_enable``."""
        return await self._core.require_transactions().prepare(timeout)

    async def complete_transaction(self, token: str | bytes, *, timeout: float | None = None) -> bool:
        """After ``init_transactions(keep_prepared=True)``: commit what was left prepared if ``token`` is its,
        else abort it. Returns whether it was committed now; false too where nothing is prepared."""
        return await self._core.require_transactions().complete(token, timeout)

    def transaction(self: P, *, consumer: AsyncConsumer | None = None) -> AsyncTransaction[P]:
        """``async with producer.transaction():`` commits at the end of the block, and aborts if an exception
        leaves it, which goes on its way.

        With a ``consumer`` of a group (``enable_auto_commit=False``) all that it has handed out since the last
        transaction is committed along; after an abort it hands out the same again. So records in and records
        out are one: each input has its effect once, whatever dies.
        """
        self._check_started()
        core = None if consumer is None else consumer._core
        return AsyncTransaction(self, Scope(self._core.require_transactions(), core))

    @classmethod
    async def commit_prepared(
        cls, bootstrap_servers: str | Sequence[str], token: str | bytes, *, timeout: float = 60.0, **how: Any
    ) -> None:
        """Commit what :meth:`prepare_transaction` prepared, from any process. May be repeated.

        Raises ``InvalidTxnStateError`` if it was aborted, ``ProducerFencedError`` if a later transaction has
        begun since, ``RequestTimedOutError``: unknown, do it again. ``ValueError`` for what is no token.
        """
        await decide_prepared(bootstrap_servers, token, timeout, committed=True, **how)

    @classmethod
    async def abort_prepared(
        cls, bootstrap_servers: str | Sequence[str], token: str | bytes, *, timeout: float = 60.0, **how: Any
    ) -> None:
        """The other decision; as :meth:`commit_prepared`."""
        await decide_prepared(bootstrap_servers, token, timeout, committed=False, **how)

    # --- asking -------------------------------------------------------------------------------------

    async def partitions_for(self, topic: str) -> list[PartitionView]:
        """The topic's partitions with their leaders. Raises ``UnknownTopicOrPartitionError``."""
        self._check_started()
        view = await self._core.cluster.topic(topic, self._max_block_ms)
        return list(view.partitions)

    def metrics(self) -> dict[str, int]:
        """Counters by Kafka's metric names."""
        return self._core.metrics.snapshot()

    # --- inside ---------------------------------------------------------------------------------------

    async def _room(self, deadline: float, size: int) -> None:
        """Wait until some buffer memory is free. Raises ``BufferExhaustedError`` at the deadline."""
        core = self._core
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        core.sender.waiting_for_room += 1
        core.metrics.buffer_waits += 1
        self._on_wake()
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError:
            raise core.exhausted(size) from None
        finally:
            core.sender.waiting_for_room -= 1
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _on_room(self) -> None:
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _on_wake(self) -> None:
        self._core.sender.wake()

    def _check_started(self) -> None:
        if not self._started:
            raise IllegalStateError("start() it first, or use it as 'async with Producer(...) as producer'")


def _size(record: Prepared) -> int:
    return len(record.key or b"") + len(record.value or b"")
