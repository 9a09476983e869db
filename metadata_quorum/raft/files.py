"""The disk as the quorum sees it, so that tests and the simulation can use a failing one.

These protocols are the part of the storage layer's file interface that the quorum needs, with the same names and
guarantees: the node passes in its own, and one simulated disk serves both. (The quorum is a sibling of storage, not
above it, and may not import it.) Every error is an ``OSError``. Paths are strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidelog.model.buffer import Buffer


class QuorumFile(Protocol):
    """An open file. Writes are durable only after :meth:`fdatasync`."""

    def pread(self, size: int, offset: int) -> bytes:
        """Read up to ``size`` bytes at ``offset``; fewer only at the end of the file."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write the buffers consecutively at ``offset``; return how many bytes were written."""

    def truncate(self, size: int) -> None: ...

    def fdatasync(self) -> None:
        """Make content and size durable. After an error the state of all writes is unknown."""

    def size(self) -> int: ...

    def close(self) -> None: ...


class QuorumLock(Protocol):
    """A lock on a path, held until it is released or the process ends."""

    def release(self) -> None: ...


class QuorumFiles(Protocol):
    """A file system."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> QuorumFile:
        """Open for reading and writing; ``exclusive`` fails with ``FileExistsError`` if the file exists."""

    def exists(self, path: str) -> bool: ...

    def makedirs(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Replace ``target`` atomically; durable only after :meth:`fsync_dir`."""

    def unlink(self, path: str) -> None: ...

    def fsync_dir(self, path: str) -> None:
        """Make names created, renamed and removed in a directory durable."""

    def lock(self, path: str) -> QuorumLock:
        """Take an exclusive lock; raise ``BlockingIOError`` if another process holds it."""


def write_all(file: QuorumFile, data: Buffer, offset: int) -> None:
    """Write all of ``data``; short writes are continued. Raises ``OSError`` if a write makes no progress."""
    rest = memoryview(data)
    while rest:
        written = file.pwritev([rest], offset)
        if written <= 0:
            raise OSError(f"short write: {len(rest)} bytes left at offset {offset}")
        rest = rest[written:]
        offset += written


def read_all(file: QuorumFile) -> bytes:
    """Read a whole file."""
    size = file.size()
    pieces: list[bytes] = []
    offset = 0
    while offset < size:
        piece = file.pread(size - offset, offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces)
