"""The shell on real quorums over the in-memory transport: failover, answers at commit, metadata for brokers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tidelog.metadata_quorum import controller_node
from tidelog.metadata_quorum.controller.features import supported_features
from tidelog.metadata_quorum.controller_node import ControllerNode, quorum_timing
from tidelog.metadata_quorum.image.change import MetadataDelta, apply_records, difference
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.metadata_quorum.image.snapshot import decode_snapshot, encode_snapshot
from tidelog.metadata_quorum.quorum import PROPOSALS_UNDER_WAY_MAX
from tidelog.metadata_quorum.raft.recovery import recover
from tidelog.metadata_quorum.raft.types import QuorumTiming
from tidelog.model.clock import SystemClock
from tidelog.model.errors import ErrorCode
from tidelog.model.features import SUPPORTED_FEATURES
from tidelog.model.ids import BrokerEpoch, ControllerEpoch, DirectoryId, NodeId, Offset
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.calls.api import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    FeatureUpdate,
    NewTopic,
    UpdateFeaturesRequest,
)
from tidelog.proto.calls.controller_api import (
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    Endpoint,
    FetchMetadataRequest,
    FetchMetadataResponse,
    FetchMetadataSnapshotRequest,
    RegisterBrokerRequest,
    RegisterControllerRequest,
)
from tidelog.proto.logs.metadata_codec import decode_batch
from tidelog.proto.transport.memory_transport import MemoryFabric
from tidelog.proto.transport.network import Address, CallContext
from tidelog.storage.disk.files import SystemFiles

HERE = CallContext("CONTROLLER", "test")
NONE = ErrorCode.NONE


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for a condition, with a bound."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


class Quorum:
    """Controllers 1 to ``count`` in one process."""

    def __init__(self, directory: Path, count: int, settings: dict[str, str]) -> None:
        self.directory = directory
        self.fabric = MemoryFabric()
        self.settings = settings
        self.ids = range(1, count + 1)
        self.nodes: dict[int, ControllerNode] = {}
        self.fatal: list[BaseException] = []
        self._servers: dict[int, Any] = {}

    async def start(self, node_id: int) -> ControllerNode:
        voters = ",".join(f"{voter}@127.0.0.1:{9000 + voter}" for voter in self.ids)
        config = NodeConfig.parse(
            {
                "node.id": str(node_id),
                "process.roles": "controller",
                "listeners": f"CONTROLLER://127.0.0.1:{9000 + node_id}",
                "controller.quorum.voters": voters,
                **self.settings,
            }
        )
        network = self.fabric.network(f"controller-{node_id}")
        node = ControllerNode(
            config,
            cluster_id="c",
            network=network,
            files=SystemFiles(),
            directory=self.directory / str(node_id),
            clock=SystemClock(),
            rng=random.Random(node_id),
            on_fatal=self.fatal.append,
            refuses=network.refuses,
        )
        self._servers[node_id] = await network.serve("CONTROLLER", Address("127.0.0.1", 9000 + node_id), node.service())
        await node.start()
        self.nodes[node_id] = node
        return node

    async def end(self, node_id: int, *, clean: bool = True) -> None:
        node = self.nodes.pop(node_id)
        await self._servers.pop(node_id).close(0)
        await (node.stop() if clean else node.kill())

    async def active(self) -> ControllerNode:
        """The active controller, once what it appends at first is committed."""
        await until(lambda: any(node.active and node.image.features for node in self.nodes.values()))
        return next(node for node in self.nodes.values() if node.active and node.image.features)

    async def stop(self) -> None:
        for node_id in list(self.nodes):
            await self.end(node_id)
        assert self.fatal == []


MakeQuorum = Callable[..., Awaitable[Quorum]]


@pytest.fixture
async def make_quorum(tmp_path: Path) -> AsyncIterator[MakeQuorum]:
    made: list[Quorum] = []

    async def make(count: int = 1, **settings: str) -> Quorum:
        quorum = Quorum(tmp_path, count, {name.replace("_", "."): value for name, value in settings.items()})
        made.append(quorum)
        for node_id in quorum.ids:
            await quorum.start(node_id)
        return quorum

    yield make
    for quorum in made:
        await quorum.stop()


async def join(node: ControllerNode, broker: int, incarnation: bytes = b"i" * 16) -> BrokerEpoch:
    """Register a broker and unfence it."""
    response = await node.handle(
        RegisterBrokerRequest(
            cluster_id="c",
            node_id=NodeId(broker),
            incarnation_id=incarnation,
            listeners=(Endpoint("CLIENT", "127.0.0.1", 7000 + broker),),
            rack=None,
            log_dirs=(DirectoryId(bytes([broker]) * 16),),
            features=supported_features(),
            previous_broker_epoch=BrokerEpoch(-1),
        ),
        HERE,
    )
    assert response.error is NONE, response
    epoch: BrokerEpoch = response.broker_epoch
    assert not (await beat(node, broker, epoch)).is_fenced
    return epoch


async def beat(
    node: ControllerNode, broker: int, epoch: BrokerEpoch, *, want_shut_down: bool = False
) -> BrokerHeartbeatResponse:
    request = BrokerHeartbeatRequest(NodeId(broker), epoch, node.image.offset, False, want_shut_down)
    answer = await node.handle(request, HERE)
    assert isinstance(answer, BrokerHeartbeatResponse)
    return answer


async def create(node: ControllerNode, name: str, partitions: int = 1, factor: int = 1) -> Any:
    response = await node.handle(CreateTopicsRequest((NewTopic(name, partitions, factor),)), HERE)
    return response.topics[0]


async def test_answer_comes_once_it_is_committed(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(3)
    node = await quorum.active()
    await join(node, 1)
    created = await create(node, "t", 3)
    assert created.error is NONE
    topic = node.image.topic("t")
    assert topic is not None
    assert topic.topic_id == created.topic_id
    await until(lambda: all(other.image.topic("t") is not None for other in quorum.nodes.values()))


async def test_standby_says_so_and_names_the_leader(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(3)
    active = await quorum.active()
    standby = next(node for node in quorum.nodes.values() if not node.active)
    await until(lambda: standby.leader()[0] == active.leader()[0])
    created = await create(standby, "t")
    assert created.error is ErrorCode.NOT_CONTROLLER
    assert f"it is node {active.leader()[0]}" in created.error_message
    heartbeat = await beat(standby, 1, BrokerEpoch(1))
    assert heartbeat.error is ErrorCode.NOT_CONTROLLER
    assert (await standby.handle(AlterPartitionRequest(NodeId(1), BrokerEpoch(1), ()), HERE)).error is (
        ErrorCode.NOT_CONTROLLER
    )


async def test_requests_under_way_are_judged_on_top_of_each_other(make_quorum: MakeQuorum) -> None:
    """None of them waits for the one before; the second creation sees the first, which is not committed yet."""
    quorum = await make_quorum(1)
    node = await quorum.active()
    await join(node, 1)
    names = ["a", "a", "b", "c"]
    answers = await asyncio.gather(*(create(node, name) for name in names), delete(node, "c"))
    assert [answer.error for answer in answers] == [NONE, ErrorCode.TOPIC_ALREADY_EXISTS, NONE, NONE, NONE]
    assert sorted(node.image.topic_ids) == ["a", "b"]
    assert node.controller.draft is node.controller.committed


async def test_an_answer_that_changes_nothing_waits_for_what_it_rests_on(make_quorum: MakeQuorum) -> None:
    """Not only for an earlier change, which ends while the later one is under way: that a topic exists is not known
    before its creation is committed."""
    quorum = await make_quorum(1)
    node = await quorum.active()
    await join(node, 1)
    between = 0
    async with asyncio.timeout(100):
        for number in itertools.count():
            first, second = f"a{number}", f"b{number}"
            creating = [asyncio.ensure_future(create(node, first))]
            for _ in range(number % 5):
                await asyncio.sleep(0)
            creating.append(asyncio.ensure_future(create(node, second)))
            await creating[0]
            if node.image.topic(second) is None:
                between += 1
                assert (await create(node, second)).error is ErrorCode.TOPIC_ALREADY_EXISTS
                assert node.image.topic(second) is not None, "told before it was committed"
            await creating[1]
            if between == 3:
                return


async def test_a_snapshot_that_is_not_what_it_is_said_to_be_is_refused(make_quorum: MakeQuorum) -> None:
    node = await (await make_quorum(1)).active()
    image = node.image
    for offset, epoch in ((image.offset + 1, image.epoch), (image.offset, image.epoch + 1)):
        with pytest.raises(ValueError, match=f"expected a snapshot at {offset} of epoch {epoch}, found"):
            node.on_load(Offset(offset), ControllerEpoch(epoch), encode_snapshot(image))


async def test_draft_keeps_what_is_under_way_when_something_before_it_commits(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(1)
    node = await quorum.active()
    await join(node, 1)
    kept: list[bool] = []

    def listener(image: MetadataImage, delta: MetadataDelta) -> None:
        if delta.topics_created and image.topic("b") is None:
            kept.append(node.controller.draft.topic("b") is not None)

    node.subscribe(listener)
    kept.clear()
    await asyncio.gather(create(node, "a"), create(node, "b"))
    assert kept == [True]


async def delete(node: ControllerNode, name: str) -> Any:
    return (await node.handle(DeleteTopicsRequest((name,)), HERE)).topics[0]


async def test_kill_of_the_active_controller_loses_nothing_committed(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(3)
    first = await quorum.active()
    epoch = await join(first, 1)
    for number in range(20):
        assert (await create(first, f"t{number}")).error is NONE
    killed = first.leader()[0]
    assert killed is not None
    await quorum.end(killed, clean=False)
    second = await quorum.active()
    assert sorted(second.image.topic_ids) == sorted(f"t{number}" for number in range(20))
    # The broker goes on under its epoch: a fresh session, no fencing.
    assert not (await beat(second, 1, epoch)).is_fenced
    assert (await create(second, "after")).error is NONE
    third = await quorum.start(killed)
    await until(lambda: third.image.topic("after") is not None)
    assert third.image == second.image


async def test_cut_off_controller_gives_up_and_its_draft_is_dropped(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(3)
    old = await quorum.active()
    await join(old, 1)
    me = old.leader()[0]
    for other in quorum.ids:
        if other != me:
            quorum.fabric.cut(f"controller-{me}", f"controller-{other}")
            quorum.fabric.cut(f"controller-{other}", f"controller-{me}")
    answer = await create(old, "ghost")
    assert answer.error is ErrorCode.REQUEST_TIMED_OUT
    assert "unknown" in answer.error_message
    assert not old.active
    await until(lambda: any(node.active for node in quorum.nodes.values()))
    new = await quorum.active()
    assert (await create(new, "real")).error is NONE
    quorum.fabric.heal()
    await until(lambda: old.image.topic("real") is not None)
    assert old.image.topic("ghost") is None
    assert (await create(new, "ghost")).error is NONE


async def test_silent_broker_is_fenced_by_the_timer(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(1)
    node = await quorum.active()
    await join(node, 1)
    begun = asyncio.get_running_loop().time()
    await until(lambda: node.image.brokers[NodeId(1)].fenced)
    elapsed = asyncio.get_running_loop().time() - begun
    assert 0.55 <= elapsed < 5


async def test_broker_that_beats_stays(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(1)
    node = await quorum.active()
    epoch = await join(node, 1)
    loop = asyncio.get_running_loop()
    end = loop.time() + 1.2
    while loop.time() < end:
        assert not (await beat(node, 1, epoch)).is_fenced
        await asyncio.sleep(0.1)


async def test_controlled_shutdown_over_heartbeats(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(1)
    node = await quorum.active()
    one, two = await join(node, 1, b"1" * 16), await join(node, 2, b"2" * 16)
    assert (await create(node, "t", 4, 2)).error is NONE
    async with asyncio.timeout(100):
        while not (await beat(node, 1, one, want_shut_down=True)).should_shut_down:
            await beat(node, 2, two)
    assert not node.image.leads_any(NodeId(1))
    assert node.image.brokers[NodeId(1)].fenced


async def test_preferred_leaders_are_restored_by_themselves(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(1, leader_imbalance_check_interval_seconds="1", broker_session_timeout_ms="60000")
    node = await quorum.active()
    await join(node, 1, b"1" * 16)
    await join(node, 2, b"2" * 16)
    await create(node, "t", 2, 2)
    topic = node.image.topic("t")
    assert topic is not None
    from tidelog.proto.logs.metadata_records import PartitionChangeRecord

    partition = topic.partitions[0]
    node._append((PartitionChangeRecord(topic.topic_id, 0, leader=partition.replicas[1]),))

    def led_by_preferred() -> bool:
        found = node.image.partition(topic.topic_id, 0)
        assert found is not None
        return found.leader_epoch == 2 and found.leader == found.replicas[0]

    await until(led_by_preferred)


async def test_snapshot_by_size_survives_a_restart(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(1, metadata_log_max_record_bytes_between_snapshots="2000")
    node = await quorum.active()
    await join(node, 1)
    for number in range(60):
        await create(node, f"t{number}")
    await until(lambda: node.quorum.snapshot_offset > 10)
    image = node.image
    await quorum.end(1)
    again = await quorum.start(1)
    await quorum.active()
    assert again.image.topic_ids == image.topic_ids
    assert again.image.topics == image.topics
    assert again.image.next_producer_id == image.next_producer_id


async def test_snapshot_by_time(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(1, metadata_log_max_snapshot_interval_ms="300")
    node = await quorum.active()
    await join(node, 1)
    await until(lambda: node.quorum.snapshot_offset > 1 and node.bytes_since_snapshot == 0)


async def test_too_many_changes_under_way_are_refused(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(1, controller_requests_max="3")
    node = await quorum.active()
    epoch = await join(node, 1)
    answers = await asyncio.gather(*(create(node, f"t{number}") for number in range(8)), beat(node, 1, epoch))
    errors = [answer.error for answer in answers]
    assert errors[:3] == [NONE] * 3
    assert errors[3:8] == [ErrorCode.THROTTLING_QUOTA_EXCEEDED] * 5
    assert errors[8] is NONE, "a heartbeat was refused"
    assert (await create(node, "later")).error is NONE


async def test_nothing_exceeds_the_quorums_own_bound(make_quorum: MakeQuorum, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats are not throttled by number, but a change that would not fit is not begun."""
    quorum = await make_quorum(1)
    node = await quorum.active()
    epoch = await join(node, 1)
    assert controller_node.ENTRIES_UNDER_WAY_MAX + controller_node.ENTRIES_RESERVED < PROPOSALS_UNDER_WAY_MAX
    monkeypatch.setattr(controller_node, "ENTRIES_UNDER_WAY_MAX", 0)
    monkeypatch.setattr(controller_node, "ENTRIES_RESERVED", 0)
    before = node.image.offset
    assert (await create(node, "t")).error is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert (await beat(node, 1, epoch)).error is NONE, "a heartbeat that changes nothing was refused"
    asked = await node.handle(BrokerHeartbeatRequest(NodeId(1), epoch, node.image.offset, True, False), HERE)
    assert asked.error is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert not node.image.brokers[NodeId(1)].fenced
    await asyncio.sleep(0.8)
    assert not node.image.brokers[NodeId(1)].fenced, "fencing waits until there is room"
    monkeypatch.undo()
    await until(lambda: node.image.brokers[NodeId(1)].fenced)
    assert node.image.offset == before + 1


