"""Adds a partition of ``__consumer_offsets`` to a transaction, before the transaction's first offsets are written
there.

Once per transaction, its coordinator is asked on the client's behalf to add the partition (KIP-890). In the first
protocol, the client has added it, and the coordinator is asked whether it is there. Commits that arrive in the meantime
wait behind the first, in order. If the transaction's marker arrives in the meantime, the question ends, because the
waiting commits belong to a transaction that is over. The previous transaction's marker, which is often still on its
way, changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, ProducerEpoch, ProducerId
from tidelog.model.names import GROUP_OFFSETS_TOPIC
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.proto.calls.transaction_api import AddPartitionsTransaction, TransactionMarker, TxnOffsetCommitRequest

AddPartitions: TypeAlias = Callable[[AddPartitionsTransaction], Awaitable[Mapping[tuple[str, int], ErrorCode]]]
"""Asks the transaction's coordinator; returns an error for each partition, by topic and number."""

Settled: TypeAlias = Callable[[ErrorCode], None]
"""NONE: the partition is in the transaction."""


class Role(NamedTuple):
    """A partition of ``__consumer_offsets`` that this node leads, and the epoch."""

    partition: int
    leader_epoch: LeaderEpoch


class _Asking:
    """A question in flight, and the requests that wait for its answer."""

    __slots__ = ("epoch", "task", "waiting")

    def __init__(self, epoch: ProducerEpoch) -> None:
        self.epoch = epoch
        self.waiting: list[Settled] = []
        self.task: asyncio.Future[Mapping[tuple[str, int], ErrorCode]] | None = None


class Adding:
    """All questions in flight on a node. ``on_fatal`` is called for a bug in ``add_partitions``."""

    def __init__(self, add_partitions: AddPartitions, on_fatal: Callable[[BaseException], None]) -> None:
        self._add_partitions = add_partitions
        self._on_fatal = on_fatal
        self._asking: dict[tuple[Role, ProducerId], _Asking] = {}
        self.waiting = 0
        """Commits that wait."""

    def ask(self, role: Role, request: TxnOffsetCommitRequest, settled: Settled) -> None:
        """Call ``settled`` once, and only after this returns, unless the producer is already fenced."""
        key = (role, request.producer_id)
        asking = self._asking.get(key)
        if asking is not None and request.producer_epoch != asking.epoch:
            if request.producer_epoch < asking.epoch:
                settled(ErrorCode.INVALID_PRODUCER_EPOCH)
                return
            self._end(key, ErrorCode.INVALID_PRODUCER_EPOCH)
            asking = None
        if asking is None:
            asking = self._asking[key] = _Asking(request.producer_epoch)
            transaction = AddPartitionsTransaction(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                (GroupPartition(GROUP_OFFSETS_TOPIC, role.partition),),
                request.verify_only,
            )
            asking.task = asyncio.ensure_future(self._add_partitions(transaction))
            asking.task.add_done_callback(partial(self._answered, key, asking))
        asking.waiting.append(settled)
        self.waiting += 1

    def marker(self, role: Role, marker: TransactionMarker) -> None:
        """Note that a marker is being written: the transaction in question may be over. A marker of the second protocol
        carries the epoch after its transaction's."""
        key = (role, marker.producer_id)
        asking = self._asking.get(key)
        if asking is not None and marker.producer_epoch >= asking.epoch + (marker.transaction_version >= 2):
            self._end(key, ErrorCode.INVALID_TXN_STATE)

    def resigned(self, role: Role) -> None:
        """Note that another node leads the partition now."""
        for key in [key for key in self._asking if key[0] == role]:
            self._end(key, ErrorCode.NOT_COORDINATOR)

    def kill(self) -> None:
        """Drop everything without telling anybody."""
        for asking in self._asking.values():
            if asking.task is not None:
                asking.task.cancel()
        self._asking.clear()
        self.waiting = 0

    def _answered(
        self,
        key: tuple[Role, ProducerId],
        asking: _Asking,
        answer: asyncio.Future[Mapping[tuple[str, int], ErrorCode]],
    ) -> None:
        if answer.cancelled() or self._asking.get(key) is not asking:
            return
        failure = answer.exception()
        if failure is not None:
            self._on_fatal(failure)
            return
        self._end(key, answer.result()[GROUP_OFFSETS_TOPIC, key[0].partition])

    def _end(self, key: tuple[Role, ProducerId], error: ErrorCode) -> None:
        asking = self._asking.pop(key, None)
        if asking is None:
            return
        if asking.task is not None:
            asking.task.cancel()
        self.waiting -= len(asking.waiting)
        for settled in asking.waiting:
            settled(error)
