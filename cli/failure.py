"""What a command raises when it cannot do what it was asked."""

from __future__ import annotations


class CommandFailed(Exception):
    """The text is for the user: what was expected, what was found, what to do. Exit code 1."""
