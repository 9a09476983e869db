"""Where a backup is stored: a directory, or an object store.

Both hold a few *files*, named by :func:`key_of`, which are appended to, and a manifest that appears whole or not at
all. In a directory, a file is a file. Objects cannot grow, so in an object store a file is a series of objects,
numbered from 0, each of which appears whole.
"""

from __future__ import annotations

import errno
import importlib
import mmap
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from tidelog.model.buffer import Buffer
from tidelog.proto.backups.manifest import NAME, BackupError, Manifest

TOPICS: Final = "topics"
READ_BYTES: Final = 4 * 1024 * 1024
"""Bytes to read from a file at a time; an object is read whole, and holds one fetch's answer."""
_FROM: Final = "credentials and the store's address come from the environment: "
HINTS: Final = {
    "s3": f"{_FROM}AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL",
    "gs": f"{_FROM}GOOGLE_SERVICE_ACCOUNT, the path of a key",
    "az": f"{_FROM}AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY",
}
"""By URL scheme: what to check if the store refuses."""
RETRIES: Final = 3
RETRY_S: Final = 20


def read_manifest(place: Place) -> Manifest:
    """Read the manifest. Raises :class:`BackupError`."""
    try:
        return Manifest.from_json(place.read_manifest().decode())
    except FileNotFoundError:
        raise BackupError(
            f"{place}: expected a {NAME}, found none: this is not a backup, or an unfinished one; remove what is "
            "there and make the backup again"
        ) from None
    except UnicodeDecodeError as error:
        raise BackupError(f"{place}/{NAME}: expected a backup's manifest, found damage: {error}") from None
    except BackupError as error:
        raise BackupError(f"{place}/{NAME}: {error}") from None


def key_of(topic: str, partition: int) -> str:
    """Return the name of a partition's file."""
    return f"{TOPICS}/{topic}/{partition}.batches"


class Place(Protocol):
    """The storage of one backup. All methods raise :class:`BackupError` and ``OSError``; ``FileNotFoundError`` if
    something is missing."""

    def make(self) -> None:
        """Claim the place, which must be new or empty."""

    def begin(self, key: str) -> None:
        """Start a file, or start it again."""

    def append(self, key: str, data: Sequence[Buffer]) -> None:
        """Append to a file."""

    def finish(self, key: str) -> None:
        """Make a file durable."""

    def remove(self, key: str) -> None: ...

    def read(self, key: str) -> Generator[Buffer, int | None, None]:
        """Yield a file's bytes in order, in pieces of any size. The last bytes of a piece, as many as are sent in, come
        again with more after them. The end: there is no more. A piece is valid until the one after the next is
        read."""

    def size(self, key: str) -> int | None:
        """Return the length of a file; ``None`` if it is missing. (An empty file has no objects.)"""

    def write_manifest(self, text: str) -> None:
        """Write the manifest, last: everything else is durable when it appears."""

    def read_manifest(self) -> bytes: ...


def place_of(text: str) -> Place:
    """Return the place for a path or a URL such as ``s3://bucket/path``. Raises :class:`BackupError`."""
    scheme, found, _ = text.partition("://")
    if not found:
        return Directory(Path(text))
    if scheme not in HINTS:
        raise BackupError(f"{text}: expected a directory or a URL that begins with {', '.join(HINTS)}")
    return ObjectStore(text)


