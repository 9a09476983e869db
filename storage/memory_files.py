"""A disk in memory that can be told to fail: for tests, and to run many nodes in one process.

It keeps what a process sees apart from what would be left after a loss of power, by the rules that
:mod:`tidelog.storage.files` states and no kinder ones:

- what was written since a file's last fdatasync is kept or lost write by write, each perhaps torn at a
  sector, and a hole reads as zeros;
- what happened to the names in a directory since its last fsync is kept up to some point and lost from
  there on; other directories go their own way;
- a file whose name is lost is gone.

Every call counts as one step. A :class:`Faults` sees each step before it is taken, and may raise.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from tidelog.proto.network import Buffer
from tidelog.storage.files import DiskUsage

SECTOR: Final = 512
"""A torn write is cut at a multiple of this many bytes."""


class Killed(BaseException):
    """The process ended at this call. Not an ``Exception``: nothing handles it on its way out."""


class Faults:
    """What goes wrong, and when. Steps are counted from 1 over the life of the disk object.

    ``kill_at``: :class:`Killed` at that step, and at every later one: half the time (by ``rng``) a write
    has been done in part, anything else has been done or not. ``fail_at``: an ``OSError`` with ``number``
    at that step, once; a write may be done in part. ``broken``: every step under one of these paths fails.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self.rng = rng or random.Random(0)
        self.steps = 0
        self.kill_at: int | None = None
        self.fail_at: int | None = None
        self.number = errno.EIO
        self.broken: dict[str, int] = {}
        self.trace: list[str] | None = None
        """Set it to a list to have every step noted in it."""

    def step(self, action: str, path: str) -> BaseException | None:
        """Count a step; returns what it is to raise."""
        self.steps += 1
        if self.trace is not None:
            self.trace.append(f"{self.steps} {action} {path}")
        if self.kill_at is not None and self.steps >= self.kill_at:
            return Killed(f"step {self.steps}: {action} {path}")
        for prefix, number in self.broken.items():
            if path == prefix or path.startswith(prefix + "/"):
                return OSError(number, os.strerror(number), path)
        if self.steps == self.fail_at:
            return OSError(self.number, os.strerror(self.number), path)
        return None

    @property
    def killed(self) -> bool:
        """Whether the process has ended: nothing has an effect any more."""
        return self.kill_at is not None and self.steps > self.kill_at


class _Change(NamedTuple):
    """A write at ``offset``, or, with ``data`` None, a truncation to ``offset``."""

    offset: int
    data: bytes | None


class _Inode:
    __slots__ = ("changes", "content", "durable", "modified_ms")

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = b""
        self.changes: list[_Change] = []
        self.modified_ms = 0

    def change(self, change: _Change) -> None:
        _apply(self.content, change)
        self.changes.append(change)

    def sync(self) -> None:
        self.durable = bytes(self.content)
        self.changes.clear()

    def sync_all(self) -> None:
        self.sync()

    def lose_power(self, rng: random.Random) -> None:
        left = bytearray(self.durable)
        keep = rng.random()  # so that "all" and "none" are as likely as something between
        for change in self.changes:
            if rng.random() < keep:
                _apply(left, change)
            elif change.data is not None and rng.random() < 0.5:
                cut = rng.randrange(len(change.data) + 1) // SECTOR * SECTOR
                _apply(left, _Change(change.offset, change.data[:cut]))
        self.content = left
        self.sync()


class _Directory:
    __slots__ = ("changes", "durable", "names")

    def __init__(self) -> None:
        self.names: dict[str, _Inode | _Directory] = {}
        self.durable: dict[str, _Inode | _Directory] = {}
        self.changes: list[dict[str, _Inode | _Directory]] = []

    def changed(self) -> None:
        self.changes.append(dict(self.names))

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.changes.clear()

    def sync_all(self) -> None:
        self.sync()
        for node in self.names.values():
            node.sync_all()

    def lose_power(self, rng: random.Random) -> None:
        states = [self.durable, *self.changes]
        self.names = dict(states[rng.choice((0, len(states) - 1, rng.randrange(len(states))))])
        self.sync()
        for node in self.names.values():
            node.lose_power(rng)


