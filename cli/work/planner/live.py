"""Costs of work from the metrics of a cluster that works anyway."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidelog.broker import metrics as m
from tidelog.broker.health.facts import NodeMetrics
from tidelog.cli.failure import CommandFailed
from tidelog.cli.work.node_metrics import PageUnread, hosts, page_of, read_page, tls_context
from tidelog.cli.work.planner.coefficients import Coefficients, node_rates, non_negative_least_squares
from tidelog.cli.work.planner.measuring import Seen, difference

if TYPE_CHECKING:
    from tidelog import Admin

INTERVALS_LEAST: Final = 5
WORK_LEAST: Final = 3.0
"""Times what an idle node costs. With less, its rest would be taken for the cost of work."""
SPREAD_LEAST: Final = 3.0
"""The busiest interval's work by the quietest one's, from which on idle time is told from work."""
TLS_ON_CLIENTS: Final = frozenset({"KAFKA", "CLIENT"})
TLS_ON_NODES: Final = "REPLICATION"


class Interval(NamedTuple):
    """What a cluster did, and which of its connections are encrypted. ``rest_bytes``: memory of the largest node,
    without its replicas and connections."""

    seen: Seen
    tls_clients: bool
    tls_nodes: bool
    rest_bytes: float


class ClusterMetrics:
    """The pages of a cluster's nodes."""

    def __init__(self, admin: Admin, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._urls: dict[int, str] = {}
        for node, host in hosts(admin.describe_cluster()).items():
            try:
                self._urls[node] = page_of(admin, node, host)
            except PageUnread as error:
                raise CommandFailed(f"expected the metrics of all nodes, found none of node {node}: {error}") from None
        self._context = tls_context(settings) if any(url.startswith("https:") for url in self._urls.values()) else None

    def look(self) -> dict[int, NodeMetrics]:
        """Raises :class:`CommandFailed` if a node does not answer."""
        try:
            return {
                node: NodeMetrics(node, read_page(url, self._context, self._settings).values)
                for node, url in self._urls.items()
            }
        except PageUnread as error:
            raise CommandFailed(f"expected the metrics of all nodes: {error}") from None


def watch(
    look: Callable[[], Mapping[int, NodeMetrics]], costs: Coefficients, count: int, seconds: float
) -> Iterator[Interval]:
    """Yield ``count`` intervals. Raises :class:`CommandFailed` if a node restarts meanwhile."""
    before, began_s = look(), time.monotonic()
    for _ in range(count):
        time.sleep(seconds)
        after, now_s = look(), time.monotonic()
        if again := [node for node in after if after[node].total(m.UPTIME) < before[node].total(m.UPTIME)]:
            raise CommandFailed(f"expected nodes that run all the time, found node {again[0]} restarted; begin again")
        yield interval(before, after, now_s - began_s, costs)
        before, began_s = after, now_s


def interval(
    before: Mapping[int, NodeMetrics], after: Mapping[int, NodeMetrics], took_s: float, costs: Coefficients
) -> Interval:
    listeners = {labels[0] for node in after.values() for labels, _ in node.each(m.TLS_EXPIRY)}
    clients = bool(listeners & TLS_ON_CLIENTS)
    each = costs.connection_tls_bytes if clients else costs.connection_bytes
    rest = [
        node.values["process_resident_memory_bytes"][()]
        - node.total(m.PARTITION_COUNT) * costs.replica_bytes
        - node.total(m.KAFKA_CONNECTIONS) * each
        for node in after.values()
    ]
    return Interval(difference(before, after, took_s), clients, TLS_ON_NODES in listeners, max(rest))


def work_cores(found: Interval, costs: Coefficients) -> float:
    """Return what a node's work costs by these coefficients, without being idle."""
    rates = node_rates(found.seen)
    encrypted = costs.tls_cores(rates, clients=found.tls_clients, nodes=found.tls_nodes)
    return costs.cores(rates) + encrypted - costs.idle_cores


def found_error(found: Interval, costs: Coefficients) -> float:
    """Return by which share the prediction differs from an interval's processor time."""
    predicted = found.seen.nodes * (costs.idle_cores + work_cores(found, costs))
    return predicted / max(found.seen.cores, 1e-9) - 1


def fitted_to_cluster(found: Sequence[Interval], before: Coefficients, source: str) -> Coefficients:
    """Scale the costs so that they give the processor time that a cluster used, by least squares relative to each
    interval; its memory replaces an idle node's.

    One mix of work does not tell its parts from each other, so they keep their proportions. If the load varied enough,
    idle time gets a factor of its own. Raises :class:`CommandFailed` if the cluster does too little.
    """
    if len(found) < INTERVALS_LEAST:
        raise CommandFailed(f"expected at least {INTERVALS_LEAST} intervals, found {len(found)}")
    works = [work_cores(one, before) for one in found]
    mean = sum(works) / len(works)
    if mean < WORK_LEAST * before.idle_cores:
        raise CommandFailed(
            f"expected brokers whose work costs at least {WORK_LEAST:g} times what they need when idle, found "
            f"{mean / before.idle_cores:.2f} times: calibrate while the cluster has more load"
        )
    idle = before.idle_cores
    apart = max(works) >= SPREAD_LEAST * min(works)
    used = [one.seen.cores / one.seen.nodes for one in found]
    rows = [
        [part / cores for part in ((idle, work) if apart else (idle + work,))]
        for work, cores in zip(works, used, strict=True)
    ]
    factors = non_negative_least_squares(rows, [1.0] * len(rows))
    scaled = {name: getattr(before, name) * factors[-1] for name in WORK}
    more = replace(before, base_bytes=0.0)
    least = min(
        one.rest_bytes - more.memory_bytes(cores, node_rates(one.seen).mb_s)
        for one, cores in zip(found, used, strict=True)
    )
    return replace(before, **scaled, idle_cores=idle * factors[0], base_bytes=max(0.0, least), source=source)


WORK: Final = (
    "append_s", "append_shared_s", "copy_s", "copy_shared_s", "send_s", "send_shared_s", "append_mb_s",
    "replicate_mb_s", "read_mb_s", "tls_in_mb_s", "tls_out_mb_s", "tls_copy_mb_s", "tls_batch_s",
)  # fmt: skip
