"""Mutants: each takes one rule out of the code, to see that the simulation notices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in the source of one module."""

    module: str
    """Dotted name as it is imported, ``tidelog.replication.partition.follower``."""
    old: str
    """Text that occurs exactly once in the module's source, whole lines with their indentation at best."""
    new: str
    """The replacement; empty: the text is left out."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One patch that brings a classic bug back or takes one rule away.

    Where two rules cover each other, so that taking out either alone does no harm, ``more`` holds the
    other replacements: all are made at once, of the same module or of others.
    """

    id: str
    """Short and speaking, ``truncates-to-high-watermark``; unique among all mutants."""
    rule: str
    """The rule that it breaks, by its id in the project's pages or its source (``KIP-101``)."""
    what: str
    """One line: what the changed code does wrong."""
    module: str
    old: str
    new: str
    scenario: str
    """Name of the scenario that must catch it."""
    more: tuple[Edit, ...] = ()

    @property
    def edits(self) -> tuple[Edit, ...]:
        return (Edit(self.module, self.old, self.new), *self.more)
