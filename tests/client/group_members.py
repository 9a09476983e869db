"""Members of a group on a scripted cluster of two nodes, with a topic "t" of four partitions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.virtual_time import LoopClock
from tidelog.aio import Consumer, ConsumerRebalanceListener, TopicPartition
from tidelog.client.record import ConsumerRecord

from .scripted_broker import ScriptedCluster, on_a_virtual_cluster

ALL = [TopicPartition("t", i) for i in range(4)]


virtually = on_a_virtual_cluster(2, t=4)


class Heard(ConsumerRebalanceListener):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[int]]] = []

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("assigned", [p.partition for p in partitions]))

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("revoked", [p.partition for p in partitions]))

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("lost", [p.partition for p in partitions]))


def member(cluster: ScriptedCluster, **settings: Any) -> Consumer:
    settings = {"group_id": "g", "auto_offset_reset": "earliest"} | settings
    return Consumer(
        cluster.bootstrap, _network=cluster.network(), _clock=LoopClock(), _rng=random.Random(1), **settings
    )


@asynccontextmanager
async def polling(*consumers: Consumer) -> AsyncIterator[dict[Consumer, list[ConsumerRecord]]]:
    """Poll these in the background; yields what they were handed."""
    found: dict[Consumer, list[ConsumerRecord]] = {c: [] for c in consumers}

    async def poll(c: Consumer) -> None:
        while True:
            found[c] += await c.poll(1.0)

    tasks = [asyncio.create_task(poll(c)) for c in consumers]
    try:
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def until_assigned(c: Consumer, partitions: set[int]) -> None:
    async with asyncio.timeout(60):
        while {p.partition for p in c.assignment()} != partitions:
            await c.poll(0.05)


def parts(c: Consumer) -> set[int]:
    return {p.partition for p in c.assignment()}


def half_each(one: Consumer, two: Consumer) -> bool:
    return len(parts(one)) == 2 and len(parts(two)) == 2
