"""A bounded pool of open files: thousands of partitions share a fixed number of descriptors."""

from __future__ import annotations

from collections import OrderedDict

from tidelog.storage.disk.files import File, FileLayer


class HandlePool:
    """Keeps at most ``open_max`` files open; opening another closes the least recently used one.

    Recency is one bit per file (a second-chance clock), so use costs next to nothing. Pinned files stay open; if all
    are pinned, the pool exceeds its bound rather than refusing, by the number of pinned files: one job's worth.
    """

    def __init__(self, files: FileLayer, open_max: int = 1024) -> None:
        self.files = files
        self.open_max = open_max
        self._open: OrderedDict[PooledFile, None] = OrderedDict()
        self.pinned = 0
        """Number of pinned files."""

    @property
    def crowded(self) -> bool:
        """Whether too many files are pinned, so that readers should avoid pins if they can."""
        return self.pinned >= self.open_max // 2

    def __len__(self) -> int:
        return len(self._open)

    def close(self) -> None:
        """Close all files that are not pinned."""
        for pooled in tuple(self._open):
            pooled.close()

    def _opened(self, pooled: PooledFile) -> None:
        self._open[pooled] = None
        for _ in range(2 * len(self._open)):
            if len(self._open) <= self.open_max:
                return
            oldest = next(iter(self._open))
            if oldest.used or oldest.pins or oldest is pooled:
                oldest.used = False
                self._open.move_to_end(oldest)
            else:
                oldest.close()


class PooledFile:
    """A file by path, opened on demand."""

    __slots__ = ("_close_at_unpin", "_file", "_pool", "path", "pins", "used")

    def __init__(self, pool: HandlePool, path: str) -> None:
        self._pool = pool
        self._file: File | None = None
        self.path = path
        self.used = False
        self.pins = 0
        self._close_at_unpin = False

    def get(self, *, create: bool = False) -> File:
        """Return the open file; valid until the next call of any pooled file's ``get``, or while pinned."""
        self.used = True
        if self._file is None:
            self._file = self._pool.files.open(self.path, create=create)
            self._pool._opened(self)
        return self._file

    def pin(self) -> File:
        """Like :meth:`get`, but the file stays open until :meth:`unpin`."""
        file = self.get()
        self.pins += 1
        if self.pins == 1:
            self._pool.pinned += 1
        return file

    def unpin(self) -> None:
        self.pins -= 1
        if not self.pins:
            self._pool.pinned -= 1
        if self._close_at_unpin and not self.pins:
            self._close_at_unpin = False
            self.close()

    def renamed_to(self, directory: str) -> None:
        """Note that the file's directory was renamed; an open file stays open."""
        self.path = f"{directory}/{self.path.rpartition('/')[2]}"

    def close(self) -> None:
        """Close the file if it is open, once nothing pins it; it may be used again."""
        if self.pins:
            # Another thread may be in fdatasync: its descriptor must not become another file's.
            self._close_at_unpin = True
            return
        file, self._file = self._file, None
        if file is not None:
            self._pool._open.pop(self, None)
            file.close()
