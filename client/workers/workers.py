"""Reads as one member of a group and works on its records with several threads or processes."""

from __future__ import annotations

import logging
import multiprocessing
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from tidelog.client.background import BackgroundLoop
from tidelog.client.consumer.blocking import Consumer
from tidelog.client.errors import (
    CommitFailedError,
    RebalanceInProgressError,
    RetriableCommitFailedError,
    TidelogError,
    WakeupError,
)
from tidelog.client.group_types import ConsumerRebalanceListener
from tidelog.client.producer.blocking import Producer
from tidelog.client.record import ConsumerRecord
from tidelog.client.workers.board import OrderedBy, Work
from tidelog.client.workers.handling import Failure, Handler
from tidelog.client.workers.plan import COMMIT_INTERVAL_MS, LOOK_S, POLL_S, Plan, WorkersCounts
from tidelog.client.workers.retry import RetryPolicy
from tidelog.client.workers.seen_ids import Deduplicate
from tidelog.model.clock import Clock
from tidelog.model.ids import TopicPartition
from tidelog.proto.transport.network import Network

log = logging.getLogger(__name__)


class Workers:
    """Reads ``topics`` as a member of ``group_id`` and calls ``handler(record)``, with ``workers`` of them at a time.

        def bill(record):
            ...

        Workers(bill, "localhost:9092", topics=["orders"], group_id="billing", workers=8,
                retry=RetryPolicy(attempts=3), dead_letters="dlq.billing").run()

    Records of one key are worked on one after the other, in order; others side by side (``ordered_by``: ``"key"``,
    ``"partition"`` or ``"none"``). With ``processes`` the handler runs in processes instead of threads, and must be a
    function of a module. At most ``in_flight_max`` records are in memory.

    What is committed says which records are finished, also those above an unfinished one, so a member that takes over
    does not repeat them. Each record is handled at least once: those in hand at a crash come again. Before partitions
    go to another member, work in hand may take ``drain_timeout`` seconds to end.

    A handler that raises gets the record again as ``retry`` says (default: once). What it does not mend goes to the
    topic ``dead_letters``, in one transaction with the commit that says so: readers of committed records find each
    once. Without that topic, ``run()`` raises the handler's error, and the record comes again at the next run.
    """

    def __init__(
        self,
        handler: Handler,
        bootstrap_servers: str | Sequence[str],
        *,
        topics: Sequence[str] | str,
        group_id: str,
        workers: int = 8,
        ordered_by: OrderedBy = "key",
        processes: bool = False,
        retry: RetryPolicy | None = None,
        dead_letters: str | None = None,
        deduplicate: Deduplicate | None = None,
        in_flight_max: int = 1_000,
        drain_timeout: float = 30.0,
        consumer_settings: dict[str, Any] | None = None,
        producer_settings: dict[str, Any] | None = None,
        _network: Network | None = None,
        _background: BackgroundLoop | None = None,
        _clock: Clock | None = None,
        _rng: random.Random | None = None,
    ) -> None:
        self._plan = Plan(
            handler, topics, group_id, workers, ordered_by, retry, dead_letters, deduplicate, in_flight_max,
            drain_timeout, consumer_settings, producer_settings, _clock, _rng,
        )  # fmt: skip
        self._bootstrap = bootstrap_servers
        self._inside: dict[str, Any] = {
            "_network": _network, "_background": _background, "_clock": _clock, "_rng": _rng,
        }  # fmt: skip
        self._processes = processes
        self._changed = threading.Condition()
        """Guards the plan's board and counts, and what is below."""
        self._pool: ProcessPoolExecutor | None = None
        self._closed = False
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._stopping = threading.Event()
        self._full = False

    @property
    def counts(self) -> WorkersCounts:
        return self._plan.counts

    def stop(self) -> None:
        """Finish the records in progress, commit, then let :meth:`run` return. Call it from any thread or signal
        handler."""
        self._stopping.set()
        self._wake()

    def run(self) -> WorkersCounts:
        """Run until :meth:`stop` or an error: the handler's, or a cluster error that a retry does not fix."""
        plan = self._plan
        threads = [threading.Thread(target=self._work, name=f"worker-{n}", daemon=True) for n in range(plan.workers)]
        self._pool = self._new_pool()
        try:
            with Consumer(self._bootstrap, **self._inside, **plan.consumer_settings) as self._consumer:
                self._consumer.subscribe(plan.topics, listener=_Owning(self))
                if plan.dead_letters is not None:
                    self._producer = Producer(self._bootstrap, **self._inside, **plan.producer_settings)
                    self._producer.init_transactions()
                for thread in threads:
                    thread.start()
                self._read(self._consumer)
                self._consumer.close(plan.drain_s + 30.0)
        finally:
            with self._changed:
                self._closed = True
                plan.board.close()
                self._changed.notify_all()
            if self._producer is not None:
                self._producer.close()
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
        if plan.error is not None:
            raise plan.error
        return plan.counts

    # --- the thread that polls ------------------------------------------------------------------------

    def _read(self, consumer: Consumer) -> None:
        plan = self._plan
        commit_ms = plan.clock.monotonic_ms() + COMMIT_INTERVAL_MS
        while not self._stopping.is_set() and plan.error is None:
            with self._changed:
                room, hold, resume = plan.flow(consumer.assignment(), consumer.paused())
                self._full = not room
            consumer.pause(*hold)
            consumer.resume(*resume)
            try:
                records = consumer.poll(POLL_S, max_records=max(1, room))
            except WakeupError:
                records = []
            with self._changed:
                plan.admit(records)
                self._changed.notify_all()
            self._bury()
            if plan.clock.monotonic_ms() >= commit_ms:
                self._commit(None)
                commit_ms = plan.clock.monotonic_ms() + COMMIT_INTERVAL_MS
        with self._changed:
            plan.board.close()

    def _commit(self, partitions: Sequence[TopicPartition] | None) -> None:
        with self._changed:
            offsets = self._plan.news(partitions)
        if not offsets or self._consumer is None:
            return
        try:
            self._consumer.commit(offsets)
        except (CommitFailedError, RebalanceInProgressError, RetriableCommitFailedError) as error:
            log.info("offsets of %d partitions are not committed: %s", len(offsets), error)
            return
        with self._changed:
            self._plan.board.committed(offsets)

    def _bury(self) -> None:
        """Write the dead letters of the records that were given up."""
        plan = self._plan
        with self._changed:
            letters = plan.letters()
        if letters is None or self._producer is None or self._consumer is None or plan.dead_letters is None:
            return
        try:
            with self._producer.transaction() as producer:
                for letter in letters.arguments:
                    producer.send(plan.dead_letters, **letter)
                producer.send_offsets_to_transaction(letters.offsets, self._consumer.group_metadata())
        except TidelogError as error:
            with self._changed:
                wait_s = plan.aborted(error)
            self._stopping.wait(wait_s)
            return
        with self._changed:
            plan.buried(letters)
            self._changed.notify_all()

    def _give_back(self, partitions: Sequence[TopicPartition]) -> None:
        """Let work in progress end, and commit, before these partitions go to another member."""
        plan = self._plan
        with self._changed:
            deadline_ms = plan.stop(partitions)
        while True:
            self._bury()
            with self._changed:
                if plan.is_drained(partitions, deadline_ms):
                    break
                self._changed.wait(LOOK_S)
        self._commit(partitions)
        self._disown(partitions)

    def _disown(self, partitions: Sequence[TopicPartition]) -> None:
        with self._changed:
            self._plan.disown(partitions)

    def _own(self, partitions: Sequence[TopicPartition]) -> None:
        consumer, plan = self._consumer, self._plan
        if consumer is None or not partitions:
            return
        committed = consumer.committed(partitions)
        known = [at for at, given in committed.items() if given is not None]
        first = consumer.beginning_offsets(known) if plan.deduplicate is not None and known else {}
        with self._changed:
            places = plan.own(committed, first)
        for at, offset in places.items():
            consumer.seek(at, offset)

    # --- the workers ----------------------------------------------------------------------------------

    def _work(self) -> None:
        while (work := self._next()) is not None:
            failure = self._call(work.record)
            with self._changed:
                if not self._plan.done(work, failure):
                    self._wake()
                elif self._full and self._plan.board.room():
                    self._full = False
                    self._wake()
                self._changed.notify_all()

    def _next(self) -> Work | None:
        with self._changed:
            while not self._closed:
                now_ms = self._plan.clock.monotonic_ms()
                work = self._plan.board.take(now_ms)
                if work is not None:
                    return work
                due_ms = self._plan.board.due_ms()
                self._changed.wait(None if due_ms is None else max(0.0, due_ms - now_ms) / 1_000)
            return None

    def _call(self, record: ConsumerRecord) -> Failure | None:
        pool = self._pool
        if pool is None:
            return self._plan.handling.here(record)
        try:
            return pool.submit(self._plan.handling.elsewhere, record).result()
        except BrokenProcessPool as error:
            with self._changed:
                if self._pool is pool and not self._closed:
                    self._pool = self._new_pool()
            return Failure("attempts", "BrokenProcessPool", f"a worker process died: {error}", "", error)
        except Exception as error:  # the handler or a record cannot be sent to another process
            return Failure("rejected", type(error).__qualname__, str(error), "", error)

    def _new_pool(self) -> ProcessPoolExecutor | None:
        if not self._processes:
            return None
        return ProcessPoolExecutor(self._plan.workers, mp_context=multiprocessing.get_context("spawn"))

    def _wake(self) -> None:
        if self._consumer is not None:
            self._consumer.wakeup()


class _Owning(ConsumerRebalanceListener):
    """Passes on what the group says about partitions."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self._workers._own(partitions)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self._workers._give_back(partitions)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self._workers._disown(partitions)
