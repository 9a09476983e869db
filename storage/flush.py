"""Making a log durable outside of the event loop."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tidelog.model.ids import Offset
from tidelog.storage.checkpoints import LEADER_EPOCHS
from tidelog.storage.files import File, FileLayer, replace_file
from tidelog.storage.handles import PooledFile


class FlushJob:
    """What has to reach the disk before a log's recovery point may be ``end_offset``.

    Made by ``Log.begin_flush``, handed back to ``Log.finish_flush`` on the thread of the log. Between the
    two, :meth:`run` is called once, in any thread: it calls fdatasync, and writes the leader-epoch file.
    """

    __slots__ = (
        "_directories",
        "_epochs",
        "_files",
        "_layer",
        "_path",
        "_pinned",
        "_running",
        "end_offset",
        "error",
        "synced",
    )

    def __init__(
        self,
        layer: FileLayer,
        path: str,
        end_offset: Offset,
        files: Sequence[PooledFile],
        epochs: bytes | None,
        directories: Sequence[str],
    ) -> None:
        self.end_offset = end_offset
        self.error: OSError | None = None
        self.synced = tuple(files)
        self._layer = layer
        self._path = path
        self._epochs = epochs
        self._directories = directories
        self._running = threading.Lock()
        self._pinned: list[PooledFile] = []
        self._files: list[File] = []
        try:
            for pooled in files:
                self._files.append(pooled.pin())
                self._pinned.append(pooled)
        except OSError:
            self.release()
            raise

    def run(self) -> None:
        """Never raises: trouble is kept in ``error`` for ``finish_flush``."""
        with self._running:
            try:
                for file in self._files:
                    file.fdatasync()
                if self._epochs is not None:
                    replace_file(self._layer, self._path, LEADER_EPOCHS, self._epochs)
                for directory in self._directories:
                    self._layer.fsync_dir(directory)
            except OSError as error:
                self.error = error

    def wait(self) -> None:
        """Return once :meth:`run`, if it was begun, has ended."""
        with self._running:
            return

    def release(self) -> None:
        """Let go of the open files, unless another thread is still at them. May be called twice."""
        if self._running.locked():
            return
        pinned, self._pinned = self._pinned, []
        for pooled in pinned:
            pooled.unpin()
