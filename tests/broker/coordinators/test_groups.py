"""Groups on running nodes: their coordinators, the answers of each call, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.broker.conftest import GroupCalls, R
from tidelog.broker.metadata.controller_channel import ControllerChannel
from tidelog.broker.node.metric_sources import NodeSource
from tidelog.broker.traffic import Latency
from tidelog.client.errors import InvalidTopicError, TidelogError
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, NodeId, Offset
from tidelog.model.names import GROUP_OFFSETS_TOPIC
from tidelog.proto.calls.api import CreateTopicsRequest, DeleteTopicsRequest, MetadataRequest
from tidelog.proto.calls.group_api import (
    CommittedOffset,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    GroupPartition,
    HeartbeatRequest,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from tidelog.proto.calls.request import Request
from tidelog.proto.transport.network import CallContext
from tidelog.testing.async_cluster import GRPC, MEMORY, AsyncCluster

NONE = ErrorCode.NONE


@pytest.fixture
async def calls() -> AsyncIterator[GroupCalls]:
    async with AsyncCluster(1) as cluster, GroupCalls(cluster) as made:
        await cluster.create_topic("t", 4)
        yield made


@pytest.fixture
async def three() -> AsyncIterator[GroupCalls]:
    async with AsyncCluster(3) as cluster, GroupCalls(cluster) as made:
        await cluster.create_topic("t", 4)
        yield made


# --- the whole path ---------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", [MEMORY, GRPC])
async def test_a_group_lives_on_one_node(transport: str) -> None:
    async with AsyncCluster(1, transport=transport) as cluster, GroupCalls(cluster) as calls:
        await cluster.create_topic("t", 4)
        one, two = calls.member("g"), calls.member("g")
        await one.join()
        assert one.owned == list(range(12))
        assert one.leads
        async with asyncio.timeout(100):
            joining = asyncio.ensure_future(two.join())
            while await one.heartbeat() is NONE:
                await asyncio.sleep(0.005)
            await asyncio.gather(one.join(), joining)
        assert sorted(one.owned + two.owned) == list(range(12))
        assert one.generation == two.generation == 2

        assert await one.commit(10) is NONE
        assert await two.commit(20, partition=1) is NONE
        fetched = await calls.ask(
            "g", OffsetFetchRequest((OffsetFetchGroup("g", (GroupPartition("t", 0), GroupPartition("t", 3))),))
        )
        assert fetched.groups[0].offsets == (
            CommittedOffset("t", 0, NONE, Offset(10), LeaderEpoch(3), "at 10"),
            CommittedOffset("t", 3, NONE),
        )
        assert await calls.committed("g") == {("t", 0): 10, ("t", 1): 20}

        described = (await calls.ask("g", DescribeGroupsRequest(("g",)))).groups[0]
        assert (described.error, described.state, described.protocol) == (NONE, "Stable", "dealt")
        assert {member.member_id for member in described.members} == {one.member_id, two.member_id}
        assert {member.client_id for member in described.members} == {"test"}
        listed = (await calls.ask("g", ListGroupsRequest())).groups
        assert [(found.group_id, found.state, found.protocol_type) for found in listed] == [("g", "Stable", "consumer")]

        refused = await calls.ask("g", DeleteGroupsRequest(("g",)))
        assert refused.results[0].error is ErrorCode.NON_EMPTY_GROUP
        assert (await one.leave(), await two.leave()) == (NONE, NONE)
        forgotten = await calls.ask("g", OffsetDeleteRequest("g", (GroupPartition("t", 1), GroupPartition("no", 0))))
        assert [result.error for result in forgotten.results] == [NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await calls.committed("g") == {("t", 0): 10}
        assert (await calls.ask("g", DeleteGroupsRequest(("g",)))).results[0].error is NONE
        assert (await calls.ask("g", ListGroupsRequest())).groups == ()
        assert await calls.committed("g") == {}


async def test_a_join_without_initial_delay_is_answered_at_once(calls: GroupCalls) -> None:
    await calls.member("warm").join()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await calls.member("g").join()
    took = loop.time() - begun
    print(f"join of an idle group: {1000 * took:.1f} ms")
    assert took < 2


# --- the topic that keeps it ------------------------------------------------------------------------


async def test_the_offsets_topic_is_made_on_first_use(three: GroupCalls) -> None:
    image = three.cluster.image
    assert image.topic(GROUP_OFFSETS_TOPIC) is None
    found = await three.find("g")
    assert found.error is NONE, "the answer waits until the topic has its leaders"
    image = three.cluster.nodes[NodeId(1)].view.image
    topic = image.topic(GROUP_OFFSETS_TOPIC)
    assert topic is not None
    assert len(topic.partitions) == 50
    assert all(len(partition.replicas) == 3 for partition in topic.partitions.values())
    assert dict(image.config("topic", GROUP_OFFSETS_TOPIC)) == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }
    shown = await three.node(1).call(MetadataRequest((GROUP_OFFSETS_TOPIC, "t")), timeout_s=10)
    assert [found.is_internal for found in shown.topics] == [True, False]


async def test_each_node_asks_for_it_once_however_many_ask_the_node(
    three: GroupCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    forward = ControllerChannel.forward

    async def counted(self: ControllerChannel, request: Any, sender: CallContext | None, **more: Any) -> Any:
        if isinstance(request, CreateTopicsRequest):
            asked.extend(topic.name for topic in request.topics)
        return await forward(self, request, sender, **more)

    monkeypatch.setattr(ControllerChannel, "forward", counted)
    for attempt in range(20):  # a controller that loses its leadership leaves it open whether there is a topic now
        asked.clear()
        found = await asyncio.gather(*(three.find(f"g{n}", 1 + n % 3) for n in range(60)))
        assert asked == [GROUP_OFFSETS_TOPIC] * 3 if attempt == 0 else len(asked) <= 3
        if {answer.error for answer in found} == {NONE}:
            return
        assert {answer.error for answer in found} <= {NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE}
    pytest.fail("expected each node to find its coordinators")


async def test_metadata_makes_it_as_it_should_be(calls: GroupCalls) -> None:
    request = MetadataRequest((GROUP_OFFSETS_TOPIC,), allow_auto_topic_creation=True)
    await calls.node(1).call(request, timeout_s=10)
    topic = calls.cluster.image.topic(GROUP_OFFSETS_TOPIC)
    assert topic is not None
    assert len(topic.partitions) == 50


async def test_too_few_brokers_for_the_topic_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """The asker gets the error, and the log names it once, because a client that waits for its coordinator may show
    nothing."""
    config = {"offsets.topic.replication.factor": "3"}
    async with AsyncCluster(1, config=config) as cluster, GroupCalls(cluster) as calls:
        with caplog.at_level("WARNING", logger="tidelog.broker.handlers.topic_creation"):
            for _ in range(3):
                found = await calls.find("g")
        (warning,) = caplog.messages
        assert warning.startswith(f"{GROUP_OFFSETS_TOPIC} cannot be created yet")
        assert "replication factor" in warning
        assert found.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert GROUP_OFFSETS_TOPIC in found.error_message
        assert "replica" in found.error_message
        assert cluster.image.topic(GROUP_OFFSETS_TOPIC) is None


async def test_clients_do_not_write_to_it(calls: GroupCalls) -> None:
    await calls.find("g")
    async with calls.cluster.producer() as producer:
        with pytest.raises(InvalidTopicError):
            await producer.send_and_wait(GROUP_OFFSETS_TOPIC, b"x", partition=0)


async def test_it_does_not_grow(calls: GroupCalls) -> None:
    await calls.find("g")
    async with calls.cluster.admin() as admin:
        with pytest.raises(TidelogError, match=GROUP_OFFSETS_TOPIC):
            await admin.create_partitions({GROUP_OFFSETS_TOPIC: 60})


async def test_a_deleted_offsets_topic_takes_the_groups_along(calls: GroupCalls) -> None:
    member = calls.member("g")
    await member.join()
    assert await member.commit(5) is NONE
    await calls.node(1).call(DeleteTopicsRequest((GROUP_OFFSETS_TOPIC,)), timeout_s=10)
    assert await member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID, "it was made anew, and knows nobody"
    assert await calls.committed("g") == {}
    await member.join()
    assert await member.commit(6) is NONE
    assert await calls.committed("g") == {("t", 0): 6}


# --- where a group is -------------------------------------------------------------------------------


async def test_every_node_names_the_same_coordinator(three: GroupCalls) -> None:
    places = set()
    for n in range(40):
        group = f"group-{n}"
        await three.coordinator(group)
        named = [await three.find(group, node_id) for node_id in (1, 2, 3)]
        assert named[0] == named[1] == named[2]
        assert named[0].node_id in (1, 2, 3)
        places.add(named[0].node_id)
    assert places == {1, 2, 3}, "partitions are spread"


async def test_a_group_is_found_where_kafka_keeps_it(calls: GroupCalls) -> None:
    """The absolute value of Java's hash of the id, modulo the partitions (``Utils.abs(groupId.hashCode) % n``)."""
    coordinator = calls.broker(1).groups.coordinator
    assert await calls.find("g")
    assert [coordinator.partition_for(group) for group in ("", "a", "hello", "polygenelubricants")] == [0, 47, 22, 0]


