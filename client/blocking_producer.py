"""The producer in plain blocking form: ``tidelog.Producer``."""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import threading
import time
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from tidelog.client import background
from tidelog.client.background import BackgroundLoop
from tidelog.client.column_sending import ColumnSending
from tidelog.client.delivery import BulkFuture, Callback, Delivery, DeliveryFuture, RecordMetadata
from tidelog.client.errors import ClientClosedError
from tidelog.client.group_types import ConsumerGroupMetadata, OffsetAndMetadata, offsets_given
from tidelog.client.metadata import PartitionView
from tidelog.client.networks import default_network
from tidelog.client.prepared import decide_prepared
from tidelog.client.producer_batch import RECORD_OVERHEAD, Headers
from tidelog.client.producer_config import ProducerConfig, ProducerSettings
from tidelog.client.producer_core import BulkChunk, MetadataNeeded, ProducerCore, append_keyed, now_ns_of
from tidelog.client.settings import parse_bootstrap
from tidelog.client.transaction_scope import BlockingTransaction, Scope
from tidelog.model.clock import Clock, SystemClock
from tidelog.model.ids import TopicPartition
from tidelog.proto.network import Network
from tidelog.proto.sent_columns import RecordColumns

if TYPE_CHECKING:
    from tidelog.client.blocking_consumer import Consumer

P = TypeVar("P", bound="Producer")


