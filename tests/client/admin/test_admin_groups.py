"""The admin client's calls about groups: each reaches its coordinator, though that moves, loads or dies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from tidelog.aio import Admin
from tidelog.client.admin.group_types import GroupState
from tidelog.client.admin.groups import REMOVED_BY_ADMIN
from tidelog.client.errors import (
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    InvalidGroupIdError,
    NonEmptyGroupError,
    TidelogError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from tidelog.client.group_types import OffsetAndMetadata
from tidelog.model.assignors import Subscription
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, NodeId, Offset, TopicPartition
from tidelog.proto.calls.api import BrokerEndpoint, MetadataRequest, MetadataResponse
from tidelog.proto.calls.group_api import (
    CommittedOffset,
    Coordinator,
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeftMember,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResult,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResult,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResult,
)
from tidelog.proto.logs.consumer_protocol import encode_assignment, encode_subscription
from tidelog.proto.transport.memory_transport import MemoryFabric
from tidelog.proto.transport.network import Address, CallContext, ConnectionLost, Server, Service

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NODES = (1, 2, 3)


@dataclass
class Group:
    state: str = "Empty"
    protocol_type: str = "consumer"
    members: tuple[GroupMember, ...] = ()
    offsets: dict[tuple[str, int], OffsetCommitPartition] = field(default_factory=dict)


class ScriptedGroups:
    """Brokers that keep groups in memory: ``home`` says which node coordinates which, ``trouble`` what goes wrong."""

    def __init__(self) -> None:
        self.fabric = MemoryFabric()
        self.groups: dict[str, Group] = {}
        self.home: dict[str, int] = {}
        self.told: dict[str, int] = {}
        """FindCoordinator's answer for a group, if that is wrong."""
        self.trouble: list[tuple[type, ErrorCode]] = []
        """The next requests of a type that get this error instead of their answer."""
        self.after: Callable[[Any], None] | None = None
        """Called after a request was carried out, before its answer goes out."""
        self.silent: Callable[[Any], bool] = lambda request: False
        """Whether a request gets no answer."""
        self.asked: Counter[tuple[str, int]] = Counter()
        self.requests: list[Any] = []
        self.servers: dict[int, Server] = {}

    async def start(self) -> None:
        for node in NODES:
            network = self.fabric.network(f"node{node}")
            handlers = {
                MetadataRequest: self.metadata,
                FindCoordinatorRequest: self.find,
                ListGroupsRequest: self.list,
                DescribeGroupsRequest: self.describe,
                DeleteGroupsRequest: self.delete,
                OffsetFetchRequest: self.fetch,
                OffsetCommitRequest: self.commit,
                OffsetDeleteRequest: self.forget,
                LeaveGroupRequest: self.leave,
            }
            service = Service({kind: self.wrapped(node, handler) for kind, handler in handlers.items()}, {})
            self.servers[node] = await network.serve("CLIENT", Address("mem", 9000 + node), service)

    def wrapped(self, node: int, handler: Any) -> Any:
        async def handle(request: Any, _: CallContext) -> Any:
            self.requests.append(request)
            self.asked[type(request).__name__, node] += 1
            answer = handler(node, request)
            if self.after is not None:
                self.after(request)
            if self.silent(request):
                await asyncio.Event().wait()
            return answer

        return handle

    async def kill(self, node: int) -> None:
        self.fabric.drop_node(f"node{node}")
        await self.servers.pop(node).close(0)

    def add(self, name: str, node: int, **how: Any) -> Group:
        self.home[name] = node
        self.groups[name] = Group(**how)
        return self.groups[name]

    def metadata(self, _: int, __: MetadataRequest) -> MetadataResponse:
        brokers = tuple(BrokerEndpoint(NodeId(n), "mem", 9000 + n) for n in self.servers)
        return MetadataResponse("scripted", NodeId(1), brokers, ())

    def trip(self, node: int, request: object, group: str) -> ErrorCode:
        for at, (kind, error) in enumerate(self.trouble):
            if isinstance(request, kind):
                del self.trouble[at]
                return error
        if not group:
            return ErrorCode.INVALID_GROUP_ID
        return ErrorCode.NONE if self.home.get(group, node) == node else ErrorCode.NOT_COORDINATOR

    def find(self, _: int, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        found = []
        for key in request.keys:
            node = self.told.get(key, self.home.get(key, 1))
            error = self.trip(node, request, key)
            if error is ErrorCode.NOT_COORDINATOR:
                error = ErrorCode.NONE
            where = (NodeId(node), "mem", 9000 + node) if error is ErrorCode.NONE else (NodeId(-1), "", -1)
            found.append(Coordinator(key, error, *where))
        return FindCoordinatorResponse(tuple(found))

    def list(self, node: int, request: ListGroupsRequest) -> ListGroupsResponse:
        if (error := self.trip(node, request, "any")) not in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR):
            return ListGroupsResponse(error)
        found = tuple(
            ListedGroup(name, group.protocol_type, group.state, "classic")
            for name, group in self.groups.items()
            if self.home[name] == node and (not request.states or group.state in request.states)
        )
        return ListGroupsResponse(ErrorCode.NONE, found)

    def describe(self, node: int, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        found = []
        for name in request.group_ids:
            error = self.trip(node, request, name)
            group = self.groups.get(name)
            if error is ErrorCode.NONE and group is None:
                error = ErrorCode.GROUP_ID_NOT_FOUND
            if group is None or error is not ErrorCode.NONE:
                found.append(DescribedGroup(name, error, "Dead"))
            else:
                found.append(DescribedGroup(name, error, group.state, group.protocol_type, "range", group.members))
        return DescribeGroupsResponse(tuple(found))

    def delete(self, node: int, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        results = []
        for name in request.group_ids:
            error = self.trip(node, request, name)
            if error is ErrorCode.NONE and name not in self.groups:
                error = ErrorCode.GROUP_ID_NOT_FOUND
            if error is ErrorCode.NONE and self.groups[name].members:
                error = ErrorCode.NON_EMPTY_GROUP
            if error is ErrorCode.NONE:
                del self.groups[name]
            results.append(DeletedGroup(name, error))
        return DeleteGroupsResponse(tuple(results))

    def fetch(self, node: int, request: OffsetFetchRequest) -> OffsetFetchResponse:
        results = []
        for asked in request.groups:
            error = self.trip(node, request, asked.group_id)
            offsets = self.groups[asked.group_id].offsets if asked.group_id in self.groups else {}
            wanted = [*offsets] if asked.all_partitions else [(p.topic, p.partition) for p in asked.partitions]
            items = []
            for at in wanted:
                one = offsets.get(at)
                if one is None:
                    items.append(CommittedOffset(*at, ErrorCode.NONE))
                else:
                    items.append(CommittedOffset(*at, ErrorCode.NONE, one.offset, one.leader_epoch, one.metadata))
            results.append(OffsetFetchResult(asked.group_id, error, tuple(items) if error is ErrorCode.NONE else ()))
        return OffsetFetchResponse(tuple(results))

    def commit(self, node: int, request: OffsetCommitRequest) -> OffsetCommitResponse:
        error = self.trip(node, request, request.group_id)
        group = self.groups.get(request.group_id, Group())
        if error is ErrorCode.NONE and group.members:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        results = []
        for item in request.partitions:
            one = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if error is ErrorCode.NONE and item.topic != "t" else error
            if one is ErrorCode.NONE:
                group.offsets[item.topic, item.partition] = item
            results.append(OffsetCommitResult(item.topic, item.partition, one))
        return OffsetCommitResponse(tuple(results))

    def forget(self, node: int, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        if (error := self.trip(node, request, request.group_id)) is not ErrorCode.NONE:
            return OffsetDeleteResponse(error)
        group = self.groups.get(request.group_id)
        if group is None:
            return OffsetDeleteResponse(ErrorCode.GROUP_ID_NOT_FOUND)
        results = []
        for item in request.partitions:
            subscribed = bool(group.members) and item.topic == "t"
            if not subscribed:
                group.offsets.pop((item.topic, item.partition), None)
            one = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
            results.append(OffsetDeleteResult(item.topic, item.partition, one))
        return OffsetDeleteResponse(ErrorCode.NONE, tuple(results))

    def leave(self, node: int, request: LeaveGroupRequest) -> LeaveGroupResponse:
        if (error := self.trip(node, request, request.group_id)) is not ErrorCode.NONE:
            return LeaveGroupResponse(error)
        group = self.groups[request.group_id]
        results = []
        for leaving in request.members:
            stay = tuple(
                m
                for m in group.members
                if m.member_id != leaving.member_id
                and (leaving.group_instance_id is None or m.group_instance_id != leaving.group_instance_id)
            )
            one = ErrorCode.UNKNOWN_MEMBER_ID if len(stay) == len(group.members) else ErrorCode.NONE
            group.members = stay
            results.append(LeftMember(leaving.member_id, leaving.group_instance_id, one))
        return LeaveGroupResponse(ErrorCode.NONE, tuple(results))


def member(name: str, *partitions: TopicPartition, instance: str | None = None) -> GroupMember:
    return GroupMember(
        name, instance, f"client-{name}", "127.0.0.1",
        encode_subscription(Subscription(("t",))), encode_assignment(partitions),
    )  # fmt: skip


def committed(at: TopicPartition, offset: int, metadata: str = "") -> OffsetCommitPartition:
    return OffsetCommitPartition(at.topic, at.partition, Offset(offset), LeaderEpoch(4), metadata)


@pytest_asyncio.fixture
async def brokers() -> AsyncIterator[ScriptedGroups]:
    found = ScriptedGroups()
    await found.start()
    yield found
    for node in list(found.servers):
        await found.kill(node)


@pytest_asyncio.fixture
async def admin(brokers: ScriptedGroups) -> AsyncIterator[Admin]:
    network = brokers.fabric.network("admin")
    settings: dict[str, Any] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 1}
    async with Admin("mem:9001,mem:9002,mem:9003", _network=network, **settings) as found:
        yield found


async def test_a_list_is_put_together_from_every_broker(brokers: ScriptedGroups, admin: Admin) -> None:
    brokers.add("c", 1, state="Stable")
    brokers.add("a", 2)
    brokers.add("b", 3, protocol_type="")
    brokers.add("connect", 3, protocol_type="connect")
    found = await admin.list_groups()
    assert [(g.group_id, g.state, g.protocol_type) for g in found] == [
        ("a", GroupState.EMPTY, "consumer"),
        ("b", GroupState.EMPTY, ""),
        ("c", GroupState.STABLE, "consumer"),
        ("connect", GroupState.EMPTY, "connect"),
    ]
    assert [g.group_id for g in await admin.list_consumer_groups()] == ["a", "b", "c"]
    assert [g.is_simple_consumer_group for g in await admin.list_consumer_groups()] == [False, True, False]
    assert [g.group_id for g in await admin.list_groups(states=["stable"])] == ["c"]
    assert [g.group_id for g in await admin.list_groups(states=[GroupState.STABLE, "Empty"])] == [
        "a", "b", "c", "connect",
    ]  # fmt: skip


async def test_a_state_that_there_is_not(admin: Admin) -> None:
    with pytest.raises(ValueError, match=r"expected a state of PreparingRebalance, .*, found 'Sleeping'"):
        await admin.list_groups(states=["Sleeping"])


async def test_a_list_waits_for_a_coordinator_that_loads(brokers: ScriptedGroups, admin: Admin) -> None:
    brokers.add("a", 2)
    brokers.trouble = [(ListGroupsRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)] * 4
    assert [g.group_id for g in await admin.list_groups()] == ["a"]
    assert sum(n for (kind, _), n in brokers.asked.items() if kind == "ListGroupsRequest") == 3 + 4
    brokers.trouble = [(ListGroupsRequest, ErrorCode.UNSUPPORTED_VERSION)]
    with pytest.raises(TidelogError, match=r"node [123]: UNSUPPORTED_VERSION"):
        await admin.list_groups()


async def test_groups_of_a_broker_that_dies_are_listed_by_their_next_coordinator(
    brokers: ScriptedGroups, admin: Admin
) -> None:
    """The others were asked before they had it; so all are asked anew."""
    brokers.add("a", 3)
    await admin.list_groups()
    del brokers.groups["a"]
    brokers.trouble = []
    died = False

    def die(request: object) -> None:
        nonlocal died
        if isinstance(request, ListGroupsRequest) and not died and brokers.asked["ListGroupsRequest", 3] == 2:
            died = True
            brokers.fabric.drop_node("node3")
            brokers.servers.pop(3)
            brokers.add("a", 1)
            raise ConnectionLost("killed while it answered")

    brokers.after = die
    assert [g.group_id for g in await admin.list_groups()] == ["a"]
    assert died


async def test_a_description_decodes_assignments(brokers: ScriptedGroups, admin: Admin) -> None:
    strange = GroupMember("m3", None, "odd", "127.0.0.1", b"\x00", b"\x00\x01\x02")
    waiting = GroupMember("m4", None, "new", "127.0.0.1", encode_subscription(Subscription(("t", "s"))), b"")
    brokers.add("g", 2, state="Stable", members=(member("m2", T1), strange, waiting, member("m1", T0, instance="one")))
    found = (await admin.describe_consumer_groups(["g"]))["g"]
    assert (found.state, found.partition_assignor, found.coordinator.node_id) == (GroupState.STABLE, "range", 2)
    assert [(m.member_id, m.assignment, m.subscription) for m in found.members] == [
        ("m1", (T0,), ("t",)),
        ("m2", (T1,), ("t",)),
        ("m3", None, None),
        ("m4", (), ("s", "t")),
    ]
    assert found.members[0].group_instance_id == "one"
    assert found.members[0].client_id == "client-m1"


async def test_each_failure_is_told_by_its_group(brokers: ScriptedGroups, admin: Admin) -> None:
    brokers.add("g", 2)
    with pytest.raises(GroupIdNotFoundError, match="nobody: the group does not exist") as raised:
        await admin.describe_consumer_groups(["g", "nobody", ""])
    assert {name: type(error).__name__ for name, error in raised.value.failures.items()} == {
        "nobody": "GroupIdNotFoundError",
        "": "InvalidGroupIdError",
    }
    assert any("INVALID_GROUP_ID" in note for note in raised.value.__notes__)


async def test_one_group_where_a_list_is_due(admin: Admin) -> None:
    """Else every letter would be a group."""
    with pytest.raises(TypeError, match="expected a list of group ids, found the string 'billing'"):
        await admin.describe_consumer_groups("billing")


async def test_members_that_are_no_consumers(brokers: ScriptedGroups, admin: Admin) -> None:
    brokers.add("w", 1, protocol_type="connect", members=(GroupMember("m", None, "c", "h", b"x", b"y"),))
    with pytest.raises(InvalidGroupIdError, match="w: expected a group of consumers, found one of 'connect'"):
        await admin.describe_consumer_groups(["w"])
    (found,) = (await admin.describe_classic_groups(["w"])).values()
    assert found.members[0].assignment is None


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    ],
)
@pytest.mark.parametrize(
    "kind",
    [
        FindCoordinatorRequest,
        DescribeGroupsRequest,
        DeleteGroupsRequest,
        OffsetFetchRequest,
        OffsetCommitRequest,
        OffsetDeleteRequest,
        LeaveGroupRequest,
    ],
)
async def test_what_a_coordinator_gets_over_is_retried(
    brokers: ScriptedGroups, admin: Admin, kind: type, error: ErrorCode
) -> None:
    brokers.add("g", 2, offsets={("t", 0): committed(T0, 7)})
    brokers.trouble = [(kind, error)] * 3
    if kind is LeaveGroupRequest:
        brokers.groups["g"].members += (member("m"),)
        await admin.remove_members_from_consumer_group("g")
        assert brokers.groups["g"].members == ()
        return
    await admin.describe_classic_groups(["g"])
    assert await admin.list_consumer_group_offsets("g") == {T0: OffsetAndMetadata(7, 4)}
    await admin.alter_consumer_group_offsets("g", {T1: 3})
    await admin.delete_consumer_group_offsets("g", [T0])
    assert set(await admin.list_consumer_group_offsets("g")) == {T1}
    await admin.delete_consumer_groups(["g"])
    assert brokers.trouble == []
    assert brokers.groups == {}


