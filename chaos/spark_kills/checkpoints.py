"""Reads a query's checkpoint: the ends of its batches, and which of them are done."""

from __future__ import annotations

import json
from pathlib import Path

from tidelog.spark_connector.offsets import SourceOffset


def ends(checkpoint: Path) -> dict[int, dict[int, int]]:
    """Return for each planned batch the offset before which it ends, by partition of the one topic."""
    found = {}
    for path in (checkpoint / "offsets").iterdir():
        if path.name.isdigit():
            offset = SourceOffset.from_json(json.loads(path.read_text().splitlines()[-1]))
            found[int(path.name)] = {at.partition: end for at, end in offset.offsets.items()}
    return dict(sorted(found.items()))


def logged(checkpoint: Path) -> list[int]:
    """Return the batches that are in Spark's commit log."""
    return sorted(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
