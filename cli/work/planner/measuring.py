"""Runs loads on a throw-away cluster, and reads from the nodes' own metrics what they did and what it cost."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidelog.broker import metrics as m
from tidelog.broker.health.facts import NodeMetrics
from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.cluster import LocalCluster
from tidelog.cli.local.secured import DIRECTORY
from tidelog.cli.work import local_security
from tidelog.cli.work.certificates import CA
from tidelog.cli.work.local_security import ADMIN
from tidelog.cli.work.node_metrics import parse
from tidelog.cli.work.workload import PARTITIONS, create_topic, values_of

if TYPE_CHECKING:
    from tidelog.client.delivery import BulkFuture

NODES: Final = 3
WARM_UP_S: Final = 2.0
PACE: Final = 0.95
PENDING_MAX: Final = 200
"""Maximum batches in flight; at this bound the producer falls behind."""
READY_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.5
SETTINGS: Final = {"log.retention.check.interval.ms": "2000", "log.segment.delete.delay.ms": "1000"}
RETENTION: Final = {"retention.bytes": str(64 * 2**20), "segment.bytes": str(16 * 2**20)}
"""Old segments are deleted, so that a campaign does not fill a small disk."""


class Load(NamedTuple):
    """``batches`` per second of ``batch_bytes``, in records of at most ``record_bytes``, to a topic with ``copies``
    replicas; ``readers`` read all of it."""

    batches: float
    batch_bytes: int
    copies: int
    readers: int = 0
    record_bytes: int = 1_000
    tls: bool = False
    """On all connections."""


LOADS: Final = (
    Load(0, 1_000, 3),
    Load(100, 1_000, 1),
    Load(800, 1_000, 1),
    Load(80, 256_000, 1),
    Load(50, 1_000, 3),
    Load(200, 1_000, 3),
    Load(400, 1_000, 3),
    Load(1_000, 1_000, 3),
    Load(3_000, 1_000, 3),
    Load(3_000, 1_000, 1),
    Load(40, 256_000, 3),
    Load(160, 64_000, 3),
    Load(100, 1_000, 3, readers=2),
    Load(40, 256_000, 3, readers=2),
    Load(80, 256_000, 1, readers=1),
    Load(1_000, 1_000, 3, readers=2),
)
"""The loads that coefficients are fitted to."""
CHECKS: Final = (
    Load(150, 16_000, 3, readers=1),
    Load(60, 100_000, 3),
    Load(300, 4_000, 3, readers=1),
    Load(2_000, 2_000, 3, readers=1),
)
"""Loads that are not used for the fit: they show how well it predicts."""


class Seen(NamedTuple):
    """What a cluster did, all nodes together: rates per second, megabytes of 10^6 bytes. ``cores``: processor time per
    second; ``memory_bytes``: of the largest node."""

    nodes: int
    cores: float
    batches: float
    append_mb: float
    replicated_mb: float
    read_mb: float
    copies: float
    readers: float
    memory_bytes: float


def kept_pace(load: Load, seen: Seen) -> bool:
    """Return whether the producer sent what it should. If it fell behind, batches were merged and cost less."""
    return seen.batches >= PACE * load.batches


def campaign(root: Path, loads: tuple[Load, ...], seconds: float) -> Iterator[tuple[Load, Seen]]:
    """Run one load after the other on one cluster, with TLS if they have it. Raises :class:`CommandFailed` if it does
    not start or does not answer."""
    from tidelog import Admin

    cluster = LocalCluster.create(root / "cluster", nodes=NODES, settings=SETTINGS)
    client = _secured(cluster) if any(load.tls for load in loads) else {}
    try:
        cluster.start()
        cluster.wait_ready()
        with Admin(cluster.bootstrap, **client) as admin:
            for number, load in enumerate(loads):
                topic = f"load-{number}"
                create_topic(admin, topic, copies=load.copies, settings=RETENTION)
                with running(cluster.bootstrap, topic, load, client):
                    time.sleep(WARM_UP_S)
                    before, began = look(cluster), time.monotonic()
                    time.sleep(seconds)
                    after, took = look(cluster), time.monotonic() - began
                admin.delete_topics([topic])
                yield load, difference(before, after, took)._replace(copies=load.copies, readers=load.readers)
    finally:
        for node in cluster.nodes:
            cluster.kill(node)


def _secured(cluster: LocalCluster) -> dict[str, Any]:
    """Encrypt all connections of a new cluster. Returns the settings of clients."""
    local_security.lay_out(cluster, local_security.TLS)
    place = cluster.directory / DIRECTORY
    return {
        "security_protocol": "SSL", "ssl_cafile": str(place / CA), "ssl_certfile": str(place / f"{ADMIN}.pem"),
    }  # fmt: skip


def look(cluster: LocalCluster) -> dict[int, NodeMetrics]:
    """Return the nodes' metrics now."""
    found = {}
    for node_id, node in cluster.nodes.items():
        status, body = node.get("/metrics", timeout_s=10)
        if status != 200:
            raise CommandFailed(f"node {node_id}: expected its metrics, found HTTP {status}: {node.last_words()}")
        found[node_id] = NodeMetrics(node_id, parse(body.decode(), f"node {node_id}"))
    return found


