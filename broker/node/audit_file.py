"""The audit log on disk: appends lines once a second, and deletes the oldest files."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Final

from tidelog.replication.flushing import RunBlocking
from tidelog.security.audit import Audit, AuditLine
from tidelog.storage.disk.files import FileLayer

log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
"""Time between writes; equal events in between share a line."""
KEPT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Lines that wait for a file that cannot be written, with ``audit.on.full=refuse``; without it they are dropped."""


class AuditFile:
    """``path`` is the newest file, ``path.1`` the one before it; ``files_max`` in all. Other programs may rename or
    remove the files, because none is held open. Synchronous; raises ``OSError``."""

    def __init__(self, files: FileLayer, path: str, bytes_max: int, files_max: int) -> None:
        self._files = files
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max

    def append(self, lines: bytes) -> None:
        """Append whole lines: all or, with an ``OSError``, none. If the file ends within a line, they start on a new
        one."""
        files, path = self._files, self._path
        files.makedirs(os.path.dirname(path) or ".")
        if files.exists(path) and 0 < files.size(path) > self._bytes_max - len(lines):
            self._rotate()
        file = files.open(path, create=True)
        try:
            size = file.size()
            torn = size > 0 and file.pread(1, size - 1) != b"\n"
            try:
                file.pwritev((b"\n" if torn else b"", lines), size)
            except OSError:
                file.truncate(size)
                raise
        finally:
            file.close()

    def _rotate(self) -> None:
        names = [self._path, *(f"{self._path}.{number}" for number in range(1, self._files_max))]
        if self._files.exists(names[-1]):
            self._files.unlink(names[-1])
        for older, newer in reversed([*zip(names[1:], names, strict=False)]):
            if self._files.exists(newer):
                self._files.rename(newer, older)


class AuditWriter:
    """Writes events noted by :class:`tidelog.security.audit.Audit` to the file, off the event loop, and passes the
    lines to other consumers. ``file``: ``None`` if there is none."""

    def __init__(
        self,
        audit: Audit,
        file: AuditFile | None,
        run_blocking: RunBlocking,
        also: Callable[[list[AuditLine]], None] = lambda lines: None,
    ) -> None:
        self._audit = audit
        self._file = file
        self._run_blocking = run_blocking
        self._also = also
        self._due = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._failing = False
        self._killed = False
        self._kept: list[AuditLine] = []
        """Lines that the file lacks and will get."""
        self._untold = 0
        """Events that the file lacks without saying so yet."""
        self.dropped = 0
        """Events that the file lacks."""
        audit.on_first = self._due.set
        audit.full_places.append(lambda: self._failing)

    async def run(self) -> None:
        """Write as long as the node lives. A node that cannot write keeps running."""
        while True:
            await self._due.wait()
            await asyncio.shield(self.flush())  # what was taken is written, even if the node stops in the meantime
            await asyncio.sleep(INTERVAL_S)

    def drop(self) -> None:
        """Stop writing, because the node is being killed; later losses are not reported."""
        self._killed = True

    async def flush(self) -> None:
        """Write what has been noted."""
        async with self._one_at_a_time:
            await self._write()

    async def _write(self) -> None:
        self._due.clear()
        new = self._audit.take()
        self._also(new)
        lines = [*self._kept, *new]
        if self._file is None or not (lines or self._untold):
            return
        told = [self._audit.loss(self._untold, "the file could not be written")] if self._untold else []
        try:
            text = b"".join(line.text for line in [*told, *lines])
            await self._run_blocking(partial(self._file.append, text))
        except OSError as error:
            self._kept, lost = _within(lines, KEPT_BYTES_MAX if self._audit.refuses else 0)
            self.dropped += sum(line.events for line in lost if not line.counted)
            self._untold += sum(line.events for line in lost)
            if not self._failing and not self._killed:
                what = "changes are refused" if self._audit.refuses else "events are lost"
                log.error("audit log: %s until this is mended: %s", what, error)
            self._failing = True
            if self._audit.refuses:
                self._due.set()  # nothing may come that would have it tried again
        else:
            self._failing = False
            self._untold = 0
            self._kept = []


def _within(lines: list[AuditLine], bytes_max: int) -> tuple[list[AuditLine], list[AuditLine]]:
    """The first lines of so many bytes, and the others."""
    size = 0
    for at, line in enumerate(lines):
        size += len(line.text)
        if size > bytes_max:
            return lines[:at], lines[at:]
    return lines, []
