"""Calls for a sink's ledger: numbered batches, each written in many transactions that one record decides.

Conventions as in :mod:`tidelog.proto.calls.api`. Kafka has no such calls. They go to the coordinator of the
transactional id :func:`tidelog.model.sinks.sink_key`. Errors: PRODUCER_FENCED, the job was superseded;
INVALID_TXN_STATE, a transaction is not in the required state, for example because it timed out;
CONCURRENT_TRANSACTIONS, an operation on the sink is in progress, retry; RECORD_LIST_TOO_LARGE, the decision does not
fit in one batch; POLICY_VIOLATION, beyond a bound of the coordinator; INVALID_REQUEST. A message says more.
"""

from __future__ import annotations

from tidelog.model.classes.frozen import dataclass
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId
from tidelog.model.sinks import NO_BATCH
from tidelog.proto.calls.request import Request, Response


@dataclass(frozen=True, slots=True)
class BeginSinkTransactionRequest(Request["BeginSinkTransactionResponse"]):
    """Requests a transaction for one attempt, whose name must be unique; a repetition returns the same one. A job that
    the ledger does not know takes over the sink."""

    sink: str
    batch: int
    job: str
    attempt: str


@dataclass(frozen=True, slots=True)
class BeginSinkTransactionResponse(Response):
    """``already_committed``: there is nothing to write, the batch is decided; ``last_batch`` is the last decided batch,
    and ``last_job`` its job."""

    error: ErrorCode
    transactional_id: str = ""
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    already_committed: bool = False
    last_batch: int = NO_BATCH
    last_job: str = ""
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class SinkWinner:
    """A prepared transaction to commit."""

    attempt: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch


@dataclass(frozen=True, slots=True)
class CommitBatchRequest(Request["CommitBatchResponse"]):
    """Commits these transactions of the job and aborts all others of the sink, by one record batch. Repeating it gets
    the same answer."""

    sink: str
    batch: int
    job: str
    winners: tuple[SinkWinner, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitBatchResponse(Response):
    """``already_committed``: the batch was decided before this request; ``last_batch`` and ``last_job`` as above."""

    error: ErrorCode
    already_committed: bool = False
    last_batch: int = NO_BATCH
    last_job: str = ""
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class AbortJobRequest(Request["AbortJobResponse"]):
    """Fences the job and aborts its transactions."""

    sink: str
    batch: int
    job: str


@dataclass(frozen=True, slots=True)
class AbortJobResponse(Response):
    """``already_committed``: nothing was done, because the batch is decided."""

    error: ErrorCode
    already_committed: bool = False
    last_batch: int = NO_BATCH
    last_job: str = ""
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class DescribeSinksRequest(Request["DescribeSinksResponse"]):
    sinks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SinkJob:
    batch: int
    job: str


@dataclass(frozen=True, slots=True)
class SinkTransaction:
    """``state`` as in DescribeTransactions; ``started_ms``: when it began, or was prepared, ms since the epoch."""

    transactional_id: str
    state: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    started_ms: int
    timeout_ms: int
    partition_count: int


@dataclass(frozen=True, slots=True)
class DescribedSink:
    """``batch`` and ``job``: what is being written, -1 and empty for none; ``fenced``: superseded jobs of undecided
    batches. ``decided_ms``: when the last batch was decided, ms since the epoch, -1 for never."""

    sink: str
    error: ErrorCode
    last_batch: int = NO_BATCH
    last_job: str = ""
    decided_ms: int = -1
    batch: int = NO_BATCH
    job: str = ""
    fenced: tuple[SinkJob, ...] = ()
    transactions: tuple[SinkTransaction, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class DescribeSinksResponse(Response):
    sinks: tuple[DescribedSink, ...]


@dataclass(frozen=True, slots=True)
class ListSinksRequest(Request["ListSinksResponse"]):
    """The sinks whose ledgers this broker keeps."""


@dataclass(frozen=True, slots=True)
class ListedSink:
    sink: str
    last_batch: int
    batch: int
    transaction_count: int


@dataclass(frozen=True, slots=True)
class ListSinksResponse(Response):
    error: ErrorCode
    sinks: tuple[ListedSink, ...] = ()
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class DeleteSinkRequest(Request["DeleteSinkResponse"]):
    """Deletes a ledger: its batches start again. Refused with INVALID_TXN_STATE while it has transactions."""

    sink: str


@dataclass(frozen=True, slots=True)
class DeleteSinkResponse(Response):
    error: ErrorCode
    error_message: str = ""