async def test_request_that_is_not_committed_in_time(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(1)
    node = await quorum.active()
    await join(node, 1)
    response = await node.handle(CreateTopicsRequest((NewTopic("t", 1, 1),), timeout_ms=0), HERE)
    assert response.topics[0].error is ErrorCode.REQUEST_TIMED_OUT
    await until(lambda: node.image.topic("t") is not None)


async def test_describe_cluster(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(1)
    node = await quorum.active()
    await join(node, 1)
    described = await node.service().calls[DescribeClusterRequest](DescribeClusterRequest(), HERE)
    assert (described.cluster_id, described.controller_id) == ("c", 1)
    assert [(broker.node_id, broker.fenced) for broker in described.brokers] == [(1, False)]
    assert [(voter.node_id, voter.log_end_offset) for voter in described.voters] == [(1, node.image.offset)]
    assert {feature.name: feature.level for feature in described.features} == {
        "group.version": 1,
        "metadata.version": 2,
        "transaction.version": 2,
    }
    assert described.observers == (), "node 1 votes"


async def test_brokers_without_a_vote_are_observers(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(1)
    node = await quorum.active()
    epoch, behind = await join(node, 5), await join(node, 6)
    await node.handle(BrokerHeartbeatRequest(NodeId(6), behind, Offset(1), False, False), HERE)
    await beat(node, 5, epoch)
    described = await node.service().calls[DescribeClusterRequest](DescribeClusterRequest(), HERE)
    five, six = described.observers
    assert (five.node_id, five.log_end_offset) == (5, node.image.offset)
    assert (six.node_id, six.log_end_offset) == (6, 1)
    assert five.last_fetch_ms == five.last_caught_up_ms > 0
    assert six.last_fetch_ms >= six.last_caught_up_ms


async def test_a_level_is_raised_by_the_word_of_those_that_vote(
    make_quorum: MakeQuorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two of three directories are lost, the configuration still names all three."""
    monkeypatch.setitem(SUPPORTED_FEATURES, "metadata.version", (1, 3))
    quorum = await make_quorum(3)
    await quorum.active()
    for node_id in quorum.ids:
        await quorum.end(node_id)
    recover(SystemFiles(), str(quorum.directory / "1"))
    await quorum.start(1)
    node = await quorum.active()
    await node.handle(RegisterControllerRequest("c", NodeId(1), supported_features()), HERE)
    raised = await node.handle(UpdateFeaturesRequest((FeatureUpdate("metadata.version", 3),)), HERE)
    assert (raised.error, raised.error_message) == (NONE, "")


# --- What brokers get ---


class Follower:
    """Keeps an image by what a controller serves."""

    def __init__(self, node: ControllerNode) -> None:
        self.calls = node.service().calls
        self.image = MetadataImage()
        self.snapshots = 0

    async def fetch(self, wait_ms: int = 0) -> FetchMetadataResponse:
        request = FetchMetadataRequest(NodeId(9), Offset(self.image.offset + 1), self.image.epoch, wait_ms)
        response: FetchMetadataResponse = await self.calls[FetchMetadataRequest](request, HERE)
        if response.error is not NONE:
            return response
        if response.snapshot_offset >= 0:
            await self.load(response)
        for entry in response.entries:
            records = decode_batch(entry.records) if entry.records else ()
            self.image, _ = apply_records(self.image, records, entry.offset, entry.epoch)
        return response

    async def load(self, response: FetchMetadataResponse) -> None:
        data = b""
        while True:
            request = FetchMetadataSnapshotRequest(
                NodeId(9), response.snapshot_offset, response.snapshot_epoch, len(data)
            )
            part = await self.calls[FetchMetadataSnapshotRequest](request, HERE)
            assert part.error is NONE
            data += part.chunk
            if len(data) == part.size:
                break
        self.snapshots += 1
        self.image = decode_snapshot(data)


async def test_broker_follows_by_entries(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(1)
    node = await quorum.active()
    await join(node, 1)
    await create(node, "t", 3)
    follower = Follower(node)
    await follower.fetch()
    assert follower.image == node.image
    assert follower.snapshots == 0
    waiting = asyncio.ensure_future(follower.fetch(wait_ms=10_000))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await create(node, "u")
    await asyncio.wait_for(waiting, 5)
    assert follower.image == node.image


async def test_empty_answer_after_the_wait(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(1)
    node = await quorum.active()
    follower = Follower(node)
    await follower.fetch()
    response = await follower.fetch(wait_ms=50)
    assert (response.error, response.entries, response.high_watermark) == (NONE, (), node.image.offset)
    assert (response.leader_id, response.epoch) == (1, node.leader()[1])


async def test_broker_far_behind_or_on_another_branch_loads_a_snapshot(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(1)
    node = await quorum.active()
    await join(node, 1)
    await create(node, "t", 3)
    follower = Follower(node)
    follower.image = MetadataImage(offset=Offset(3), epoch=ControllerEpoch(99))
    await follower.fetch()
    assert follower.snapshots == 1
    assert follower.image == node.image


async def test_asker_that_is_ahead_is_sent_elsewhere(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(1)
    node = await quorum.active()
    follower = Follower(node)
    follower.image = MetadataImage(offset=Offset(1000), epoch=ControllerEpoch(1))
    assert (await follower.fetch()).error is ErrorCode.OFFSET_NOT_AVAILABLE


async def test_snapshot_that_is_not_there(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(1)
    node = await quorum.active()
    call = node.service().calls[FetchMetadataSnapshotRequest]
    missing = FetchMetadataSnapshotRequest(NodeId(9), Offset(7), ControllerEpoch(1), 0)
    assert (await call(missing, HERE)).error is ErrorCode.SNAPSHOT_NOT_FOUND
    offered = await Follower(node).calls[FetchMetadataRequest](
        FetchMetadataRequest(NodeId(9), Offset(2), ControllerEpoch(99), 0), HERE
    )
    beyond = FetchMetadataSnapshotRequest(NodeId(9), offered.snapshot_offset, offered.snapshot_epoch, 10**6)
    assert (await call(beyond, HERE)).error is ErrorCode.POSITION_OUT_OF_RANGE


async def test_brokers_go_on_without_a_leader(make_quorum: MakeQuorum) -> None:
    """A standby serves what is committed while there is no majority."""
    quorum = await make_quorum(3)
    active = await quorum.active()
    await join(active, 1)
    await create(active, "t")
    for node in quorum.nodes.values():  # a standby hears of the commit a moment later
        await until(lambda node=node: node.image.topic("t") is not None)  # type: ignore[misc]
    for node_id in list(quorum.ids)[:]:
        if len(quorum.nodes) > 1 and quorum.nodes[node_id].active:
            await quorum.end(node_id, clean=False)
    left = min(quorum.nodes)
    for node_id in list(quorum.nodes):
        if node_id != left:
            await quorum.end(node_id, clean=False)
    follower = Follower(quorum.nodes[left])
    await follower.fetch()
    assert follower.image.topic("t") is not None


async def test_subscriber_hears_every_change_once(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(1)
    node = await quorum.active()
    heard: list[tuple[MetadataImage, MetadataDelta]] = []
    leaders: list[object] = []
    node.subscribe(lambda image, delta: heard.append((image, delta)))
    node.subscribe_leader(lambda leader, epoch: leaders.append((leader, epoch)))
    assert leaders == [node.leader()]
    assert heard[0][0] is node.image
    assert heard[0][1] == difference(MetadataImage(), node.image)
    await join(node, 1)
    await create(node, "t", 2)
    assert [image.offset for image, _ in heard] == list(range(heard[0][0].offset, node.image.offset + 1))
    assert len(heard[-1][1].partitions) == 2
    assert heard[-1][0] is node.image


async def test_stop_answers_whoever_waits(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(1)
    node = await quorum.active()
    follower = Follower(node)
    await follower.fetch()
    waiting = asyncio.ensure_future(follower.fetch(wait_ms=30_000))
    await asyncio.sleep(0.01)
    await quorum.end(1)
    assert (await asyncio.wait_for(waiting, 5)).entries == ()
    assert (await create(node, "t")).error is ErrorCode.NOT_CONTROLLER


async def test_what_is_committed_while_it_stops_is_no_bug(make_quorum: MakeQuorum) -> None:
    quorum = await make_quorum(1)
    node = await quorum.active()
    await join(node, 1)
    before = node.image.offset

    async def lingers() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await until(lambda: node.image.offset > before or quorum.fatal)

    node._tasks.add(asyncio.create_task(lingers()))
    asking = asyncio.ensure_future(create(node, "t"))
    await asyncio.sleep(0)
    await node.stop()
    assert quorum.fatal == []
    assert node.image.topic("t") is not None
    await asyncio.wait([asking], timeout=5)


async def test_a_bug_in_a_decision_takes_the_node_down(
    make_quorum: MakeQuorum, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    quorum = await make_quorum(1)
    node = await quorum.active()

    def broken(now_ms: int) -> Any:
        raise AssertionError("a bug")

    monkeypatch.setattr(node.controller, "fence_silent", broken)
    await until(lambda: quorum.fatal)
    assert str(quorum.fatal.pop()) == "a bug"


def test_timing_follows_the_setting() -> None:
    config = NodeConfig.parse({"node.id": "1"})
    assert quorum_timing(config) == QuorumTiming()
    slow = NodeConfig.parse({"node.id": "1", "controller.quorum.election.timeout.ms": "1000"})
    assert quorum_timing(slow).election_min_s == pytest.approx(1.0)
