"""Processes that end with the laboratory that started them, however it ends.

The kernel sends SIGKILL to a child when the *thread* that started it is gone (prctl(2), PR_SET_PDEATHSIG), which
reaches stopped processes too and outlasts ``exec``. So such processes must be started from a thread that lives as long
as they do: the laboratory uses only its main thread.

As a program: ``python -m tidelog.chaos.laboratory.processes.parent_death PID PROGRAM ARGUMENT…`` becomes PROGRAM, tied
to PID.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

from tidelog.cli.failure import CommandFailed

_PR_SET_PDEATHSIG: Final = 1


def check_platform() -> None:
    """Raise :class:`CommandFailed` if the platform cannot tie processes or show their connections."""
    if not sys.platform.startswith("linux"):
        raise CommandFailed(f"expected Linux, whose kernel ends processes with their parent, found {sys.platform}")


def tie_to(parent: int) -> None:
    """End this process with the thread of ``parent`` that started it; immediately if that is gone already."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    tie_to(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
