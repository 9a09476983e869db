"""Checks of the machine and the checkout, before either is changed.

Each returns ``None`` or one line: what is wrong, and how to fix it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON_MIN = (3, 11)
DISK_FREE_MIN_BYTES = 2_000_000_000
"""Room for the environment with all development tools (1.2 GB) and the largest demo run (0.6 GB), with a margin."""


def python_version() -> str | None:
    if sys.version_info >= PYTHON_MIN:
        return None
    found = ".".join(map(str, sys.version_info[:3]))
    return f"Python: expected 3.11 or later, found {found}. Name another: TIDELOG_PYTHON=/path/to/python3 ./dev"


def venv_and_ensurepip() -> str | None:
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    return (
        f"Python at {sys.executable} comes without {' and '.join(missing)}. "
        f"Debian, Ubuntu: apt install {package}; or name another: TIDELOG_PYTHON=/path/to/python3 ./dev"
    )


def links_are_links(root: Path = ROOT) -> str | None:
    """Check ``src/tidelog``, which has one symbolic link per folder; git on some systems checks them out as text
    files."""
    package = root / "src" / "tidelog"
    broken = [
        path.name
        for path in sorted(package.iterdir())
        if not path.is_symlink() and path.is_file() and path.suffix == "" and path.name != "py.typed"
    ]
    broken += [path.name for path in sorted(package.iterdir()) if path.is_symlink() and not path.exists()]
    if not broken and any(path.is_symlink() for path in package.iterdir()):
        return None
    what = f"{', '.join(broken)} are no links" if broken else "there are no links"
    return (
        f"src/tidelog: expected symbolic links to the top-level folders, but {what}. "
        "Clone with git (not a zip) and: git config core.symlinks true && git checkout -- src/tidelog"
    )


def free_disk(root: Path = ROOT, bytes_min: int = DISK_FREE_MIN_BYTES) -> str | None:
    places = {str(root), tempfile.gettempdir()}
    for place in sorted(places):
        free = shutil.disk_usage(place).free
        if free < bytes_min:
            return (
                f"Disk: {free // 1_000_000} MB free at {place}, {bytes_min // 1_000_000} MB wanted. "
                "Free some, or clone to (and point TMPDIR at) a disk with room"
            )
    return None


def writable(root: Path = ROOT) -> str | None:
    for place in (root, Path(tempfile.gettempdir())):
        try:
            with tempfile.TemporaryFile(dir=place):
                pass
        except OSError as trouble:
            return f"Directory {place} cannot be written ({trouble.strerror}). Clone to (point TMPDIR at) one of yours"
    return None


def usable_path(root: Path = ROOT) -> str | None:
    if os.pathsep not in str(root):
        return None
    return f"Directory {root}: a virtual environment cannot live under a name with {os.pathsep!r}. Rename the directory"


CHECKS: tuple[Callable[[], str | None], ...] = (
    python_version,
    venv_and_ensurepip,
    links_are_links,
    usable_path,
    writable,
    free_disk,
)


def failures() -> list[str]:
    """Run every check; return the lines of those that failed."""
    return [line for check in CHECKS if (line := check()) is not None]
