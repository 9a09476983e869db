"""Finds what is compiled, above all the record codec, if it was built (``setup.py``); else all goes on in plain Python.

``TIDELOG_PURE_CODEC=1`` in the environment passes it over, to compare or to look for a fault.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

VERSION = 5
"""The version that the Python code here expects; a module left over from another version is not used."""


def find_compiled(name: str, version: int) -> ModuleType | None:
    """The compiled module of that name, unless it is missing, of another version, or passed over."""
    if os.environ.get("TIDELOG_PURE_CODEC"):
        return None
    try:
        found = importlib.import_module(name)
    except ImportError:
        return None
    return found if version == found.VERSION else None


COMPILED = find_compiled("tidelog.proto.records._codec", VERSION)
