"""Consume, transform, produce: a program reads topics as a group member, turns each record into new ones and writes
those. Each input takes effect exactly once (KIP-447).

One poll is one transaction: its outputs and its offsets become visible together. After an abort, the records are
delivered again; after a crash, the group continues from the last commit.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from tidelog.client.background import BackgroundLoop
from tidelog.client.cluster.backoff import Backoff
from tidelog.client.config.interceptors import ProducerRecord
from tidelog.client.config.trace_context import Tracer, handling, traced
from tidelog.client.consumer.blocking import Consumer
from tidelog.client.consumer.consumer import AsyncConsumer
from tidelog.client.errors import ConfigError, TidelogError
from tidelog.client.producer.blocking import Producer
from tidelog.client.producer.producer import AsyncProducer
from tidelog.client.record import ConsumerRecord
from tidelog.model.clock import Clock
from tidelog.proto.transport.network import Network

ABORTS_MAX: Final = 10
"""After this many aborts in a row, the last one's error ends the program."""
POLL_S: Final = 0.5
"""How long a poll waits; :meth:`stop` takes effect within this time."""
_BACKOFF: Final = Backoff(20, 1_000)
_FIXED: Final = {"enable_auto_commit": False, "isolation_level": "read_committed"}

Outputs = ProducerRecord | Iterable[ProducerRecord] | None
"""Nothing, one record to be written, or several."""

F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger(__name__)


@dataclass(slots=True)
class TransformCounts:
    """The progress so far, without records of aborted transactions."""

    read: int = 0
    written: int = 0
    commits: int = 0
    aborts: int = 0


class _Plan:
    """The common part of both forms: settings of both clients, and reactions to errors."""

    def __init__(
        self,
        function: Callable[..., Any],
        topics: Sequence[str] | str,
        group_id: str,
        transactional_id: str | None,
        consumer_settings: dict[str, Any] | None,
        producer_settings: dict[str, Any] | None,
        tracer: Tracer | None,
        rng: random.Random | None,
    ) -> None:
        self.rng: Final = rng or random.Random()
        self.function: Final = function
        self.topics: Final = [topics] if isinstance(topics, str) else list(topics)
        self.counts: Final = TransformCounts()
        given = consumer_settings or {}
        for name in _FIXED.keys() & {key.replace(".", "_") for key in given}:
            raise ConfigError(f"{name}: leave it out; Transform needs {_FIXED[name]}")
        self.consumer_settings: Final = {"auto_offset_reset": "earliest", **given, **_FIXED, "group_id": group_id}
        name = transactional_id or f"{group_id}-{given.get('group_instance_id') or f'{self.rng.getrandbits(64):016x}'}"
        self.producer_settings: Final = {**traced(producer_settings, tracer), "transactional_id": name}
        self.tracer: Final = tracer
        self.group_id: Final = group_id
        self._aborted_in_a_row = 0

    def committed(self, read: int, written: int) -> None:
        self._aborted_in_a_row = 0
        self.counts.read += read
        self.counts.written += written
        self.counts.commits += 1

    def aborted(self, error: TidelogError) -> float:
        """Return seconds to wait before the records are delivered again. Raises ``error`` if that is of no use."""
        self.counts.aborts += 1
        self._aborted_in_a_row += 1
        if not error.abortable or self._aborted_in_a_row >= ABORTS_MAX:
            raise error
        log.info("a transaction was aborted; trying again: %s", error)
        return _BACKOFF.after(self._aborted_in_a_row, self.rng) / 1_000


def _records(outputs: ProducerRecord | Iterable[ProducerRecord] | None) -> Iterator[ProducerRecord]:
    for output in () if outputs is None else (outputs,) if isinstance(outputs, ProducerRecord) else outputs:
        if not isinstance(output, ProducerRecord):
            raise TypeError(f"expected None, a ProducerRecord or several from the function, found {output!r}")
        yield output


def _arguments(record: ProducerRecord) -> dict[str, Any]:
    return {
        "headers": record.headers or None,
        "partition": record.partition,
        "timestamp_ms": record.timestamp,
    }


class _Transform(Generic[F]):
    """What both forms share but for the waiting."""

    def __init__(
        self,
        function: F,
        bootstrap_servers: str | Sequence[str],
        *,
        topics: Sequence[str] | str,
        group_id: str,
        transactional_id: str | None = None,
        consumer_settings: dict[str, Any] | None = None,
        producer_settings: dict[str, Any] | None = None,
        tracer: Tracer | None = None,
        _network: Network | None = None,
        _background: BackgroundLoop | None = None,
        _clock: Clock | None = None,
        _rng: random.Random | None = None,
    ) -> None:
        self._plan = _Plan(
            function, topics, group_id, transactional_id, consumer_settings, producer_settings, tracer, _rng
        )
        self._bootstrap = bootstrap_servers
        inside = {"_network": _network, "_background": _background, "_clock": _clock, "_rng": _rng}
        self._inside: dict[str, Any] = {name: given for name, given in inside.items() if given is not None}
        self._stopping = threading.Event()

    @property
    def counts(self) -> TransformCounts:
        return self._plan.counts

    def stop(self) -> None:
        """From any thread, or a signal handler: finish the current transaction, then let ``run`` return."""
        self._stopping.set()


