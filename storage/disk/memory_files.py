"""An in-memory disk with fault injection: for tests, and to run many nodes in one process.

It separates what a process sees from what a power loss would leave, by the rules of :mod:`tidelog.storage.disk.files`,
and never more leniently:

- each write since a file's last fdatasync is kept or lost, perhaps in part: a prefix that ends at a sector, or any of
  its sectors; a hole reads as zeros;
- a failed fdatasync loses writes as a power loss would: a later successful one does not bring them back, though this
  process still reads them (Linux marks such pages clean);
- changes to the names in a directory since its last fsync are kept up to some point and lost from there on, as on a
  journaling file system; if :attr:`Disk.names_in_order` is off, each call is kept or lost individually; directories are
  independent of each other;
- a file whose name is lost is gone.

Every call counts as one step. A :class:`Faults` sees each step before it happens, and may raise.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from tidelog.model.buffer import Buffer
from tidelog.storage.disk.files import DiskUsage

SECTOR: Final = 512
"""Torn writes are cut at file offsets that are multiples of this many bytes."""


class Killed(BaseException):
    """The process ended at this call. Not an ``Exception``: no handler catches it on its way out."""


class Faults:
    """The faults, and when each happens. Steps are counted from 1 over the life of this object.

    ``kill_at``: :class:`Killed` at that step, and at every later one: half the time (by ``rng``) a write takes effect
    in part; any other call takes effect or not. ``kill_in``: the same at the n-th step of a kind, counted from now, or
    from the first such step on a path that ends in ``kill_in_from``. ``fail_at``: an ``OSError`` with ``number`` at
    that step, once; a write may be done in part. ``broken``: every step under one of these paths fails. ``failing``:
    every step of one of these kinds fails, ``pwritev`` with ``ENOSPC``, as on a full disk.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self.rng = rng or random.Random(0)
        self.steps = 0
        self.kill_at: int | None = None
        self.kill_in: tuple[str, int] | None = None
        self.kill_in_from = ""
        self.fail_at: int | None = None
        self.number = errno.EIO
        self.broken: dict[str, int] = {}
        self.failing: dict[str, int] = {}
        self.trace: list[str] | None = None
        """Set it to a list to record every step."""

    def step(self, action: str, path: str) -> BaseException | None:
        """Count a step; return the exception that it must raise, if any."""
        self.steps += 1
        if self.trace is not None:
            self.trace.append(f"{self.steps} {action} {path}")
        if self.kill_in is not None and action == self.kill_in[0] and path.endswith(self.kill_in_from):
            self.kill_in, self.kill_in_from = (action, self.kill_in[1] - 1), ""
            if self.kill_in[1] <= 0:
                self.kill_at, self.kill_in = self.steps, None
        if self.kill_at is not None and self.steps >= self.kill_at:
            return Killed(f"step {self.steps}: {action} {path}")
        for prefix, number in self.broken.items():
            if path == prefix or path.startswith(prefix + "/"):
                return OSError(number, os.strerror(number), path)
        if action in self.failing:
            return OSError(self.failing[action], os.strerror(self.failing[action]), path)
        if self.steps == self.fail_at:
            return OSError(self.number, os.strerror(self.number), path)
        return None

    def end(self) -> None:
        """End the process: every later step is :class:`Killed` and has no effect."""
        self.kill_at = min(self.steps, self.steps if self.kill_at is None else self.kill_at)

    @property
    def killed(self) -> bool:
        """Whether the process has ended: later calls have no effect."""
        return self.kill_at is not None and self.steps > self.kill_at


class _Change(NamedTuple):
    """A write at ``offset``, or, with ``data`` None, a truncation to ``offset``."""

    offset: int
    data: bytes | None


