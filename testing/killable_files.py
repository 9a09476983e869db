"""One node's disk in an in-process cluster. A test can take it away, as kill -9 does, or break part of it.

After :meth:`KillableFiles.kill` nothing reaches the disk any more: files and locks are closed, and every call raises.
Written data stays, as the page cache outlives a killed process. After :meth:`KillableFiles.break_path` every call on or
under one path raises an I/O error.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Sequence
from typing import TypeVar

from tidelog.model.buffer import Buffer
from tidelog.storage.disk.files import DiskUsage, File, FileLayer, FileLock, SystemFiles


class NodeKilled(OSError):
    """This disk's node was killed."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the node was killed")


class KilledNodeFilter(logging.Filter):
    """Drops a dying node's log messages about the disk that it no longer has."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        return not isinstance(error, NodeKilled) and not any(
            isinstance(item, NodeKilled) for item in (record.args if isinstance(record.args, tuple) else ())
        )


class KillableFile:
    """One open file. Each call, from any thread, passes or is refused as a whole."""

    __slots__ = ("_file", "_lock", "_owner", "_path")

    def __init__(self, owner: KillableFiles, file: File, path: str) -> None:
        self._owner = owner
        self._path = path
        self._file = file
        self._lock = threading.Lock()

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        with self._lock:
            return self._open().pwritev(buffers, offset)

    def pwritev_once(self, buffers: Sequence[Buffer], offset: int) -> int:
        with self._lock:
            return self._open().pwritev_once(buffers, offset)

    def pread(self, size: int, offset: int) -> bytes:
        with self._lock:
            return self._open().pread(size, offset)

    def pread_once(self, size: int, offset: int) -> bytes:
        with self._lock:
            return self._open().pread_once(size, offset)

    def truncate(self, size: int) -> None:
        with self._lock:
            self._open().truncate(size)

    def reserve(self, size: int) -> None:
        with self._lock:
            self._open().reserve(size)

    def fdatasync(self) -> None:
        with self._lock:
            self._open().fdatasync()

    def size(self) -> int:
        with self._lock:
            return self._open().size()

    def fileno(self) -> int:
        with self._lock:
            return self._open().fileno()

    def close(self) -> None:
        self._owner.forget(self)
        self.drop()

    def drop(self) -> None:
        """Close the file beneath, after any call that another thread has in progress."""
        with self._lock:
            self._file.close()

    def _open(self) -> File:
        self._owner.check(self._path)
        return self._file


class KillableLock:
    """A held lock."""

    __slots__ = ("_lock", "_owner")

    def __init__(self, owner: KillableFiles, lock: FileLock) -> None:
        self._owner = owner
        self._lock = lock

    def release(self) -> None:
        self._owner.forget(self)
        self._lock.release()

    def drop(self) -> None:
        self._lock.release()


class KillableFiles:
    """Implements :class:`~tidelog.storage.disk.files.FileLayer` over ``beneath``."""

    def __init__(self, beneath: FileLayer | None = None) -> None:
        self._beneath = beneath or SystemFiles()
        self._held: set[KillableFile | KillableLock] = set()
        self._held_lock = threading.Lock()
        self._broken: dict[str, int] = {}
        self.killed = False

    def break_path(self, path: str, number: int = errno.EIO) -> None:
        """Let every call on or under ``path`` fail with that error number from now on."""
        self._broken[path.rstrip("/")] = number

    @property
    def broken(self) -> bool:
        """Whether anything was broken."""
        return bool(self._broken)

    def check(self, path: str) -> None:
        """Raise the error that a call on ``path`` meets, if any."""
        if self.killed:
            raise NodeKilled
        for broken, number in self._broken.items():
            if path == broken or path.startswith(broken + "/"):
                raise OSError(number, os.strerror(number), path)

    def kill(self) -> None:
        """Take the disk away."""
        self.killed = True
        with self._held_lock:
            held, self._held = self._held, set()
        for item in held:
            item.drop()

    def forget(self, item: KillableFile | KillableLock) -> None:
        with self._held_lock:
            self._held.discard(item)

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> KillableFile:
        self.check(path)
        return self._hold(KillableFile(self, self._beneath.open(path, create=create, exclusive=exclusive), path))

    def lock(self, path: str) -> KillableLock:
        self.check(path)
        return self._hold(KillableLock(self, self._beneath.lock(path)))

    def listdir(self, path: str) -> list[str]:
        self.check(path)
        return self._beneath.listdir(path)

    def is_directory(self, path: str) -> bool:
        self.check(path)
        return self._beneath.is_directory(path)

    def exists(self, path: str) -> bool:
        self.check(path)
        return self._beneath.exists(path)

    def size(self, path: str) -> int:
        self.check(path)
        return self._beneath.size(path)

    def modified_ms(self, path: str) -> int:
        self.check(path)
        return self._beneath.modified_ms(path)

    def makedirs(self, path: str) -> None:
        self.check(path)
        self._beneath.makedirs(path)

    def rename(self, source: str, target: str) -> None:
        self.check(source)
        self.check(target)
        self._beneath.rename(source, target)

    def unlink(self, path: str) -> None:
        self.check(path)
        self._beneath.unlink(path)

    def remove_tree(self, path: str) -> None:
        self.check(path)
        self._beneath.remove_tree(path)

    def fsync_dir(self, path: str) -> None:
        self.check(path)
        self._beneath.fsync_dir(path)

    def sync_filesystem(self, path: str) -> bool:
        self.check(path)
        return self._beneath.sync_filesystem(path)

    def disk_usage(self, path: str) -> DiskUsage:
        self.check(path)
        return self._beneath.disk_usage(path)

    def open_files_max(self) -> int:
        return self._beneath.open_files_max()

    def _hold(self, item: Held) -> Held:
        with self._held_lock:
            if not self.killed:
                self._held.add(item)
                return item
        item.drop()
        raise NodeKilled


Held = TypeVar("Held", KillableFile, KillableLock)
