"""Backups that this node may read itself: those in the directories of ``backup.dirs``."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from tidelog.proto.backups.manifest import NAME, BackupError, Manifest, PartitionPart
from tidelog.proto.backups.place import Directory, key_of

MANIFEST_BYTES_MAX: Final = 256 * 1024 * 1024
"""Largest manifest that a node reads."""


class NotReadHere(Exception):
    """This node does not, or cannot, read that backup; the text says why."""


class AllowedPlaces:
    """The directories that the operator allowed. Only a user who may alter the cluster gets here."""

    def __init__(self, directories: Sequence[str]) -> None:
        self._directories = [os.path.realpath(each) for each in directories]
        self._last: tuple[str, Manifest] | None = None
        """The manifest that was read last, with its hash."""

    def find(self, path: str, manifest_sha256: str, topic: str, partition: int) -> tuple[Directory, PartitionPart]:
        """Return a backup and what its manifest says of a partition's file, which is there. ``manifest_sha256``: of
        the file that the caller has; so it is the same backup. Raises :class:`NotReadHere`; reads the disk."""
        place = self._place(path)
        try:
            manifest = self._manifest(place, manifest_sha256)
            size = place.size(key_of(topic, partition))
        except OSError as error:
            raise NotReadHere(f"{path}: {error.strerror or error}") from None
        for part in next((each.partitions for each in manifest.topics if each.name == topic), ()):
            if part.partition == partition:
                if size == part.size:
                    return place, part
                raise NotReadHere(f"{path}/{key_of(topic, partition)}: expected {part.size} bytes, found {size}")
        raise NotReadHere(f"{path}: expected partition {topic}-{partition} in its manifest, found none")

    def _place(self, path: str) -> Directory:
        wanted = PurePosixPath(os.path.normpath(path))
        for directory in self._directories:
            if wanted.is_relative_to(directory):
                return _Below(directory, wanted.relative_to(directory).parts)
        raise NotReadHere(f"expected a directory within backup.dirs of this node, found {path!r}")

    def _manifest(self, place: Directory, wanted: str) -> Manifest:
        content = place.read_manifest()
        found = hashlib.sha256(content).hexdigest()
        if found != wanted:
            raise NotReadHere(f"{place}/{NAME}: expected the backup that is being restored, found another one")
        if self._last is None or self._last[0] != found:
            try:
                self._last = found, Manifest.from_json(content.decode())
            except (BackupError, UnicodeDecodeError) as error:
                raise NotReadHere(f"{place}/{NAME}: {error}") from None
        return self._last[1]


class _Below(Directory):
    """A backup below a directory. No symbolic link on the way from there to a file is followed, and nothing but a
    file is read."""

    def __init__(self, directory: str, parts: Sequence[str]) -> None:
        super().__init__(Path(directory, *parts))
        self._directory = directory
        self._parts = parts

    def size(self, key: str) -> int | None:
        try:
            handle = self._opened(key, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            return os.fstat(handle).st_size
        finally:
            os.close(handle)

    def read_manifest(self) -> bytes:
        with open(self._opened(NAME, os.O_RDONLY), "rb") as file:
            content = file.read(MANIFEST_BYTES_MAX + 1)
        if len(content) > MANIFEST_BYTES_MAX:
            raise NotReadHere(f"{self}/{NAME}: expected at most {MANIFEST_BYTES_MAX} bytes, found more")
        return content

    def _opened(self, key: str, flags: int) -> int:
        *above, name = (*self._parts, *key.split("/"))
        at = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in above:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
                os.close(at)
                at = inner
            handle = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
        finally:
            os.close(at)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EPERM, f"{self.path}/{key}: expected a file, found something else")
        return handle
