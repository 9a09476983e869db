"""All logs of a node, in one or more directories that may fail independently.

Synchronous and single-threaded, like the logs. Work that waits for a disk is returned as jobs for another thread:
:meth:`LogManager.begin_flushes`, :meth:`LogManager.take_removals`.

Order of a clean stop: :meth:`LogManager.write_clean_shutdown`, then :meth:`LogManager.close`. Without the first, the
next start searches for the end of every log (from its recovery point on).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode, Refusal
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
from tidelog.model.settings.config_def import LONG_MAX
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.storage.disk.files import FileLayer
from tidelog.storage.disk.flush import FlushJob
from tidelog.storage.disk.handles import HandlePool
from tidelog.storage.disk.log_errors import DirectoryRefused, LogDirFailed
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_directory import DELETE_SUFFIX, LogDirectory, RemovalJob
from tidelog.storage.log.log_loading import STRAY_SUFFIX, LogLoading
from tidelog.storage.log.log_moves import FUTURE_SUFFIX, Copy, LogMoves, Move
from tidelog.storage.producers.state import PRODUCERS_MAX

FLUSH_AFTER_MS: Final = 60_000
"""A log without flush settings is synced within this time after an append, so that a start after a crash has little to
read; Kafka leaves it to the system and reads whole segments."""
_SYNC_ALL_FROM: Final = 20
"""From this number of logs on, syncing the whole file system is cheaper than syncing each log."""
WISHES_MAX: Final = 10_000
"""Most pending directory choices for replicas that are not here yet; beyond that, the oldest is forgotten."""

logger = logging.getLogger(__name__)


class DirectoryInfo(NamedTuple):
    """A public description of a directory. ``failure`` is None while it works; sizes are in bytes, -1 if unknown.

    ``arriving``: logs that are moving into it.
    """

    path: str
    directory_id: DirectoryId
    failure: LogDirFailed | None
    logs: tuple[Log, ...]
    total_bytes: int
    free_bytes: int
    arriving: tuple[Move, ...] = ()


class LogManager:
    """Owns every log of a node.

    ``on_directory_failure`` is called with a directory's id when it goes out of service, in the middle of the failed
    operation: it should only take note. ``defaults`` are a log's settings until its topic's are known.
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
        self._pool = HandlePool(files, files.open_files_max() if open_files_max is None else open_files_max)
        self._loading = LogLoading(
            self._pool,
            clock,
            rng,
            cluster_id=cluster_id,
            node_id=node_id,
            defaults=defaults or TopicConfig(),
            producers_max=producers_max,
        )
        self._directories = [LogDirectory(files, clock, path.rstrip("/"), self._failed) for path in directories]
        self._logs: dict[TopicIdPartition, Log] = {}
        self._home: dict[Log, LogDirectory] = {}
        self.moves = LogMoves(files, clock, rng, self)
        self._wishes: dict[TopicPartition, str] = {}
        """Directories chosen for replicas that are not here yet."""
        self.on_directory_failure: Callable[[DirectoryId], None] = lambda directory_id: None
        self.recovered_logs = 0
        """Logs whose end had to be searched for at start."""

    # --- Start and stop ------------------------------------------------------------------------

    def start(self) -> None:
        """Lock and load all directories.

        A directory with an I/O error is out of service from the start; the others continue. Raises
        :class:`DirectoryRefused` if a directory belongs to another node or cluster, is not formatted or is in use, or
        if a partition is in two of them, and :class:`LogDirFailed` if none is left.
        """
        try:
            copies: list[Copy] = []
            for directory in self._directories:
                try:
                    self._load(directory, copies)
                except OSError as error:
                    directory.fail(error)
                except LogDirFailed:
                    pass
            self.moves.resume(copies, self._logs, self._live())
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

    def _load(self, directory: LogDirectory, copies: list[Copy]) -> None:
        clean = self._loading.lock(directory)
        for side, key, path in self._loading.load(directory, clean, self._take_in):
            if side.suffix == FUTURE_SUFFIX and side.partition not in directory.logs:
                log = self._loading.load_log(directory, side.partition, key.topic_id, path, clean=clean)
                directory.logs[log.name] = log
                copies.append((side, log, directory))
            else:
                self.moves.found_left(key, side, directory)
        self._loading.judge(directory)

    def _take_in(self, directory: LogDirectory, log: Log, clean: bool) -> None:
        other = self._logs.get(TopicIdPartition(log.topic_id, log.partition))
        if other is not None:
            raise DirectoryRefused(
                f"{log.name} lies in {other.directory} and in {log.directory}: move away the one that you do not want"
            )
        self.recovered_logs += not clean
        self.now_lies_in(log, directory)

    def write_clean_shutdown(self, broker_epoch: BrokerEpoch) -> None:
        """Sync and close all logs, and record the clean stop and its broker epoch (KIP-966).

        Skips a directory that fails meanwhile.
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
        """Release locks and file descriptors, and do nothing else, as if the process had ended."""
        for directory in self._directories:
            for log in directory.logs.values():
                log.abandon()
            directory.release()
        self._logs.clear()
        self.moves.clear()
        self._pool.close()

    def clean_shutdown_epoch(self) -> BrokerEpoch:
        """Return the broker epoch of the last stop if it was clean in all directories; else -1."""
        epochs = {directory.clean_epoch for directory in self._directories}
        epoch = epochs.pop() if len(epochs) == 1 else None
        return BrokerEpoch(-1) if epoch is None else epoch

    # --- Directories ---------------------------------------------------------------------------

    @property
    def files_crowded(self) -> bool:
        """Whether readers hold so many files open that further ones should copy."""
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
        """Return the id of the directory that holds a log, None if there is no such log in service."""
        log = self._logs.get(key)
        return None if log is None else self._home[log].directory_id

    @property
    def failures(self) -> Mapping[str, LogDirFailed]:
        """By path, the errors that took directories out of service."""
        return {each.path: each.failure for each in self._directories if each.failure is not None}

    def describe(self) -> list[DirectoryInfo]:
        """Return all directories, failed ones included."""
        found = []
        for directory in self._directories:
            total = free = -1
            logs: tuple[Log, ...] = ()
            arriving: tuple[Move, ...] = ()
            if directory.failure is None:
                arriving = self.moves.copies_in(directory)
                logs = tuple(log for log in directory.logs.values() if log in self._home)
                try:
                    total, free = self._files.disk_usage(directory.path)
                except OSError as error:
                    directory.fail(error)
            found.append(
                DirectoryInfo(directory.path, directory.directory_id, directory.failure, logs, total, free, arriving)
            )
        return found

    # --- Logs ----------------------------------------------------------------------------------

    def get(self, topic_id: TopicId, partition: int) -> Log | None:
        """Return the log, None if there is none or its directory is out of service."""
        return self._logs.get(TopicIdPartition(topic_id, partition))

    def logs(self) -> Iterable[Log]:
        """Return all logs in service."""
        return tuple(self._logs.values())

    def partitions(self) -> Sequence[TopicIdPartition]:
        """Return all partitions of which anything is here."""
        return tuple(dict.fromkeys((*self._logs, *self.moves.partitions())))

    def get_or_create(
        self,
        topic: str,
        topic_id: TopicId,
        partition: int,
        config: TopicConfig,
        directory_id: DirectoryId | None = None,
    ) -> Log:
        """Return the log; create it if missing, in the named directory, else in the one with the fewest logs.

        A directory with that name but another topic id is moved aside (``…-stray``), not deleted. Raises
        :class:`LogDirFailed` if the named directory is out of service or fails now, or if the log was moved from there
        to such a directory.
        """
        key = TopicIdPartition(topic_id, partition)
        log = self._logs.get(key)
        if log is not None:
            log.update_config(config)
            return log
        name = TopicPartition(topic, partition)
        former = self.moves.left_in(key, directory_id)
        if former is not None:
            raise LogDirFailed(f"to which {name} was moved", FileNotFoundError(2, "not here", former.path))
        directory = self._directory_for(directory_id, name, topic_id)
        self._wishes.pop(name, None)
        self.moves.drop(key)
        try:
            for other in self._live():
                if other is directory or name in other.logs:
                    self._make_way(other, name)
            log = self._loading.create(directory, f"{directory.path}/{name}", name, topic_id, config)
        except OSError as error:
            raise directory.fail(error) from error
        self.now_lies_in(log, directory)
        return log

    def delete(self, log: Log) -> None:
        """Take a log out of service and delete its files after ``file.delete.delay.ms``.

        Raises :class:`LogDirFailed`.
        """
        self.moves.drop(TopicIdPartition(log.topic_id, log.partition))
        directory = self._home[log]
        if directory.failure is not None:
            raise LogDirFailed(directory.path, directory.failure.cause)
        try:
            path = self._move_aside(log, DELETE_SUFFIX)
        except OSError as error:
            raise directory.fail(error) from error
        if path is not None:
            directory.remove_later(path, log.config.file_delete_delay_ms)

    def move(self, key: TopicIdPartition, name: TopicPartition, path: str) -> Refusal | None:
        """Start to move a log to the directory at ``path``; its current directory cancels a move.

        For a replica that is not here yet, remember the choice for the life of this process (REPLICA_NOT_AVAILABLE).
        Source: Kafka's ``ReplicaManager.alterReplicaLogDirs``.
        """
        path = path.rstrip("/") or path
        target = next((directory for directory in self._directories if directory.path == path), None)
        if target is None:
            known = ", ".join(directory.path for directory in self._directories)
            return Refusal(ErrorCode.LOG_DIR_NOT_FOUND, f"expected one of {known}, found {path}")
        if target.failure is not None:
            return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(target.failure))
        log = self._logs.get(key)
        if log is not None:
            try:
                return self.moves.begin(log, self._home[log], target)
            except LogDirFailed as failure:
                return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
        for source in self._directories:
            lost = source.logs.get(name)
            if source.failure is not None and lost is not None and lost.topic_id == key.topic_id:
                return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(source.failure))
        self._wishes.pop(name, None)
        if len(self._wishes) >= WISHES_MAX:
            del self._wishes[next(iter(self._wishes))]
        self._wishes[name] = path
        return Refusal(ErrorCode.REPLICA_NOT_AVAILABLE, f"{name} is not here; if it comes, it will lie in {path}")

    # --- For moves -----------------------------------------------------------------------------

    def make_copy(self, directory: LogDirectory, log: Log, path: str) -> Log:
        """See :class:`tidelog.storage.log.log_moves.Logs`."""
        self._make_way(directory, log.name)
        start = log.log_start_offset
        copy = self._loading.create(directory, path, log.name, log.topic_id, log.config, log_start_offset=start)
        copy.make_files()
        return copy

    def lies_in(self, log: Log) -> LogDirectory:
        """Return the directory of a log in service."""
        return self._home[log]

    def now_lies_in(self, log: Log, directory: LogDirectory) -> None:
        """Note that a log is in another directory, or is now in service."""
        before = self._home.get(log)
        if before is not None:
            del before.logs[log.name]
        directory.logs[log.name] = log
        self._logs[TopicIdPartition(log.topic_id, log.partition)] = log
        self._home[log] = directory

    # --- Chores --------------------------------------------------------------------------------

    def checkpoint(
        self, high_watermarks: Mapping[TopicIdPartition, Offset] | None = None, *, points: bool = True
    ) -> None:
        """Store all logs' recovery points and start offsets (with ``points``), and the given high watermarks.

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
        """Return the stored high watermarks of existing logs; none is past its log's end."""
        return {
            key: Offset(min(offset, log.log_end_offset))
            for key, log in self._logs.items()
            if (offset := self._home[log].high_watermarks.get(log.name, 0))
        }

    def run_retention(self, now_ms: int, high_watermark_of: Callable[[Log], int]) -> int:
        """Delete old segments in all logs. Returns how many. A directory that fails goes out of service."""
        count = 0
        for directory in self._live():
            try:
                logs = [log for log in directory.logs.values() if log in self._home]
                marked = [log for log in logs if log.mark_expired(now_ms, high_watermark_of(log))]
                if marked:
                    directory.checkpoint()
                count += sum(log.drop_expired() for log in marked)
            except LogDirFailed:
                continue
        return count

    @property
    def files(self) -> FileLayer:
        """The disk that holds the logs."""
        return self._files

    def clean_offset(self, log: Log) -> int:
        """Return up to where compaction has seen every key of a log; -1 if it was never cleaned."""
        return self._home[log].clean_offsets.get(log.name, -1)

    def store_clean_offset(self, log: Log, offset: int) -> None:
        """Note, durably, how far compaction has come. Raises :class:`LogDirFailed`."""
        directory = self._home[log]
        try:
            directory.store_clean_offset(log.name, offset)
        except OSError as error:
            raise directory.fail(error) from error

    def scrub_offset(self, log: Log) -> Offset:
        """Return the progress of the current scrub pass in a log in service."""
        return Offset(self._home[log].scrub_offsets.get(log.name, 0))

    def note_scrubbed(self, log: Log, offset: int) -> None:
        """Note the scrub's progress; :meth:`store_scrub_offsets` writes it to disk."""
        self._home[log].scrub_offsets[log.name] = offset

    def begin_scrub_pass(self) -> None:
        """Restart the scrub in every log."""
        for directory in self._live():
            directory.scrub_offsets.clear()
        self.store_scrub_offsets()

    def store_scrub_offsets(self) -> None:
        """Store the scrub's progress. A directory that fails goes out of service; nothing is raised."""
        for directory in self._live():
            try:
                directory.store_scrub_offsets()
            except LogDirFailed:
                continue

    def store_points(self, log: Log) -> None:
        """Store current recovery points for the directory that holds a log.

        Raises :class:`LogDirFailed`.
        """
        self._home[log].checkpoint()

    def fail(self, log: Log, cause: OSError) -> None:
        """Take a log's directory out of service after an operation for the log failed there."""
        self._home[log].fail(cause)

    def directory_path(self, log: Log) -> str:
        """Return the path of the log directory that holds a log in service."""
        return self._home[log].path

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that have been idle for that long. Returns how many."""
        return sum(log.producers.expire(now_ms, expiration_ms) for log in self._logs.values())

    def begin_flushes(self, now_ms: int, *, jobs_max: int = 100) -> list[tuple[Log, FlushJob]]:
        """Return flush jobs for logs without flush settings that rolled or have waited long; the other logs flush
        themselves.

        Pass each to :meth:`finish_flush` after it ran.
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
        """Note a job that ran. A directory that failed goes out of service; nothing is raised."""
        try:
            log.finish_flush(job)
        except LogDirFailed:
            return

    def take_removals(self) -> list[RemovalJob]:
        """Return the files to remove now, by directory. Pass each job to :meth:`finish_removal` after it ran."""
        return [job for directory in self._live() if (job := directory.take_removals()) is not None]

    def finish_removal(self, job: RemovalJob) -> None:
        """Log a failed removal; the next start tries again. It is no reason to give up a directory."""
        if job.error is not None:
            logger.warning("files to remove stay on disk until the next start: %s", job.error)

    # --- Inside --------------------------------------------------------------------------------

    def _make_way(self, directory: LogDirectory, name: TopicPartition) -> None:
        """Move another topic's directory out of the way of a partition's name. Raises ``OSError``."""
        other = directory.logs.get(name)
        if other is not None:
            self.moves.drop(TopicIdPartition(other.topic_id, other.partition))
        other = directory.logs.get(name)
        if other is not None:
            self._move_aside(other, STRAY_SUFFIX)
        directory.forget(name)
        path = f"{directory.path}/{name}"
        if self._files.exists(path):
            self._files.rename(path, self._loading.aside(path, STRAY_SUFFIX))

    def _move_aside(self, log: Log, suffix: str) -> str | None:
        """Take a log out of service and rename its directory; returns the new path, or ``None`` if it had none."""
        directory = self._home.pop(log)
        del directory.logs[log.name]
        del self._logs[TopicIdPartition(log.topic_id, log.partition)]
        log.abandon()
        if not log.on_disk:
            return None
        path = self._loading.aside(log.directory, suffix)
        self._files.rename(log.directory, path)
        log.moved_to(path)
        return path

    def _directory_for(self, directory_id: DirectoryId | None, name: TopicPartition, topic_id: TopicId) -> LogDirectory:
        """Return the directory for a new log. Never chooses another one if a directory that failed in this process
        holds the log."""
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
        wished = self._wishes.get(name)
        for directory in live:
            if directory.path == wished:
                return directory
        return min(live, key=lambda directory: len(directory.logs))

    def _live(self) -> list[LogDirectory]:
        return [directory for directory in self._directories if directory.failure is None]

    def _failed(self, directory: LogDirectory) -> None:
        self.moves.directory_failed(directory)
        for log in directory.logs.values():
            key = TopicIdPartition(log.topic_id, log.partition)
            if self._logs.get(key) is log:
                del self._logs[key]
        self.on_directory_failure(directory.directory_id)
