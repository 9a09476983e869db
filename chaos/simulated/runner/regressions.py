"""Seeds that once failed and were fixed, read from :file:`regressions.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tidelog.chaos.simulated.world.scenario import Fault

FILE = Path(__file__).with_name("regressions.toml")
_KEYS = {"scenario", "seed", "faults", "wrong", "fixed_in"}


@dataclass(frozen=True, slots=True)
class Regression:
    """One seed that must hold from now on."""

    scenario: str
    seed: int
    faults: tuple[Fault, ...] | None
    """The schedule that failed, which stays the same when scenarios change; ``None``: the seed's own."""
    wrong: str
    fixed_in: str

    def __str__(self) -> str:
        return f"{self.scenario}-{self.seed}" + ("" if self.faults is None else f"-{len(self.faults)}-faults")


def load(file: Path = FILE) -> tuple[Regression, ...]:
    """Read the file; raise ``ValueError`` for an entry with a missing or unknown field."""
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    if content.keys() - {"seed"}:
        raise ValueError(f"{file.name}: expected [[seed]] entries only, found {', '.join(sorted(content))}")
    found = []
    for number, entry in enumerate(content.get("seed", []), 1):
        if entry.keys() - _KEYS or _KEYS - {"faults"} - entry.keys():
            raise ValueError(
                f"{file.name}, entry {number}: expected {', '.join(sorted(_KEYS))} (faults may be left out), "
                f"found {', '.join(sorted(entry))}"
            )
        faults = entry.get("faults")
        found.append(
            Regression(
                entry["scenario"],
                entry["seed"],
                None if faults is None else tuple(map(Fault.parse, faults)),
                entry["wrong"],
                entry["fixed_in"],
            )
        )
    return tuple(found)
