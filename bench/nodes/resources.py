"""Memory and processor time of idle and busy nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidelog.bench.clusters import with_topics
from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.local.process import ProcessUse, use_of
from tidelog.cli.work.workload import produce_many

IDLE_S: Final = 60.0
SETTLE_S: Final = 5.0
LOAD_S: Final = 60.0


def idle(root: Path) -> Mapping[str, float]:
    """Measure three nodes with one topic and no clients."""
    with with_topics(root, 3, "bench") as cluster:
        time.sleep(SETTLE_S)
        before, began = _uses(cluster), time.monotonic()
        time.sleep(IDLE_S)
        after, passed = _uses(cluster), time.monotonic() - began
    return {
        "memory_idle": max(use.memory_bytes for use in after.values()) / 1e6,
        "cpu_idle": max(100 * (after[node].cpu_s - before[node].cpu_s) / passed for node in after),
    }


def memory_loaded(root: Path) -> Mapping[str, float]:
    """Measure the highest resident memory of any node during a minute of produce."""
    # Old segments are deleted, so that a minute at full speed does not fill a small disk.
    settings = {"retention.bytes": str(256 * 2**20), "segment.bytes": str(64 * 2**20)}
    brisk = {"log.retention.check.interval.ms": "2000", "log.segment.delete.delay.ms": "1000"}
    with with_topics(root, 3, "bench", topic_settings=settings, settings=brisk) as cluster:
        produce_many(cluster.bootstrap, "bench", 100, LOAD_S, acks="all")
        return {"memory_loaded": max(use.memory_peak_bytes for use in _uses(cluster).values()) / 1e6}


def _uses(cluster: LocalCluster) -> dict[int, ProcessUse]:
    found = {}
    for node_id, node in cluster.nodes.items():
        mark = node.mark
        use = None if mark is None else use_of(mark)
        if use is None:
            raise RuntimeError(f"node {node_id} ended during the measurement: {node.last_words()}")
        found[node_id] = use
    return found
