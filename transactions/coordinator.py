"""The transaction coordinator of a node: the shell around the partitions of ``__transaction_state`` that it leads.

What is common to coordinators is in :mod:`tidelog.replication.coordinator_shell`, what a partition decides in
:mod:`tidelog.transactions.shard`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, ProducerEpoch, ProducerId, TopicPartition
from tidelog.model.java_hash import coordinator_partition
from tidelog.model.names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tidelog.model.sinks import coordinator_key, job_fault, part_fault, sink_fault, sink_key
from tidelog.proto.coordinator_records import STRING_BYTES_MAX
from tidelog.proto.group_api import GroupPartition
from tidelog.proto.network import CallContext
from tidelog.proto.record_encoder import BatchBuilder
from tidelog.proto.sink_api import (
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
    ListedSink,
    ListSinksRequest,
    ListSinksResponse,
)
from tidelog.proto.transaction_api import (
    AddedTransaction,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsTransaction,
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    PrepareTransactionRequest,
    PrepareTransactionResponse,
)
from tidelog.replication.coordinator_log import CoordinatorLog, Token
from tidelog.replication.coordinator_shell import CoordinatorShell, Led, Standing, done, settle
from tidelog.transactions.adding import added
from tidelog.transactions.counters import TransactionCounters, TransactionGauges
from tidelog.transactions.effects import Allocate, Answer, Append, Effect, SendMarkers, StopMarkers
from tidelog.transactions.marker_sender import MarkerSender, Sending
from tidelog.transactions.settings import TransactionSettings
from tidelog.transactions.shard import Shard


class TransactionCoordinator(CoordinatorShell[Shard, Effect]):
    """See the module. ``group_partition`` says where a group's offsets are; ``new_producer_id`` gives an id that nobody
    has, or None; ``newest_connection`` is the number of the connection that this node accepted last."""

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
        count = settings.state_log_num_partitions if partitions is None else partitions
        super().__init__(TRANSACTION_STATE_TOPIC, count, clock, log, self.counters, on_fatal)
        self.settings = settings
        """Of the partitions that are led from now on."""
        self._new_producer_id = new_producer_id
        self._markers = markers
        self._group_partition = group_partition
        self._newest_connection = newest_connection
        self._allocating: set[asyncio.Task[None]] = set()
        self._sendings: dict[tuple[int, Token], Sending] = {}
        """Markers on their way, by the partition that decided them."""

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
        """``key``: a transactional id, or what :func:`tidelog.model.sinks.sink_key` makes of a sink's name."""
        return coordinator_partition(coordinator_key(key), self._partitions)

    def _new_shard(self, partition: int, epoch: LeaderEpoch) -> Shard:
        return Shard(
            epoch,
            self.settings,
            self._log.batch_bytes_max(partition),
            counters=self.counters,
            connections_before=self._newest_connection(),
        )

    def _load_bytes(self) -> int:
        return self.settings.state_log_load_buffer_size

    def _resign(self, led: Led[Shard]) -> Sequence[Effect]:
        return led.shard.resign()

    # --- Requests -----------------------------------------------------------------------------------

    def init_producer_id(
        self, request: InitProducerIdRequest, context: CallContext
    ) -> asyncio.Future[InitProducerIdResponse]:
        """Without a transactional id: a fresh producer id (or none now, to be asked for again)."""
        if request.transactional_id is None:
            return self._fresh_identity()
        fault = transactional_id_fault(request.transactional_id)
        if fault is not None:
            return done(InitProducerIdResponse(ErrorCode.INVALID_REQUEST, error_message=fault))
        led = self._active(request.transactional_id)
        if not isinstance(led, Led):
            return done(InitProducerIdResponse(led))
        waiter, future = self._waiter(InitProducerIdResponse)
        self._perform(led, led.shard.init_producer_id(request, waiter, self._now(), context.connection))
        return future

    def add_partitions(
        self, request: AddPartitionsToTxnRequest, context: CallContext
    ) -> asyncio.Future[AddPartitionsToTxnResponse]:
        """Each transaction is answered for itself; the answer waits for all."""
        future: asyncio.Future[AddPartitionsToTxnResponse] = asyncio.get_running_loop().create_future()
        results: list[AddedTransaction | None] = [None] * len(request.transactions)
        left = len(results)

        def answered(at: int, result: AddedTransaction) -> None:
            nonlocal left
            results[at] = result
            left -= 1
            if not left:
                found = tuple(item for item in results if item is not None)
                settle(future, AddPartitionsToTxnResponse(ErrorCode.NONE, found))

        if not results:
            future.set_result(AddPartitionsToTxnResponse(ErrorCode.NONE))
        for at, transaction in enumerate(request.transactions):
            self._add(transaction, partial(answered, at), context.connection)
        return future

    def _add(
        self, request: AddPartitionsTransaction, answered: Callable[[AddedTransaction], None], connection: int
    ) -> None:
        if transactional_id_fault(request.transactional_id) is not None:
            answered(added(request, ErrorCode.INVALID_REQUEST))
            return
        led = self._active(request.transactional_id)
        if isinstance(led, Led):
            waiter = self._wait(answered)
            self._perform(led, led.shard.add_partitions(request, waiter, self._now(), connection))
        else:
            answered(added(request, led))

    def add_offsets(
        self, request: AddOffsetsToTxnRequest, context: CallContext
    ) -> asyncio.Future[AddOffsetsToTxnResponse]:
        fault = transactional_id_fault(request.transactional_id)
        if fault is not None:
            return done(AddOffsetsToTxnResponse(ErrorCode.INVALID_REQUEST, fault))
        led = self._active(request.transactional_id)
        if not isinstance(led, Led):
            return done(AddOffsetsToTxnResponse(led))
        at = TopicPartition(GROUP_OFFSETS_TOPIC, self._group_partition(request.group_id))
        waiter, future = self._waiter(AddOffsetsToTxnResponse)
        self._perform(led, led.shard.add_offsets(request, at, waiter, self._now(), context.connection))
        return future

    def prepare(
        self, request: PrepareTransactionRequest, context: CallContext
    ) -> asyncio.Future[PrepareTransactionResponse]:
        fault = transactional_id_fault(request.transactional_id)
        if fault is not None:
            return done(PrepareTransactionResponse(ErrorCode.INVALID_REQUEST, fault))
        led = self._active(request.transactional_id)
        if not isinstance(led, Led):
            return done(PrepareTransactionResponse(led))
        waiter, future = self._waiter(PrepareTransactionResponse)
        self._perform(led, led.shard.prepare(request, waiter, self._now()))
        return future

    def end(self, request: EndTxnRequest, context: CallContext) -> asyncio.Future[EndTxnResponse]:
        fault = transactional_id_fault(request.transactional_id)
        if fault is not None:
            return done(EndTxnResponse(ErrorCode.INVALID_REQUEST, error_message=fault))
        led = self._active(request.transactional_id)
        if not isinstance(led, Led):
            return done(EndTxnResponse(led))
        waiter, future = self._waiter(EndTxnResponse)
        self._perform(led, led.shard.end(request, waiter, self._now(), context.connection))
        return future

    # --- Ledgers of sinks ---------------------------------------------------------------------------

    def begin_sink_transaction(
        self, request: BeginSinkTransactionRequest, context: CallContext
    ) -> asyncio.Future[BeginSinkTransactionResponse]:
        fault = sink_fault(request.sink) or job_fault(request.batch, request.job)
        fault = fault or part_fault("attempt", request.attempt)
        if fault is not None:
            return done(BeginSinkTransactionResponse(ErrorCode.INVALID_REQUEST, error_message=fault))
        led = self._active(sink_key(request.sink))
        if not isinstance(led, Led):
            return done(BeginSinkTransactionResponse(led))
        waiter, future = self._waiter(BeginSinkTransactionResponse)
        self._perform(led, led.shard.begin_sink_transaction(request, waiter, self._now()))
        return future

    def commit_batch(self, request: CommitBatchRequest, context: CallContext) -> asyncio.Future[CommitBatchResponse]:
        fault = sink_fault(request.sink) or job_fault(request.batch, request.job)
        if fault is not None:
            return done(CommitBatchResponse(ErrorCode.INVALID_REQUEST, error_message=fault))
        led = self._active(sink_key(request.sink))
        if not isinstance(led, Led):
            return done(CommitBatchResponse(led))
        waiter, future = self._waiter(CommitBatchResponse)
        self._perform(led, led.shard.commit_batch(request, waiter, self._now()))
        return future

    def abort_job(self, request: AbortJobRequest, context: CallContext) -> asyncio.Future[AbortJobResponse]:
        fault = sink_fault(request.sink) or job_fault(request.batch, request.job)
        if fault is not None:
            return done(AbortJobResponse(ErrorCode.INVALID_REQUEST, error_message=fault))
        led = self._active(sink_key(request.sink))
        if not isinstance(led, Led):
            return done(AbortJobResponse(led))
        waiter, future = self._waiter(AbortJobResponse)
        self._perform(led, led.shard.abort_job(request, waiter, self._now()))
        return future

    def delete_sink(self, request: DeleteSinkRequest, context: CallContext) -> asyncio.Future[DeleteSinkResponse]:
        fault = sink_fault(request.sink)
        if fault is not None:
            return done(DeleteSinkResponse(ErrorCode.INVALID_REQUEST, fault))
        led = self._active(sink_key(request.sink))
        if not isinstance(led, Led):
            return done(DeleteSinkResponse(led))
        waiter, future = self._waiter(DeleteSinkResponse)
        self._perform(led, led.shard.delete_sink(request, waiter, self._now()))
        return future

    def describe_sinks(
        self, request: DescribeSinksRequest, context: CallContext
    ) -> asyncio.Future[DescribeSinksResponse]:
        return done(DescribeSinksResponse(tuple(self._describe_sink(name) for name in request.sinks)))

    def _describe_sink(self, name: str) -> DescribedSink:
        fault = sink_fault(name)
        if fault is not None:
            return DescribedSink(name, ErrorCode.INVALID_REQUEST, error_message=fault)
        led = self._active(sink_key(name))
        return led.shard.describe_sink(name) if isinstance(led, Led) else DescribedSink(name, led)

    def list_sinks(self, request: ListSinksRequest, context: CallContext) -> asyncio.Future[ListSinksResponse]:
        """As :meth:`list_transactions`."""
        found: list[ListedSink] = []
        for led in self._actives():
            found += led.shard.list_sinks()
        loading = any(led.standing is not Standing.ACTIVE for led in self._led.values())
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else ErrorCode.NONE
        return done(ListSinksResponse(error, tuple(found)))

    # --- Administration -----------------------------------------------------------------------------

    def describe(
        self, request: DescribeTransactionsRequest, context: CallContext
    ) -> asyncio.Future[DescribeTransactionsResponse]:
        found = tuple(self._describe(transactional_id) for transactional_id in request.transactional_ids)
        return done(DescribeTransactionsResponse(found))

    def _describe(self, transactional_id: str) -> DescribedTransaction:
        fault = transactional_id_fault(transactional_id)
        if fault is not None:
            return DescribedTransaction(transactional_id, ErrorCode.INVALID_REQUEST, error_message=fault)
        led = self._active(transactional_id)
        if isinstance(led, Led):
            return led.shard.describe(transactional_id)
        return DescribedTransaction(transactional_id, led)

    def list_transactions(
        self, request: ListTransactionsRequest, context: CallContext
    ) -> asyncio.Future[ListTransactionsResponse]:
        """Those that are loaded; COORDINATOR_LOAD_IN_PROGRESS beside them while others are not."""
        found: list[ListedTransaction] = []
        error = ErrorCode.NONE
        for led in self._led.values():
            if led.standing is Standing.ACTIVE:
                found += led.shard.list_transactions(request, self._now())
            else:
                error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return done(ListTransactionsResponse(error, tuple(found)))

    def gauges(self) -> TransactionGauges:
        """Looks at each transactional id: for scraping, not for hot paths."""
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
    """Say why there can be no such transactional id, or None."""
    if not transactional_id:
        return "expected a transactional id, found an empty one"
    size = len(transactional_id.encode("utf-8", "surrogatepass"))
    if size > STRING_BYTES_MAX:
        return f"expected a transactional id of at most {STRING_BYTES_MAX} bytes, found {size}"
    return None
