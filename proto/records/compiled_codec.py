"""Finds compiled modules, above all the record codec, if they were built (``setup.py``); else plain Python does the
work.

``TIDELOG_PURE_CODEC=1`` in the environment disables them, for comparison or debugging.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

VERSION = 5
"""The version that the Python code here expects; a stale module of another version is not used."""


def find_compiled(name: str, version: int) -> ModuleType | None:
    """Return the compiled module of that name, unless it is missing, of another version, or disabled."""
    if os.environ.get("TIDELOG_PURE_CODEC"):
        return None
    try:
        found = importlib.import_module(name)
    except ImportError:
        return None
    return found if version == found.VERSION else None


COMPILED = find_compiled("tidelog.proto.records._codec", VERSION)
