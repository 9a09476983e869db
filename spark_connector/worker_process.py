"""Spark's own Python processes, in which most of the connector runs: workers, and those that plan or commit."""

from __future__ import annotations

import gc
import sys
from typing import Final

_settled: Final[set[str]] = set()


def is_sparks() -> bool:
    """Return whether the process was started as a module of pyspark."""
    return str(getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", "")).startswith("pyspark.")


def settle(part: str) -> None:
    """Make the next tasks and calls of a process of Spark's cheaper, once for each ``part`` of the connector; to be
    called when its modules are imported.

    Spark collects garbage after each task and call, among all objects of pyspark, Arrow and this connector. That takes
    40 ms, and a small batch has six of them: more than anything else that is done for it. What is imported never
    becomes garbage, so collections need not look at it. Source: pyspark's ``daemon.py``.
    """
    if part not in _settled and is_sparks():
        _settled.add(part)
        gc.freeze()
