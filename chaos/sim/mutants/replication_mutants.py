"""Mutants that the replication scenario must catch."""

from __future__ import annotations

from tidelog.chaos.sim.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
