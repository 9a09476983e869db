"""Follows the replicas of compacted partitions in a simulated cluster: all that they hold, whenever it changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.chaos.checkers.compaction import (
    CleanedReplica,
    CompactedLogJudge,
    CompactionRules,
    KeyedRecord,
    apart,
)
from tidelog.chaos.sim.log_reading import batches_of
from tidelog.chaos.sim.world import World
from tidelog.model.ids import NodeId, TopicIdPartition
from tidelog.proto.record_decoder import decode_records
from tidelog.proto.records import Batch
from tidelog.replication.partition import Partition
from tidelog.storage.log import Log

_GRACE_MS: Final = 50
"""A cleaner may have looked at its clock a little later than the judge that comes after it."""


class CompactionWatch:
    """Judges replicas of compacted partitions. ``kept`` holds what each replica was seen with last."""

    def __init__(self, world: World) -> None:
        self._cluster = world.cluster
        self._judges: dict[TopicIdPartition, CompactedLogJudge] = {}
        self._looked: dict[tuple[TopicIdPartition, NodeId], tuple[object, ...]] = {}
        self._unpacked: dict[tuple[int, int, int], list[KeyedRecord]] = {}
        """Base offset, leader epoch and CRC of a batch → what is in it."""
        self.kept: dict[TopicIdPartition, dict[NodeId, list[KeyedRecord]]] = {}

    @property
    def gone(self) -> int:
        """Committed records that some replica was seen without, each time it was looked at."""
        return sum(judge.gone for judge in self._judges.values())

    def look(self, node_id: NodeId, key: TopicIdPartition, partition: Partition) -> list[str]:
        """Judge a replica, if anything of it has changed. Raises ``LogDirFailed``."""
        log, mark = partition.log, partition.high_watermark
        segments = tuple((segment.base_offset, segment.size) for segment in log._chain.segments)
        standing = (log.log_start_offset, mark, log.log_end_offset, segments)
        if self._looked.get((key, node_id)) == standing:
            return []
        self._looked[key, node_id] = standing
        batches, records = self._content(log)
        self.kept.setdefault(key, {})[node_id] = records
        rules = CompactionRules(log.config.min_compaction_lag_ms, log.config.delete_retention_ms)
        judge = self._judges.setdefault(key, CompactedLogJudge(rules))
        replica = CleanedReplica(node_id, log.log_start_offset, mark, log.log_end_offset, batches, records)
        return judge.observe(key, replica, self._cluster.hosts[node_id].clock.now_ms() + _GRACE_MS)

    def left(self, node_id: NodeId, key: TopicIdPartition, log: Log) -> int:
        """How many records of a replica, as it was seen last, a cleaner has left though it could take them: a later
        one of their key, old enough, is before the segment that is written to."""
        end = log._chain.active.base_offset
        newest_ms = self._cluster.hosts[node_id].clock.now_ms() - log.config.min_compaction_lag_ms
        for segment in log._chain.segments[:-1]:
            if segment.max_timestamp > newest_ms:
                end = min(end, segment.base_offset)
        keys = [record.key for record in self.kept.get(key, {}).get(node_id, ()) if record.offset < end]
        return len(keys) - len(set(keys))

    def _content(self, log: Log) -> tuple[list[tuple[int, int, int]], list[KeyedRecord]]:
        batches: list[tuple[int, int, int]] = []
        records: list[KeyedRecord] = []
        for batch in batches_of(log, log.log_start_offset, log.log_end_offset):
            batches.append((batch.base_offset, batch.last_offset, batch.leader_epoch))
            name = (batch.base_offset, batch.leader_epoch, batch.crc)
            found = self._unpacked.get(name)
            if found is None:
                found = self._unpacked[name] = [] if batch.is_control else _records_of(batch)
            records += found
        return batches, records

    def look_again(self) -> None:
        """Let every replica be looked at anew, at the end of a run."""
        self._looked.clear()
        self.kept.clear()

    def apart(self) -> list[str]:
        """Compare the replicas as they were seen last, when all is over."""
        return [text for key, replicas in self.kept.items() for text in apart(key, replicas)]


def _records_of(batch: Batch) -> list[KeyedRecord]:
    epoch = batch.leader_epoch
    return [
        KeyedRecord(r.offset, r.timestamp, epoch, r.key, r.value, mark_of(r.headers)) for r in decode_records(batch)
    ]


def mark_of(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """What tells a record from others: the values of its headers."""
    return b"".join(value or b"" for _, value in headers)
