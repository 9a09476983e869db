"""``tidelog.aio.Workers``: tasks instead of threads. What both forms share is tested with the other."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from tidelog import aio
from tidelog.testing import Cluster

from .test_workers import cluster, committed, fill, letters, topic

__all__ = ["cluster", "topic"]


def test_tasks_keep_the_order_of_keys_and_write_dead_letters(cluster: Cluster, topic: str) -> None:
    dead = f"dlq.{topic}"
    cluster.create_topic(dead, partitions=1)
    fill(cluster, topic, 200, keys=8)
    by_key: dict[Any, list[int]] = defaultdict(list)
    at_once, most, handled = 0, 0, 0

    async def run() -> aio.Workers:
        enough = asyncio.Event()

        async def handler(record: aio.ConsumerRecord) -> None:
            nonlocal at_once, most, handled
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0)
            by_key[record.key].append(int(record.value or b""))
            at_once -= 1
            handled += 1
            if handled == 200:
                enough.set()
            if record.key == b"3":
                raise ValueError("not this key")

        workers = aio.Workers(
            handler, cluster.bootstrap, topics=topic, group_id=topic, workers=5, dead_letters=dead, in_flight_max=40
        )
        running = asyncio.create_task(workers.run())
        async with asyncio.timeout(60):
            await enough.wait()
            while workers.counts.dead < 25:
                await asyncio.sleep(0.01)
            workers.stop()
            await running
        return workers

    counts = asyncio.run(run()).counts
    assert (counts.read, counts.handled, counts.dead) == (200, 175, 25)
    assert all(values == sorted(values) for values in by_key.values())
    assert sum(map(len, by_key.values())) == 200
    assert 2 <= most <= 5
    assert sorted(int(letter.value or b"") for letter in letters(cluster, dead)) == list(range(3, 200, 8))
    assert committed(cluster, topic) == 200


def test_a_retry_that_is_due_later_and_an_error_that_ends_the_program(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, 1)
    tries: list[int] = []

    async def handler(record: aio.ConsumerRecord) -> None:
        tries.append(record.offset)
        raise LookupError("still not there")

    policy = aio.RetryPolicy(attempts=3, backoff_ms=2)

    async def run() -> None:
        async with asyncio.timeout(60):
            await aio.Workers(handler, cluster.bootstrap, topics=topic, group_id=topic, retry=policy).run()

    with pytest.raises(LookupError, match="still not there"):
        asyncio.run(run())
    assert tries == [0, 0, 0]
    assert committed(cluster, topic) == 0
