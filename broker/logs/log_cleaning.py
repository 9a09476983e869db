"""Compacts logs in the background (Kafka's ``LogCleaner``): finds the dirtiest, cleans it slice by slice, and repeats.

Slices run through ``run_blocking``, and the event loop runs between them; changes to a log happen on the loop. While
nothing is due, it checks every ``log.cleaner.backoff.ms``. A log that cannot be cleaned is skipped and counted; the
others continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidelog.broker.logs.io_pace import IoPace
from tidelog.model.classes.frozen import dataclass
from tidelog.model.clock import Clock
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.records.corrupt_batch import CorruptBatch
from tidelog.replication.flushing import RunBlocking
from tidelog.storage.cleaner.cleaning import Cleaning, CleaningLimits
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.log.cleaner import Candidate, LogCleaner, Uncleanable
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_manager import LogManager

STUCK_MS: Final = 300_000
"""How long a slice may take beyond the backoff. A disk that does not answer keeps its thread for good."""


@dataclass(frozen=True, slots=True)
class LastPass:
    """Metrics of the last pass. ``buffer_use``: the filled share of the key map."""

    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    buffer_use: float = 0.0


class LogCleaning:
    """The task, and the source of its metrics. ``settings``: returns the configuration in force; called before each
    pass."""

    def __init__(
        self,
        settings: Callable[[], NodeConfig],
        logs: LogManager,
        high_watermark_of: Callable[[Log], int],
        clock: Clock,
        run_blocking: RunBlocking,
    ) -> None:
        self._settings = settings
        self._logs = logs
        self._clock = clock
        self._run_blocking = run_blocking
        self._moved_ms = clock.monotonic_ms()
        self.cleaner = LogCleaner(logs, high_watermark_of)
        self.last = LastPass()
        self.passes = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.running = False
        self._pace = IoPace(lambda: settings().log_cleaner_io_max_bytes_per_second)
        """Over all passes."""

    @property
    def since_moved_ms(self) -> int:
        """Time since the last search for logs to clean, or the last slice."""
        return self._clock.monotonic_ms() - self._moved_ms

    @property
    def dead(self) -> bool:
        """Return whether the task has ended, or hangs in a slice. The end of the task also stops the node."""
        return not self.running or self.since_moved_ms > self._settings().log_cleaner_backoff_ms + STUCK_MS

    def uncleanable(self) -> list[Uncleanable]:
        """Return the logs that compaction skips, for each log directory in service."""
        return self.cleaner.uncleanable(self._clock.now_ms())

    async def run(self) -> None:
        """Work until cancelled."""
        self.running = True
        try:
            while True:
                config = self._settings()
                cleaned = await self.clean_dirtiest()
                await asyncio.sleep(0 if cleaned else config.log_cleaner_backoff_ms / 1000)
        finally:
            self.running = False

    async def clean_dirtiest(self) -> bool:
        """Clean the dirtiest logs, up to ``log.cleaner.threads`` concurrently. Returns whether there was one."""
        self._moved_ms = self._clock.monotonic_ms()
        config = self._settings()
        due = self.cleaner.due(self._clock.now_ms())[: config.log_cleaner_threads]
        if not due:
            return False
        return any(await asyncio.gather(*(self._clean(candidate, config) for candidate in due)))

    async def _clean(self, candidate: Candidate, config: NodeConfig) -> bool:
        """Clean one log. A failure affects only this log. Returns whether the pass finished."""
        log = candidate.log
        try:
            if not await self._make_durable(log, candidate.dirt.decided_before_offset):
                return False
            threads = config.log_cleaner_threads
            limits = CleaningLimits(
                config.log_cleaner_dedupe_buffer_size // threads,
                config.log_cleaner_io_buffer_load_factor,
                config.log_cleaner_io_buffer_size // threads,
            )
            cleaning = self.cleaner.begin(candidate, limits, self._clock.now_ms())
            return cleaning is not None and await self._run_pass(log, cleaning)
        except LogDirFailed:
            return False
        except MemoryError:
            raise  # a problem of the node, not of this log
        except Exception as error:
            self.cleaner.give_up(log, error)
            return False

    async def _make_durable(self, log: Log, end_offset: int) -> bool:
        """Advance the log's recovery point, including the stored one, to an offset. Returns False if that fails."""
        if log.recovery_point < end_offset:
            job = log.begin_flush()
            if job is None:
                return False  # another flush is in progress
            await self._run_blocking(job.run)
            log.finish_flush(job)
        if log.stored_recovery_point < end_offset and not log.closed:
            self._logs.store_points(log)
        return not log.closed and log.stored_recovery_point >= end_offset

    async def _run_pass(self, log: Log, cleaning: Cleaning) -> bool:
        now = asyncio.get_running_loop().time
        begun, moved = now(), 0
        try:
            while True:
                try:
                    await self._run_blocking(cleaning.step)
                except (OSError, CorruptBatch) as error:
                    self.cleaner.failed(log, cleaning, error)
                    return False
                self._moved_ms = self._clock.monotonic_ms()
                if not self.cleaner.advance(log, cleaning):
                    break
                more = cleaning.counts.bytes_moved - moved
                moved += more
                await self._pace.keep(more)
        finally:
            if not cleaning.running:
                cleaning.close()
        if not cleaning.done:
            return False
        filtered = cleaning.counts.filtered
        self.passes += 1
        self.bytes_read += filtered.bytes_read
        self.bytes_written += filtered.bytes_kept
        self.last = LastPass(filtered.bytes_read, filtered.bytes_kept, now() - begun, cleaning.counts.buffer_use)
        return True
