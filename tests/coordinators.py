"""What the tests of both coordinators share: a shard that a test drives by hand, and a coordinator's log in memory."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import LeaderEpoch, Offset
from tidelog.model.moment import Moment
from tidelog.proto.records.batches import Batch, patch_batch, split_batches
from tidelog.replication.coordinators.coordinator_core import BATCH_BYTES_MAX, CoordinatorCore
from tidelog.replication.coordinators.coordinator_log import LogRange, LogSlice

WALL_MS = 1_700_000_000_000

ShardT = TypeVar("ShardT", bound=CoordinatorCore[Any, Any, Any])
SettingsT = TypeVar("SettingsT")
AppendT = TypeVar("AppendT")


class ShardDesk(ABC, Generic[ShardT, SettingsT, AppendT]):
    """Requests in, answers by the handle that each returns; the test ends appends.

    ``auto``: an append is committed as soon as it is asked for. ``log``: the batches that were written.
    """

    def __init__(self, settings: SettingsT, *, auto: bool, epoch: int, now_ms: int) -> None:
        self.settings = settings
        self.auto = auto
        self.now_ms = now_ms
        self.wall_ms = WALL_MS
        self.answers: dict[int, Any] = {}
        self.appends: list[AppendT] = []
        self.log: list[AppendT] = []
        self.epoch = epoch
        self.shard = self._shard(epoch)
        self._waiter = 0
        self.perform(self.shard.loaded(self.now))

    @abstractmethod
    def _shard(self, epoch: int) -> ShardT: ...

    @abstractmethod
    def _built(self, append: AppendT) -> bytearray:
        """The batch to write."""

    @abstractmethod
    def perform(self, effects: Sequence[Any]) -> None: ...

    @property
    def now(self) -> Moment:
        return Moment(self.now_ms, self.wall_ms)

    def answer(self, waiter: int, response: object) -> None:
        assert waiter not in self.answers, f"{waiter} is answered twice"
        self.answers[waiter] = response

    def end_append(self, error: ErrorCode = ErrorCode.NONE, at: int = 0) -> None:
        """End the append at ``at`` of those under way."""
        append: Any = self.appends.pop(at)
        if error is ErrorCode.NONE:
            self.log.append(append)
        self.perform(self.shard.appended(append.token, error, self.now))

    def pass_time(self, ms: int) -> None:
        """Let time pass, timer by timer."""
        until = self.now_ms + ms
        while True:
            deadline = self.shard.next_deadline()
            if deadline is None or deadline > until:
                break
            self.wall_ms += max(deadline - self.now_ms, 0)
            self.now_ms = max(deadline, self.now_ms)
            self.perform(self.shard.tick(self.now))
        self.wall_ms += until - self.now_ms
        self.now_ms = until

    def fail_over(self, **changes: Any) -> None:
        """Another coordinator loads what was written."""
        self.perform(self.shard.resign(self.now))
        self.resigned()
        self.epoch += 1
        self.settings = replace(self.settings, **changes)  # type: ignore[type-var]  # settings are dataclasses
        self.shard = self._shard(self.epoch)
        for batch in self.batches():
            self.shard.replay(batch)
        self.perform(self.shard.loaded(self.now))

    def resigned(self) -> None:
        """Nothing that was under way is heard of again."""
        self.appends.clear()

    def batches(self) -> list[Batch]:
        data = bytearray()
        offset = 0
        for append in self.log:
            built = self._built(append)
            patch_batch(built, 0, base_offset=offset, leader_epoch=0)
            offset = split_batches(bytes(built))[0].next_offset
            data += built
        return split_batches(bytes(data)) if data else []

    def ask(self, call: Callable[..., Sequence[Any]], request: object, *more: Any) -> int:
        self._waiter += 1
        waiter = self._waiter
        self.perform(call(request, waiter, self.now, *more))
        return waiter


class MemoryLog:
    """Implements :class:`tidelog.replication.coordinators.coordinator_log.CoordinatorLog`. ``hold`` keeps appends from
    being committed until :meth:`commit`; ``refuse`` refuses them. A partition without :meth:`lead` takes any epoch."""

    def __init__(self) -> None:
        self.batches: dict[int, list[bytes]] = {}
        self.epochs: dict[int, LeaderEpoch] = {}
        self.hold = False
        self.refuse: ErrorCode | None = None
        self.read_gate: asyncio.Event | None = None
        self.range_refusal: Refusal | None = None
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

    # --- CoordinatorLog ---------------------------------------------------------------------------------

    def append(self, partition: int, leader_epoch: LeaderEpoch, batch: bytearray) -> Awaitable[ErrorCode]:
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        if self.epochs.get(partition, leader_epoch) != leader_epoch:
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
        if self.epochs.get(partition, leader_epoch) != leader_epoch:
            return Refusal(ErrorCode.NOT_COORDINATOR)
        return self.range_refusal or LogRange(Offset(0), Offset(self.end(partition)))

    async def read(
        self, partition: int, leader_epoch: LeaderEpoch, offset: Offset, bytes_max: int
    ) -> LogSlice | Refusal:
        self.reads += 1
        await asyncio.sleep(0)
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
        return BATCH_BYTES_MAX
