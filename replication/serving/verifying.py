"""A transaction's first batch in a partition waits until its coordinator knows that the partition takes part.

Otherwise a batch that arrives after its transaction's end would open a new one that nobody ever ends: the last stable
offset would never advance again (KIP-890).

=======================================  ==========================================================
a transactional batch of *p*, epoch *e*  outcome
=======================================  ==========================================================
a transaction of *p*, *e* is open here   appended immediately
it was appended before                   answered immediately with its offset
the producer state refuses it            refused immediately
*p*, *e* is being verified here          waits behind the waiting batches
*p* is being verified, an older epoch    waiting batches are refused, this one is verified
*p* is being verified, a newer epoch     INVALID_PRODUCER_EPOCH
nothing is known of *p*, sequence > 0    OUT_OF_ORDER_SEQUENCE_NUMBER, in the second protocol: each
                                         transaction has its own epoch, and begins at 0
the same, an earlier one of *e* was      OUT_OF_ORDER_SEQUENCE_NUMBER, in the first protocol: it comes
refused here, and may come again         again, and goes first
anything else                            the coordinator is asked
=======================================  ==========================================================

The coordinator is asked to add the partition (second protocol), or whether it is there (first protocol: the client has
added it). Meanwhile the partition's producer state holds a *guard*; in the second protocol, the previous transaction's
marker, which is often still on its way, does not clear it. Then, in order and immediately:

===============================  =================================================================
the answer                       the waiting batches
===============================  =================================================================
NONE, and the guard is set       are appended
NONE, and the guard was cleared  INVALID_TXN_STATE: its marker came, or the log was truncated
CONCURRENT_TRANSACTIONS          keep waiting for a retry, until their timeout: the previous
                                 transaction is being completed
an error of the request itself   NOT_ENOUGH_REPLICAS, which every client retries
any other error                  are refused with it
===============================  =================================================================

If this node stops leading meanwhile, they are refused with the error for that. Source: Kafka's
``UnifiedLog.maybeStartTransactionVerification``, ``ReplicaManager.maybeSendPartitionsToTransactionCoordinator`` and
``handleProduceAppend``. Kafka makes the client retry; here the batches wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NO_OFFSET, ProducerEpoch, ProducerId
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.proto.calls.transaction_api import AddPartitionsTransaction
from tidelog.proto.records.batches import TRANSACTIONAL, Batch
from tidelog.proto.transport.frames import ProducedPartition, ProduceRequest
from tidelog.replication.partition.replica import Replica
from tidelog.replication.partition.waiters import PendingAppend
from tidelog.storage.producers.state import ProducerStates

Verify = Callable[[AddPartitionsTransaction], Awaitable[Mapping[tuple[str, int], ErrorCode]]]
"""Asks a transaction's coordinator, wherever it is; returns an answer for each (topic, partition). Errors on the way
are answers too (COORDINATOR_NOT_AVAILABLE …); it raises nothing."""

ASK_AGAIN_FIRST_MS: Final = 2
ASK_AGAIN_MAX_MS: Final = 64
"""Longest pause between two requests while the previous transaction is being completed; pauses double."""

_RETRIED: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""Errors that the client gets as NOT_ENOUGH_REPLICAS (as in ``ReplicaManager.handleProduceAppend``)."""


@dataclass(slots=True, eq=False)
class GuardedAppend(PendingAppend):
    """One partition's unappended batches in a produce call."""

    batches: Sequence[Batch]
    size: int
    """Bytes of the batches."""


class Asking:
    """One partition's batches that wait for the coordinator's answer about one producer and epoch.

    Implements :class:`~tidelog.replication.partition.replica.Verification`, and the queue of its entries.
    """

    __slots__ = ("_owner", "begun", "ended", "epoch", "producer_id", "replica", "second_protocol", "token", "waiting")

    def __init__(
        self, owner: Verifying, replica: Replica, producer_id: int, epoch: int, *, second_protocol: bool
    ) -> None:
        self._owner = owner
        self.replica = replica
        self.producer_id = producer_id
        self.epoch = epoch
        self.second_protocol = second_protocol
        self.token = replica.partition.log.producers.set_guard(producer_id, epoch + second_protocol)
        self.waiting: list[GuardedAppend] = []
        self.begun = self.ended = False

    @property
    def stands(self) -> bool:
        """Whether nothing of the producer's was appended since, and nothing truncated."""
        return self.replica.partition.log.producers.guard(self.producer_id) is self.token

    def add(self, entry: PendingAppend) -> None:
        assert isinstance(entry, GuardedAppend)
        self.waiting.append(entry)

    def discard(self, entry: PendingAppend) -> None:
        assert isinstance(entry, GuardedAppend)
        if entry in self.waiting:  # otherwise the caller that ended it was about to append it
            self.waiting.remove(entry)

    def role_left(self, error: ErrorCode) -> None:
        self._owner.refuse(self, error, "the partition has moved while the transaction's coordinator was asked")

    def timed_out(self, entry: PendingAppend) -> ProducedPartition:
        text = "not appended: the transaction's coordinator has not taken the partition in in time"
        return self.replica.refused(ErrorCode.REQUEST_TIMED_OUT, text)