async def test_other_coordinators_are_refused(three: GroupCalls) -> None:
    answer = await three.node(1).call(FindCoordinatorRequest(("x",), key_type=7), timeout_s=5)
    assert "expected 0 or 1" in answer.coordinators[0].error_message


async def test_a_node_that_does_not_coordinate_says_so(three: GroupCalls) -> None:
    home = await three.coordinator("g")
    other = three.node(next(node for node in (1, 2, 3) if node != home))
    wrong = ErrorCode.NOT_COORDINATOR

    async def ask(request: Request[R]) -> R:
        return await other.call(request, timeout_s=10)

    assert (await ask(three.member("g").join_request())).error is wrong
    assert (await ask(SyncGroupRequest("g", 1, "m"))).error is wrong
    assert (await ask(HeartbeatRequest("g", 1, "m"))).error is wrong
    assert (await ask(LeaveGroupRequest("g", (LeavingMember("m"),)))).error is wrong
    item = OffsetCommitPartition("t", 0, Offset(1))
    assert (await ask(OffsetCommitRequest("g", -1, "", None, (item,)))).results[0].error is wrong
    fetched = await ask(OffsetFetchRequest((OffsetFetchGroup("g", all_partitions=True),)))
    assert fetched.groups[0].error is wrong
    assert (await ask(OffsetDeleteRequest("g", (GroupPartition("t", 0),)))).error is wrong
    assert (await ask(DescribeGroupsRequest(("g",)))).groups[0].error is wrong
    assert (await ask(DeleteGroupsRequest(("g",)))).results[0].error is wrong
    listed = await ask(ListGroupsRequest())
    assert (listed.error, [group.group_id for group in listed.groups]) == (NONE, [])


