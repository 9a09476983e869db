"""Whole clusters for tests, and a ledger that judges what became of the records sent to them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tidelog.testing.async_cluster import AsyncCluster


class Ledger:
    """Sends numbered records to a topic in the background and compares what was acknowledged with the log.

    Each value is ``number``, each key the partition's number; one producer, so numbers of one
    partition must be read in rising order, each at most once, each acknowledged one exactly once.
    """

    def __init__(self, cluster: AsyncCluster, topic: str, partitions: int, **producer: Any) -> None:
        self.cluster = cluster
        self.topic = topic
        self.partitions = partitions
        self.acknowledged: dict[int, int] = {}
        self.failed: dict[int, BaseException] = {}
        self.sent = 0
        self._producer = producer
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[Any] = []

    async def __aenter__(self) -> Ledger:
        self._task = asyncio.ensure_future(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        assert self._task is not None
        if _[0] is not None:
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=_[0] is not None)

    async def more(self, count: int, timeout_s: float = 30) -> None:
        """Wait until that many more records have been acknowledged."""
        wanted = len(self.acknowledged) + count
        await self.cluster.wait_for(lambda: len(self.acknowledged) >= wanted, f"{count} more records", timeout_s)

    async def finish(self) -> None:
        """Stop sending and wait until every record has its outcome."""
        self._stop.set()
        assert self._task is not None
        await self._task

    async def judge(self) -> None:
        """Read the whole topic back and fail on a record that is lost, doubled or out of order."""
        found = await read_all(self.cluster, self.topic, self.partitions)
        values = [int(record.value) for record in found]
        doubled = [value for value, count in Counter(values).items() if count > 1]
        lost = sorted(set(self.acknowledged) - set(values))
        assert not lost, f"{len(lost)} of {len(self.acknowledged)} acknowledged records are lost: {lost[:5]}"
        assert not doubled, f"{len(doubled)} records are doubled: {doubled[:5]}"
        for partition in range(self.partitions):
            own = [int(r.value) for r in found if r.partition == partition]
            assert own == sorted(own), f"partition {partition} is out of order"
        assert self.acknowledged, "nothing was acknowledged: this test shows nothing"

    async def _run(self) -> None:
        async with self.cluster.producer(**self._producer) as producer:
            while not self._stop.is_set():
                number = self.sent
                self.sent += 1
                future = await producer.send(
                    self.topic,
                    str(number).encode(),
                    partition=number % self.partitions,
                    on_delivery=self._heard(number),
                )
                self._waiting.append(future)
                if number % 20 == 19:
                    await asyncio.sleep(0.001)
            await producer.flush(60)

    def _heard(self, number: int) -> Callable[[Any, BaseException | None], None]:
        def heard(metadata: Any, error: BaseException | None) -> None:
            if error is None:
                self.acknowledged[number] = metadata.offset
            else:
                self.failed[number] = error

        return heard


async def read_all(cluster: AsyncCluster, topic: str, partitions: int) -> list[Any]:
    """Every record of a topic, as a new consumer reads them."""
    async with cluster.consumer(auto_offset_reset="earliest") as consumer:
        where = [(topic, partition) for partition in range(partitions)]
        ends = await consumer.end_offsets(where)
        consumer.assign(where)
        found: list[Any] = []
        async with asyncio.timeout(60):
            left = {at: end for at, end in ends.items() if end > 0}
            while left:
                for record in await consumer.poll(1.0, max_records=100_000):
                    found.append(record)
                    at = record.topic_partition
                    if at in left and record.offset + 1 >= left[at]:
                        del left[at]
        return found


@pytest.fixture
def ledger() -> type[Ledger]:
    return Ledger


@pytest.fixture(name="read_all")
def read_all_fixture() -> Any:
    return read_all
