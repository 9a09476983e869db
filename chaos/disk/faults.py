"""Faults of one process's disk and wall clock, controlled from outside while it runs.

A process that is started with :attr:`DiskFaults.environment` loads the shim (``shim.c``), which obeys a small control
file, mapped by both processes::

    faults = DiskFaults(node.data_dir, node.directory / "faults", fault_shim())
    node.environment = faults.environment
    node.spawn()
    faults.full(room=8192)   # ENOSPC beyond two blocks of 4 KiB
    faults.mend()

Faults add up until :meth:`DiskFaults.mend`; they outlast the process and affect its successor too.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

MAGIC: Final = 0x3153544C55414654
WORDS: Final = (
    "magic",
    "full",
    "room",
    "write_errno",
    "sync_errno",
    "read_errno",
    "write_ms",
    "sync_ms",
    "read_ms",
    "stalled",
    "clock_ns",
    "attached",
    "refused",
    "shortened",
    "failed",
    "delayed",
    "held",
)
"""In the order of ``struct words`` in ``shim.c``; 64 bits each."""
SIZE: Final = 4096
DELAY_MS_MAX: Final = 60_000
CLOCK_S_MAX: Final = 400 * 86_400
"""Maximum clock offset: further away, calendar handling is not ours to judge."""
_AT: Final = {name: number for number, name in enumerate(WORDS)}


class Hits(NamedTuple):
    """How many calls were hit: ENOSPC, short writes, other errors, delays, and waits for a stalled disk."""

    refused: int
    shortened: int
    failed: int
    delayed: int
    held: int

    @property
    def any(self) -> bool:
        return any(self)


class DiskFaults:
    """Controls the faults of a process. Its disk is the directory ``root``, with everything below; ``control`` is the
    control file, made here. Use from one thread at a time."""

    def __init__(self, root: Path, control: Path, shim: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self.control = control.absolute()
        self._shim = shim
        self.control.write_bytes(MAGIC.to_bytes(8, sys.byteorder).ljust(SIZE, b"\0"))
        with self.control.open("r+b") as file:
            # Word by word: the shim would obey a half-written one.
            self._words = memoryview(mmap.mmap(file.fileno(), SIZE)).cast("q")

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the additional environment variables for the process."""
        others = os.environ.get("LD_PRELOAD", "")
        return {
            "LD_PRELOAD": f"{self._shim}:{others}" if others else str(self._shim),
            "TIDELOG_FAULTS_ROOT": str(self.root),
            "TIDELOG_FAULTS_CONTROL": str(self.control),
        }

    @property
    def attached(self) -> int:
        """Return how many processes have loaded the shim so far; 0 if the faults have no effect."""
        return self._get("attached")

    @property
    def hits(self) -> Hits:
        """Return the hits since the control file was made."""
        return Hits(*(self._get(name) for name in Hits._fields))

    # --- The disk ----------------------------------------------------------------------------------------

    def full(self, room: int = 0) -> None:
        """Accept ``room`` more bytes on the disk, in whole blocks of 4 KiB, then answer ENOSPC; the write that reaches
        the end is short."""
        if room < 0:
            raise ValueError(f"expected room of 0 bytes or more, found {room}")
        self._set("room", room)
        self._set("full", 1)

    def slow(self, *, write_ms: int = 0, sync_ms: int = 0, read_ms: int = 0) -> None:
        """Delay each call of a kind by that many milliseconds."""
        for name, ms in (("write_ms", write_ms), ("sync_ms", sync_ms), ("read_ms", read_ms)):
            if not 0 <= ms <= DELAY_MS_MAX:
                raise ValueError(f"{name}: expected 0 to {DELAY_MS_MAX} milliseconds, found {ms}")
            self._set(name, ms)

    def fail(self, *, write: bool = False, sync: bool = False, read: bool = False, number: int = errno.EIO) -> None:
        """Let each call of a kind fail with an error."""
        for name, fails in (("write_errno", write), ("sync_errno", sync), ("read_errno", read)):
            self._set(name, number if fails else 0)

    def stall(self) -> None:
        """Let every call wait until :meth:`mend`; pending calls then continue, and succeed."""
        self._set("stalled", 1)

    def mend(self) -> None:
        """Restore the disk. The clock stays as it is."""
        for name in ("full", "write_errno", "sync_errno", "read_errno", "write_ms", "sync_ms", "read_ms", "stalled"):
            self._set(name, 0)

    # --- The clock ---------------------------------------------------------------------------------------

    @property
    def clock_s(self) -> float:
        """Return by how much the process's wall clock is ahead of the machine's."""
        return self._get("clock_ns") / 1e9

    def set_clock(self, ahead_s: float) -> None:
        """Set the process's wall clock ahead of the machine's by that many seconds, or behind it, in one jump."""
        if not -CLOCK_S_MAX <= ahead_s <= CLOCK_S_MAX:
            raise ValueError(f"expected at most {CLOCK_S_MAX} seconds either way, found {ahead_s:g}")
        self._set("clock_ns", round(ahead_s * 1e9))

    # --- The words ---------------------------------------------------------------------------------------

    def _get(self, name: str) -> int:
        return self._words[_AT[name]]

    def _set(self, name: str, value: int) -> None:
        self._words[_AT[name]] = value
