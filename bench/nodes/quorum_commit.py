"""Commit latency of the metadata quorum alone, as a figure of ``./dev bench``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidelog.bench.nodes import quorum_bench

COMMITS: Final = 2_000


def quorum_commit(root: Path) -> Mapping[str, float]:
    found = quorum_bench.measure(root, commits=COMMITS, failovers=0, idle_s=0.0)
    return {"quorum_commit_p50": found["one_at_a_time"]["p50_ms"]}
