"""What logs want done from time to time: retention, checkpoints, forgetting idle producers.

Source of the intervals: Kafka's ``LogManager.startup`` and ``ReplicaManager.startHighWatermarkCheckPointThread``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidelog.model.broker_config import NodeConfig
from tidelog.model.clock import Clock
from tidelog.replication.manager import ReplicaManager
from tidelog.storage.log_manager import LogManager


class LogUpkeep:
    """Runs the three chores, each at its interval."""

    def __init__(self, config: NodeConfig, logs: LogManager, replicas: ReplicaManager, clock: Clock) -> None:
        self._config = config
        self._logs = logs
        self._replicas = replicas
        self._clock = clock

    async def run(self) -> None:
        """Work until cancelled."""
        config = self._config
        chores: list[tuple[float, Callable[[], None]]] = [
            (config.log_retention_check_interval_ms / 1000, self.retain),
            (config.replica_high_watermark_checkpoint_interval_ms / 1000, self.checkpoint),
            (config.producer_id_expiration_check_interval_ms / 1000, self.expire_producers),
        ]
        now = asyncio.get_running_loop().time
        due = [now() + interval for interval, _ in chores]
        while True:
            await asyncio.sleep(max(0.0, min(due) - now()))
            for at, (interval, work) in enumerate(chores):
                if due[at] <= now():
                    work()
                    due[at] = now() + interval
