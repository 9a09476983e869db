"""``__consumer_offsets`` as the group coordinator of this node reads and writes it, over the replicas it leads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import LeaderEpoch, Offset, TopicPartition
from tidelog.model.names import GROUP_OFFSETS_TOPIC
from tidelog.model.topic_config import TopicConfig
from tidelog.replication.coordinator_log import LogRange, LogSlice
from tidelog.replication.manager import ReplicaManager


class ReplicatedOffsetsLog:
    """Implements :class:`tidelog.replication.coordinator_log.CoordinatorLog`."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self._log = replicas.coordinating

    def append(self, partition: int, leader_epoch: LeaderEpoch, batch: bytearray) -> Awaitable[ErrorCode]:
        return self._log.append(_at(partition), leader_epoch, batch)

    def range(self, partition: int, leader_epoch: LeaderEpoch) -> LogRange | Refusal:
        bounds = self._log.bounds(_at(partition), leader_epoch)
        return bounds if isinstance(bounds, Refusal) else LogRange(bounds.start, bounds.end)

    async def read(
        self, partition: int, leader_epoch: LeaderEpoch, offset: Offset, bytes_max: int
    ) -> LogSlice | Refusal:
        await asyncio.sleep(0)  # others get their turn between two slices
        found = self._log.read(_at(partition), leader_epoch, offset, bytes_max)
        return found if isinstance(found, Refusal) else LogSlice(found.records, found.next_offset)

    def committed(self, partition: int, leader_epoch: LeaderEpoch, offset: Offset) -> Awaitable[ErrorCode]:
        return self._log.committed(_at(partition), leader_epoch, offset)

    def batch_bytes_max(self, partition: int) -> int:
        found = self._replicas.partition_named(GROUP_OFFSETS_TOPIC, partition)
        config = TopicConfig() if found is None else found.state.config
        return min(config.max_message_bytes, config.segment_bytes)


def _at(partition: int) -> TopicPartition:
    return TopicPartition(GROUP_OFFSETS_TOPIC, partition)
