"""Where a local cluster is, and its client settings if it is secured; :mod:`tidelog.cli.work.local_security` writes
them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

DIRECTORY: Final = "security"
CLIENT_FILE: Final = "client.properties"


def default_directory() -> Path:
    """Return ``$TIDELOG_HOME``, or ``tidelog`` in the user's data directory (XDG)."""
    if home := os.environ.get("TIDELOG_HOME"):
        return Path(home).expanduser()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "tidelog"


def client_file(cluster: Path) -> Path | None:
    """Return the client settings file of the cluster in a directory; ``None`` if it is not secured."""
    path = cluster / DIRECTORY / CLIENT_FILE
    return path if path.exists() else None
