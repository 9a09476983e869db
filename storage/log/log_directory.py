"""One log directory: its partitions, its checkpoints, and whether it still works."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tidelog.model.clock import Clock
from tidelog.model.ids import BrokerEpoch, DirectoryId, Offset, TopicPartition
from tidelog.storage.disk.checkpoints import (
    CLEAN_OFFSETS,
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    SCRUB_OFFSETS,
    CorruptCheckpoint,
    decode_clean_shutdown,
    decode_offsets,
    encode_clean_shutdown,
    encode_offsets,
)
from tidelog.storage.disk.files import FileLayer, FileLock, read_file, replace_file, write_file
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.log.log import Log

DELETE_SUFFIX: Final = "-delete"
"""Suffix of a directory to be removed, at the next start at the latest."""
NAME_BYTES_MAX: Final = 255

_ZERO: Final = Offset(0)

logger = logging.getLogger(__name__)


class RemovalJob:
    """Files and directories that are due for removal. :meth:`run` may be called in any thread."""

    def __init__(self, files: FileLayer, paths: Iterable[str]) -> None:
        self.paths = tuple(paths)
        self.error: OSError | None = None
        self._files = files

    def run(self) -> None:
        """Remove the files. Never raises; the first error is kept in ``error``, and the next start removes
        leftovers."""
        try:
            for path in self.paths:
                if self._files.is_directory(path):
                    self._files.remove_tree(path)
                elif self._files.exists(path):
                    self._files.unlink(path)
        except OSError as error:
            self.error = error


class LogDirectory:
    """Owner of the logs in one directory (:class:`tidelog.storage.log.log.LogOwner`).

    The first I/O error sets ``failure`` permanently and calls ``on_failure``, in the middle of the failed operation.
    """

    def __init__(self, files: FileLayer, clock: Clock, path: str, on_failure: Callable[[LogDirectory], None]) -> None:
        self.path = path
        self.directory_id = DirectoryId(bytes(16))
        """As formatted; zeros if the directory could not be read at start."""
        self.failure: LogDirFailed | None = None
        self.logs: dict[TopicPartition, Log] = {}
        self.lock: FileLock | None = None
        self.clean_epoch: BrokerEpoch | None = None
        """The broker epoch in the clean-shutdown file at start; None without such a file."""
        self._files = files
        self._clock = clock
        self._on_failure = on_failure
        self._stored: dict[str, bytes] = {}
        self._starts: dict[TopicPartition, int] = {}
        self.recovery_points: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.clean_offsets: dict[TopicPartition, int] = {}
        """Up to where compaction has cleaned each log that it has visited."""
        self.scrub_offsets: dict[TopicPartition, int] = {}
        """Progress of the current scrub pass in each log that it has reached."""
        self._doomed: deque[tuple[int, str]] = deque()

    # --- LogOwner ------------------------------------------------------------------------------

    def fail(self, cause: OSError) -> LogDirFailed:
        if self.failure is None:
            self.failure = LogDirFailed(self.path, cause)
            logger.error("%s", self.failure)
            for log in self.logs.values():
                log.abandon()
            self._on_failure(self)
        return LogDirFailed(self.failure.directory, self.failure.cause)

    def store_points(self) -> None:
        """Store recovery points and log start offsets of all logs. Raises ``OSError``."""
        # Without a stored point, the next process knows that a log is new.
        self.recovery_points = {
            name: log.recovery_point for name, log in self.logs.items() if log.recovery_point and not log.is_new
        }
        # Kafka leaves out a start that is the first segment's base. But the segments before it may come back after a
        # power loss, until their removal is durable.
        self._starts = {name: log.log_start_offset for name, log in self.logs.items() if log.log_start_offset}
        self._store(RECOVERY_POINTS, self.recovery_points)
        for name, log in self.logs.items():
            log.stored_recovery_point = log.recovery_point if name in self.recovery_points else _ZERO
        self._store(LOG_STARTS, self._starts)

    def remove_later(self, path: str, delay_ms: int) -> None:
        self._doomed.append((self._clock.monotonic_ms() + delay_ms, path))

    def lower_clean_offset(self, name: TopicPartition, offset: int) -> None:
        if self.clean_offsets.get(name, 0) > offset:
            self.store_clean_offset(name, offset)

    # --- Checkpoints ---------------------------------------------------------------------------

    def store_clean_offset(self, name: TopicPartition, offset: int) -> None:
        """Note, durably, that a log is clean up to an offset. Raises ``OSError``.

        If it were too high after a power loss, a tombstone could go before the records that it deletes.
        """
        known = self.clean_offsets | {name: offset}
        self.clean_offsets = {each: at for each, at in known.items() if each in self.logs}
        self._store(CLEAN_OFFSETS, self.clean_offsets)

    def load_points(self) -> None:
        """Read all checkpoints; one that cannot be parsed counts as empty, which is safe but slow."""
        self.recovery_points = self._load(RECOVERY_POINTS)
        self._starts = self._load(LOG_STARTS)
        self.high_watermarks = self._load(HIGH_WATERMARKS)
        self.clean_offsets = self._load(CLEAN_OFFSETS)
        self.scrub_offsets = self._load(SCRUB_OFFSETS)

    def store_scrub_offsets(self) -> None:
        """Store how far the scrub has come. Raises :class:`LogDirFailed`. After a power loss, the scrub repeats a part
        of its pass.

        No stored offset is past damage: the next process does not know the damage and finds it first.
        """
        self.scrub_offsets = {name: offset for name, offset in self.scrub_offsets.items() if name in self.logs}
        damaged = {name: known.first_offset for name in self.scrub_offsets for _, known in self.logs[name].damage[:1]}
        stored = {name: min(offset, damaged.get(name, offset)) for name, offset in self.scrub_offsets.items()}
        try:
            self._store(SCRUB_OFFSETS, stored, durable=False)
        except OSError as error:
            raise self.fail(error) from error

    def log_start_of(self, name: TopicPartition) -> int:
        return self._starts.get(name, 0)

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, int] | None = None, *, points: bool = True) -> None:
        """Store all points, with ``points``, and high watermarks if given (logs not listed keep theirs).

        Raises :class:`LogDirFailed`.
        """
        try:
            if points:
                self.store_points()
            if high_watermarks is not None:
                known = self.high_watermarks | dict(high_watermarks)
                self.high_watermarks = {name: offset for name, offset in known.items() if offset and name in self.logs}
                # Lost ones are learned again; that is not worth a sync every few seconds.
                self._store(HIGH_WATERMARKS, self.high_watermarks, durable=False)
        except OSError as error:
            raise self.fail(error) from error

    def take_points_of(self, name: TopicPartition, former: LogDirectory) -> None:
        """Before a log moves here, store its checkpoints here; its copy is here already. Raises
        :class:`LogDirFailed`."""
        try:
            self.store_points()
            if name in former.clean_offsets:
                self.store_clean_offset(name, former.clean_offsets[name])
        except OSError as error:
            raise self.fail(error) from error
        self.checkpoint({name: Offset(former.high_watermarks.get(name, 0))}, points=False)

    def forget(self, name: TopicPartition) -> None:
        """Remove a partition from the checkpoints on disk before a new one takes its name. Raises ``OSError``."""
        if name in self.high_watermarks:
            self.high_watermarks = {each: at for each, at in self.high_watermarks.items() if each in self.logs}
            self._store(HIGH_WATERMARKS, self.high_watermarks)
        if name in self.recovery_points or name in self._starts:
            self.store_points()
        if self.scrub_offsets.pop(name, None) is not None:
            self._store(SCRUB_OFFSETS, self.scrub_offsets, durable=False)
        if name in self.clean_offsets:
            self.clean_offsets = {each: at for each, at in self.clean_offsets.items() if each in self.logs}
            self._store(CLEAN_OFFSETS, self.clean_offsets)

    def take_clean_shutdown(self) -> bool:
        """Read and remove the clean-shutdown file, durably: if this start is killed, the next one is not clean.

        Raises ``OSError``.
        """
        path = f"{self.path}/{CLEAN_SHUTDOWN}"
        if not self._files.exists(path):
            return False
        try:
            self.clean_epoch = decode_clean_shutdown(read_file(self._files, path))
        except CorruptCheckpoint as error:
            logger.warning("%s: does not count as a clean shutdown: %s", path, error)
        self._files.unlink(path)
        self._files.fsync_dir(self.path)
        return self.clean_epoch is not None

    def not_clean(self, found: str) -> None:
        """Withdraw the clean shutdown: a cleanly stopped broker may be elected as one that has all records, but this
        one may lack some."""
        if self.clean_epoch is not None:
            logger.error("%s: the stop counts as unclean: %s", self.path, found)
            self.clean_epoch = None

    def write_clean_shutdown(self, epoch: BrokerEpoch) -> None:
        """Write the clean-shutdown file. Raises :class:`LogDirFailed`."""
        try:
            replace_file(self._files, self.path, CLEAN_SHUTDOWN, encode_clean_shutdown(epoch))
        except OSError as error:
            raise self.fail(error) from error

    # --- Removal -------------------------------------------------------------------------------

    def take_removals(self) -> RemovalJob | None:
        """Return the files due for removal, None if there are none."""
        now_ms = self._clock.monotonic_ms()
        due = [path for at_ms, path in self._doomed if at_ms <= now_ms]
        if not due:
            return None
        self._doomed = deque(item for item in self._doomed if item[0] > now_ms)
        return RemovalJob(self._files, due)

    def release(self) -> None:
        """Release the lock."""
        lock, self.lock = self.lock, None
        if lock is not None:
            lock.release()

    def _store(self, name: str, offsets: Mapping[TopicPartition, int], *, durable: bool = True) -> None:
        content = encode_offsets(offsets)
        if self._stored.get(name) == content:
            return
        self._stored.pop(name, None)
        if durable:
            replace_file(self._files, self.path, name, content)
        else:
            path = f"{self.path}/{name}"
            write_file(self._files, path + ".tmp", content)
            self._files.rename(path + ".tmp", path)
        self._stored[name] = content

    def _load(self, name: str) -> dict[TopicPartition, int]:
        path = f"{self.path}/{name}"
        if not self._files.exists(path):
            return {}
        content = read_file(self._files, path)
        try:
            found = decode_offsets(content)
        except CorruptCheckpoint as error:
            logger.warning("%s: not used: %s", path, error)
            return {}
        self._stored[name] = content
        return found
