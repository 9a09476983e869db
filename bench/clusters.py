"""Clusters of real processes to measure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.cli.cluster_watch import wait_until
from tidelog.cli.local_cluster import LocalCluster

if TYPE_CHECKING:
    from tidelog import Admin

READY_TIMEOUT_S: Final = 60.0
PARTITIONS: Final = 6


@contextmanager
def running(place: Path, nodes: int, settings: Mapping[str, str] | None = None) -> Iterator[LocalCluster]:
    """A fresh cluster that serves; it is gone afterwards, its files stay."""
    cluster = LocalCluster.create(place / "cluster", nodes=nodes, settings=settings)
    try:
        cluster.start()
        cluster.wait_ready()
        yield cluster
    finally:
        for node_id in cluster.nodes:
            cluster.kill(node_id)


def create_topic(
    admin: Admin, name: str, *, partitions: int = PARTITIONS, copies: int = 1, settings: Mapping[str, str] | None = None
) -> None:
    """Create a topic and wait until every replica of it is in sync."""
    from tidelog import NewTopic
    from tidelog.client.errors import UnknownTopicOrPartitionError

    configs = {"min.insync.replicas": str(max(1, copies - 1)), **(settings or {})}
    admin.create_topics([NewTopic(name, partitions, copies, configs=configs)])

    def whole() -> bool:
        try:
            (found,) = admin.describe_topics([name])
        except UnknownTopicOrPartitionError:
            return False  # the broker that was asked has not heard of it yet
        return len(found.partitions) == partitions and all(
            partition.leader >= 0 and len(partition.isr) == copies for partition in found.partitions
        )

    wait_until(f"{name} to be in sync", whole, READY_TIMEOUT_S)
