"""A log's state and durability, below the appends and reads of :class:`tidelog.storage.log.log.Log`."""

from __future__ import annotations

import random
from typing import Final, Protocol

from tidelog.model.ids import LeaderEpoch, Offset, TopicId, TopicPartition
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.storage.disk.checkpoints import encode_epochs, encode_partition_metadata
from tidelog.storage.disk.flush import FlushJob, FlushState
from tidelog.storage.disk.handles import HandlePool
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.disk.write_job import WriteJob
from tidelog.storage.log.recovery import LoadedLog
from tidelog.storage.producers.loading import load_producers
from tidelog.storage.producers.snapshot import encode_snapshot
from tidelog.storage.segments.log_read import ReadHints
from tidelog.storage.segments.segment_chain import SegmentChain

SNAPSHOT_BYTES: Final = 64 * 1024 * 1024
"""Bytes of log between two producer snapshots at flushes; bounds the replay after a crash."""


class LogOwner(Protocol):
    """The methods that a log needs of its directory."""

    @property
    def failure(self) -> LogDirFailed | None:
        """The error that took the directory out of service."""

    def fail(self, cause: OSError) -> LogDirFailed:
        """Take the directory out of service; return the exception to raise."""

    def store_points(self) -> None:
        """Store all logs' recovery points and start offsets, durably. Raises ``OSError``."""

    def lower_clean_offset(self, name: TopicPartition, offset: int) -> None:
        """Note, durably, that a log is clean up to ``offset`` at most, before it is truncated there. Raises
        ``OSError``."""

    def remove_later(self, path: str, delay_ms: int) -> None:
        """Remove a file or directory after a while."""


