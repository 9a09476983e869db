"""A node's transaction coordinator: the shell for the partitions of ``__transaction_state`` that it leads.

:mod:`tidelog.replication.coordinators.coordinator_shell` has the parts that all coordinators share;
:mod:`tidelog.transactions.shard` has one partition's decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.hashes.java_hash import coordinator_partition
from tidelog.model.ids import LeaderEpoch, ProducerEpoch, ProducerId, TopicPartition
from tidelog.model.names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tidelog.model.regular_expressions import BadPattern, compiled
from tidelog.model.sinks import coordinator_key, job_fault, part_fault, sink_fault, sink_key
from tidelog.proto.calls.backup_api import HOLD_MS_MAX, HoldTransactionsRequest, HoldTransactionsResponse
from tidelog.proto.calls.group_api import GroupPartition, OffsetCommitResult
from tidelog.proto.calls.sink_api import (
    AbortJobRequest,
    AbortJobResponse,
    BeginSinkTransactionRequest,
    BeginSinkTransactionResponse,
    CommitBatchRequest,
    CommitBatchResponse,
    DeleteSinkRequest,
    DeleteSinkResponse,
    DescribedSink,
    DescribeSinksRequest,
    DescribeSinksResponse,
    ListSinksRequest,
    ListSinksResponse,
)
from tidelog.proto.calls.transaction_api import (
    AddedTransaction,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsTransaction,
    DescribedTransaction,
    DescribeLineageRequest,
    DescribeLineageResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    PrepareTransactionRequest,
    PrepareTransactionResponse,
    TxnOffsetCommitRequest,
)
from tidelog.proto.logs.coordinator_records import STRING_BYTES_MAX
from tidelog.proto.records.encoder import BatchBuilder
from tidelog.proto.transport.network import CallContext
from tidelog.replication.coordinators.coordinator_log import CoordinatorLog, Token
from tidelog.replication.coordinators.coordinator_shell import CoordinatorShell, Led, done, settle
from tidelog.transactions.adding import added
from tidelog.transactions.counters import TransactionCounters, TransactionGauges
from tidelog.transactions.effects import Allocate, Answer, Append, Effect, SendMarkers, StopMarkers
from tidelog.transactions.lineage import Lineage
from tidelog.transactions.marker_sender import MarkerSender, Sending
from tidelog.transactions.settings import TransactionSettings
from tidelog.transactions.shard import Shard


class TransactionCoordinator(CoordinatorShell[Shard, Effect]):
    """See the module. ``group_partition`` returns the partition of a group's offsets; ``new_producer_id`` returns an
    unused id, or None; ``newest_connection`` is the number of the connection that this node accepted most recently."""

    def __init__(
        self,
        settings: TransactionSettings,
        clock: Clock,
        log: CoordinatorLog,
        new_producer_id: Callable[[], Awaitable[ProducerId | None]],
        markers: MarkerSender,
        group_partition: Callable[[str], int],
        on_fatal: Callable[[BaseException], None],
        partitions: int | None = None,
        newest_connection: Callable[[], int] = lambda: 0,
    ) -> None:
        self.counters = TransactionCounters()
        self.lineage = Lineage()
        self._lineage_since_ms = clock.now_ms()
        count = settings.state_log_num_partitions if partitions is None else partitions
        super().__init__(TRANSACTION_STATE_TOPIC, count, clock, log, self.counters, on_fatal)
        self.settings = settings
        """Used for partitions led from now on."""
        self._new_producer_id = new_producer_id
        self._markers = markers
        self._group_partition = group_partition
        self._newest_connection = newest_connection
        self._allocating: set[asyncio.Task[None]] = set()
        self._sendings: dict[tuple[int, Token], Sending] = {}
        """Markers being sent, by the partition that decided them."""

    # --- Life ---------------------------------------------------------------------------------------

    async def stop(self) -> None:
        allocating = tuple(self._allocating)
        await super().stop()
        await asyncio.gather(*allocating, return_exceptions=True)

    def kill(self) -> None:
        super().kill()
        for sending in self._sendings.values():
            sending.cancel()
        self._sendings.clear()
        for task in self._allocating:
            task.cancel()

    def partition_for(self, key: str) -> int:
        """Return the partition of ``key``: a transactional id, or :func:`tidelog.model.sinks.sink_key` of a sink's
        name."""
        return coordinator_partition(coordinator_key(key), self._partitions)

    def _new_shard(self, partition: int, epoch: LeaderEpoch) -> Shard:
        return Shard(
            epoch,
            self.settings,
            self._log.batch_bytes_max(partition),
            counters=self.counters,
            connections_before=self._newest_connection(),
            lineage=self.lineage,
        )

    def _load_bytes(self) -> int:
        return self.settings.state_log_load_buffer_size

    def _resign(self, led: Led[Shard]) -> Sequence[Effect]:
        return led.shard.resign(self._now())

    # --- Requests -----------------------------------------------------------------------------------

    def init_producer_id(
        self, request: InitProducerIdRequest, context: CallContext
    ) -> asyncio.Future[InitProducerIdResponse]:
        """Give a transactional id an identity. Without one: a fresh producer id (or none now; the client retries)."""
        if request.transactional_id is None:
            return self._fresh_identity()
        key = _id_key(request.transactional_id)
        return self._ask(key, InitProducerIdResponse, Shard.init_producer_id, request, context.connection)

    def add_partitions(
        self, request: AddPartitionsToTxnRequest, context: CallContext
    ) -> asyncio.Future[AddPartitionsToTxnResponse]:
        put = partial(self._add, connection=context.connection)
        return self._ask_each(request.transactions, put, partial(AddPartitionsToTxnResponse, ErrorCode.NONE))

    def _add(
        self, answered: Callable[[AddedTransaction], None], request: AddPartitionsTransaction, *, connection: int
    ) -> None:
        def refused(error: ErrorCode, /, *, error_message: str) -> AddedTransaction:
            return added(request, error)

        self._put(answered, _id_key(request.transactional_id), refused, Shard.add_partitions, request, connection)

    def add_offsets(
        self, request: AddOffsetsToTxnRequest, context: CallContext
    ) -> asyncio.Future[AddOffsetsToTxnResponse]:
        key = _id_key(request.transactional_id)
        at = TopicPartition(GROUP_OFFSETS_TOPIC, self._group_partition(request.group_id))
        return self._ask(key, AddOffsetsToTxnResponse, Shard.add_offsets, request, at, context.connection)

    def prepare(
        self, request: PrepareTransactionRequest, context: CallContext
    ) -> asyncio.Future[PrepareTransactionResponse]:
        return self._ask(_id_key(request.transactional_id), PrepareTransactionResponse, Shard.prepare, request)

    def end(self, request: EndTxnRequest, context: CallContext) -> asyncio.Future[EndTxnResponse]:
        self.lineage.ends(request.transactional_id, context.client_id)
        return self._ask(_id_key(request.transactional_id), EndTxnResponse, Shard.end, request, context.connection)

    # --- Ledgers of sinks ---------------------------------------------------------------------------

    def begin_sink_transaction(
        self, request: BeginSinkTransactionRequest, context: CallContext
    ) -> asyncio.Future[BeginSinkTransactionResponse]:
        fault = job_fault(request.batch, request.job) or part_fault("attempt", request.attempt)
        key = _sink_key(request.sink, fault)
        return self._ask(key, BeginSinkTransactionResponse, Shard.begin_sink_transaction, request)

    def commit_batch(self, request: CommitBatchRequest, context: CallContext) -> asyncio.Future[CommitBatchResponse]:
        key = _sink_key(request.sink, job_fault(request.batch, request.job))
        return self._ask(key, CommitBatchResponse, Shard.commit_batch, request)

    def abort_job(self, request: AbortJobRequest, context: CallContext) -> asyncio.Future[AbortJobResponse]:
        key = _sink_key(request.sink, job_fault(request.batch, request.job))
        return self._ask(key, AbortJobResponse, Shard.abort_job, request)

    def delete_sink(self, request: DeleteSinkRequest, context: CallContext) -> asyncio.Future[DeleteSinkResponse]:
        return self._ask(_sink_key(request.sink), DeleteSinkResponse, Shard.delete_sink, request)

    def describe_sinks(
        self, request: DescribeSinksRequest, context: CallContext
    ) -> asyncio.Future[DescribeSinksResponse]:
        return done(DescribeSinksResponse(tuple(self._describe_sink(name) for name in request.sinks)))

    def _describe_sink(self, name: str) -> DescribedSink:
        return self._look(_sink_key(name), partial(DescribedSink, name), lambda shard: shard.describe_sink(name))

    def list_sinks(self, request: ListSinksRequest, context: CallContext) -> asyncio.Future[ListSinksResponse]:
        return done(ListSinksResponse(*self._list(Shard.list_sinks)))

    # --- Administration -----------------------------------------------------------------------------

    def describe(
        self, request: DescribeTransactionsRequest, context: CallContext
    ) -> asyncio.Future[DescribeTransactionsResponse]:
        found = tuple(self._describe(transactional_id) for transactional_id in request.transactional_ids)
        return done(DescribeTransactionsResponse(found))

    def _describe(self, transactional_id: str) -> DescribedTransaction:
        refused = partial(DescribedTransaction, transactional_id)
        return self._look(_id_key(transactional_id), refused, lambda shard: shard.describe(transactional_id))

    def list_transactions(
        self, request: ListTransactionsRequest, context: CallContext
    ) -> asyncio.Future[ListTransactionsResponse]:
        try:
            compiled(request.id_pattern)
        except BadPattern as bad:
            return done(ListTransactionsResponse(ErrorCode.INVALID_REGULAR_EXPRESSION, error_message=str(bad)))
        found = self._list(lambda shard: shard.list_transactions(request, self._now()))
        return done(ListTransactionsResponse(*found))

    def read(self, request: TxnOffsetCommitRequest, results: Iterable[OffsetCommitResult], client_id: str) -> None:
        """Note which offsets joined a transaction."""
        topics = (result.topic for result in results if result.error is ErrorCode.NONE)
        self.lineage.read(request.transactional_id, request.group_id, client_id, topics, self._now().wall_ms)

    async def describe_lineage(self, _: DescribeLineageRequest, __: CallContext) -> DescribeLineageResponse:
        """What this node saw; which partitions it leads now does not matter."""
        lineage = self.lineage
        return DescribeLineageResponse(ErrorCode.NONE, lineage.edges(), lineage.forgotten, self._lineage_since_ms)

    def hold(self, request: HoldTransactionsRequest, context: CallContext) -> asyncio.Future[HoldTransactionsResponse]:
        """Stop deciding for a while, in all partitions that this node leads, or in none."""
        if not request.hold_id or not 0 <= request.hold_ms <= HOLD_MS_MAX:
            text = f"expected a hold's name, and 0 to {HOLD_MS_MAX} ms, found {request.hold_id!r}, {request.hold_ms} ms"
            return done(HoldTransactionsResponse(ErrorCode.INVALID_REQUEST, error_message=text))
        actives = self._actives()
        if len(actives) != len(self._led):
            return done(HoldTransactionsResponse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        if others := {led.shard.state.hold for led in actives} - {"", request.hold_id}:
            text = f"expected no other hold in force, found {min(others)!r}: wait until it has ended"
            return done(HoldTransactionsResponse(ErrorCode.CONCURRENT_TRANSACTIONS, error_message=text))
        held = []
        for led in actives:
            held.append(led.shard.hold(led.partition, request.hold_id, request.hold_ms, self._now()))
            self._perform(led, ())
        return done(HoldTransactionsResponse(ErrorCode.NONE, tuple(held)))

    def gauges(self) -> TransactionGauges:
        """Return the gauges. Visits every transactional id: for scraping, not for hot paths."""
        transactions: dict[str, int] = {}
        waiting = loaded = sinks = 0
        for led in self._actives():
            loaded += 1
            sinks += len(led.shard.state.sinks)
            for entry in led.shard.state.entries.values():
                waiting += len(entry.unmarked)
                if entry.value is not None:
                    state = entry.value.state.value
                    transactions[state] = transactions.get(state, 0) + 1
        return TransactionGauges(transactions, waiting, sinks, loaded, len(self._led) - loaded)

    # --- Effects ------------------------------------------------------------------------------------

    def _do(self, led: Led[Shard], effect: Effect) -> None:
        match effect:
            case Answer(waiter, response):
                self._answer(waiter, response)
            case Append(token, records, timestamp_ms):
                builder = BatchBuilder()
                for key, value in records:
                    builder.append(timestamp_ms, key, value)
                self._append(led, token, builder.build())
            case Allocate(token):
                self._allocate(led, token)
            case SendMarkers(token, marker):
                sending = self._markers.send(marker, partial(self._marked, led, token))
                self._sendings[led.partition, token] = sending
            case StopMarkers(token):
                self._sendings.pop((led.partition, token)).cancel()

    def _marked(self, led: Led[Shard], token: Token, partitions: Sequence[GroupPartition], error: ErrorCode) -> None:
        if self._is_live(led):
            self._perform(led, led.shard.marked(token, partitions, error, self._now()))

    def _allocate(self, led: Led[Shard], token: Token) -> None:
        async def allocate() -> None:
            producer_id = await self._new_producer_id()
            if self._is_live(led):
                self._perform(led, led.shard.allocated(token, producer_id, self._now()))

        self._spawn(allocate())

    def _fresh_identity(self) -> asyncio.Future[InitProducerIdResponse]:
        future: asyncio.Future[InitProducerIdResponse] = asyncio.get_running_loop().create_future()

        async def allocate() -> None:
            producer_id = await self._new_producer_id()
            if producer_id is None:
                settle(future, InitProducerIdResponse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            else:
                settle(future, InitProducerIdResponse(ErrorCode.NONE, producer_id, ProducerEpoch(0)))

        self._spawn(allocate())
        return future

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._allocating.add(task)
        task.add_done_callback(self._allocating.discard)
        task.add_done_callback(self._ended)


def transactional_id_fault(transactional_id: str) -> str | None:
    """Return why this is not a valid transactional id, or None."""
    if not transactional_id:
        return "expected a transactional id, found an empty one"
    size = len(transactional_id.encode("utf-8", "surrogatepass"))
    if size > STRING_BYTES_MAX:
        return f"expected a transactional id of at most {STRING_BYTES_MAX} bytes, found {size}"
    return None


def _id_key(transactional_id: str) -> str | Refusal:
    fault = transactional_id_fault(transactional_id)
    return transactional_id if fault is None else Refusal(ErrorCode.INVALID_REQUEST, fault)


def _sink_key(sink: str, fault: str | None = None) -> str | Refusal:
    fault = sink_fault(sink) or fault
    return sink_key(sink) if fault is None else Refusal(ErrorCode.INVALID_REQUEST, fault)
