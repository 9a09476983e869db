"""Produce and fetch streams: order, bounds, memory held and released."""

from __future__ import annotations

import asyncio

import pytest

from tidelog.broker.handlers.data_streams import FETCH_WAIT_MS_MAX, FetchSession, ProduceSession
from tidelog.broker.memory_budget import MemoryBudget
from tidelog.broker.quotas.client_quotas import ClientQuotas
from tidelog.broker.quotas.usage import StreamUsage
from tidelog.broker.traffic import Traffic
from tidelog.model.clock import SystemClock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_LEADER_EPOCH, NO_NODE, BrokerEpoch, LeaderEpoch, NodeId, Offset, TopicId
from tidelog.model.settings.node.quota_settings import QuotaSettings
from tidelog.proto.transport.frames import (
    FETCH_PARTITIONS_MAX,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    decode_fetch_response,
    decode_produce_response,
    encode_fetch_request,
    encode_produce_request,
)
from tidelog.proto.transport.network import BadFrame, CallContext, Frame

TOPIC = TopicId(b"t" * 16)
READY = asyncio.Event()
READY.set()


def no_quotas() -> StreamUsage:
    return StreamUsage(ClientQuotas(QuotaSettings(), SystemClock()), CallContext("CLIENT", "x"))


class Replicas:
    """Answers when told to."""

    def __init__(self) -> None:
        self.produced: list[tuple[bytes, asyncio.Future[list[ProducedPartition]]]] = []
        self.fetched: list[tuple[FetchRequest, asyncio.Future[FetchResponse]]] = []

    def produce(self, request: ProduceRequest) -> asyncio.Future[list[ProducedPartition]]:
        future: asyncio.Future[list[ProducedPartition]] = asyncio.get_running_loop().create_future()
        self.produced.append((bytes(request.partitions[0].records), future))
        return future

    def fetch(self, request: FetchRequest) -> asyncio.Future[FetchResponse]:
        future: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()
        self.fetched.append((request, future))
        return future

    def answer_produce(self, at: int, code: ErrorCode = ErrorCode.NONE) -> None:
        self.produced[at][1].set_result([ProducedPartition(TOPIC, 0, code, Offset(at))])

    def answer_fetch(self, at: int, records: bytes) -> None:
        self.fetched[at][1].set_result(
            FetchResponse(ErrorCode.NONE, [FetchedPartition(TOPIC, 0, ErrorCode.NONE, records=[records])])
        )


def joined(frame: Frame) -> memoryview:
    return memoryview(b"".join(frame))


def produce_frame(correlation: int, records: bytes) -> memoryview:
    request = ProduceRequest(-1, 1000, [ProducePartition(TOPIC, 0, records)])
    return joined(encode_produce_request(correlation, request))


def fetch_frame(correlation: int, *, replica: int = -1, wait_ms: int = 500, bytes_max: int = 1000) -> memoryview:
    item = FetchPartition(TOPIC, 0, LeaderEpoch(-1), Offset(0), LeaderEpoch(-1), Offset(-1), 1000)
    request = FetchRequest(NodeId(replica), BrokerEpoch(-1), wait_ms, 1, bytes_max, False, [item])
    return joined(encode_fetch_request(correlation, request))


