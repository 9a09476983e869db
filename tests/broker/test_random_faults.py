"""Faults drawn at random from a seed, one after the other, while records are sent; then everything is read back.

Seeds 5 and 8 failed once: a node whose two disks were replaced could not open its replicas, and one that
was started again on a busy machine was told that its id was taken.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tidelog.testing.async_cluster import AsyncCluster

from .conftest import Ledger

PARTITIONS = 4
STEPS = 5
FAULTS = ("kill", "kill", "kill controller", "kill leader", "stop", "wipe", "isolate", "one way", "all")


async def strike(cluster: AsyncCluster, rng: random.Random) -> str:
    """Do one thing to the cluster and undo it; returns what."""
    fault = rng.choice(FAULTS)
    node = rng.choice(cluster.node_ids)
    if fault == "kill controller":
        node = cluster.controller() or node
    elif fault == "kill leader":
        node = cluster.leader_of("t", rng.randrange(PARTITIONS)) or node
    if fault == "all":
        for each in cluster.node_ids:
            await cluster.kill(each)
        await cluster.start_many(cluster.node_ids)
    elif fault in ("isolate", "one way"):
        if fault == "isolate":
            cluster.isolate(node, clients=rng.random() < 0.5)
        else:
            cluster.partition(node, rng.choice([n for n in cluster.node_ids if n != node]), one_way=True)
        await asyncio.sleep(rng.random() * 1.5)  # how long the fault lasts
        cluster.heal()
    else:
        if fault == "stop":
            await cluster.stop_node(node)
        else:
            await cluster.kill(node)
        if fault == "wipe":
            cluster.wipe_logs(node)
        await asyncio.sleep(rng.choice((0.0, rng.random() * 1.5)))  # how long it is away
        await cluster.start_node(node)
    return f"{fault} {node}"


@pytest.mark.parametrize("seed", [1, 5, 8, 22])
async def test_nothing_acknowledged_is_lost_doubled_or_reordered(seed: int) -> None:
    rng = random.Random(seed)
    done: list[str] = []
    async with AsyncCluster(3, seed=seed, log_dirs=rng.choice([1, 2])) as cluster:
        config = {"min.insync.replicas": "2", "segment.bytes": str(2**20)}
        await cluster.create_topic("t", PARTITIONS, 3, config)
        async with Ledger(cluster, "t", PARTITIONS, request_timeout_ms=3_000) as sent:
            for _ in range(STEPS):
                await sent.more(rng.choice((5, 50, 200)), 60)
                done.append(await strike(cluster, rng))
                await cluster.wait_ready(60)
                for partition in range(PARTITIONS):
                    await cluster.wait_for_isr("t", partition, 3, 60)
            await sent.finish()
        assert not sent.failed, done
        await sent.judge()
