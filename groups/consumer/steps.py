"""Long work in portions, so that nobody waits for all of it. Pure.

A portion is measured by what it does, not by a clock: the same input takes the same portions, in the simulation too.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Generic, TypeAlias, TypeVar

R = TypeVar("R")

Work: TypeAlias = Generator[int, None, R]
"""Yields how much it has done since it last yielded, in units of about a microsecond; returns its result."""


class Steps(Generic[R]):
    """Work that can be interrupted wherever it yields. ``spent``: units so far."""

    __slots__ = ("_result", "_work", "is_done", "spent")

    def __init__(self, work: Work[R]) -> None:
        self._work = work
        self._result: list[R] = []
        self.is_done = False
        self.spent = 0

    def advance(self, units: int) -> bool:
        """Do about this much more. Returns whether all is done."""
        limit = self.spent + units
        while not self.is_done and self.spent < limit:
            try:
                self.spent += next(self._work)
            except StopIteration as end:
                self._result.append(end.value)
                self.is_done = True
        return self.is_done

    @property
    def result(self) -> R:
        """The result, once all is done."""
        return self._result[0]


def whole(work: Work[R]) -> R:
    """Do all of it now."""
    steps = Steps(work)
    while not steps.advance(1 << 30):
        pass
    return steps.result
