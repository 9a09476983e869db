"""The transaction coordinator of a node: the shell around the partitions of ``__transaction_state`` that it leads.

Everything is on the event loop. A handler does all that has an order before it returns its future; one timer
serves all partitions; loading runs beside, in slices. What a partition decides is in
:mod:`tidelog.transactions.shard`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from tidelog.model.clock import Clock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, NodeId, ProducerEpoch, ProducerId, TopicPartition
from tidelog.model.java_hash import coordinator_partition
from tidelog.model.moment import Moment
from tidelog.model.names import GROUP_OFFSETS_TOPIC
from tidelog.proto.coordinator_records import STRING_BYTES_MAX
from tidelog.proto.group_api import GroupPartition
from tidelog.proto.network import CallContext
from tidelog.proto.record_encoder import BatchBuilder
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
from tidelog.replication.coordinator_loading import load
from tidelog.replication.coordinator_log import CoordinatorLog
from tidelog.transactions.adding import added
from tidelog.transactions.counters import TransactionCounters, TransactionGauges
from tidelog.transactions.effects import Allocate, Answer, Append, Effect, SendMarkers, StopMarkers, Token
from tidelog.transactions.marker_sender import MarkerSender, Sending
from tidelog.transactions.settings import TransactionSettings
from tidelog.transactions.shard import Shard

logger = logging.getLogger(__name__)

R = TypeVar("R")

_LOAD_AGAIN_MS: Final = 1_000
_LOAD_AGAIN_MS_MAX: Final = 30_000


class _Standing(enum.Enum):
    LOADING = enum.auto()
    FAILED = enum.auto()
    """Loading failed, and is tried again."""
    ACTIVE = enum.auto()


class _Led:
    """One partition of ``__transaction_state`` under one leader epoch."""

    __slots__ = ("epoch", "loading", "partition", "sendings", "shard", "standing")

    def __init__(self, partition: int, epoch: LeaderEpoch, shard: Shard) -> None:
        self.partition = partition
        self.epoch = epoch
        self.shard = shard
        self.standing = _Standing.LOADING
        self.loading: asyncio.Task[None] | None = None
        self.sendings: dict[Token, Sending] = {}


class TransactionCoordinator:
    """See the module. ``group_partition`` says where a group's offsets are; ``new_producer_id`` gives an id that nobody
    has, or None."""

    def __init__(
        self,
        node_id: NodeId,
        settings: TransactionSettings,
        clock: Clock,
        log: CoordinatorLog,
        new_producer_id: Callable[[], Awaitable[ProducerId | None]],
        markers: MarkerSender,
        group_partition: Callable[[str], int],
        on_fatal: Callable[[BaseException], None],
        partitions: int | None = None,
    ) -> None:
        self.counters = TransactionCounters()
        self._node_id = node_id
        self._settings = settings
        self._clock = clock
        self._log = log
        self._new_producer_id = new_producer_id
        self._markers = markers
        self._group_partition = group_partition
        self._on_fatal = on_fatal
        self._partitions = settings.state_log_num_partitions if partitions is None else partitions
        self._led: dict[int, _Led] = {}
        self._waiters: dict[int, Callable[[Any], None]] = {}
        self._next_waiter = 0
        self._allocating: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._stopped = False

    # --- Life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Nothing runs before the first election."""

    async def stop(self) -> None:
        """Answer everybody who waits NOT_COORDINATOR and end."""
        tasks: list[asyncio.Task[None]] = [led.loading for led in self._led.values() if led.loading is not None]
        tasks += self._allocating
        for partition in list(self._led):
            self.resigned(partition)
        self.kill()
        await asyncio.gather(*tasks, return_exceptions=True)

    def kill(self) -> None:
        """Drop everything where it stands; nobody is answered."""
        self._stopped = True
        for led in self._led.values():
            if led.loading is not None:
                led.loading.cancel()
            for sending in led.sendings.values():
                sending.cancel()
        for task in self._allocating:
            task.cancel()
        self._led.clear()
        self._waiters.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def settings(self) -> TransactionSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: TransactionSettings) -> None:
        self._settings = settings
        for led in self._led.values():
            led.shard.set_settings(settings)

    def set_partition_count(self, partitions: int) -> None:
        """How many partitions ``__transaction_state`` really has."""
        self._partitions = partitions

    def partition_for(self, transactional_id: str) -> int:
        return coordinator_partition(transactional_id, self._partitions)

    # --- Leadership ---------------------------------------------------------------------------------

    def elected(self, partition: int, leader_epoch: LeaderEpoch) -> None:
        """This node leads the partition from now on: load it. An epoch that is known, or older, changes nothing."""
        known = self._led.get(partition)
        if self._stopped or (known is not None and known.epoch >= leader_epoch):
            return
        self.resigned(partition)
        led = _Led(partition, leader_epoch, self._new_shard(partition, leader_epoch))
        self._led[partition] = led
        led.loading = asyncio.get_running_loop().create_task(self._load(led))
        led.loading.add_done_callback(self._ended)

    def resigned(self, partition: int, leader_epoch: LeaderEpoch | None = None) -> None:
        """This node does not lead the partition any longer, as of ``leader_epoch`` (None: whatever it knows)."""
        led = self._led.get(partition)
        if led is None or (leader_epoch is not None and led.epoch > leader_epoch):
            return
        del self._led[partition]
        if led.loading is not None:
            led.loading.cancel()
        self._perform(led, led.shard.resign())

    # --- Requests -----------------------------------------------------------------------------------

    def init_producer_id(
        self, request: InitProducerIdRequest, context: CallContext
    ) -> asyncio.Future[InitProducerIdResponse]:
        """Without a transactional id: a fresh producer id (or none now, to be asked for again)."""
        if request.transactional_id is None:
            return self._fresh_identity()
        fault = transactional_id_fault(request.transactional_id)
        if fault is not None:
            return _done(InitProducerIdResponse(ErrorCode.INVALID_REQUEST, error_message=fault))
        led = self._active(request.transactional_id)
        if not isinstance(led, _Led):
            return _done(InitProducerIdResponse(led))
        waiter, future = self._waiter(InitProducerIdResponse)
        self._perform(led, led.shard.init_producer_id(request, waiter, self._now()))
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
                _set(future, AddPartitionsToTxnResponse(ErrorCode.NONE, found))

        if not results:
            future.set_result(AddPartitionsToTxnResponse(ErrorCode.NONE))
        for at, transaction in enumerate(request.transactions):
            self._add(transaction, partial(answered, at))
        return future

    def _add(self, request: AddPartitionsTransaction, answered: Callable[[AddedTransaction], None]) -> None:
        if transactional_id_fault(request.transactional_id) is not None:
            answered(added(request, ErrorCode.INVALID_REQUEST))
            return
        led = self._active(request.transactional_id)
        if isinstance(led, _Led):
            waiter = self._wait(answered)
            self._perform(led, led.shard.add_partitions(request, waiter, self._now()))
        else:
            answered(added(request, led))

    def add_offsets(
        self, request: AddOffsetsToTxnRequest, context: CallContext
    ) -> asyncio.Future[AddOffsetsToTxnResponse]:
        fault = transactional_id_fault(request.transactional_id)
        if fault is not None:
            return _done(AddOffsetsToTxnResponse(ErrorCode.INVALID_REQUEST, fault))
        led = self._active(request.transactional_id)
        if not isinstance(led, _Led):
            return _done(AddOffsetsToTxnResponse(led))
        at = TopicPartition(GROUP_OFFSETS_TOPIC, self._group_partition(request.group_id))
        waiter, future = self._waiter(AddOffsetsToTxnResponse)
        self._perform(led, led.shard.add_offsets(request, at, waiter, self._now()))
        return future

    def prepare(
        self, request: PrepareTransactionRequest, context: CallContext
    ) -> asyncio.Future[PrepareTransactionResponse]:
        fault = transactional_id_fault(request.transactional_id)
        if fault is not None:
            return _done(PrepareTransactionResponse(ErrorCode.INVALID_REQUEST, fault))
        led = self._active(request.transactional_id)
        if not isinstance(led, _Led):
            return _done(PrepareTransactionResponse(led))
        waiter, future = self._waiter(PrepareTransactionResponse)
        self._perform(led, led.shard.prepare(request, waiter, self._now()))
        return future

    def end(self, request: EndTxnRequest, context: CallContext) -> asyncio.Future[EndTxnResponse]:
        fault = transactional_id_fault(request.transactional_id)
        if fault is not None:
            return _done(EndTxnResponse(ErrorCode.INVALID_REQUEST, error_message=fault))
        led = self._active(request.transactional_id)
        if not isinstance(led, _Led):
            return _done(EndTxnResponse(led))
        waiter, future = self._waiter(EndTxnResponse)
        self._perform(led, led.shard.end(request, waiter, self._now()))
        return future

    # --- Administration -----------------------------------------------------------------------------

    def describe(
        self, request: DescribeTransactionsRequest, context: CallContext
    ) -> asyncio.Future[DescribeTransactionsResponse]:
        found = tuple(self._describe(transactional_id) for transactional_id in request.transactional_ids)
        return _done(DescribeTransactionsResponse(found))

    def _describe(self, transactional_id: str) -> DescribedTransaction:
        fault = transactional_id_fault(transactional_id)
        if fault is not None:
            return DescribedTransaction(transactional_id, ErrorCode.INVALID_REQUEST, error_message=fault)
        led = self._active(transactional_id)
        if isinstance(led, _Led):
            return led.shard.describe(transactional_id)
        return DescribedTransaction(transactional_id, led)

    def list_transactions(
        self, request: ListTransactionsRequest, context: CallContext
    ) -> asyncio.Future[ListTransactionsResponse]:
        """Those that are loaded; COORDINATOR_LOAD_IN_PROGRESS beside them while others are not."""
        found: list[ListedTransaction] = []
        error = ErrorCode.NONE
        for led in self._led.values():
            if led.standing is _Standing.ACTIVE:
                found += led.shard.list_transactions(request, self._now())
            else:
                error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return _done(ListTransactionsResponse(error, tuple(found)))

    def gauges(self) -> TransactionGauges:
        """Looks at each transactional id: for scraping, not for hot paths."""
        transactions: dict[str, int] = {}
        waiting = loaded = 0
        for led in self._led.values():
            if led.standing is not _Standing.ACTIVE:
                continue
            loaded += 1
            for entry in led.shard.state.entries.values():
                waiting += len(entry.unmarked)
                if entry.value is not None:
                    state = entry.value.state.value
                    transactions[state] = transactions.get(state, 0) + 1
        return TransactionGauges(transactions, waiting, loaded, len(self._led) - loaded)

    # --- Effects ------------------------------------------------------------------------------------

    def _active(self, transactional_id: str) -> _Led | ErrorCode:
        led = self._led.get(self.partition_for(transactional_id))
        if led is None:
            return ErrorCode.NOT_COORDINATOR
        match led.standing:
            case _Standing.ACTIVE:
                return led
            case _Standing.LOADING:
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            case _Standing.FAILED:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE

    def _waiter(self, answer: type[R]) -> tuple[int, asyncio.Future[R]]:
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        return self._wait(partial(_set, future)), future

    def _wait(self, answered: Callable[[Any], None]) -> int:
        waiter = self._next_waiter
        self._next_waiter += 1
        self._waiters[waiter] = answered
        return waiter

    def _perform(self, led: _Led, effects: list[Effect]) -> None:
        """Do what the core asked for, in order; then see when it has to be asked again."""
        for effect in effects:
            match effect:
                case Answer(waiter, response):
                    self._waiters.pop(waiter)(response)
                case Append():
                    self._append(led, effect)
                case Allocate(token):
                    self._allocate(led, token)
                case SendMarkers(token, marker):
                    led.sendings[token] = self._markers.send(marker, partial(self._marked, led, token))
                case StopMarkers(token):
                    led.sendings.pop(token).cancel()
        self._set_timer(led.shard.next_deadline())

    def _is_live(self, led: _Led) -> bool:
        return self._led.get(led.partition) is led

    def _append(self, led: _Led, effect: Append) -> None:
        builder = BatchBuilder()
        for key, value in effect.records:
            builder.append(effect.timestamp_ms, key, value)
        self.counters.appends += 1
        outcome = asyncio.ensure_future(self._log.append(led.partition, led.epoch, builder.build()))
        outcome.add_done_callback(partial(self._appended, led, effect.token))

    def _appended(self, led: _Led, token: Token, outcome: asyncio.Future[ErrorCode]) -> None:
        if not self._is_live(led) or outcome.cancelled():
            return
        failure = outcome.exception()
        if failure is not None:
            self._on_fatal(failure)
            return
        error = outcome.result()
        if error is not ErrorCode.NONE:
            self.counters.failed_appends += 1
        if error is ErrorCode.NOT_COORDINATOR:
            self.resigned(led.partition)
        else:
            self._perform(led, led.shard.appended(token, error, self._now()))

    def _marked(self, led: _Led, token: Token, partitions: Sequence[GroupPartition], error: ErrorCode) -> None:
        if self._is_live(led):
            self._perform(led, led.shard.marked(token, partitions, error, self._now()))

    def _allocate(self, led: _Led, token: Token) -> None:
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
                _set(future, InitProducerIdResponse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            else:
                _set(future, InitProducerIdResponse(ErrorCode.NONE, producer_id, ProducerEpoch(0)))

        self._spawn(allocate())
        return future

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._allocating.add(task)
        task.add_done_callback(self._allocating.discard)
        task.add_done_callback(self._ended)

    # --- Time ---------------------------------------------------------------------------------------

    def _now(self) -> Moment:
        return Moment(self._clock.monotonic_ms(), self._clock.now_ms())

    def _set_timer(self, deadline: int | None) -> None:
        """See that the one timer goes off by ``deadline``."""
        if deadline is None or self._stopped or (self._timer is not None and self._timer_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        delay_s = max(deadline - self._clock.monotonic_ms(), 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._now()
        for led in list(self._led.values()):
            deadline = led.shard.next_deadline()
            if deadline is not None and deadline <= now.monotonic_ms and led.standing is _Standing.ACTIVE:
                self._perform(led, led.shard.tick(now))
            else:
                self._set_timer(deadline)

    # --- Loading ------------------------------------------------------------------------------------

    def _new_shard(self, partition: int, epoch: LeaderEpoch) -> Shard:
        bytes_max = self._log.batch_bytes_max(partition)
        return Shard(epoch, self._settings, bytes_max, counters=self.counters)

    async def _load(self, led: _Led) -> None:
        """Load the partition; try again for as long as it is led and cannot be read."""
        delay_ms = _LOAD_AGAIN_MS
        while True:
            began_ms = self._clock.monotonic_ms()
            bytes_max = self._settings.state_log_load_buffer_size
            fault = await load(led.shard.replay, self._log, led.partition, led.epoch, bytes_max)
            if fault is None:
                break
            self.counters.failed_loads += 1
            logger.error("partition %d of the transactions' state cannot be loaded: %s", led.partition, fault)
            led.standing = _Standing.FAILED
            await asyncio.sleep(delay_ms / 1000)
            delay_ms = min(2 * delay_ms, _LOAD_AGAIN_MS_MAX)
            led.shard = self._new_shard(led.partition, led.epoch)
        self.counters.loads += 1
        self.counters.load_ms += self._clock.monotonic_ms() - began_ms
        self.counters.loaded_records += led.shard.replayed
        self.counters.passed_over_records += led.shard.passed_over
        led.loading = None
        led.standing = _Standing.ACTIVE
        self._perform(led, led.shard.loaded(self._now()))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            failure = task.exception()
            if failure is not None:
                self._on_fatal(failure)


def transactional_id_fault(transactional_id: str) -> str | None:
    """Say why there can be no such transactional id, or None."""
    if not transactional_id:
        return "expected a transactional id, found an empty one"
    size = len(transactional_id.encode("utf-8", "surrogatepass"))
    if size > STRING_BYTES_MAX:
        return f"expected a transactional id of at most {STRING_BYTES_MAX} bytes, found {size}"
    return None


def _done(response: R) -> asyncio.Future[R]:
    future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
    future.set_result(response)
    return future


def _set(future: asyncio.Future[R], response: R) -> None:
    """Whoever asked may have gone."""
    if not future.done():
        future.set_result(response)
