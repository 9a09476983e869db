"""Files that only their owner may read, kept beside a local cluster's data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600


def private(path: str, flags: int) -> int:
    """Open a file for its owner alone, whatever the umask. An ``opener`` for :func:`open`."""
    return os.open(path, flags, _FILE_MODE)


def write_private(path: Path, text: str) -> None:
    """Write a new private file, or replace the content of an existing one."""
    with open(path, "w", encoding="utf-8", opener=private) as file:
        file.write(text)


def replace_private(path: Path, text: str) -> None:
    """Atomically create or replace a private file: a reader sees either the old or the new content."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    write_private(fresh, text)
    os.replace(fresh, path)
