"""Loads for measuring a cluster: many records at full speed, or a few at a steady rate."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.watch import wait_until

if TYPE_CHECKING:
    from tidelog import Admin, Producer

CHUNK_BYTES: Final = 1_000_000
ONE_BY_ONE_BYTES_MAX: Final = 64_000_000
"""Maximum bytes of values prepared in advance."""
FLUSH_TIMEOUT_S: Final = 120.0
POLL_TIMEOUT_S: Final = 10.0
INTERRUPTED_FLUSH_S: Final = 1.0
IN_SYNC_TIMEOUT_S: Final = 60.0
PARTITIONS: Final = 6


class RecordsLost(CommandFailed):
    """The measurement is invalid: some records failed or did not come back."""


@dataclass(frozen=True, slots=True)
class Rate:
    """``records`` in ``seconds``, from the first call to the last acknowledgement or record."""

    records: int
    seconds: float
    size: int

    @property
    def per_second(self) -> float:
        return self.records / self.seconds

    @property
    def megabytes_per_second(self) -> float:
        """The rate of values; keys, headers and framing do not count."""
        return self.per_second * self.size / 1e6


@contextmanager
def _producer(bootstrap: str, settings: Mapping[str, Any]) -> Iterator[Producer]:
    """Yield a producer that drops unsent records on Ctrl-C."""
    from tidelog import Producer

    with Producer(bootstrap, **settings) as producer:
        try:
            yield producer
        except BaseException:
            producer.close(INTERRUPTED_FLUSH_S)
            raise


def create_topic(
    admin: Admin, name: str, *, partitions: int = PARTITIONS, copies: int = 1, settings: Mapping[str, str] | None = None
) -> None:
    """Create a topic and wait until all its replicas are in sync."""
    from tidelog import NewTopic
    from tidelog.client.errors import UnknownTopicOrPartitionError

    configs = {"min.insync.replicas": str(max(1, copies - 1)), **(settings or {})}
    admin.create_topics([NewTopic(name, partitions, copies, configs=configs)])

    def whole() -> bool:
        try:
            (found,) = admin.describe_topics([name])
        except UnknownTopicOrPartitionError:
            return False  # the broker that was asked does not know it yet
        return len(found.partitions) == partitions and all(
            partition.leader >= 0 and len(partition.isr) == copies for partition in found.partitions
        )

    wait_until(f"{name} to be in sync", whole, IN_SYNC_TIMEOUT_S)


def values_of(size: int, count: int) -> list[bytes]:
    """Return ``count`` different incompressible values of ``size`` bytes."""
    rng = random.Random(size)
    return [rng.randbytes(size) for _ in range(count)]


def produce_many(bootstrap: str, topic: str, size: int, seconds: float, **settings: Any) -> Rate:
    """Call ``send_many`` for this many seconds."""
    values = values_of(size, max(1, CHUNK_BYTES // size))
    with _producer(bootstrap, settings) as producer:
        producer.send_many(topic, values)
        producer.flush(FLUSH_TIMEOUT_S)
        sent = 0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            producer.send_many(topic, values)
            sent += len(values)
        producer.flush(FLUSH_TIMEOUT_S)
        took = time.perf_counter() - started
        _no_errors(producer.metrics())
    return Rate(sent, took, size)


def produce_one_by_one(bootstrap: str, topic: str, size: int, seconds: float, **settings: Any) -> Rate:
    """Call ``send()`` record by record for this many seconds."""
    values = values_of(size, max(1, min(10_000, ONE_BY_ONE_BYTES_MAX // size)))
    with _producer(bootstrap, settings) as producer:
        producer.send(topic, values[0]).result(FLUSH_TIMEOUT_S)
        send = producer.send
        sent = 0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            for value in values:
                send(topic, value)
            sent += len(values)
        producer.flush(FLUSH_TIMEOUT_S)
        took = time.perf_counter() - started
        _no_errors(producer.metrics())
    return Rate(sent, took, size)


def fill(bootstrap: str, topic: str, size: int, count: int, **settings: Any) -> None:
    """Send exactly ``count`` records and wait for their acknowledgement."""
    values = values_of(size, max(1, CHUNK_BYTES // size))
    with _producer(bootstrap, settings) as producer:
        left = count
        while left:
            some = values[:left]
            producer.send_many(topic, some)
            left -= len(some)
        producer.flush(FLUSH_TIMEOUT_S)
        _no_errors(producer.metrics())


def consume_all(bootstrap: str, topic: str, count: int, *, as_records: bool, **settings: Any) -> Rate:
    """Read ``count`` records from the beginning, as values or as whole records."""
    from tidelog import Consumer, TopicPartition

    with Consumer(bootstrap, auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign([TopicPartition(topic, view.partition) for view in consumer.partitions_for(topic)])
        read = size = 0
        started = time.perf_counter()
        while read < count:
            batches = consumer.poll_batches(POLL_TIMEOUT_S)
            if not batches:
                raise RecordsLost(f"expected {count} records, found {read}")
            for batch in batches:
                if as_records:
                    records = batch.records()
                    read += len(records)
                    size = len(records[0].value or b"") if records else size
                else:
                    values = batch.values()
                    read += len(values)
                    size = len(values[0] or b"") if values else size
        took = time.perf_counter() - started
    return Rate(read, took, size)


def latencies(bootstrap: str, topic: str, *, rate: int, size: int, seconds: float, **settings: Any) -> list[float]:
    """Return the milliseconds from ``send()`` to acknowledgement of each record, at ``rate`` records per second."""
    return asyncio.run(_latencies(bootstrap, topic, rate, size, seconds, settings))


WARM_UP_S: Final = 3.0
WARM_UP_RECORDS: Final = 10


async def _latencies(
    bootstrap: str, topic: str, rate: int, size: int, seconds: float, settings: Mapping[str, Any]
) -> list[float]:
    """Measure latencies. Sending never waits for answers, so a slow one delays no other. The first seconds do not
    count."""
    from tidelog.aio import Producer

    value = values_of(size, 1)[0]
    found: list[float] = []
    errors: list[BaseException] = []
    async with Producer(bootstrap, **{"acks": "all", "linger_ms": 0, **settings}) as producer:
        await producer.send_and_wait(topic, value)
        begin = time.perf_counter()
        keep_from = begin + WARM_UP_S
        number = 0
        while (due := begin + number / rate) < keep_from + seconds:
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            sent = time.perf_counter()

            def answered(_: object, error: BaseException | None, sent: float = sent) -> None:
                if error is not None:
                    errors.append(error)
                elif sent >= keep_from:
                    found.append((time.perf_counter() - sent) * 1000)

            await producer.send(topic, value, on_delivery=answered)
            number += 1
        await producer.flush(FLUSH_TIMEOUT_S)
    if errors:
        raise RecordsLost(f"expected every record acknowledged, found {len(errors)} errors: {errors[0]}")
    return found


def end_to_end(
    bootstrap: str, topic: str, *, count: int, size: int, settings: Mapping[str, Any], **security: Any
) -> list[float]:
    """Return the milliseconds from ``send()`` until a consumer has the record; each is sent after the previous one was
    read. The first ones do not count. ``settings`` are the producer's. Source: Kafka's ``EndToEndLatency``."""
    from tidelog import Consumer, TopicPartition

    values = values_of(size, 2)
    found: list[float] = []
    wanted = {"acks": "all", "linger_ms": 0, **security, **settings}
    with Consumer(bootstrap, **security) as consumer, _producer(bootstrap, wanted) as producer:
        partitions = [TopicPartition(topic, view.partition) for view in consumer.partitions_for(topic)]
        consumer.assign(partitions)
        consumer.seek_to_end(*partitions)
        for at in partitions:
            consumer.position(at)
        for number in range(WARM_UP_RECORDS + count):
            value = values[number % 2]
            started = time.perf_counter()
            sent = producer.send(topic, value).result(FLUSH_TIMEOUT_S)
            records = consumer.poll(POLL_TIMEOUT_S)
            took = time.perf_counter() - started
            places = [(record.partition, record.offset) for record in records]
            if places != [(sent.partition, sent.offset)] or records[0].value != value:
                raise RecordsLost(
                    f"expected record {sent.offset} of {topic}-{sent.partition} within {POLL_TIMEOUT_S:.0f} s, found "
                    f"{f'{len(records)} others: does something else write?' if records else 'none'}"
                )
            found.append(took * 1000)
    return found[WARM_UP_RECORDS:]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` (0 to 1) of the values do not exceed."""
    ordered = sorted(values)
    at = max(0, -(-round(share * 1_000_000) * len(ordered) // 1_000_000) - 1)
    return ordered[min(at, len(ordered) - 1)]


def _no_errors(metrics: Mapping[str, int]) -> None:
    if errors := metrics["record-error-total"]:
        raise RecordsLost(f"expected every record acknowledged, found {errors} errors")
