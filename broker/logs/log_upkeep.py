"""Regular log maintenance: retention, syncing, checkpoints, removals, expiring idle producers.

Source of the intervals: Kafka's ``LogManager.startup`` and ``ReplicaManager.startHighWatermarkCheckPointThread``. Work
that waits for a disk runs through ``run_blocking``; the rest takes milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tidelog.model.clock import Clock
from tidelog.model.ids import TopicIdPartition
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.replication.flushing import RunBlocking
from tidelog.replication.manager import ReplicaManager
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_manager import LogManager

REMOVALS_INTERVAL_MS: Final = 1_000


class LogUpkeep:
    """Runs the chores, each at its interval."""

    def __init__(
        self, config: NodeConfig, logs: LogManager, replicas: ReplicaManager, clock: Clock, run_blocking: RunBlocking
    ) -> None:
        self._config = config
        self._logs = logs
        self._replicas = replicas
        self._clock = clock
        self._run_blocking = run_blocking

    async def run(self) -> None:
        """Work until cancelled."""
        config = self._config
        chores: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (REMOVALS_INTERVAL_MS, self.remove),
            (config.replica_high_watermark_checkpoint_interval_ms, self.store_high_watermarks),
            (config.log_flush_offset_checkpoint_interval_ms, self.store_points),
            (config.log_retention_check_interval_ms, self.retain),
            (config.producer_id_expiration_check_interval_ms, self.expire_producers),
        ]
        now = asyncio.get_running_loop().time
        due = [now() + interval_ms / 1000 for interval_ms, _ in chores]
        while True:
            await asyncio.sleep(max(0.0, min(due) - now()))
            for at, (interval_ms, work) in enumerate(chores):
                if due[at] <= now():
                    await work()
                    due[at] = now() + interval_ms / 1000

    async def remove(self) -> None:
        """Delete files whose delay has passed."""
        for job in self._logs.take_removals():
            await self._run_blocking(job.run)
            self._logs.finish_removal(job)

    async def store_high_watermarks(self) -> None:
        """Sync logs that have waited long, then store high watermarks."""
        for log, job in self._logs.begin_flushes(self._clock.now_ms()):
            await self._run_blocking(job.run)
            self._logs.finish_flush(log, job)
        self._logs.checkpoint(self._replicas.high_watermarks(), points=False)

    async def store_points(self) -> None:
        """Store recovery points and log start offsets."""
        self._logs.checkpoint()

    async def retain(self) -> None:
        """Delete segments that are too old or too many."""
        self._logs.run_retention(self._clock.now_ms(), self.high_watermark_of)

    async def expire_producers(self) -> None:
        """Forget producers that have been idle for ``producer.id.expiration.ms``."""
        self._logs.expire_producers(self._clock.now_ms(), self._config.producer_id_expiration_ms)

    def high_watermark_of(self, log: Log) -> int:
        """Return the offset up to which a log is committed; its start while this broker has no replica of it."""
        partition = self._replicas.partition(TopicIdPartition(log.topic_id, log.partition))
        return log.log_start_offset if partition is None else partition.high_watermark
