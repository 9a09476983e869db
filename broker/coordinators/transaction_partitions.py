"""Adds partitions to transactions on behalf of clients: the partition's leader asks the coordinator.

Source: KIP-890, ``AddPartitionsToTxnManager``. Questions from one turn of the event loop go to each coordinator's
broker in one call, which names each transaction once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from tidelog.broker.coordinators.peer_batches import PeerBatches
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, NodeId
from tidelog.model.names import TRANSACTION_STATE_TOPIC
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.proto.calls.transaction_api import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsTransaction,
)
from tidelog.proto.transport.network import CallTimeout, Connection, ConnectionLost

UNDER_WAY_MAX: Final = 64
"""Maximum calls in flight to one broker; many of them wait there for a transaction to complete."""
ASK_TIMEOUT_S: Final = 5.0
"""Longer than a coordinator lets such a request wait."""

Answers = Mapping[tuple[str, int], ErrorCode]


class _Question(NamedTuple):
    transaction: AddPartitionsTransaction
    answered: asyncio.Future[Answers]


class Coordinator(NamedTuple):
    """This node's own coordinator of transactions."""

    partition_for: Callable[[str], int]
    """Returns the partition whose leader coordinates a transactional id."""
    ask: Callable[[AddPartitionsToTxnRequest], Awaitable[AddPartitionsToTxnResponse]]


class TransactionPartitions:
    """Asks coordinators for all partitions that this node leads.

    The leaders of partitions ask here, and the coordinator writes to such partitions. So this object is created before
    either, and completed once by :meth:`coordinated_by`, before there is metadata to act on.
    """

    def __init__(
        self,
        node_id: NodeId,
        view: MetadataView,
        connection: Callable[[NodeId], Connection | None],
        on_fatal: Callable[[BaseException], None],
        *,
        verifies: bool,
    ) -> None:
        """``verifies``: whether to verify partitions of the first protocol
        (``transaction.partition.verification.enable``)."""
        self._node_id = node_id
        self._view = view
        self._connection = connection
        self._coordinator: Coordinator | None = None
        self._verifies = verifies
        self._batches = PeerBatches[_Question](self._send, on_fatal, under_way_max=UNDER_WAY_MAX)
        self._closed = False
        self.asked = 0
        self.failures = 0
        """Partitions that were not added, or not found there."""

    def coordinated_by(self, coordinator: Coordinator) -> None:
        """Complete this object, once."""
        assert self._coordinator is None, "completed twice"
        self._coordinator = coordinator

    def _here(self) -> Coordinator:
        assert self._coordinator is not None, "expected coordinated_by() before the first question"
        return self._coordinator

    def ask(self, transaction: AddPartitionsTransaction) -> asyncio.Future[Answers]:
        """Return an error for each partition of ``transaction``, NONE if it is part of it. Raises nothing.

        COORDINATOR_NOT_AVAILABLE and NETWORK_EXCEPTION if the coordinator cannot be asked, INVALID_PRODUCER_EPOCH for a
        fenced producer; otherwise what the coordinator answered.
        """
        answered: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        if transaction.verify_only and not self._verifies:
            answered.set_result(_same(transaction, ErrorCode.NONE))
            return answered
        topic = self._view.image.topic(TRANSACTION_STATE_TOPIC)
        found = (
            None if topic is None else topic.partitions.get(self._here().partition_for(transaction.transactional_id))
        )
        if found is None or found.leader == NO_NODE or self._closed:
            answered.set_result(_same(transaction, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return answered
        self.asked += 1
        self._batches.put(found.leader, _Question(transaction, answered))
        return answered

    def close(self) -> None:
        self._closed = True
        self._batches.close()

    async def _send(self, node_id: NodeId, questions: list[_Question]) -> None:
        asked: dict[tuple[str, int, int, bool], list[_Question]] = {}
        for question in questions:
            given = question.transaction
            key = (given.transactional_id, given.producer_id, given.producer_epoch, given.verify_only)
            asked.setdefault(key, []).append(question)
        transactions = tuple(_together(same) for same in asked.values())
        answers = await self._ask(node_id, transactions)
        for same, found in zip(asked.values(), answers, strict=True):
            for question in same:
                mine = {
                    (item.topic, item.partition): found.get(
                        (item.topic, item.partition), ErrorCode.UNKNOWN_SERVER_ERROR
                    )
                    for item in question.transaction.partitions
                }
                self.failures += sum(code is not ErrorCode.NONE for code in mine.values())
                if not question.answered.done():
                    question.answered.set_result(mine)

    async def _ask(self, node_id: NodeId, transactions: tuple[AddPartitionsTransaction, ...]) -> list[Answers]:
        request = AddPartitionsToTxnRequest(transactions)
        try:
            if node_id == self._node_id:
                response = await self._here().ask(request)
            else:
                connection = self._connection(node_id)
                if connection is None:
                    return [_same(each, ErrorCode.COORDINATOR_NOT_AVAILABLE) for each in transactions]
                response = await connection.call(request, timeout_s=ASK_TIMEOUT_S)
        except (ConnectionLost, CallTimeout):
            return [_same(each, ErrorCode.NETWORK_EXCEPTION) for each in transactions]
        if response.error is not ErrorCode.NONE:
            return [_same(each, response.error) for each in transactions]
        if len(response.transactions) != len(transactions):
            return [_same(each, ErrorCode.UNKNOWN_SERVER_ERROR) for each in transactions]
        return [
            {(result.topic, result.partition): _told(result.error) for result in found.results}
            for found in response.transactions
        ]


def _together(same: list[_Question]) -> AddPartitionsTransaction:
    """Merge several questions about one transaction."""
    first = same[0].transaction
    if len(same) == 1:
        return first
    partitions: dict[GroupPartition, None] = {}
    for question in same:
        partitions.update(dict.fromkeys(question.transaction.partitions))
    return AddPartitionsTransaction(
        first.transactional_id, first.producer_id, first.producer_epoch, tuple(partitions), first.verify_only
    )


def _same(transaction: AddPartitionsTransaction, error: ErrorCode) -> Answers:
    return {(item.topic, item.partition): error for item in transaction.partitions}


def _told(error: ErrorCode) -> ErrorCode:
    """Map an error: producers expect INVALID_PRODUCER_EPOCH from a partition's leader
    (``AddPartitionsToTxnManager``)."""
    return ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED else error
