"""Follows the replicas of compacted partitions in a simulated cluster: their full content, whenever it changes."""

from __future__ import annotations

from typing import Final

from tidelog.chaos.checkers.compaction import (
    CleanedReplica,
    CompactedLogJudge,
    CompactionRules,
    KeyedRecord,
    Marker,
    apart,
)
from tidelog.chaos.simulated.world.log_reading import batches_of
from tidelog.chaos.simulated.world.world import World
from tidelog.chaos.stored_records import content_of
from tidelog.model.ids import NodeId, TopicIdPartition
from tidelog.replication.partition.partition import Partition
from tidelog.storage.log.log import Log

_GRACE_MS: Final = 50
"""The cleaner may have read its clock slightly later than the judge that follows it."""
AWAY_MS: Final = 20_000
"""No fault of a run, nor the catching up afterwards, keeps a replica away from the others for longer."""


class CompactionWatch:
    """Judges replicas of compacted partitions. ``kept`` holds the last seen content of each replica."""

    def __init__(self, world: World) -> None:
        self._cluster = world.cluster
        self._cleaned = world.cluster.settings.get("log.cleaner.enable", "true") == "true"
        self._judges: dict[TopicIdPartition, CompactedLogJudge] = {}
        self._looked: dict[tuple[TopicIdPartition, NodeId], tuple[object, ...]] = {}
        self._unpacked: dict[tuple[int, int, int], tuple[list[KeyedRecord], list[Marker]]] = {}
        """Base offset, leader epoch and CRC of a batch → its content."""
        self.kept: dict[TopicIdPartition, dict[NodeId, list[KeyedRecord]]] = {}

    @property
    def gone(self) -> int:
        """Return how many committed records were missing from some replica, counted at each look."""
        return sum(judge.gone for judge in self._judges.values())

    def covers(self, log: Log) -> bool:
        """Return whether a cleaner may remove something from a log; otherwise it is an ordinary log."""
        return self._cleaned and log.config.compacts

    def look(self, node_id: NodeId, key: TopicIdPartition, partition: Partition) -> list[str]:
        """Judge a replica if it has changed. Raises ``LogDirFailed``."""
        log, mark = partition.log, partition.high_watermark
        segments = tuple((segment.base_offset, segment.size) for segment in log._chain.segments)
        standing = (log.log_start_offset, mark, log.log_end_offset, segments)
        if self._looked.get((key, node_id)) == standing:
            return []
        self._looked[key, node_id] = standing
        batches, records, markers = self._content(log)
        self.kept.setdefault(key, {})[node_id] = records
        rules = CompactionRules(log.config.min_compaction_lag_ms, log.config.delete_retention_ms, AWAY_MS)
        judge = self._judges.setdefault(key, CompactedLogJudge(rules))
        replica = CleanedReplica(node_id, log.log_start_offset, mark, log.log_end_offset, batches, records, markers)
        latest_ms, spread_ms = self._cluster.furthest_clock_ms, self._cluster.clock_spread_ms
        return judge.observe(key, replica, latest_ms + _GRACE_MS, spread_ms=spread_ms)

    def left(self, node_id: NodeId, key: TopicIdPartition, log: Log) -> int:
        """Return how many records of a replica, as last seen, the cleaner could have removed but has not: a later
        record of the same key, old enough, is before the active segment."""
        end = log._chain.active.base_offset
        newest_ms = self._cluster.hosts[node_id].clock.now_ms() - log.config.min_compaction_lag_ms
        for segment in log._chain.segments[:-1]:
            if segment.max_timestamp > newest_ms:
                end = min(end, segment.base_offset)
        kept = self._judges[key].counted(key, self.kept[key][node_id]) if node_id in self.kept.get(key, {}) else []
        keys = [record.key for record in kept if record.offset < end]
        return len(keys) - len(set(keys))

    def _content(self, log: Log) -> tuple[list[tuple[int, int, int]], list[KeyedRecord], list[Marker]]:
        batches: list[tuple[int, int, int]] = []
        records: list[KeyedRecord] = []
        markers: list[Marker] = []
        for batch in batches_of(log, log.log_start_offset, log.log_end_offset):
            batches.append((batch.base_offset, batch.last_offset, batch.leader_epoch))
            name = (batch.base_offset, batch.leader_epoch, batch.crc)
            found = self._unpacked.get(name)
            if found is None:
                found = self._unpacked[name] = content_of(batch)
            records += found[0]
            markers += found[1]
        return batches, records, markers

    def look_again(self) -> None:
        """Let every replica be read again, at the end of a run."""
        self._looked.clear()
        self.kept.clear()

    def apart(self) -> list[str]:
        """Compare the replicas as last seen, at the end of a run."""
        return [
            text
            for key, replicas in self.kept.items()
            for text in apart(key, {node: self._judges[key].lasting(key, held) for node, held in replicas.items()})
        ]