async def test_appends_at_arrival_and_answers_when_ready_in_any_order() -> None:
    replicas, budget, traffic = Replicas(), MemoryBudget(10_000), Traffic()
    session = ProduceSession(replicas, budget, traffic, 10_000, READY, no_quotas())
    first = session.on_frame(produce_frame(7, b"one"))
    second = session.on_frame(produce_frame(8, b"two"))
    assert [records for records, _ in replicas.produced] == [b"one", b"two"], "appended before anything was awaited"
    assert isinstance(first, asyncio.Future)
    assert isinstance(second, asyncio.Future)
    replicas.answer_produce(1)
    assert decode_produce_response(joined(await second))[0] == 8
    assert not first.done()
    replicas.answer_produce(0, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert decode_produce_response(joined(await first))[0] == 7
    assert budget.bytes_used == 0
    assert (traffic.produce_requests, traffic.failed_produces) == (2, 1)


async def test_a_stream_is_not_read_while_too_much_of_it_is_unanswered() -> None:
    replicas, budget = Replicas(), MemoryBudget(10_000)
    session = ProduceSession(replicas, budget, Traffic(), 100, READY, no_quotas())
    assert session.hold() is None
    answer = session.on_frame(produce_frame(1, b"x" * 100))
    room = session.hold()
    assert isinstance(room, asyncio.Future)
    replicas.answer_produce(0)
    assert isinstance(answer, asyncio.Future)
    await answer
    assert room.done()
    assert session.hold() is None


async def test_nothing_is_read_before_the_node_is_ready() -> None:
    ready = asyncio.Event()
    session = ProduceSession(Replicas(), MemoryBudget(10_000), Traffic(), 100, ready, no_quotas())
    waiting = session.hold()
    assert waiting is not None
    ready.set()
    await waiting
    assert session.hold() is None


async def test_the_nodes_budget_holds_every_stream() -> None:
    replicas, budget = Replicas(), MemoryBudget(100)
    greedy = ProduceSession(replicas, budget, Traffic(), 10_000, READY, no_quotas())
    other = ProduceSession(replicas, budget, Traffic(), 10_000, READY, no_quotas())
    assert other.hold() is None
    greedy.on_frame(produce_frame(1, b"x" * 100))
    room = other.hold()
    assert isinstance(room, asyncio.Future)
    greedy.on_close()
    assert room.done(), "what a closed stream held is free"
    assert budget.bytes_used == 0
    replicas.answer_produce(0)
    await asyncio.sleep(0)
    assert budget.bytes_used == 0, "and is not given back twice"


async def test_fetched_bytes_count_until_they_are_written() -> None:
    replicas, budget, traffic = Replicas(), MemoryBudget(10_000), Traffic()
    session = FetchSession(replicas, budget, traffic, 10_000, READY, no_quotas())
    answer = session.on_frame(fetch_frame(3))
    replicas.answer_fetch(0, b"r" * 500)
    assert isinstance(answer, asyncio.Future)
    frame = await answer
    assert budget.bytes_used == sum(map(len, frame)) >= 500
    correlation, response = decode_fetch_response(joined(frame))
    assert (correlation, bytes(response.partitions[0].records[0])) == (3, b"r" * 500)
    session.on_written(frame)
    assert budget.bytes_used == 0
    assert traffic.bytes_out == 500
    session.on_close()
    assert (budget.bytes_used, traffic.fetch_streams) == (0, 0)


async def test_what_a_closed_stream_did_not_write_counts_until_the_carrier_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidelog.broker.handlers.data_streams.CARRIER_GRACE_S", 0.01)
    replicas, budget = Replicas(), MemoryBudget(100)
    session = FetchSession(replicas, budget, Traffic(), 10_000, READY, no_quotas())
    answer = session.on_frame(fetch_frame(3))
    replicas.answer_fetch(0, b"r" * 500)
    assert isinstance(answer, asyncio.Future)
    await answer
    session.on_close()
    assert budget.bytes_used > 500
    pause = budget.pause()
    assert pause is not None
    async with asyncio.timeout(5):
        await pause
    assert budget.bytes_used == 0


async def test_a_fetch_waits_in_line_unread_while_the_budget_is_used_up() -> None:
    replicas, budget = Replicas(), MemoryBudget(100)
    session, leaver = (FetchSession(replicas, budget, Traffic(), 10_000, READY, no_quotas()) for _ in range(2))
    budget.use(100)
    answer = session.on_frame(fetch_frame(3))
    gone = leaver.on_frame(fetch_frame(4))
    assert isinstance(answer, asyncio.Future)
    assert isinstance(gone, asyncio.Future)
    held = session.hold()
    assert held is not None, "nothing more is read while one waits"
    leaver.on_close()
    assert replicas.fetched == []
    budget.give(100)
    await held
    assert len(replicas.fetched) == 1, "who left is not served"
    replicas.answer_fetch(0, b"r")
    assert decode_fetch_response(joined(await answer))[0] == 3


async def test_a_dropped_fetch_is_cancelled_where_it_waits() -> None:
    replicas = Replicas()
    session = FetchSession(replicas, MemoryBudget(10_000), Traffic(), 10_000, READY, no_quotas())
    answer = session.on_frame(fetch_frame(3))
    assert isinstance(answer, asyncio.Future)
    answer.cancel()
    await asyncio.sleep(0)
    assert replicas.fetched[0][1].cancelled()


@pytest.mark.parametrize("bytes_max", [500, 10**9])
@pytest.mark.parametrize("wait_ms", [1, 10**9])
async def test_wishes_beyond_the_nodes_bounds_are_cut(bytes_max: int, wait_ms: int) -> None:
    replicas = Replicas()
    session = FetchSession(replicas, MemoryBudget(10_000), Traffic(), 600, READY, no_quotas())
    session.on_frame(fetch_frame(3, wait_ms=wait_ms, bytes_max=bytes_max))
    request = replicas.fetched[0][0]
    assert (request.bytes_max, request.wait_ms_max) == (min(bytes_max, 600), min(wait_ms, FETCH_WAIT_MS_MAX))


async def test_a_follower_on_a_consumers_stream_is_refused() -> None:
    session = FetchSession(Replicas(), MemoryBudget(10_000), Traffic(), 600, READY, no_quotas())
    with pytest.raises(BadFrame, match="replica id 2"):
        session.on_frame(fetch_frame(3, replica=2))


async def test_one_fetches_from_at_most_so_many_partitions() -> None:
    session = FetchSession(Replicas(), MemoryBudget(10_000), Traffic(), 600, READY, no_quotas())
    part = FetchPartition(TopicId(bytes(16)), 0, NO_LEADER_EPOCH, Offset(0), NO_LEADER_EPOCH, Offset(0), 1)

    def frame(count: int) -> memoryview:
        request = FetchRequest(NO_NODE, BrokerEpoch(-1), 0, 0, 1, False, [part] * count)
        return memoryview(b"".join(encode_fetch_request(1, request)))

    with pytest.raises(
        BadFrame, match=f"at most {FETCH_PARTITIONS_MAX} partitions in a fetch, found {FETCH_PARTITIONS_MAX + 1}"
    ):
        session.on_frame(frame(FETCH_PARTITIONS_MAX + 1))
    session.on_frame(frame(FETCH_PARTITIONS_MAX))


@pytest.mark.parametrize("frame", [b"", b"\x01", b"\x02" + bytes(40), b"\xff" * 100])
async def test_garbage_is_a_bad_frame(frame: bytes) -> None:
    for session in (
        ProduceSession(Replicas(), MemoryBudget(1000), Traffic(), 1000, READY, no_quotas()),
        FetchSession(Replicas(), MemoryBudget(1000), Traffic(), 1000, READY, no_quotas()),
    ):
        with pytest.raises(BadFrame):
            session.on_frame(memoryview(frame))
