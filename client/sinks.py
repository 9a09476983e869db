"""Values that the parts of a program pass to each other when they write to a sink: jobs, messages, outcomes.

All are plain values. You can pickle them, or convert them to JSON, to send them between processes.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import NamedTuple

from tidelog.client.errors import (
    SinkDecisionTooLargeError,
    SinkJobFencedError,
    SinkTransactionLostError,
    TidelogError,
    exception_for,
)
from tidelog.client.transaction_errors import FENCED
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId
from tidelog.model.sinks import job_fault, part_fault, sink_fault
from tidelog.proto.calls.sink_api import SinkWinner


class SinkJob(NamedTuple):
    """One run of a sink's batch; the driver gives it to its tasks. ``batch`` counts from 0. To run a batch again, make
    another job."""

    sink: str
    batch: int
    job: str

    @classmethod
    def new(cls, sink: str, batch: int, rng: random.Random | None = None) -> SinkJob:
        """A new, unique job (``rng`` is the source of its name, for tests). Raises ``ValueError`` for an invalid sink
        or batch."""
        return cls(sink, batch, fresh_name(rng)).checked()

    def checked(self) -> SinkJob:
        """Return the job itself, after validation. Raises ``ValueError``."""
        fault = sink_fault(self.sink) or job_fault(self.batch, self.job)
        if fault is not None:
            raise ValueError(fault)
        return self


@dataclass(frozen=True, slots=True)
class SinkMessage:
    """A task's report to its driver. ``attempt`` is None if the task wrote nothing: because there was nothing to write,
    or (``already_committed``) because its batch is decided. ``rows`` is the number of records that it wrote."""

    sink: str
    batch: int
    job: str
    attempt: str | None = None
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    rows: int = 0
    already_committed: bool = False

    def to_json(self) -> str:
        """Return the message as text, for a driver that passes it on."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> SinkMessage:
        """Read what :meth:`to_json` wrote. Raises ``ValueError``."""
        try:
            found = cls(**json.loads(text))
            found.of.checked()
            if found.attempt is not None and (fault := part_fault("attempt", found.attempt)) is not None:
                raise ValueError(fault)
        except (TypeError, AttributeError, ValueError) as cause:
            raise ValueError(f"expected the JSON of a SinkMessage, found {text[:200]!r}: {cause}") from None
        return found

    @property
    def of(self) -> SinkJob:
        return SinkJob(self.sink, self.batch, self.job)

    @property
    def winner(self) -> SinkWinner | None:
        """The transaction to commit, if there is one."""
        if self.attempt is None:
            return None
        return SinkWinner(self.attempt, ProducerId(self.producer_id), ProducerEpoch(self.producer_epoch))


@dataclass(frozen=True, slots=True)
class SinkOutcome:
    """``already_committed``: the batch was decided before, and this call changed nothing. ``last_batch`` is the last
    decided batch, ``last_job`` its winning job (-1 and empty: none yet)."""

    already_committed: bool
    last_batch: int
    last_job: str


def fresh_name(rng: random.Random | None) -> str:
    """Return a unique name from the operating system's randomness, which differs in a forked process."""
    return uuid.uuid4().hex if rng is None else f"{rng.getrandbits(128):032x}"


def job_of(messages: Iterable[SinkMessage]) -> SinkJob | None:
    """Return the job that all messages belong to; None without messages. Raises ``ValueError`` if they belong to
    several."""
    jobs = {message.of for message in messages}
    if len(jobs) > 1:
        named = ", ".join(f"batch {job.batch} of {job.sink!r} by {job.job}" for job in sorted(jobs)[:3])
        raise ValueError(f"expected messages of one job, found those of {len(jobs)}: {named}")
    return jobs.pop() if jobs else None


def sink_error(code: ErrorCode, message: str) -> TidelogError:
    """Return the exception for a ledger's refusal. ``abortable``: run the batch again as another job. ``fatal``: this
    job is over, and another one decides whether to run the batch again."""
    if code in FENCED:
        found: TidelogError = SinkJobFencedError(message)
    elif code in (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        found = SinkTransactionLostError(message)
    elif code is ErrorCode.RECORD_LIST_TOO_LARGE:
        found = SinkDecisionTooLargeError(message)
    else:
        found = exception_for(code, message)
        found.fatal = not code.retriable
    return found
