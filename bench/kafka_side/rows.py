"""Ratios of two sides that did the same work in turns: their table, and their lines in the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Any, NamedTuple

from tidelog.bench import history


class Row(NamedTuple):
    """A ratio of two measurements, above 1 if Tidelog is better."""

    name: str
    ours: str
    theirs: str
    less_is_better: bool = False


def ratio(row: Row, rounds: Sequence[Mapping[str, float]]) -> float:
    """Return the median of the rounds' own ratios: anything that slowed a whole round slowed both."""
    found = [one[row.ours] / one[row.theirs] for one in rounds]
    return median(1 / each for each in found) if row.less_is_better else median(found)


def report(rows: Sequence[Row], rounds: Sequence[Mapping[str, float]]) -> list[str]:
    """Return a Markdown table: medians of both, and the ratio."""
    lines = ["| figure | Tidelog | other side | ratio |", "|---|---|---|---|"]
    for row in rows:
        ours, theirs = (median(one[name] for one in rounds) for name in (row.ours, row.theirs))
        lines.append(f"| {row.name} | {ours:,.6g} | {theirs:,.6g} | {ratio(row, rounds):.2f} |")
    return lines


def entries(
    figure: str, rows: Sequence[Row], rounds: Sequence[Mapping[str, float]], workload: str, command: str, now: datetime
) -> list[dict[str, Any]]:
    """Return lines for the history, one for each row."""
    return [
        {
            "time": now.isoformat(timespec="seconds"),
            "commit": history.commit(),
            "figure": f"{figure}: {row.name}",
            "median": round(ratio(row, rounds), 4),
            "unit": "ratio",
            "values": [[round(one[row.ours], 4), round(one[row.theirs], 4)] for one in rounds],
            "workload": workload,
            "command": command,
            "machine": history.machine(),
        }
        for row in rows
    ]
