"""The shell: leadership, loading, timers, waiting, markers, over a log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.coordinators import MemoryLog
from tidelog.model.clock import SystemClock
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import LeaderEpoch, ProducerEpoch, ProducerId
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.proto.calls.transaction_api import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    PrepareTransactionRequest,
    TransactionMarker,
)
from tidelog.proto.transport.network import CallContext
from tidelog.transactions.coordinator import TransactionCoordinator, transactional_id_fault
from tidelog.transactions.marker_sender import MarkersWritten
from tidelog.transactions.settings import TransactionSettings

CONTEXT = CallContext("client", "ipv4:127.0.0.1:5555")
QUICK = TransactionSettings(
    two_phase_commit_enable=True, abort_timed_out_transaction_cleanup_interval_ms=20, add_wait_max_ms=30
)
A = GroupPartition("a", 0)
NONE = ErrorCode.NONE


class Sending:
    def __init__(
        self,
        under_way: list[tuple[TransactionMarker, MarkersWritten]],
        item: tuple[TransactionMarker, MarkersWritten],
    ) -> None:
        self.under_way = under_way
        self.item = item

    def cancel(self) -> None:
        if self.item in self.under_way:
            self.under_way.remove(self.item)


class Sender:
    """Implements :class:`tidelog.transactions.marker_sender.MarkerSender`; a test tells what is written."""

    def __init__(self) -> None:
        self.under_way: list[tuple[TransactionMarker, MarkersWritten]] = []
        self.sent: list[TransactionMarker] = []

    def send(self, marker: TransactionMarker, written: MarkersWritten) -> Sending:
        item = (marker, written)
        self.under_way.append(item)
        self.sent.append(marker)
        return Sending(self.under_way, item)

    def written(self, error: ErrorCode = NONE) -> None:
        for marker, told in list(self.under_way):
            told(marker.partitions, error)


Who = tuple[ProducerId, ProducerEpoch]
WHO = ProducerId(1), ProducerEpoch(0)


class World:
    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.sender = Sender()
        self.failures: list[BaseException] = []
        self.ids = iter(range(100, 10_000))
        self.without_ids = False
        self.coordinator = self.make()

    def make(self, settings: TransactionSettings = QUICK) -> TransactionCoordinator:
        return TransactionCoordinator(
            settings,
            SystemClock(),
            self.log,
            self._new_id,
            self.sender,
            lambda group_id: len(group_id),
            self.failures.append,
            partitions=1,
        )

    async def _new_id(self) -> ProducerId | None:
        await asyncio.sleep(0)
        return None if self.without_ids else ProducerId(next(self.ids))

    async def lead(self, epoch: int = 1) -> None:
        self.coordinator.elected(0, LeaderEpoch(epoch))
        await until(lambda: self.coordinator.gauges().partitions_loaded == 1, "it is loaded")

    async def init(self, transactional_id: str | None = "t", **changes: Any) -> InitProducerIdResponse:
        return await self.coordinator.init_producer_id(InitProducerIdRequest(transactional_id, **changes), CONTEXT)

    def add(self, identity: Who, *names: str) -> asyncio.Future[AddPartitionsToTxnResponse]:
        requests = tuple(AddPartitionsTransaction(name, *identity, (A,)) for name in names or ("t",))
        return self.coordinator.add_partitions(AddPartitionsToTxnRequest(requests), CONTEXT)

    def end(self, identity: Who, committed: bool = True) -> asyncio.Future[EndTxnResponse]:
        return self.coordinator.end(EndTxnRequest("t", *identity, committed), CONTEXT)

    def state(self) -> str:
        request = DescribeTransactionsRequest(("t",))
        return self.coordinator.describe(request, CONTEXT).result().transactions[0].state


async def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"waited in vain until {what}")


@pytest.fixture
async def world(memory_log: MemoryLog) -> AsyncIterator[World]:
    made = World(memory_log)
    yield made
    await made.coordinator.stop()
    assert not made.failures
    assert not made.sender.under_way


def ids(answer: InitProducerIdResponse | EndTxnResponse) -> Who:
    assert answer.error is NONE, answer
    return answer.producer_id, answer.producer_epoch


async def test_a_transaction_from_beginning_to_end(world: World) -> None:
    await world.lead()
    who = ids(await world.init())
    assert who == (100, 0)
    assert (await world.add(who)).transactions[0].results[0].error is NONE
    following = ids(await world.end(who))
    assert following == (100, 1)
    assert world.state() == "PrepareCommit"
    assert world.coordinator.gauges().waiting_for_markers == 1
    world.sender.written()
    await until(lambda: world.state() == "CompleteCommit", "it is completed")
    counters = world.coordinator.counters
    assert (counters.begun, counters.committed, counters.aborted, counters.completed) == (1, 1, 0, 1)
    assert world.coordinator.gauges().transactions == {"CompleteCommit": 1}


async def test_nothing_is_told_before_it_is_replicated(world: World) -> None:
    await world.lead()
    who = ids(await world.init())
    await world.add(who)
    world.log.hold = True
    ending = world.end(who)
    await asyncio.sleep(0)
    assert not ending.done()
    assert not world.sender.sent
    world.log.commit()
    assert ids(await ending) == (100, 1)
    assert len(world.sender.sent) == 1
    world.log.hold = False


async def test_requests_for_what_is_led_elsewhere_or_not_loaded(world: World) -> None:
    assert (await world.init()).error is ErrorCode.NOT_COORDINATOR
    assert (await world.add(WHO)).transactions[0].results[0].error is ErrorCode.NOT_COORDINATOR
    assert (await world.end(WHO)).error is ErrorCode.NOT_COORDINATOR
    world.coordinator.elected(0, LeaderEpoch(1))
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    who = (ProducerId(1), ProducerEpoch(0))
    assert (await world.init()).error is loading
    offsets = AddOffsetsToTxnRequest("t", *who, "g")
    world.coordinator.elected(0, LeaderEpoch(2))
    assert (await world.coordinator.add_offsets(offsets, CONTEXT)).error is loading
    world.coordinator.elected(0, LeaderEpoch(3))
    assert (await world.coordinator.prepare(PrepareTransactionRequest("t", *who), CONTEXT)).error is loading
    world.coordinator.elected(0, LeaderEpoch(4))
    assert world.coordinator.list_transactions(ListTransactionsRequest(), CONTEXT).result().error is loading


@pytest.mark.parametrize("name", ["", "x" * 32_768])
async def test_ids_that_cannot_be(world: World, name: str) -> None:
    await world.lead()
    invalid = ErrorCode.INVALID_REQUEST
    who = (ProducerId(1), ProducerEpoch(0))
    coordinator = world.coordinator
    assert (await world.init(name)).error is invalid
    assert (await world.add(who, name)).transactions[0].results[0].error is invalid
    assert (await coordinator.end(EndTxnRequest(name, *who, True), CONTEXT)).error is invalid
    assert (await coordinator.prepare(PrepareTransactionRequest(name, *who), CONTEXT)).error is invalid
    assert (await coordinator.add_offsets(AddOffsetsToTxnRequest(name, *who, "g"), CONTEXT)).error is invalid
    described = (await coordinator.describe(DescribeTransactionsRequest((name,)), CONTEXT)).transactions[0]
    assert described.error is invalid
    assert "expected a transactional id" in str(transactional_id_fault(name))


async def test_a_producer_id_without_a_transactional_id(world: World) -> None:
    assert ids(await world.init(None)) == (100, 0)
    world.without_ids = True
    assert (await world.init(None)).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await world.lead()
    assert (await world.init()).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_several_transactions_in_one_request(world: World) -> None:
    await world.lead()
    first = ids(await world.init("t"))
    await world.init("u")
    answer = await world.add(first, "t", "u", "nobody")
    errors = [item.results[0].error for item in answer.transactions]
    assert errors == [NONE, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert [item.transactional_id for item in answer.transactions] == ["t", "u", "nobody"]
    assert (await world.coordinator.add_partitions(AddPartitionsToTxnRequest(()), CONTEXT)).transactions == ()


async def test_offsets_of_a_group_go_where_the_group_is(world: World) -> None:
    await world.lead()
    who = ids(await world.init())
    answer = await world.coordinator.add_offsets(AddOffsetsToTxnRequest("t", *who, "four"), CONTEXT)
    assert answer.error is NONE
    described = (await world.coordinator.describe(DescribeTransactionsRequest(("t",)), CONTEXT)).transactions[0]
    assert described.partitions == (GroupPartition("__consumer_offsets", 4),)


async def test_timeouts_run_by_the_clock(world: World) -> None:
    await world.lead()
    who = ids(await world.init(transaction_timeout_ms=30))
    await world.add(who)
    await until(lambda: bool(world.sender.under_way), "it has timed out")
    world.sender.written()
    await until(lambda: world.state() == "CompleteAbort", "it is aborted")


async def test_whoever_waits_for_markers_is_told_in_time(world: World) -> None:
    await world.lead()
    who = ids(await world.init())
    await world.add(who)
    following = ids(await world.end(who))
    answer = await asyncio.wait_for(world.add(following), 5)
    assert answer.transactions[0].results[0].error is ErrorCode.CONCURRENT_TRANSACTIONS


async def test_the_next_leader_carries_out_what_was_decided(world: World) -> None:
    await world.lead(1)
    who = ids(await world.init())
    await world.add(who)
    await world.end(who)
    world.coordinator.resigned(0, LeaderEpoch(0))
    assert world.sender.under_way, "news of an older epoch"
    world.coordinator.resigned(0)
    assert not world.sender.under_way, "who does not lead sends nothing"
    await world.lead(2)
    (marker,) = (item[0] for item in world.sender.under_way)
    assert (marker.coordinator_epoch, marker.producer_epoch, marker.committed) == (2, 1, True)
    world.sender.written()
    await until(lambda: world.state() == "CompleteCommit", "it is completed")


async def test_when_leadership_ends_whoever_waits_is_told_so(world: World) -> None:
    await world.lead()
    who = ids(await world.init())
    world.log.hold = True
    adding = world.add(who)
    initialising = world.coordinator.init_producer_id(InitProducerIdRequest("u"), CONTEXT)
    await asyncio.sleep(0)
    world.coordinator.resigned(0)
    assert (await adding).transactions[0].results[0].error is ErrorCode.NOT_COORDINATOR
    assert (await initialising).error is ErrorCode.NOT_COORDINATOR
    world.log.commit(ErrorCode.NOT_COORDINATOR)
    await asyncio.sleep(0)
    world.log.hold = False
    await world.lead(2)
    assert world.state() == "Ongoing", "it was in the log after all"


async def test_an_append_that_ends_with_leadership_is_its_end(world: World) -> None:
    await world.lead()
    world.log.refuse = ErrorCode.NOT_COORDINATOR
    assert (await world.init()).error is ErrorCode.NOT_COORDINATOR
    assert world.coordinator.gauges().partitions_loaded == 0


async def test_a_log_that_cannot_be_read_is_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.replication.coordinators.coordinator_shell.LOAD_AGAIN_MS", 10)
    world.log.range_refusal = Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "no")
    world.coordinator.elected(0, LeaderEpoch(1))
    await until(lambda: world.coordinator.counters.failed_loads > 0, "loading failed")
    assert (await world.init()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.log.range_refusal = None
    await until(lambda: world.coordinator.counters.loads == 1, "it is loaded")
    assert ids(await world.init()) == (100, 0)


async def test_a_long_log_is_read_in_slices(world: World) -> None:
    await world.lead()
    for number in range(300):
        await world.init(f"t{number}")
    world.coordinator.settings = TransactionSettings(state_log_load_buffer_size=500)
    world.coordinator.resigned(0)
    await world.lead(2)
    assert sum(world.coordinator.gauges().transactions.values()) == 300
    assert world.coordinator.counters.loaded_records == 300


async def test_markers_refused_for_good_are_not_sent_again(world: World) -> None:
    await world.lead()
    who = ids(await world.init())
    await world.add(who)
    await world.end(who)
    world.sender.written(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    assert not world.sender.under_way
    assert world.state() == "PrepareCommit"
    assert world.coordinator.counters.refused_markers == 1


async def test_a_bug_beneath_takes_the_node_down(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.lead()

    async def broken(*_: object) -> ErrorCode:
        raise RuntimeError("boom")

    monkeypatch.setattr(world.log, "append", broken)
    world.coordinator.init_producer_id(InitProducerIdRequest("t"), CONTEXT)
    await until(lambda: bool(world.failures), "it is told")
    assert str(world.failures.pop()) == "boom"


async def test_after_a_kill_nothing_moves(world: World) -> None:
    await world.lead()
    who = ids(await world.init())
    await world.add(who)
    await world.end(who)
    initialising = world.coordinator.init_producer_id(InitProducerIdRequest("u"), CONTEXT)
    world.coordinator.kill()
    assert not world.sender.under_way
    await asyncio.sleep(0.01)
    assert not initialising.done()
    world.coordinator.elected(0, LeaderEpoch(9))
    assert (await world.init()).error is ErrorCode.NOT_COORDINATOR


async def test_an_asker_that_has_gone_disturbs_nothing(world: World) -> None:
    await world.lead()
    world.coordinator.init_producer_id(InitProducerIdRequest("t"), CONTEXT).cancel()
    await until(lambda: world.state() == "Empty", "it is there all the same")
