"""The cost of ten thousand partitions on one node: for creation, startup, and every later change."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.bench.clusters import create_topic, running
from tidelog.bench.figures import median
from tidelog.bench.nodes.startup import first_record
from tidelog.cli.local.watch import wait_until

if TYPE_CHECKING:
    from tidelog import Admin

MANY: Final = 10_000
FEW: Final = 100
PER_TOPIC: Final = 1_000
CHANGES: Final = 15
TIMEOUT_S: Final = 300.0


def ten_thousand_partitions(root: Path) -> Mapping[str, float]:
    from tidelog import Admin, NewTopic

    with running(root, 1) as cluster:
        with Admin(cluster.bootstrap, request_timeout_ms=120_000) as admin:
            create_topic(admin, "few", partitions=FEW)
            at_few = _change_s(admin, "at-few")
            names = [f"many-{number}" for number in range((MANY - FEW) // PER_TOPIC)]
            left = MANY - FEW - PER_TOPIC * len(names)
            sizes = dict.fromkeys(names, PER_TOPIC) | ({"many-rest": left} if left else {})
            started = time.perf_counter()
            for name, count in sizes.items():
                admin.create_topics([NewTopic(name, count, 1)])

            def all_led() -> bool:
                topics = admin.describe_topics(list(sizes))
                return all(found.leader >= 0 for topic in topics for found in topic.partitions)

            wait_until("every partition to have a leader", all_led, TIMEOUT_S)
            for name, count in sizes.items():
                first_record(cluster.bootstrap, name, TIMEOUT_S, partition=count - 1)
            create_s = time.perf_counter() - started
            at_many = _change_s(admin, "at-many")
        cluster.stop(timeout_s=TIMEOUT_S)
        started = time.perf_counter()
        cluster.start()
        first_record(cluster.bootstrap, "many-0", TIMEOUT_S)
        start_s = time.perf_counter() - started
    return {"partitions_create": create_s, "partitions_start": start_s, "partitions_change_ratio": at_many / at_few}


def _change_s(admin: Admin, prefix: str) -> float:
    """Return the median time to create a topic with one partition."""
    from tidelog import NewTopic

    times = []
    for number in range(CHANGES):
        started = time.perf_counter()
        admin.create_topics([NewTopic(f"{prefix}-{number}", 1, 1)])
        times.append(time.perf_counter() - started)
    return median(times)