class LogState:
    """Identity, extent and durability of a log, and how it closes."""

    __slots__ = (
        "_chain",
        "_closed",
        "_cuts",
        "_epochs",
        "_flushes",
        "_hints",
        "_jitter_ms",
        "_owner",
        "_pool",
        "_rng",
        "_sparse",
        "_suspects",
        "config",
        "directory",
        "log_end_offset",
        "log_start_offset",
        "lost_end",
        "mendable",
        "moving",
        "name",
        "producers",
        "topic_id",
        "writing",
    )

    def __init__(
        self,
        name: TopicPartition,
        topic_id: TopicId,
        directory: str,
        config: TopicConfig,
        loaded: LoadedLog,
        owner: LogOwner,
        pool: HandlePool,
        rng: random.Random,
        *,
        is_new: bool,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.directory = directory
        self.config = config
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.producers = loaded.producers
        self.lost_end = loaded.lost_end
        """When loaded, it ended before its durable end."""
        self._owner = owner
        self._pool = pool
        self._rng = rng
        self._epochs = loaded.epochs
        self._chain = SegmentChain(
            pool,
            directory,
            loaded.segments,
            loaded.snapshots,
            loaded.recovery_point,
            self._delete_later,
            on_disk=loaded.on_disk,
        )
        # A killed process's name changes may not be durable, though they are visible.
        self._chain.names_changed |= not loaded.was_clean
        self._sparse = loaded.sparse
        self._suspects: dict[int, None] = {}
        """Offsets at which readers met damage."""
        self._hints = ReadHints()
        self._jitter_ms = self._new_jitter()
        unflushed = loaded.log_end_offset > loaded.recovery_point
        since_ms = loaded.loaded_ms if unflushed else -1
        self._flushes = FlushState(loaded.recovery_point, unflushed_since_ms=since_ms, is_new=is_new)
        self.mendable = True
        """Whether another replica may have the damaged records; false once all were asked in vain."""
        self.moving = False
        """Whether it is moving to another directory, and so must not be compacted."""
        self._closed = False
        self.writing: WriteJob | None = None
        """The last records, if they are not in the file yet."""
        self._cuts = 0
        """How often the log's end was truncated: this voids compactions started earlier."""

    def __repr__(self) -> str:
        return f"Log({self.name}, offsets {self.log_start_offset}..{self.log_end_offset}, {self._chain.size} bytes)"

    # --- What it is ----------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        return self.name.topic

    @property
    def partition(self) -> int:
        return self.name.partition

    @property
    def size_bytes(self) -> int:
        return self._chain.size

    @property
    def segment_count(self) -> int:
        return len(self._chain.segments)

    @property
    def segment_offsets(self) -> list[Offset]:
        """Base offsets of all segments."""
        return [Offset(segment.base_offset) for segment in self._chain.segments]

    @property
    def latest_epoch(self) -> LeaderEpoch:
        return self._epochs.latest

    @property
    def epoch_entries(self) -> list[tuple[int, int]]:
        """(epoch, first offset), rising."""
        return self._epochs.entries()

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        """Return the high watermark, or the start of the oldest transaction without a marker below it (at least the
        log's start)."""
        unstable = self.producers.first_unstable_offset(high_watermark)
        if self.producers_lack:
            # A transaction may be open that began there.
            lacking = self.producers.lacking_from
            unstable = lacking if unstable is None or lacking is None else min(unstable, lacking)
        if unstable is None or unstable >= high_watermark:
            return high_watermark
        return max(unstable, min(self.log_start_offset, high_watermark))

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def producers_lack(self) -> bool:
        """Whether producers' state is incomplete because of damage that may still be mended."""
        lacking = self.producers.lacking_from
        return lacking is not None and self.mendable and lacking >= self.log_start_offset

    @property
    def on_disk(self) -> bool:
        """Whether it has a directory and files. A log without records has none: a power loss could not take anything
        from it, and this makes creating thousands of partitions fast."""
        return self._chain.on_disk

    def make_files(self) -> None:
        """Create directory and files before the first write. Raises :class:`LogDirFailed`."""
        if not self._chain.on_disk:
            reserve = self.config.segment_bytes if self.config.preallocate else 0
            try:
                self._chain.make_files(encode_partition_metadata(self.topic_id), reserve)
            except OSError as error:
                raise self._failed(error) from error

    def update_config(self, config: TopicConfig) -> None:
        if config.segment_jitter_ms != self.config.segment_jitter_ms:
            self.config = config
            self._jitter_ms = self._new_jitter()
        self.config = config

    # --- Durability ----------------------------------------------------------------------------

    @property
    def recovery_point(self) -> Offset:
        """Everything before it is synced."""
        return self._flushes.recovery_point

    @property
    def is_new(self) -> bool:
        """Whether it was never flushed, so a power loss may take its directory, wherever its records begin."""
        return self._flushes.is_new

    @property
    def stored_recovery_point(self) -> Offset:
        """The recovery point that the owner has on disk; the owner sets it."""
        return self._flushes.stored_recovery_point

    @stored_recovery_point.setter
    def stored_recovery_point(self, offset: Offset) -> None:
        self._flushes.stored_recovery_point = offset

    @property
    def acknowledgeable_offset(self) -> Offset:
        """A leader or follower may acknowledge the records before this offset.

        The log's end, less what is being written, unless ``flush.messages`` allows fewer unsynced records.
        """
        end = self.log_end_offset if self.writing is None else self.writing.start
        bound = self._flushes.recovery_point + self.config.flush_messages
        return end if end < bound else Offset(bound - 1)

    def flush_due(self, now_ms: int) -> bool:
        """Return whether to start a flush: by ``flush.messages``, ``flush.ms``, or a full segment."""
        return self._flushes.due(self.log_end_offset, self.config, now_ms)

    def unflushed_for_ms(self, now_ms: int) -> int:
        """Return how long the oldest unsynced record has waited."""
        return self._flushes.waited_ms(now_ms)

    def begin_flush(self, *, whole: bool = False) -> FlushJob | None:
        """Return the files to sync to make the current log durable; None if it is, or a flush is in progress.

        ``whole``: even if all records are durable, because their directory and files that only save work may not be.
        Raises :class:`LogDirFailed`.
        """
        self._check_in_service()
        return self._begin_flush(whole=whole)

    def _begin_flush(self, *, whole: bool) -> FlushJob | None:
        end, chain, flushes = self.log_end_offset, self._chain, self._flushes
        if flushes.job is not None or (end <= flushes.recovery_point and not whole):
            return None
        self.make_files()
        try:
            if chain.size - chain.snapshot_size >= SNAPSHOT_BYTES:
                chain.store_snapshot(end, self._producers_snapshot())
            if self._epochs.dirty:
                chain.store_epochs(encode_epochs(self._epochs.entries()))
                self._epochs.dirty = False
            job = FlushJob(
                self._pool,
                self.directory,
                end,
                chain.files_from(flushes.recovery_point),
                names_changed=chain.names_changed,
                is_new=flushes.is_new,
                writing=self.writing,
            )
        except OSError as error:
            raise self._failed(error) from error
        flushes.begin(job)
        chain.names_changed = False
        return job

    def finish_flush(self, job: FlushJob) -> None:
        """Note what a finished job made durable. Raises :class:`LogDirFailed`."""
        if job is not self._flushes.job:
            job.release()  # of the log's files before its move
            return
        if job.error is None:
            self._chain.synced(job.synced)
        self._flushes.finish(job)
        job.release()
        failure = self._owner.failure
        if failure is not None:
            raise LogDirFailed(failure.directory, failure.cause)
        if job.error is not None and not self._closed:
            raise self._failed(job.error) from job.error

    def flush(self) -> None:
        """Run all three steps; waits for the disk. Raises :class:`LogDirFailed`."""
        self._check_usable()
        self._flush(whole=False)

    def _flush(self, *, whole: bool) -> None:
        job = self._begin_flush(whole=whole)
        if job is not None:
            job.run()
            self.finish_flush(job)

    def finish_write(self, job: WriteJob) -> None:
        """Note that a job has run; it counts for nothing if the log has done so before. Raises
        :class:`LogDirFailed`."""
        if job is self.writing:
            self.writing = None
            job.end()
            if job.error is not None:
                raise self._failed(job.error) from job.error
        failure = self._owner.failure
        if failure is not None:
            raise LogDirFailed(failure.directory, failure.cause)

    def _await_write(self) -> None:
        job = self.writing
        if job is not None:
            job.run()
            self.finish_write(job)

    # --- Ending --------------------------------------------------------------------------------

    def prepare_close(self) -> bool:
        """Write everything that saves the next start a search. Returns whether there is anything to sync.

        Raises :class:`LogDirFailed`.
        """
        self._check_usable()
        chain = self._chain
        if not chain.on_disk:
            return False
        if self._flushes.abandon():
            chain.names_changed = True
        try:
            if chain.size:
                chain.store_snapshot(self.log_end_offset, self._producers_snapshot())
            chain.write_indexes()
            if self._epochs.dirty:
                chain.store_epochs(encode_epochs(self._epochs.entries()))
                self._epochs.dirty = False
        except OSError as error:
            raise self._failed(error) from error
        return self.log_end_offset > self.recovery_point or bool(chain.unsynced)

    def close(self, *, synced: bool = False) -> None:
        """Sync everything, so that the next start need not look for the end.

        ``synced``: the whole file system was synced since :meth:`prepare_close`. Raises :class:`LogDirFailed`.
        """
        if self._closed:
            return
        if synced:
            self._flushes.recovery_point = self.log_end_offset
            self._flushes.is_new = False
        elif self.prepare_close():
            self._flush(whole=True)
        self.abandon()

    def abandon(self) -> None:
        """Release file descriptors and do nothing else, as if the process had ended."""
        self._closed = True
        job, self.writing = self.writing, None
        if job is not None:
            job.end()
        self._chain.close()

    def moved_to(self, directory: str) -> None:
        """Note that the owner renamed the directory of this closed log."""
        assert self._closed
        self.directory = directory

    def _check_usable(self) -> None:
        self._check_in_service()
        if self.writing is not None:
            self._await_write()

    def _check_in_service(self) -> None:
        failure = self._owner.failure
        if failure is not None:
            raise LogDirFailed(failure.directory, failure.cause)
        assert not self._closed, f"{self.name} is closed"

    def _failed(self, error: OSError) -> LogDirFailed:
        return self._owner.fail(error)

    def _delete_later(self, path: str) -> None:
        self._owner.remove_later(path, self.config.file_delete_delay_ms)

    # --- For the parts above -------------------------------------------------------------------

    def _producers_snapshot(self) -> bytes | None:
        """Return the producers' snapshot; None while it would be incomplete."""
        return None if self.producers_lack else encode_snapshot(self.producers.all())

    def _complete_producers(self) -> None:
        """Reload producers after damage was mended, or proved to be none: hidden producers may be known now. Raises
        ``OSError``."""
        if self.producers.lacking_from is not None:
            self._load_producers(self.log_end_offset)

    def _load_producers(self, end: Offset) -> None:
        """Reload the producers from disk up to an offset. Raises ``OSError``."""
        former, chain = self.producers, self._chain
        self.producers = load_producers(
            self._pool.files,
            self.directory,
            chain.segments,
            chain.snapshots,
            end,
            producers_max=former.producers_max,
            epochs=self._epochs,
            sparse=self._sparse,
            now_ms=max((producer.last_used_ms for producer in former.all()), default=0),
            remove=chain.remove_file,
        )
        self.producers.keep_undecided(former, end)

    def _before_cut(self, offset: int) -> None:
        """Before truncation to ``offset``: lower the durable and clean points."""
        self._cuts += 1
        self._owner.lower_clean_offset(self.name, offset)
        if self._flushes.cut(offset):
            self._owner.store_points()

    def _new_jitter(self) -> int:
        jitter = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return self._rng.randrange(jitter) if jitter > 0 else 0
