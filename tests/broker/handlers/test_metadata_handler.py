"""Metadata answers: existing topics, missing ones, and topics created on first use."""

from __future__ import annotations

import asyncio
import random

import pytest

from tidelog.broker.handlers import metadata
from tidelog.broker.handlers.metadata import Metadata
from tidelog.broker.handlers.topic_creation import TopicCreation
from tidelog.broker.metadata.controller_channel import ControllerChannel
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.metadata_quorum.image.change import apply_records
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import (
    LOST_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerEpoch,
    ControllerEpoch,
    DirectoryId,
    LeaderEpoch,
    NodeId,
    Offset,
    PartitionEpoch,
    TopicId,
)
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.calls.api import (
    CreatedTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeClusterRequest,
    MetadataRequest,
    MetadataResponse,
)
from tidelog.proto.calls.controller_api import Endpoint
from tidelog.proto.logs.metadata_records import (
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from tidelog.proto.transport.memory_transport import MemoryFabric
from tidelog.proto.transport.network import Address, CallContext, Service

A = TopicId(b"a" * 16)
DIR = DirectoryId(b"d" * 16)
CLIENT = CallContext("CLIENT", "test")


def broker(node: int, *, fenced: bool = False, kafka: bool = False) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        node_id=NodeId(node),
        incarnation_id=bytes(16),
        broker_epoch=BrokerEpoch(node),
        listeners=(
            Endpoint("CLIENT", f"host{node}", 9092),
            Endpoint("REPLICATION", f"host{node}", 9093),
            *((Endpoint("KAFKA", f"host{node}", 9096),) if kafka else ()),
        ),
        rack=None,
        fenced=fenced,
        in_controlled_shutdown=False,
        log_dirs=(DIR,),
        features=(),
    )


def partition(
    number: int, replicas: tuple[int, ...], leader: int, directories: tuple[DirectoryId, ...] | None = None
) -> PartitionRecord:
    nodes = tuple(NodeId(n) for n in replicas)
    return PartitionRecord(
        topic_id=A,
        partition=number,
        replicas=nodes,
        isr=nodes,
        eligible_leader_replicas=(),
        last_known_elr=(),
        removing_replicas=(),
        adding_replicas=(),
        leader=NodeId(leader),
        leader_epoch=LeaderEpoch(3),
        partition_epoch=PartitionEpoch(0),
        leader_recovery=False,
        directories=directories or (UNASSIGNED_DIRECTORY,) * len(nodes),
    )


class Controller:
    """Makes topics, or refuses them."""

    def __init__(self, view: MetadataView) -> None:
        self.view = view
        self.asked: list[str] = []
        self.refuse = ErrorCode.NONE

    async def create(self, request: CreateTopicsRequest, _: CallContext) -> CreateTopicsResponse:
        name = request.topics[0].name
        self.asked.append(name)
        await asyncio.sleep(0)
        if self.refuse is not ErrorCode.NONE:
            return CreateTopicsResponse((CreatedTopic(name, self.refuse, "expected better"),))
        commit(self.view, partition(0, (1,), 1), TopicRecord(name, A))
        return CreateTopicsResponse((CreatedTopic(name, ErrorCode.NONE, topic_id=A),))


def commit(view: MetadataView, *records: MetadataRecord) -> None:
    image, delta = apply_records(view.image, records, Offset(view.image.offset + 1), ControllerEpoch(1))
    view.publish(image, delta)


class World:
    def __init__(self, *, auto_create: bool = True) -> None:
        self.view = MetadataView()
        self.controller = Controller(self.view)
        config = NodeConfig(node_id=NodeId(1), auto_create_topics_enable=auto_create)
        channel = ControllerChannel(
            NodeId(1),
            {NodeId(1): Address("nowhere", 1)},
            MemoryFabric().network("n").connect,
            random.Random(0),
            Service({CreateTopicsRequest: self.controller.create}, {}),
        )
        self.told: list[tuple[str, ErrorCode]] = []
        self.may = True
        creation = TopicCreation(
            config, self.view, channel, lambda name, _, error: self.told.append((name, error)), lambda: self.may
        )
        self.handler = Metadata("cluster", config, self.view, channel, creation)
        commit(self.view, broker(1), broker(2), broker(3))

    async def ask(self, *topics: str, create: bool = False) -> MetadataResponse:
        return await self.handler.handle(MetadataRequest(topics, allow_auto_topic_creation=create), CLIENT)


async def test_names_brokers_at_the_listener_asked_and_live_ones_only() -> None:
    world = World()
    commit(world.view, BrokerRegistrationChangeRecord(NodeId(2), BrokerEpoch(2), fenced=True))
    answer = await world.ask()
    assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(1, "host1", 9092), (3, "host3", 9092)]
    inner = await world.handler.handle(MetadataRequest(), CallContext("REPLICATION", "x"))
    assert {b.port for b in inner.brokers} == {9093}


async def test_clients_of_kafka_hear_of_a_broker_for_a_while_after_it_was_fenced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    commit(world.view, *(broker(node, kafka=True) for node in (1, 2, 3)), broker(4, fenced=True, kafka=True))
    world.view.open()

    async def named(listener: str) -> list[int]:
        answer = await world.handler.handle(MetadataRequest(), CallContext(listener, "x"))
        return [b.node_id for b in answer.brokers]

    def fence(node: int, *, fenced: bool) -> None:
        commit(world.view, BrokerRegistrationChangeRecord(NodeId(node), BrokerEpoch(node), fenced=fenced))

    fence(4, fenced=False)
    assert await named("KAFKA") == await named("CLIENT") == [1, 2, 3, 4]
    fence(2, fenced=True)
    assert await named("KAFKA") == [1, 2, 3, 4]
    assert await named("CLIENT") == [1, 3, 4]
    monkeypatch.setattr(metadata, "FENCED_NAMED_S", 0.0)
    assert await named("KAFKA") == [1, 3, 4]
    fence(2, fenced=False)
    assert await named("KAFKA") == [1, 2, 3, 4]
    commit(world.view, UnregisterBrokerRecord(NodeId(4), BrokerEpoch(4)))
    assert await named("KAFKA") == [1, 2, 3]


