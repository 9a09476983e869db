"""The fault shim, compiled once by the machine's C compiler and kept in the user's cache directory (XDG).

The cached file is named by the source, the compiler's command and the machine, and checked by its SHA-256 each time: a
file that a full disk cut short is rebuilt, not loaded.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tidelog.cli.failure import CommandFailed

SOURCE: Final = Path(__file__).with_name("shim.c")
COMPILERS: Final = ("cc", "gcc", "clang")
"""Tried in this order, unless ``$CC`` names one."""
FLAGS: Final = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-U_FORTIFY_SOURCE")
LIBRARIES: Final = ("-ldl", "-pthread")
BUILD_TIMEOUT_S: Final = 120.0


class ShimMissing(CommandFailed):
    """There is no shim and none could be built; the text says why and what to do."""


def cache_directory() -> Path:
    """Return the directory for shims: in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "tidelog" / "faults"


def fault_shim(cache: Path | None = None) -> Path:
    """Return the shim's path; compile it if there is no intact one. Raises :class:`ShimMissing`."""
    if not sys.platform.startswith("linux") or sys.maxsize < 2**32:
        raise ShimMissing(
            f"faults of disks and clocks: expected a 64-bit Linux, found {platform.machine()} {sys.platform}"
        )
    directory = (cache or cache_directory()).absolute()
    if any(letter.isspace() or letter == ":" for letter in str(directory)):
        raise ShimMissing(
            f"{directory}: expected a path without blanks and colons, as LD_PRELOAD takes it; name another "
            "cache directory in XDG_CACHE_HOME"
        )
    compiler = _compiler()
    kept = hashlib.sha256(SOURCE.read_bytes())
    kept.update(repr((compiler, FLAGS, LIBRARIES, platform.machine(), platform.libc_ver())).encode())
    shim = directory / f"shim-{kept.hexdigest()[:16]}.so"
    checksum = shim.with_suffix(".sha256")
    if shim.exists() and checksum.exists() and checksum.read_text().strip() == _digest(shim):
        return shim
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix="build-") as room:
        built = Path(room) / "shim.so"
        _compile(compiler, built)
        # Two parallel builds leave one of two equal files.
        (Path(room) / "sum").write_text(_digest(built) + "\n")
        built.replace(shim)
        (Path(room) / "sum").replace(checksum)
    return shim


def _compiler() -> tuple[str, ...]:
    """Return the compiler's command, including the arguments in ``$CC``."""
    if named := shlex.split(os.environ.get("CC", "")):
        if shutil.which(named[0]) is None:
            raise ShimMissing(f"CC: expected a C compiler, found {named[0]!r}, which is no program here")
        return tuple(named)
    for name in COMPILERS:
        if shutil.which(name) is not None:
            return (name,)
    raise ShimMissing(
        f"faults of disks and clocks need a C compiler, found none of {', '.join(COMPILERS)}: install one (Debian, "
        "Ubuntu: apt-get install gcc libc6-dev), or name it in CC, or choose faults that need none"
    )


def _compile(compiler: tuple[str, ...], target: Path) -> None:
    command = [*compiler, *FLAGS, "-o", str(target), str(SOURCE), *LIBRARIES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ShimMissing(f"the fault shim could not be compiled: {error}") from None
    if done.returncode != 0 or not target.exists():
        said = [line.strip() for line in done.stderr.splitlines() if "error" in line] or [done.stderr.strip()]
        raise ShimMissing(
            f"the fault shim could not be compiled by {compiler[0]}: {said[0] or f'exit code {done.returncode}'}; "
            "expected a C compiler with libc's headers (Debian, Ubuntu: apt-get install gcc libc6-dev)"
        )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
