"""The measured figures and their bounds: ``targets.toml``."""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

TARGETS: Final = Path(__file__).resolve().parent / "targets.toml"


class TargetsWrong(ValueError):
    """``targets.toml`` is invalid; the text names the figure."""


@dataclass(frozen=True, slots=True)
class Figure:
    """``at_least`` is the required bound: a minimum if more is better, a maximum if less is."""

    name: str
    benchmark: str
    unit: str
    more_is_better: bool
    at_least: float | None
    aim: float | None
    repeats: int
    workload: str

    def holds(self, value: float) -> bool:
        """Return whether ``value`` keeps the bound. True for a figure without one."""
        if self.at_least is None:
            return True
        return value >= self.at_least if self.more_is_better else value <= self.at_least

    def reaches_aim(self, value: float) -> bool:
        if self.aim is None:
            return False
        return value >= self.aim if self.more_is_better else value <= self.aim


def load_figures(path: Path = TARGETS) -> dict[str, Figure]:
    """Read the figures. Raises :class:`TargetsWrong`."""
    known = {"benchmark", "unit", "better", "at_least", "aim", "repeats", "workload"}
    found: dict[str, Figure] = {}
    tables: dict[str, dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))["figure"]
    for name, table in tables.items():
        if unknown := table.keys() - known:
            raise TargetsWrong(f"{name}: expected {', '.join(sorted(known))}, found {', '.join(sorted(unknown))}")
        if missing := known - {"at_least", "aim"} - table.keys():
            raise TargetsWrong(f"{name}: expected {', '.join(sorted(missing))}, found nothing")
        if table["better"] not in ("more", "less"):
            raise TargetsWrong(f"{name}: better: expected more or less, found {table['better']!r}")
        found[name] = Figure(
            name=name,
            benchmark=table["benchmark"],
            unit=table["unit"],
            more_is_better=table["better"] == "more",
            at_least=table.get("at_least"),
            aim=table.get("aim"),
            repeats=int(table["repeats"]),
            workload=table["workload"],
        )
    return found


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