class Directory:
    """Files have mode 0600, directories 0700."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def make(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if any(self.path.iterdir()):
                raise BackupError(f"{self.path}: expected a new or empty directory, found files in it")
            (self.path / TOPICS).mkdir(mode=0o700)
        except (FileExistsError, NotADirectoryError):
            raise BackupError(f"{self.path}: expected a directory, found a file") from None

    def begin(self, key: str) -> None:
        path = self.path / key
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))

    def append(self, key: str, data: Sequence[Buffer]) -> None:
        with (self.path / key).open("ab") as file:
            file.writelines(data)

    def finish(self, key: str) -> None:
        _sync(self.path / key)

    def remove(self, key: str) -> None:
        (self.path / key).unlink()

    def read(self, key: str) -> Generator[Buffer, int | None, None]:
        position = rest = 0
        with closing(_FileReadOnce(partial(self._opened, key))) as file:
            while len(piece := file.read(position, max(READ_BYTES, 2 * rest))) > rest:
                rest = (yield piece) or 0
                position += len(piece) - rest

    def size(self, key: str) -> int | None:
        path = self.path / key
        return path.stat().st_size if path.is_file() else None

    def _opened(self, key: str, flags: int) -> int:
        return os.open(self.path / key, flags)

    def write_manifest(self, text: str) -> None:
        topics = self.path / TOPICS
        for path in (*topics.iterdir(), topics, self.path):
            _sync(path)
        new = self.path / f"{NAME}.new"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        _sync(new)
        new.rename(self.path / NAME)
        _sync(self.path)
        _sync(self.path.parent)

    def read_manifest(self) -> bytes:
        return (self.path / NAME).read_bytes()


class _FileReadOnce:
    """A file that is read from its beginning to its end, past the system's cache where that is possible. Its pages
    would displace others, and to find room for them may cost more than all else that is done with the bytes."""

    def __init__(self, opened: Callable[[int], int]) -> None:
        """``opened``: open it with these flags."""
        self._opened = opened
        self._memory: memoryview | None = None
        self._former: memoryview | None = None
        """Direct reads go to aligned memory, in turns; it is used again because new memory is not cheap either."""
        self._direct = hasattr(os, "O_DIRECT")
        self._open()

    def read(self, position: int, size: int) -> Buffer:
        """Return up to ``size`` bytes, fewer only at the end. They are valid until the read after the next."""
        if self._direct:
            try:
                return self._read_directly(position, size)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
            self.close()
            self._direct = False
            self._open()
        found = os.pread(self._handle, size, position)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._handle, position, len(found), os.POSIX_FADV_DONTNEED)
        return found

    def close(self) -> None:
        os.close(self._handle)

    def _open(self) -> None:
        if self._direct:
            try:
                self._handle = self._opened(os.O_RDONLY | os.O_DIRECT)
                return
            except OSError as error:
                if error.errno != errno.EINVAL:  # the file system has no such reads
                    raise
            self._direct = False
        self._handle = self._opened(os.O_RDONLY)

    def _read_directly(self, position: int, size: int) -> Buffer:
        before = position % mmap.PAGESIZE
        whole = -(-(before + size) // mmap.PAGESIZE) * mmap.PAGESIZE
        memory, self._former = self._former, self._memory
        if memory is None or len(memory) < whole:
            memory = memoryview(mmap.mmap(-1, whole))
        self._memory = memory
        count = os.preadv(self._handle, (memory[:whole],), position - before)
        return memory[before : min(count, before + size)]


class ObjectStore:
    """A place in S3, or in another store of :data:`HINTS`, with credentials from the environment."""

    def __init__(self, address: str) -> None:
        """Prepare the place without connecting. Raises :class:`BackupError` for an invalid URL."""
        self._address = address.rstrip("/")
        self._counts: dict[str, int] = {}
        """The objects of each file so far."""
        try:
            self._library: Any = importlib.import_module("obstore")
        except ModuleNotFoundError:
            raise BackupError(
                f"{address}: object stores need a library that is not installed: pip install 'tidelog[object-store]'"
            ) from None
        if not address.partition("://")[2].partition("/")[2].strip("/"):
            raise BackupError(f"{address}: expected a path after the bucket's name, such as {self._address}/monday")
        options = {"timeout": f"{RETRY_S}s"}
        if os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"):
            options["allow_http"] = "true"
        with self._named():
            self._store = importlib.import_module("obstore.store").from_url(
                self._address,
                client_options=options,
                retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)},
            )

    def __str__(self) -> str:
        return self._address

    def make(self) -> None:
        if next(self._names(""), None) is not None:
            raise BackupError(f"{self}: expected a new or empty place, found objects in it")

    def begin(self, key: str) -> None:
        if self._counts.get(key):
            self.remove(key)
        self._counts[key] = 0

    def append(self, key: str, data: Sequence[Buffer]) -> None:
        if not data:
            return
        with self._named():
            self._library.put(self._store, f"{key}/{self._counts[key]:010d}", b"".join(data))
        self._counts[key] += 1

    def finish(self, key: str) -> None:
        """Do nothing: an object is durable once it is put."""

    def remove(self, key: str) -> None:
        with self._named():
            self._library.delete(self._store, list(self._names(f"{key}/")))

    def read(self, key: str) -> Generator[Buffer, int | None, None]:
        rest = b""
        for name in sorted(self._names(f"{key}/")):
            piece = rest + self._get(name)
            again = (yield piece) or 0
            rest = piece[len(piece) - again :]

    def size(self, key: str) -> int | None:
        return sum(int(each["size"]) for each in self._objects(f"{key}/"))

    def write_manifest(self, text: str) -> None:
        with self._named():
            self._library.put(self._store, NAME, text.encode())

    def read_manifest(self) -> bytes:
        return self._get(NAME)

    def _get(self, name: str) -> bytes:
        with self._named():
            return bytes(self._library.get(self._store, name).bytes())

    def _names(self, prefix: str) -> Iterator[str]:
        for each in self._objects(prefix):
            yield each["path"]

    def _objects(self, prefix: str) -> Iterator[Mapping[str, Any]]:
        with self._named():
            for found in self._library.list(self._store, prefix):
                yield from found

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Translate the store's errors, and say what to do."""
        try:
            yield
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise BackupError(f"{self}: expected an existing bucket, found none: create it first") from None
            raise
        except (ValueError, self._library.exceptions.BaseError) as error:
            text = str(error).partition("\n")[0]
            raise BackupError(f"{self}: {text}; {HINTS[self._address.partition(':')[0]]}") from None


def _sync(path: Path) -> None:
    """Make a file's bytes, or the names in a directory, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