class _Inode:
    __slots__ = ("changes", "content", "durable", "modified_ms")

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.changes: list[_Change] = []
        """The changes to ``content`` since it was ``durable``, in order."""
        self.modified_ms = 0

    def change(self, change: _Change) -> None:
        _apply(self.content, change)
        self.changes.append(change)

    def sync(self) -> None:
        changes, self.changes = self.changes, []
        for change in changes:
            _apply(self.durable, change)

    def sync_all(self) -> None:
        self.sync()

    def fail_sync(self, rng: random.Random) -> None:
        """Drop these changes for good; chance decides which of them reached the disk."""
        keep = rng.random()  # so that "all" and "none" are as likely as something in between
        for change in self.changes:
            if rng.random() < keep:
                _apply(self.durable, change)
            elif change.data is not None:
                self._tear(change.offset, change.data, rng)
        self.changes.clear()

    def lose_power(self, rng: random.Random, in_order: bool) -> None:
        self.fail_sync(rng)
        self.content = bytearray(self.durable)

    def replace(self, content: bytes) -> None:
        self.content = bytearray(content)
        self.durable = bytearray(content)
        self.changes.clear()

    def _tear(self, offset: int, data: bytes, rng: random.Random) -> None:
        """Keep none of a write, or a prefix that ends at a sector, or any of its sectors."""
        how = rng.randrange(3)
        if how == 0:
            return
        first = offset // SECTOR
        sectors = range(first, (offset + len(data) - 1) // SECTOR + 1)
        kept = range(first, first + rng.randrange(len(sectors) + 1)) if how == 1 else sectors
        for sector in kept:
            if how == 1 or rng.random() < 0.5:
                start = max(sector * SECTOR, offset)
                _apply(self.durable, _Change(start, data[start - offset : (sector + 1) * SECTOR - offset]))


class _Directory:
    __slots__ = ("changes", "durable", "names")

    def __init__(self) -> None:
        self.names: dict[str, _Inode | _Directory] = {}
        self.durable: dict[str, _Inode | _Directory] = {}
        self.changes: list[dict[str, _Inode | _Directory | None]] = []
        """The names changed since the last sync, in order; None for a removed name."""

    def set(self, name: str, node: _Inode | _Directory) -> None:
        self._change({name: node})

    def remove(self, name: str) -> None:
        self._change({name: None})

    def rename(self, old: str, new: str) -> None:
        self._change({new: self.names[old], old: None} if old != new else {})

    def _change(self, change: dict[str, _Inode | _Directory | None]) -> None:
        _rename(self.names, change)
        self.changes.append(change)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.changes.clear()

    def sync_all(self) -> None:
        self.sync()
        for node in self.names.values():
            node.sync_all()

    def lose_power(self, rng: random.Random, in_order: bool) -> None:
        changes = self.changes
        how = 0 if in_order else rng.randrange(3)
        if how == 0:
            kept = changes[: rng.choice((0, len(changes), rng.randrange(len(changes) + 1)))]
        elif how == 1:
            kept = [change for change in changes if rng.random() < 0.5]
        else:
            lost = rng.randrange(len(changes) + 1)
            kept = [change for at, change in enumerate(changes) if at != lost]
        self.names = dict(self.durable)
        for change in kept:
            _rename(self.names, change)
        self.sync()
        for node in self.names.values():
            node.lose_power(rng, in_order)


class Disk:
    """The state that outlives a process. Each process sees it through its own :class:`MemoryFiles`."""

    def __init__(self) -> None:
        self.root = _Directory()
        self.locked: set[str] = set()
        self.names_in_order = True
        """Names become durable in the order of the calls, as on ext4 and xfs; no standard guarantees it."""

    def lose_power(self, rng: random.Random) -> None:
        """Forget some of the unsynced changes."""
        self.root.lose_power(rng, self.names_in_order)
        self.locked.clear()

    def end_process(self) -> None:
        """Drop a dead process's locks, as the kernel does."""
        self.locked.clear()


class MemoryFiles:
    """A :class:`~tidelog.storage.disk.files.FileLayer` over a :class:`Disk`, for one process's life.

    Or for several in turn: call :meth:`restart` between them.
    """

    def __init__(self, disk: Disk | None = None, faults: Faults | None = None) -> None:
        self.disk = disk or Disk()
        self.faults = faults or Faults()
        self.now_ms = 0
        """The modification time that files get."""

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
            node = _Inode()
            parent.set(name, node)
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
                found = _Directory()
                node.set(name, found)
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
        old.rename(old_name, new_name)
        if trouble is not None:
            raise trouble

    def unlink(self, path: str) -> None:
        trouble = self.faults.step("unlink", path)
        if trouble is not None and not (isinstance(trouble, Killed) and self._half_done()):
            raise trouble
        self._file(path)
        parent, name = self._parent(path)
        parent.remove(name)
        if trouble is not None:
            raise trouble

    def remove_tree(self, path: str) -> None:
        self._step("remove_tree", path)
        parent, name = self._parent(path)
        if name in parent.names:
            parent.remove(name)

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

    def restart(self, *, power_loss: bool = False) -> None:
        """End the process, by a kill or by a power loss, and start the next one without its faults.

        Open files still belong to the old process.
        """
        gone = self.faults
        gone.end()
        self.faults = Faults(gone.rng)
        self.disk.end_process()
        if power_loss:
            self.disk.lose_power(gone.rng)

    def content(self, path: str) -> bytearray:
        """Return a file's bytes, to inspect or to corrupt for processes until a power loss; no step."""
        return self._file(path).content

    def synced_size(self, path: str) -> int:
        """Return a file's size at its last sync; no step."""
        return len(self._file(path).durable)

    def flip(self, path: str, position: int, mask: int = 1) -> None:
        """Flip bits of a byte, in both the visible and the durable content; no step."""
        inode = self._file(path)
        for content in (inode.content, inode.durable):
            if position < len(content):
                content[position] ^= mask

    def put(self, path: str, content: bytes) -> None:
        """Create or replace a file with that content, durably; no step."""
        parent, name = self._parent(path)
        node = parent.names.get(name)
        if not isinstance(node, _Inode):
            node = parent.names[name] = _Inode()
            parent.sync()
        node.replace(content)

    def paths(self, under: str) -> list[str]:
        """Return all files below a directory, sorted; no step."""
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
    """An open file; it stays readable after its name is removed, as on a real disk."""

    def __init__(self, files: MemoryFiles, path: str, inode: _Inode) -> None:
        self._files = files
        self._faults = files.faults
        self._path = path
        self._inode = inode
        self._open = True

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        trouble = self._step("pwritev")
        data = b"".join(buffers)
        if trouble is not None:
            if not self._faults.killed:
                self._write(data[: self._faults.rng.randrange(len(data) + 1)], offset)
            raise trouble
        self._write(data, offset)
        return len(data)

    def pwritev_once(self, buffers: Sequence[Buffer], offset: int) -> int:
        return self.pwritev(buffers, offset)

    def pread(self, size: int, offset: int) -> bytes:
        self._take("pread")
        return bytes(memoryview(self._inode.content)[offset : offset + size])

    def pread_once(self, size: int, offset: int) -> bytes:
        return self.pread(size, offset)

    def truncate(self, size: int) -> None:
        trouble = self._step("truncate")
        if trouble is not None and not (isinstance(trouble, Killed) and self._half_done()):
            raise trouble
        if size != len(self._inode.content):
            self._inode.change(_Change(size, None))
            self._inode.modified_ms = self._files.now_ms
        if trouble is not None:
            raise trouble

    def reserve(self, size: int) -> None:
        self._take("reserve")

    def fdatasync(self) -> None:
        trouble = self._step("fdatasync")
        if trouble is None:
            self._inode.sync()
            return
        if isinstance(trouble, OSError):
            self._inode.fail_sync(self._faults.rng)
        raise trouble

    def size(self) -> int:
        self._take("fstat")
        return len(self._inode.content)

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a file in memory has no descriptor", self._path)

    def close(self) -> None:
        self._open = False

    def _step(self, action: str) -> BaseException | None:
        if not self._open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        return self._faults.step(action, self._path)

    def _take(self, action: str) -> None:
        trouble = self._step(action)
        if trouble is not None:
            raise trouble

    def _half_done(self) -> bool:
        return not self._faults.killed and self._faults.rng.random() < 0.5

    def _write(self, data: bytes, offset: int) -> None:
        if data:
            self._inode.change(_Change(offset, data))
            self._inode.modified_ms = self._files.now_ms


class MemoryLock:
    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locked.discard(self._path)


def _rename(names: dict[str, _Inode | _Directory], change: dict[str, _Inode | _Directory | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _apply(content: bytearray, change: _Change) -> None:
    if change.data is None:
        del content[change.offset :]
        content.extend(bytes(change.offset - len(content)))
    elif change.data:
        if len(content) == change.offset:
            content += change.data
            return
        content.extend(bytes(max(change.offset - len(content), 0)))
        content[change.offset : change.offset + len(change.data)] = change.data


def _split(path: str) -> list[str]:
    return [name for name in path.split("/") if name]
