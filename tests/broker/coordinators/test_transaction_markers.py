"""The sender of markers by itself: batches, retries, moving leaders, deleted partitions, and silence when idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.broker.coordinators.markers import UNDER_WAY_MAX, TransactionMarkers
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, NodeId, ProducerEpoch, ProducerId
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.proto.calls.transaction_api import (
    AddedPartition,
    TransactionMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenMarker,
)
from tidelog.proto.transport.network import CallTimeout, ConnectionLost

NONE = ErrorCode.NONE


class Brokers:
    """Each partition's leader, and the requests to brokers; ``errors`` for the next answers, by partition."""

    def __init__(self) -> None:
        self.leaders = {0: 1, 1: 2, 2: 2, 3: 3}
        self.image = SimpleNamespace(topic=self._topic)
        self.sent: list[tuple[int, WriteTxnMarkersRequest]] = []
        self.errors: dict[int, list[Any]] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.told: list[tuple[int, int, ErrorCode]] = []
        self.bugs: list[BaseException] = []

    def _topic(self, name: str) -> Any:
        if name != "t":
            return None
        return SimpleNamespace(
            partitions={number: SimpleNamespace(leader=NodeId(leader)) for number, leader in self.leaders.items()}
        )

    def connection(self, node_id: NodeId) -> Any:
        async def call(request: WriteTxnMarkersRequest, *, timeout_s: float) -> WriteTxnMarkersResponse:
            return await self.write(node_id, request)

        return SimpleNamespace(call=call)

    async def write(self, node_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        self.sent.append((node_id, request))
        await self.gate.wait()
        markers = []
        for marker in request.markers:
            results = []
            for at in marker.partitions:
                error = self.errors[at.partition].pop(0) if self.errors.get(at.partition) else NONE
                if isinstance(error, Exception):
                    raise error
                results.append(AddedPartition(at.topic, at.partition, error))
            markers.append(WrittenMarker(marker.producer_id, tuple(results)))
        return WriteTxnMarkersResponse(tuple(markers))

    def written(self, producer: int) -> Callable[[Iterable[GroupPartition], ErrorCode], None]:
        def heard(partitions: Iterable[GroupPartition], error: ErrorCode) -> None:
            self.told += [(producer, at.partition, error) for at in partitions]

        return heard


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
async def markers(brokers: Brokers) -> AsyncIterator[TransactionMarkers]:
    async def here(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        return await brokers.write(1, request)

    made = TransactionMarkers(NodeId(1), brokers, brokers.connection, here, brokers.bugs.append)  # type: ignore[arg-type]
    yield made
    made.close()
    assert not brokers.bugs


def marker(producer: int, *partitions: int, topic: str = "t") -> TransactionMarker:
    places = tuple(GroupPartition(topic, number) for number in partitions)
    return TransactionMarker(ProducerId(producer), ProducerEpoch(1), True, 5, places)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):
        while not condition():
            await asyncio.sleep(0.001)


async def test_one_call_to_each_leader_for_all_that_comes_at_once(
    markers: TransactionMarkers, brokers: Brokers
) -> None:
    markers.send(marker(7, 0, 1, 2, 3), brokers.written(7))
    markers.send(marker(8, 1), brokers.written(8))
    assert brokers.told == [], "never from within send"
    await until(lambda: len(brokers.told) == 5)
    assert {node for node, _ in brokers.sent} == {1, 2, 3}
    (to_two,) = [request for node, request in brokers.sent if node == 2]
    assert [(int(each.producer_id), [at.partition for at in each.partitions]) for each in to_two.markers] == [
        (7, [1, 2]),
        (8, [1]),
    ]
    assert {each.coordinator_epoch for each in to_two.markers} == {5}
    assert sorted(brokers.told) == [(7, 0, NONE), (7, 1, NONE), (7, 2, NONE), (7, 3, NONE), (8, 1, NONE)]


@pytest.mark.parametrize(
    "trouble",
    [
        ConnectionLost("gone"),
        CallTimeout("late"),
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
async def test_what_failed_is_tried_again_until_it_is_written(
    markers: TransactionMarkers, brokers: Brokers, trouble: object
) -> None:
    brokers.errors = {1: [trouble, trouble]}
    markers.send(marker(7, 1), brokers.written(7))
    await until(lambda: bool(brokers.told))
    assert brokers.told == [(7, 1, NONE)]
    assert len(brokers.sent) == 3
    assert markers.retries == 2


async def test_only_what_failed_is_sent_again_and_to_whoever_leads_then(
    markers: TransactionMarkers, brokers: Brokers
) -> None:
    brokers.errors = {1: [ErrorCode.NOT_LEADER_OR_FOLLOWER]}
    brokers.gate.clear()
    markers.send(marker(7, 1, 2), brokers.written(7))
    await until(lambda: bool(brokers.sent))
    brokers.leaders[1] = 3
    brokers.gate.set()
    await until(lambda: len(brokers.told) == 2)
    assert brokers.told == [(7, 2, NONE), (7, 1, NONE)]
    first, again = [(node, request.markers[0].partitions) for node, request in brokers.sent]
    assert first == (2, (GroupPartition("t", 1), GroupPartition("t", 2)))
    assert again == (3, (GroupPartition("t", 1),))


@pytest.mark.parametrize("final", [ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
async def test_a_final_refusal_is_told(markers: TransactionMarkers, brokers: Brokers, final: ErrorCode) -> None:
    brokers.errors = {1: [final]}
    markers.send(marker(7, 1, 2), brokers.written(7))
    await until(lambda: len(brokers.told) == 2)
    assert sorted(brokers.told) == [(7, 1, final), (7, 2, NONE)]


async def test_a_partition_that_is_gone_needs_no_marker(markers: TransactionMarkers, brokers: Brokers) -> None:
    markers.send(marker(7, 9), brokers.written(7))
    markers.send(marker(8, 0, topic="gone"), brokers.written(8))
    assert brokers.told == []
    await until(lambda: len(brokers.told) == 2)
    assert brokers.told == [(7, 9, NONE), (8, 0, NONE)]
    brokers.errors = {3: [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]}
    markers.send(marker(9, 3), brokers.written(9))
    await until(lambda: bool(brokers.sent))
    del brokers.leaders[3]
    await until(lambda: len(brokers.told) == 3)
    assert len(brokers.sent) == 1


async def test_a_marker_waits_for_a_leader_without_waking_anybody(
    markers: TransactionMarkers, brokers: Brokers
) -> None:
    brokers.leaders[1] = NO_NODE
    markers.send(marker(7, 1), brokers.written(7))
    await asyncio.sleep(0)
    assert (markers.leaderless, markers.waiting) == (1, 0)
    assert not markers._timer.is_set, "the metadata says when"
    markers.metadata_changed()
    assert markers.leaderless == 1
    brokers.leaders[1] = 3
    markers.metadata_changed()
    await until(lambda: bool(brokers.told))
    assert [node for node, _ in brokers.sent] == [3]
    assert not markers._timer.is_set


async def test_a_cancelled_sending_is_neither_sent_nor_told(markers: TransactionMarkers, brokers: Brokers) -> None:
    markers.send(marker(7, 0), brokers.written(7)).cancel()
    gone = markers.send(marker(7, 9), brokers.written(7))
    gone.cancel()
    brokers.gate.clear()
    under_way = markers.send(marker(8, 1), brokers.written(8))
    await until(lambda: bool(brokers.sent))
    under_way.cancel()
    brokers.gate.set()
    brokers.errors = {2: [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 100}
    retried = markers.send(marker(9, 2), brokers.written(9))
    await until(lambda: len(brokers.sent) > 3)
    retried.cancel()
    count = len(brokers.sent)
    await until(lambda: markers.waiting == 0)
    assert len(brokers.sent) <= count + 1
    assert brokers.told == []


async def test_a_slow_broker_has_a_bounded_number_of_calls_and_keeps_nobody_else_waiting(
    markers: TransactionMarkers, brokers: Brokers
) -> None:
    brokers.gate.clear()
    for number in range(40):
        markers.send(marker(number, 1), brokers.written(number))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(brokers.sent) == UNDER_WAY_MAX
    assert markers.waiting == 40 - UNDER_WAY_MAX
    markers.send(marker(100, 3), brokers.written(100))
    await until(lambda: brokers.sent[-1][0] == 3)
    brokers.gate.set()
    await until(lambda: len(brokers.told) == 41)
    assert len(brokers.sent) == UNDER_WAY_MAX + 2, "what had waited went out together"
    assert markers.waiting == 0


async def test_a_leader_here_that_does_not_answer_is_asked_again(
    markers: TransactionMarkers, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.broker.coordinators.markers.WRITE_TIMEOUT_S", 0.01)
    brokers.gate.clear()
    markers.send(marker(7, 0), brokers.written(7))
    await until(lambda: len(brokers.sent) == 2)
    brokers.gate.set()
    await until(lambda: bool(brokers.told))


async def test_nothing_is_told_after_the_end(markers: TransactionMarkers, brokers: Brokers) -> None:
    brokers.gate.clear()
    markers.send(marker(7, 0, 1), brokers.written(7))
    await until(lambda: len(brokers.sent) == 2)
    markers.close()
    brokers.gate.set()
    markers.send(marker(8, 0), brokers.written(8))
    for _ in range(5):
        await asyncio.sleep(0)
    assert brokers.told == []
    assert len(brokers.sent) == 2
