"""A producer's transactions: asks coordinators, and keeps the sender in step with the state machine.

:mod:`tidelog.client.producer.transaction_state` decides. Everything but :meth:`Transactions.begin` runs on the
producer's IO loop. If a caller stops waiting, the call that ends its transaction continues in the background, and the
caller may come back. An unknown outcome never counts as a known one. Source: Kafka's ``TransactionManager`` (second
protocol: KIP-890, KIP-939).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from tidelog.client.cluster.cluster import Cluster
from tidelog.client.cluster.coordinator_link import CoordinatorLink
from tidelog.client.config.producer import ProducerConfig
from tidelog.client.errors import (
    ClientClosedError,
    IllegalStateError,
    RequestTimedOutError,
    TidelogError,
    TransactionAbortedError,
)
from tidelog.client.group_types import ConsumerGroupMetadata, Offsets
from tidelog.client.producer.prepared import PreparedTransaction
from tidelog.client.producer.sender import Sender
from tidelog.client.producer.transaction_state import TransactionMachine, TransactionState
from tidelog.client.sinks import sink_error
from tidelog.client.transaction_errors import OVER, Meaning, error_of, of_coordinator, of_offsets
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from tidelog.model.sinks import SinkAttempt
from tidelog.proto.calls.group_api import GROUP_COORDINATOR, TRANSACTION_COORDINATOR, OffsetCommitPartition
from tidelog.proto.calls.sink_api import (
    BeginSinkTransactionRequest,
    BeginSinkTransactionResponse,
    DescribedSink,
    DescribeSinksRequest,
)
from tidelog.proto.calls.transaction_api import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    PrepareTransactionRequest,
    PrepareTransactionResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

CLOSE_ABORT_S: Final = 5.0
"""How long closing waits for an open transaction to abort; otherwise, its timeout aborts it."""

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Operation:
    """A call in progress, or one whose caller did not wait for its end."""

    call: str
    task: asyncio.Task[Any]
    heard: bool = False


class Transactions:
    """``retake`` (the lock is held) lets records in or keeps them out, depending on the state; ``on_room`` wakes
    callers that wait for room; ``flush`` waits for the outcome of every record taken."""

    def __init__(
        self,
        config: ProducerConfig,
        cluster: Cluster,
        sender: Sender,
        machine: TransactionMachine,
        lock: threading.Lock,
        retake: Callable[[], None],
        on_room: Callable[[], None],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        assert config.transactional_id is not None
        self.id: Final = config.transactional_id
        self.machine: Final = machine
        self._config = config
        self._cluster = cluster
        self._sender = sender
        self._lock = lock
        self._retake = retake
        self._on_room = on_room
        self._flush = flush
        self._link = CoordinatorLink(cluster, self.id, TRANSACTION_COORDINATOR, config.request_timeout_ms)
        self._group: tuple[str, CoordinatorLink] | None = None
        """The link to the coordinator of the group that got offsets last."""
        self._offsets = asyncio.Lock()
        """Held while offsets are being sent."""
        self._operation: _Operation | None = None
        self._closed = False
        self._known = False
        """The coordinator already knows the transaction before anything is sent."""

    # --- calls ----------------------------------------------------------------------------------------

    @property
    def state(self) -> TransactionState:
        return self.machine.state

    def begin(self) -> None:
        """Begin, on any thread. Raises ``IllegalStateError``, or the error that ended the producer's transactions."""
        with self._lock:
            if self._closed:
                raise _closed()
            self.machine.begin()
            self._retake()

    async def initialize(self, timeout_s: float | None, *, keep_prepared: bool) -> None:
        if keep_prepared and not self._config.transaction_two_phase_commit_enable:
            raise IllegalStateError("keep_prepared: expected transaction_two_phase_commit_enable=True, found False")
        await self._carry_out(
            "init_transactions()", self.machine.initialize, lambda: self._initialize(keep_prepared), timeout_s
        )

    async def begin_sink(self, attempt: SinkAttempt, timeout_s: float | None) -> BeginSinkTransactionResponse:
        """Begin the single transaction of a sink's attempt, whose name is this producer's transactional id, with the
        identity from the sink's ledger. If the batch is already decided, nothing begins."""
        answer: BeginSinkTransactionResponse = await self._carry_out(
            "begin()", self.machine.initialize, lambda: self._begin_sink(attempt), timeout_s
        )
        return answer

    async def sink(self, name: str, timeout_s: float) -> DescribedSink | None:
        """Return the ledger's view of the sink; None if it does not answer in time."""
        request = DescribeSinksRequest((name,))
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._link.ask(request, lambda response: response.sinks[0].error)
        except (TimeoutError, TidelogError):
            return None
        return answer.sinks[0] if answer.sinks[0].error is ErrorCode.NONE else None

    async def commit(self, timeout_s: float | None) -> None:
        await self._carry_out("commit_transaction()", self.machine.commit, self._commit, timeout_s)

    async def abort(self, timeout_s: float | None) -> None:
        await self._carry_out("abort_transaction()", self.machine.abort, self._abort, timeout_s)

    async def prepare(self, timeout_s: float | None) -> str:
        if not self._config.transaction_two_phase_commit_enable:
            raise IllegalStateError(
                "prepare_transaction(): expected transaction_two_phase_commit_enable=True, found False"
            )
        token: str = await self._carry_out("prepare_transaction()", self.machine.prepare, self._prepare, timeout_s)
        return token

    async def complete(self, token: str | bytes, timeout_s: float | None) -> bool:
        """Commit the prepared transaction if the token names it, else abort it; returns whether it was committed. Does
        nothing if nothing is prepared. Source: KIP-939, ``completeTransaction``."""
        prepared = PreparedTransaction.parse(token)
        if prepared.transactional_id != self.id:
            raise ValueError(f"expected a token of {self.id}, found one of {prepared.transactional_id}")
        if self.state is TransactionState.READY:
            return False
        same = (prepared.producer_id, prepared.producer_epoch) == self.machine.ongoing
        await (self.commit(timeout_s) if same else self.abort(timeout_s))
        return same

    async def send_offsets(self, offsets: Offsets, group: ConsumerGroupMetadata, timeout_s: float | None) -> None:
        """Commit ``offsets`` with the transaction. If that fails, the transaction can only be aborted."""
        machine = self.machine
        with self._lock:
            if self._closed:
                raise _closed()
            machine.check_open("send_offsets_to_transaction()")
            if not offsets:
                return
            machine.sent()
            identity = machine.identity
        assert identity is not None
        request = TxnOffsetCommitRequest(
            self.id,
            group.group_id,
            ProducerId(identity[0]),
            ProducerEpoch(identity[1]),
            group.generation_id,
            group.member_id,
            group.group_instance_id,
            tuple(
                OffsetCommitPartition(*at, Offset(o.offset), LeaderEpoch(o.leader_epoch), o.metadata)
                for at, o in offsets.items()
            ),
        )
        if self._group is None or self._group[0] != group.group_id:
            link = CoordinatorLink(self._cluster, group.group_id, GROUP_COORDINATOR, self._config.request_timeout_ms)
            self._group = (group.group_id, link)
        limit = self._limit_s(timeout_s)
        fatal = False
        try:
            async with self._offsets, asyncio.timeout(limit):
                answer = await self._group[1].ask(request, _first_error)
        except TimeoutError:
            fault: TidelogError = RequestTimedOutError(f"offsets of group {group.group_id}: not taken within {limit} s")
        except TidelogError as error:
            fault = error
        except asyncio.CancelledError:  # whether they are in the transaction is unknown
            if machine.identity == identity:
                given_up = TransactionAbortedError("sending offsets was abandoned before an answer arrived")
                self._fail(given_up, fatal=False)
            raise
        else:
            code = _first_error(answer)
            if code is ErrorCode.NONE:
                return
            message = next(result.error_message for result in answer.results if result.error is code)
            fault = error_of(code, f"offsets of group {group.group_id}: {message or code.name}")
            fatal = of_offsets(code) is Meaning.GIVE_UP
        if machine.identity != identity or machine.state is TransactionState.ABORTING:
            raise TransactionAbortedError("the transaction was aborted in the meantime") from fault
        self._fail(fault, fatal=fatal)
        raise fault

    def spoil(self, error: Exception) -> None:
        """Fail the open transaction, because the producer did not accept part of it. On any thread."""
        if isinstance(error, TidelogError):
            self._fail(error, fatal=False)

    async def close(self, timeout_s: float | None) -> None:
        """Abort an open transaction, within a time limit; one that is prepared or being decided is left alone."""
        open_states = (TransactionState.IN_TRANSACTION, TransactionState.ABORTABLE_ERROR)
        limit = CLOSE_ABORT_S if timeout_s is None else min(timeout_s, CLOSE_ABORT_S)
        try:
            if self.state in open_states:
                await self.abort(limit)
            elif self._operation is not None and not self._operation.task.done():
                await asyncio.wait({self._operation.task}, timeout=limit)
        except TidelogError as error:
            level = logging.DEBUG if error.code in OVER else logging.WARNING
            log.log(level, "transaction of %s: not aborted while closing: %s", self.id, error)
        self._closed = True
        if self._operation is not None and not self._operation.task.done():
            self._operation.task.cancel()
            await asyncio.wait({self._operation.task})

    # --- carrying them out ------------------------------------------------------------------------------

    async def _carry_out(
        self,
        call: str,
        enter: Callable[[], None],
        work: Callable[[], Coroutine[Any, Any, Any]],
        timeout_s: float | None,
    ) -> Any:
        """Start an operation, or join one with the same name whose end no caller has seen yet."""
        if self._closed:
            raise _closed()
        operation = self._operation
        if operation is None or operation.call != call or operation.heard:
            with self._lock:
                enter()
                self._retake()
            self._on_room()
            task = asyncio.get_running_loop().create_task(work(), name=call)
            task.add_done_callback(_seen)
            operation = self._operation = _Operation(call, task)
        limit = self._limit_s(timeout_s)
        done, _ = await asyncio.wait({operation.task}, timeout=limit)
        if not done:
            why = self._link.trouble or str(self._cluster.failure or "")
            raise RequestTimedOutError(
                f"{call}: not done within {limit} s, in progress; call it again to keep waiting{why and f' ({why})'}"
            )
        if operation.task.cancelled():
            raise _closed()
        operation.heard = True
        return operation.task.result()

    async def _initialize(self, keep_prepared: bool) -> None:
        config = self._config
        two_phase = config.transaction_two_phase_commit_enable
        answer: InitProducerIdResponse = await self._ask(
            InitProducerIdRequest(
                transactional_id=self.id,
                transaction_timeout_ms=config.transaction_timeout_ms,
                enable_two_phase_commit=two_phase,
                keep_prepared_transaction=keep_prepared,
            ),
            "init_transactions()",
        )
        ongoing = (answer.ongoing_producer_id, answer.ongoing_producer_epoch)
        with self._lock:
            identity = (answer.producer_id, answer.producer_epoch)
            self.machine.initialized(identity, ongoing if ongoing[0] >= 0 else None)
            self._sender.take_identity(identity)

    async def _begin_sink(self, attempt: SinkAttempt) -> BeginSinkTransactionResponse:
        request = BeginSinkTransactionRequest(*attempt)
        try:
            answer = await self._link.ask(request, lambda response: response.error)
        except TidelogError as error:
            self._fail(error, fatal=True)
            raise
        if answer.error is not ErrorCode.NONE:
            refused = sink_error(answer.error, f"begin() of {self.id}: {answer.error_message or answer.error.name}")
            self._fail(refused, fatal=True)
            raise refused
        if not answer.already_committed:
            identity = (answer.producer_id, answer.producer_epoch)
            with self._lock:
                self.machine.initialized(identity, None)
                self._sender.take_identity(identity)
                self.machine.begin()
                self._known = True
                self._retake()
        return answer

    async def _commit(self) -> None:
        await self._flushed("commit_transaction()")
        await self._end(committed=True)

    async def _abort(self) -> None:
        self._drop(None)
        await self._end(committed=False)

    async def _prepare(self) -> str:
        call = "prepare_transaction()"
        await self._flushed(call)
        with self._lock:
            self.machine.ask(TransactionState.PREPARING, call)
        identity = self.machine.identity
        assert identity is not None
        started = self.machine.started
        if started:
            await self._ask(
                PrepareTransactionRequest(self.id, ProducerId(identity[0]), ProducerEpoch(identity[1])), call
            )
        with self._lock:
            self.machine.prepared()
        cluster_id = self._cluster.cache.cluster_id
        return PreparedTransaction(cluster_id, self.id, *(identity if started else ())).token

    async def _flushed(self, call: str) -> None:
        """Wait until the brokers have all of the transaction. Raises the error that failed it."""
        with self._lock:
            self._sender.seal_all()
        await self._flush()
        async with self._offsets:
            pass
        if self.machine.state in (TransactionState.ABORTABLE_ERROR, TransactionState.FATAL_ERROR):
            raise self.machine.refusal(call)

    async def _end(self, *, committed: bool) -> None:
        """Send the decision. A transaction that was left prepared ends under the identity that prepared it; ours, given
        out since, is for later transactions."""
        machine = self.machine
        call = "commit_transaction()" if committed else "abort_transaction()"
        with self._lock:
            machine.ask(TransactionState.COMMITTING if committed else TransactionState.ABORTING, call)
        identity = machine.identity
        assert identity is not None
        if machine.started or self._known:
            ends = machine.ongoing or identity
            request = EndTxnRequest(self.id, ProducerId(ends[0]), ProducerEpoch(ends[1]), committed)
            answer: EndTxnResponse = await self._ask(request, call)
            if answer.producer_id >= 0 and ends == identity:
                identity = (answer.producer_id, answer.producer_epoch)
        with self._lock:
            machine.ended(identity)
            if machine.state is TransactionState.READY:
                self._sender.take_identity(identity)
            self._retake()

    async def _ask(self, request: InitProducerIdRequest | PrepareTransactionRequest | EndTxnRequest, call: str) -> Any:
        """Ask the transaction's coordinator until it gives a final answer. Raises its refusals."""
        try:
            answer: InitProducerIdResponse | PrepareTransactionResponse | EndTxnResponse = await self._link.ask(
                request, lambda response: response.error
            )
        except TidelogError as error:
            self._fail(error, fatal=True, answer=True)
            raise
        meaning = of_coordinator(answer.error)
        if meaning is not Meaning.DONE:
            message = answer.error_message or answer.error.name
            refused = error_of(answer.error, f"{call} of {self.id}: {message}")
            self._fail(refused, fatal=meaning is Meaning.GIVE_UP, answer=True)
            raise refused
        return answer

    # --- when something is wrong --------------------------------------------------------------------

    def _fail(self, error: TidelogError, *, fatal: bool, answer: bool = False) -> None:
        with self._lock:
            changed = self.machine.failed(error, fatal=fatal, answer=answer)
            self._retake()
        if changed:
            self._drop(error)

    def _drop(self, cause: TidelogError | None) -> None:
        """Drop unanswered batches without sending or awaiting them: the transaction is aborted anyway."""
        with self._lock:
            tell = self._sender.drop_all(cause)
        for told in tell:
            told()
        self._on_room()

    def _limit_s(self, timeout_s: float | None) -> float:
        return self._config.max_block_ms / 1_000 if timeout_s is None else timeout_s


def _first_error(answer: TxnOffsetCommitResponse) -> ErrorCode:
    """Return the first error, preferring one that no retry fixes."""
    codes = [result.error for result in answer.results if result.error is not ErrorCode.NONE]
    return min(codes, key=lambda code: code.retriable, default=ErrorCode.NONE)


def _closed() -> ClientClosedError:
    return ClientClosedError("this producer is closed")


def _seen(task: asyncio.Task[Any]) -> None:
    """Mark the error as seen: its waiters have it, if any are left."""
    if not task.cancelled():
        task.exception()