class Verifying:
    """All pending verifications of a node; at most ``askings_max``."""

    def __init__(
        self,
        verify: Verify | None,
        append: Callable[[GuardedAppend, Replica], bool],
        appended: Callable[[Replica], None],
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
        *,
        askings_max: int,
    ) -> None:
        """``append`` appends an entry's batches and answers or queues it; it returns whether the log grew, and then
        ``appended`` is called. Without ``verify`` no transaction can begin here."""
        self.verify = verify
        self._append = append
        self._appended = appended
        self._spawn = spawn
        self._askings_max = askings_max
        self.askings = 0
        self.asked = 0
        """Requests so far."""

    def look(
        self,
        replica: Replica,
        request: ProduceRequest,
        batches: Sequence[Batch],
        now_ms: int,
        *,
        first_protocol: bool,
    ) -> Asking | Refusal | None:
        """Check batches of which at least one is transactional: append them immediately (``None``), let them wait for
        an answer, or refuse them. A new verification has no entries yet; :meth:`ask` starts it."""
        producer_id, epoch = batches[0].producer_id, batches[0].producer_epoch
        refusal = _refuse_call(request, batches)
        if refusal is not None:
            return refusal
        if replica.partition.leading is None:
            return None
        producers = replica.partition.log.producers
        producer = producers.get(producer_id)
        if producer is not None and producer.epoch == epoch and producer.transaction_offset >= 0:
            return None
        found = replica.verifying.get(producer_id)
        if isinstance(found, Asking):
            if epoch < found.epoch:
                return Refusal(
                    ErrorCode.INVALID_PRODUCER_EPOCH,
                    f"expected epoch {found.epoch} or later from producer {producer_id}, found {epoch}",
                )
            if epoch > found.epoch:
                self.refuse(found, ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {producer_id} has gone on to {epoch}")
            elif found.stands:
                if first_protocol:
                    producers.waits(batches[0], now_ms)
                return found
            else:
                self._refuse_cleared(found)
        known = producers.check(batches)
        if isinstance(known, Refusal):
            return known
        if known is not None and NO_OFFSET not in known:
            return None
        refusal = None if first_protocol else refuse_late_start(producers, batches[0])
        if refusal is not None:
            return refusal
        if self.verify is None:
            return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this node can ask no coordinator of transactions")
        if self.askings >= self._askings_max:
            return Refusal(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"expected at most {self._askings_max} producers to begin a transaction at once on this node",
            )
        if first_protocol:
            producers.waits(batches[0], now_ms)
        asking = Asking(self, replica, producer_id, epoch, second_protocol=not first_protocol)
        replica.verifying[producer_id] = asking
        self.askings += 1
        return asking

    def ask(self, transactional_id: str, askings: Sequence[Asking]) -> None:
        """Start one request's verifications, for one producer and epoch, or a few."""
        by_producer: dict[tuple[int, int], list[Asking]] = {}
        for asking in askings:
            if asking.begun:
                continue
            asking.begun = True
            by_producer.setdefault((asking.producer_id, asking.epoch), []).append(asking)
        for group in by_producer.values():
            self._spawn(self._ask(transactional_id, group), "transaction verification")

    async def _ask(self, transactional_id: str, askings: Sequence[Asking]) -> None:
        assert self.verify is not None
        pause_ms = ASK_AGAIN_FIRST_MS
        first = askings[0]
        while True:
            for asking in askings:
                if not asking.waiting:
                    self._end(asking)
            askings = [asking for asking in askings if not asking.ended]
            if not askings:
                return
            self.asked += 1
            answers = await self.verify(
                AddPartitionsTransaction(
                    transactional_id,
                    ProducerId(first.producer_id),
                    ProducerEpoch(first.epoch),
                    tuple(GroupPartition(*_name(asking)) for asking in askings),
                    verify_only=not first.second_protocol,
                )
            )
            again: list[Asking] = []
            for asking in askings:
                if asking.ended:
                    continue
                code = answers.get(_name(asking), ErrorCode.UNKNOWN_SERVER_ERROR)
                if code is ErrorCode.CONCURRENT_TRANSACTIONS and asking.stands:
                    again.append(asking)
                else:
                    self._settle(asking, code)
            askings = again
            if askings:
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, ASK_AGAIN_MAX_MS)

    def _settle(self, asking: Asking, code: ErrorCode) -> None:
        """Apply the coordinator's final answer."""
        if code is not ErrorCode.NONE:
            text = f"the transaction's coordinator has not taken the partition in: {code.name}"
            self.refuse(asking, ErrorCode.NOT_ENOUGH_REPLICAS if code in _RETRIED else code, text)
            return
        if not asking.stands:
            self._refuse_cleared(asking)
            return
        waiting, replica = self._end(asking, keep_guard=True), asking.replica
        grown = False
        for entry in waiting:
            producers = replica.partition.log.producers
            late = refuse_late_start(producers, entry.batches[0]) if asking.second_protocol else None
            if late is not None:
                entry.answer(replica.refused(late.code, late.message))
            elif self._append(entry, replica):
                grown = True
        replica.partition.log.producers.clear_guard(asking.producer_id, asking.token)
        if grown:
            self._appended(replica)

    def refuse(self, asking: Asking, error: ErrorCode, text: str) -> None:
        """Answer all waiting entries, and forget the verification."""
        replica = asking.replica
        for entry in self._end(asking):
            entry.answer(replica.refused(error, text))

    def _refuse_cleared(self, asking: Asking) -> None:
        text = "the transaction has ended, or the log was cut off, while its coordinator was asked"
        self.refuse(asking, ErrorCode.INVALID_TXN_STATE, text)

    def _end(self, asking: Asking, *, keep_guard: bool = False) -> Sequence[GuardedAppend]:
        if asking.ended:
            return ()
        asking.ended = True
        self.askings -= 1
        replica = asking.replica
        if replica.verifying.get(asking.producer_id) is asking:
            del replica.verifying[asking.producer_id]
        if not keep_guard:
            replica.partition.log.producers.clear_guard(asking.producer_id, asking.token)
        waiting, asking.waiting = asking.waiting, []
        return waiting