class Producer:
    """Sends records to topics.

        with Producer("localhost:9092") as producer:
            producer.send("orders", b"hello", key=b"4711")

    May be used by several threads at once. Records are collected in the calling thread; a background
    thread, one per process, sends them. Settings are keyword arguments (:class:`ProducerSettings`); a
    wrong one raises ``ConfigError``. Idempotent and acks=all unless told otherwise: a record is written
    once and in order per partition, whatever is retried. Leaving the ``with`` block flushes; so does, for
    at most five seconds, the end of a program that closes nothing.

    A producer does not survive ``fork()``: in the child its calls raise ``ClientClosedError``.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        _network: Network | None = None,
        _background: BackgroundLoop | None = None,
        _clock: Clock | None = None,
        _rng: random.Random | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        config = ProducerConfig.of(settings)
        bootstrap = parse_bootstrap(bootstrap_servers)
        clock = _clock or SystemClock()
        self._now_ns = now_ns_of(clock)
        self._max_block_s = config.max_block_ms / 1_000
        self._max_block_ms = config.max_block_ms
        self._room = threading.Condition()
        self._rooms = 0
        self._wake_requested = False
        self._owns_background = _background is None
        self._core = ProducerCore(
            bootstrap,
            config,
            _network or default_network(),
            clock,
            _rng or random.Random(),
            on_room=self._on_room,
            on_wake=self._on_wake,
        )
        self._lock = self._core.lock
        self._background = _background or background.acquire()
        self._background.run(self._start())
        _open.add(self)

    async def _start(self) -> None:
        self._core.start()

    # --- life ---------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Send what waits, and block until everything sent so far has its outcome (which may be an error).

        ``timeout`` in seconds; raises ``RequestTimedOutError`` when it is over.
        """
        self._background.run(self._core.flush(timeout))

    def close(self, timeout: float | None = None) -> None:
        """Flush, then stop. ``timeout`` in seconds bounds the flush (without one, ``delivery_timeout_ms``
        does); what is not delivered by then fails with ``ClientClosedError``. May be called twice."""
        if self._core.closed:
            return
        self._core.begin_close()
        _open.discard(self)
        self._on_room()
        try:
            self._background.run(self._core.close(timeout))
        finally:
            if self._owns_background:
                background.release(self._background)

    def __enter__(self: P) -> P:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- sending ------------------------------------------------------------------------------------

    def send(
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
        """Queue one record and return its future; ``.result()`` blocks for its :class:`RecordMetadata`.

        Without a ``partition`` the key's hash chooses one; without a key, a sticky partition does.
        ``on_delivery(metadata, error)`` is called in the background thread and must not block; what it
        raises is logged.

        Blocks only for the topic's metadata and for room in ``buffer_memory``, both within
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
        core = self._core
        record = core.prepare(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        deadline = 0.0
        while True:
            rooms = self._rooms
            try:
                future = core.append(record)
            except MetadataNeeded as need:
                self._background.run(core.learn(need, record.partition))
                continue
            if future is not None:
                return future
            deadline = deadline or time.monotonic() + self._max_block_s
            self._wait_for_room(rooms, deadline, len(record.value or b"") + len(record.key or b""))

    def send_many(
        self, topic: str, values: Sequence[Any], *, keys: Sequence[Any] | None = None, partition: int | None = None
    ) -> BulkFuture:
        """Queue many records at once, the fastest way; return one future for all of them.

        Records go in batches of ``bulk_batch_size``: to ``partition``, or by their keys, or (neither)
        each batch to a partition of its own. Order holds within a partition. Blocks for room as
        :meth:`send` does, per batch: an error then says how many records were queued before.
        """
        core = self._core
        while True:
            try:
                delivery, chunks = core.plan_bulk(topic, values, keys, partition)
                break
            except MetadataNeeded as need:
                self._background.run(core.learn(need, partition))
        for at, chunk in enumerate(chunks):
            try:
                self._append_chunk(delivery, chunk)
            except Exception as error:
                core.abandon_bulk(delivery, chunks, at, error)
                raise
        return BulkFuture(delivery, len(values))

    def _append_chunk(self, delivery: Delivery, chunk: BulkChunk) -> None:
        deadline = 0.0
        while True:
            rooms = self._rooms
            try:
                if self._core.append_chunk(delivery, chunk):
                    return
            except MetadataNeeded as need:
                self._background.run(self._core.learn(need, chunk.partition))
                continue
            deadline = deadline or time.monotonic() + self._max_block_s
            self._wait_for_room(rooms, deadline, chunk.size)

    def send_columns(self, topic: str, columns: RecordColumns, *, partition: int | None = None) -> BulkFuture:
        """Queue the rows of a table's columns, without an object for each; return one future for all of them.

        A row goes to ``partition``, else to its own, else its key's hash chooses; what is left is dealt out as by
        :meth:`send_many`. Rows of one partition keep their order. Blocks for room as :meth:`send` does, per batch of
        ``bulk_batch_size``. The columns are bytes as they are to be written: a producer with interceptors,
        serializers or a ``partitioner_class`` raises ``IllegalStateError``.

        What is wrong with a row raises before any is queued and names the first such row, counted from 0:
        ``RecordTooLargeError``, or ``ValueError`` for a partition or a timestamp that cannot be, or a header without a
        name. ``ValueError`` also for columns that have less than they say.
        """
        sending = ColumnSending(self._core, topic, columns, partition)
        while not sending.planned:
            try:
                sending.plan()
            except MetadataNeeded as need:
                self._background.run(sending.learn(need))
        try:
            deadline = 0.0
            while sending.left:
                rooms = self._rooms
                try:
                    if sending.append():
                        deadline = 0.0
                        continue
                except MetadataNeeded as need:
                    self._background.run(sending.learn(need))
                    continue
                deadline = deadline or time.monotonic() + self._max_block_s
                self._wait_for_room(rooms, deadline, sending.size)
        except Exception as error:
            sending.abandon(error)
            raise
        return sending.future

    def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """:meth:`send` one record and block until it is delivered."""
        sent = self.send(topic, value, key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
        return sent.result()

    # --- transactions -------------------------------------------------------------------------------

    def init_transactions(self, keep_prepared: bool = False, *, timeout: float | None = None) -> None:
        """Take over the ``transactional_id``: whoever used it before is fenced, and what that left open is aborted.
        To be called once, before anything else; :meth:`transaction` does it by itself.

        ``keep_prepared`` (KIP-939): a transaction that was left prepared is kept, to be decided with
        :meth:`complete_transaction`, :meth:`commit_transaction` or :meth:`abort_transaction`.

        Here and below: ``timeout`` in seconds (default ``max_block_ms``), then ``RequestTimedOutError``; the
        call goes on in the background, and made again waits on for it. An error's ``abortable`` says that the
        transaction can only be aborted, ``fatal`` that this producer has done its last one
        (``ProducerFencedError`` …). ``IllegalStateError`` says that the call does not fit now.
        """
        work = self._core.require_transactions().initialize(timeout, keep_prepared=keep_prepared)
        self._background.run(work)

    def begin_transaction(self) -> None:
        """What is sent from now on belongs to one transaction."""
        self._core.require_transactions().begin()

    def send_offsets_to_transaction(
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
        self._background.run(transactions.send_offsets(offsets_given(offsets), group_metadata, timeout))

    def commit_transaction(self, *, timeout: float | None = None) -> None:
        """Flush, then make everything visible at once. If any record failed, its error is raised and
        nothing is committed: abort then."""
        self._background.run(self._core.require_transactions().commit(timeout))

    def abort_transaction(self, *, timeout: float | None = None) -> None:
        """Have nothing of it seen by readers of what is committed; what was not sent yet is dropped
        (``TransactionAbortedError``)."""
        self._background.run(self._core.require_transactions().abort(timeout))

    def prepare_transaction(self, *, timeout: float | None = None) -> str:
        """Flush, and freeze the transaction for a decision that outlives this process (KIP-939): it never
        times out. Returns a token to keep with the decision, and to end it with: :meth:`commit_prepared` or
        :meth:`abort_prepared`, anywhere. Needs ``transaction_two_phase_commit_enable``."""
        return self._background.run(self._core.require_transactions().prepare(timeout))

    def complete_transaction(self, token: str | bytes, *, timeout: float | None = None) -> bool:
        """After ``init_transactions(keep_prepared=True)``: commit what was left prepared if ``token`` is its,
        else abort it. Returns whether it was committed now; false too where nothing is prepared."""
        return self._background.run(self._core.require_transactions().complete(token, timeout))

    def transaction(self: P, *, consumer: Consumer | None = None) -> BlockingTransaction[P]:
        """``with producer.transaction():`` commits at the end of the block, and aborts if an exception
        leaves it, which goes on its way.

        With a ``consumer`` of a group (``enable_auto_commit=False``) all that it has handed out since the last
        transaction is committed along; after an abort it hands out the same again. So records in and records
        out are one: each input has its effect once, whatever dies.
        """
        core = None if consumer is None else consumer._core
        return BlockingTransaction(self, Scope(self._core.require_transactions(), core), self._background)

    @classmethod
    def commit_prepared(
        cls, bootstrap_servers: str | Sequence[str], token: str | bytes, *, timeout: float = 60.0, **how: Any
    ) -> None:
        """Commit what :meth:`prepare_transaction` prepared, from any process. May be repeated.

        Raises ``InvalidTxnStateError`` if it was aborted, ``ProducerFencedError`` if a later transaction has
        begun since, ``RequestTimedOutError``: unknown, do it again. ``ValueError`` for what is no token.
        """
        _on_a_loop(
            how.pop("_background", None), decide_prepared(bootstrap_servers, token, timeout, committed=True, **how)
        )

    @classmethod
    def abort_prepared(
        cls, bootstrap_servers: str | Sequence[str], token: str | bytes, *, timeout: float = 60.0, **how: Any
    ) -> None:
        """The other decision; as :meth:`commit_prepared`."""
        _on_a_loop(
            how.pop("_background", None), decide_prepared(bootstrap_servers, token, timeout, committed=False, **how)
        )

    # --- asking -------------------------------------------------------------------------------------

    def partitions_for(self, topic: str) -> list[PartitionView]:
        """The topic's partitions with their leaders. Raises ``UnknownTopicOrPartitionError``."""
        view = self._background.run(self._core.cluster.topic(topic, self._max_block_ms))
        return list(view.partitions)

    def metrics(self) -> dict[str, int]:
        """Counters by Kafka's metric names."""
        return self._core.metrics.snapshot()

    # --- inside ---------------------------------------------------------------------------------------

    def _wait_for_room(self, rooms: int, deadline: float, size: int) -> None:
        """Block until buffer memory was freed since ``rooms`` was read. Raises ``BufferExhaustedError``."""
        core = self._core
        if self._background.is_own_thread:
            raise core.exhausted(size)  # a callback cannot wait for what only its own thread can do
        self._background.check()
        core.metrics.buffer_waits += 1
        with self._room:
            core.sender.waiting_for_room += 1
            self._on_wake()
            try:
                found = self._room.wait_for(lambda: self._rooms != rooms, max(0.0, deadline - time.monotonic()))
            finally:
                core.sender.waiting_for_room -= 1
        if core.closed:
            raise ClientClosedError("this producer is closed")
        if not found:
            raise core.exhausted(size)

    def _on_room(self) -> None:
        with self._room:
            self._rooms += 1
            self._room.notify_all()

    def _on_wake(self) -> None:
        if not self._wake_requested:
            self._wake_requested = True
            self._background.call(self._woken)

    def _woken(self) -> None:
        self._wake_requested = False
        self._core.sender.wake()

    def _forked(self) -> None:
        self._core.closed = True
        self._core.retake()


def _on_a_loop(given: BackgroundLoop | None, work: Coroutine[Any, Any, None]) -> None:
    loop = given or background.acquire()
    try:
        loop.run(work)
    finally:
        if given is None:
            background.release(loop)


_open: weakref.WeakSet[Producer] = weakref.WeakSet()
"""Producers that a fork must leave closed in the child."""


EXIT_FLUSH_S: Final = 5.0


def _at_exit() -> None:
    """A program that ends without closing its producers does not lose what lingers: they flush, within a bound."""
    for producer in list(_open):
        with contextlib.suppress(ClientClosedError):  # its loop was stopped before it
            producer.close(EXIT_FLUSH_S)


atexit.register(_at_exit)


def _after_fork() -> None:
    for producer in list(_open):
        producer._forked()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)
