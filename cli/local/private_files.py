"""Files that only their owner may read: what a cluster on this machine keeps beside its data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600


def private(path: str, flags: int) -> int:
    """An ``opener`` for :func:`open`: a file that is made is its owner's alone, whatever the umask."""
    return os.open(path, flags, _FILE_MODE)


def write_private(path: Path, text: str) -> None:
    """Write a new private file, or replace the content of one that is there."""
    with open(path, "w", encoding="utf-8", opener=private) as file:
        file.write(text)


def replace_private(path: Path, text: str) -> None:
    """Put a new private file in the place of one that may be there: whoever reads sees all of one or of the other."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    write_private(fresh, text)
    os.replace(fresh, path)