def is_transactional(batches: Sequence[Batch]) -> bool:
    """Return whether any batch belongs to a transaction."""
    for batch in batches:  # noqa: SIM110 - on the path of every produce, where a generator costs three times as much
        if batch.attributes & TRANSACTIONAL:
            return True
    return False


def refuse_late_start(producers: ProducerStates, batch: Batch) -> Refusal | None:
    """Return why a batch cannot be the first one of a transaction of the second protocol: an earlier one is missing."""
    if batch.base_sequence == 0 or producers.get(batch.producer_id) is not None:
        return None
    return Refusal(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"expected sequence 0 at the begin of a transaction of producer {batch.producer_id}, "
        f"found {batch.base_sequence}",
    )


def _refuse_call(request: ProduceRequest, batches: Sequence[Batch]) -> Refusal | None:
    first = batches[0]
    for batch in batches:
        if not batch.is_transactional or batch.producer_id < 0:
            return Refusal(
                ErrorCode.INVALID_TXN_STATE, "expected transactional batches of one producer alone, found others"
            )
        if (batch.producer_id, batch.producer_epoch) != (first.producer_id, first.producer_epoch):
            return Refusal(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"expected batches of producer {first.producer_id} alone, found one of {batch.producer_id}",
            )
    if request.transactional_id is None:
        return Refusal(
            ErrorCode.INVALID_TXN_STATE, "expected a transactional id with a transactional batch, found none"
        )
    if request.acks != -1:
        return Refusal(
            ErrorCode.INVALID_REQUIRED_ACKS, f"expected acks -1 with a transactional batch, found {request.acks}"
        )
    return None


def _name(asking: Asking) -> tuple[str, int]:
    state = asking.replica.partition.state
    return state.topic, state.partition
