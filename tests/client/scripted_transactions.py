"""A transaction coordinator for the SDK's tests, and what leaders keep of transactions: the second protocol
(KIP-890) in memory, with errors and lost answers where a test wants them.

The coordinator's rules, as far as a client can see them: each end takes the next epoch; EndTxn asked again is
answered alike; a partition joins with its first batch, refused under an old epoch and while markers are due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import ProducerEpoch, ProducerId
from tidelog.proto.calls.group_api import OffsetCommitResult
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
from tidelog.proto.records.batches import Batch
from tidelog.proto.records.control_batches import ControlKind, encode_control_batch
from tidelog.proto.transport.network import CallContext

from .scripted_groups import ScriptedGroups

Identity = tuple[int, int]
LOST = "lost"
"""A verdict: do it, but let the answer be lost."""


@dataclass(eq=False)
class Transaction:
    identity: Identity
    state: str = "Empty"
    partitions: dict[tuple[str, int], None] = field(default_factory=dict)
    offsets: dict[str, dict[tuple[str, int], tuple[int, int, str]]] = field(default_factory=dict)
    previous: tuple[Identity, bool] | None = None
    """Which identity ended last, and whether with a commit."""
    told: Identity | None = None
    """The identity that its producer gets next."""
    following: Identity | None = None
    """Given out while a transaction was kept prepared."""
    marking: bool = False
    timeout_s: float = 60.0

    def open(self) -> bool:
        """Something joins; whether it is the first."""
        first, self.state = self.state != "Ongoing", "Ongoing"
        return first


class Marked(Protocol):
    """A partition, as far as transactions end in it."""

    def mark(self, producer_id: int, epoch: int, *, committed: bool) -> None: ...


class Surroundings(Protocol):
    """The parts of the cluster that transactions need."""

    groups: ScriptedGroups
    grown: asyncio.Event

    @property
    def partitions(self) -> Mapping[tuple[str, int], Marked]: ...

    async def idempotent_id(self, request: InitProducerIdRequest) -> InitProducerIdResponse: ...


class ScriptedTransactions:
    def __init__(self, cluster: Surroundings) -> None:
        self.cluster = cluster
        cluster.groups.unstable = lambda group, at: any(at in one.offsets.get(group, {}) for one in self.all.values())
        self.node = 1
        self.all: dict[str, Transaction] = {}
        self.judge: Callable[[Any], ErrorCode | str | None] | None = None
        self.seen: list[object] = []
        self.next_producer_id = 5_000
        self.epoch_max = 0x7FFE
        self.markers_take_s = 0.0
        self.guard: Callable[[str, int, Batch], ErrorCode | None] | None = None
        """Asked about a partition's first batch in a transaction."""
        self.ended: list[tuple[str, bool]] = []

    def handlers(self, node: int) -> dict[type[Any], Any]:
        def on(handle: Callable[[Any], Any], refuse: Callable[[Any, ErrorCode], Any], group: bool = False) -> Any:
            async def handler(request: object, _: CallContext) -> Any:
                if isinstance(request, InitProducerIdRequest) and request.transactional_id is None:
                    return await self.cluster.idempotent_id(request)
                self.seen.append(request)
                verdict = self.judge(request) if self.judge is not None else None
                if verdict is None and node != (self.cluster.groups.node if group else self.node):
                    verdict = ErrorCode.NOT_COORDINATOR
                if isinstance(verdict, ErrorCode):
                    return refuse(request, verdict)
                answer = await handle(request)
                if verdict == LOST:
                    await asyncio.sleep(100_000)
                return answer

            return handler

        return {
            InitProducerIdRequest: on(self._init, lambda _, code: InitProducerIdResponse(code)),
            EndTxnRequest: on(self._end, lambda _, code: EndTxnResponse(code)),
            PrepareTransactionRequest: on(self._prepare, lambda _, code: PrepareTransactionResponse(code)),
            TxnOffsetCommitRequest: on(self._commit_offsets, _refuse_offsets, group=True),
        }

    # --- the coordinator --------------------------------------------------------------------------------

    async def _init(self, request: InitProducerIdRequest) -> InitProducerIdResponse:
        name = request.transactional_id
        assert name is not None
        found = self.all.get(name)
        if found is not None:
            found.timeout_s = request.transaction_timeout_ms / 1_000
        else:
            found = self.all[name] = Transaction(self._new_id(), timeout_s=request.transaction_timeout_ms / 1_000)
            return InitProducerIdResponse(ErrorCode.NONE, *_typed(found.identity))
        if found.marking:
            return InitProducerIdResponse(ErrorCode.CONCURRENT_TRANSACTIONS)
        if found.state == "Prepared" and request.keep_prepared_transaction:
            found.following = self._new_id()
            ongoing = _typed(found.identity)
            return InitProducerIdResponse(ErrorCode.NONE, *_typed(found.following), "", *ongoing)
        if found.state in ("Ongoing", "Prepared"):
            self._decide(name, found, committed=False)
            found.previous = None
            return InitProducerIdResponse(ErrorCode.CONCURRENT_TRANSACTIONS)
        found.identity = self._next(found.identity)
        found.previous = None
        return InitProducerIdResponse(ErrorCode.NONE, *_typed(found.identity))

    async def _prepare(self, request: PrepareTransactionRequest) -> PrepareTransactionResponse:
        found, code = self._of(request)
        if found is not None:
            found.state = "Prepared"
        return PrepareTransactionResponse(code)

    async def _end(self, request: EndTxnRequest) -> EndTxnResponse:
        known = self.all.get(request.transactional_id)
        asker = (request.producer_id, request.producer_epoch)
        if known is not None and known.previous is not None and known.previous[0] == asker:
            if known.previous[1] == request.committed:
                assert known.told is not None
                return EndTxnResponse(ErrorCode.NONE, *_typed(known.told))
            return EndTxnResponse(ErrorCode.INVALID_TXN_STATE)
        found, code = self._of(request)
        if found is None:
            return EndTxnResponse(code)
        if found.state == "Empty" and request.committed:
            return EndTxnResponse(ErrorCode.INVALID_TXN_STATE)
        self._decide(request.transactional_id, found, committed=request.committed)
        assert found.told is not None
        return EndTxnResponse(ErrorCode.NONE, *_typed(found.told))

    def _of(
        self, request: EndTxnRequest | PrepareTransactionRequest | TxnOffsetCommitRequest
    ) -> tuple[Transaction | None, ErrorCode]:
        found = self.all.get(request.transactional_id)
        if found is None or found.identity[0] != request.producer_id:
            return None, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if found.identity[1] != request.producer_epoch:
            return None, ErrorCode.PRODUCER_FENCED
        if found.marking:
            return None, ErrorCode.CONCURRENT_TRANSACTIONS
        return found, ErrorCode.NONE

    def _decide(self, name: str, found: Transaction, *, committed: bool) -> None:
        ended = found.identity
        self.ended.append((name, committed))
        found.previous = (ended, committed)
        found.identity = found.following or self._next(ended)
        found.told = (ended[0], ended[1] + 1) if found.following else found.identity
        found.following = None
        found.marking = True
        asyncio.get_running_loop().call_later(self.markers_take_s, self._mark, found, ended, committed)
        if not self.markers_take_s:
            self._mark(found, ended, committed)

    def _mark(self, found: Transaction, ended: Identity, committed: bool) -> None:
        if not found.marking:
            return
        epoch = ended[1] + 1
        for at in found.partitions:
            self.cluster.partitions[at].mark(ended[0], epoch, committed=committed)
        for group, offsets in found.offsets.items():
            if committed:
                self.cluster.groups.group(group).offsets.update(offsets)
        found.partitions.clear()
        found.offsets.clear()
        found.state = "Empty"
        found.marking = False
        self.cluster.grown.set()

    def _opened(self, name: str, found: Transaction) -> None:
        def over(identity: Identity) -> None:
            if found.state == "Ongoing" and not found.marking and found.identity == identity:
                self.time_out(name)

        if found.open():
            asyncio.get_running_loop().call_later(found.timeout_s, over, found.identity)

    def time_out(self, name: str) -> None:
        """The transaction was open for too long."""
        found = self.all[name]
        self._decide(name, found, committed=False)

    def _new_id(self) -> Identity:
        self.next_producer_id += 1
        return self.next_producer_id, 0

    def _next(self, identity: Identity) -> Identity:
        return (identity[0], identity[1] + 1) if identity[1] < self.epoch_max else self._new_id()

    # --- leaders ------------------------------------------------------------------------------------------

    def join(self, name: str | None, topic: str, partition: int, batch: Batch) -> ErrorCode:
        """A leader, about a batch of a transaction that it has no open one for."""
        verdict = self.guard(topic, partition, batch) if self.guard is not None else None
        if verdict is not None:
            return verdict
        found = self.all.get(name or "")
        if found is None or found.identity[0] != batch.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if found.identity[1] != batch.producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if found.marking:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if found.state == "Prepared":
            return ErrorCode.INVALID_TXN_STATE
        assert name is not None
        self._opened(name, found)
        found.partitions[topic, partition] = None
        return ErrorCode.NONE

    # --- the group's coordinator ------------------------------------------------------------------------

    async def _commit_offsets(self, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
        group = self.cluster.groups.group(request.group_id)
        code = ErrorCode.NONE
        if request.generation_id >= 0 or group.members:
            code = self.cluster.groups._check(
                group, request.member_id, request.group_instance_id, request.generation_id
            )
        found, refused = self._of(request)
        if code is ErrorCode.NONE:
            code = refused
        if code is not ErrorCode.NONE or found is None:
            return _refuse_offsets(request, code)
        self._opened(request.transactional_id, found)
        pending = found.offsets.setdefault(request.group_id, {})
        for p in request.partitions:
            pending[p.topic, p.partition] = (p.offset, p.leader_epoch, p.metadata)
        return _refuse_offsets(request, ErrorCode.NONE)


def marker(producer_id: int, epoch: int, *, committed: bool) -> bytearray:
    kind = ControlKind.COMMIT if committed else ControlKind.ABORT
    return encode_control_batch(kind, timestamp=0, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0)


def _typed(identity: Identity) -> tuple[ProducerId, ProducerEpoch]:
    return ProducerId(identity[0]), ProducerEpoch(identity[1])


def _refuse_offsets(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(tuple(OffsetCommitResult(p.topic, p.partition, code) for p in request.partitions))
