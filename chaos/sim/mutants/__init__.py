"""The proof that the simulation sees: patches that it must catch, each of one rule.

Imports nothing but the lists: a mutant is installed before the code it changes is imported.
"""

from __future__ import annotations

from tidelog.chaos.sim.mutants.compaction_mutants import MUTANTS as _COMPACTION
from tidelog.chaos.sim.mutants.group_mutants import MUTANTS as _GROUPS
from tidelog.chaos.sim.mutants.mutant import Edit, Mutant
from tidelog.chaos.sim.mutants.quorum_mutants import MUTANTS as _QUORUM
from tidelog.chaos.sim.mutants.reassignment_mutants import MUTANTS as _REASSIGNMENT
from tidelog.chaos.sim.mutants.replication_mutants import MUTANTS as _REPLICATION
from tidelog.chaos.sim.mutants.sink_mutants import MUTANTS as _SINKS
from tidelog.chaos.sim.mutants.spark_mutants import MUTANTS as _SPARK
from tidelog.chaos.sim.mutants.transaction_mutants import MUTANTS as _TRANSACTIONS

ALL: tuple[Mutant, ...] = (
    *_QUORUM,
    *_REPLICATION,
    *_REASSIGNMENT,
    *_GROUPS,
    *_COMPACTION,
    *_TRANSACTIONS,
    *_SINKS,
    *_SPARK,
)

__all__ = ["ALL", "Edit", "Mutant"]
