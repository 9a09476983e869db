"""Finds the compiled record codec, if it was built (``setup.py``); else all goes on in plain Python.

``TIDELOG_PURE_CODEC=1`` in the environment passes it over, to compare or to look for a fault.
"""

from __future__ import annotations

import os
from types import ModuleType

VERSION = 4
"""What the Python code here expects; a module left over from another version is not used."""


def _find() -> ModuleType | None:
    if os.environ.get("TIDELOG_PURE_CODEC"):
        return None
    try:
        from tidelog.proto import _codec
    except ImportError:
        return None
    return _codec if _codec.VERSION == VERSION else None


COMPILED = _find()
