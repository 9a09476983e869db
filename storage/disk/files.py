"""The interface between the log and a disk, and the real disk's implementation.

Everything that this folder reads or writes goes through a :class:`FileLayer`, so that a test or a simulation can
replace the disk: kill between two calls, tear a write, forget unsynced data, run out of space. All calls are
synchronous. Failures raise ``OSError`` and nothing else.

The rest of the folder relies on these guarantees, and a replacement must keep them:

- the next :meth:`File.pread` sees what :meth:`File.pwritev` wrote; the data survives a kill of the process, but not a
  power loss;
- it survives a power loss once :meth:`File.fdatasync` returned (the file's size included), and the
  file is still found under its name once :meth:`FileLayer.fsync_dir` of its directory returned;
- :meth:`FileLayer.rename` within one directory is atomic.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import re
import resource
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, cast

from tidelog.model.buffer import Buffer

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
"""Records are their owner's business: nobody else on the machine may read them, whatever the umask."""
IOV_MAX: Final = 1024
"""Most buffers that one ``pwritev`` takes (Linux's ``UIO_MAXIOV``)."""
WRITE_BYTES_MAX: Final = 1024 * 1024
"""Most bytes of one system call. For 4 MiB, Linux takes page cache in blocks of 4 MiB. Those are rarely at hand in a
virtual machine: a write then took ten times the processor time."""


