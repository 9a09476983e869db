"""What a node finds about itself, by the rules for whole clusters."""

from __future__ import annotations

import time
from typing import Final

from tidelog.broker import metrics as m
from tidelog.broker.coordinators.link_positions import links_known
from tidelog.broker.health.facts import Directory, Facts, NodeMetrics
from tidelog.broker.health.rule import Finding, Severity
from tidelog.broker.health.rules import report
from tidelog.broker.node.metric_sources import Measured, NodeSource
from tidelog.broker.traffic import Latency

BUSY_MIN_S: Final = 10.0
"""Minimum time between looks for a busy share. A node's start keeps its loop busy, too."""


class OwnHealth:
    """Looks on demand only."""

    def __init__(self, node_id: int, node: Measured) -> None:
        self._node_id = node_id
        self._node = node
        self._source = NodeSource(node)
        self._looked = (node.uptime_s, 0.0)
        """The node's age and its loop's processor time at the last look that gave a busy share."""

    def findings(self) -> list[Finding]:
        """Return the findings, the most severe first."""
        now_ms, broker = time.time_ns() // 1_000_000, self._node.broker
        facts = Facts(
            now_ms,
            directories=self._directories(),
            nodes={self._node_id: self._metrics()},
            links=None if broker is None else links_known(broker.groups.coordinator, self._node.view.image, now_ms),
        )
        return [found for found in report(facts).findings if found.severity is not Severity.NOTE]

    def _metrics(self) -> NodeMetrics:
        values: dict[str, dict[tuple[str, ...], float]] = {}
        for reading in self._source.readings():
            if not isinstance(reading.value, Latency):
                values.setdefault(reading.metric.exported, {})[reading.labels] = reading.value
        found = NodeMetrics(self._node_id, values)
        now_s, busy_s = found.total(m.UPTIME), found.total(m.LOOP_BUSY)
        before_s, used_s = self._looked
        if now_s - before_s < BUSY_MIN_S:
            return found
        self._looked = (now_s, busy_s)
        return NodeMetrics(self._node_id, values, busy=min((busy_s - used_s) / (now_s - before_s), 1.0))

    def _directories(self) -> list[Directory]:
        if self._node.broker is None:
            return []
        return [
            Directory(self._node_id, info.path, info.failure is not None, info.total_bytes, info.free_bytes)
            for info in self._node.broker.logs.describe()
        ]
