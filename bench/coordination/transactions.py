"""Transactions: their latency, their rate on one broker, and their cost for large batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.bench.clusters import with_topics
from tidelog.bench.figures import median
from tidelog.cli.work.workload import consume_all, percentile, values_of

if TYPE_CHECKING:
    from tidelog.aio import Producer as AsyncProducer

ONE_TIMES: Final = 300
ONE_WARM_UP: Final = 30
ONE_RECORDS: Final = 100
ONE_PARTITIONS: Final = 4
PRODUCERS: Final = 32
RATE_S: Final = 6.0
RATE_WARM_UP_S: Final = 2.0
RATE_RECORDS: Final = 4
RATE_PARTITIONS: Final = 8
ROUNDS: Final = 7
ROUND_S: Final = 1.0
CONSUME_RECORDS: Final = 3_000_000
CONSUME_IN_ONE: Final = 10_000
_TOPIC: Final = "bench"
_VALUE: Final = values_of(100, 1)[0]


def one_at_a_time(root: Path) -> Mapping[str, float]:
    """Measure the time from entering the block to leaving it, in ms: begin, 100 records to four partitions, commit. The
    next transaction begins immediately, so it includes work left by the previous one."""
    with with_topics(root, 3, _TOPIC, partitions=ONE_PARTITIONS) as cluster:
        took = asyncio.run(_one_at_a_time(cluster.bootstrap))
    return {"transaction_100_p50": percentile(took, 0.5), "transaction_100_p99": percentile(took, 0.99)}


async def _one_at_a_time(bootstrap: str) -> list[float]:
    from tidelog.aio import Producer

    took = []
    async with Producer(bootstrap, transactional_id="bench") as producer:
        await producer.init_transactions()
        for _ in range(ONE_WARM_UP + ONE_TIMES):
            started = time.perf_counter()
            async with producer.transaction():
                for number in range(ONE_RECORDS):
                    await producer.send(_TOPIC, _VALUE, partition=number % ONE_PARTITIONS)
            took.append((time.perf_counter() - started) * 1000)
    return took[ONE_WARM_UP:]


def many_at_once(root: Path) -> Mapping[str, float]:
    """Measure transactions per second of 32 producers on one node, each with one transaction at a time."""
    with with_topics(root, 1, _TOPIC, partitions=RATE_PARTITIONS) as cluster:
        return {"transaction_rate_32": asyncio.run(_many_at_once(cluster.bootstrap))}


async def _many_at_once(bootstrap: str) -> float:
    from tidelog.aio import Producer

    async with AsyncExitStack() as stack:
        producers = []
        for number in range(PRODUCERS):
            producer = await stack.enter_async_context(Producer(bootstrap, transactional_id=f"bench-{number}"))
            producers.append(producer)
        await asyncio.gather(*(producer.init_transactions() for producer in producers))
        begin = time.perf_counter() + RATE_WARM_UP_S
        end = begin + RATE_S
        counts = await asyncio.gather(*(_one_after_another(p, n, begin, end) for n, p in enumerate(producers)))
    return sum(counts) / RATE_S


async def _one_after_another(producer: AsyncProducer, number: int, begin: float, end: float) -> int:
    count = 0
    while (now := time.perf_counter()) < end:
        async with producer.transaction():
            for _ in range(RATE_RECORDS):
                await producer.send(_TOPIC, _VALUE, partition=number % RATE_PARTITIONS)
        count += begin <= now and time.perf_counter() <= end
    return count


def large_batches(root: Path) -> Mapping[str, float]:
    """Measure records per second of an idempotent and a transactional producer relative to a plain one, in turns."""
    kinds: dict[str, dict[str, Any]] = {
        "plain": {"enable_idempotence": False},
        "idempotent": {"enable_idempotence": True},
        "transactional": {"transactional_id": "bench"},
    }
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    with with_topics(root, 3, _TOPIC) as cluster:
        for number in range(ROUNDS + 1):
            for kind in list(kinds) if number % 2 else reversed(kinds):
                rate = _produce(cluster.bootstrap, kinds[kind])
                if number:  # the first is a warm-up
                    rates[kind].append(rate)
    return {f"produce_{kind}_ratio": _ratio(rates[kind], rates["plain"]) for kind in ("idempotent", "transactional")}


def _produce(bootstrap: str, settings: Mapping[str, Any]) -> float:
    """Measure 100-byte records per second by ``send_many``, including the single transaction's commit."""
    from tidelog import Producer

    values = values_of(100, 10_000)
    in_transaction = "transactional_id" in settings
    with Producer(bootstrap, acks="all", **settings) as producer:
        producer.partitions_for(_TOPIC)
        if in_transaction:
            producer.init_transactions()
        sent = 0
        started = time.perf_counter()
        if in_transaction:
            producer.begin_transaction()
        while time.perf_counter() - started < ROUND_S:
            producer.send_many(_TOPIC, values)
            sent += len(values)
        producer.flush()
        if in_transaction:
            producer.commit_transaction()
        return sent / (time.perf_counter() - started)


def read_committed(root: Path) -> Mapping[str, float]:
    """Measure values per second of a read_committed reader, relative to one that sees everything, in turns."""
    from tidelog import Producer

    rates: dict[str, list[float]] = {"read_committed": [], "read_uncommitted": []}
    values = values_of(100, CONSUME_IN_ONE)
    with with_topics(root, 1, _TOPIC) as cluster:
        with Producer(cluster.bootstrap, transactional_id="bench") as producer:
            for _ in range(CONSUME_RECORDS // CONSUME_IN_ONE):
                with producer.transaction():
                    producer.send_many(_TOPIC, values)
        for number in range(ROUNDS + 1):
            for level in list(rates) if number % 2 else reversed(rates):
                found = consume_all(cluster.bootstrap, _TOPIC, CONSUME_RECORDS, as_records=False, isolation_level=level)
                if number:
                    rates[level].append(found.per_second)
    return {"consume_committed_ratio": _ratio(rates["read_committed"], rates["read_uncommitted"])}


def _ratio(rates: Sequence[float], to: Sequence[float]) -> float:
    """Return the median ratio of two measurements in direct succession: other load on the machine affects both."""
    return median([one / other for one, other in zip(rates, to, strict=True)])
