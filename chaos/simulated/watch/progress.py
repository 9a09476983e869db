"""Judges progress while a minority is in trouble: sound partitions keep working, within a bound.

A partition is whole while a majority of the controllers and two of its replicas run on directories that work, one of
the two safe to lead, no link is cut or slow, no disk is slow and no client is paused. Once that has lasted for some
seconds, and for as long as it does, producers must get acknowledgements: also for a partition that was idle when a
third replica's directory failed.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable
from typing import Final

from tidelog.broker.metadata.lifecycle_state import BrokerStanding
from tidelog.chaos.checkers.history import History
from tidelog.chaos.checkers.progress import Operation, no_progress, whole_intervals
from tidelog.chaos.simulated.watch.metadata import MetadataWatch
from tidelog.chaos.simulated.world.world import World
from tidelog.model.ids import NodeId, TopicIdPartition, TopicPartition
from tidelog.proto.logs.metadata_records import PartitionRecord

SETTLED_S: Final = 6.0
"""Counted from the last fault: sessions end, clients learn of new leaders."""
BOUND_S: Final = 6.0
REPLICAS_MIN: Final = 2


class ProgressWatch:
    """Records when each partition was whole. ``clients_stand``: whether a client is paused now."""

    def __init__(self, world: World, metadata: MetadataWatch, clients_stand: Callable[[], bool]) -> None:
        self._clients_stand = clients_stand
        self._cluster = world.cluster
        self._metadata = metadata
        self.quiet_since_s: float | None = None
        """Since when every node serves undisturbed, counted from when that has settled; may be in the future."""
        self._changes: dict[TopicIdPartition, list[tuple[float, bool]]] = {}

    def sample(self) -> None:
        """Record what is whole now."""
        running = self._running()
        now = self._cluster.loop.now
        if running is None or len(running) < len(self._cluster.node_ids) or self._any_broken():
            self.quiet_since_s = None
        elif self.quiet_since_s is None:
            self.quiet_since_s = now + SETTLED_S
        for key, found in self._metadata.partitions.items():
            changes = self._changes.setdefault(key, [])
            is_whole = running is not None and self._is_whole(key, found, running)
            if not changes or changes[-1][1] != is_whole:
                changes.append((now, is_whole))

    def judge(self, history: History) -> list[str]:
        """Report where nothing was acknowledged though everything was whole."""
        now = self._cluster.loop.now
        found = []
        for key, changes in self._changes.items():
            topic = self._metadata.image.topics.get(key.topic_id)
            if topic is None:
                continue
            at = TopicPartition(topic.name, key.partition)
            operations = [
                Operation(sent.began_s, sent.ended_s or now, sent.outcome)
                for sent in history.sends
                if sent.partition == at and sent.durable
            ]
            intervals = whole_intervals(changes, now, SETTLED_S)
            found += [f"{at}: {text}" for text in no_progress(operations, intervals, BOUND_S)]
        return found

    def _running(self) -> frozenset[NodeId] | None:
        """Return the nodes that run and serve; ``None`` if anything is disturbed by more than a broken directory."""
        cluster = self._cluster
        if cluster.fabric.is_troubled or any(cluster.slow_disks.values()) or self._clients_stand():
            return None
        running = []
        for node_id, node in cluster.nodes.items():
            host = cluster.hosts[node_id]
            if host.files is None or host.process.paused or node.broker is None:
                continue
            if node.broker.standing is not BrokerStanding.RUNNING:
                return None
            running.append(node_id)
        voters = [node_id for node_id in running if node_id in cluster.controller_ids]
        return frozenset(running) if len(voters) * 2 > len(cluster.controller_ids) else None

    def _any_broken(self) -> bool:
        return any(host.files is not None and host.files.faults.broken for host in self._cluster.hosts.values())

    def _is_whole(self, key: TopicIdPartition, partition: PartitionRecord, running: frozenset[NodeId]) -> bool:
        able = {node_id for node_id in partition.replicas if node_id in running and self._holds(node_id, key)}
        safe = able.intersection((*partition.isr, *partition.eligible_leader_replicas))
        return bool(safe) and len(able) >= REPLICAS_MIN

    def _holds(self, node_id: NodeId, key: TopicIdPartition) -> bool:
        """Return whether the directory of a running node's replica works."""
        files, broker = self._cluster.hosts[node_id].files, self._cluster.nodes[node_id].broker
        if files is None or not files.faults.broken:
            return True
        replica = None if broker is None else broker.replicas.replicas.get(key)
        if replica is None or replica.partition.offline:
            return False
        return os.path.dirname(replica.partition.log.directory) not in files.faults.broken
