"""How long a three-node cluster has no leader, or no controller, after a kill -9."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.bench.clusters import create_topic, running
from tidelog.bench.figures import median
from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.local.watch import wait_until
from tidelog.proto.calls.api import ConfigResource

if TYPE_CHECKING:
    from tidelog import Admin

KILLS: Final = 6
TIMEOUT_S: Final = 30.0
SEND_EVERY_S: Final = 0.002
_TOPIC: Final = "bench"


def controller_failover(root: Path) -> Mapping[str, float]:
    """Kill the active controller; request changes of a topic setting until one is committed."""
    from tidelog import Admin

    times = []
    with running(root, 3) as cluster, Admin(cluster.bootstrap, retry_backoff_ms=10, retry_backoff_max_ms=20) as admin:
        create_topic(admin, _TOPIC, copies=3)
        for number in range(KILLS):
            victim = admin.describe_cluster().controller_id
            killed = time.perf_counter()
            cluster.kill(victim)
            times.append(_next_commit(admin, number) - killed)
            _bring_back(cluster, admin, victim)
    return {"controller_failover": median(times)}


def leader_failover(root: Path) -> Mapping[str, float]:
    """Kill a leader that is not the controller; send to a partition it led until a record is acknowledged."""
    from tidelog import Admin

    times = []
    with running(root, 3) as cluster, Admin(cluster.bootstrap) as admin:
        create_topic(admin, _TOPIC, copies=3)
        for _ in range(KILLS):
            controller = admin.describe_cluster().controller_id
            (topic,) = admin.describe_topics([_TOPIC])
            partition = next(found for found in topic.partitions if found.leader not in (-1, controller))
            times.append(asyncio.run(_kill_under_load(cluster, partition.leader, partition.partition)))
            _bring_back(cluster, admin, partition.leader)
    return {"leader_failover": median(times), "leader_failover_worst": max(times)}


async def _kill_under_load(cluster: LocalCluster, victim: int, partition: int) -> float:
    """Return seconds from the kill to the first acknowledgement of a record sent after it."""
    from tidelog.aio import Producer

    answered = asyncio.Event()
    acknowledged_at = 0.0

    def after_the_kill(_: object, error: BaseException | None) -> None:
        nonlocal acknowledged_at
        if error is None and not answered.is_set():
            acknowledged_at = time.perf_counter()
            answered.set()

    async with Producer(cluster.bootstrap, acks="all", linger_ms=0) as producer:
        for _ in range(200):
            await producer.send(_TOPIC, b"before", partition=partition)
            await asyncio.sleep(SEND_EVERY_S)
        killed = time.perf_counter()
        await asyncio.to_thread(cluster.kill, victim)
        while not answered.is_set():
            if time.perf_counter() - killed > TIMEOUT_S:
                raise TimeoutError(f"no record acknowledged {TIMEOUT_S:g} s after the kill")
            await producer.send(_TOPIC, b"after", partition=partition, on_delivery=after_the_kill)
            await asyncio.sleep(SEND_EVERY_S)
    return acknowledged_at - killed


def _next_commit(admin: Admin, number: int) -> float:
    from tidelog import TidelogError

    deadline = time.perf_counter() + TIMEOUT_S
    while True:
        try:
            admin.alter_configs({ConfigResource("topic", _TOPIC): {"retention.ms": str(600_000 + number)}})
            return time.perf_counter()
        except TidelogError:
            if time.perf_counter() > deadline:
                raise


def _bring_back(cluster: LocalCluster, admin: Admin, node_id: int) -> None:
    cluster.start([node_id])
    cluster.wait_ready([node_id])

    def whole() -> bool:
        (topic,) = admin.describe_topics([_TOPIC])
        return all(len(found.isr) == 3 for found in topic.partitions)

    wait_until(f"node {node_id} to be in sync", whole, TIMEOUT_S)
