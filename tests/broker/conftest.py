"""Whole clusters for tests, and a ledger that judges what became of the records sent to them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, NodeId, Offset
from tidelog.proto.group_api import (
    Coordinator,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from tidelog.proto.network import Address, CallTimeout, Connection, ConnectionLost
from tidelog.proto.request import Request, Response
from tidelog.testing.async_cluster import AsyncCluster

R = TypeVar("R", bound=Response)


class Ledger:
    """Sends numbered records to a topic in the background and compares what was acknowledged with the log.

    Each value is ``number``, each key the partition's number; one producer, so numbers of one
    partition must be read in rising order, each at most once, each acknowledged one exactly once.
    """

    def __init__(self, cluster: AsyncCluster, topic: str, partitions: int, **producer: Any) -> None:
        self.cluster = cluster
        self.topic = topic
        self.partitions = partitions
        self.acknowledged: dict[int, int] = {}
        self.failed: dict[int, BaseException] = {}
        self.sent = 0
        self._producer = producer
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[Any] = []

    async def __aenter__(self) -> Ledger:
        self._task = asyncio.ensure_future(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        assert self._task is not None
        if _[0] is not None:
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=_[0] is not None)

    async def more(self, count: int, timeout_s: float = 30) -> None:
        """Wait until that many more records have been acknowledged."""
        wanted = len(self.acknowledged) + count
        await self.cluster.wait_for(lambda: len(self.acknowledged) >= wanted, f"{count} more records", timeout_s)

    async def finish(self) -> None:
        """Stop sending and wait until every record has its outcome."""
        self._stop.set()
        assert self._task is not None
        await self._task

    async def judge(self) -> None:
        """Read the whole topic back and fail on a record that is lost, doubled or out of order."""
        found = await read_all(self.cluster, self.topic, self.partitions)
        values = [int(record.value) for record in found]
        doubled = [value for value, count in Counter(values).items() if count > 1]
        lost = sorted(set(self.acknowledged) - set(values))
        assert not lost, f"{len(lost)} of {len(self.acknowledged)} acknowledged records are lost: {lost[:5]}"
        assert not doubled, f"{len(doubled)} records are doubled: {doubled[:5]}"
        for partition in range(self.partitions):
            own = [int(r.value) for r in found if r.partition == partition]
            assert own == sorted(own), f"partition {partition} is out of order"
        assert self.acknowledged, "nothing was acknowledged: this test shows nothing"

    async def _run(self) -> None:
        async with self.cluster.producer(**self._producer) as producer:
            while not self._stop.is_set():
                number = self.sent
                self.sent += 1
                future = await producer.send(
                    self.topic,
                    str(number).encode(),
                    partition=number % self.partitions,
                    on_delivery=self._heard(number),
                )
                self._waiting.append(future)
                if number % 20 == 19:
                    await asyncio.sleep(0.001)
            await producer.flush(60)

    def _heard(self, number: int) -> Callable[[Any, BaseException | None], None]:
        def heard(metadata: Any, error: BaseException | None) -> None:
            if error is None:
                self.acknowledged[number] = metadata.offset
            else:
                self.failed[number] = error

        return heard


async def read_all(cluster: AsyncCluster, topic: str, partitions: int) -> list[Any]:
    """Every record of a topic, as a new consumer reads them."""
    async with cluster.consumer(auto_offset_reset="earliest") as consumer:
        where = [(topic, partition) for partition in range(partitions)]
        ends = await consumer.end_offsets(where)
        consumer.assign(where)
        found: list[Any] = []
        async with asyncio.timeout(60):
            left = {at: end for at, end in ends.items() if end > 0}
            while left:
                for record in await consumer.poll(1.0, max_records=100_000):
                    found.append(record)
                    at = record.topic_partition
                    if at in left and record.offset + 1 >= left[at]:
                        del left[at]
        return found


@pytest.fixture
def ledger() -> type[Ledger]:
    return Ledger


@pytest.fixture(name="read_all")
def read_all_fixture() -> Any:
    return read_all


COORDINATOR_MOVES = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


class GroupCalls:
    """Speaks the calls of groups to whichever node coordinates, as a client would."""

    def __init__(self, cluster: AsyncCluster) -> None:
        self.cluster = cluster
        self._network = cluster.client_network()
        self._connections: dict[Address, Connection] = {}
        self._found: dict[str, Address] = {}

    async def __aenter__(self) -> GroupCalls:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._connections.values():
            await connection.close()

    def to(self, address: Address) -> Connection:
        if address not in self._connections:
            self._connections[address] = self._network.connect(address)
        return self._connections[address]

    def node(self, node_id: int) -> Connection:
        address = self.cluster.nodes[NodeId(node_id)].client_address
        assert address is not None
        return self.to(address)

    async def find(self, group: str, node_id: int | None = None) -> Coordinator:
        """One FindCoordinator, to any node that runs or to a certain one."""
        asked = min(self.cluster.nodes) if node_id is None else node_id
        answer = await self.node(asked).call(FindCoordinatorRequest((group,)), timeout_s=10)
        return answer.coordinators[0]

    async def coordinator(self, group: str) -> int:
        """Wait until the group has a coordinator that answers for it; its node id."""
        answer = await self.ask(group, DescribeGroupsRequest((group,)))
        assert answer.groups[0].error in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND), answer
        return int((await self.find(group)).node_id)

    async def ask(self, group: str, request: Request[R], timeout_s: float = 30) -> R:
        """Ask the group's coordinator, and the next one while it moves."""
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    if group not in self._found:
                        found = await self.find(group)
                        if found.error is not ErrorCode.NONE:
                            assert found.error is ErrorCode.COORDINATOR_NOT_AVAILABLE, found
                            await asyncio.sleep(0.01)
                            continue
                        self._found[group] = Address(found.host, found.port)
                    answer = await self.to(self._found[group]).call(request, timeout_s=timeout_s)
                except (ConnectionLost, CallTimeout):
                    self._found.pop(group, None)
                    await asyncio.sleep(0.01)
                    continue
                if not errors_of(answer) & COORDINATOR_MOVES:
                    return answer
                self._found.pop(group, None)
                await asyncio.sleep(0.01)

    async def commit(
        self, group: str, offset: int, *, topic: str = "t", partition: int = 0, generation: int = -1, member: str = ""
    ) -> ErrorCode:
        item = OffsetCommitPartition(topic, partition, Offset(offset), LeaderEpoch(3), f"at {offset}")
        answer = await self.ask(group, OffsetCommitRequest(group, generation, member, None, (item,)))
        return answer.results[0].error

    async def committed(self, group: str) -> dict[tuple[str, int], int]:
        """All that the group has committed."""
        answer = await self.ask(group, OffsetFetchRequest((OffsetFetchGroup(group, all_partitions=True),)))
        found = answer.groups[0]
        assert found.error is ErrorCode.NONE, found
        return {(item.topic, item.partition): item.offset for item in found.offsets}

    def member(self, group: str, **settings: Any) -> GroupMember:
        return GroupMember(self, group, **settings)


