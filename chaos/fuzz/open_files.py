"""The files that a process holds open, by kind: there may be many existing log files; an unreachable file is a leak."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tidelog.chaos.proc import descriptors

_DELETED = " (deleted)"
"""The suffix that Linux gives to the path of a deleted file (``proc_pid_fd(5)``)."""


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """Numbers of descriptors; each descriptor is in one of these."""

    sockets: int
    """Connections and listeners."""
    kept: int
    """Files below the directory of the process, each counted once."""
    deleted: int
    """Deleted files: they occupy disk space for nothing."""
    others: int
    """The rest: pipes, the event loop's own, files elsewhere, a second descriptor of a file."""

    @property
    def total(self) -> int:
        return self.sockets + self.kept + self.deleted + self.others


def kinds(links: Iterable[str], directory: str) -> OpenFiles:
    """Classify the targets of descriptors; ``directory`` is that of the process, without links in its path."""
    sockets = deleted = others = 0
    kept: set[str] = set()
    for link in links:
        if link.startswith("socket:"):
            sockets += 1
        elif link.endswith(_DELETED):
            deleted += 1
        elif link.startswith(directory + "/") and link not in kept:
            kept.add(link)
        else:
            others += 1
    return OpenFiles(sockets, len(kept), deleted, others)


def open_files(pid: int, directory: Path) -> OpenFiles:
    """Return the files that a process holds open now. Raises ``OSError`` if it is gone."""
    return kinds(descriptors(pid), str(directory.resolve()))
