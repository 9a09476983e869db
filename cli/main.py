"""Entry point of the command. Imports almost nothing, so that a server can cheaply re-execute itself."""

from __future__ import annotations

import gc
import io
import os
import sys
from typing import Final

from tidelog.cli.allocator import ALLOCATOR, tuned_environment
from tidelog.cli.failure import EXIT_INTERRUPTED

BULKY: Final = (["server"], ["backup"], ["restore"], ["links"])
GC_THRESHOLD: Final = 50_000
"""How many new objects set off the collector. With Python's 700, a fifth of a command's start goes into collections
that find nothing, because all objects that imports make stay."""


def main() -> None:
    """Run the command. A node, or a command that moves as much, first re-executes itself with a tuned allocator."""
    try:
        code = _run()
    except KeyboardInterrupt:  # while modules were still being imported
        code = EXIT_INTERRUPTED
    _flush_output()
    sys.exit(code)


def _run() -> int:
    _open_closed_streams()
    if sys.argv[1:2] in BULKY and not ALLOCATOR.keys() <= os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], tuned_environment(dict(os.environ)))
    gc.set_threshold(GC_THRESHOLD)
    from tidelog.cli.root import run

    return run(sys.argv[1:])


def _open_closed_streams() -> None:
    """Reopen standard streams that were closed (``<&-``, ``>&-``) on the null device, so that the next file or
    connection does not get their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            handle = os.open(os.devnull, os.O_WRONLY if number else os.O_RDONLY)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the terminal's encoding may not be UTF-8
            stream.reconfigure(errors="backslashreplace")


def _flush_output() -> None:
    """Flush the output, and drop it if that fails. A full disk must not change the exit code to Python's 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    main()
