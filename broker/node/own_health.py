"""What a node finds about itself, and about the cluster as far as it knows it, by the same rules."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tidelog.broker import metrics as m
from tidelog.broker.coordinators.link_positions import links_known
from tidelog.broker.health.facts import Broker, Directory, Facts, NodeMetrics, Partition
from tidelog.broker.health.look import Look, Watch, as_object
from tidelog.broker.health.rule import Finding, Severity
from tidelog.broker.health.rules import report
from tidelog.broker.node.http import Page
from tidelog.broker.node.metric_sources import Measured, NodeSource
from tidelog.broker.traffic import Latency
from tidelog.metadata_quorum.image.config_view import ConfigView
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.ids import TopicPartition
from tidelog.model.replica_counts import effective_min_isr
from tidelog.model.settings.broker_config import NodeConfig

BUSY_MIN_S: Final = 10.0
"""Minimum time between looks for a busy share. A node's start keeps its loop busy, too."""
CLUSTER_MIN_S: Final = 1.0
"""Minimum time between looks at the cluster."""


class OwnHealth:
    """Looks on demand only."""

    def __init__(self, config: NodeConfig, node: Measured) -> None:
        self._node_id = config.node_id
        self._settings = ConfigView(config)
        self._node = node
        self._source = NodeSource(node)
        self._looked = (node.uptime_s, 0.0)
        """The node's age and its loop's processor time at the last look that gave a busy share."""
        self._watch = Watch(self)
        self._cluster: tuple[float, Look] | None = None
        """The node's age at the last look at the cluster, and what it showed."""

    def findings(self) -> list[Finding]:
        """Return the findings about this node, the most severe first."""
        return [found for found in report(self._own()).findings if found.severity is not Severity.NOTE]

    def _own(self) -> Facts:
        now_ms, broker = time.time_ns() // 1_000_000, self._node.broker
        return Facts(
            now_ms,
            directories=self._directories(),
            nodes={self._node_id: self._metrics()},
            links=None if broker is None else links_known(broker.groups.coordinator, self._node.view.image, now_ms),
        )

    def cluster_page(self) -> Page:
        """Return the cluster's health as JSON; the status is 503 if it is critical."""
        look = self.cluster()
        status = 503 if look.report.worst is Severity.CRITICAL else 200
        return Page(status, "application/json", json.dumps(as_object(look), indent=2).encode() + b"\n")

    def cluster(self) -> Look:
        """Return the cluster's health, from the metadata and this node's own metrics. A look is repeated for a second,
        as it visits every partition."""
        now_s = self._node.uptime_s
        if self._cluster is None or now_s - self._cluster[0] >= CLUSTER_MIN_S:
            self._cluster = (now_s, self._watch.look())
        return self._cluster[1]

    def facts(self) -> Facts:
        """Return what this node knows of the cluster. The rest is left out: groups, transactions, other nodes' disks
        and metrics."""
        node, image = self._node, self._node.view.image
        voters = None if node.controller is None else node.controller.quorum.voters
        return replace(
            self._own(),
            controller=node.active_controller,
            voters=None if voters is None else [int(one) for one in voters.seats],
            brokers={
                int(node_id): Broker(int(node_id), one.fenced, one.in_controlled_shutdown, one.rack)
                for node_id, one in image.brokers.items()
            },
            partitions=list(self._partitions(image)),
        )

    def _partitions(self, image: MetadataImage) -> Iterator[Partition]:
        for name in sorted(image.topic_ids):
            topic = image.topics[image.topic_ids[name]]
            min_isr = self._settings.min_isr(image, topic)
            for number in sorted(topic.partitions):
                one = topic.partitions[number]
                yield Partition(
                    TopicPartition(name, number),
                    one.leader,
                    one.replicas,
                    one.isr,
                    one.adding_replicas,
                    one.removing_replicas,
                    effective_min_isr(min_isr, one.replicas, one.adding_replicas, one.removing_replicas),
                )

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
