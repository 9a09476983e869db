"""The proof that the simulation sees: patches that it must catch, each of one rule.

Imports nothing but the lists: a mutant is installed before the code it changes is imported.
"""

from __future__ import annotations

from tidelog.chaos.simulated.mutants.access_mutants import MUTANTS as _ACCESS
from tidelog.chaos.simulated.mutants.answer_mutants import MUTANTS as _ANSWERS
from tidelog.chaos.simulated.mutants.compaction_mutants import MUTANTS as _COMPACTION
from tidelog.chaos.simulated.mutants.consumer_group_mutants import MUTANTS as _CONSUMER_GROUPS
from tidelog.chaos.simulated.mutants.credential_mutants import MUTANTS as _CREDENTIALS
from tidelog.chaos.simulated.mutants.damage_mutants import MUTANTS as _DAMAGE
from tidelog.chaos.simulated.mutants.delay_mutants import MUTANTS as _DELAYS
from tidelog.chaos.simulated.mutants.group_mutants import MUTANTS as _GROUPS
from tidelog.chaos.simulated.mutants.link_mutants import MUTANTS as _LINKS
from tidelog.chaos.simulated.mutants.log_mutants import MUTANTS as _LOG
from tidelog.chaos.simulated.mutants.metadata.leadership_mutants import MUTANTS as _LEADERSHIP
from tidelog.chaos.simulated.mutants.metadata.move_mutants import MUTANTS as _MOVES
from tidelog.chaos.simulated.mutants.metadata.quorum_membership_mutants import MUTANTS as _MEMBERSHIP
from tidelog.chaos.simulated.mutants.metadata.quorum_mutants import MUTANTS as _QUORUM
from tidelog.chaos.simulated.mutants.metadata.reassignment_mutants import MUTANTS as _REASSIGNMENT
from tidelog.chaos.simulated.mutants.metadata.version_mutants import MUTANTS as _VERSIONS
from tidelog.chaos.simulated.mutants.mutant import Edit, Mutant
from tidelog.chaos.simulated.mutants.outbox_mutants import MUTANTS as _OUTBOX
from tidelog.chaos.simulated.mutants.reading_mutants import MUTANTS as _READING
from tidelog.chaos.simulated.mutants.replication_mutants import MUTANTS as _REPLICATION
from tidelog.chaos.simulated.mutants.retry_mutants import MUTANTS as _RETRIES
from tidelog.chaos.simulated.mutants.sink_mutants import MUTANTS as _SINKS
from tidelog.chaos.simulated.mutants.spark_mutants import MUTANTS as _SPARK
from tidelog.chaos.simulated.mutants.transaction_mutants import MUTANTS as _TRANSACTIONS

ALL: tuple[Mutant, ...] = (
    *_QUORUM,
    *_MEMBERSHIP,
    *_REPLICATION,
    *_LEADERSHIP,
    *_LOG,
    *_REASSIGNMENT,
    *_MOVES,
    *_GROUPS,
    *_CONSUMER_GROUPS,
    *_COMPACTION,
    *_TRANSACTIONS,
    *_SINKS,
    *_DELAYS,
    *_RETRIES,
    *_OUTBOX,
    *_READING,
    *_SPARK,
    *_DAMAGE,
    *_ANSWERS,
    *_ACCESS,
    *_CREDENTIALS,
    *_VERSIONS,
    *_LINKS,
)

__all__ = ["ALL", "Edit", "Mutant"]
