"""Rates of nodes' counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tidelog.broker import metrics as m
from tidelog.broker.health.facts import NodeMetrics

RATES: Final = {
    "bytes_in": m.BYTES_IN, "bytes_out": m.BYTES_OUT, "records_in": m.MESSAGES_IN,
    "replication_in": m.REPLICATION_BYTES_IN, "requests": m.PRODUCES,
}  # fmt: skip


class Reading(NamedTuple):
    """A node's counters and its uptime at the time of reading."""

    uptime_s: float
    counts: Mapping[str, float]


class Rates:
    """Computes rates between two readings of nodes' counters."""

    def __init__(self) -> None:
        self._before: dict[int, Reading] = {}

    def of(self, nodes: Mapping[int, NodeMetrics]) -> dict[int, dict[str, float]]:
        """Return the rates per second for the nodes that were seen before and have not restarted since."""
        now = {node: _reading(found) for node, found in nodes.items()}
        rates = {}
        for node, reading in now.items():
            before = self._before.get(node)
            if before is not None and (passed_s := reading.uptime_s - before.uptime_s) > 0:
                rates[node] = {
                    name: max(0.0, count - before.counts[name]) / passed_s for name, count in reading.counts.items()
                }
        self._before = now
        return rates


def _reading(found: NodeMetrics) -> Reading:
    counts = {}
    for name, metric in RATES.items():
        by_topic = dict(found.each(metric))
        counts[name] = by_topic.get(("",), sum(by_topic.values()))
    return Reading(found.total(m.UPTIME), counts)
