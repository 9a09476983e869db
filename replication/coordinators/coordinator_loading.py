"""Loads a partition of a coordinator's topic, in slices, so that other work gets its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import LeaderEpoch
from tidelog.proto.records.batches import Batch, split_batches
from tidelog.proto.records.corrupt_batch import CorruptBatch
from tidelog.replication.coordinators.coordinator_log import CoordinatorLog

_REPLAYED_AT_ONCE: Final = 2_000
"""Records to replay before other work gets its turn."""


async def load(
    replay: Callable[[Batch], None], log: CoordinatorLog, partition: int, leader_epoch: LeaderEpoch, bytes_max: int
) -> str | None:
    """Replay the log to its current end, ``bytes_max`` at a time, and wait until that is committed, so that no decision
    rests on records that could still be lost. Returns None on success, else the error."""
    bounds = log.range(partition, leader_epoch)
    if isinstance(bounds, Refusal):
        return f"{bounds.code.name} {bounds.message}"
    offset = bounds.start
    unyielded = 0
    while offset < bounds.end:
        found = await log.read(partition, leader_epoch, offset, bytes_max)
        if isinstance(found, Refusal):
            return f"{found.code.name} {found.message}"
        assert found.next_offset > offset, f"expected to read on from {offset}, found {found.next_offset}"
        try:
            for batch in split_batches(found.records):
                replay(batch)
                unyielded += batch.record_count
                if unyielded >= _REPLAYED_AT_ONCE:
                    unyielded = 0
                    await asyncio.sleep(0)
        except CorruptBatch as cause:
            return str(cause)
        offset = found.next_offset
    error = await log.committed(partition, leader_epoch, bounds.end)
    return None if error is ErrorCode.NONE else error.name
