"""Topics with thousands of partitions on three nodes: creating them, and stopping a node that holds them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.bench.clusters import create_topic, running
from tidelog.bench.nodes.startup import first_record
from tidelog.cli.local.watch import wait_until

if TYPE_CHECKING:
    from tidelog import Admin

COPIES: Final = 3
MANY: Final = 10_000
TIMEOUT_S: Final = 300.0


def large_topics(root: Path) -> Mapping[str, float]:
    from tidelog import Admin

    with running(root, COPIES) as cluster:
        with Admin(cluster.bootstrap, request_timeout_ms=120_000) as admin:
            create_topic(admin, "first", copies=COPIES)
            first_record(cluster.bootstrap, "first")
            answered_s, serving_s = _create(admin, cluster.bootstrap, "thousand", 1_000)
            _, many_s = _create(admin, cluster.bootstrap, "many", MANY)
        started = time.perf_counter()
        killed = cluster.stop([1], timeout_s=TIMEOUT_S)
        stop_s = time.perf_counter() - started
        if killed:
            raise RuntimeError("node 1 did not stop by itself")
    return {
        "create_1000_answer": answered_s,
        "create_1000": serving_s,
        "create_10000": many_s,
        "stop_10000": stop_s,
    }


def _create(admin: Admin, bootstrap: str, name: str, partitions: int) -> tuple[float, float]:
    """Return seconds until the answer, and until all replicas are in sync and the last partition has taken a record."""
    from tidelog import NewTopic

    started = time.perf_counter()
    admin.create_topics([NewTopic(name, partitions, COPIES)])
    answered_s = time.perf_counter() - started

    def whole() -> bool:
        (found,) = admin.describe_topics([name])
        return all(at.leader >= 0 and len(at.isr) == COPIES for at in found.partitions)

    wait_until(f"{name} to be in sync", whole, TIMEOUT_S)
    first_record(bootstrap, name, TIMEOUT_S, partition=partitions - 1)
    return answered_s, time.perf_counter() - started
