"""Chooses the log to clean next, and handles logs that cannot be cleaned. Runs on the logs' own thread.

Source: Kafka's ``LogCleanerManager``. The pass itself is in :mod:`tidelog.storage.cleaner.cleaning`.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from tidelog.model.settings.config_def import LONG_MAX
from tidelog.proto.records.corrupt_batch import CorruptBatch
from tidelog.storage.cleaner.cleaning import Cleaning, CleaningLimits
from tidelog.storage.cleaner.plan import Dirt
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_manager import LogManager

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Lack of space for a copy is harmless: the log stays in service, and the cleaner tries again."""

logger = logging.getLogger(__name__)


class Candidate(NamedTuple):
    """A log that is due for cleaning."""

    log: Log
    dirt: Dirt


class Uncleanable(NamedTuple):
    """Per log directory: logs on which a pass failed, and the bytes that it left there."""

    directory: str
    logs: int
    size: int


class LogCleaner:
    """Chooses and advances passes. ``high_watermark_of`` returns the offset up to which a log is committed."""

    def __init__(self, logs: LogManager, high_watermark_of: Callable[[Log], int]) -> None:
        self._logs = logs
        self._high_watermark_of = high_watermark_of
        self._uncleanable: dict[Log, str] = {}
        self.dirty_ratio_max = 0.0
        """The dirty ratio of the dirtiest log, at the last check."""
        self.delay_ms_max = 0
        """The longest time past ``max.compaction.lag.ms``, at the last check."""

    # --- What to clean ---------------------------------------------------------------------------

    def due(self, now_ms: int, passed_over: Iterable[Log] = ()) -> list[Candidate]:
        """Return the compacted logs that are due, the dirtiest first, without those in ``passed_over``.

        If ``max.compaction.lag.ms`` is set, this first closes an older active segment, so that it can be cleaned even
        without new appends.
        """
        skipped = set(passed_over)
        self._forget_gone()
        found: list[Candidate] = []
        ratio_max, delay_max = 0.0, 0
        for log in self._logs.logs():
            if not log.config.compacts or log.moving or log in self._uncleanable or log in skipped:
                continue
            try:
                if log.config.max_compaction_lag_ms < LONG_MAX:
                    log.maybe_roll(now_ms)
                dirt = self._dirt(log, now_ms)
                if dirt.checkpoint_is_void:
                    self._logs.store_clean_offset(log, dirt.first_dirty_offset)
            except LogDirFailed:
                continue
            except CorruptBatch as error:
                self._give_up(log, error)
                continue
            ratio_max, delay_max = max(ratio_max, dirt.ratio), max(delay_max, dirt.delay_ms)
            if dirt.is_due(log.config):
                found.append(Candidate(log, dirt))
        self.dirty_ratio_max, self.delay_ms_max = ratio_max, delay_max
        found.sort(key=lambda candidate: (-candidate.dirt.ratio, candidate.log.name))
        return found

    def begin(self, candidate: Candidate, limits: CleaningLimits, now_ms: int) -> Cleaning | None:
        """Start a pass over a log that is durable up to the end of the pass; None if it cannot start."""
        try:
            return candidate.log.begin_cleaning(candidate.dirt, limits, now_ms)
        except LogDirFailed:
            return None
        except CorruptBatch as error:
            self._give_up(candidate.log, error)
            return None

    # --- A pass ----------------------------------------------------------------------------------

    def advance(self, log: Log, cleaning: Cleaning) -> bool:
        """Swap in a ready group between two slices, and note the end. Returns whether the pass continues."""
        try:
            if not log.is_current(cleaning) or (cleaning.ready is not None and not log.swap_in(cleaning)):
                logger.info("%s: cleaning abandoned: the log has changed", log.name)
                self.drop(log, cleaning)
                return False
            if cleaning.done:
                cleaning.close()
                self._logs.store_clean_offset(log, cleaning.end_offset)
                return False
        except LogDirFailed:
            cleaning.close()
            return False
        return True

    def failed(self, log: Log, cleaning: Cleaning, error: OSError | CorruptBatch) -> None:
        """Handle a failed slice: the log is gone or was truncated meanwhile, the disk is full, or it is a real
        error."""
        if not log.is_current(cleaning):
            self.drop(log, cleaning)
            return
        self.drop(log, cleaning)
        if isinstance(error, CorruptBatch):
            log.suspect(cleaning.read_offset)
            self._give_up(log, error)
        elif error.errno in _FULL:
            logger.warning("%s: not cleaned: no room for a copy: %s", log.name, error)
        elif isinstance(error, FileNotFoundError):
            logger.info("%s: cleaning abandoned: a segment was deleted meanwhile", log.name)
        else:
            self._logs.fail(log, error)

    def drop(self, log: Log, cleaning: Cleaning) -> None:
        """End a pass, and remove files that were copied but not swapped; the next start removes leftovers."""
        cleaning.close()
        if log.closed:
            return
        try:
            for path in cleaning.leftovers():
                if self._logs.files.exists(path):
                    self._logs.files.unlink(path)
        except OSError as error:
            logger.warning("%s: the cleaner's copy stays until the next start: %s", log.name, error)

    # --- What cannot be cleaned ------------------------------------------------------------------

    def give_up(self, log: Log, error: Exception) -> None:
        """Exclude a log from cleaning until the next start, so that it does not block the others."""
        logger.error("%s: no longer cleaned: %s", log.name, error, exc_info=error)
        self._uncleanable[log] = self._logs.directory_path(log) if not log.closed else ""

    def mended(self, log: Log) -> None:
        """Allow a log to be cleaned again after its obstacle is gone."""
        self._uncleanable.pop(log, None)

    def uncleanable(self, now_ms: int) -> list[Uncleanable]:
        """Return the uncleanable logs per directory in service; normally there are none."""
        self._forget_gone()
        found: dict[str, list[int]] = {path: [] for path in self._logs.directory_paths}
        for log, directory in self._uncleanable.items():
            try:
                dirt = self._dirt(log, now_ms)
                size = dirt.cleanable_bytes + dirt.uncleanable_bytes
            except (LogDirFailed, CorruptBatch):
                size = 0
            found.setdefault(directory, []).append(size)
        return [Uncleanable(directory, len(sizes), sum(sizes)) for directory, sizes in sorted(found.items())]

    def _give_up(self, log: Log, error: CorruptBatch) -> None:
        logger.error("%s: no longer cleaned, it is unreadable: %s", log.name, error)
        self._uncleanable[log] = self._logs.directory_path(log)

    def _forget_gone(self) -> None:
        for log in [log for log in self._uncleanable if log.closed]:
            del self._uncleanable[log]

    def _dirt(self, log: Log, now_ms: int) -> Dirt:
        return log.find_dirt(self._logs.clean_offset(log), self._high_watermark_of(log), now_ms)