async def test_trouble_that_lasts_is_told_when_time_is_over(brokers: ScriptedGroups, admin: Admin) -> None:
    brokers.add("g", 2)
    await admin.describe_classic_groups(["g"])  # connected: the rest takes one answer within the time
    brokers.trouble = [(DescribeGroupsRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)] * 1_000_000
    with pytest.raises(TidelogError, match="g: COORDINATOR_LOAD_IN_PROGRESS") as raised:
        await admin.describe_classic_groups(["g"], timeout=1.0)
    assert raised.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_time_that_ends_amid_a_request_leaves_the_trouble_before_it_as_the_reason(
    brokers: ScriptedGroups, admin: Admin
) -> None:
    brokers.add("g", 2)
    await admin.describe_classic_groups(["g"])
    brokers.trouble = [(DescribeGroupsRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)]
    brokers.silent = lambda request: brokers.asked["DescribeGroupsRequest", 2] > 2
    with pytest.raises(TidelogError, match="g: COORDINATOR_LOAD_IN_PROGRESS"):
        await admin.describe_classic_groups(["g"], timeout=1.0)
    assert brokers.asked["DescribeGroupsRequest", 2] == 3


async def test_a_wrong_coordinator_has_it_looked_up_anew(brokers: ScriptedGroups, admin: Admin) -> None:
    brokers.add("g", 3)
    brokers.told["g"] = 1
    lookups = 0

    def correct(request: object) -> None:
        nonlocal lookups
        if isinstance(request, FindCoordinatorRequest):
            lookups += 1
            if lookups == 3:
                del brokers.told["g"]

    brokers.after = correct
    assert set(await admin.describe_classic_groups(["g"])) == {"g"}
    assert (lookups, brokers.asked["DescribeGroupsRequest", 1], brokers.asked["DescribeGroupsRequest", 3]) == (4, 3, 1)