def errors_of(answer: Any) -> set[ErrorCode]:
    """Every error code in an answer."""
    own = {answer.error} if hasattr(answer, "error") else set()
    parts = (getattr(answer, name, ()) for name in ("results", "groups", "offsets"))
    return own.union(*(errors_of(item) for part in parts for item in part))


class GroupMember:
    """A member that deals out the numbers 0 to ``units`` - 1 when it leads, by its hands alone."""

    def __init__(
        self,
        calls: GroupCalls,
        group: str,
        *,
        instance: str | None = None,
        units: int = 12,
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 10_000,
    ) -> None:
        self.calls = calls
        self.group = group
        self.instance = instance
        self.units = units
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.member_id = ""
        self.generation = -1
        self.owned: list[int] = []
        self.leads = False

    async def join(self) -> None:
        """Join and sync until a generation holds with this member in it."""
        while not await self._sync(await self._join()):
            pass

    async def keep_up(self, stop: asyncio.Event, pause_s: float = 0.02) -> None:
        """Heartbeat, and join again when told to, until stopped."""
        while not stop.is_set():
            if await self.heartbeat() is not ErrorCode.NONE:
                await self.join()
            await asyncio.sleep(pause_s)

    async def heartbeat(self) -> ErrorCode:
        request = HeartbeatRequest(self.group, self.generation, self.member_id, self.instance)
        error = (await self.calls.ask(self.group, request)).error
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.generation = -1
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
        return error

    async def commit(self, offset: int, *, partition: int = 0) -> ErrorCode:
        return await self.calls.commit(
            self.group, offset, partition=partition, generation=self.generation, member=self.member_id
        )

    async def leave(self) -> ErrorCode:
        request = LeaveGroupRequest(self.group, (LeavingMember(self.member_id, self.instance),))
        return (await self.calls.ask(self.group, request)).error

    def join_request(self) -> JoinGroupRequest:
        return JoinGroupRequest(
            self.group,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.member_id,
            self.instance,
            "consumer",
            (GroupProtocol("dealt", b"subscription"),),
            client_id="test",
        )

    async def _join(self) -> JoinGroupResponse:
        while True:
            answer = await self.calls.ask(self.group, self.join_request())
            if answer.error is ErrorCode.NONE:
                self.member_id, self.generation = answer.member_id, answer.generation_id
                self.leads = answer.leader == answer.member_id
                return answer
            if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
            elif answer.error is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            else:
                assert answer.error is ErrorCode.REBALANCE_IN_PROGRESS, answer

    async def _sync(self, joined: JoinGroupResponse) -> bool:
        assignments: tuple[MemberAssignment, ...] = ()
        if self.leads and not joined.skip_assignment:
            ids = sorted(member.member_id for member in joined.members)
            assignments = tuple(
                MemberAssignment(member, ",".join(map(str, range(at, self.units, len(ids)))).encode())
                for at, member in enumerate(ids)
            )
        request = SyncGroupRequest(
            self.group, self.generation, self.member_id, self.instance, "consumer", "dealt", assignments
        )
        answer = await self.calls.ask(self.group, request)
        if answer.error is ErrorCode.NONE:
            self.owned = [int(unit) for unit in answer.assignment.decode().split(",") if unit]
            return True
        if answer.error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        else:
            assert answer.error in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION), answer
        return False


@pytest.fixture
def group_calls() -> type[GroupCalls]:
    return GroupCalls
