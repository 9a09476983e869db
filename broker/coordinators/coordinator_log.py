"""A coordinator's topic, read and written through the replicas that this node leads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import LeaderEpoch, Offset, TopicPartition
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.replication.coordinators.coordinator_log import LogRange, LogSlice
from tidelog.replication.manager import ReplicaManager


class ReplicatedCoordinatorLog:
    """Implements :class:`tidelog.replication.coordinators.coordinator_log.CoordinatorLog` for the partitions of
    ``topic``."""

    def __init__(self, replicas: ReplicaManager, topic: str) -> None:
        self._replicas = replicas
        self._topic = topic
        self._log = replicas.coordinating

    def append(self, partition: int, leader_epoch: LeaderEpoch, batch: bytearray) -> Awaitable[ErrorCode]:
        return self._log.append(self._at(partition), leader_epoch, batch)

    def range(self, partition: int, leader_epoch: LeaderEpoch) -> LogRange | Refusal:
        bounds = self._log.bounds(self._at(partition), leader_epoch)
        return bounds if isinstance(bounds, Refusal) else LogRange(bounds.start, bounds.end)

    async def read(
        self, partition: int, leader_epoch: LeaderEpoch, offset: Offset, bytes_max: int
    ) -> LogSlice | Refusal:
        await asyncio.sleep(0)  # let others run between slices
        found = self._log.read(self._at(partition), leader_epoch, offset, bytes_max)
        return found if isinstance(found, Refusal) else LogSlice(found.records, found.next_offset)

    def committed(self, partition: int, leader_epoch: LeaderEpoch, offset: Offset) -> Awaitable[ErrorCode]:
        return self._log.committed(self._at(partition), leader_epoch, offset)

    def batch_bytes_max(self, partition: int) -> int:
        found = self._replicas.partition_named(self._topic, partition)
        config = TopicConfig() if found is None else found.state.config
        return min(config.max_message_bytes, config.segment_bytes)

    def _at(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)
