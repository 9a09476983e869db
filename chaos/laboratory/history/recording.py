"""Parts shared by recorded clients: settings, the run's budget of operations, and the final read of all topics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidelog.aio import Consumer
from tidelog.chaos.laboratory.history.history_file import HistoryFile
from tidelog.client.config.security import SecuritySettings
from tidelog.model.ids import TopicPartition

POLL_S: Final = 0.5
CLIENT_SETTINGS: Final[Mapping[str, Any]] = {
    "request_timeout_ms": 2_000,
    "retry_backoff_ms": 20,
    "reconnect_backoff_ms": 20,
    "reconnect_backoff_max_ms": 200,
}
PADDING: Final = (0, 0, 20, 100)


class Budget:
    """The operations that all clients of a run together may still do; at 0 they stop sending."""

    def __init__(self, operations: int) -> None:
        self.left = operations

    def take(self) -> bool:
        self.left -= 1
        return self.left >= 0


async def read_final(
    bootstrap: str,
    partitions: Sequence[TopicPartition],
    history: HistoryFile,
    bound_s: float,
    security: SecuritySettings,
) -> dict[TopicPartition, int]:
    """Read the partitions into the history from their start to their current end, with read_committed; return their
    ends. Raises ``TimeoutError`` or the client's own error."""
    found, starts, ends = await read_through(bootstrap, partitions, bound_s, security)
    for at, records in found.items():
        history.final(at, starts[at], ends[at], records)
    return ends


async def read_through(
    bootstrap: str, partitions: Sequence[TopicPartition], bound_s: float, security: SecuritySettings
) -> tuple[dict[TopicPartition, list[tuple[int, bytes]]], dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Read the partitions from their start to their current end, with read_committed; return offsets and values, the
    starts, the ends. Raises ``TimeoutError`` or the client's own error."""
    found: dict[TopicPartition, list[tuple[int, bytes]]] = {at: [] for at in partitions}
    async with asyncio.timeout(bound_s):
        async with Consumer(
            bootstrap, auto_offset_reset="none", isolation_level="read_committed", **security, **CLIENT_SETTINGS
        ) as consumer:
            consumer.assign(list(partitions))
            starts = await consumer.beginning_offsets(list(partitions), timeout=bound_s)
            ends = await consumer.end_offsets(list(partitions), timeout=bound_s)
            for at in partitions:
                consumer.seek(at, starts[at])
            left = [at for at in partitions if ends[at] > starts[at]]
            while left:
                for record in await consumer.poll(POLL_S):
                    found[record.topic_partition].append((record.offset, record.value or b""))
                left = [at for at in left if await consumer.position(at, timeout=bound_s) < ends[at]]
    return found, {at: int(starts[at]) for at in partitions}, {at: int(ends[at]) for at in partitions}