async def test_groups_are_asked_for_together_by_coordinator(brokers: ScriptedGroups, admin: Admin) -> None:
    names = [f"g{n}" for n in range(30)]
    for n, name in enumerate(names):
        brokers.add(name, 1 + n % 3, offsets={("t", 0): committed(T0, n)})
    assert list(await admin.describe_classic_groups(names)) == names
    found = await admin.list_consumer_group_offsets(dict.fromkeys(names))
    assert {name: offsets[T0].offset for name, offsets in found.items()} == {f"g{n}": n for n in range(30)}
    kinds = Counter(type(request).__name__ for request in brokers.requests)
    assert (kinds["FindCoordinatorRequest"], kinds["DescribeGroupsRequest"], kinds["OffsetFetchRequest"]) == (2, 3, 3)


async def test_offsets_are_committed_read_and_forgotten(brokers: ScriptedGroups, admin: Admin) -> None:
    brokers.add("g", 2)
    await admin.alter_consumer_group_offsets("g", {T0: OffsetAndMetadata(5, 9, "why"), T1: 6})
    everything = {T0: OffsetAndMetadata(5, 9, "why"), T1: OffsetAndMetadata(6)}
    assert await admin.list_consumer_group_offsets("g") == everything
    t2 = TopicPartition("t", 2)
    assert await admin.list_consumer_group_offsets("g", [T1, t2]) == {T1: OffsetAndMetadata(6)}
    assert await admin.list_consumer_group_offsets({"g": [T0]}) == {"g": {T0: everything[T0]}}
    assert await admin.list_consumer_group_offsets("nobody") == {}
    await admin.delete_consumer_group_offsets("g", [T0, t2])
    assert await admin.list_consumer_group_offsets("g") == {T1: everything[T1]}
    with pytest.raises(ValueError, match="t-0: expected an offset of 0 or more, found -1"):
        await admin.alter_consumer_group_offsets("g", {T0: -1})
    with pytest.raises(UnknownTopicOrPartitionError, match="g: u-0: UNKNOWN_TOPIC_OR_PARTITION") as raised:
        await admin.alter_consumer_group_offsets("g", {T0: 1, TopicPartition("u", 0): 2})
    assert list(raised.value.failures) == ["u-0"]
    assert (await admin.list_consumer_group_offsets("g"))[T0].offset == 1


