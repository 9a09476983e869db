"""Makes a log durable outside the event loop."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tidelog.model.ids import Offset
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.storage.disk.checkpoints import PARTITION_METADATA
from tidelog.storage.disk.files import File, FileLayer
from tidelog.storage.disk.handles import HandlePool, PooledFile
from tidelog.storage.disk.write_job import WriteJob


class FlushJob:
    """The files to sync before a log's recovery point may become ``end_offset``.

    ``Log.begin_flush`` makes it, and ``Log.finish_flush`` takes it back on the log's thread. Between the two, call
    :meth:`run` once, in any thread.
    """

    __slots__ = (
        "_directories",
        "_files",
        "_layer",
        "_metadata",
        "_pinned",
        "_running",
        "_writing",
        "end_offset",
        "error",
    )

    def __init__(
        self,
        pool: HandlePool,
        path: str,
        end_offset: Offset,
        files: Sequence[PooledFile],
        *,
        names_changed: bool,
        is_new: bool,
        writing: WriteJob | None = None,
    ) -> None:
        """``is_new``: the partition's directory itself may not be durable. ``writing``: runs first. Opens ``files``;
        raises ``OSError``."""
        self.end_offset = end_offset
        self.error: OSError | None = None
        self._layer: FileLayer = pool.files
        self._writing = writing
        self._directories = [path] if names_changed or is_new else []
        wanted = list(files)
        self._metadata: PooledFile | None = None
        """Owned by the job and closed with it; otherwise it would stay open longer than the log."""
        if is_new:
            self._directories.append(path.rpartition("/")[0])
            self._metadata = PooledFile(pool, f"{path}/{PARTITION_METADATA}")
            wanted.append(self._metadata)
        self._running = threading.Lock()
        self._pinned: list[PooledFile] = []
        self._files: list[File] = []
        try:
            for pooled in wanted:
                self._files.append(pooled.pin())
                self._pinned.append(pooled)
        except OSError:
            self.release()
            raise

    @property
    def synced(self) -> Sequence[PooledFile]:
        """The files that the job syncs; empty after :meth:`release`."""
        return self._pinned

    def run(self) -> None:
        """Sync the files. Never raises: an error is kept in ``error`` for ``finish_flush``."""
        with self._running:
            try:
                if self._writing is not None:
                    self._writing.run()
                    if self._writing.error is not None:
                        raise self._writing.error
                for file in self._files:
                    file.fdatasync()
                for directory in self._directories:
                    self._layer.fsync_dir(directory)
            except OSError as error:
                self.error = error

    def wait(self) -> None:
        """Return once :meth:`run` has ended, if it was started."""
        with self._running:
            return

    def release(self) -> None:
        """Release the open files, unless another thread still uses them. May be called twice."""
        if self._running.locked():
            return
        pinned, self._pinned = self._pinned, []
        for pooled in pinned:
            pooled.unpin()
        if self._metadata is not None:
            self._metadata.close()


class FlushState:
    """How far a log is durable, and which flush is in progress. Does no IO.

    ``stored_recovery_point`` is what the log's owner has on disk, ``unflushed_since_ms`` when the oldest unsynced
    record was appended (-1: none), ``rolled`` that a segment has filled up since the last flush began.
    """

    __slots__ = ("_cut", "is_new", "job", "recovery_point", "rolled", "stored_recovery_point", "unflushed_since_ms")

    def __init__(self, recovery_point: Offset, *, unflushed_since_ms: int, is_new: bool) -> None:
        self.recovery_point = recovery_point
        self.stored_recovery_point = Offset(0)
        self.unflushed_since_ms = unflushed_since_ms
        self.rolled = False
        self.is_new = is_new
        self.job: FlushJob | None = None
        self._cut = Offset(0)

    def due(self, log_end_offset: int, config: TopicConfig, now_ms: int) -> bool:
        unflushed = log_end_offset - self.recovery_point
        if unflushed <= 0:
            return False
        return self.rolled or unflushed >= config.flush_messages or self.waited_ms(now_ms) >= config.flush_ms

    def waited_ms(self, now_ms: int) -> int:
        return now_ms - self.unflushed_since_ms if self.unflushed_since_ms >= 0 else -1

    def begin(self, job: FlushJob) -> None:
        self.job = job
        self._cut = job.end_offset
        self.rolled = False
        self.unflushed_since_ms = -1

    def finish(self, job: FlushJob) -> None:
        """Note that the job ran, successfully or not."""
        assert job is self.job, "a flush that this log did not begin"
        self.job = None
        if job.error is None:
            self.is_new = False
            # Records truncated and appended again in the meantime are not what the job synced.
            self.recovery_point = max(self.recovery_point, min(job.end_offset, self._cut))

    def abandon(self) -> bool:
        """Give up an unfinished flush. Returns whether there was one."""
        job, self.job = self.job, None
        if job is None:
            return False
        job.wait()
        job.release()
        return True

    def cut(self, offset: int) -> bool:
        """Prepare for truncation to ``offset``. Returns whether a lower recovery point must be stored first."""
        self._cut = Offset(min(self._cut, offset))
        if self.recovery_point <= offset:
            return False
        self.recovery_point = Offset(offset)
        return self.stored_recovery_point > offset
