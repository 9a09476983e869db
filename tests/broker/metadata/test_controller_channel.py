"""Finding the active controller among voters that are down, standing by, silent or new."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

import pytest

from tidelog.broker.metadata.controller_channel import ControllerChannel, ControllerUnavailable, refused_by_standby
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import BrokerEpoch, ControllerEpoch, NodeId, Offset, ProducerId
from tidelog.proto.calls.api import (
    AlteredResource,
    ConfigResource,
    CreatedTopic,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    DescribeClusterResponse,
    IncrementalAlterConfigsResponse,
    NewTopic,
    TopicResult,
)
from tidelog.proto.calls.controller_api import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from tidelog.proto.calls.request import Response
from tidelog.proto.transport.memory_transport import MemoryFabric
from tidelog.proto.transport.network import Address, CallContext, Server, Service

ASK = AllocateProducerIdsRequest(NodeId(9), BrokerEpoch(1))


class Voter:
    """A controller that stands by until it is made active."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.active = False
        self.silent = False
        self.asked = 0

    async def allocate(self, _: AllocateProducerIdsRequest, __: CallContext) -> AllocateProducerIdsResponse:
        self.asked += 1
        if self.silent:
            await asyncio.Event().wait()
        if not self.active:
            return AllocateProducerIdsResponse(ErrorCode.NOT_CONTROLLER)
        return AllocateProducerIdsResponse(ErrorCode.NONE, ProducerId(self.node_id * 1000), 10)

    async def create(self, request: CreateTopicsRequest, _: CallContext) -> CreateTopicsResponse:
        self.asked += 1
        code = ErrorCode.NONE if self.active else ErrorCode.NOT_CONTROLLER
        return CreateTopicsResponse(tuple(CreatedTopic(t.name, code) for t in request.topics))

    def service(self) -> Service:
        return Service({AllocateProducerIdsRequest: self.allocate, CreateTopicsRequest: self.create}, {})


class Quorum:
    def __init__(self) -> None:
        self.fabric = MemoryFabric()
        self.voters = {NodeId(n): Voter(n) for n in (1, 2, 3)}
        self.addresses: Mapping[NodeId, Address] = {n: Address("c", 100 + n) for n in self.voters}
        self.servers: dict[NodeId, Server] = {}

    async def start(self) -> None:
        for n, voter in self.voters.items():
            network = self.fabric.network(f"c{n}")
            self.servers[n] = await network.serve("CONTROLLER", self.addresses[n], voter.service())

    def channel(self, try_timeout_s: float = 0.05) -> ControllerChannel:
        connect = self.fabric.network("broker").connect
        return ControllerChannel(NodeId(9), self.addresses, connect, random.Random(1), try_timeout_s=try_timeout_s)


@pytest.fixture
async def quorum() -> Quorum:
    made = Quorum()
    await made.start()
    return made


@pytest.mark.parametrize("active", [1, 2, 3])
async def test_finds_the_active_one_and_stays_with_it(quorum: Quorum, active: int) -> None:
    quorum.voters[NodeId(active)].active = True
    channel = quorum.channel()
    assert (await channel.call(ASK, timeout_s=5)).first_producer_id == active * 1000
    assert channel.leader == active
    before = {n: v.asked for n, v in quorum.voters.items()}
    await channel.call(ASK, timeout_s=5)
    assert {n: v.asked - before[n] for n, v in quorum.voters.items()} == {n: int(n == active) for n in (1, 2, 3)}


async def test_follows_an_election(quorum: Quorum) -> None:
    quorum.voters[NodeId(1)].active = True
    channel = quorum.channel()
    await channel.call(ASK, timeout_s=5)
    quorum.fabric.drop_node("c1")
    quorum.voters[NodeId(3)].active = True
    answer, unknown = await channel.call_traced(ASK, timeout_s=5)
    assert answer.first_producer_id == 3000
    assert unknown, "the first try's connection broke: it may have taken effect"


async def test_leaves_a_silent_one_after_its_share_of_the_time(quorum: Quorum) -> None:
    quorum.voters[NodeId(1)].silent = True
    quorum.voters[NodeId(2)].active = True
    channel = quorum.channel()
    channel.leader_is(NodeId(1), 1)
    assert (await channel.call(ASK, timeout_s=5)).first_producer_id == 2000


async def test_waits_for_an_election_and_hears_of_it_at_once(quorum: Quorum) -> None:
    channel = quorum.channel()
    asking = asyncio.ensure_future(channel.call(ASK, timeout_s=30))
    while sum(v.asked for v in quorum.voters.values()) < 12:
        await asyncio.sleep(0.001)
    quorum.voters[NodeId(2)].active = True
    channel.leader_is(NodeId(2), 7)
    assert (await asking).first_producer_id == 2000


