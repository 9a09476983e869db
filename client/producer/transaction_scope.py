"""``with producer.transaction():``, alone or together with the consumer that reads its input.

The end of the block commits; an exception that leaves it aborts and propagates. With a consumer, the transaction also
commits everything that the consumer has returned since the last one; after an abort, its next poll returns the same
records again. Source for the rules: KIP-447, and Kafka's ``ExactlyOnceMessageProcessor`` example.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from tidelog.client.consumer.core import ConsumerCore
from tidelog.client.errors import RequestTimedOutError, TidelogError
from tidelog.client.producer.transaction_state import TransactionState
from tidelog.client.producer.transactions import CLOSE_ABORT_S, Transactions

if TYPE_CHECKING:
    from tidelog.client.background import BackgroundLoop

P = TypeVar("P")

_OPEN: Final = (TransactionState.IN_TRANSACTION, TransactionState.ABORTABLE_ERROR)

log = logging.getLogger(__name__)


class Scope:
    """One transaction from beginning to end; runs where the producer's IO does."""

    def __init__(self, transactions: Transactions, consumer: ConsumerCore | None) -> None:
        self._transactions = transactions
        self._consumer = consumer
        if consumer is not None:
            consumer.require_uncommitted()

    def _is_open(self) -> bool:
        return self._transactions.state in _OPEN

    async def enter(self) -> None:
        """Begin; initialize transactions if necessary, and wait for an abort in progress."""
        transactions = self._transactions
        if transactions.state in (TransactionState.UNINITIALIZED, TransactionState.INITIALIZING):
            await transactions.initialize(None, keep_prepared=False)
        elif transactions.state is TransactionState.ABORTING:
            await transactions.abort(None)
        transactions.begin()

    async def leave(self, error: BaseException | None) -> None:
        """End it, unless the block has already ended it, or has prepared it for a decision elsewhere."""
        if error is not None:
            await self._undo(error)
            return
        transactions, consumer = self._transactions, self._consumer
        if transactions.state is TransactionState.COMMITTING:
            await transactions.commit(None)
            return
        if transactions.state is TransactionState.FATAL_ERROR:
            spoilt = transactions.machine.refusal("commit_transaction()")
            await self._undo(spoilt)
            raise spoilt
        if not self._is_open():
            return
        try:
            if consumer is None:
                await transactions.commit(None)
                return
            try:
                group = consumer.require_group().metadata()
                offsets = consumer.consumed(group)
            except TidelogError as failure:
                transactions.spoil(failure)
                raise
            await transactions.send_offsets(offsets, group, None)
            await transactions.commit(None)
        except RequestTimedOutError as failure:
            if not self._is_open():
                failure.add_note("not known yet whether it was committed: call commit_transaction() to keep waiting")
                raise
            await self._undo(failure)
            raise
        except TidelogError as failure:
            await self._undo(failure)
            raise
        consumer.settled_with(offsets)

    async def _undo(self, error: BaseException) -> None:
        """Abort, and give the consumer's records back. Keep ``error``, unless it seemed to end one transaction and
        turns out to end all of them."""
        transactions = self._transactions
        fatal: TidelogError | None = None
        try:
            if self._is_open():
                await transactions.abort(None if isinstance(error, Exception) else CLOSE_ABORT_S)
        except TidelogError as failure:
            error.add_note(f"and aborting the transaction failed: {failure}")
            fatal = failure if failure.fatal else None
        if self._consumer is not None and transactions.state is not TransactionState.PREPARED:
            self._consumer.rewind()
        if fatal is not None and isinstance(error, TidelogError) and error.abortable:
            raise fatal from error


class AsyncTransaction(Generic[P]):
    """What ``AsyncProducer.transaction()`` returns; entering it gives the producer."""

    def __init__(self, producer: P, scope: Scope) -> None:
        self._producer = producer
        self._scope = scope

    async def __aenter__(self) -> P:
        await self._scope.enter()
        return self._producer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._scope.leave(error)


class BlockingTransaction(Generic[P]):
    """What ``Producer.transaction()`` returns; entering it gives the producer."""

    def __init__(self, producer: P, scope: Scope, background: BackgroundLoop) -> None:
        self._producer = producer
        self._scope = scope
        self._background = background

    def __enter__(self) -> P:
        self._background.run(self._scope.enter())
        return self._producer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._background.run(self._scope.leave(error))
