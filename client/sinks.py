"""What the parts of a program that writes to a sink hand to each other: jobs, messages, outcomes.

All of them are plain values that can be pickled, or written as JSON, on their way between processes.
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
from tidelog.proto.sink_api import SinkWinner


class SinkJob(NamedTuple):
    """One run of one batch of a sink: what its tasks are given. ``batch`` counts from 0; whoever runs a batch again
    does so as another job."""

    sink: str
    batch: int
    job: str

    @classmethod
    def new(cls, sink: str, batch: int, rng: random.Random | None = None) -> SinkJob:
        """A job that nobody else is (``rng``: where its name comes from, for tests). Raises ``ValueError`` for what can
        be no sink or batch."""
        return cls(sink, batch, fresh_name(rng)).checked()

    def checked(self) -> SinkJob:
        """Itself. Raises ``ValueError``."""
        fault = sink_fault(self.sink) or job_fault(self.batch, self.job)
        if fault is not None:
            raise ValueError(fault)
        return self


@dataclass(frozen=True, slots=True)
class SinkMessage:
    """What a task tells its driver. ``attempt`` is None where it wrote nothing: because there was nothing to write,
    or (``already_committed``) because its batch is decided. ``rows``: how many records it wrote."""

    sink: str
    batch: int
    job: str
    attempt: str | None = None
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    rows: int = 0
    already_committed: bool = False

    def to_json(self) -> str:
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
        """The transaction that is to be committed, if there is one."""
        if self.attempt is None:
            return None
        return SinkWinner(self.attempt, ProducerId(self.producer_id), ProducerEpoch(self.producer_epoch))


@dataclass(frozen=True, slots=True)
class SinkOutcome:
    """``already_committed``: the batch was decided before, and nothing was done now. ``last_batch`` is the last that
    is decided, ``last_job`` the job that it was decided for (empty and -1: none is)."""

    already_committed: bool
    last_batch: int
    last_job: str


def fresh_name(rng: random.Random | None) -> str:
    """A name that nobody else has: from the system, which a process that was forked off asks anew."""
    return uuid.uuid4().hex if rng is None else f"{rng.getrandbits(128):032x}"


def job_of(messages: Iterable[SinkMessage]) -> SinkJob | None:
    """The one job that messages are of; None without any. Raises ``ValueError`` for those of several."""
    jobs = {message.of for message in messages}
    if len(jobs) > 1:
        named = ", ".join(f"batch {job.batch} of {job.sink!r} by {job.job}" for job in sorted(jobs)[:3])
        raise ValueError(f"expected messages of one job, found those of {len(jobs)}: {named}")
    return jobs.pop() if jobs else None


def sink_error(code: ErrorCode, message: str) -> TidelogError:
    """The exception for a ledger's refusal: ``abortable``, run the batch again as another job; ``fatal``, this job is
    over, and whether the batch is to be run again is another's business."""
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
