"""What a log is and how durable it is: the part of :class:`tidelog.storage.log.Log` below appends and reads."""

from __future__ import annotations

import random
from typing import Final, Protocol

from tidelog.model.ids import LeaderEpoch, Offset, TopicId, TopicPartition
from tidelog.model.topic_config import TopicConfig
from tidelog.storage.checkpoints import encode_epochs
from tidelog.storage.flush import FlushJob, FlushState
from tidelog.storage.handles import HandlePool
from tidelog.storage.log_errors import LogDirFailed
from tidelog.storage.log_read import ReadHints
from tidelog.storage.producer_snapshot import encode_snapshot
from tidelog.storage.recovery import LoadedLog
from tidelog.storage.segment_chain import SegmentChain

SNAPSHOT_BYTES: Final = 64 * 1024 * 1024
"""Log between two producer snapshots at a flush; bounds what is replayed after a crash."""


class LogOwner(Protocol):
    """What a log asks of the directory that it lies in."""

    @property
    def failure(self) -> LogDirFailed | None:
        """Why the directory is out of service."""

    def fail(self, cause: OSError) -> LogDirFailed:
        """Take the directory out of service; returns what to raise."""

    def store_points(self) -> None:
        """Store all logs' recovery points and start offsets, durably. Raises ``OSError``."""

    def lower_clean_offset(self, name: TopicPartition, offset: int) -> None:
        """Before a log is cut off at ``offset``: it is clean up to there at most, durably. Raises ``OSError``."""

    def remove_later(self, path: str, delay_ms: int) -> None:
        """Remove a file or directory after a while."""


