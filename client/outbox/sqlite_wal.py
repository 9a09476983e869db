"""Warns of releases of SQLite that can lose a committed transaction.

In ``journal_mode=WAL``, a checkpoint can take another connection's new records for old ones and leave them out of the
database, without an error. This needs two connections that write or checkpoint at the same instant. Source: "The
WAL-Reset Bug" in SQLite's documentation of WAL; mended in 3.51.3, 3.50.7 and 3.44.6.
"""

from __future__ import annotations

import logging
import sqlite3
from typing import Final

log = logging.getLogger(__name__)

_MENDED: Final = ((3, 44, 6), (3, 50, 7), (3, 51, 3))
_told: Final[set[str]] = set()


def loses_commits(version: tuple[int, int, int]) -> bool:
    """Return whether this release has the defect."""
    return version < _MENDED[-1] and not any(version[:2] == mended[:2] and version >= mended for mended in _MENDED)


def warn_of_wal(
    connection: sqlite3.Connection, version: tuple[int, int, int] = sqlite3.sqlite_version_info[:3]
) -> None:
    """Log a warning, once in a process, if the database of ``connection`` may lose what was committed."""
    if _told or not loses_commits(version):
        return
    if connection.execute("PRAGMA journal_mode").fetchone() == ("wal",):
        _told.add("wal")
        log.warning(
            "SQLite %s can lose committed transactions with journal_mode=WAL when several connections write "
            "(https://sqlite.org/wal.html#walresetbug): use 3.51.3 or later, or journal_mode=TRUNCATE",
            ".".join(map(str, version)),
        )
