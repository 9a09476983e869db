"""Creates logs, and loads the logs that a directory holds at start."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable
from typing import Final

from tidelog.model.clock import Clock
from tidelog.model.ids import NodeId, Offset, TopicId, TopicIdPartition, TopicPartition
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.storage.disk.checkpoints import (
    PARTITION_METADATA,
    CorruptCheckpoint,
    decode_partition_metadata,
)
from tidelog.storage.disk.files import read_file
from tidelog.storage.disk.format import check_meta, read_meta
from tidelog.storage.disk.handles import HandlePool
from tidelog.storage.disk.log_errors import DirectoryRefused
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_directory import DELETE_SUFFIX, NAME_BYTES_MAX, LogDirectory
from tidelog.storage.log.log_moves import SideName, side_name
from tidelog.storage.log.recovery import load_log, new_log
from tidelog.storage.segments.segment import LOG_SUFFIX

LOCK_FILE: Final = ".lock"
STRAY_SUFFIX: Final = "-stray"
_PARTITION_NAME: Final = re.compile(r"(.+)-(\d+)")

logger = logging.getLogger(__name__)

TakeIn = Callable[[LogDirectory, Log, bool], None]
"""Called with each log that was found, and whether its directory was closed cleanly."""


class LogLoading:
    """Creates and loads logs. ``defaults`` are a log's settings until its topic's are known. Every method raises
    ``OSError``."""

    def __init__(
        self,
        pool: HandlePool,
        clock: Clock,
        rng: random.Random,
        *,
        cluster_id: str,
        node_id: NodeId,
        defaults: TopicConfig,
        producers_max: int,
    ) -> None:
        self._pool = pool
        self._files = pool.files
        self._clock = clock
        self._rng = rng
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._defaults = defaults
        self._producers_max = producers_max

    # --- A directory at start --------------------------------------------------------------------

    def lock(self, directory: LogDirectory) -> bool:
        """Lock and verify a directory, and read its checkpoints. Returns whether it was closed cleanly.

        Raises :class:`DirectoryRefused`.
        """
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
        return directory.take_clean_shutdown()

    def load(
        self, directory: LogDirectory, clean: bool, take_in: TakeIn
    ) -> list[tuple[SideName, TopicIdPartition, str]]:
        """Load the logs in a directory. Returns what moves have left in it, with the paths."""
        left = []
        path = directory.path
        for entry in sorted(self._files.listdir(path)):
            full = f"{path}/{entry}"
            if entry.endswith(DELETE_SUFFIX) and self._files.is_directory(full):
                directory.remove_later(full, 0)
                continue
            side = side_name(entry)
            if side is not None:
                topic_id = self._topic_id_of(directory, full)
                if topic_id is not None:
                    left.append((side, TopicIdPartition(topic_id, side.partition.partition), full))
                continue
            match = _PARTITION_NAME.fullmatch(entry)
            if match is None:
                continue
            topic_id = self._topic_id_of(directory, full)
            if topic_id is None:
                continue
            name = TopicPartition(match[1], int(match[2]))
            log = self.load_log(directory, name, topic_id, full, clean=clean)
            if log.lost_end:
                directory.not_clean(f"{name} ends before what was durable")
            elif log.is_new and log.log_end_offset > log.log_start_offset:
                directory.not_clean(f"where {name} ended was not stored")
            take_in(directory, log, clean)
        return left

    def judge(self, directory: LogDirectory) -> None:
        """Compare the loaded logs with the checkpoints."""
        for name in sorted(directory.recovery_points.keys() - directory.logs):
            directory.not_clean(
                f"{name} is not there, of which offsets up to {directory.recovery_points[name]} were durable"
            )
        for log in directory.logs.values():
            # A log that lost its end is clean up to its present end; later records there are not.
            directory.lower_clean_offset(log.name, log.log_end_offset)

    # --- A log -----------------------------------------------------------------------------------

    def load_log(
        self, directory: LogDirectory, name: TopicPartition, topic_id: TopicId, path: str, *, clean: bool
    ) -> Log:
        """Load a directory's log; ``clean``: it was closed cleanly."""
        stored = Offset(directory.recovery_points.get(name, 0))
        loaded = load_log(
            self._pool,
            path,
            self._defaults,
            clean=clean,
            recovery_point=stored,
            log_start_offset=directory.log_start_of(name),
            producers_max=self._producers_max,
            now_ms=self._clock.now_ms(),
        )
        log = Log(name, topic_id, path, self._defaults, loaded, directory, self._pool, self._rng, is_new=not stored)
        log.stored_recovery_point = stored
        return log

    def create(
        self,
        directory: LogDirectory,
        path: str,
        name: TopicPartition,
        topic_id: TopicId,
        config: TopicConfig,
        *,
        log_start_offset: int = 0,
    ) -> Log:
        """Create a log where none exists. It gets its files with its first records (:meth:`Log.make_files`)."""
        loaded = new_log(self._pool, path, log_start_offset, self._producers_max, self._clock.now_ms())
        return Log(name, topic_id, path, config, loaded, directory, self._pool, self._rng, is_new=True)

    def aside(self, path: str, suffix: str) -> str:
        """Return another name for a partition's directory (Kafka: ``topic-0.<unique>-delete``)."""
        parent, _, name = path.rpartition("/")
        ending = f".{self._rng.randbytes(16).hex()}{suffix}"
        return f"{parent}/{name[: NAME_BYTES_MAX - len(ending)]}{ending}"

    def _topic_id_of(self, directory: LogDirectory, path: str) -> TopicId | None:
        """Read ``partition.metadata``; None if this is not (or no longer) a partition's directory."""
        names = self._files.listdir(path) if self._files.is_directory(path) else []
        if PARTITION_METADATA in names:
            try:
                return decode_partition_metadata(read_file(self._files, f"{path}/{PARTITION_METADATA}"))
            except CorruptCheckpoint as error:
                logger.warning("%s/%s: %s", path, PARTITION_METADATA, error)
        logs = [name for name in names if name.endswith(LOG_SUFFIX)]
        if any(self._files.size(f"{path}/{name}") for name in logs):
            logger.error("%s: expected %s, found none: moving it aside", path, PARTITION_METADATA)
            self._files.rename(path, self.aside(path, STRAY_SUFFIX))
        elif logs or PARTITION_METADATA in names or (not names and self._files.is_directory(path)):
            # Killed during creation: it never held a record.
            renamed = self.aside(path, DELETE_SUFFIX)
            self._files.rename(path, renamed)
            directory.remove_later(renamed, 0)
        return None
