"""State machines' tables of transitions, as the pages about them print them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol


class Transition(Protocol):
    @property
    def before(self) -> Enum: ...
    @property
    def after(self) -> Enum: ...
    @property
    def cause(self) -> Enum: ...


def diagram(transitions: Sequence[Transition], first: Enum, last: Enum) -> str:
    """A Mermaid state diagram, one arrow for each pair of states."""
    causes: dict[tuple[Enum, Enum], list[str]] = {}
    for row in transitions:
        causes.setdefault((row.before, row.after), []).append(row.cause.value.replace(":", ""))
    arrows = [
        f"    {before.value} --> {after.value}: {'<br>'.join(texts)}" for (before, after), texts in causes.items()
    ]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {first.value}", *arrows, f"    {last.value} --> [*]"])


def table(transitions: Sequence[Transition]) -> str:
    """The same as a table in Markdown."""
    rows = [f"| {row.before.value} | {row.after.value} | {row.cause.value} |" for row in transitions]
    return "\n".join(["| from | to | when |", "|---|---|---|", *rows])
