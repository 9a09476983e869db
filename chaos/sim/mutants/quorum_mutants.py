"""Mutants that the quorum scenario must catch."""

from __future__ import annotations

from tidelog.chaos.sim.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
