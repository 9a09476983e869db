"""The driver's side of a sink: it hands out jobs and decides batches."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final, TypeVar, Unpack

from tidelog.client.admin.admin import AsyncAdmin
from tidelog.client.admin.sinks import SinkDescription
from tidelog.client.config.admin import AdminSettings
from tidelog.client.sinks import SinkJob, SinkMessage, SinkOutcome, job_of
from tidelog.model.clock import Clock
from tidelog.model.sinks import sink_fault
from tidelog.proto.calls.sink_api import SinkWinner
from tidelog.proto.transport.network import Network

L = TypeVar("L", bound="AsyncSinkLedger")


class Sink:
    """The common part of the asyncio and the blocking form."""

    def __init__(self, sink: str, rng: random.Random | None) -> None:
        fault = sink_fault(sink)
        if fault is not None:
            raise ValueError(fault)
        self.name: Final = sink
        self._rng = rng

    def new_job(self, batch: int) -> SinkJob:
        return SinkJob.new(self.name, batch, self._rng)

    def job_of(self, messages: Sequence[SinkMessage]) -> SinkJob | None:
        """Return the messages' job. Raises ``ValueError`` for messages of another sink, or of several jobs."""
        job = job_of(messages)
        if job is not None and job.sink != self.name:
            raise ValueError(f"expected messages of sink {self.name!r}, found those of {job.sink!r}")
        return job

    def decision(self, messages: Sequence[SinkMessage], batch: int | None) -> tuple[SinkJob, tuple[SinkWinner, ...]]:
        job = self.job_of(messages)
        if job is None and batch is None:
            raise ValueError("a batch without messages: expected its number as batch=, found none")
        if job is None or batch is not None:
            assert batch is not None
            if job is not None and job.batch != batch:
                raise ValueError(f"expected messages of batch {batch}, found those of batch {job.batch}")
            job = job or self.new_job(batch)
        return job, tuple(winner for message in messages if (winner := message.winner) is not None)


class AsyncSinkLedger:
    """Decides the batches of one sink; ``tidelog.aio.SinkLedger``.

    Use it on one event loop, as ``async with SinkLedger("localhost:9092", "orders to lake") as ledger:``. ``sink`` must
    belong to one sequence of batches. A new sequence that starts at 0 again needs another name; otherwise the ledger
    takes its first batches for committed ones. ``settings`` are an admin client's settings.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        sink: str,
        *,
        _network: Network | None = None,
        _clock: Clock | None = None,
        _rng: random.Random | None = None,
        **settings: Unpack[AdminSettings],
    ) -> None:
        self._sink = Sink(sink, _rng)
        self._admin = AsyncAdmin(bootstrap_servers, _network=_network, _clock=_clock, _rng=_rng, **settings)

    async def start(self) -> None:
        """Start. Returns immediately; the client connects in the background."""
        await self._admin.start()

    async def close(self) -> None:
        """Stop. May be called twice."""
        await self._admin.close()

    async def __aenter__(self: L) -> L:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def new_job(self, batch: int) -> SinkJob:
        """Start one run of ``batch``, for its writers. The first writer with a record takes over the sink, which aborts
        everything that another job left undecided, and fences that job."""
        return self._sink.new_job(batch)

    async def commit_batch(
        self, messages: Iterable[SinkMessage], *, batch: int | None = None, timeout: float | None = None
    ) -> SinkOutcome:
        """Decide a batch, given one message from each of its tasks. Everything that they prepared becomes visible,
        atomically and once; the sink's other transactions are aborted. A batch that is already decided is not changed,
        and the outcome says so. Without messages, name the ``batch``.

        Raises ``SinkJobFencedError``, ``SinkTransactionLostError``, ``SinkDecisionTooLargeError``: nothing is
        committed; ``RequestTimedOutError`` after ``timeout`` seconds (default ``default_api_timeout_ms``): the outcome
        is unknown, call again; ``ValueError`` for messages that do not belong together.
        """
        job, winners = self._sink.decision(tuple(messages), batch)
        return await self._admin.commit_sink_batch(job, winners, timeout=timeout)

    async def abort_job(self, messages: Iterable[SinkMessage], *, timeout: float | None = None) -> SinkOutcome | None:
        """Abort the messages' job, and keep its tasks from writing more. If its batch is decided, nothing changes, and
        the outcome says so. Without messages, nothing happens (None): the job that takes over aborts."""
        job = self._sink.job_of(tuple(messages))
        return None if job is None else await self._admin.abort_sink_job(job, timeout=timeout)

    async def describe(self, *, timeout: float | None = None) -> SinkDescription:
        """Return the decided batch and the writes in progress. Raises ``TransactionalIdNotFoundError`` before the first
        batch."""
        return (await self._admin.describe_sinks([self._sink.name], timeout=timeout))[self._sink.name]
