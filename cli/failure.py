"""How a command fails."""

from __future__ import annotations

from typing import Final

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


class CommandFailed(Exception):
    """The text is for the user: what was expected, what was found, what to do. Exit code 1."""
