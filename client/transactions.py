"""A producer's transactions: asks coordinators, and keeps the sender in step with the state machine.

The decisions are those of :mod:`tidelog.client.transaction_state`. Everything but :meth:`Transactions.begin` runs
where the producer's IO does. What ends a transaction goes on in the background when its caller has waited
enough: the caller may come back, and never is an unknown outcome taken for a known one.
Source: Kafka's ``TransactionManager`` (second protocol: KIP-890, KIP-939).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from tidelog.client.cluster import Cluster
from tidelog.client.coordinator_link import CoordinatorLink
from tidelog.client.errors import (
    ClientClosedError,
    IllegalStateError,
    RequestTimedOutError,
    TidelogError,
    TransactionAbortedError,
)
from tidelog.client.group_types import ConsumerGroupMetadata, Offsets
from tidelog.client.prepared import PreparedTransaction
from tidelog.client.producer_config import ProducerConfig
from tidelog.client.sender import Sender
from tidelog.client.sinks import sink_error
from tidelog.client.transaction_errors import OVER, Meaning, error_of, of_coordinator, of_offsets
from tidelog.client.transaction_state import TransactionMachine, TransactionState
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from tidelog.model.sinks import SinkAttempt
from tidelog.proto.group_api import GROUP_COORDINATOR, TRANSACTION_COORDINATOR, OffsetCommitPartition
from tidelog.proto.sink_api import (
    BeginSinkTransactionRequest,
    BeginSinkTransactionResponse,
    DescribedSink,
    DescribeSinksRequest,
)
from tidelog.proto.transaction_api import (
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
"""How long closing waits for an open transaction to be aborted; its timeout does so otherwise."""

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Operation:
    """A call that is under way, or has ended unheard because its caller did not wait for it."""

    call: str
    task: asyncio.Task[Any]
    heard: bool = False


class Transactions:
    """``retake`` (the lock is held) lets records in or keeps them out, as the state says; ``on_room`` wakes
    those who wait to be let in; ``flush`` waits for the outcome of all that was taken."""

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
        """The way to the coordinator of the group whose offsets were sent last."""
        self._offsets = asyncio.Lock()
        """Held while offsets are under way."""
        self._operation: _Operation | None = None
        self._closed = False
        self._known = False
        """The coordinator knows of the transaction before anything is sent."""

    # --- calls ----------------------------------------------------------------------------------------

    @property
    def state(self) -> TransactionState:
        return self.machine.state

    def begin(self) -> None:
        """On any thread. Raises ``IllegalStateError``, or what has ended the producer's transactions."""
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
        """Begin the one transaction of a sink's attempt, whose name is this producer's transactional id, under the
        identity that the sink's ledger gives. Nothing begins where the batch is decided."""
        answer: BeginSinkTransactionResponse = await self._carry_out(
            "begin()", self.machine.initialize, lambda: self._begin_sink(attempt), timeout_s
        )
        return answer

    async def sink(self, name: str, timeout_s: float) -> DescribedSink | None:
        """What the ledger says of the sink; None if it cannot be asked in time."""
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
        """Commit what is prepared if the token names it, else abort it; whether it was committed. Where nothing
        is prepared nothing is done. Source: KIP-939, ``completeTransaction``."""
        prepared = PreparedTransaction.parse(token)
        if prepared.transactional_id != self.id:
            raise ValueError(f"expected a token of {self.id}, found one of {prepared.transactional_id}")
        if self.state is TransactionState.READY:
            return False
        same = (prepared.producer_id, prepared.producer_epoch) == self.machine.ongoing
        await (self.commit(timeout_s) if same else self.abort(timeout_s))
        return same

    async def send_offsets(self, offsets: Offsets, group: ConsumerGroupMetadata, timeout_s: float | None) -> None:
        """Have ``offsets`` committed with the transaction. Where that fails, it can only be aborted."""
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
                given_up = TransactionAbortedError("sending offsets was given up before there was an answer")
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
            raise TransactionAbortedError("the transaction was aborted meanwhile") from fault
        self._fail(fault, fatal=fatal)
        raise fault

    def spoil(self, error: Exception) -> None:
        """On any thread: something of the open transaction was not taken in, so it must not be committed."""
        if isinstance(error, TidelogError):
            self._fail(error, fatal=False)

    async def close(self, timeout_s: float | None) -> None:
        """Abort what is open, within a bound; what is prepared, or being decided, stays as it is."""
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
        """Begin an operation, or join the one of the same name that nobody has seen the end of yet."""
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
                f"{call}: not done within {limit} s, but under way; call it again to wait on{why and f' ({why})'}"
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
        await self._flushed()
        await self._end(committed=True)

    async def _abort(self) -> None:
        self._drop(None)
        await self._end(committed=False)

    async def _prepare(self) -> str:
        await self._flushed()
        identity = self.machine.identity
        assert identity is not None
        started = self.machine.started
        if started:
            request = PrepareTransactionRequest(self.id, ProducerId(identity[0]), ProducerEpoch(identity[1]))
            await self._ask(request, "prepare_transaction()")
        with self._lock:
            self.machine.prepared()
        cluster_id = self._cluster.cache.cluster_id
        return PreparedTransaction(cluster_id, self.id, *(identity if started else ())).token

    async def _flushed(self) -> None:
        """Wait until all of the transaction has come to the brokers. Raises what has spoilt it."""
        with self._lock:
            self._sender.seal_all()
        await self._flush()
        async with self._offsets:
            pass
        if self.machine.state in (TransactionState.ABORTABLE_ERROR, TransactionState.FATAL_ERROR):
            raise self.machine.refusal("commit_transaction()")

    async def _end(self, *, committed: bool) -> None:
        """Send the decision. A transaction that was left prepared ends under the identity of whoever prepared it;
        ours, given out since, is for what comes after."""
        machine = self.machine
        identity = machine.identity
        assert identity is not None
        if machine.started or self._known:
            ends = machine.ongoing or identity
            request = EndTxnRequest(self.id, ProducerId(ends[0]), ProducerEpoch(ends[1]), committed)
            call = "commit_transaction()" if committed else "abort_transaction()"
            answer: EndTxnResponse = await self._ask(request, call)
            if answer.producer_id >= 0 and ends == identity:
                identity = (answer.producer_id, answer.producer_epoch)
        with self._lock:
            machine.ended(identity)
            self._sender.take_identity(identity)
            self._retake()

    async def _ask(self, request: InitProducerIdRequest | PrepareTransactionRequest | EndTxnRequest, call: str) -> Any:
        """Ask the transaction's coordinator until it has answered for good. Raises what it refused."""
        try:
            answer: InitProducerIdResponse | PrepareTransactionResponse | EndTxnResponse = await self._link.ask(
                request, lambda response: response.error
            )
        except TidelogError as error:
            self._fail(error, fatal=True)
            raise
        meaning = of_coordinator(answer.error)
        if meaning is not Meaning.DONE:
            message = answer.error_message or answer.error.name
            refused = error_of(answer.error, f"{call} of {self.id}: {message}")
            self._fail(refused, fatal=meaning is Meaning.GIVE_UP)
            raise refused
        return answer

    # --- when something is wrong --------------------------------------------------------------------

    def _fail(self, error: TidelogError, *, fatal: bool) -> None:
        with self._lock:
            changed = self.machine.failed(error, fatal=fatal)
            self._retake()
        if changed:
            self._drop(error)

    def _drop(self, cause: TidelogError | None) -> None:
        """What has not been answered for is not sent, or not waited for: it is aborted anyway."""
        with self._lock:
            tell = self._sender.drop_all(cause)
        for told in tell:
            told()
        self._on_room()

    def _limit_s(self, timeout_s: float | None) -> float:
        return self._config.max_block_ms / 1_000 if timeout_s is None else timeout_s


def _first_error(answer: TxnOffsetCommitResponse) -> ErrorCode:
    """What no retry mends goes before what one does."""
    codes = [result.error for result in answer.results if result.error is not ErrorCode.NONE]
    return min(codes, key=lambda code: code.retriable, default=ErrorCode.NONE)


def _closed() -> ClientClosedError:
    return ClientClosedError("this producer is closed")


def _seen(task: asyncio.Task[Any]) -> None:
    """Those who waited for it have its error; there may be none left."""
    if not task.cancelled():
        task.exception()
