"""Finds the client settings of a secured local cluster; :mod:`tidelog.cli.work.local_security` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

DIRECTORY: Final = "security"
CLIENT_FILE: Final = "client.properties"


def client_file(cluster: Path) -> Path | None:
    """Return the client settings file of the cluster in a directory; ``None`` if it is not secured."""
    path = cluster / DIRECTORY / CLIENT_FILE
    return path if path.exists() else None
