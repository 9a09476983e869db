"""The driver's side of a sink: gives out jobs, decides batches."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final, TypeVar, Unpack

from tidelog.client.admin import AsyncAdmin
from tidelog.client.admin_config import AdminSettings
from tidelog.client.admin_sinks import SinkDescription
from tidelog.client.background import BackgroundLoop
from tidelog.client.blocking_admin import Admin
from tidelog.client.sinks import SinkJob, SinkMessage, SinkOutcome, job_of
from tidelog.model.clock import Clock
from tidelog.model.sinks import sink_fault
from tidelog.proto.network import Network
from tidelog.proto.sink_api import SinkWinner

L = TypeVar("L", bound="AsyncSinkLedger")
B = TypeVar("B", bound="SinkLedger")


class _Sink:
    """What the asyncio and the blocking form share."""

    def __init__(self, sink: str, rng: random.Random | None) -> None:
        fault = sink_fault(sink)
        if fault is not None:
            raise ValueError(fault)
        self.name: Final = sink
        self._rng = rng

    def new_job(self, batch: int) -> SinkJob:
        return SinkJob.new(self.name, batch, self._rng)

    def job_of(self, messages: Sequence[SinkMessage]) -> SinkJob | None:
        """Raises ``ValueError`` for messages of another sink, or of several jobs."""
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
    belong to one sequence of batches: a new sequence that begins at 0 again needs another name, or its first
    batches are taken for those that are committed already. ``settings``: those of an admin client.
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
        self._sink = _Sink(sink, _rng)
        self._admin = AsyncAdmin(bootstrap_servers, _network=_network, _clock=_clock, _rng=_rng, **settings)

    async def start(self) -> None:
        """Begin; returns at once, the connection is made in the background."""
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
        """One run of ``batch``, for its writers. The first of them that has a record takes the sink over: whatever
        another job has left undecided is aborted then, and that job is fenced."""
        return self._sink.new_job(batch)

    async def commit_batch(
        self, messages: Iterable[SinkMessage], *, batch: int | None = None, timeout: float | None = None
    ) -> SinkOutcome:
        """Decide a batch, given one message of each of its tasks: what these have prepared becomes visible, all of it
        and once; all else of the sink is aborted. A batch that is decided already stays as it is, and the outcome says
        so. ``batch`` is needed where there are no messages.

        Raises ``SinkJobFencedError``, ``SinkTransactionLostError``, ``SinkDecisionTooLargeError``: nothing is
        committed; ``RequestTimedOutError`` after ``timeout`` seconds (default ``default_api_timeout_ms``): unknown,
        call it again; ``ValueError`` for messages that do not belong together.
        """
        job, winners = self._sink.decision(tuple(messages), batch)
        return await self._admin.commit_sink_batch(job, winners, timeout=timeout)

    async def abort_job(self, messages: Iterable[SinkMessage], *, timeout: float | None = None) -> SinkOutcome | None:
        """Abort the job that these messages are of, and keep its tasks from writing more; nothing where its batch is
        decided, as the outcome says then. Without messages nothing is done (None): who takes over aborts."""
        job = self._sink.job_of(tuple(messages))
        return None if job is None else await self._admin.abort_sink_job(job, timeout=timeout)

    async def describe(self, *, timeout: float | None = None) -> SinkDescription:
        """What is decided and what is being written. Raises ``TransactionalIdNotFoundError`` before the first batch."""
        return (await self._admin.describe_sinks([self._sink.name], timeout=timeout))[self._sink.name]


class SinkLedger:
    """Decides the batches of one sink.

        with SinkLedger("localhost:9092", "orders to lake") as ledger:
            job = ledger.new_job(batch=7)
            ledger.commit_batch([task(job) for task in tasks])

    As :class:`AsyncSinkLedger`, whose methods say more. May be used by several threads at once.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        sink: str,
        *,
        _network: Network | None = None,
        _background: BackgroundLoop | None = None,
        _clock: Clock | None = None,
        _rng: random.Random | None = None,
        **settings: Unpack[AdminSettings],
    ) -> None:
        self._sink = _Sink(sink, _rng)
        self._admin = Admin(
            bootstrap_servers, _network=_network, _background=_background, _clock=_clock, _rng=_rng, **settings
        )

    def close(self) -> None:
        """Stop. May be called twice."""
        self._admin.close()

    def __enter__(self: B) -> B:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def new_job(self, batch: int) -> SinkJob:
        """One run of ``batch``, for its writers."""
        return self._sink.new_job(batch)

    def commit_batch(
        self, messages: Iterable[SinkMessage], *, batch: int | None = None, timeout: float | None = None
    ) -> SinkOutcome:
        """Decide a batch, given one message of each of its tasks."""
        job, winners = self._sink.decision(tuple(messages), batch)
        return self._admin.commit_sink_batch(job, winners, timeout=timeout)

    def abort_job(self, messages: Iterable[SinkMessage], *, timeout: float | None = None) -> SinkOutcome | None:
        """Abort the job that these messages are of; nothing without messages, or where its batch is decided."""
        job = self._sink.job_of(tuple(messages))
        return None if job is None else self._admin.abort_sink_job(job, timeout=timeout)

    def describe(self, *, timeout: float | None = None) -> SinkDescription:
        """What is decided and what is being written."""
        return self._admin.describe_sinks([self._sink.name], timeout=timeout)[self._sink.name]