def difference(before: Mapping[int, NodeMetrics], after: Mapping[int, NodeMetrics], took_s: float) -> Seen:
    """Return the rates between two looks. Copies and readers follow from the bytes."""

    def rate(name: str, *labels: str) -> float:
        return (
            sum(
                after[node].values.get(name, {}).get(labels, 0.0) - before[node].values.get(name, {}).get(labels, 0.0)
                for node in after
            )
            / took_s
        )

    append_mb, replicated_mb, read_mb = (
        rate(name, *labels) / 1e6
        for name, *labels in ((m.BYTES_IN.exported, ""), (m.REPLICATION_BYTES_IN.exported,), (m.BYTES_OUT.exported, ""))
    )
    return Seen(
        len(after),
        rate("process_cpu_seconds_total"),
        rate(m.BATCHES_IN.exported),
        append_mb,
        replicated_mb,
        read_mb,
        1 + (replicated_mb / append_mb if append_mb else 0),
        read_mb / append_mb if append_mb else 0,
        max(one.values["process_resident_memory_bytes"][()] for one in after.values()),
    )


@contextmanager
def running(bootstrap: str, topic: str, load: Load, client: Mapping[str, Any] = MappingProxyType({})) -> Iterator[None]:
    """Run the load in threads of this process until the block ends. ``client``: how they connect."""
    from tidelog import Consumer, Producer, TopicPartition  # noqa: F401  here, not by several threads at a time

    stop = threading.Event()
    works = [partial(_produce, bootstrap, topic, load, client, stop)]
    works += [partial(_consume, bootstrap, topic, client, stop)] * load.readers
    begun = [threading.Event() for _ in works]
    errors: list[BaseException] = []

    def guarded(work: Callable[[Callable[[], None]], None], began: threading.Event) -> None:
        try:
            work(began.set)
        except BaseException as error:
            errors.append(error)
        finally:
            began.set()

    threads = [threading.Thread(target=guarded, args=both) for both in zip(works, begun, strict=True)]
    for thread in threads:
        thread.start()
    try:
        if load.batches and not all(began.wait(READY_TIMEOUT_S) for began in begun):
            raise CommandFailed(f"{load}: no record was written and read within {READY_TIMEOUT_S:.0f} s")
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if errors:
        raise CommandFailed(f"a load failed: {errors[0]}")


def _produce(
    bootstrap: str,
    topic: str,
    load: Load,
    client: Mapping[str, Any],
    stop: threading.Event,
    begun: Callable[[], None],
) -> None:
    from tidelog import Producer

    size = min(load.record_bytes, load.batch_bytes)
    values = values_of(size, max(1, load.batch_bytes // size))
    with Producer(bootstrap, acks="all", linger_ms=0, bulk_batch_size=2 * load.batch_bytes, **client) as producer:
        began, number = time.monotonic(), 0
        pending: deque[BulkFuture] = deque()
        while not stop.is_set():
            if not load.batches:
                stop.wait()
                break
            due = began + number / load.batches
            if (wait_s := due - time.monotonic()) > 0:
                stop.wait(wait_s)
            pending.append(producer.send_many(topic, values, partition=number % PARTITIONS))
            if number == 0 or len(pending) > PENDING_MAX:
                pending.popleft().result(READY_TIMEOUT_S)
                begun()
            number += 1
        producer.flush(READY_TIMEOUT_S)


def _consume(
    bootstrap: str, topic: str, client: Mapping[str, Any], stop: threading.Event, begun: Callable[[], None]
) -> None:
    from tidelog import Consumer, TopicPartition

    with Consumer(bootstrap, **client) as consumer:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_end(*partitions)
        while not stop.is_set():
            if consumer.poll_batches(POLL_S):
                begun()