class Disk:
    """What outlives a process. Each process looks at it through :class:`MemoryFiles` of its own."""

    def __init__(self) -> None:
        self.root = _Directory()
        self.locked: set[str] = set()

    def lose_power(self, rng: random.Random) -> None:
        """Forget, in part, what was not synced."""
        self.root.lose_power(rng)
        self.locked.clear()

    def end_process(self) -> None:
        """The kernel drops a dead process's locks."""
        self.locked.clear()


class MemoryFiles:
    """A :class:`~tidelog.storage.files.FileLayer` over a :class:`Disk`, for the life of one process."""

    def __init__(self, disk: Disk | None = None, faults: Faults | None = None) -> None:
        self.disk = disk or Disk()
        self.faults = faults or Faults()
        self.now_ms = 0
        """Becomes a file's time of change."""

    # --- FileLayer -----------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> MemoryFile:
        trouble = self.faults.step("open", path)
        if trouble is not None and not (isinstance(trouble, Killed) and self._half_done()):
            raise trouble
        parent, name = self._parent(path)
        node = parent.names.get(name)
        if node is None:
            if not (create or exclusive):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = parent.names[name] = _Inode()
            parent.changed()
        elif exclusive:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if isinstance(node, _Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if trouble is not None:
            raise trouble
        return MemoryFile(self, path, node)

    def listdir(self, path: str) -> list[str]:
        self._step("listdir", path)
        return list(self._directory(path).names)

    def is_directory(self, path: str) -> bool:
        self._step("is_directory", path)
        return isinstance(self._find(path), _Directory)

    def exists(self, path: str) -> bool:
        self._step("exists", path)
        return self._find(path) is not None

    def size(self, path: str) -> int:
        self._step("size", path)
        return len(self._file(path).content)

    def modified_ms(self, path: str) -> int:
        self._step("modified_ms", path)
        return self._file(path).modified_ms

    def makedirs(self, path: str) -> None:
        self._step("makedirs", path)
        node = self.disk.root
        for name in _split(path):
            found = node.names.get(name)
            if found is None:
                found = node.names[name] = _Directory()
                node.changed()
            if not isinstance(found, _Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            node = found

    def rename(self, source: str, target: str) -> None:
        trouble = self.faults.step("rename", source)
        if trouble is not None and not (isinstance(trouble, Killed) and self._half_done()):
            raise trouble
        old, old_name = self._parent(source)
        new, new_name = self._parent(target)
        if old is not new:
            raise OSError(errno.EXDEV, "the memory disk renames within a directory only", source)
        if old_name not in old.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        old.names[new_name] = old.names.pop(old_name)
        old.changed()
        if trouble is not None:
            raise trouble

    def unlink(self, path: str) -> None:
        trouble = self.faults.step("unlink", path)
        if trouble is not None and not (isinstance(trouble, Killed) and self._half_done()):
            raise trouble
        self._file(path)
        parent, name = self._parent(path)
        del parent.names[name]
        parent.changed()
        if trouble is not None:
            raise trouble

    def remove_tree(self, path: str) -> None:
        self._step("remove_tree", path)
        parent, name = self._parent(path)
        if parent.names.pop(name, None) is not None:
            parent.changed()

    def fsync_dir(self, path: str) -> None:
        self._step("fsync_dir", path)
        self._directory(path).sync()

    def lock(self, path: str) -> MemoryLock:
        self._step("lock", path)
        if path in self.disk.locked:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
        self.disk.locked.add(path)
        return MemoryLock(self.disk, path)

    def sync_filesystem(self, path: str) -> bool:
        self._step("sync_filesystem", path)
        self.disk.root.sync_all()
        return True

    def disk_usage(self, path: str) -> DiskUsage:
        self._step("disk_usage", path)
        return DiskUsage(1 << 40, 1 << 39)

    def open_files_max(self) -> int:
        return 64

    # --- For tests -----------------------------------------------------------------------------

    def content(self, path: str) -> bytearray:
        """The bytes of a file, to look at or to spoil; no step."""
        return self._file(path).content

    def paths(self, under: str) -> list[str]:
        """All files below a directory, sorted; no step."""
        found: list[str] = []
        pending: list[tuple[str, _Directory]] = [(under, self._directory(under))]
        while pending:
            path, directory = pending.pop()
            for name, node in directory.names.items():
                if isinstance(node, _Directory):
                    pending.append((f"{path}/{name}", node))
                else:
                    found.append(f"{path}/{name}")
        return sorted(found)

    # --- Steps ---------------------------------------------------------------------------------

    def _step(self, action: str, path: str) -> None:
        trouble = self.faults.step(action, path)
        if trouble is not None:
            raise trouble

    def _half_done(self) -> bool:
        return not self.faults.killed and self.faults.rng.random() < 0.5

    def _find(self, path: str) -> _Inode | _Directory | None:
        node: _Inode | _Directory = self.disk.root
        for name in _split(path):
            if not isinstance(node, _Directory) or name not in node.names:
                return None
            node = node.names[name]
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._find(path)
        if not isinstance(node, _Directory):
            number = errno.ENOENT if node is None else errno.ENOTDIR
            raise OSError(number, os.strerror(number), path)
        return node

    def _file(self, path: str) -> _Inode:
        node = self._find(path)
        if not isinstance(node, _Inode):
            number = errno.ENOENT if node is None else errno.EISDIR
            raise OSError(number, os.strerror(number), path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        parent, _, name = path.rpartition("/")
        return self._directory(parent), name


class MemoryFile:
    """An open file; it stays readable after its name is gone, as on a real disk."""

    def __init__(self, files: MemoryFiles, path: str, inode: _Inode) -> None:
        self._files = files
        self._path = path
        self._inode = inode
        self._open = True

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        self._check_open()
        data = b"".join(buffers)
        trouble = self._files.faults.step("pwritev", self._path)
        if trouble is not None:
            if not self._files.faults.killed:
                self._write(data[: self._files.faults.rng.randrange(len(data) + 1)], offset)
            raise trouble
        self._write(data, offset)
        return len(data)

    def pread(self, size: int, offset: int) -> bytes:
        self._check_open()
        self._files._step("pread", self._path)
        return bytes(self._inode.content[offset : offset + size])

    def truncate(self, size: int) -> None:
        self._check_open()
        trouble = self._files.faults.step("truncate", self._path)
        if trouble is not None and not (isinstance(trouble, Killed) and self._files._half_done()):
            raise trouble
        if size != len(self._inode.content):
            self._inode.change(_Change(size, None))
            self._inode.modified_ms = self._files.now_ms
        if trouble is not None:
            raise trouble

    def reserve(self, size: int) -> None:
        self._check_open()
        self._files._step("reserve", self._path)

    def fdatasync(self) -> None:
        self._check_open()
        self._files._step("fdatasync", self._path)
        self._inode.sync()

    def size(self) -> int:
        self._check_open()
        self._files._step("fstat", self._path)
        return len(self._inode.content)

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a file in memory has no descriptor", self._path)

    def close(self) -> None:
        self._open = False

    def _write(self, data: bytes, offset: int) -> None:
        if data:
            self._inode.change(_Change(offset, data))
            self._inode.modified_ms = self._files.now_ms

    def _check_open(self) -> None:
        if not self._open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)


class MemoryLock:
    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locked.discard(self._path)


def _apply(content: bytearray, change: _Change) -> None:
    if change.data is None:
        del content[change.offset :]
        content.extend(bytes(change.offset - len(content)))
    elif change.data:
        content.extend(bytes(max(change.offset - len(content), 0)))
        content[change.offset : change.offset + len(change.data)] = change.data


def _split(path: str) -> list[str]:
    return [name for name in path.split("/") if name]
