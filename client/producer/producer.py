"""The producer for asyncio."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from tidelog.client.cluster.metadata import PartitionView
from tidelog.client.cluster.networks import default_network
from tidelog.client.config.producer import PRODUCER_DEFINITION, ProducerConfig, ProducerSettings
from tidelog.client.config.settings import parse_bootstrap
from tidelog.client.delivery import BulkFuture, Callback, Delivery, DeliveryFuture, RecordMetadata
from tidelog.client.description import describes
from tidelog.client.errors import IllegalStateError
from tidelog.client.group_types import ConsumerGroupMetadata, OffsetAndMetadata, offsets_given
from tidelog.client.producer.batch import Headers
from tidelog.client.producer.column_sending import ColumnSending
from tidelog.client.producer.core import BulkChunk, MetadataNeeded, ProducerCore
from tidelog.client.producer.later import cancel_headers, due_headers
from tidelog.client.producer.prepared import decide_prepared
from tidelog.client.producer.transaction_scope import AsyncTransaction, Scope
from tidelog.model.clock import Clock, SystemClock
from tidelog.model.ids import TopicPartition
from tidelog.proto.records.sent_columns import RecordColumns
from tidelog.proto.transport.network import Network

if TYPE_CHECKING:
    from tidelog.client.consumer.consumer import AsyncConsumer

P = TypeVar("P", bound="AsyncProducer")


@describes(PRODUCER_DEFINITION)
class AsyncProducer:
    """Sends records to topics; ``tidelog.aio.Producer``.

    Use it on one event loop, as ``async with Producer("localhost:9092") as producer:``, or call :meth:`start` and
    :meth:`close`. Settings are keyword arguments (:class:`ProducerSettings`); a wrong one raises ``ConfigError``. By
    default it is idempotent and uses acks=all: each record is written once, and in order per partition, despite
    retries.
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
        self._max_block_ms = config.max_block_ms
        self._core = ProducerCore(
            parse_bootstrap(bootstrap_servers),
            config,
            _network or default_network(config.tls(), config.login(), config.client_id),
            clock,
            _rng or random.Random(),
            on_room=self._on_room,
            on_wake=self._on_wake,
        )
        self._taking = self._core.taking
        self._rooms = 0
        """How often buffer memory was freed."""
        self._room = asyncio.Event()
        self._started = False

    def __repr__(self) -> str:
        return self._core.shown("aio.Producer")

    # --- lifecycle ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start. Returns immediately; the producer connects in the background."""
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
        """Send waiting records, and wait until everything sent so far has its outcome (which may be an error).

        Raises ``RequestTimedOutError`` after ``timeout`` seconds.
        """
        await self._core.flush(timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then stop. The flush takes at most ``timeout`` seconds (by default, ``delivery_timeout_ms``); records
        that are not delivered by then fail with ``ClientClosedError``. May be called twice."""
        if not self._core.closed:
            self._core.begin_close()
            self._on_room()
            try:
                await self._core.close(timeout)
            finally:
                self._core.close_interceptors()

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
        """Queue one record and return its future, whose result is a :class:`RecordMetadata`.

        Without a ``partition`` the key's hash chooses one; without a key, a sticky partition does.
        ``on_delivery(metadata, error)`` is called on the event loop (for ``tidelog.Producer``, in the background
        thread) and must not block; exceptions from it are logged.

        Waits only for the topic's metadata and for room in ``buffer_memory``. After ``max_block_ms`` it raises
        ``BufferExhaustedError``, or the reason why the metadata did not come. A record over ``max_request_size`` raises
        ``RecordTooLargeError`` immediately.
        """
        if headers is None and partition is None and timestamp_ms is None and on_delivery is None:
            future = self._taking.take(topic, value, key)
            if future is not None:
                return future
        core = self._core
        record = core.prepare(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        self._check_started()
        deadline = 0.0
        while True:
            rooms = self._rooms
            try:
                future = core.append(record)
            except MetadataNeeded as need:
                deadline = deadline or self._deadline()
                await core.learn(need, record.partition)
                continue
            if future is not None:
                return future
            deadline = deadline or self._deadline()
            await self._wait_for_room(rooms, deadline, len(record.value or b"") + len(record.key or b""))

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
        """Call :meth:`send` for one record and wait until it is delivered."""
        sent = await self.send(topic, value, key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
        return await sent

    async def send_later(
        self,
        topic: str,
        value: object = None,
        key: object = None,
        *,
        deliver_at_ms: int | None = None,
        deliver_after_ms: int | None = None,
        deliver_to: str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        on_delivery: Callback | None = None,
    ) -> DeliveryFuture:
        """Queue one record of a delay topic, as :meth:`send` does. Its leader moves it to ``deliver_to``, or to the
        topic's ``delay.target``, at ``deliver_at_ms`` (since the epoch), or so long after it took the record. In any
        other topic the record is there at once. Raises ``ValueError`` unless exactly one time is given."""
        asked = due_headers(headers, deliver_at_ms, deliver_after_ms, deliver_to)
        return await self.send(topic, value, key, headers=asked, partition=partition, on_delivery=on_delivery)

    async def cancel_later(self, sent: RecordMetadata) -> DeliveryFuture:
        """Queue the cancel of a record of a delay topic; ``sent`` is the result of its future. It takes effect if it is
        delivered before the record is due."""
        return await self.send(sent.topic, headers=cancel_headers(sent.offset), partition=sent.partition)

    async def send_many(
        self, topic: str, values: Sequence[Any], *, keys: Sequence[Any] | None = None, partition: int | None = None
    ) -> BulkFuture:
        """Queue many records at once, the fastest way; return one future for all of them.

        Records go in batches of ``bulk_batch_size``: to ``partition``, or by their keys, or (neither)
        each batch to a partition of its own. Order holds within a partition. Waits for room as :meth:`send` does, per
        batch; if that fails, the error says how many records were queued before.
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
        deadline = 0.0
        while True:
            rooms = self._rooms
            try:
                if self._core.append_chunk(delivery, chunk):
                    return
            except MetadataNeeded as need:
                deadline = deadline or self._deadline()
                await self._core.learn(need, chunk.partition)
                continue
            deadline = deadline or self._deadline()
            await self._wait_for_room(rooms, deadline, chunk.size)

    async def send_columns(self, topic: str, columns: RecordColumns, *, partition: int | None = None) -> BulkFuture:
        """Queue the rows of a table's columns, without an object for each; return one future for all of them.

        A row goes to ``partition``, else to its own, else its key's hash chooses; the rest is dealt out as
        :meth:`send_many` does. Rows of one partition keep their order. Waits for room as :meth:`send` does, per batch
        of ``bulk_batch_size``. The columns hold final bytes, so a producer with interceptors, serializers or a
        ``partitioner_class`` raises ``IllegalStateError``.

        A wrong row raises before any row is queued, and the error names the first one, counted from 0:
        ``RecordTooLargeError``, or ``ValueError`` for an impossible partition or timestamp or a header without a name.
        Columns that hold less than they claim also raise ``ValueError``.
        """
        self._check_started()
        sending = ColumnSending(self._core, topic, columns, partition)
        while not sending.planned:
            try:
                sending.plan()
            except MetadataNeeded as need:
                await sending.learn(need)
        deadline = 0.0
        try:
            while sending.left:
                rooms = self._rooms
                try:
                    if sending.append():
                        deadline = 0.0
                        continue
                except MetadataNeeded as need:
                    deadline = deadline or self._deadline()
                    await sending.learn(need)
                    continue
                deadline = deadline or self._deadline()
                await self._wait_for_room(rooms, deadline, sending.size)
        except Exception as error:
            sending.abandon(error)
            raise
        return sending.future

    # --- transactions -------------------------------------------------------------------------------

    async def init_transactions(self, keep_prepared: bool = False, *, timeout: float | None = None) -> None:
        """Take over the ``transactional_id``: fence its previous producer, and abort that one's open transaction. Call
        it once, before anything else; :meth:`transaction` does it by itself.

        ``keep_prepared`` (KIP-939) keeps a prepared transaction, so that you can decide it with
        :meth:`complete_transaction`, :meth:`commit_transaction` or :meth:`abort_transaction`.

        Here and below, ``RequestTimedOutError`` is raised after ``timeout`` seconds (default ``max_block_ms``). The
        operation continues in the background; call again to keep waiting for it. If an error is ``abortable``, the
        transaction can only be aborted; if it is ``fatal``, this producer can do no more transactions
        (``ProducerFencedError`` …). ``IllegalStateError`` means that the call does not fit the current state.
        """
        self._check_started()
        await self._core.require_transactions().initialize(timeout, keep_prepared=keep_prepared)

    async def begin_transaction(self) -> None:
        """Begin a transaction: every record sent from now on belongs to it."""
        self._core.require_transactions().begin()

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
        *,
        timeout: float | None = None,
    ) -> None:
        """Commit a consumer's ``offsets`` (the next to read) together with the transaction. ``group_metadata`` comes
        from the consumer (KIP-447). If the consumer has left its group or generation, this raises
        ``CommitFailedError``, and the transaction can only be aborted."""
        transactions = self._core.require_transactions()
        await transactions.send_offsets(offsets_given(offsets), group_metadata, timeout)

    async def commit_transaction(self, *, timeout: float | None = None) -> None:
        """Flush, then make everything visible atomically. If any record failed, raises its error and commits nothing:
        then abort."""
        await self._core.require_transactions().commit(timeout)

    async def abort_transaction(self, *, timeout: float | None = None) -> None:
        """Abort the transaction: readers of committed records see nothing of it. Unsent records are dropped
        (``TransactionAbortedError``)."""
        await self._core.require_transactions().abort(timeout)

    async def prepare_transaction(self, *, timeout: float | None = None) -> str:
        """Flush, and freeze the transaction for a decision that outlives this process (KIP-939): it never times out.
        Returns a token to keep with the decision. With it, :meth:`commit_prepared` or :meth:`abort_prepared` end the
        transaction from anywhere. Needs ``transaction_two_phase_commit_enable``."""
        return await self._core.require_transactions().prepare(timeout)

    async def complete_transaction(self, token: str | bytes, *, timeout: float | None = None) -> bool:
        """After ``init_transactions(keep_prepared=True)``: commit the prepared transaction if ``token`` names it, else
        abort it. Returns whether this call committed it; false also if nothing is prepared."""
        return await self._core.require_transactions().complete(token, timeout)

    def transaction(self: P, *, consumer: AsyncConsumer | None = None) -> AsyncTransaction[P]:
        """``async with producer.transaction():`` commits at the end of the block. An exception that leaves the block
        aborts the transaction and propagates.

        With a ``consumer`` of a group (``enable_auto_commit=False``), the transaction also commits everything that the
        consumer has handed out since the last one; after an abort, the consumer hands it out again. So each input takes
        effect once, whatever dies.
        """
        self._check_started()
        core = None if consumer is None else consumer._core
        return AsyncTransaction(self, Scope(self._core.require_transactions(), core))

    @classmethod
    async def commit_prepared(
        cls, bootstrap_servers: str | Sequence[str], token: str | bytes, *, timeout: float = 60.0, **how: Any
    ) -> None:
        """Commit a transaction prepared by :meth:`prepare_transaction`, from any process. May be repeated.

        Raises ``InvalidTxnStateError`` if it was aborted, ``ProducerFencedError`` if a later transaction has begun,
        ``RequestTimedOutError`` if the outcome is unknown (then call again), ``ValueError`` if ``token`` is not a
        token.
        """
        await cls._decide(bootstrap_servers, token, timeout, committed=True, **how)

    @classmethod
    async def abort_prepared(
        cls, bootstrap_servers: str | Sequence[str], token: str | bytes, *, timeout: float = 60.0, **how: Any
    ) -> None:
        """Abort it instead; otherwise like :meth:`commit_prepared`."""
        await cls._decide(bootstrap_servers, token, timeout, committed=False, **how)

    # --- asking -------------------------------------------------------------------------------------

    async def partitions_for(self, topic: str) -> list[PartitionView]:
        """Return the topic's partitions with their leaders. Raises ``UnknownTopicOrPartitionError``."""
        self._check_started()
        view = await self._core.cluster.topic(topic, self._max_block_ms)
        return list(view.partitions)

    def metrics(self) -> dict[str, int]:
        """Return counters by Kafka's metric names."""
        return self._core.metrics.snapshot()

    # --- inside ---------------------------------------------------------------------------------------

    _decide = staticmethod(decide_prepared)

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._max_block_ms / 1_000

    async def _wait_for_room(self, rooms: int, deadline: float, size: int) -> None:
        """Wait until buffer memory was freed since ``rooms`` was read. Raises ``BufferExhaustedError`` at the
        deadline."""
        core = self._core
        core.sender.waiting_for_room += 1
        core.metrics.buffer_waits += 1
        self._on_wake()
        try:
            async with asyncio.timeout_at(deadline):
                while self._rooms == rooms:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            raise core.exhausted(size) from None
        finally:
            core.sender.waiting_for_room -= 1

    def _on_room(self) -> None:
        self._rooms += 1
        self._room.set()

    def _on_wake(self) -> None:
        self._core.sender.wake()

    def _check_started(self) -> None:
        if not self._started:
            raise IllegalStateError("call start() first, or use it as 'async with Producer(...) as producer'")
