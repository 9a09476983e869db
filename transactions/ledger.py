"""A sink's ledger: which of its numbered batches is decided, and which job may write the next one.

A *job* is one run of one batch, under a unique name. Each sink has at most one *current* job, that of the undecided
batch. A job unknown to the ledger becomes the current one (it *takes over*) with its first transaction; the previous
job is then *fenced*, and stays so until its batch is decided. Undecided transactions of any other job count as aborted:
the coordinator aborts them when it finds them (presumed abort). So a batch is decided once, for one job, and all of
that job's winners are committed or none.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Final

from tidelog.model.classes.frozen import dataclass
from tidelog.model.sinks import NO_BATCH, SinkAttempt
from tidelog.proto.logs.sink_records import SinkLedgerValue
from tidelog.transactions.transaction import Entry

NO_JOB: Final = ""


class JobStanding(enum.Enum):
    """A ledger's view of a job and the batch that it names."""

    DECIDED = enum.auto()
    """The batch is decided, for this job or another."""
    CURRENT = enum.auto()
    FENCED = enum.auto()
    ANOTHER_BATCH = enum.auto()
    """The job is the current one, but for another batch."""
    UNKNOWN = enum.auto()


@dataclass(frozen=True, slots=True)
class Ledger:
    """A sink as one record stores it. ``fenced``: jobs with the batch that each wrote, oldest first."""

    last_batch: int = NO_BATCH
    last_job: str = NO_JOB
    decided_ms: int = -1
    batch: int = NO_BATCH
    job: str = NO_JOB
    updated_ms: int = -1
    fenced: Mapping[str, int] = field(default_factory=dict)

    def standing(self, batch: int, job: str) -> JobStanding:
        """Return a job's standing. A decided batch takes precedence over everything else."""
        if batch <= self.last_batch:
            return JobStanding.DECIDED
        if job == self.job:
            return JobStanding.CURRENT if batch == self.batch else JobStanding.ANOTHER_BATCH
        return JobStanding.FENCED if job in self.fenced else JobStanding.UNKNOWN

    def keeps(self, attempt: SinkAttempt) -> bool:
        """Return whether this undecided transaction may still be committed."""
        return self.standing(attempt.batch, attempt.job) is JobStanding.CURRENT

    def taken_over(self, batch: int, job: str, fenced_max: int, wall_ms: int) -> Ledger:
        """Make ``job`` the current one. Beyond ``fenced_max`` the oldest fenced job is forgotten. If that came back, it
        would take over again; its earlier writes stay aborted."""
        fenced = self._fencing(((self.job, self.batch),), fenced_max)
        return replace(self, batch=batch, job=job, fenced=fenced, updated_ms=wall_ms)

    def aborted(self, batch: int, job: str, fenced_max: int, wall_ms: int) -> Ledger:
        """Fence ``job``."""
        after = replace(self, batch=NO_BATCH, job=NO_JOB) if job == self.job else self
        return replace(after, fenced=self._fencing(((job, batch),), fenced_max), updated_ms=wall_ms)

    def decided(self, batch: int, job: str, wall_ms: int) -> Ledger:
        """Decide ``batch`` for ``job``. Jobs of later batches, which a sink with two owners has, stay fenced."""
        others = self.fenced if self.job in (NO_JOB, job) else {**self.fenced, self.job: self.batch}
        fenced = {other: its for other, its in others.items() if its > batch}
        return Ledger(batch, job, wall_ms, NO_BATCH, NO_JOB, wall_ms, fenced)

    def stored(self) -> SinkLedgerValue:
        """Return the ledger as a record value."""
        return SinkLedgerValue(
            self.last_batch, self.last_job, self.decided_ms, self.batch, self.job, self.updated_ms,
            tuple(self.fenced.items()),
        )  # fmt: skip

    def _fencing(self, jobs: Iterable[tuple[str, int]], fenced_max: int) -> dict[str, int]:
        fenced = {**self.fenced, **{job: batch for job, batch in jobs if job != NO_JOB}}
        for oldest in list(fenced)[: max(len(fenced) - fenced_max, 0)]:
            del fenced[oldest]
        return fenced


NEW: Final = Ledger()
"""The ledger of an unknown sink."""


def loaded(value: SinkLedgerValue) -> Ledger:
    """Return the ledger in a record."""
    return Ledger(*value[:6], dict(value.fenced))


class Sink:
    """A sink and its transactions; ``ledger`` is the log's committed state, NEW before its first record."""

    __slots__ = ("busy", "key", "ledger", "name", "transactions")

    def __init__(self, name: str, key: bytes) -> None:
        self.name = name
        self.key = key
        self.ledger = NEW
        self.busy = False
        """Whether a record of the ledger is being replicated."""
        self.transactions: dict[str, Entry] = {}
        """Its remembered transactions, by their ids."""

    @property
    def is_unused(self) -> bool:
        """Whether it has neither a ledger nor transactions."""
        return self.ledger is NEW and not self.busy and not self.transactions

    def abandons(self, entry: Entry) -> bool:
        """Return whether this transaction is undecided, and can no longer be committed."""
        return (
            entry.value is not None
            and not entry.value.state.is_decided
            and entry.attempt is not None
            and not self.ledger.keeps(entry.attempt)
        )
