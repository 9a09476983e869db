"""``tidelog.aio.Workers``: like :class:`tidelog.Workers`, with a coroutine function and tasks. The other form, with
threads, is generated from this one (``tools/dev/blocking_forms.py``), so both lock what threads share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from tidelog.client.config.trace_context import Tracer
from tidelog.client.consumer.consumer import AsyncConsumer
from tidelog.client.errors import (
    CommitFailedError,
    RebalanceInProgressError,
    RetriableCommitFailedError,
    TidelogError,
    WakeupError,
)
from tidelog.client.producer.producer import AsyncProducer
from tidelog.client.record import ConsumerRecord
from tidelog.client.workers.board import OrderedBy, Work
from tidelog.client.workers.handling import Failure
from tidelog.client.workers.owning import Owning, is_member
from tidelog.client.workers.plan import CLOSE_S, COMMIT_INTERVAL_MS, LOOK_S, POLL_S, Plan, WorkersCounts, log
from tidelog.client.workers.retry import RetryPolicy
from tidelog.client.workers.seen_ids import Deduplicate
from tidelog.client.workers.time_to_live import TimeToLive
from tidelog.model.clock import Clock
from tidelog.model.ids import TopicPartition
from tidelog.proto.transport.network import Network


class AsyncWorkers:
    """As :class:`tidelog.Workers`, for a ``handler`` that is a coroutine function; ``tidelog.aio.Workers``.

    ``workers`` tasks of the running loop await it.
    """

    def __init__(
        self,
        handler: Callable[[ConsumerRecord], Awaitable[Any]],
        bootstrap_servers: str | Sequence[str],
        *,
        topics: Sequence[str] | str,
        group_id: str,
        workers: int = 8,
        ordered_by: OrderedBy = "key",
        retry: RetryPolicy | None = None,
        dead_letters: str | None = None,
        deduplicate: Deduplicate | None = None,
        time_to_live: TimeToLive | None = None,
        tracer: Tracer | None = None,
        in_flight_max: int = 1_000,
        drain_timeout: float = 30.0,
        consumer_settings: dict[str, Any] | None = None,
        producer_settings: dict[str, Any] | None = None,
        _network: Network | None = None,
        _clock: Clock | None = None,
        _rng: random.Random | None = None,
    ) -> None:
        self._plan = Plan(
            handler, topics, group_id, workers, ordered_by, retry, dead_letters, deduplicate, time_to_live,
            tracer, in_flight_max, drain_timeout, consumer_settings, producer_settings, _clock, _rng,
        )  # fmt: skip
        self._bootstrap = bootstrap_servers
        self._inside: dict[str, Any] = {"_network": _network, "_clock": _clock, "_rng": _rng}
        self._changed = asyncio.Condition()
        """Guards the plan's board and counts, and what is below."""
        self._closed = False
        self._consumer: AsyncConsumer | None = None
        self._producer: AsyncProducer | None = None
        self._stopping = asyncio.Event()
        self._full = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def counts(self) -> WorkersCounts:
        return self._plan.counts

    def stop(self) -> None:
        """Finish the records in progress, commit, then let :meth:`run` return."""
        self._stopping.set()
        self._wake()

    async def run(self) -> WorkersCounts:
        """Run until :meth:`stop` or an error: the handler's, or a cluster error that a retry does not fix."""
        plan = self._plan
        try:
            async with self._new_consumer() as self._consumer:
                self._consumer.subscribe(plan.topics, listener=Owning(self._own, self._give_back, self._disown))
                if plan.writes:
                    self._producer = self._new_producer()
                    await self._producer.start()
                    await self._producer.init_transactions()
                self._start_workers(self._work)
                await self._read()
                await self._consumer.close(plan.drain_s + 30.0)
        finally:
            async with self._changed:
                self._closed = True
                plan.board.close()
                self._changed.notify_all()
            await self._stop_workers()
            if self._producer is not None:
                await self._producer.close(CLOSE_S)
        if plan.error is not None:
            raise plan.error
        return plan.counts

    # --- what differs between the forms ---------------------------------------------------------------

    def _new_consumer(self) -> AsyncConsumer:
        return AsyncConsumer(self._bootstrap, **self._inside, **self._plan.consumer_settings)

    def _new_producer(self) -> AsyncProducer:
        return AsyncProducer(self._bootstrap, **self._inside, **self._plan.producer_settings)

    def _start_workers(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tasks = [asyncio.create_task(work(), name=f"worker-{n}") for n in range(self._plan.workers)]

    async def _stop_workers(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _call(self, record: ConsumerRecord) -> Failure | None:
        return await self._plan.handling.awaited(record)

    async def _wait(self, seconds: float | None) -> None:
        """Wait for a change, while ``_changed`` is held."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _pause(self, seconds: float) -> None:
        """Wait, unless the end is near."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    # --- reading --------------------------------------------------------------------------------------

    async def _read(self) -> None:
        consumer, plan = self._consumer, self._plan
        assert consumer is not None
        commit_ms = plan.clock.monotonic_ms() + COMMIT_INTERVAL_MS
        while not self._stopping.is_set() and plan.error is None:
            async with self._changed:
                room, hold, resume = plan.flow(consumer.assignment(), consumer.paused())
                self._full = not room
            consumer.pause(*hold)
            consumer.resume(*resume)
            try:
                records = await consumer.poll(POLL_S, max_records=max(1, room))
            except WakeupError:
                records = []
            async with self._changed:
                plan.admit(records, consumer._core.handed_out)
                self._changed.notify_all()
            await self._bury()
            if plan.clock.monotonic_ms() >= commit_ms:
                await self._commit(None)
                commit_ms = plan.clock.monotonic_ms() + COMMIT_INTERVAL_MS
        async with self._changed:
            plan.board.close()

    async def _commit(self, partitions: Sequence[TopicPartition] | None) -> None:
        async with self._changed:
            offsets = self._plan.news(partitions)
        if not offsets or self._consumer is None:
            return
        try:
            await self._consumer.commit(offsets)
        except (CommitFailedError, RebalanceInProgressError, RetriableCommitFailedError) as error:
            log.info("offsets of %d partitions are not committed: %s", len(offsets), error)
            return
        async with self._changed:
            self._plan.board.committed(offsets)

    async def _bury(self) -> None:
        """Write the dead letters of the records that were given up."""
        plan, consumer = self._plan, self._consumer
        if consumer is None:
            return
        async with self._changed:
            member = consumer.group_metadata()
            if self._producer is not None and not is_member(member):
                return
            letters = plan.letters()  # without a topic for them, this ends the program
        if letters is None or self._producer is None:
            return
        try:
            async with self._producer.transaction() as producer:
                for letter in letters.arguments:
                    await producer.send(**letter)
                await producer.send_offsets_to_transaction(letters.offsets, member)
        except TidelogError as error:
            async with self._changed:
                wait_s = plan.aborted(error)
            await self._pause(wait_s)
            return
        async with self._changed:
            plan.buried(letters)
            self._changed.notify_all()

    async def _give_back(self, partitions: Sequence[TopicPartition]) -> None:
        """Let work in progress end, and commit, before these partitions go to another member."""
        plan = self._plan
        async with self._changed:
            deadline_ms = plan.stop(partitions)
        while True:
            await self._bury()
            async with self._changed:
                if plan.is_drained(partitions, deadline_ms):
                    break
                await self._wait(LOOK_S)
        await self._commit(partitions)
        await self._disown(partitions)

    async def _disown(self, partitions: Sequence[TopicPartition]) -> None:
        async with self._changed:
            self._plan.disown(partitions)

    async def _own(self, partitions: Sequence[TopicPartition]) -> None:
        consumer, plan = self._consumer, self._plan
        if consumer is None or not partitions:
            return
        committed = await consumer.committed(partitions)
        known = [at for at, given in committed.items() if given is not None]
        first = await consumer.beginning_offsets(known) if plan.deduplicate is not None and known else {}
        async with self._changed:
            places = plan.own(committed, first)
        for at, offset in places.items():
            consumer.seek(at, offset)

    # --- the workers ----------------------------------------------------------------------------------

    async def _work(self) -> None:
        while (work := await self._next()) is not None:
            failure = self._plan.expired(work) or await self._call(work.record)
            async with self._changed:
                if not self._plan.done(work, failure):
                    self._wake()
                elif self._full and self._plan.board.room():
                    self._full = False
                    self._wake()
                self._changed.notify_all()

    async def _next(self) -> Work | None:
        async with self._changed:
            while not self._closed:
                now_ms = self._plan.clock.monotonic_ms()
                work = self._plan.board.take(now_ms)
                if work is not None:
                    return work
                due_ms = self._plan.board.due_ms()
                await self._wait(None if due_ms is None else max(0.0, due_ms - now_ms) / 1_000)
            return None

    def _wake(self) -> None:
        if self._consumer is not None:
            self._consumer.wakeup()
