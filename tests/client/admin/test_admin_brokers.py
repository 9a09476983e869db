"""The admin client's calls to named brokers, to all brokers, and through one of them to the controller."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tidelog.aio import Admin
from tidelog.client.errors import (
    BrokerNotAvailableError,
    ClusterAuthorizationFailedError,
    RequestTimedOutError,
    TidelogError,
)
from tidelog.model.errors import EXCEPTIONS, ErrorCode
from tidelog.model.ids import DirectoryId, NodeId, TopicPartition
from tidelog.proto.calls.api import (
    BrokerEndpoint,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogDir,
    MetadataRequest,
    MetadataResponse,
)
from tidelog.proto.calls.reassignment_api import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    PartitionResult,
)
from tidelog.proto.transport.memory_transport import MemoryFabric
from tidelog.proto.transport.network import Address, CallContext, Server, Service

AT = TopicPartition("t", 0)


class Brokers:
    """Three nodes. ``unheard``: how many questions for metadata still name a node that is down. ``answers``: what
    requests to move replicas get, one after the other."""

    def __init__(self) -> None:
        self.fabric = MemoryFabric()
        self.servers: dict[int, Server] = {}
        self.down: set[int] = set()
        self.unheard = 0
        self.refusals: dict[int, ErrorCode] = {}
        self.answers: list[ErrorCode] = []
        self.asked: Counter[str] = Counter()

    async def start(self) -> None:
        for node in (1, 2, 3):
            handlers = {
                MetadataRequest: self.metadata,
                DescribeLogDirsRequest: self.log_dirs,
                AlterPartitionReassignmentsRequest: self.reassign,
            }
            service = Service({kind: self.served(node, handler) for kind, handler in handlers.items()}, {})
            self.servers[node] = await self.fabric.network(f"node{node}").serve(
                "CLIENT", Address("mem", 9000 + node), service
            )

    def served(self, node: int, handler: Any) -> Any:
        async def handle(request: Any, _: CallContext) -> Any:
            self.asked[type(request).__name__] += 1
            return handler(node)

        return handle

    async def kill(self, node: int) -> None:
        self.down.add(node)
        self.fabric.drop_node(f"node{node}")
        await self.servers.pop(node).close(0)

    def metadata(self, _: int) -> MetadataResponse:
        named = set(self.servers)
        if self.unheard and self.down:
            self.unheard -= 1
            named |= self.down
        brokers = tuple(BrokerEndpoint(NodeId(node), "mem", 9000 + node) for node in sorted(named))
        return MetadataResponse("scripted", NodeId(1), brokers, ())

    def log_dirs(self, node: int) -> DescribeLogDirsResponse:
        found = LogDir(f"/data/{node}", DirectoryId(bytes(16)), ErrorCode.NONE, 2, 1, ())
        return DescribeLogDirsResponse((found,), self.refusals.get(node, ErrorCode.NONE))

    def reassign(self, _: int) -> AlterPartitionReassignmentsResponse:
        error = self.answers.pop(0) if self.answers else ErrorCode.NONE
        return AlterPartitionReassignmentsResponse(ErrorCode.NONE, (PartitionResult(*AT, error),))


@pytest_asyncio.fixture
async def brokers() -> AsyncIterator[Brokers]:
    found = Brokers()
    await found.start()
    yield found
    for node in list(found.servers):
        await found.kill(node)


@pytest_asyncio.fixture
async def admin(brokers: Brokers) -> AsyncIterator[Admin]:
    settings: dict[str, Any] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 1}
    network = brokers.fabric.network("admin")
    async with Admin("mem:9001,mem:9002,mem:9003", _network=network, **settings) as found:
        yield found


async def test_log_directories_of_all_live_brokers_though_one_has_just_died(brokers: Brokers, admin: Admin) -> None:
    assert {node: dirs[0].path for node, dirs in (await admin.describe_log_dirs()).items()} == {
        node: f"/data/{node}" for node in (1, 2, 3)
    }
    brokers.unheard = 5
    await brokers.kill(3)
    assert set(await admin.describe_log_dirs()) == {1, 2}
    assert not brokers.unheard


async def test_each_named_broker_without_an_answer_is_told(brokers: Brokers, admin: Admin) -> None:
    await admin.describe_log_dirs()
    brokers.unheard = 1_000_000
    await brokers.kill(2)
    brokers.refusals[3] = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    with pytest.raises(BrokerNotAvailableError) as failed:
        await admin.describe_log_dirs([1, 2, 3])
    assert failed.value.failures.keys() == {"2", "3"}
    assert isinstance(failed.value.failures["3"], ClusterAuthorizationFailedError)
    with pytest.raises(ClusterAuthorizationFailedError, match="node 3"):
        await admin.describe_log_dirs([1, 3])


async def test_a_move_is_asked_for_until_the_outcome_is_known(brokers: Brokers, admin: Admin) -> None:
    brokers.answers = [ErrorCode.REQUEST_TIMED_OUT] * 2
    await admin.alter_partition_reassignments({AT: [1, 2]})
    assert brokers.asked["AlterPartitionReassignmentsRequest"] == 3


async def test_a_cancellation_of_unknown_outcome_is_told_as_such(brokers: Brokers, admin: Admin) -> None:
    brokers.answers = [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]
    with pytest.raises(RequestTimedOutError):
        await admin.alter_partition_reassignments({AT: None})
    assert brokers.asked["AlterPartitionReassignmentsRequest"] == 1
    with pytest.raises(TidelogError) as refused:
        await admin.alter_partition_reassignments({AT: None})
    assert isinstance(refused.value, EXCEPTIONS[ErrorCode.NO_REASSIGNMENT_IN_PROGRESS])