# --- offsets and topics -----------------------------------------------------------------------------


async def test_offsets_of_partitions_that_are_not_there_are_refused_one_by_one(calls: GroupCalls) -> None:
    items = tuple(
        OffsetCommitPartition(topic, partition, Offset(7)) for topic, partition in (("t", 0), ("no", 0), ("t", 4))
    )
    answer = await calls.ask("g", OffsetCommitRequest("g", -1, "", None, items))
    assert [(result.topic, result.partition, result.error) for result in answer.results] == [
        ("t", 0, NONE),
        ("no", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 4, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert await calls.committed("g") == {("t", 0): 7}
    assert await calls.commit("g", 1, topic="no") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_deleted_topics_offsets_are_forgotten(calls: GroupCalls) -> None:
    await calls.cluster.create_topic("kept")
    assert await calls.commit("g", 7) is NONE
    assert await calls.commit("g", 8, topic="kept") is NONE
    await calls.node(1).call(DeleteTopicsRequest(("t",)), timeout_s=10)
    async with asyncio.timeout(100):
        while await calls.committed("g") != {("kept", 0): 8}:
            await asyncio.sleep(0.01)
    await calls.cluster.restart(1)
    assert await calls.committed("g") == {("kept", 0): 8}


async def test_a_settings_bound_is_kept() -> None:
    config = {"offset.metadata.max.bytes": "4", "group.min.session.timeout.ms": "9000", "group.max.size": "1"}
    async with AsyncCluster(1, config=config) as cluster, GroupCalls(cluster) as calls:
        await cluster.create_topic("t")
        assert await calls.commit("g", 1000) is ErrorCode.OFFSET_METADATA_TOO_LARGE
        short = calls.member("g", session_timeout_ms=8_999)
        answer = await calls.ask("g", short.join_request())
        assert answer.error is ErrorCode.INVALID_SESSION_TIMEOUT
        await calls.member("g").join()
        answer = await calls.ask("g", calls.member("g", instance="i").join_request())
        assert answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED


# --- what it costs, and what is seen of it ----------------------------------------------------------


async def test_a_node_is_not_woken_for_groups_before_something_is_due(
    calls: GroupCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = calls.broker(1).groups.coordinator

    def timer() -> asyncio.TimerHandle | None:
        return coordinator._timer

    assert timer() is None, "nobody has asked for a group yet"
    member = calls.member("g", session_timeout_ms=60_000, rebalance_timeout_ms=60_000)
    await member.join()
    for offset in range(20):
        assert await member.commit(offset) is NONE
    woken: list[int] = []
    tick = coordinator._tick

    def counted() -> None:
        woken.append(1)
        tick()

    monkeypatch.setattr(coordinator, "_tick", counted)
    coordinator._set_timer(0)
    async with asyncio.timeout(5):
        while not woken:
            await asyncio.sleep(0)
    handle = timer()
    assert handle is not None
    assert handle.when() - asyncio.get_running_loop().time() > 30, "the session's end is next"
    assert not [task for task in asyncio.all_tasks() if "GroupCoordinator" in repr(task.get_coro())]


async def test_figures_of_groups_move(calls: GroupCalls) -> None:
    def figures() -> dict[str, float]:
        return {
            reading.metric.exported + "".join(reading.labels): reading.value
            for reading in NodeSource(calls.cluster.nodes[NodeId(1)]).readings()
            if "group" in reading.metric.name and not isinstance(reading.value, Latency)
        }

    assert not any(figures().values())
    members = [calls.member("g"), calls.member("g", instance="static")]
    await members[0].join()
    await asyncio.gather(members[1].join(), members[0].join())
    assert await members[0].commit(1) is NONE
    assert await members[1].commit(2, partition=1) is NONE
    assert await calls.commit("idle", 3) is NONE
    found = figures()
    manager, coordinator = "kafka_coordinator_group_groupmetadatamanager_", "kafka_server_group_coordinator_metrics_"
    assert found[manager + "numgroups"] == 2
    assert found[manager + "numgroupsstable"] == 1
    assert found[manager + "numgroupsempty"] == 1
    assert found[manager + "numoffsets"] == 3
    assert found["tidelog_group_members"] == 2
    assert found[coordinator + "num_partitionsactive"] == 50
    assert found[coordinator + "offset_commit_total"] == 3
    assert found[coordinator + "group_completed_rebalance_total"] == 2
    assert found["tidelog_group_partition_loads_total"] == 50
    assert found["tidelog_group_appends_total"] >= 5
