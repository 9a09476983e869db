"""Requests of real clients, taken from the wire: one line each, the client's name and the frame in base64."""

from __future__ import annotations

import base64
from functools import cache
from pathlib import Path
from typing import Final

_FILE: Final = Path(__file__).resolve().parent / "captured_requests.txt"


@cache
def captured_requests() -> tuple[bytes, ...]:
    """Return the frames, header and body, without the length prefix."""
    lines = _FILE.read_text(encoding="ascii").splitlines()
    return tuple(base64.b64decode(line.split()[-1]) for line in lines if line and not line.startswith("#"))
