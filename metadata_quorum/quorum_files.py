"""The disk as the quorum sees it, so that tests and the simulation can put a failing one in its place.

The protocols are a subset of the storage layer's file seam under the same names, so one simulated
disk serves both. Every error is an ``OSError``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class QuorumFile(Protocol):
    """An open file. What was written is durable only after :meth:`fdatasync`."""

    def pread(self, size: int, offset: int) -> bytes:
        """Read up to ``size`` bytes at ``offset``; fewer only at the end of the file."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write the buffers one after the other at ``offset``; returns how many bytes were written."""

    def truncate(self, size: int) -> None: ...

    def fdatasync(self) -> None:
        """Make content and size durable. After an error nothing is known of what was written."""

    def size(self) -> int: ...

    def close(self) -> None: ...


class QuorumLock(Protocol):
    """A held lock on a path."""

    def close(self) -> None:
        """Release the lock."""


class QuorumFiles(Protocol):
    """A file system."""

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> QuorumFile:
        """Open for reading and writing; ``exclusive`` fails with ``FileExistsError`` where there is one."""

    def exists(self, path: Path) -> bool: ...

    def makedirs(self, path: Path) -> None: ...

    def rename(self, source: Path, target: Path) -> None:
        """Replace ``target`` atomically; durable only after :meth:`fsync_dir`."""

    def unlink(self, path: Path) -> None: ...

    def fsync_dir(self, path: Path) -> None:
        """Make names created, renamed and removed in a directory durable."""

    def lock(self, path: Path) -> QuorumLock:
        """Take an exclusive lock; raises ``BlockingIOError`` where another process holds it."""


class SystemQuorumFile:
    """A file of the operating system."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def pread(self, size: int, offset: int) -> bytes:
        return os.pread(self._descriptor, size, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        return os.pwritev(self._descriptor, buffers, offset)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def fdatasync(self) -> None:
        os.fdatasync(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class SystemQuorumFiles:
    """The operating system's file system. Implements :class:`QuorumFiles`."""

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> SystemQuorumFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0) | (os.O_EXCL if exclusive else 0)
        return SystemQuorumFile(os.open(path, flags, 0o600))

    def exists(self, path: Path) -> bool:
        return path.exists()

    def makedirs(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def fsync_dir(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> SystemQuorumFile:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return SystemQuorumFile(descriptor)


def write_all(file: QuorumFile, data: Buffer, offset: int) -> None:
    """Write all of ``data``; a short write is continued, and an ``OSError`` if it makes no progress."""
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
