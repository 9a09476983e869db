"""Time to plan the balancing of twelve brokers with 2,000 replicas each, and with 2,000 partitions for each."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidelog.cli.work.replicas.spreading import Part, Target, rebalanced
from tidelog.model.ids import TopicPartition

NODES: Final = 12
RACKS: Final = 3
REPLICAS: Final = 3
PARTITIONS: Final = 8_000
MANY_PARTITIONS: Final = 24_000
TOLERANCE: Final = 0.1


def rebalance(_: Path) -> Mapping[str, float]:
    return {"rebalance_plan": _planned_s(PARTITIONS), "rebalance_plan_large": _planned_s(MANY_PARTITIONS)}


def _planned_s(partitions: int) -> float:
    parts, targets = uneven_cluster(7, partitions=partitions)
    begun = time.process_time()
    rebalanced(parts, targets, TOLERANCE)
    return time.process_time() - begun


def uneven_cluster(
    seed: int, empty: int = 3, partitions: int = PARTITIONS
) -> tuple[dict[TopicPartition, Part], list[Target]]:
    """Return a cluster that the last ``empty`` brokers have just joined, one in each rack; a few partitions are
    large."""
    rng = random.Random(seed)
    targets = [Target(node, f"rack-{node % RACKS}") for node in range(NODES)]
    old = [target.node for target in targets[: NODES - empty]]
    parts = {}
    for number in range(partitions):
        racks = rng.sample(range(RACKS), REPLICAS)
        replicas = tuple(rng.choice([node for node in old if node % RACKS == rack]) for rack in racks)
        rate = int(rng.lognormvariate(10, 2)) if rng.random() < 0.7 else 0
        parts[TopicPartition(f"topic-{number // 40}", number % 40)] = Part(
            replicas, int(rng.lognormvariate(18, 2)), rate
        )
    return parts, targets
