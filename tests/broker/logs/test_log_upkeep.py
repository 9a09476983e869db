"""The chores of logs, each at its own interval."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

from tidelog.broker.logs.log_upkeep import LogUpkeep
from tidelog.model.clock import SystemClock
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.replication.flushing import run_inline


class Logs:
    """Stands for the log manager: counts what it is asked for."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.enough = asyncio.Event()

    def begin_flushes(self, now_ms: int) -> list[Any]:
        self.asked["flushes"] += 1
        return []

    def checkpoint(self, high_watermarks: object = None, *, points: bool = True) -> None:
        assert (high_watermarks is None) == points, "each checkpoint is stored at its own interval"
        self.asked["points" if points else "high watermarks"] += 1
        if self.asked["points"] >= 3 and self.asked["high watermarks"] >= 3:
            self.enough.set()

    def take_removals(self) -> list[Any]:
        return []


class Replicas:
    def high_watermarks(self) -> dict[Any, Any]:
        return {}


async def counts(high_watermarks_ms: int, points_ms: int) -> Counter[str]:
    config = NodeConfig.parse(
        {
            "node.id": "1",
            "replica.high.watermark.checkpoint.interval.ms": str(high_watermarks_ms),
            "log.flush.offset.checkpoint.interval.ms": str(points_ms),
        }
    )
    logs = Logs()
    upkeep = LogUpkeep(config, cast(Any, logs), cast(Any, Replicas()), SystemClock(), run_inline)
    task = asyncio.ensure_future(upkeep.run())
    async with asyncio.timeout(100):
        await logs.enough.wait()
    task.cancel()
    await asyncio.wait((task,))
    return logs.asked


async def test_recovery_points_and_high_watermarks_have_their_own_intervals() -> None:
    seldom = await counts(high_watermarks_ms=5, points_ms=60)
    assert seldom["high watermarks"] > 2 * seldom["points"]
    assert seldom["flushes"] == seldom["high watermarks"]
    often = await counts(high_watermarks_ms=60, points_ms=5)
    assert often["points"] > 2 * often["high watermarks"]