async def test_a_leader_that_is_down_is_no_leader() -> None:
    world = World()
    commit(world.view, partition(0, (2, 3), 2), partition(1, (3, 1), 3), TopicRecord("a", A))
    assert [p.leader for p in (await world.ask("a")).topics[0].partitions] == [2, 3]
    commit(world.view, BrokerRegistrationChangeRecord(NodeId(2), BrokerEpoch(2), fenced=True))
    found = (await world.ask("a")).topics[0].partitions
    assert [(p.error, p.leader, p.offline_replicas) for p in found] == [
        (ErrorCode.LEADER_NOT_AVAILABLE, -1, (2,)),
        (ErrorCode.NONE, 3, ()),
    ]


async def test_a_leader_without_the_listener_asked_is_none_there() -> None:
    world = World()
    commit(world.view, partition(0, (2, 3), 2), partition(1, (3, 2), 3), TopicRecord("a", A), broker(3, kafka=True))

    async def found(listener: str) -> list[tuple[ErrorCode, int]]:
        answer = await world.handler.handle(MetadataRequest(("a",)), CallContext(listener, "x"))
        return [(p.error, p.leader) for p in answer.topics[0].partitions]

    for _ in range(2):
        assert await found("KAFKA") == [(ErrorCode.LISTENER_NOT_FOUND, -1), (ErrorCode.NONE, 3)]
        assert await found("CLIENT") == [(ErrorCode.NONE, 2), (ErrorCode.NONE, 3)]
    commit(world.view, broker(2, kafka=True))
    assert await found("KAFKA") == [(ErrorCode.NONE, 2), (ErrorCode.NONE, 3)]


async def test_a_replica_on_a_failed_directory_is_offline() -> None:
    world = World()
    commit(world.view, partition(0, (2, 3), 3, (LOST_DIRECTORY, DIR)), TopicRecord("a", A))
    assert (await world.ask("a")).topics[0].partitions[0].offline_replicas == (2,)


async def test_unchanged_topics_are_answered_with_one_object() -> None:
    world = World()
    commit(world.view, partition(0, (2, 3), 2), TopicRecord("a", A))
    first = (await world.ask("a")).topics[0]
    assert (await world.ask("a")).topics[0] is first
    commit(world.view, PartitionChangeRecord(A, 0, leader=NodeId(3)))
    assert (await world.ask("a")).topics[0].partitions[0].leader == 3, "a changed one is not"


async def test_what_is_not_there_is_said_by_name_and_by_id() -> None:
    world = World()
    by_name = (await world.ask("nope")).topics[0]
    assert (by_name.error, by_name.name) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "nope")
    by_id = (await world.handler.handle(MetadataRequest(topic_ids=(A,)), CLIENT)).topics[0]
    assert by_id.error is ErrorCode.UNKNOWN_TOPIC_ID
    assert world.controller.asked == []


@pytest.mark.parametrize("name", ["", "..", "a b", "x" * 250])
async def test_a_bad_name_is_refused_and_not_made(name: str) -> None:
    world = World()
    answer = (await world.ask(name, create=True)).topics[0]
    assert answer.error is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "expected" in answer.error_message
    assert world.controller.asked == []


async def test_a_topic_is_made_on_first_use_once_for_many_askers() -> None:
    world = World()
    answers = await asyncio.gather(*(world.ask("fresh", create=True) for _ in range(5)))
    assert world.controller.asked == ["fresh"]
    assert {a.topics[0].error for a in answers} == {ErrorCode.NONE}
    assert answers[0].topics[0].partitions[0].leader == 1


async def test_no_topic_is_made_where_the_node_does_not_want_it_or_nobody_asked() -> None:
    unwilling = World(auto_create=False)
    assert (await unwilling.ask("fresh", create=True)).topics[0].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    unasked = World()
    assert (await unasked.ask("fresh")).topics[0].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert unwilling.controller.asked == unasked.controller.asked == []


async def test_the_controllers_refusal_comes_through() -> None:
    world = World()
    world.controller.refuse = ErrorCode.INVALID_REPLICATION_FACTOR
    answer = (await world.ask("fresh", create=True)).topics[0]
    assert (answer.error, answer.error_message) == (ErrorCode.INVALID_REPLICATION_FACTOR, "expected better")


async def test_describe_cluster_without_a_controller_says_what_this_node_knows() -> None:
    world = World()
    channel = ControllerChannel(
        NodeId(1), {NodeId(7): Address("gone", 1)}, MemoryFabric().network("n").connect, random.Random(0)
    )
    config = NodeConfig(node_id=NodeId(1))
    handler = Metadata(
        "cluster",
        config,
        world.view,
        channel,
        TopicCreation(config, world.view, channel, lambda *_: None, lambda: True),
    )
    answer = await handler.describe_cluster(DescribeClusterRequest(), CLIENT)
    assert answer.controller_id == -1
    assert [b.node_id for b in answer.brokers] == [1, 2, 3]


async def test_no_topic_is_made_by_use_while_none_may_be() -> None:
    world = World()
    world.may = False
    answer = await world.ask("orders", create=True)
    assert answer.topics[0].error is ErrorCode.LEADER_NOT_AVAILABLE, "the client asks again"
    assert world.controller.asked == []
    world.may = True
    await world.ask("orders", create=True)
    assert world.controller.asked == ["orders"]
