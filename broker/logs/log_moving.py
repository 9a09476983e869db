"""Moves logs between this node's directories while they are in use (KIP-113).

Copies piece by piece, taking turns between logs, at ``replica.alter.log.dirs.io.max.bytes.per.second`` at most. A
complete copy is synced in another thread. Then the few new records are copied and the log switches to the other
directory, in one step (:mod:`tidelog.storage.log.log_moves`). Source: Kafka's ``ReplicaAlterLogDirsThread``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tidelog.broker.logs.io_pace import IoPace
from tidelog.model.errors import Refusal
from tidelog.model.ids import TopicIdPartition
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.replication.flushing import RunBlocking
from tidelog.storage.disk.flush import FlushJob
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_manager import LogManager
from tidelog.storage.log.log_moves import Move

LOOK_S: Final = 0.2
"""Pause between checks for moves while there is nothing to copy."""
PIECE_BYTES: Final = 256 * 1024
"""Bytes to copy at a time."""
FLUSH_BYTES: Final = 32 * 2**20
"""Bytes of a copy to sync at a time."""
LAST_PIECES_MAX: Final = 4
"""A move is committed if at most this many pieces arrived during the sync; they are synced with the commit."""

log = logging.getLogger(__name__)


class LogMoving:
    """The task. ``settings``: the configuration in force."""

    def __init__(self, settings: Callable[[], NodeConfig], logs: LogManager, run_blocking: RunBlocking) -> None:
        self._settings = settings
        self._logs = logs
        self._run_blocking = run_blocking
        self._pace = IoPace(lambda: self._rate)
        self._unsynced: dict[Log, int] = {}
        """Unsynced bytes of each copy."""
        self._stuck: dict[Log, str] = {}
        self.bytes_copied = 0

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            works = False
            for key in tuple(self._logs.moves.under_way):
                works |= await self.step(key)
            copies = [move.copy for move in self._logs.moves.under_way.values()]
            self._unsynced = {copy: self._unsynced.get(copy, 0) for copy in copies}
            self._stuck = {copy: self._stuck[copy] for copy in copies if copy in self._stuck}
            await asyncio.sleep(0 if works else LOOK_S)

    async def step(self, key: TopicIdPartition) -> bool:
        """Advance one move by a piece. Returns False if there is nothing to do for it now."""
        move = self._logs.moves.under_way.get(key)
        if move is None:
            return False
        try:
            copied = self._copy(key, move)
            if copied:
                await self._pace.keep(copied)
                if self._unsynced[move.copy] >= FLUSH_BYTES:
                    await self._sync(move.copy)
                return True
            return move.lag == 0 and await self._end(key, move)
        except LogDirFailed:
            return False  # the directory's owner has noted it

    async def _end(self, key: TopicIdPartition, move: Move) -> bool:
        """Commit a move whose copy is complete. Returns False if it has to wait."""
        if move.log.is_new:
            await self._sync(move.log)
        if self._unsynced.get(move.copy) or move.copy.is_new:
            await self._sync(move.copy)
        if self._logs.moves.under_way.get(key) is not move:
            return False
        for _ in range(LAST_PIECES_MAX):
            if not self._copy(key, move):
                break
        if not self._logs.moves.is_ready(key):
            return move.lag > 0
        self._logs.moves.decide(key)
        return True

    def _copy(self, key: TopicIdPartition, move: Move) -> int:
        """Copy a piece. Returns its bytes."""
        copied = self._logs.moves.copy(key, min(PIECE_BYTES, self._rate))
        if isinstance(copied, Refusal):
            if self._stuck.get(move.copy) != copied.message:
                self._stuck[move.copy] = copied.message
                log.warning("%s stops moving: %s", move.log.name, copied.message)
            return 0
        self.bytes_copied += copied
        self._unsynced[move.copy] = self._unsynced.get(move.copy, 0) + copied
        return copied

    @property
    def _rate(self) -> int:
        config = self._settings()
        return max(1, config.replica_alter_log_dirs_io_max_bytes_per_second)

    async def _sync(self, wanted: Log) -> None:
        """Make a log durable up to its current end, unless somebody else is doing so."""
        if wanted.closed:
            return
        job: FlushJob | None = wanted.begin_flush(whole=wanted.is_new)
        if job is None:
            return
        self._unsynced[wanted] = 0
        try:
            await self._run_blocking(job.run)
        except BaseException:
            job.release()
            raise
        wanted.finish_flush(job)
