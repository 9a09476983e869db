"""Scenarios of the simulation: a schedule made from a seed, and a run that judges itself.

A scenario makes its whole schedule of faults before it runs, from the seed alone. This is what makes a failing run
repeatable from one line, and shrinkable: a subset of the schedule is a smaller run of the same seed. Faults name their
targets by role if the role is what matters ("the leader of partition 0"); the target is determined when the fault
happens.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

_EMPTY = "-"

Trace = Callable[[str], None]
"""Called with one line for each thing that happens in a run, in order."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of a schedule."""

    at_s: float
    """When it happens: virtual seconds since the start of the run."""
    kind: str
    arguments: tuple[str | int | float | bool, ...] = ()

    def __str__(self) -> str:
        return " ".join([f"{self.at_s:.3f}", self.kind, *(str(each) or _EMPTY for each in self.arguments)])

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Parse the output of ``str``. Raises ``ValueError``."""
        at_s, kind, *arguments = text.split()
        return cls(float(at_s), kind, tuple(map(_argument, arguments)))


def _argument(text: str) -> str | int | float | bool:
    if text == _EMPTY:
        return ""
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclass(slots=True)
class Outcome:
    """The outcome of a run. It held if ``violations`` is empty."""

    scenario: str
    seed: int
    violations: list[str] = field(default_factory=list)
    """Violations, one or a few lines each, the earliest first."""
    faults: Counter[str] = field(default_factory=Counter)
    """Kind of fault → how many took effect (a kill of a node that was down did not)."""
    events: Counter[str] = field(default_factory=Counter)
    """Events of the system: ``election``, ``truncation``, ``isr-shrink`` …"""
    operations: int = 0
    """Proposals or client operations that were attempted."""
    virtual_s: float = 0.0
    digest: str = ""
    """Hash of the trace; equal for two runs of one seed and schedule."""
    raised: str | None = None
    """Class of the first exception that the scenario raised, which is one of the violations."""

    @property
    def held(self) -> bool:
        return not self.violations


def where(trouble: BaseException) -> str:
    """Describe an exception on one line: what was called, and the last two places that it went through."""
    frames = list(traceback.extract_tb(trouble.__traceback__))
    if len(frames) > 1:
        frames = [frames[1], *frames[2:][-2:]]
    places = " > ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)
    return f"{type(trouble).__name__}: {trouble} (at {places})"


class Scenario(Protocol):
    """A kind of run. Stateless: everything about a run follows from its seed and schedule."""

    @property
    def name(self) -> str: ...

    @property
    def faults_expected(self) -> frozenset[str]:
        """Kinds of fault that a whole campaign must have shown at least once."""

    @property
    def events_expected(self) -> frozenset[str]:
        """Events that a whole campaign must have shown at least once."""

    def schedule(self, seed: int) -> tuple[Fault, ...]:
        """Make the schedule of a seed."""

    def run(self, seed: int, schedule: Sequence[Fault] | None = None, *, trace: Trace | None = None) -> Outcome:
        """Run a seed with its own schedule or the given one. Raises only on a bug of the simulator."""