class LogState:
    """Identity, extent, durability and end of a log."""

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
        "config",
        "directory",
        "log_end_offset",
        "log_start_offset",
        "name",
        "producers",
        "topic_id",
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
        self._owner = owner
        self._pool = pool
        self._rng = rng
        self._epochs = loaded.epochs
        self._chain = SegmentChain(
            pool, directory, loaded.segments, loaded.snapshots, loaded.recovery_point, self._delete_later
        )
        # What a killed process did to the names may not be durable, though it is there.
        self._chain.names_changed |= not loaded.was_clean
        self._sparse = loaded.sparse
        self._hints = ReadHints()
        self._jitter_ms = self._new_jitter()
        unflushed = loaded.log_end_offset > loaded.recovery_point
        since_ms = loaded.loaded_ms if unflushed else -1
        self._flushes = FlushState(loaded.recovery_point, unflushed_since_ms=since_ms, is_new=is_new)
        self._closed = False
        self._cuts = 0
        """How often something was cut off at the end: what compaction had begun before is void."""

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
    def first_segment_offset(self) -> Offset:
        return Offset(self._chain.segments[0].base_offset)

    @property
    def latest_epoch(self) -> LeaderEpoch:
        return self._epochs.latest

    @property
    def epoch_entries(self) -> list[tuple[int, int]]:
        """(epoch, first offset), rising."""
        return self._epochs.entries()

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        """The high watermark, or where the oldest transaction began that has no marker below it (at the log's start
        where that has moved past it)."""
        unstable = self.producers.first_unstable_offset(high_watermark)
        if unstable is None or unstable >= high_watermark:
            return high_watermark
        return max(unstable, min(self.log_start_offset, high_watermark))

    @property
    def closed(self) -> bool:
        return self._closed

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
    def stored_recovery_point(self) -> Offset:
        """What the owner has on disk as recovery point; the owner sets it."""
        return self._flushes.stored_recovery_point

    @stored_recovery_point.setter
    def stored_recovery_point(self, offset: Offset) -> None:
        self._flushes.stored_recovery_point = offset

    @property
    def acknowledgeable_offset(self) -> Offset:
        """Before this offset a leader or follower may say that it has the records.

        The log's end, unless ``flush.messages`` lets fewer records be unsynced.
        """
        end = self.log_end_offset
        bound = self._flushes.recovery_point + self.config.flush_messages
        return end if end < bound else Offset(bound - 1)

    def flush_due(self, now_ms: int) -> bool:
        """Whether a flush should begin: ``flush.messages``, ``flush.ms``, or a segment that is full."""
        return self._flushes.due(self.log_end_offset, self.config, now_ms)

    def unflushed_for_ms(self, now_ms: int) -> int:
        """How long the oldest unsynced record has waited."""
        return self._flushes.waited_ms(now_ms)

    def begin_flush(self) -> FlushJob | None:
        """What to sync so that all that is in the log now is durable; None if it is, or a flush is under way.

        Raises :class:`LogDirFailed`.
        """
        self._check_usable()
        return self._begin_flush(whole=False)

    def _begin_flush(self, *, whole: bool) -> FlushJob | None:
        """``whole``: even if all records are durable, what merely spares work may not be."""
        end, chain, flushes = self.log_end_offset, self._chain, self._flushes
        if flushes.job is not None or (end <= flushes.recovery_point and not whole):
            return None
        try:
            if chain.size - chain.snapshot_size >= SNAPSHOT_BYTES:
                chain.store_snapshot(end, encode_snapshot(self.producers.all()))
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
            )
        except OSError as error:
            raise self._failed(error) from error
        flushes.begin(job)
        chain.names_changed = False
        return job

    def finish_flush(self, job: FlushJob) -> None:
        """Take note of what a job that ran made durable. Raises :class:`LogDirFailed`."""
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
        """All three steps at once; waits for the disk. Raises :class:`LogDirFailed`."""
        self._check_usable()
        self._flush(whole=False)

    def _flush(self, *, whole: bool) -> None:
        job = self._begin_flush(whole=whole)
        if job is not None:
            job.run()
            self.finish_flush(job)

    # --- Ending --------------------------------------------------------------------------------

    def prepare_close(self) -> bool:
        """Write what spares the next start any search. Returns whether there is anything to sync.

        Raises :class:`LogDirFailed`.
        """
        self._check_usable()
        chain = self._chain
        if self._flushes.abandon():
            chain.names_changed = True
        try:
            if chain.size:
                chain.store_snapshot(self.log_end_offset, encode_snapshot(self.producers.all()))
            chain.write_indexes()
            if self._epochs.dirty:
                chain.store_epochs(encode_epochs(self._epochs.entries()))
                self._epochs.dirty = False
        except OSError as error:
            raise self._failed(error) from error
        return self.log_end_offset > self.recovery_point or bool(chain.unsynced)

    def close(self, *, synced: bool = False) -> None:
        """Sync everything, so that the next start need not look for the end.

        ``synced``: the whole file system was, since :meth:`prepare_close`. Raises :class:`LogDirFailed`.
        """
        if self._closed:
            return
        if synced:
            self._flushes.recovery_point = self.log_end_offset
        elif self.prepare_close():
            self._flush(whole=True)
        self.abandon()

    def abandon(self) -> None:
        """Give back file descriptors and do nothing else, as the end of the process would."""
        self._closed = True
        self._chain.close()

    def moved_to(self, directory: str) -> None:
        """The owner renamed the directory of this log, which is closed."""
        assert self._closed
        self.directory = directory

    def _check_usable(self) -> None:
        failure = self._owner.failure
        if failure is not None:
            raise LogDirFailed(failure.directory, failure.cause)
        assert not self._closed, f"{self.name} is closed"

    def _failed(self, error: OSError) -> LogDirFailed:
        return self._owner.fail(error)

    def _delete_later(self, path: str) -> None:
        self._owner.remove_later(path, self.config.file_delete_delay_ms)

    # --- For the parts above -------------------------------------------------------------------

    def _before_cut(self, offset: int) -> None:
        """Before anything from ``offset`` on is cut off: it is no longer known to be durable, or clean."""
        self._cuts += 1
        self._owner.lower_clean_offset(self.name, offset)
        if self._flushes.cut(offset):
            self._owner.store_points()

    def _new_jitter(self) -> int:
        jitter = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return self._rng.randrange(jitter) if jitter > 0 else 0
