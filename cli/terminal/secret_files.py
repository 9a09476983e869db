"""Warns about files with secrets that other users of the machine can read."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_SECRET: Final = re.compile(r"(password|secret|secret[._]key|keystore[._]key|jaas[._]config)$")


def names_secret(settings: Iterable[str]) -> bool:
    """Return whether one of these settings is itself a secret."""
    return any(_SECRET.search(name) for name in settings)


def warn_of_readable_secret(path: Path | str) -> None:
    """Warn if others can read a file with secrets. A file keeps its mode, because an operator chose it. Groups may
    read: that is how services get keys."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return  # refused elsewhere, with a reason
    if mode & stat.S_IROTH:
        logging.getLogger("tidelog").warning(
            "%s: expected mode 0600 or 0640, found %04o: other users of this machine can read the secrets in it; "
            "`chmod o= %s` prevents it", path, mode, path,
        )  # fmt: skip
