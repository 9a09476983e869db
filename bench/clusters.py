"""Clusters of real processes for measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.work.workload import PARTITIONS as PARTITIONS
from tidelog.cli.work.workload import create_topic as create_topic


@contextmanager
def running(
    root: Path,
    nodes: int,
    settings: Mapping[str, str] | None = None,
    prepare: Callable[[LocalCluster], None] = lambda cluster: None,
    first: int = 1,
) -> Iterator[LocalCluster]:
    """Yield a new, serving cluster; it is stopped afterwards, its files stay. ``prepare``: called before it starts.
    ``first``: the lowest node id."""
    cluster = LocalCluster.create(root / "cluster", nodes=nodes, settings=settings, first=first)
    prepare(cluster)
    try:
        cluster.start()
        cluster.wait_ready()
        yield cluster
    finally:
        for node_id in cluster.nodes:
            cluster.kill(node_id)


@contextmanager
def with_topics(
    root: Path,
    nodes: int,
    *topics: str,
    partitions: int = PARTITIONS,
    copies: int | None = None,
    settings: Mapping[str, str] | None = None,
    topic_settings: Mapping[str, str] | None = None,
) -> Iterator[LocalCluster]:
    """As :func:`running`, with these topics, whose replicas are in sync. ``copies``: by default, one on each node."""
    from tidelog import Admin

    with running(root, nodes, settings) as cluster:
        with Admin(cluster.bootstrap) as admin:
            for topic in topics:
                create_topic(admin, topic, partitions=partitions, copies=copies or nodes, settings=topic_settings)
        yield cluster
