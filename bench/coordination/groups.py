"""Consumer groups: how long a rebalance takes, and whether a cooperative one interrupts members that keep their
partitions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.bench.clusters import with_topics
from tidelog.bench.figures import median

if TYPE_CHECKING:
    from tidelog.aio import Consumer

MEMBERS: Final = 200
PARTITIONS: Final = 200
JOINS: Final = 5
RATE_PER_S: Final = 4_000
STEADY_S: Final = 3.0
BUSY_S: Final = 1.0
TIMEOUT_S: Final = 120.0
_TOPIC: Final = "bench"
_CONSUMER: Final = "consumer"


def rebalance(root: Path) -> Mapping[str, float]:
    """Measure a group of many members on three nodes when one more joins, with all consumer settings at their defaults.

    The time is from the newcomer's first poll until every member is in the new generation. A member learns of a
    rebalance with its next heartbeat, up to ``heartbeat_interval_ms`` later.
    """
    with with_topics(root, 3, _TOPIC, partitions=PARTITIONS, copies=1) as cluster:
        took = asyncio.run(_rebalance(cluster.bootstrap))
    return {"group_rebalance_200": took}


async def _rebalance(bootstrap: str) -> float:
    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(_member(bootstrap)) for _ in range(MEMBERS - 1)]
        await _until(lambda: _shared_out(members), "the group to be whole")
        started = time.perf_counter()
        members.append(await stack.enter_async_context(_member(bootstrap)))
        await _until(lambda: _shared_out(members), "the newcomer to have its share")
        return time.perf_counter() - started


def _shared_out(members: Sequence[Consumer]) -> bool:
    """Return whether every member has a share, in one generation, and together they have everything."""
    owned = [member.assignment() for member in members]
    return (
        all(owned)
        and sum(map(len, owned)) == PARTITIONS
        and len({m.group_metadata().generation_id for m in members}) == 1
    )


def join(root: Path) -> Mapping[str, float]:
    """Measure the first member of a new group, without initial delay: from its first poll to its assignment."""
    with with_topics(root, 3, _TOPIC) as cluster:
        found = asyncio.run(_joins(cluster.bootstrap))
    return {"group_join_idle": median(found) * 1000}


async def _joins(bootstrap: str) -> list[float]:
    found = []
    for number in range(JOINS + 1):
        started = time.perf_counter()
        async with _member(bootstrap, group_id=f"join-{number}") as member:
            await _until(lambda member=member: bool(member.assignment()), "an assignment")  # type: ignore[misc]
            found.append(time.perf_counter() - started)
    return found[1:]  # the first one creates the offsets topic


def during_rebalance(root: Path) -> Mapping[str, float]:
    """Measure two members that read records sent at an even pace, one of them busy for a second after each poll, when a
    third joins.

    For the partitions that the other member keeps: the longest time without a record in ms, for both kinds of classic
    protocol and for the consumer protocol, and for the cooperative one the records per second during the rebalance, as
    a share of those sent.
    """
    with with_topics(root, 3, _TOPIC, partitions=12, copies=1) as cluster:
        share, pause = asyncio.run(_third_joins(cluster.bootstrap, "cooperative-sticky"))
        _, eager = asyncio.run(_third_joins(cluster.bootstrap, "sticky"))
        _, newer = asyncio.run(_third_joins(cluster.bootstrap, _CONSUMER))
    return {
        "group_read_cooperative": share,
        "group_pause_cooperative": pause,
        "group_pause_eager": eager,
        "group_pause_consumer": newer,
    }


async def _third_joins(bootstrap: str, protocol: str) -> tuple[float, float]:
    """Return the share of records per second, and the longest pause in ms. ``protocol``: the strategy of a classic
    group, or the consumer protocol."""
    read: dict[tuple[str, int], list[float]] = {}
    by_server = {"group_protocol": _CONSUMER}
    chosen: dict[str, Any] = by_server if protocol == _CONSUMER else {"partition_assignment_strategy": [protocol]}

    def took(records: Sequence[Any]) -> None:
        now = time.perf_counter()
        for record in records:
            read.setdefault(record.topic_partition, []).append(now)

    def member(busy_s: float = 0.0) -> AbstractAsyncContextManager[Consumer]:
        return _member(bootstrap, took, busy_s, group_id=f"by-{protocol}", **chosen)

    async with AsyncExitStack() as stack:
        stack.push_async_callback(_ended, sending := asyncio.create_task(_send_evenly(bootstrap)))
        old = [await stack.enter_async_context(member(busy_s)) for busy_s in (0.0, BUSY_S)]
        await _until(lambda: all(len(each.assignment()) == 6 for each in old), "two members to share 12 partitions")
        await asyncio.sleep(STEADY_S)
        before = old[0].assignment()
        begin = time.perf_counter()
        new = await stack.enter_async_context(member())
        await _until(lambda: [len(each.assignment()) for each in (*old, new)] == [4, 4, 4], "three members to share")
        end = time.perf_counter()
        await asyncio.sleep(STEADY_S)
        if sending.done():
            sending.result()
        stayed = before & old[0].assignment()
    times = {at: read.get(at, []) for at in stayed}
    during = sum(begin <= at < end for found in times.values() for at in found) / (end - begin)
    pauses = [later - at for found in times.values() for at, later in pairwise(found) if later >= begin]
    return during / (RATE_PER_S / 12 * len(stayed)), max(pauses) * 1000


async def _send_evenly(bootstrap: str) -> None:
    from tidelog.aio import Producer

    async with Producer(bootstrap) as producer:
        begin = time.perf_counter()
        sent = 0
        while True:
            due = int((time.perf_counter() - begin) * RATE_PER_S)
            for number in range(sent, due):
                await producer.send(_TOPIC, b"x" * 100, partition=number % 12)
            sent = due
            await asyncio.sleep(0.005)


@asynccontextmanager
async def _member(
    bootstrap: str, took: Callable[[Sequence[Any]], None] | None = None, busy_s: float = 0.0, **settings: Any
) -> AsyncIterator[Consumer]:
    """A consumer of the group that polls until it is left."""
    from tidelog.aio import Consumer

    async with Consumer(bootstrap, **{"group_id": "bench", "auto_offset_reset": "latest", **settings}) as consumer:
        consumer.subscribe([_TOPIC])

        async def poll() -> None:
            while True:
                records = await consumer.poll(1.0)
                if took is not None:
                    took(records)
                if busy_s:
                    await asyncio.sleep(busy_s)

        polling = asyncio.create_task(poll())
        try:
            yield consumer
        finally:
            await _ended(polling)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def _until(met: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not met():
        if time.monotonic() > deadline:
            raise TimeoutError(f"expected {what} within {TIMEOUT_S:g} s")
        await asyncio.sleep(0.005)
