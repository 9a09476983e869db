"""``tidelog.aio.Workers``: like :class:`tidelog.Workers`, with a coroutine function and tasks."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tidelog.client.consumer.consumer import AsyncConsumer
from tidelog.client.errors import (
    CommitFailedError,
    RebalanceInProgressError,
    RetriableCommitFailedError,
    TidelogError,
    WakeupError,
)
from tidelog.client.group_types import ConsumerRebalanceListener
from tidelog.client.producer.producer import AsyncProducer
from tidelog.client.record import ConsumerRecord
from tidelog.client.workers.board import OrderedBy, Work
from tidelog.client.workers.handling import Failure
from tidelog.client.workers.plan import COMMIT_INTERVAL_MS, LOOK_S, POLL_S, Plan, WorkersCounts
from tidelog.client.workers.retry import RetryPolicy
from tidelog.client.workers.seen_ids import Deduplicate
from tidelog.model.clock import Clock
from tidelog.model.ids import TopicPartition
from tidelog.proto.transport.network import Network

log = logging.getLogger(__name__)


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
        in_flight_max: int = 1_000,
        drain_timeout: float = 30.0,
        consumer_settings: dict[str, Any] | None = None,
        producer_settings: dict[str, Any] | None = None,
        _network: Network | None = None,
        _clock: Clock | None = None,
        _rng: random.Random | None = None,
    ) -> None:
        self._plan = Plan(
            handler, topics, group_id, workers, ordered_by, retry, dead_letters, deduplicate, in_flight_max,
            drain_timeout, consumer_settings, producer_settings, _clock, _rng,
        )  # fmt: skip
        self._bootstrap = bootstrap_servers
        self._inside: dict[str, Any] = {"_network": _network, "_clock": _clock, "_rng": _rng}
        self._changed = asyncio.Event()
        """Set, and replaced, when the board has changed."""
        self._consumer: AsyncConsumer | None = None
        self._producer: AsyncProducer | None = None
        self._stopping = False
        self._full = False

    @property
    def counts(self) -> WorkersCounts:
        return self._plan.counts

    def stop(self) -> None:
        """Finish the records in progress, commit, then let :meth:`run` return."""
        self._stopping = True
        self._wake()

    async def run(self) -> WorkersCounts:
        """Run until :meth:`stop` or an error: the handler's, or a cluster error that a retry does not fix."""
        plan = self._plan
        tasks: list[asyncio.Task[None]] = []
        try:
            async with AsyncConsumer(self._bootstrap, **self._inside, **plan.consumer_settings) as self._consumer:
                self._consumer.subscribe(plan.topics, listener=_Owning(self))
                if plan.dead_letters is not None:
                    self._producer = AsyncProducer(self._bootstrap, **self._inside, **plan.producer_settings)
                    await self._producer.start()
                    await self._producer.init_transactions()
                tasks += [asyncio.create_task(self._work(), name=f"worker-{n}") for n in range(plan.workers)]
                await self._read(self._consumer)
                await self._consumer.close(plan.drain_s + 30.0)
        finally:
            plan.board.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._producer is not None:
                await self._producer.close()
        if plan.error is not None:
            raise plan.error
        return plan.counts

    # --- the task that polls --------------------------------------------------------------------------

    async def _read(self, consumer: AsyncConsumer) -> None:
        plan = self._plan
        commit_ms = plan.clock.monotonic_ms() + COMMIT_INTERVAL_MS
        while not self._stopping and plan.error is None:
            room, hold, resume = plan.flow(consumer.assignment(), consumer.paused())
            self._full = not room
            consumer.pause(*hold)
            consumer.resume(*resume)
            try:
                records = await consumer.poll(POLL_S, max_records=max(1, room))
            except WakeupError:
                records = []
            plan.admit(records)
            self._tell()
            await self._bury()
            if plan.clock.monotonic_ms() >= commit_ms:
                await self._commit(None)
                commit_ms = plan.clock.monotonic_ms() + COMMIT_INTERVAL_MS
        plan.board.close()

    async def _commit(self, partitions: Sequence[TopicPartition] | None) -> None:
        offsets = self._plan.news(partitions)
        if not offsets or self._consumer is None:
            return
        try:
            await self._consumer.commit(offsets)
        except (CommitFailedError, RebalanceInProgressError, RetriableCommitFailedError) as error:
            log.info("offsets of %d partitions are not committed: %s", len(offsets), error)
        else:
            self._plan.board.committed(offsets)

    async def _bury(self) -> None:
        plan = self._plan
        letters = plan.letters()
        if letters is None or self._producer is None or self._consumer is None or plan.dead_letters is None:
            return
        try:
            async with self._producer.transaction() as producer:
                for letter in letters.arguments:
                    await producer.send(plan.dead_letters, **letter)
                await producer.send_offsets_to_transaction(letters.offsets, self._consumer.group_metadata())
        except TidelogError as error:
            await asyncio.sleep(plan.aborted(error))
        else:
            plan.buried(letters)
            self._tell()

    async def _give_back(self, partitions: Sequence[TopicPartition]) -> None:
        plan = self._plan
        deadline_ms = plan.stop(partitions)
        while True:
            await self._bury()
            if plan.is_drained(partitions, deadline_ms):
                break
            changed = self._changed
            try:
                await asyncio.wait_for(changed.wait(), LOOK_S)
            except TimeoutError:
                pass
        await self._commit(partitions)
        plan.disown(partitions)

    async def _own(self, partitions: Sequence[TopicPartition]) -> None:
        consumer, plan = self._consumer, self._plan
        if consumer is None or not partitions:
            return
        committed = await consumer.committed(partitions)
        known = [at for at, given in committed.items() if given is not None]
        first = await consumer.beginning_offsets(known) if plan.deduplicate is not None and known else {}
        for at, offset in plan.own(committed, first).items():
            consumer.seek(at, offset)

    # --- the workers ----------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            work = await self._next()
            failure = await self._plan.handling.awaited(work.record)
            self._report(work, failure)

    def _report(self, work: Work, failure: Failure | None) -> None:
        if not self._plan.done(work, failure):
            self._wake()
        elif self._full and self._plan.board.room():
            self._full = False
            self._wake()
        self._tell()

    async def _next(self) -> Work:
        while True:
            now_ms = self._plan.clock.monotonic_ms()
            work = self._plan.board.take(now_ms)
            if work is not None:
                return work
            due_ms, changed = self._plan.board.due_ms(), self._changed
            try:
                await asyncio.wait_for(changed.wait(), None if due_ms is None else max(0, due_ms - now_ms) / 1_000)
            except TimeoutError:
                pass

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _wake(self) -> None:
        if self._consumer is not None:
            self._consumer.wakeup()


class _Owning(ConsumerRebalanceListener):
    def __init__(self, workers: AsyncWorkers) -> None:
        self._workers = workers

    async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        await self._workers._own(partitions)

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        await self._workers._give_back(partitions)

    async def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self._workers._plan.disown(partitions)
