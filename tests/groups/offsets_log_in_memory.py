"""``__consumer_offsets`` in memory: what a coordinator's shell is tried on.

``hold`` keeps appends from being committed until :meth:`commit`; ``refuse`` refuses them with nothing written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from tidelog.groups.offsets_log import LogRange, LogSlice
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import LeaderEpoch, Offset
from tidelog.proto.records import patch_batch, split_batches


class MemoryOffsetsLog:
    def __init__(self) -> None:
        self.batches: dict[int, list[bytes]] = {}
        self.epochs: dict[int, LeaderEpoch] = {}
        self.hold = False
        self.refuse: ErrorCode | None = None
        self.read_gate: asyncio.Event | None = None
        self.read_refusal: Refusal | None = None
        self._waiting: list[asyncio.Future[ErrorCode]] = []
        self.reads = 0

    def lead(self, partition: int, epoch: int) -> LeaderEpoch:
        self.epochs[partition] = LeaderEpoch(epoch)
        return LeaderEpoch(epoch)

    def end(self, partition: int) -> int:
        stored = self.batches.get(partition)
        return split_batches(stored[-1])[0].next_offset if stored else 0

    def put(self, partition: int, batch: bytearray) -> None:
        patch_batch(batch, 0, base_offset=self.end(partition), leader_epoch=0)
        self.batches.setdefault(partition, []).append(bytes(batch))

    def commit(self, error: ErrorCode = ErrorCode.NONE) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.set_result(error)

    # --- OffsetsLog ---------------------------------------------------------------------------------

    def append(self, partition: int, leader_epoch: LeaderEpoch, batch: bytearray) -> Awaitable[ErrorCode]:
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        if self.epochs.get(partition) != leader_epoch:
            future.set_result(ErrorCode.NOT_COORDINATOR)
        elif self.refuse is not None:
            future.set_result(self.refuse)
        else:
            self.put(partition, batch)
            if self.hold:
                self._waiting.append(future)
            else:
                future.set_result(ErrorCode.NONE)
        return future

    def range(self, partition: int, leader_epoch: LeaderEpoch) -> LogRange | Refusal:
        if self.epochs.get(partition) != leader_epoch:
            return Refusal(ErrorCode.NOT_COORDINATOR)
        return LogRange(Offset(0), Offset(self.end(partition)))

    async def read(
        self, partition: int, leader_epoch: LeaderEpoch, offset: Offset, bytes_max: int
    ) -> LogSlice | Refusal:
        self.reads += 1
        if self.read_gate is not None:
            await self.read_gate.wait()
        if self.read_refusal is not None:
            return self.read_refusal
        found = bytearray()
        for stored in self.batches[partition]:
            if split_batches(stored)[0].last_offset < offset:
                continue
            if found and len(found) + len(stored) > bytes_max:
                break
            found += stored
        return LogSlice(bytes(found), Offset(split_batches(found)[-1].next_offset))

    async def committed(self, partition: int, leader_epoch: LeaderEpoch, offset: Offset) -> ErrorCode:
        return ErrorCode.NONE

    def batch_bytes_max(self, partition: int) -> int:
        return 1_048_588
