"""Records per second in and out through the SDK; all processes on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidelog.bench.clusters import create_topic, running, with_topics
from tidelog.cli.work.workload import consume_all, fill, produce_many, produce_one_by_one

SECONDS: Final = 6.0
SECONDS_OF_MATRIX: Final = 4.0
CONSUME_RECORDS: Final = {100: 6_000_000, 1024: 600_000}
_TOPIC: Final = "bench"


def produce_three_nodes(root: Path) -> Mapping[str, float]:
    with with_topics(root, 3, _TOPIC) as cluster:
        many = produce_many(cluster.bootstrap, _TOPIC, 100, SECONDS, acks="all")
        single = produce_one_by_one(cluster.bootstrap, _TOPIC, 100, SECONDS, acks="all")
        return {"produce_send_many_rf3": many.per_second, "produce_send_rf3": single.per_second}


def produce_one_node(root: Path) -> Mapping[str, float]:
    with with_topics(root, 1, _TOPIC) as cluster:
        found = produce_many(cluster.bootstrap, _TOPIC, 100, SECONDS, acks="1")
        return {"produce_send_many_rf1": found.per_second}


def produce_matrix(root: Path) -> Mapping[str, float]:
    """Measure MB of values per second for two sizes, two kinds of acknowledgement, one and three replicas."""
    from tidelog import Admin

    found = {}
    with running(root, 3) as cluster, Admin(cluster.bootstrap) as admin:
        for copies in (1, 3):
            for name, size in (("100b", 100), ("1k", 1024)):
                for acks, acks_name in (("1", "acks1"), ("all", "all")):
                    topic = f"{_TOPIC}-{name}-{acks_name}-rf{copies}"
                    create_topic(admin, topic, copies=copies)
                    rate = produce_many(cluster.bootstrap, topic, size, SECONDS_OF_MATRIX, acks=acks)
                    found[f"produce_{name}_{acks_name}_rf{copies}"] = rate.megabytes_per_second
                    admin.delete_topics([topic])
    return found


def consume_one_node(root: Path) -> Mapping[str, float]:
    """Measure reading from the page cache: as values, as records."""
    from tidelog import Admin

    found = {}
    with running(root, 1) as cluster, Admin(cluster.bootstrap) as admin:
        for size, count in CONSUME_RECORDS.items():
            topic = f"{_TOPIC}-{size}"
            create_topic(admin, topic)
            fill(cluster.bootstrap, topic, size, count, acks="1")
            values = consume_all(cluster.bootstrap, topic, count, as_records=False)
            if size == 100:
                found["consume_values"] = values.per_second
                records = consume_all(cluster.bootstrap, topic, count, as_records=True)
                found["consume_records"] = records.per_second
            else:
                found["consume_1k"] = values.megabytes_per_second
            admin.delete_topics([topic])
    return found
