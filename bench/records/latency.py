"""Time from a record's ``send()`` to its acknowledgement, under light, even load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidelog.bench.clusters import with_topics
from tidelog.cli.work.workload import latencies, percentile

RATE_PER_S: Final = 1_000
SIZE: Final = 1024
SECONDS: Final = 15.0
_TOPIC: Final = "bench"
_SHARES: Final = {"latency_p50": 0.5, "latency_p99": 0.99, "latency_p999": 0.999}


def latency(root: Path) -> Mapping[str, float]:
    with with_topics(root, 3, _TOPIC) as cluster:
        found = latencies(cluster.bootstrap, _TOPIC, rate=RATE_PER_S, size=SIZE, seconds=SECONDS)
    return {name: percentile(found, share) for name, share in _SHARES.items()}
