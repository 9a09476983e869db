"""Writes the user's profiles, which nobody else may read."""

from __future__ import annotations

from tidelog.cli.failure import CommandFailed
from tidelog.cli.local.private_files import DIRECTORY_MODE, replace_private
from tidelog.client.config.profiles import Profiles, format_profiles, location


def save(profiles: Profiles) -> None:
    """Replace the file. Raises :class:`CommandFailed`."""
    path = location()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        replace_private(path, format_profiles(profiles))
    except OSError as error:
        raise CommandFailed(f"{path}: cannot be written: {error.strerror or error}") from None