async def test_a_group_with_members_is_left_alone(brokers: ScriptedGroups, admin: Admin) -> None:
    brokers.add("g", 2, state="Stable", members=(member("m", T0),), offsets={("t", 0): committed(T0, 7)})
    brokers.add("empty", 2)
    with pytest.raises(UnknownMemberIdError, match="g: t-0: expected a group without members") as altered:
        await admin.alter_consumer_group_offsets("g", {T0: 1, T1: 1})
    assert list(altered.value.failures) == ["t-0", "t-1"]
    with pytest.raises(GroupSubscribedToTopicError, match="g: t-0: the group's members are subscribed to it"):
        await admin.delete_consumer_group_offsets("g", [T0])
    with pytest.raises(NonEmptyGroupError, match="g: expected a group without members") as deleted:
        await admin.delete_consumer_groups(["g", "empty"])
    assert list(deleted.value.failures) == ["g"]
    assert set(brokers.groups) == {"g"}
    with pytest.raises(GroupIdNotFoundError):
        await admin.delete_consumer_group_offsets("nobody", [T0])


async def test_a_deletion_whose_answer_was_lost_is_done(brokers: ScriptedGroups, admin: Admin) -> None:
    brokers.add("g", 2)

    def lose(request: object) -> None:
        if isinstance(request, DeleteGroupsRequest):
            brokers.after = None
            raise ConnectionLost("the answer is lost")

    brokers.after = lose
    await admin.delete_consumer_groups(["g"])
    assert brokers.groups == {}
    assert sum(n for (kind, _), n in brokers.asked.items() if kind == "DeleteGroupsRequest") == 2
    with pytest.raises(GroupIdNotFoundError):
        await admin.delete_consumer_groups(["g"])


