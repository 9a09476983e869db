"""Fields that a page does not show: by path, in what JSON has. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

HIDDEN: Final = "hidden"
_STEP: Final = re.compile(r"(\.\.?)([^.\[\]$]+)|\[\*\]")


class PathWrong(ValueError):
    """A path that is none."""


@dataclass(frozen=True, slots=True)
class Path:
    """``$`` is all of it, ``.name`` a field, ``..name`` that field at any depth. Lists are gone through; ``[*]`` may
    say so."""

    steps: tuple[tuple[bool, str], ...]

    @classmethod
    def of(cls, text: str) -> Path:
        """Raises :class:`PathWrong`."""
        if not text.startswith("$"):
            raise PathWrong(f"expected a path such as $.card.number, found {text[:80]!r}")
        steps = []
        at = 1
        while at < len(text):
            step = _STEP.match(text, at)
            if step is None:
                raise PathWrong(f"expected .name, ..name or [*] at character {at + 1} of {text[:80]!r}")
            if step[2]:
                steps.append((step[1] == "..", step[2]))
            at = step.end()
        return cls(tuple(steps))


def hide(value: object, paths: Sequence[Path]) -> Any:
    """``value`` with what the paths lead to replaced by :data:`HIDDEN`."""
    for path in paths:
        value = _hide(value, path.steps)
    return value


def _hide(value: object, steps: tuple[tuple[bool, str], ...]) -> Any:
    if not steps:
        return HIDDEN
    if isinstance(value, list):
        return [_hide(one, steps) for one in value]
    if not isinstance(value, dict):
        return value
    anywhere, name = steps[0]
    found = {}
    for key, one in value.items():
        if key == name:
            one = _hide(one, steps[1:])
        if anywhere and one != HIDDEN:
            one = _hide(one, steps)
        found[key] = one
    return found