class AsyncTransform(_Transform[Callable[[ConsumerRecord], Outputs | Awaitable[Outputs]]]):
    """Reads ``topics`` as a member of ``group_id``, calls ``function(record)`` with each record, and writes the
    :class:`ProducerRecord`\\ s that it returns (one, several, or ``None``); ``tidelog.aio.Transform``.

    Exactly once from topics to topics: ``read_committed`` readers never see the effects of a crash, a rebalance or a
    retry. Other effects of the function may happen more than once. It may be a coroutine function.

    Programs that run at the same time need different ``transactional_id``; the default combines the group and
    ``group_instance_id``, or is random. A new group starts at the beginning of the topics, unless ``consumer_settings``
    say otherwise. ``run()`` ends after :meth:`stop`, or with an error: the function's own, or one that a retry does not
    fix (``ProducerFencedError`` …). Run it again, and it continues where it was.
    """

    async def run(self) -> TransformCounts:
        """Run until :meth:`stop` or an error."""
        plan = self._plan
        async with (
            AsyncProducer(self._bootstrap, **self._inside, **plan.producer_settings) as producer,
            AsyncConsumer(self._bootstrap, **self._inside, **plan.consumer_settings) as consumer,
        ):
            consumer.subscribe(plan.topics)
            await producer.init_transactions()
            while not self._stopping.is_set():
                records = await consumer.poll(POLL_S)
                if not records:
                    continue
                try:
                    written = await self._transaction(producer, consumer, records)
                except TidelogError as error:
                    await asyncio.sleep(plan.aborted(error))
                else:
                    plan.committed(len(records), written)
        return plan.counts

    async def _transaction(
        self, producer: AsyncProducer, consumer: AsyncConsumer, records: list[ConsumerRecord]
    ) -> int:
        written = 0
        async with producer.transaction(consumer=consumer):
            for record in records:
                with handling(record, self._plan.tracer, self._plan.group_id):
                    outputs = self._plan.function(record)
                    if inspect.isawaitable(outputs):
                        outputs = await outputs
                    for output in _records(outputs):
                        await producer.send(output.topic, output.value, output.key, **_arguments(output))
                        written += 1
        return written


class Transform(_Transform[Callable[[ConsumerRecord], Outputs]]):
    """Reads ``topics`` as a member of ``group_id``, calls ``function(record)`` with each record, and writes the
    :class:`ProducerRecord`\\ s that it returns (one, several, or ``None``).

        def enrich(record):
            return ProducerRecord("enriched", record.value.upper(), key=record.key)

        Transform(enrich, "localhost:9092", topics=["orders"], group_id="enrich").run()

    Exactly once from topics to topics: ``read_committed`` readers never see the effects of a crash, a rebalance or a
    retry. Other effects of the function may happen more than once. :meth:`run` calls it in its own thread.

    Programs that run at the same time need different ``transactional_id``; the default combines the group and
    ``group_instance_id``, or is random. A new group starts at the beginning of the topics, unless
    ``consumer_settings`` say otherwise. ``tracer`` keeps what becomes of the records. ``run()`` ends after
    :meth:`stop`, or with an error: the function's own, or one that a retry does not fix (``ProducerFencedError`` …).
    Run it again, and it goes on where it was.
    """

    def run(self) -> TransformCounts:
        """Run until :meth:`stop` or an error."""
        plan = self._plan
        with (
            Producer(self._bootstrap, **self._inside, **plan.producer_settings) as producer,
            Consumer(self._bootstrap, **self._inside, **plan.consumer_settings) as consumer,
        ):
            consumer.subscribe(plan.topics)
            producer.init_transactions()
            while not self._stopping.is_set():
                records = consumer.poll(POLL_S)
                if not records:
                    continue
                try:
                    written = self._transaction(producer, consumer, records)
                except TidelogError as error:
                    self._stopping.wait(plan.aborted(error))
                else:
                    plan.committed(len(records), written)
        return plan.counts

    def _transaction(self, producer: Producer, consumer: Consumer, records: list[ConsumerRecord]) -> int:
        written = 0
        with producer.transaction(consumer=consumer):
            for record in records:
                with handling(record, self._plan.tracer, self._plan.group_id):
                    for output in _records(self._plan.function(record)):
                        producer.send(output.topic, output.value, output.key, **_arguments(output))
                        written += 1
        return written
