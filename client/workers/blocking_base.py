"""What is written by hand of ``tidelog.Workers``: how it is made, its threads and processes. The rest is generated
(``tools/dev/blocking_forms.py``)."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from tidelog.client.background import BackgroundLoop
from tidelog.client.config.trace_context import Tracer
from tidelog.client.consumer.blocking import Consumer
from tidelog.client.producer.blocking import Producer
from tidelog.client.record import ConsumerRecord
from tidelog.client.workers.board import OrderedBy
from tidelog.client.workers.handling import Failure, Handler
from tidelog.client.workers.plan import Plan
from tidelog.client.workers.retry import RetryPolicy
from tidelog.client.workers.seen_ids import Deduplicate
from tidelog.client.workers.time_to_live import TimeToLive
from tidelog.model.clock import Clock
from tidelog.proto.transport.network import Network


class BlockingWorkers:
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
    ``time_to_live`` says when a record is not handled any more. ``tracer`` keeps what becomes of the records.
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
        time_to_live: TimeToLive | None = None,
        tracer: Tracer | None = None,
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
            handler, topics, group_id, workers, ordered_by, retry, dead_letters, deduplicate, time_to_live,
            tracer, in_flight_max, drain_timeout, consumer_settings, producer_settings, _clock, _rng,
        )  # fmt: skip
        self._bootstrap = bootstrap_servers
        self._inside: dict[str, Any] = {
            "_network": _network, "_background": _background, "_clock": _clock, "_rng": _rng,
        }  # fmt: skip
        if processes:
            pickle.dumps(tracer)  # what cannot get there would make a dead letter of each record
        self._processes = processes
        self._changed = threading.Condition()
        """Guards the plan's board and counts, and what is below."""
        self._pool: ProcessPoolExecutor | None = None
        self._closed = False
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._stopping = threading.Event()
        self._full = False

    def stop(self) -> None:
        """Finish the records in progress, commit, then let ``run`` return. Call it from any thread or signal
        handler."""
        self._stopping.set()
        if self._consumer is not None:
            self._consumer.wakeup()

    def _new_consumer(self) -> Consumer:
        return Consumer(self._bootstrap, **self._inside, **self._plan.consumer_settings)

    def _new_producer(self) -> Producer:
        return Producer(self._bootstrap, **self._inside, **self._plan.producer_settings)

    def _start_workers(self, work: Callable[[], None]) -> None:
        self._pool = self._new_pool()
        for n in range(self._plan.workers):
            threading.Thread(target=work, name=f"worker-{n}", daemon=True).start()

    def _stop_workers(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _wait(self, seconds: float | None) -> None:
        self._changed.wait(seconds)

    def _pause(self, seconds: float) -> None:
        self._stopping.wait(seconds)

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