async def test_old_hints_are_ignored(quorum: Quorum) -> None:
    channel = quorum.channel()
    channel.leader_is(NodeId(2), 7)
    channel.leader_is(NodeId(1), 6)
    assert channel.leader == 2
    channel.leader_is(None, 8)
    assert channel.leader == -1


async def test_gives_up_in_time_and_says_whether_the_outcome_is_unknown(quorum: Quorum) -> None:
    channel = quorum.channel()
    with pytest.raises(ControllerUnavailable, match="is not the active one") as certain:
        await channel.call(ASK, timeout_s=0.1)
    assert not certain.value.unknown
    for n in (1, 2, 3):
        quorum.fabric.drop_node(f"c{n}")
    with pytest.raises(ControllerUnavailable) as unknown:
        await channel.call(ASK, timeout_s=0.1)
    assert unknown.value.unknown


async def test_does_not_repeat_what_must_not_be_repeated(quorum: Quorum) -> None:
    quorum.voters[NodeId(1)].silent = True
    quorum.voters[NodeId(2)].active = True
    channel = quorum.channel()
    channel.leader_is(NodeId(1), 1)
    with pytest.raises(ControllerUnavailable) as found:
        await channel.call(ASK, timeout_s=5, retry_unknown=False)
    assert found.value.unknown
    assert quorum.voters[NodeId(2)].asked == 0


async def test_a_refusal_per_item_is_a_refusal(quorum: Quorum) -> None:
    quorum.voters[NodeId(3)].active = True
    request = CreateTopicsRequest((NewTopic("a"), NewTopic("b")))
    answer, _ = await quorum.channel().forward(request, None, timeout_s=5)
    assert [topic.error for topic in answer.topics] == [ErrorCode.NONE, ErrorCode.NONE]


async def test_a_patient_call_stays_with_a_slow_controller_and_leaves_a_deposed_one(quorum: Quorum) -> None:
    quorum.voters[NodeId(1)].silent = True
    quorum.voters[NodeId(2)].active = True
    channel = quorum.channel(try_timeout_s=0.01)
    channel.leader_is(NodeId(1), 1)
    asking = asyncio.ensure_future(channel.call_traced(ASK, timeout_s=30, patient=True))
    await asyncio.sleep(0.05)  # longer than a try may take
    assert not asking.done()
    assert quorum.voters[NodeId(2)].asked == 0
    channel.leader_is(NodeId(2), 2)
    answer, unknown = await asking
    assert answer.first_producer_id == 2000
    assert unknown


async def test_a_patient_call_that_is_given_up_leaves_no_task_waiting_for_an_election(quorum: Quorum) -> None:
    quorum.voters[NodeId(1)].silent = True
    channel = quorum.channel()
    channel.leader_is(NodeId(1), 1)
    asking = asyncio.ensure_future(channel.call_traced(ASK, timeout_s=30, patient=True))
    await asyncio.sleep(0.02)
    assert any(_waits_for_an_event(task) for task in asyncio.all_tasks())
    asking.cancel()
    await asyncio.wait([asking])
    await asyncio.sleep(0.02)
    assert not any(_waits_for_an_event(task) for task in asyncio.all_tasks())


def _waits_for_an_event(task: asyncio.Task[object]) -> bool:
    return getattr(task.get_coro(), "__qualname__", "") == "Event.wait"


@pytest.mark.parametrize(("pause_s", "least", "most"), [(0.01, 10, 200), (0.4, 3, 6)])
async def test_pauses_between_rounds_as_long_as_it_was_told(
    quorum: Quorum, pause_s: float, least: int, most: int
) -> None:
    connect = quorum.fabric.network("broker").connect
    channel = ControllerChannel(NodeId(9), quorum.addresses, connect, random.Random(1), retry_pause_s=pause_s)
    with pytest.raises(ControllerUnavailable):
        await channel.call(ASK, timeout_s=0.5)
    assert least <= sum(voter.asked for voter in quorum.voters.values()) <= most


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        (AllocateProducerIdsResponse(ErrorCode.NOT_CONTROLLER), True),
        (AllocateProducerIdsResponse(ErrorCode.STALE_BROKER_EPOCH), False),
        (DeleteTopicsResponse((TopicResult("a", ErrorCode.NOT_CONTROLLER),) * 2), True),
        (
            CreatePartitionsResponse(
                (TopicResult("a", ErrorCode.NOT_CONTROLLER), TopicResult("b", ErrorCode.INVALID_REQUEST))
            ),
            False,
        ),
        (DeleteTopicsResponse(()), False),
        (
            IncrementalAlterConfigsResponse((AlteredResource(ConfigResource("topic", "a"), ErrorCode.NOT_CONTROLLER),)),
            True,
        ),
        (DescribeClusterResponse("c", NodeId(1), ControllerEpoch(1), Offset(0), (), (), ()), False),
    ],
)
def test_a_standby_refuses_a_request_as_a_whole(answer: Response, refused: bool) -> None:
    assert refused_by_standby(answer) == refused
