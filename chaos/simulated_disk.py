"""A disk in memory that can lose what a real one loses.

A *kill* keeps everything that was written (the page cache outlives a process). A *power loss* keeps
what was synced, and of the rest whatever chance decides: single sectors of a write, in any order, and
a prefix of the changes of a directory. A run can also be made to *crash* at its n-th call.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from tidelog.proto.network import Buffer

SECTOR: Final = 512


class SimulatedCrash(BaseException):
    """The process is gone, in the midst of a call. Not an ``Exception``: nobody may catch and go on."""


class _Inode:
    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.unsynced: list[tuple[int, bytes] | int] = []
        """Writes (offset, bytes) and truncations (size), in order, since the last sync."""

    def write(self, data: bytes, offset: int) -> None:
        _write(self.content, offset, data)
        self.unsynced.append((offset, data))

    def truncate(self, size: int) -> None:
        _truncate(self.content, size)
        self.unsynced.append(size)

    def sync(self) -> None:
        for change in self.unsynced:
            if isinstance(change, int):
                _truncate(self.durable, change)
            else:
                _write(self.durable, *change)
        self.unsynced.clear()

    def replace(self, content: bytes) -> None:
        self.content = bytearray(content)
        self.durable = bytearray(content)
        self.unsynced.clear()

    def lose_power(self, rng: random.Random) -> None:
        kept = self.durable
        for change in self.unsynced:
            if isinstance(change, int):
                if rng.random() < 0.5:
                    _truncate(kept, change)
                continue
            offset, data = change
            for start in range(0, len(data), SECTOR):
                if rng.random() < 0.5:
                    _write(kept, offset + start, data[start : start + SECTOR])
        self.replace(bytes(kept))


def _write(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _truncate(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


class _Directory:
    def __init__(self) -> None:
        self.names: dict[str, _Inode] = {}
        self.versions: list[dict[str, _Inode]] = [{}]
        """What is durable, and after it each state since; a power loss leaves one of them."""

    def changed(self) -> None:
        self.versions.append(dict(self.names))

    def sync(self) -> None:
        self.versions = [dict(self.names)]

    def lose_power(self, rng: random.Random) -> None:
        self.names = dict(rng.choice(self.versions))
        self.sync()


class SimulatedDisk:
    """A file system for one process at a time. Implements the quorum's file seam.

    ``crash_at`` is the number of the call, counted from the last :meth:`kill`, at which the process
    ends: before the call has any effect, or, for a write, after a part of it.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._directories: dict[str, _Directory] = {}
        self._generation = 0
        self.calls = 0
        self.syncs = 0
        self.crash_at: int | None = None
        self.error_at: tuple[int, OSError] | None = None

    # --- what befalls it ---------------------------------------------------------------------------

    def kill(self) -> None:
        """The process that used the disk is gone; what it wrote stays."""
        self._generation += 1
        self.calls = 0
        self.crash_at = None
        self.error_at = None

    def lose_power(self) -> None:
        """As :meth:`kill`, and what was not synced is lost in whole or in part."""
        self.kill()
        inodes: dict[int, _Inode] = {}
        for directory in self._directories.values():
            for names in (*directory.versions, directory.names):
                inodes.update((id(inode), inode) for inode in names.values())
            directory.lose_power(self._rng)
        for inode in inodes.values():
            inode.lose_power(self._rng)

    def content(self, path: str) -> bytes:
        """What a file holds now. For tests; counts as no call."""
        directory, name = self._split(path)
        return bytes(directory.names[name].content)

    def put(self, path: str, content: bytes) -> None:
        """Replace a file's content durably. For tests; counts as no call."""
        directory, name = self._split(path)
        inode = directory.names.setdefault(name, _Inode())
        inode.replace(content)
        directory.sync()

    # --- the seam ----------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> SimulatedFile:
        self.call()
        directory, name = self._split(path)
        inode = directory.names.get(name)
        if inode is not None and exclusive:
            raise FileExistsError(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(path)
            inode = directory.names[name] = _Inode()
            directory.changed()
        return SimulatedFile(self, inode, self._generation)

    def exists(self, path: str) -> bool:
        self.call()
        directory, name = self._split(path)
        return name in directory.names

    def makedirs(self, path: str) -> None:
        self.call()
        self._directories.setdefault(path, _Directory())

    def rename(self, source: str, target: str) -> None:
        self.call()
        directory, name = self._split(source)
        other, new_name = self._split(target)
        if directory is not other:
            raise OSError("renames stay within a directory here")
        directory.names[new_name] = directory.names.pop(name)
        directory.changed()

    def unlink(self, path: str) -> None:
        self.call()
        directory, name = self._split(path)
        del directory.names[name]
        directory.changed()

    def fsync_dir(self, path: str) -> None:
        self.call()
        self._directories[path].sync()

    def lock(self, path: str) -> SimulatedLock:
        self.call()
        return SimulatedLock()

    # --- inside ------------------------------------------------------------------------------------

    def call(self, inode: _Inode | None = None, data: bytes = b"", offset: int = 0) -> None:
        """Count a call; crash or fail in it if it is its turn."""
        self.calls += 1
        if self.error_at is not None and self.calls >= self.error_at[0]:
            raise self.error_at[1]
        if self.crash_at is not None and self.calls >= self.crash_at:
            if inode is not None and data:
                inode.write(data[: self._rng.randrange(len(data) + 1)], offset)
            raise SimulatedCrash

    def check_generation(self, generation: int) -> None:
        assert generation == self._generation, "a file is used by a process that is gone"

    def _split(self, path: str) -> tuple[_Directory, str]:
        directory, _, name = path.rpartition("/")
        if directory not in self._directories:
            raise FileNotFoundError(path)
        return self._directories[directory], name


class SimulatedFile:
    """An open file of a :class:`SimulatedDisk`."""

    def __init__(self, disk: SimulatedDisk, inode: _Inode, generation: int) -> None:
        self._disk = disk
        self._inode = inode
        self._generation = generation

    def pread(self, size: int, offset: int) -> bytes:
        self._call()
        return bytes(self._inode.content[offset : offset + size])

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        data = b"".join(buffers)
        self._call(data, offset)
        self._inode.write(data, offset)
        return len(data)

    def truncate(self, size: int) -> None:
        self._call()
        self._inode.truncate(size)

    def fdatasync(self) -> None:
        self._call()
        self._disk.syncs += 1
        self._inode.sync()

    def size(self) -> int:
        self._call()
        return len(self._inode.content)

    def close(self) -> None:
        """Always allowed: a process that is gone closes its files."""

    def _call(self, data: bytes = b"", offset: int = 0) -> None:
        self._disk.check_generation(self._generation)
        self._disk.call(self._inode, data, offset)


class SimulatedLock:
    """A lock that nobody else wants."""

    def release(self) -> None:
        """Nothing is held."""
