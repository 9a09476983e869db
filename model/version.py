"""The release, as programs report it to each other."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