class File(Protocol):
    """An open regular file. Position-less: every call names its offset."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write all buffers consecutively from ``offset`` on; return the number of bytes."""

    def pwritev_once(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Like :meth:`pwritev`, for many bytes that nobody will read soon: whole blocks go to the disk past the
        system's cache, where possible. Waits for the disk, but promises no more than :meth:`pwritev`."""

    def pread(self, size: int, offset: int) -> bytes:
        """Read up to ``size`` bytes; fewer only at the end of the file."""

    def pread_once(self, size: int, offset: int) -> bytes:
        """Like :meth:`pread`, for bytes that nobody else will read soon: few of the newly read pages stay in the
        system's cache."""

    def truncate(self, size: int) -> None: ...

    def reserve(self, size: int) -> None:
        """Preallocate that many bytes without changing the file's size. Does nothing if the system cannot do this."""

    def fdatasync(self) -> None:
        """Make content and size durable. May be called in another thread than the other methods."""

    def size(self) -> int: ...

    def fileno(self) -> int:
        """Return the descriptor, for ``sendfile``. Raises ``OSError`` if there is none."""

    def close(self) -> None: ...


class FileLock(Protocol):
    """A lock on a path, held until :meth:`release` or the end of the process."""

    def release(self) -> None: ...


class DiskUsage(NamedTuple):
    """Disk space in bytes, for the file system that holds a path."""

    total: int
    free: int


class FileLayer(Protocol):
    """A disk. Paths are absolute or relative strings with ``/``."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> File:
        """Open for reading and writing. ``create``: create the file if it is missing; ``exclusive``: it must not
        exist."""

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, in no particular order."""

    def is_directory(self, path: str) -> bool: ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int:
        """Return when the file's content last changed, in milliseconds since the epoch."""

    def makedirs(self, path: str) -> None:
        """Create a directory and missing parents, accessible to their owner alone; does nothing if it exists."""

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory and its contents. Does nothing if it is missing."""

    def fsync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""

    def lock(self, path: str) -> FileLock:
        """Take an exclusive lock on a file, created if necessary. Raises ``BlockingIOError`` if another process holds
        it."""

    def sync_filesystem(self, path: str) -> bool:
        """Make everything durable on the file system that holds ``path``, names included.

        Returns False if the system has no such call; then nothing is guaranteed.
        """

    def disk_usage(self, path: str) -> DiskUsage: ...

    def open_files_max(self) -> int:
        """Return how many files may reasonably be kept open at once."""


class SystemFile:
    """A file of the operating system."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        total = sum(map(len, buffers))
        if total <= WRITE_BYTES_MAX and len(buffers) <= IOV_MAX:
            written = os.pwritev(self._fd, buffers, offset)
            if written == total:
                return total
            buffers = _after(buffers, written)
            offset += written
        while buffers:
            written = os.pwritev(self._fd, _first(buffers, WRITE_BYTES_MAX), offset)
            offset += written
            buffers = _after(buffers, written)
        return total

    def pwritev_once(self, buffers: Sequence[Buffer], offset: int) -> int:
        total = sum(map(len, buffers))
        before = -offset % mmap.PAGESIZE
        if total < before + mmap.PAGESIZE:
            return self.pwritev(buffers, offset)
        # The incomplete blocks at both ends are the cache's, the ones between never are: a write past the cache never
        # meets bytes that wait in it.
        written = self.pwritev(_first(buffers, before), offset) if before else 0
        rest = _after(buffers, written)
        written += _write_past_cache(self._fd, rest, offset + written, total - written)
        rest = _after(buffers, written)
        if rest:
            self.pwritev(rest, offset + written)
        return total

    def pread(self, size: int, offset: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def pread_once(self, size: int, offset: int) -> bytes:
        if not hasattr(os, "posix_fadvise"):
            return os.pread(self._fd, size, offset)
        # Without this the kernel would read ahead, and those pages would look like someone else's. So do those that a
        # call which must not wait has fetched, if the disk is quicker than its answer.
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)
        data = bytearray(size)
        try:
            if os.preadv(self._fd, (data,), offset, os.RWF_NOWAIT) == size:
                return bytes(data)
        except (OSError, AttributeError) as error:
            if getattr(error, "errno", errno.EAGAIN) not in (errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
        found = os.pread(self._fd, size, offset)
        os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_DONTNEED)
        return found

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def reserve(self, size: int) -> None:
        if _fallocate is not None and _fallocate(self._fd, _KEEP_SIZE, 0, size):
            number = ctypes.get_errno()
            if number not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise OSError(number, os.strerror(number))

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class SystemLock:
    """A ``flock`` on a file; the kernel drops it with the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class SystemFiles:
    """The machine's disk."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> SystemFile:
        flags = os.O_RDWR | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_CREAT | os.O_EXCL
        return SystemFile(os.open(path, flags, FILE_MODE))

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def makedirs(self, path: str) -> None:
        if os.path.isdir(path):
            return
        if above := os.path.dirname(path.rstrip("/")):
            self.makedirs(above)
        try:
            os.mkdir(path, DIRECTORY_MODE)  # os.makedirs applies the mode to the last one only
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            if os.path.lexists(path):
                raise

    def fsync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> SystemLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return SystemLock(fd)

    def sync_filesystem(self, path: str) -> bool:
        if _syncfs is None:
            return False
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _syncfs(fd):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            os.close(fd)
        return True

    def disk_usage(self, path: str) -> DiskUsage:
        found = shutil.disk_usage(path)
        return DiskUsage(found.total, found.free)

    def open_files_max(self) -> int:
        """Return half of the process's limit, at most 8,192; the rest is for sockets."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return 8_192 if soft == resource.RLIM_INFINITY else max(64, min(soft // 2, 8_192))


_KEEP_SIZE: Final = 1
"""Linux's ``FALLOC_FL_KEEP_SIZE``."""


def _from_libc(name: str, since: tuple[int, int], *types: object) -> Callable[..., int] | None:
    """Return a Linux call that Python lacks; None on other systems and before the given version."""
    if sys.platform != "linux" or tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < since:
        return None
    found = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if found is not None:
        found.argtypes = types
    return cast(Callable[..., int] | None, found)


# Before 5.8, syncfs does not report write errors.
_syncfs: Final = _from_libc("syncfs", (5, 8), ctypes.c_int)
_fallocate: Final = _from_libc("fallocate", (2, 6), ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def read_file(files: FileLayer, path: str) -> bytes:
    """Return the whole content of a small file."""
    file = files.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def start_over(file: File) -> None:
    """Empty a file. Checking first is cheap; truncating an empty file waits for the file system's journal."""
    if file.size():
        file.truncate(0)


def write_file(files: FileLayer, path: str, content: bytes) -> None:
    """Write a new file without making it durable; a kill leaves it whole or torn."""
    file = files.open(path, create=True)
    try:
        start_over(file)
        file.pwritev((content,), 0)
    finally:
        file.close()


def replace_file(files: FileLayer, directory: str, name: str, content: bytes) -> None:
    """Replace a file durably: after a power loss, either the old or the new content is there."""
    path = f"{directory}/{name}"
    file = files.open(path + ".tmp", create=True)
    try:
        start_over(file)
        file.pwritev((content,), 0)
        file.fdatasync()
    finally:
        file.close()
    files.rename(path + ".tmp", path)
    files.fsync_dir(directory)


_own: Final = threading.local()


def _write_past_cache(fd: int, buffers: Sequence[Buffer], offset: int, size: int) -> int:
    """Write the whole blocks among the first ``size`` bytes of ``buffers``. Returns how many bytes were written: fewer
    if the disk has no more room, none if the system has no such writes."""
    if not hasattr(os, "O_DIRECT") or offset % mmap.PAGESIZE:
        return 0
    try:
        handle = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:  # the file system has no such writes, the system no such name, or there are no more descriptors
        return 0
    written = 0
    try:
        for piece in _aligned(buffers, size - size % mmap.PAGESIZE):
            count = os.pwrite(handle, piece, offset + written)
            written += count
            if count < len(piece):
                break
    except OSError as error:
        if error.errno != errno.EINVAL:  # the disk's blocks are larger
            raise
    finally:
        os.close(handle)
    return written


def _aligned(buffers: Sequence[Buffer], size: int) -> Iterator[memoryview]:
    """Yield the first ``size`` bytes of ``buffers`` in aligned memory, which each piece uses again."""
    if not hasattr(_own, "memory"):
        _own.memory = memoryview(mmap.mmap(-1, WRITE_BYTES_MAX))
    memory: memoryview = _own.memory
    filled = 0
    for buffer in buffers:
        data = memoryview(buffer)
        while data and size:
            count = min(len(data), len(memory) - filled, size)
            memory[filled : filled + count] = data[:count]
            data = data[count:]
            filled += count
            size -= count
            if filled == len(memory) or not size:
                yield memory[:filled]
                filled = 0


def _first(buffers: Sequence[Buffer], left: int) -> list[Buffer]:
    """Return the first ``left`` bytes of ``buffers``, or as many as one system call takes."""
    found: list[Buffer] = []
    for buffer in buffers[:IOV_MAX]:
        if len(buffer) >= left:
            found.append(memoryview(buffer)[:left])
            break
        found.append(buffer)
        left -= len(buffer)
    return found


def _after(buffers: Sequence[Buffer], written: int) -> list[Buffer]:
    """Return the rest of ``buffers`` after their first ``written`` bytes."""
    left: list[Buffer] = []
    for buffer in buffers:
        if written >= len(buffer):
            written -= len(buffer)
        elif written:
            left.append(memoryview(buffer)[written:])
            written = 0
        else:
            left.append(buffer)
    return left
