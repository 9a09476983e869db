"""Admin client calls for the ledgers of sinks. Calls about a sink go to its coordinator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tidelog.client.admin.base import AdminBase, found_or_raise
from tidelog.client.admin.coordinators import Asked, Deadline, Said, ask_coordinators
from tidelog.client.admin.group_types import CoordinatorNode
from tidelog.client.admin.transaction_types import TransactionState
from tidelog.client.errors import RequestTimedOutError, TidelogError
from tidelog.client.sinks import SinkJob, SinkOutcome, sink_error
from tidelog.model.ids import NodeId
from tidelog.model.sinks import sink_fault, sink_key
from tidelog.proto.calls.group_api import TRANSACTION_COORDINATOR
from tidelog.proto.calls.request import Request, Response
from tidelog.proto.calls.sink_api import (
    AbortJobRequest,
    AbortJobResponse,
    CommitBatchRequest,
    CommitBatchResponse,
    DeleteSinkRequest,
    DescribedSink,
    DescribeSinksRequest,
    ListSinksRequest,
    SinkWinner,
)

R = TypeVar("R", bound=Response)
V = TypeVar("V")
D = TypeVar("D", CommitBatchResponse, AbortJobResponse)


@dataclass(frozen=True, slots=True)
class SinkListing:
    """``last_batch``: the last decided batch; ``batch``: the one being written; None for none. ``transaction_count``:
    its transactions that have not ended."""

    sink: str
    last_batch: int | None
    batch: int | None
    transaction_count: int
    coordinator: NodeId


@dataclass(frozen=True, slots=True)
class SinkTransactionDescription:
    """An unfinished transaction of a sink; ``since_ms``: when it began, or was prepared, ms since 1970."""

    transactional_id: str
    state: TransactionState
    producer_id: int
    producer_epoch: int
    since_ms: int
    timeout_ms: int
    partition_count: int


@dataclass(frozen=True, slots=True)
class SinkDescription:
    """A ledger. ``last``: the last decided batch and its job, decided at ``decided_ms`` (ms since 1970); ``current``:
    the batch and job being written; ``fenced``: superseded jobs of undecided batches."""

    sink: str
    coordinator: CoordinatorNode
    last: SinkJob | None
    decided_ms: int | None
    current: SinkJob | None
    fenced: tuple[SinkJob, ...]
    transactions: tuple[SinkTransactionDescription, ...]


class SinkAdmin(AdminBase):
    """The calls of :class:`tidelog.client.admin.admin.AsyncAdmin` for sinks."""

    async def list_sinks(self, *, timeout: float | None = None) -> list[SinkListing]:
        """Return the sinks that have ledgers, by name."""
        found = {
            one.sink: SinkListing(one.sink, _batch(one.last_batch), _batch(one.batch), one.transaction_count, node)
            for node, answer in (await self._ask_every_broker(ListSinksRequest(), timeout)).items()
            for one in answer.sinks
        }
        return [found[sink] for sink in sorted(found)]

    async def describe_sinks(self, sinks: Iterable[str], *, timeout: float | None = None) -> dict[str, SinkDescription]:
        """Return ledgers and their transactions. Raises ``TransactionalIdNotFoundError`` for one without a ledger."""
        if isinstance(sinks, str):
            raise TypeError(f"expected a list of sinks, found the string {sinks!r}")
        keys = {sink_key(_checked(sink)): sink for sink in sinks}
        found = await self._of_keys(
            keys,
            lambda some: DescribeSinksRequest(tuple(keys[key] for key in some)),
            lambda answer, asked: {
                sink_key(one.sink): Said(one.error, one.error_message, _description(one, asked)) for one in answer.sinks
            },
            timeout,
            singly=False,
        )
        return {keys[key]: one for key, one in found_or_raise(found).items()}

    async def commit_sink_batch(
        self, job: SinkJob, winners: Sequence[SinkWinner], *, timeout: float | None = None
    ) -> SinkOutcome:
        """Decide a batch: commit these transactions of the job, abort all others of the sink. May be repeated; raises
        the errors of :meth:`tidelog.client.sink.ledger.AsyncSinkLedger.commit_batch`."""
        return await self._decide(job, CommitBatchRequest(*job.checked(), tuple(winners)), timeout)

    async def abort_sink_job(self, job: SinkJob, *, timeout: float | None = None) -> SinkOutcome:
        """Abort everything that a job has written, and keep it from writing more. Does nothing if its batch is
        decided."""
        return await self._decide(job, AbortJobRequest(*job.checked()), timeout)

    async def delete_sink(self, sink: str, *, timeout: float | None = None) -> None:
        """Delete a ledger for good. The next program with this name starts a new one, and would write its earlier
        batches again. Raises ``SinkTransactionLostError`` while the sink has transactions,
        ``TransactionalIdNotFoundError`` if it has no ledger."""
        key = sink_key(_checked(sink))
        outcomes = await self._of_keys(
            (key,),
            lambda _: DeleteSinkRequest(sink),
            lambda answer, _: {key: Said(answer.error, answer.error_message, None)},
            timeout,
            singly=True,
        )
        outcome = outcomes[key]
        if isinstance(outcome, TidelogError):
            raise outcome

    # --- inside ---------------------------------------------------------------------------------------

    async def _decide(self, job: SinkJob, request: Request[D], timeout: float | None) -> SinkOutcome:
        key = sink_key(job.sink)

        def read(answer: D, _: Asked) -> dict[str, Said[SinkOutcome]]:
            outcome = SinkOutcome(answer.already_committed, answer.last_batch, answer.last_job)
            return {key: Said(answer.error, answer.error_message, outcome)}

        found = (await self._of_keys((key,), lambda _: request, read, timeout, singly=True))[key]
        if not isinstance(found, TidelogError):
            return found
        what = f"batch {job.batch} of sink {job.sink!r}"
        if found.retriable:
            raise RequestTimedOutError(f"{what}: whether it is decided is unknown; ask again") from found
        raise sink_error(found.code, f"{what}: {found}")

    async def _of_keys(
        self,
        keys: Iterable[str],
        request: Callable[[tuple[str, ...]], Request[R]],
        read: Callable[[R, Asked], Mapping[str, Said[V]]],
        timeout: float | None,
        *,
        singly: bool,
    ) -> dict[str, V | TidelogError]:
        self._check()
        deadline = Deadline(self._deadline(timeout), self._config.request_timeout_ms)
        return await ask_coordinators(
            self._cluster, keys, request, read, deadline, key_type=TRANSACTION_COORDINATOR, singly=singly
        )


def _checked(sink: str) -> str:
    fault = sink_fault(sink)
    if fault is not None:
        raise ValueError(fault)
    return sink


def _batch(batch: int) -> int | None:
    return batch if batch >= 0 else None


def _job(sink: str, batch: int, job: str) -> SinkJob | None:
    return SinkJob(sink, batch, job) if batch >= 0 else None


def _description(one: DescribedSink, asked: Asked) -> SinkDescription:
    return SinkDescription(
        one.sink,
        asked.coordinator,
        _job(one.sink, one.last_batch, one.last_job),
        one.decided_ms if one.decided_ms >= 0 else None,
        _job(one.sink, one.batch, one.job),
        tuple(SinkJob(one.sink, each.batch, each.job) for each in one.fenced),
        tuple(
            SinkTransactionDescription(
                each.transactional_id,
                TransactionState.of(each.state),
                each.producer_id,
                each.producer_epoch,
                each.started_ms,
                each.timeout_ms,
                each.partition_count,
            )
            for each in one.transactions
        ),
    )
