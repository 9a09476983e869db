"""All logs of a node, in one or more directories, of which each may fail alone.

Synchronous and for one thread, like the logs. What waits for a disk is handed out as jobs for another
thread: :meth:`LogManager.begin_flushes`, :meth:`LogManager.take_removals`.

Order of a clean stop: :meth:`LogManager.write_clean_shutdown`, then :meth:`LogManager.close`. Without the
first, the next start looks for the end of every log (from its recovery point on).
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tidelog.model.clock import Clock
from tidelog.model.config_def import LONG_MAX
from tidelog.model.ids import (
    BrokerEpoch,
    DirectoryId,
    NodeId,
    Offset,
    TopicId,
    TopicIdPartition,
    TopicPartition,
    id_text,
)
from tidelog.model.topic_config import TopicConfig
from tidelog.storage.checkpoints import (
    PARTITION_METADATA,
    CorruptCheckpoint,
    decode_partition_metadata,
    encode_partition_metadata,
)
from tidelog.storage.files import FileLayer, read_file, write_file
from tidelog.storage.flush import FlushJob
from tidelog.storage.format import check_meta, read_meta
from tidelog.storage.handles import HandlePool
from tidelog.storage.log import Log
from tidelog.storage.log_directory import LogDirectory, RemovalJob
from tidelog.storage.log_errors import DirectoryRefused, LogDirFailed
from tidelog.storage.producer_state import PRODUCERS_MAX
from tidelog.storage.recovery import load_log
from tidelog.storage.segment import LOG_SUFFIX

LOCK_FILE: Final = ".lock"
DELETE_SUFFIX: Final = "-delete"
STRAY_SUFFIX: Final = "-stray"
FLUSH_AFTER_MS: Final = 60_000
"""A log without flush settings is synced at the latest this long after an append, so that a start after a
crash has little to read; Kafka leaves it to the system and reads whole segments."""
_SYNC_ALL_FROM: Final = 20
"""From this many logs on, to sync the whole file system is cheaper than one log after the other."""
_NAME_BYTES_MAX: Final = 255
_PARTITION_NAME: Final = re.compile(r"(.+)-(\d+)")

logger = logging.getLogger(__name__)


class DirectoryInfo(NamedTuple):
    """A directory as others may see it. ``failure`` is None while it works; sizes in bytes, -1 if unknown."""

    path: str
    directory_id: DirectoryId
    failure: LogDirFailed | None
    logs: tuple[Log, ...]
    total_bytes: int
    free_bytes: int


class LogManager:
    """Owns every log of a node.

    ``on_directory_failure`` is called with a directory's id when it goes out of service, in the middle of
    what failed: it should only take note. ``defaults`` are the settings of a log until its topic's are known.
    """

    def __init__(
        self,
        files: FileLayer,
        clock: Clock,
        rng: random.Random,
        directories: Sequence[str],
        *,
        cluster_id: str,
        node_id: NodeId,
        defaults: TopicConfig | None = None,
        producers_max: int = PRODUCERS_MAX,
        open_files_max: int | None = None,
    ) -> None:
        self._files = files
        self._clock = clock
        self._rng = rng
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._defaults = defaults or TopicConfig()
        self._producers_max = producers_max
        self._pool = HandlePool(files, files.open_files_max() if open_files_max is None else open_files_max)
        self._directories = [LogDirectory(files, clock, path.rstrip("/"), self._failed) for path in directories]
        self._logs: dict[TopicIdPartition, Log] = {}
        self._home: dict[Log, LogDirectory] = {}
        self.on_directory_failure: Callable[[DirectoryId], None] = lambda directory_id: None
        self.recovered_logs = 0
        """Logs whose end had to be looked for at start."""

    # --- Start and stop ------------------------------------------------------------------------

    def start(self) -> None:
        """Lock and load all directories.

        One that gives an I/O error is out of service from the start; the others go on. Raises
        :class:`DirectoryRefused` for one that is another node's or cluster's, not formatted, in use, or if a
        partition lies in two of them, and :class:`LogDirFailed` if none is left.
        """
        try:
            for directory in self._directories:
                try:
                    self._load(directory)
                except OSError as error:
                    directory.fail(error)
                except LogDirFailed:
                    pass
            ids = [directory.directory_id for directory in self._live()]
            if len(set(ids)) < len(ids):
                raise DirectoryRefused("expected a directory.id of its own in each log directory, found one twice")
            if not ids:
                failure = self._directories[0].failure
                assert failure is not None
                raise LogDirFailed(failure.directory, failure.cause)
        except BaseException:
            self.close()
            raise

    def write_clean_shutdown(self, broker_epoch: BrokerEpoch) -> None:
        """Sync and close all logs and leave behind that the stop was clean, under which epoch (KIP-966).

        A directory that fails meanwhile is left out.
        """
        for directory in self._live():
            try:
                logs = [log for log in directory.logs.values() if not log.closed]
                synced = False
                if sum(log.prepare_close() for log in logs) >= _SYNC_ALL_FROM:
                    synced = self._sync_filesystem(directory)
                for log in logs:
                    log.close(synced=synced)
                directory.checkpoint()
                directory.write_clean_shutdown(broker_epoch)
            except LogDirFailed:
                continue

    def _sync_filesystem(self, directory: LogDirectory) -> bool:
        try:
            return self._files.sync_filesystem(directory.path)
        except OSError as error:
            raise directory.fail(error) from error

    def close(self) -> None:
        """Give back locks and file descriptors, and nothing else: as the end of the process would."""
        for directory in self._directories:
            for log in directory.logs.values():
                log.abandon()
            directory.release()
        self._logs.clear()
        self._pool.close()

    def clean_shutdown_epoch(self) -> BrokerEpoch:
        """The broker epoch of the last stop, if it was clean in all directories; else -1."""
        epochs = {directory.clean_epoch for directory in self._directories}
        epoch = epochs.pop() if len(epochs) == 1 else None
        return BrokerEpoch(-1) if epoch is None else epoch

    # --- Directories ---------------------------------------------------------------------------

    @property
    def files_crowded(self) -> bool:
        """Whether so many files are held open by readers that further ones had better copy what they read."""
        return self._pool.crowded

    @property
    def directory_ids(self) -> tuple[DirectoryId, ...]:
        """Ids of the directories in service."""
        return tuple(directory.directory_id for directory in self._live())

    @property
    def directory_paths(self) -> tuple[str, ...]:
        """Paths of the directories in service."""
        return tuple(directory.path for directory in self._live())

    @property
    def offline_directory_ids(self) -> tuple[DirectoryId, ...]:
        """Ids of the directories out of service, as far as they could be read."""
        return tuple(
            directory.directory_id
            for directory in self._directories
            if directory.failure is not None and any(directory.directory_id)
        )

    def offline(self, directory_id: DirectoryId) -> bool:
        return directory_id not in self.directory_ids

    def directory_of(self, key: TopicIdPartition) -> DirectoryId | None:
        """The id of the directory that a log lies in, None if there is no such log in service."""
        log = self._logs.get(key)
        return None if log is None else self._home[log].directory_id

    @property
    def failures(self) -> Mapping[str, LogDirFailed]:
        """By path, what put directories out of service."""
        return {each.path: each.failure for each in self._directories if each.failure is not None}

    def describe(self) -> list[DirectoryInfo]:
        """All directories, failed ones included."""
        found = []
        for directory in self._directories:
            total = free = -1
            logs: tuple[Log, ...] = ()
            if directory.failure is None:
                logs = tuple(directory.logs.values())
                try:
                    total, free = self._files.disk_usage(directory.path)
                except OSError as error:
                    directory.fail(error)
            found.append(DirectoryInfo(directory.path, directory.directory_id, directory.failure, logs, total, free))
        return found

    # --- Logs ----------------------------------------------------------------------------------

    def get(self, topic_id: TopicId, partition: int) -> Log | None:
        """The log, None if there is none or its directory is out of service."""
        return self._logs.get(TopicIdPartition(topic_id, partition))

    def logs(self) -> Iterable[Log]:
        """All logs in service."""
        return tuple(self._logs.values())

    def get_or_create(
        self,
        topic: str,
        topic_id: TopicId,
        partition: int,
        config: TopicConfig,
        directory_id: DirectoryId | None = None,
    ) -> Log:
        """Return the log, made if it is not there: in the directory named, else where the fewest are.

        A directory of that name of another topic id is moved aside (``…-stray``), not deleted. Raises
        :class:`LogDirFailed` if the directory named is out of service or fails now.
        """
        key = TopicIdPartition(topic_id, partition)
        log = self._logs.get(key)
        if log is not None:
            log.update_config(config)
            return log
        name = TopicPartition(topic, partition)
        directory = self._directory_for(directory_id, name, topic_id)
        try:
            for other in self._live():
                if name in other.logs:
                    self._move_aside(other.logs[name], STRAY_SUFFIX)
                    other.forget(name)
            log = self._create(directory, name, topic_id, config)
        except OSError as error:
            raise directory.fail(error) from error
        self._take_in(directory, log)
        return log

    def delete(self, log: Log) -> None:
        """Take a log out of service and delete its files after ``file.delete.delay.ms``.

        Raises :class:`LogDirFailed`.
        """
        directory = self._home[log]
        if directory.failure is not None:
            raise LogDirFailed(directory.path, directory.failure.cause)
        try:
            path = self._move_aside(log, DELETE_SUFFIX)
        except OSError as error:
            raise directory.fail(error) from error
        directory.remove_later(path, log.config.file_delete_delay_ms)

    # --- Chores --------------------------------------------------------------------------------

    def checkpoint(
        self, high_watermarks: Mapping[TopicIdPartition, Offset] | None = None, *, points: bool = True
    ) -> None:
        """Store recovery points and log starts of all logs (unless not ``points``), and the high watermarks given.

        A directory that fails goes out of service; nothing is raised.
        """
        by_directory: dict[LogDirectory, dict[TopicPartition, int]] = {}
        for key, offset in (high_watermarks or {}).items():
            log = self._logs.get(key)
            if log is not None:
                by_directory.setdefault(self._home[log], {})[log.name] = offset
        for directory in self._live():
            try:
                offsets = None if high_watermarks is None else by_directory.get(directory, {})
                directory.checkpoint(offsets, points=points)
            except LogDirFailed:
                continue

    def high_watermarks(self) -> dict[TopicIdPartition, Offset]:
        """As last stored, of the logs that are there; none is beyond its log's end."""
        return {
            key: Offset(min(offset, log.log_end_offset))
            for key, log in self._logs.items()
            if (offset := self._home[log].high_watermarks.get(log.name, 0))
        }

    def run_retention(self, now_ms: int, high_watermark_of: Callable[[Log], int]) -> int:
        """Delete old segments of all logs. Returns how many. A directory that fails goes out of service."""
        count = 0
        for directory in self._live():
            try:
                marked = [log for log in directory.logs.values() if log.mark_expired(now_ms, high_watermark_of(log))]
                if marked:
                    directory.checkpoint()
                count += sum(log.drop_expired() for log in marked)
            except LogDirFailed:
                continue
        return count

    @property
    def files(self) -> FileLayer:
        """The disk that the logs lie on."""
        return self._files

    def clean_offset(self, log: Log) -> int:
        """Up to where compaction has seen every key of a log; -1 if it never cleaned it."""
        return self._home[log].clean_offsets.get(log.name, -1)

    def store_clean_offset(self, log: Log, offset: int) -> None:
        """Note, durably, how far compaction has come. Raises :class:`LogDirFailed`."""
        directory = self._home[log]
        try:
            directory.store_clean_offset(log.name, offset)
        except OSError as error:
            raise directory.fail(error) from error

    def store_points(self, log: Log) -> None:
        """Store the recovery points of the directory that a log lies in, so that none is older than it could be.

        Raises :class:`LogDirFailed`.
        """
        self._home[log].checkpoint()

    def fail(self, log: Log, cause: OSError) -> None:
        """Take the directory of a log in service out of service: what was done for the log failed there."""
        self._home[log].fail(cause)

    def directory_path(self, log: Log) -> str:
        """The path of the log directory that a log in service lies in."""
        return self._home[log].path

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that are idle for that long. Returns how many."""
        return sum(log.producers.expire(now_ms, expiration_ms) for log in self._logs.values())

    def begin_flushes(self, now_ms: int, *, jobs_max: int = 100) -> list[tuple[Log, FlushJob]]:
        """Jobs for logs without flush settings that rolled or have waited long; the rest see to it themselves.

        Hand each to :meth:`finish_flush` after it ran.
        """
        jobs: list[tuple[Log, FlushJob]] = []
        for log in self._logs.values():
            if log.config.flush_messages != LONG_MAX or log.config.flush_ms != LONG_MAX:
                continue
            if log.flush_due(now_ms) or log.unflushed_for_ms(now_ms) >= FLUSH_AFTER_MS:
                try:
                    job = log.begin_flush()
                except LogDirFailed:
                    return [item for item in jobs if not item[0].closed]
                if job is not None:
                    jobs.append((log, job))
                if len(jobs) >= jobs_max:
                    break
        return jobs

    def finish_flush(self, log: Log, job: FlushJob) -> None:
        """Take note of a job that ran. A directory that failed goes out of service; nothing is raised."""
        try:
            log.finish_flush(job)
        except LogDirFailed:
            return

    def take_removals(self) -> list[RemovalJob]:
        """Files that are to be removed now, by directory. Hand each to :meth:`finish_removal` after it ran."""
        return [job for directory in self._live() if (job := directory.take_removals()) is not None]

    def finish_removal(self, job: RemovalJob) -> None:
        """Trouble with a removal is no reason to give up a directory: it is said, and tried at the next start."""
        if job.error is not None:
            logger.warning("files that were to be removed stay until the next start: %s", job.error)

    # --- Loading -------------------------------------------------------------------------------

    def _load(self, directory: LogDirectory) -> None:
        path = directory.path
        meta = read_meta(self._files, path)
        if meta is None:
            if not self._files.is_directory(path):
                raise FileNotFoundError(2, "No such directory", path)
            raise DirectoryRefused(f"{path}: expected a formatted directory, found no meta.properties in it")
        check_meta(path, meta, self._cluster_id, self._node_id)
        directory.directory_id = meta.directory_id
        try:
            directory.lock = self._files.lock(f"{path}/{LOCK_FILE}")
        except BlockingIOError:
            raise DirectoryRefused(f"{path}: in use by another process: stop it, or name another directory") from None
        directory.load_points()
        clean = directory.take_clean_shutdown()
        for entry in sorted(self._files.listdir(path)):
            full = f"{path}/{entry}"
            if entry.endswith(DELETE_SUFFIX) and self._files.is_directory(full):
                directory.remove_later(full, 0)
                continue
            match = _PARTITION_NAME.fullmatch(entry)
            if match is not None:
                self._load_log(directory, TopicPartition(match[1], int(match[2])), full, clean)
        for log in directory.logs.values():
            # A log that lost its end is clean up to where it ends now; what comes there next is not.
            directory.lower_clean_offset(log.name, log.log_end_offset)

    def _load_log(self, directory: LogDirectory, name: TopicPartition, path: str, clean: bool) -> None:
        topic_id = self._topic_id_of(directory, path)
        if topic_id is None:
            return
        loaded = load_log(
            self._pool,
            path,
            self._defaults,
            clean=clean,
            recovery_point=directory.recovery_points.get(name, 0),
            log_start_offset=directory.log_start_of(name),
            producers_max=self._producers_max,
            now_ms=self._clock.now_ms(),
        )
        stored = Offset(directory.recovery_points.get(name, 0))
        log = Log(name, topic_id, path, self._defaults, loaded, directory, self._pool, self._rng, is_new=not stored)
        log.stored_recovery_point = stored
        other = self._logs.get(TopicIdPartition(topic_id, name.partition))
        if other is not None:
            raise DirectoryRefused(
                f"{name} lies in {other.directory} and in {path}: move the one that is not wanted out of the way"
            )
        self.recovered_logs += not clean
        self._take_in(directory, log)

    def _topic_id_of(self, directory: LogDirectory, path: str) -> TopicId | None:
        """Read ``partition.metadata``; None if this is no partition's directory (any more)."""
        names = self._files.listdir(path) if self._files.is_directory(path) else []
        if PARTITION_METADATA in names:
            try:
                return decode_partition_metadata(read_file(self._files, f"{path}/{PARTITION_METADATA}"))
            except CorruptCheckpoint as error:
                logger.warning("%s/%s: %s", path, PARTITION_METADATA, error)
        logs = [name for name in names if name.endswith(LOG_SUFFIX)]
        if any(self._files.size(f"{path}/{name}") for name in logs):
            logger.error("%s: expected %s, found none: moved aside", path, PARTITION_METADATA)
            self._files.rename(path, self._aside(path, STRAY_SUFFIX))
        elif logs or PARTITION_METADATA in names or (not names and self._files.is_directory(path)):
            # Killed while it was being made: there never was a record in it.
            renamed = self._aside(path, DELETE_SUFFIX)
            self._files.rename(path, renamed)
            directory.remove_later(renamed, 0)
        return None

    def _create(self, directory: LogDirectory, name: TopicPartition, topic_id: TopicId, config: TopicConfig) -> Log:
        path = f"{directory.path}/{name}"
        directory.forget(name)
        if self._files.exists(path):
            self._files.rename(path, self._aside(path, STRAY_SUFFIX))
        self._files.makedirs(path)
        write_file(self._files, f"{path}/{PARTITION_METADATA}", encode_partition_metadata(topic_id))
        loaded = load_log(
            self._pool,
            path,
            config,
            clean=True,
            recovery_point=0,
            log_start_offset=0,
            producers_max=self._producers_max,
            now_ms=self._clock.now_ms(),
            is_new=True,
        )
        return Log(name, topic_id, path, config, loaded, directory, self._pool, self._rng, is_new=True)

    def _take_in(self, directory: LogDirectory, log: Log) -> None:
        directory.logs[log.name] = log
        self._logs[TopicIdPartition(log.topic_id, log.partition)] = log
        self._home[log] = directory

    def _move_aside(self, log: Log, suffix: str) -> str:
        """Take a log out of service and rename its directory; returns the new path."""
        directory = self._home.pop(log)
        del directory.logs[log.name]
        del self._logs[TopicIdPartition(log.topic_id, log.partition)]
        log.abandon()
        path = self._aside(log.directory, suffix)
        self._files.rename(log.directory, path)
        log.moved_to(path)
        return path

    def _aside(self, path: str, suffix: str) -> str:
        """Another name for a partition's directory (Kafka: ``topic-0.<unique>-delete``)."""
        parent, _, name = path.rpartition("/")
        ending = f".{self._rng.randbytes(16).hex()}{suffix}"
        return f"{parent}/{name[: _NAME_BYTES_MAX - len(ending)]}{ending}"

    def _directory_for(self, directory_id: DirectoryId | None, name: TopicPartition, topic_id: TopicId) -> LogDirectory:
        """Where a new log goes. Not elsewhere if a directory that failed under this process holds it."""
        for directory in self._directories:
            lost = directory.logs.get(name)
            wanted = directory.directory_id == directory_id or (
                directory_id is None and lost is not None and lost.topic_id == topic_id
            )
            if wanted and directory.failure is not None:
                raise LogDirFailed(directory.path, directory.failure.cause)
            if wanted:
                return directory
        live = self._live()
        if directory_id is not None or not live:
            failures = [directory.failure for directory in self._directories if directory.failure is not None]
            if directory_id is None and failures:
                raise LogDirFailed(failures[0].directory, failures[0].cause)
            raise LogDirFailed(f"with id {id_text(directory_id or b'')}", FileNotFoundError(2, "not among log.dirs"))
        return min(live, key=lambda directory: len(directory.logs))

    def _live(self) -> list[LogDirectory]:
        return [directory for directory in self._directories if directory.failure is None]

    def _failed(self, directory: LogDirectory) -> None:
        for log in directory.logs.values():
            self._logs.pop(TopicIdPartition(log.topic_id, log.partition), None)
        self.on_directory_failure(directory.directory_id)
