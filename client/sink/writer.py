"""The task's side of a sink: it writes some of a batch's records and prepares them for the driver's decision.

Source of the protocol: presumed abort with one decision, :mod:`tidelog.transactions.ledger`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, NoReturn, TypeVar, Unpack

from tidelog.client.config.producer import ProducerConfig, ProducerSettings
from tidelog.client.errors import ConfigError, IllegalStateError, TidelogError
from tidelog.client.producer.batch import Headers
from tidelog.client.producer.core import ProducerCore
from tidelog.client.producer.producer import AsyncProducer
from tidelog.client.producer.transactions import Transactions
from tidelog.client.sinks import SinkJob, SinkMessage, fresh_name, sink_error
from tidelog.client.transaction_errors import OVER
from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode
from tidelog.model.sinks import SinkAttempt, part_fault
from tidelog.proto.records.sent_columns import RecordColumns
from tidelog.proto.transport.network import Network

W = TypeVar("W", bound="AsyncSinkWriter")

log = logging.getLogger(__name__)


class Work:
    """The common part of the asyncio and the blocking writer: identity, progress, and the message for the driver."""

    def __init__(
        self, job: SinkJob, attempt: str | None, rng: random.Random | None, settings: ProducerSettings
    ) -> None:
        self.job: Final = SinkJob(*job).checked()
        self.attempt: Final = SinkAttempt(*self.job, fresh_name(rng) if attempt is None else attempt)
        fault = part_fault("attempt", self.attempt.attempt)
        if fault is not None:
            raise ValueError(fault)
        for name in ("transactional_id", "transaction_two_phase_commit_enable"):
            if name in settings:
                raise ConfigError(f"{name}: a sink's writer sets this itself")
        self.settings: Final[dict[str, Any]] = {
            **settings,
            "transactional_id": self.attempt.transactional_id,
            "transaction_two_phase_commit_enable": True,
        }
        ProducerConfig.of(self.settings)
        self.begun = False
        self.already_committed = False
        self.rows = 0
        self.message: SinkMessage | None = None

    def check(self, call: str) -> None:
        """Raise ``IllegalStateError`` once it is prepared or aborted."""
        if self.message is not None:
            raise IllegalStateError(f"{call}: this writer has prepared its records already")

    async def begin(self, core: ProducerCore, timeout: float | None) -> bool:
        answer = await core.require_transactions().begin_sink(self.attempt, timeout)
        self.begun, self.already_committed = True, answer.already_committed
        return not self.already_committed

    def prepare_nothing(self) -> SinkMessage:
        """Return the message without a producer: nothing was begun."""
        self.message = SinkMessage(*self.job)
        return self.message

    async def prepare(self, core: ProducerCore, timeout: float | None) -> SinkMessage:
        if self.message is not None:
            return self.message
        if not self.begun or self.already_committed:
            self.message = SinkMessage(*self.job, already_committed=self.already_committed)
            return self.message
        transactions = core.require_transactions()
        try:
            await transactions.prepare(timeout)
        except TidelogError as error:
            await self.reraise(core, error)
        if not transactions.machine.started:
            return self.prepare_nothing()
        identity = transactions.machine.identity
        assert identity is not None
        self.message = SinkMessage(*self.job, self.attempt.attempt, *identity, self.rows)
        return self.message

    async def reraise(self, core: ProducerCore, error: TidelogError) -> NoReturn:
        """Raise what an error means for this attempt. Its transaction can be over for two reasons that partitions and
        transactions do not know: it took too long, or the job is not the current one. The ledger knows."""
        if error.code not in OVER:
            raise error
        sink = await core.require_transactions().sink(self.job.sink, core.config.request_timeout_ms / 1_000)
        what = f"attempt {self.attempt.attempt} of batch {self.job.batch} of sink {self.job.sink!r}"
        if sink is not None and (sink.batch, sink.job) != (self.job.batch, self.job.job):
            why = "its job was aborted, or another has taken over"
            raise sink_error(ErrorCode.PRODUCER_FENCED, f"{what}: {why}") from error
        raise sink_error(
            ErrorCode.INVALID_TXN_STATE, f"{what}: its transaction took too long, or was aborted"
        ) from error

    async def abort(self, core: ProducerCore, timeout: float | None) -> None:
        if not self.begun or self.already_committed:
            return
        transactions: Transactions = core.require_transactions()
        try:
            await transactions.abort(timeout)
        except TidelogError as error:
            if error.retriable:
                raise
            log.debug("%s: not aborted, it is over: %s", transactions.id, error)


class AsyncSinkWriter:
    """Writes one task's records of a sink's batch; ``tidelog.aio.SinkWriter``.

    Use it on one event loop, as ``async with SinkWriter("localhost:9092", job) as writer:``. ``job`` comes from the
    driver; ``attempt`` names this writer and must never be used twice (default: a fresh uuid). The records become
    visible when the driver commits the batch with the :class:`SinkMessage` from :meth:`prepare`. If the block ends
    without a prepare, the writer aborts. ``settings`` are a producer's settings.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        job: SinkJob,
        *,
        attempt: str | None = None,
        _network: Network | None = None,
        _clock: Clock | None = None,
        _rng: random.Random | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self._work = Work(job, attempt, _rng, settings)
        self._producer: AsyncProducer | None = None
        self._make: Callable[[], AsyncProducer] = lambda: AsyncProducer(
            bootstrap_servers, _network=_network, _clock=_clock, _rng=_rng, **self._work.settings
        )

    async def __aenter__(self: W) -> W:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, timeout: float | None = None) -> None:
        """Abort unprepared records, and stop. May be called twice."""
        if self._producer is not None:
            await self._producer.close(timeout)

    @property
    def already_committed(self) -> bool:
        """Whether the batch is decided: the writer then drops what you send."""
        return self._work.already_committed

    async def begin(self, *, timeout: float | None = None) -> bool:
        """Ask the sink's ledger for a transaction; the first record does so automatically. False: the batch is already
        decided, and the writer drops what you send. Raises ``SinkJobFencedError``. ``timeout`` as in the producer's
        ``init_transactions``: the request continues, and another call waits for it."""
        self._work.check("begin()")
        if self._work.begun:
            return not self._work.already_committed
        if self._producer is None:
            self._producer = self._make()
            await self._producer.start()
        return await self._work.begin(self._producer._core, timeout)

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Queue a record, as a producer does. :meth:`prepare` tells whether it was written."""
        self._work.check("send()")
        if await self.begin():
            assert self._producer is not None
            try:
                await self._producer.send(
                    topic, value, key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
                )
            except TidelogError as error:
                await self._work.reraise(self._producer._core, error)
            self._work.rows += 1

    async def send_many(
        self, topic: str, values: Sequence[Any], *, keys: Sequence[Any] | None = None, partition: int | None = None
    ) -> None:
        """Queue many records at once, the fastest way. Without records, no transaction begins."""
        self._work.check("send_many()")
        if len(values) and await self.begin():
            assert self._producer is not None
            try:
                await self._producer.send_many(topic, values, keys=keys, partition=partition)
            except TidelogError as error:
                await self._work.reraise(self._producer._core, error)
            self._work.rows += len(values)

    async def send_columns(self, topic: str, columns: RecordColumns, *, partition: int | None = None) -> None:
        """Queue the rows of a table's columns, as a producer does. Without rows, no transaction begins."""
        self._work.check("send_columns()")
        if columns.rows and await self.begin():
            assert self._producer is not None
            try:
                await self._producer.send_columns(topic, columns, partition=partition)
            except TidelogError as error:
                await self._work.reraise(self._producer._core, error)
            self._work.rows += columns.rows

    async def prepare(self, *, timeout: float | None = None) -> SinkMessage:
        """Wait until everything is written, and freeze it for the driver's decision. Another call returns the same
        message.

        Raises the error of any failed write, and ``SinkTransactionLostError`` or ``SinkJobFencedError`` if the
        transaction is over. Then the batch cannot be committed with this writer's part.
        """
        if self._producer is None:
            return self._work.prepare_nothing()
        return await self._work.prepare(self._producer._core, timeout)

    async def abort(self, *, timeout: float | None = None) -> None:
        """Discard all records, prepared or not. The driver can then no longer commit this part."""
        if self._producer is not None:
            await self._work.abort(self._producer._core, timeout)
