"""The states of a transactional id and all their transitions, which the code checks and the docs draw.

Source: ``TransactionState`` and ``TransactionCoordinator``; *Prepared* is this project's (row T5, after KIP-939).
Kafka's PrepareEpochFence is not a state here: it represents the wait for the PrepareAbort record, which sets the
fencing epoch.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple


class TransactionState(enum.Enum):
    """A state; its value is the name that ``describe`` and ``list`` show, as in Kafka."""

    EMPTY = "Empty"
    """An identity was assigned; nothing is open."""
    ONGOING = "Ongoing"
    """Partitions take part."""
    PREPARED = "Prepared"
    """Frozen for an external decision: it accepts nothing and never times out."""
    PREPARE_COMMIT = "PrepareCommit"
    """Commit decided: the markers are being sent."""
    PREPARE_ABORT = "PrepareAbort"
    """Abort decided: the markers are being sent."""
    COMPLETE_COMMIT = "CompleteCommit"
    """All commit markers are written."""
    COMPLETE_ABORT = "CompleteAbort"
    """All abort markers are written."""
    DEAD = "Dead"
    """Expired and forgotten."""

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open or ending."""
        return self in _IDLE

    @property
    def is_decided(self) -> bool:
        """Whether its markers are being sent."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


class Cause(enum.Enum):
    """The cause of a transition."""

    INITIALISED = "InitProducerId gives out the next epoch"
    ADDED = "partitions or a group's offsets are added"
    PREPARED = "Prepare"
    KEPT = "InitProducerId keeps it, and gives out an identity for what comes after"
    COMMITTED = "EndTxn: commit"
    ABORTED = "EndTxn: abort"
    FENCED = "InitProducerId fences the producer"
    TIMED_OUT = "open for longer than its timeout"
    MARKED = "all markers are written"
    EXPIRED = "idle for transactional.id.expiration.ms"
    BATCH_COMMITTED = "a sink's: CommitBatch names it"
    ABANDONED = "a sink's: CommitBatch does not name it, another job took over, AbortJob"
    SINK_TIMED_OUT = "a sink's: empty or prepared for longer than its timeout"
    SINK_MARKED = "a sink's: all markers are written"


class Transition(NamedTuple):
    before: TransactionState
    after: TransactionState
    cause: Cause


_EMPTY = TransactionState.EMPTY
_ONGOING = TransactionState.ONGOING
_PREPARED = TransactionState.PREPARED
_TO_COMMIT = TransactionState.PREPARE_COMMIT
_TO_ABORT = TransactionState.PREPARE_ABORT
_COMMITTED = TransactionState.COMPLETE_COMMIT
_ABORTED = TransactionState.COMPLETE_ABORT
_DEAD = TransactionState.DEAD

_IDLE: Final = (_EMPTY, _COMMITTED, _ABORTED)

TRANSITIONS: Final = (
    *(Transition(idle, _EMPTY, Cause.INITIALISED) for idle in _IDLE),
    *(Transition(idle, _ONGOING, Cause.ADDED) for idle in _IDLE),
    Transition(_ONGOING, _ONGOING, Cause.ADDED),
    *(Transition(idle, _PREPARED, Cause.PREPARED) for idle in _IDLE),
    Transition(_ONGOING, _PREPARED, Cause.PREPARED),
    Transition(_PREPARED, _PREPARED, Cause.KEPT),
    Transition(_ONGOING, _TO_COMMIT, Cause.COMMITTED),
    Transition(_PREPARED, _TO_COMMIT, Cause.COMMITTED),
    Transition(_ONGOING, _TO_ABORT, Cause.ABORTED),
    Transition(_ONGOING, _TO_ABORT, Cause.FENCED),
    Transition(_ONGOING, _TO_ABORT, Cause.TIMED_OUT),
    Transition(_PREPARED, _TO_ABORT, Cause.ABORTED),
    Transition(_PREPARED, _TO_ABORT, Cause.FENCED),
    *(Transition(idle, _TO_ABORT, Cause.ABORTED) for idle in _IDLE),
    Transition(_TO_COMMIT, _COMMITTED, Cause.MARKED),
    Transition(_TO_ABORT, _ABORTED, Cause.MARKED),
    *(Transition(idle, _DEAD, Cause.EXPIRED) for idle in _IDLE),
    Transition(_PREPARED, _TO_COMMIT, Cause.BATCH_COMMITTED),
    *(Transition(undecided, _TO_ABORT, Cause.ABANDONED) for undecided in (_ONGOING, _PREPARED)),
    Transition(_EMPTY, _DEAD, Cause.ABANDONED),
    Transition(_PREPARED, _TO_ABORT, Cause.SINK_TIMED_OUT),
    Transition(_EMPTY, _DEAD, Cause.SINK_TIMED_OUT),
    *(Transition(decided, _DEAD, Cause.SINK_MARKED) for decided in (_TO_COMMIT, _TO_ABORT)),
)
"""All transitions. A new id begins Empty, by its first InitProducerId, or BeginSinkTransaction."""

ALLOWED: Final = frozenset(TRANSITIONS)
