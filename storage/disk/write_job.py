"""Writes many bytes to the end of a log outside the event loop."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tidelog.model.buffer import Buffer
from tidelog.model.ids import Offset
from tidelog.storage.disk.handles import PooledFile


class WriteJob:
    """Records that a log has taken, on their way into its file.

    ``Log.append_as_follower`` makes it, and ``Log.finish_write`` takes it back on the log's thread. Between the two,
    call :meth:`run` in any thread. ``start``: the offset of the first record. Until the job has run, a kill loses the
    records, so nobody may acknowledge or read them: whatever else the log is asked for waits for the job, or runs it.
    """

    __slots__ = ("_buffers", "_file", "_position", "_running", "_write", "error", "start")

    def __init__(self, file: PooledFile, buffers: Sequence[Buffer], position: int, start: Offset) -> None:
        """The buffers must keep their content until the job has run. Opens the file; raises ``OSError``."""
        self.start = start
        self.error: OSError | None = None
        self._file = file
        self._write = file.pin().pwritev_once
        self._buffers = buffers
        self._position = position
        self._running = threading.Lock()

    def run(self) -> None:
        """Write, unless that has been done. An error is kept in ``error`` for ``finish_write``."""
        with self._running:
            if self._buffers:
                try:
                    self._write(self._buffers, self._position)
                except OSError as error:
                    self.error = error
                self._buffers = ()

    def end(self) -> None:
        """Write nothing from now on, and release the file; waits for another thread that writes."""
        with self._running:
            self._buffers = ()
        self._file.unpin()