async def test_members_are_removed(brokers: ScriptedGroups, admin: Admin) -> None:
    group = brokers.add("g", 2, members=(member("m1", instance="one"), member("m2", instance="two"), member("m3")))
    await admin.remove_members_from_consumer_group("g", ["one"], reason="moves to another rack")
    assert [m.member_id for m in group.members] == ["m2", "m3"]
    (request,) = (r for r in brokers.requests if isinstance(r, LeaveGroupRequest))
    assert request.members[0].reason == f"{REMOVED_BY_ADMIN}: moves to another rack"
    with pytest.raises(UnknownMemberIdError, match="g: one: the member does not exist") as raised:
        await admin.remove_members_from_consumer_group("g", ["one", "two"])
    assert list(raised.value.failures) == ["one"]
    assert [m.member_id for m in group.members] == ["m3"]
    await admin.remove_members_from_consumer_group("g")
    assert group.members == ()
    await admin.remove_members_from_consumer_group("g")  # nobody is left: nothing is sent
    with pytest.raises(GroupIdNotFoundError):
        await admin.remove_members_from_consumer_group("nobody")


async def test_a_coordinator_that_dies_is_replaced(brokers: ScriptedGroups, admin: Admin) -> None:
    brokers.add("g", 2, offsets={("t", 0): committed(T0, 7)})
    assert set(await admin.list_consumer_group_offsets("g")) == {T0}
    await brokers.kill(2)
    brokers.told["g"] = 2

    def move(request: object) -> None:
        if isinstance(request, FindCoordinatorRequest):
            brokers.told.clear()
            brokers.home["g"] = 3

    brokers.after = move
    assert set(await admin.list_consumer_group_offsets("g")) == {T0}
