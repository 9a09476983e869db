"""Leaders' questions to coordinators: how they are grouped, and the error for each failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.broker.coordinators.transaction_partitions import Coordinator, TransactionPartitions
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, NodeId, ProducerEpoch, ProducerId
from tidelog.model.names import TRANSACTION_STATE_TOPIC
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.proto.calls.transaction_api import (
    AddedPartition,
    AddedTransaction,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsTransaction,
)
from tidelog.proto.transport.network import CallTimeout, ConnectionLost

NONE = ErrorCode.NONE


class Coordinators:
    """Ids beginning with ``1`` are coordinated by node 1, and so on."""

    def __init__(self) -> None:
        self.leaders = {1: 1, 2: 2, 3: NO_NODE}
        topic = SimpleNamespace(partitions=self)
        self.image = SimpleNamespace(topic=lambda name: topic if name == TRANSACTION_STATE_TOPIC else None)
        self.asked: list[tuple[int, AddPartitionsToTxnRequest]] = []
        self.trouble: Exception | ErrorCode | None = None
        self.answer = NONE
        self.bugs: list[BaseException] = []

    def get(self, partition: int) -> Any:
        leader = self.leaders.get(partition)
        return None if leader is None else SimpleNamespace(leader=NodeId(leader))

    def connection(self, node_id: NodeId) -> Any:
        async def call(request: AddPartitionsToTxnRequest, *, timeout_s: float) -> AddPartitionsToTxnResponse:
            return await self.ask(node_id, request)

        return SimpleNamespace(call=call)

    async def ask(self, node_id: int, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        self.asked.append((node_id, request))
        if isinstance(self.trouble, Exception):
            raise self.trouble
        if self.trouble is not None:
            return AddPartitionsToTxnResponse(self.trouble)
        return AddPartitionsToTxnResponse(
            NONE,
            tuple(
                AddedTransaction(
                    given.transactional_id,
                    tuple(AddedPartition(at.topic, at.partition, self.answer) for at in given.partitions),
                )
                for given in request.transactions
            ),
        )


@pytest.fixture
def coordinators() -> Coordinators:
    return Coordinators()


@pytest.fixture
async def partitions(coordinators: Coordinators) -> AsyncIterator[TransactionPartitions]:
    made = _made(coordinators)
    yield made
    made.close()
    assert not coordinators.bugs


def _made(coordinators: Coordinators, *, verifies: bool = True) -> TransactionPartitions:
    made = TransactionPartitions(
        NodeId(1),
        coordinators,  # type: ignore[arg-type]
        coordinators.connection,
        coordinators.bugs.append,
        verifies=verifies,
    )
    made.coordinated_by(
        Coordinator(lambda transactional_id: int(transactional_id[0]), lambda request: coordinators.ask(1, request))
    )
    return made


def question(
    name: str, *numbers: int, producer: int = 7, epoch: int = 0, verify_only: bool = False
) -> AddPartitionsTransaction:
    places = tuple(GroupPartition("t", number) for number in numbers)
    return AddPartitionsTransaction(name, ProducerId(producer), ProducerEpoch(epoch), places, verify_only)


async def test_what_asks_at_once_goes_to_each_coordinator_in_one_call(
    partitions: TransactionPartitions, coordinators: Coordinators
) -> None:
    answers = await asyncio.gather(
        partitions.ask(question("1x", 0)),
        partitions.ask(question("1x", 1, 0)),
        partitions.ask(question("1x", 2, epoch=1)),
        partitions.ask(question("1y", 3, producer=8)),
        partitions.ask(question("2z", 4, producer=9)),
    )
    assert list(answers[:2]) == [{("t", 0): NONE}, {("t", 1): NONE, ("t", 0): NONE}]
    assert all(set(answer.values()) == {NONE} for answer in answers)
    found = {
        node: [(given.transactional_id, given.producer_epoch, [at.partition for at in given.partitions])
               for given in request.transactions]
        for node, request in coordinators.asked
    }  # fmt: skip
    assert found == {1: [("1x", 0, [0, 1]), ("1x", 1, [2]), ("1y", 0, [3])], 2: [("2z", 0, [4])]}
    assert len(coordinators.asked) == 2


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (ConnectionLost("gone"), ErrorCode.NETWORK_EXCEPTION),
        (CallTimeout("late"), ErrorCode.NETWORK_EXCEPTION),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
async def test_trouble_on_the_way_is_an_answer(
    partitions: TransactionPartitions, coordinators: Coordinators, trouble: Any, told: ErrorCode
) -> None:
    coordinators.trouble = trouble
    assert await partitions.ask(question("2x", 0, 1)) == {("t", 0): told, ("t", 1): told}
    assert partitions.failures == 2


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
async def test_a_fenced_producer_is_told_what_it_expects_of_a_leader(
    partitions: TransactionPartitions, coordinators: Coordinators, answer: ErrorCode, told: ErrorCode
) -> None:
    coordinators.answer = answer
    assert await partitions.ask(question("1x", 0)) == {("t", 0): told}


@pytest.mark.parametrize("name", ["3x", "9x"])
async def test_without_a_coordinator_nobody_is_asked(
    partitions: TransactionPartitions, coordinators: Coordinators, name: str
) -> None:
    assert await partitions.ask(question(name, 0)) == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert not coordinators.asked


async def test_the_first_protocol_is_not_verified_where_the_operator_says_so(coordinators: Coordinators) -> None:
    made = _made(coordinators, verifies=False)
    assert await made.ask(question("1x", 0, verify_only=True)) == {("t", 0): NONE}
    assert not coordinators.asked
    await made.ask(question("1x", 0))
    assert len(coordinators.asked) == 1
    made.close()


async def test_verifying_and_adding_are_asked_apart(
    partitions: TransactionPartitions, coordinators: Coordinators
) -> None:
    await asyncio.gather(partitions.ask(question("1x", 0, verify_only=True)), partitions.ask(question("1x", 1)))
    (request,) = [request for _, request in coordinators.asked]
    assert [given.verify_only for given in request.transactions] == [True, False]
