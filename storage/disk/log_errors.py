"""Operating errors of storage."""

from __future__ import annotations


class LogDirFailed(Exception):
    """A log directory is out of service after an I/O error; its logs take no more calls.

    ``directory`` is its path, ``cause`` what the system said.
    """

    def __init__(self, directory: str, cause: OSError) -> None:
        super().__init__(f"log directory {directory} is out of service: {cause}")
        self.directory = directory
        self.cause = cause


class DirectoryRefused(Exception):
    """A log directory that this node must not use; the text says what was expected, what was found, and what to do."""
