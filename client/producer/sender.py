"""The producer's IO: turns ready batches into frames, answers into outcomes. Runs on one event loop.

The accumulator and the queues decide; this shell moves bytes, enforces timeouts and informs users. The accumulator's
lock is never held while a user's callback runs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tidelog.client.cluster.cluster import Cluster
from tidelog.client.cluster.coordinator_link import CONCURRENT_BACKOFF
from tidelog.client.config.producer import ProducerConfig
from tidelog.client.errors import (
    BrokerNotAvailableError,
    RecordTooLargeError,
    RequestTimedOutError,
    TidelogError,
    TransactionAbortedError,
    exception_for,
)
from tidelog.client.producer.accumulator import NEVER_MS, Accumulator
from tidelog.client.producer.batch import ProducerBatch
from tidelog.client.producer.partition_queue import Outcome, PartitionQueue, classify
from tidelog.client.producer.transaction_state import Identity, TransactionMachine
from tidelog.client.transaction_errors import Meaning, of_records
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId, TopicPartition
from tidelog.proto.calls.transaction_api import InitProducerIdRequest
from tidelog.proto.transport.caller import FrameCaller
from tidelog.proto.transport.frames import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    decode_produce_response,
    encode_produce_request,
)
from tidelog.proto.transport.network import BadFrame, Connection, ConnectionLost, Frame, StreamKind

log = logging.getLogger(__name__)

COALESCE_FROM_FRAMES: Final = 2
COALESCE_MS: Final = 2
COALESCE_BYTES: Final = 131_072
"""With this many bytes in flight to a node, a smaller amount waits this long for more: a message costs a transport some
hundred microseconds at each end, whatever its size."""

PRODUCER_EPOCH_MAX: Final = 0x7FFE
"""The last epoch of a producer id that we use; Kafka reserves the one above it."""
RETIRED_MAX: Final = 100_000
"""Maximum unused partitions whose next sequence is remembered. Beyond it, a new epoch restarts everything."""

Tell = Callable[[], None]
"""Tells a user the outcome; runs after the lock is released."""


@dataclass(slots=True, eq=False)
class _Sent:
    """One frame in flight: its batches, each with the number of its attempt."""

    sent_ms: int
    batches: list[tuple[ProducerBatch, int]]
    topic_ids: dict[str, TopicId]


@dataclass(slots=True, eq=False)
class _Link:
    """The produce stream to one node."""

    connection: Connection
    caller: FrameCaller
    sent: dict[_Sent, None] = field(default_factory=dict)
    last_ms: int = -1 << 62


class Sender:
    """It calls ``on_room`` (without the lock) after buffer memory became free, and ``on_failure`` if a bug ends the
    sender.

    With ``machine`` the producer is transactional: its identity comes from :meth:`take_identity` alone. Events that
    make an idempotent producer take a new identity fail the transaction instead; then the sender calls ``on_spoilt``,
    under the lock.
    """

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: Accumulator,
        lock: threading.Lock,
        cluster: Cluster,
        on_room: Callable[[], None],
        on_failure: Callable[[], None],
        machine: TransactionMachine | None = None,
        on_spoilt: Callable[[], None] = lambda: None,
    ) -> None:
        self._machine = machine
        self._on_spoilt = on_spoilt
        self.on_failure = on_failure
        self._config = config
        self._accumulator = accumulator
        self._lock = lock
        self._cluster = cluster
        self._clock = cluster.clock
        self._metrics = cluster.metrics
        self._on_room = on_room
        self._links: dict[int, _Link] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._identity: tuple[int, int] | None = None
        self._identity_task: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Future[None]] = set()
        self._expiry_ms = -1 << 62
        self.waiting_for_room = 0
        """Callers that wait for buffer memory; while there are any, nothing lingers."""
        cluster.on_change(self._on_leaders)

    # --- lifecycle ----------------------------------------------------------------------------------

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="sender")
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Handle the end of the sender, which is a bug; no caller is left waiting for it."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.critical("the producer's sender failed", exc_info=error)
            self.on_failure()
            self.fail_all(partial(_same, error))
            self._on_room()

    def wake(self) -> None:
        """Look again for something to send. Runs on the loop's thread."""
        self._wake.set()

    async def close(self) -> None:
        """Stop; :meth:`fail_all` handles undelivered batches."""
        for task in (self._task, self._identity_task):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        for link in list(self._links.values()):
            await link.caller.close()
        self._links.clear()
        if self._closing:
            await asyncio.wait(self._closing)

    def fail_all(self, error: Callable[[ProducerBatch], BaseException]) -> None:
        """Give up every batch."""
        with self._lock:
            every = self._accumulator.give_up()
        for batch in every:
            batch.fail(error(batch))

    # --- transactions: the lock is held -----------------------------------------------------------------

    def take_identity(self, identity: Identity) -> None:
        """Send under this identity from now on; nothing sent under the previous one is open any more."""
        self._identity = identity
        self._accumulator.retired.clear()

    def seal_all(self) -> None:
        self._accumulator.seal_all()

    def drop_all(self, cause: TidelogError | None) -> list[Tell]:
        """Give up the batches of a transaction that will be aborted. Returns the calls that tell the users."""
        tell: list[Tell] = []
        for batch in self._accumulator.give_up():
            at = f"{batch.topic}-{batch.partition}"
            error = TransactionAbortedError(f"{at}: {batch.count} records of a transaction that will not be committed")
            error.__cause__ = cause
            error.abortable = cause is not None and cause.abortable
            tell.append(partial(batch.fail, error))
        return tell

    def _spoil(self, error: TidelogError, tell: list[Tell], *, fatal: bool = False) -> None:
        """Fail the transaction, because a record could not be written: none of its records can be committed then."""
        if self._machine is not None and self._machine.failed(error, fatal=fatal):
            tell += self.drop_all(error)
            self._on_spoilt()

    # --- the loop -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            now = self._clock.monotonic_ms()
            look_again = self._step(now)
            if self._wake.is_set():
                await asyncio.sleep(0)
                continue
            if look_again >= NEVER_MS:
                await self._wake.wait()
                continue
            delay_s = max(0, look_again - now) / 1_000
            timer = loop.call_later(delay_s, self._wake.set)
            await self._wake.wait()
            timer.cancel()

    def _step(self, now: int) -> int:
        """Do everything that is due. Returns when to look again."""
        look_again = self._expire(now)
        idempotent = self._config.enable_idempotence
        with self._lock:
            ready = self._accumulator.ready(self._cluster.cache, now, exhausted=self.waiting_for_room > 0)
            if idempotent and self._machine is None and (ready.nodes or ready.without_leader):
                stale = [q for qs in ready.nodes.values() for q in qs if q.needs_epoch and q.producer == self._identity]
                if stale or self._identity is None:
                    self._cut_old_attempts(stale)
                    self._renew_identity()
        look_again = min(look_again, ready.look_again_ms)
        if ready.without_leader:
            for topic in ready.without_leader:
                self._cluster.want(topic)
            self._cluster.request_refresh()
            look_again = min(look_again, now + self._config.retry_backoff_ms + 1)
        if not idempotent or self._identity is not None:
            for node, queues in ready.nodes.items():
                look_again = min(look_again, self._send_to(node, queues, now))
        return min(look_again, self._time_out_requests(now))

    def _send_to(self, node: int, queues: Sequence[PartitionQueue], now: int) -> int:
        """Send to one node as much as may be in flight. Returns when to look again."""
        link = self._link(node)
        if link is None:
            return max(now + 1, self._cluster.usable_at_ms(node))
        cache = self._cluster.cache
        if len(link.sent) >= COALESCE_FROM_FRAMES and now < link.last_ms + COALESCE_MS:
            waiting = sum(queue.pending_bytes for queue in queues)
            if waiting < COALESCE_BYTES:
                return link.last_ms + COALESCE_MS
        while len(link.sent) < self._config.max_in_flight_requests_per_connection:
            with self._lock:
                batches = self._accumulator.drain(node, cache, now, self._config.max_request_size, self._identity)
                if self._machine is not None and batches:
                    self._machine.sent()
            if not batches:
                break
            sent = _Sent(now, [], {})
            entries = []
            for batch in batches:
                topic_id = cache.topic_id(batch.topic)
                assert topic_id is not None, "drained for a leader that the cache knows"
                sent.topic_ids[batch.topic] = topic_id
                data = batch.encode()
                entries.append(ProducePartition(topic_id, batch.partition, data))
                sent.batches.append((batch, batch.attempt))
                self._metrics.bytes_sent += len(data)
                if batch.attempt > 1:
                    self._metrics.record_retries += batch.count
            config = self._config
            request = ProduceRequest(config.acks_number, config.request_timeout_ms, entries, config.transactional_id)
            self._metrics.requests += 1
            link.sent[sent] = None
            link.last_ms = now
            future = link.caller.submit(partial(_encode, request))
            future.add_done_callback(partial(self._on_answer, link, sent))
            if not self._config.acks_number:
                for batch in batches:
                    batch.succeed(-1, -1)
        return NEVER_MS

    def _link(self, node: int) -> _Link | None:
        connection = self._cluster.connection(node)
        link = self._links.get(node)
        if link is not None and connection is not None and link.connection is not connection:
            self._drop(link)  # the node has moved to another address
            link = None
        if connection is None:
            return None
        if link is None:
            caller = FrameCaller(connection, StreamKind.PRODUCE)
            link = self._links[node] = _Link(connection, caller)
        return link

    def _drop(self, link: _Link) -> None:
        task = asyncio.ensure_future(link.caller.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # --- answers ------------------------------------------------------------------------------------

    def _on_answer(self, link: _Link, sent: _Sent, future: asyncio.Future[memoryview]) -> None:
        link.sent.pop(sent, None)
        if future.cancelled():
            return
        error = future.exception()
        results: dict[tuple[TopicId, int], ProducedPartition] = {}
        if error is None:
            try:
                results = {(r.topic_id, r.partition): r for r in decode_produce_response(future.result())[1]}
            except BadFrame as bad:
                error = ConnectionLost(f"{link.connection.address}: {bad}")
                link.caller.reset(str(bad))
        if error is not None:
            if not isinstance(error, ConnectionLost):
                raise error
            self._cluster.failed(link.connection)
        else:
            self._cluster.succeeded(link.connection)
        tell: list[Tell] = []
        now = self._clock.monotonic_ms()
        with self._lock:
            free_before = self._accumulator.memory_free
            for batch, attempt in sent.batches:
                result = results.get((sent.topic_ids[batch.topic], batch.partition))
                if result is None:
                    text = str(error) if error is not None else "the broker's answer lacks the partition"
                    self._settle(batch, attempt, ErrorCode.NETWORK_EXCEPTION, text, None, now, tell)
                else:
                    self._settle(batch, attempt, result.error, result.error_message, result, now, tell)
            freed = self._accumulator.memory_free > free_before
        self._tell(tell)
        if freed:
            self._on_room()
        self._wake.set()

    def _settle(
        self,
        batch: ProducerBatch,
        attempt: int,
        code: ErrorCode,
        message: str,
        result: ProducedPartition | None,
        now: int,
        tell: list[Tell],
    ) -> None:
        """Process one batch's answer; the lock is held."""
        queue = self._accumulator.queue_of(batch)
        if queue is None:
            return
        outcome = classify(code)
        retry_at = now
        if outcome is Outcome.RETRY:
            if batch.failures >= self._config.retries:
                outcome = Outcome.FATAL
            moved = False
            if result is not None and result.current_leader >= 0:
                moved = self._cluster.cache.update_leader(
                    batch.topic, batch.partition, result.current_leader, result.current_leader_epoch
                )
            if not moved and self._cluster.cache.leader_of(batch.topic, batch.partition) == queue.node:
                backoff = self._cluster.retry_backoff
                if code is ErrorCode.CONCURRENT_TRANSACTIONS:
                    backoff = CONCURRENT_BACKOFF
                retry_at = now + backoff.after(batch.failures + 1, self._cluster.rng)
        if code.refreshes_metadata:
            self._cluster.request_refresh()
        applied = self._accumulator.answer(batch, attempt, outcome, retry_at)
        if applied is None or applied in (Outcome.RETRY, Outcome.GAP):
            if applied is not None:
                log.debug("%r will be sent again: %s %s", batch, code.name, message)
            return
        if applied is Outcome.SPLIT:
            self._metrics.batches_split += 1
            return
        self._accumulator.release(batch)
        if applied is Outcome.SUCCESS:
            base_offset, append_time = (-1, -1) if result is None else (result.base_offset, result.log_append_time_ms)
            self._metrics.record_sends += batch.count
            tell.append(partial(batch.succeed, base_offset, append_time))
            return
        text = f"{batch.topic}-{batch.partition}: {message or code.name}"
        failure: TidelogError = RecordTooLargeError(text) if outcome is Outcome.TOO_LARGE else exception_for(code, text)
        self._metrics.record_errors += batch.count
        tell.append(partial(batch.fail, failure))
        self._spoil(failure, tell, fatal=of_records(code) is Meaning.GIVE_UP)

    def _on_leaders(self, changed: set[TopicPartition]) -> None:
        """Handle changed leaders: batches in flight to a former leader are sent to the new one immediately.

        Sequences make that safe; without them, wait for the old leader's answer.
        """
        tell: list[Tell] = []
        with self._lock:
            topics = self._accumulator.topics
            for name, view in self._cluster.cache.topics.items():
                if name in topics:
                    topics[name].partition_count = len(view.partitions)
            idle = self._accumulator.drop_idle(
                self._cluster.cache.topics, self._clock.monotonic_ms() - self._config.metadata_max_idle_ms
            )
            for name, partition in sorted(changed):
                queue = topics[name].queues.get(partition) if name in topics else None
                if queue is None:
                    continue
                queue.retry_at_ms = -1 << 62
                leader = self._cluster.cache.leader_of(name, partition)
                if self._config.enable_idempotence and queue.in_flight and leader >= 0 and leader != queue.node:
                    for batch in queue.lose(queue.retry_at_ms):
                        self._accumulator.release(batch)
                    self._accumulator.requeued(queue)
            if len(self._accumulator.retired) > RETIRED_MAX and self._machine is None:
                self._renew_identity()
        for name in idle:
            self._cluster.unwant(name)
        self._tell(tell)
        self._wake.set()

    # --- time ---------------------------------------------------------------------------------------

    def _expire(self, now: int) -> int:
        """Fail batches after their delivery timeout. Returns when the next timeout is due."""
        if now < self._expiry_ms:
            return self._expiry_ms
        timeout_ms = self._config.delivery_timeout_ms
        tell: list[Tell] = []
        with self._lock:
            gone, in_flight = self._accumulator.expire(now - timeout_ms)
            for batch in (*gone, *in_flight):
                error = RequestTimedOutError(
                    f"{batch.topic}-{batch.partition}: {batch.count} records not acknowledged within "
                    f"delivery_timeout_ms = {timeout_ms}"
                    + ("; they may have been written" if batch.attempt else "; they were never sent")
                    + self._trouble(batch)
                )
                self._metrics.record_errors += batch.count
                tell.append(partial(batch.fail, error))
                self._spoil(error, tell)
            oldest = self._accumulator.next_expiry_ms()
            # Later batches expire later, so there is no need to look before this.
            self._expiry_ms = min(oldest, now + timeout_ms) + 1
        if tell:
            self._tell(tell)
            self._on_room()
        return self._expiry_ms if oldest < NEVER_MS else NEVER_MS

    def _trouble(self, batch: ProducerBatch) -> str:
        """Return what holds a batch up, as far as metadata shows; in brackets, or empty."""
        cluster = self._cluster
        code, message = cluster.cache.errors.get(batch.topic, (ErrorCode.NONE, ""))
        if cluster.failure is not None:
            return f" ({cluster.failure})"
        if code is not ErrorCode.NONE:
            return f" ({message or code.name})"
        return " (it has no leader)" if cluster.cache.leader_of(batch.topic, batch.partition) < 0 else ""

    def _time_out_requests(self, now: int) -> int:
        """Close streams whose oldest frame has waited too long for its answer; after a long wait, look for a new
        leader."""
        limit = self._config.request_timeout_ms
        look_again = NEVER_MS
        for link in self._links.values():
            if not link.sent:
                continue
            since = next(iter(link.sent)).sent_ms
            if since + limit <= now:
                link.caller.reset(f"no answer within request_timeout_ms = {limit}")
            else:
                look_again = min(look_again, since + limit, self._cluster.waited(link.connection, since))
        return look_again

    # --- identity -----------------------------------------------------------------------------------

    def _cut_old_attempts(self, queues: Sequence[PartitionQueue]) -> None:
        """Close, before batches are sent under a new epoch, streams on which old attempts may still be in flight to a
        former leader. If that one leads again, it would write them under the old epoch, and then once more under the
        new one."""
        names = {(q.topic, q.partition) for q in queues}
        for link in self._links.values():
            if any((b.topic, b.partition) in names for sent in link.sent for b, _ in sent.batches):
                link.caller.reset("old attempts are abandoned before a new producer epoch")

    def _renew_identity(self) -> None:
        """Take the next epoch of our producer id (KIP-360): leaders then refuse batches of the older epoch that are
        still in flight. Ask for an id if there is none, or its epochs are used up. The lock is held."""
        if self._identity is not None and self._identity[1] < PRODUCER_EPOCH_MAX:
            self._metrics.epoch_bumps += 1
            self._identity = (self._identity[0], self._identity[1] + 1)
            self._accumulator.retired.clear()
            return
        if self._identity_task is None or self._identity_task.done():
            self._identity_task = asyncio.get_running_loop().create_task(self._ask_identity(), name="producer id")

    async def _ask_identity(self) -> None:
        request = InitProducerIdRequest()
        failures = 0
        while True:
            try:
                answer = await self._cluster.ask_anyone(request)
                if answer.error is ErrorCode.NONE:
                    break
                fault: TidelogError = exception_for(answer.error, f"producer id: {answer.error_message}")
                if not answer.error.retriable and answer.error is not ErrorCode.BROKER_NOT_AVAILABLE:
                    log.error("cannot get a producer id: %s", fault)
                    self.fail_all(partial(_same, fault))
                    self._on_room()
            except BrokerNotAvailableError as error:
                fault = error
            failures += 1
            log.debug("no producer id yet: %s", fault)
            await asyncio.sleep(self._cluster.retry_backoff.after(failures, self._cluster.rng) / 1_000)
        if self._identity is not None:
            self._metrics.epoch_bumps += 1
        self._identity = (answer.producer_id, answer.producer_epoch)
        with self._lock:
            self._accumulator.retired.clear()
        self._wake.set()

    def _tell(self, tell: Sequence[Tell]) -> None:
        for told in tell:
            told()


def _same(error: BaseException, _batch: ProducerBatch) -> BaseException:
    return error


def _encode(request: ProduceRequest, correlation: int) -> Frame:
    return encode_produce_request(correlation, request)
