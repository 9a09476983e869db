"""The admin client's calls about transactions: each reaches its coordinator or leader, though that moves or loads."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tidelog.aio import Admin
from tidelog.client.admin.transaction_types import (
    AbortTransactionSpec,
    FencedProducer,
    ProducerState,
    TransactionState,
)
from tidelog.client.errors import (
    BrokerNotAvailableError,
    RequestTimedOutError,
    TidelogError,
    UnknownTopicOrPartitionError,
)
from tidelog.model.errors import EXCEPTIONS, ErrorCode
from tidelog.model.ids import LeaderEpoch, NodeId, Offset, ProducerEpoch, ProducerId, TopicId, TopicPartition
from tidelog.proto.calls.api import BrokerEndpoint, MetadataRequest, MetadataResponse, PartitionMetadata, TopicMetadata
from tidelog.proto.calls.group_api import (
    TRANSACTION_COORDINATOR,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupPartition,
)
from tidelog.proto.calls.transaction_api import (
    AddedPartition,
    DescribedTransaction,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    PartitionProducers,
    ProducerDescription,
    TransactionMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenMarker,
)
from tidelog.proto.transport.memory_transport import MemoryFabric
from tidelog.proto.transport.network import Address, CallContext, Server, Service

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
NODES = (1, 2, 3)
OPEN = DescribedTransaction(
    "", ErrorCode.NONE, "Ongoing", ProducerId(7), ProducerEpoch(2), 60_000, 1_700_000_000_000,
    (GroupPartition("t", 1), GroupPartition("t", 0)),
)  # fmt: skip


class Brokers:
    """Three nodes: ``home`` says which coordinates which id, ``leaders`` which leads which partition, ``trouble`` what
    the next requests of a type get instead of their answer."""

    def __init__(self) -> None:
        self.fabric = MemoryFabric()
        self.home: dict[str, int] = {}
        self.leaders = {T0: 1, T1: 2, T2: 3}
        self.told: dict[TopicPartition, int] = {}
        """Leaders in the metadata, if they are wrong."""
        self.trouble: list[tuple[type, ErrorCode]] = []
        self.transactions: dict[str, DescribedTransaction] = {}
        self.producers: dict[TopicPartition, tuple[ProducerDescription, ...]] = {}
        self.markers: list[tuple[int, TransactionMarker]] = []
        self.asked: Counter[tuple[str, int]] = Counter()
        self.requests: list[Any] = []
        self.servers: dict[int, Server] = {}

    async def start(self) -> None:
        for node in NODES:
            handlers = {
                MetadataRequest: self.metadata,
                FindCoordinatorRequest: self.find,
                ListTransactionsRequest: self.list,
                DescribeTransactionsRequest: self.describe,
                InitProducerIdRequest: self.init,
                DescribeProducersRequest: self.describe_producers,
                WriteTxnMarkersRequest: self.write_markers,
            }
            service = Service({kind: self.wrapped(node, handler) for kind, handler in handlers.items()}, {})
            network = self.fabric.network(f"node{node}")
            self.servers[node] = await network.serve("CLIENT", Address("mem", 9000 + node), service)

    def wrapped(self, node: int, handler: Any) -> Any:
        async def handle(request: Any, _: CallContext) -> Any:
            self.requests.append(request)
            self.asked[type(request).__name__, node] += 1
            return handler(node, request)

        return handle

    async def kill(self, node: int) -> None:
        self.fabric.drop_node(f"node{node}")
        await self.servers.pop(node).close(0)

    def add(self, name: str, node: int, state: str = "Ongoing", producer_id: int = 7) -> None:
        self.home[name] = node
        idle = state in ("Empty", "CompleteCommit", "CompleteAbort")
        self.transactions[name] = DescribedTransaction(
            name, ErrorCode.NONE, state, ProducerId(producer_id), OPEN.producer_epoch, OPEN.transaction_timeout_ms,
            -1 if idle else OPEN.start_time_ms, () if idle else OPEN.partitions,
        )  # fmt: skip

    def trip(self, request: object, right: bool, otherwise: ErrorCode) -> ErrorCode:
        for at, (kind, error) in enumerate(self.trouble):
            if isinstance(request, kind):
                del self.trouble[at]
                return error
        return ErrorCode.NONE if right else otherwise

    def coordinates(self, node: int, request: object, name: str) -> ErrorCode:
        return self.trip(request, self.home.get(name, node) == node, ErrorCode.NOT_COORDINATOR)

    def leads(self, node: int, request: object, at: TopicPartition) -> ErrorCode:
        return self.trip(request, self.leaders.get(at) == node, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def metadata(self, _: int, request: MetadataRequest) -> MetadataResponse:
        brokers = tuple(BrokerEndpoint(NodeId(n), "mem", 9000 + n) for n in self.servers)
        views = tuple(
            PartitionMetadata(
                ErrorCode.NONE, at.partition, NodeId(self.told.get(at, node)), LeaderEpoch(0), (NodeId(node),),
                (NodeId(node),), (), (),
            )
            for at, node in self.leaders.items()
        )  # fmt: skip
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topics = tuple(
            TopicMetadata(ErrorCode.NONE, name, TopicId(b"t" * 16), False, views)
            if name == "t"
            else TopicMetadata(unknown, name, TopicId(bytes(16)), False, (), "no such topic")
            for name in request.topics
        )
        return MetadataResponse("scripted", NodeId(1), brokers, topics)

    def find(self, _: int, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        assert request.key_type == TRANSACTION_COORDINATOR
        found = []
        for key in request.keys:
            node = self.home.get(key, 1)
            error = self.trip(request, True, ErrorCode.NONE)
            where = (NodeId(node), "mem", 9000 + node) if error is ErrorCode.NONE else (NodeId(-1), "", -1)
            found.append(Coordinator(key, error, *where))
        return FindCoordinatorResponse(tuple(found))

    def list(self, node: int, request: ListTransactionsRequest) -> ListTransactionsResponse:
        found = tuple(
            ListedTransaction(name, one.producer_id, one.state)
            for name, one in self.transactions.items()
            if self.home[name] == node
            and (not request.states or one.state in request.states)
            and (not request.producer_ids or one.producer_id in request.producer_ids)
        )
        return ListTransactionsResponse(self.trip(request, True, ErrorCode.NONE), found)

    def describe(self, node: int, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
        found = []
        for name in request.transactional_ids:
            error = self.coordinates(node, request, name)
            if error is ErrorCode.NONE and name in self.transactions:
                found.append(self.transactions[name])
            else:
                missing = error if error is not ErrorCode.NONE else ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
                found.append(DescribedTransaction(name, missing))
        return DescribeTransactionsResponse(tuple(found))

    def init(self, node: int, request: InitProducerIdRequest) -> InitProducerIdResponse:
        name = request.transactional_id
        assert name is not None
        error = self.coordinates(node, request, name)
        if error is not ErrorCode.NONE:
            return InitProducerIdResponse(error)
        epoch = ProducerEpoch(self.transactions[name].producer_epoch + 1)
        self.add(name, node, "Empty")
        return InitProducerIdResponse(ErrorCode.NONE, ProducerId(7), epoch)

    def describe_producers(self, node: int, request: DescribeProducersRequest) -> DescribeProducersResponse:
        found = []
        for item in request.partitions:
            at = TopicPartition(item.topic, item.partition)
            error = self.leads(node, request, at)
            producers = self.producers.get(at, ()) if error is ErrorCode.NONE else ()
            found.append(PartitionProducers(*at, error, NodeId(node), producers))
        return DescribeProducersResponse(tuple(found))

    def write_markers(self, node: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        written = []
        for marker in request.markers:
            results = []
            for item in marker.partitions:
                error = self.leads(node, request, TopicPartition(item.topic, item.partition))
                if error is ErrorCode.NONE:
                    self.markers.append((node, marker))
                results.append(AddedPartition(item.topic, item.partition, error))
            written.append(WrittenMarker(marker.producer_id, tuple(results)))
        return WriteTxnMarkersResponse(tuple(written))


@pytest_asyncio.fixture
async def brokers() -> AsyncIterator[Brokers]:
    found = Brokers()
    await found.start()
    yield found
    for node in list(found.servers):
        await found.kill(node)


@pytest_asyncio.fixture
async def admin(brokers: Brokers) -> AsyncIterator[Admin]:
    network = brokers.fabric.network("admin")
    settings: dict[str, Any] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 1}
    async with Admin("mem:9001,mem:9002,mem:9003", _network=network, **settings) as found:
        yield found


SPEC = AbortTransactionSpec(T1, 7, 2, 5)


# --- lists -------------------------------------------------------------------------------------------


async def test_a_list_is_put_together_from_every_broker(brokers: Brokers, admin: Admin) -> None:
    brokers.add("c", 1, "CompleteCommit", 9)
    brokers.add("a", 2, "Prepared", 8)
    brokers.add("b", 3)
    found = await admin.list_transactions()
    assert [(one.transactional_id, one.producer_id, one.state, one.coordinator) for one in found] == [
        ("a", 8, TransactionState.PREPARED, 2),
        ("b", 7, TransactionState.ONGOING, 3),
        ("c", 9, TransactionState.COMPLETE_COMMIT, 1),
    ]
    assert [one.transactional_id for one in await admin.list_transactions(states=["prepared", "Ongoing"])] == ["a", "b"]
    assert [one.transactional_id for one in await admin.list_transactions(producer_ids=[7, 9])] == ["b", "c"]
    await admin.list_transactions(duration_ms=1_500, states=[TransactionState.ONGOING], producer_ids=[7])
    assert brokers.requests[-1] == ListTransactionsRequest(("Ongoing",), (ProducerId(7),), 1_500)


async def test_a_list_waits_for_a_coordinator_that_loads(brokers: Brokers, admin: Admin) -> None:
    """The ids beside the error are not all that it has."""
    brokers.add("a", 2)
    brokers.trouble = [(ListTransactionsRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)] * 4
    assert [one.transactional_id for one in await admin.list_transactions()] == ["a"]
    assert sum(n for (kind, _), n in brokers.asked.items() if kind == "ListTransactionsRequest") == 3 + 4


async def test_a_state_that_there_is_not(admin: Admin) -> None:
    with pytest.raises(ValueError, match=r"expected a state of Empty, Ongoing, .*, found 'Sleeping'"):
        await admin.list_transactions(states=["Sleeping"])


# --- coordinators ------------------------------------------------------------------------------------


async def test_transactions_are_described_by_their_coordinators(brokers: Brokers, admin: Admin) -> None:
    brokers.add("a", 2)
    brokers.add("b", 3, "Empty")
    found = await admin.describe_transactions(["a", "b"])
    a, b = found["a"], found["b"]
    assert (a.coordinator.node_id, a.state, a.producer_id, a.producer_epoch) == (2, TransactionState.ONGOING, 7, 2)
    assert (a.transaction_timeout_ms, a.transaction_start_time_ms) == (60_000, 1_700_000_000_000)
    assert a.topic_partitions == (T0, T1)
    assert (b.coordinator.node_id, b.transaction_start_time_ms, b.topic_partitions) == (3, None, ())


async def test_each_id_that_is_not_in_use_is_told(brokers: Brokers, admin: Admin) -> None:
    brokers.add("a", 2)
    with pytest.raises(TidelogError, match="nobody: the transactional id does not exist") as raised:
        await admin.describe_transactions(["a", "nobody", "nor this"])
    assert raised.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert set(raised.value.failures) == {"nobody", "nor this"}


async def test_one_id_where_a_list_is_due(admin: Admin) -> None:
    """Else every letter would be an id."""
    with pytest.raises(TypeError, match="expected a list of transactional ids, found the string 'pay'"):
        await admin.fence_producers("pay")


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    ],
)
@pytest.mark.parametrize("kind", [FindCoordinatorRequest, DescribeTransactionsRequest, InitProducerIdRequest])
async def test_what_a_coordinator_gets_over_is_retried(
    brokers: Brokers, admin: Admin, kind: type, error: ErrorCode
) -> None:
    brokers.add("a", 2)
    brokers.trouble = [(kind, error)] * 3
    assert set(await admin.describe_transactions(["a"])) == {"a"}
    assert await admin.fence_producers(["a"]) == {"a": FencedProducer(7, 3)}
    assert brokers.trouble == []


async def test_each_id_is_fenced_by_a_request_of_its_own(brokers: Brokers, admin: Admin) -> None:
    for name in ("a", "b", "c"):
        brokers.add(name, 2)
    fenced = await admin.fence_producers(["a", "b", "c"])
    assert list(fenced) == ["a", "b", "c"]
    asked = [one for one in brokers.requests if isinstance(one, InitProducerIdRequest)]
    assert sorted(one.transactional_id or "" for one in asked) == ["a", "b", "c"]
    assert all(one.producer_id == -1 and not one.keep_prepared_transaction for one in asked)
    assert all(0 < one.transaction_timeout_ms <= 60_000 for one in asked)


async def test_only_an_id_that_is_in_use_is_terminated(brokers: Brokers, admin: Admin) -> None:
    """Fencing would make it."""
    brokers.add("a", 2, "Prepared")
    await admin.force_terminate_transaction("a")
    assert brokers.transactions["a"].state == "Empty"
    with pytest.raises(EXCEPTIONS[ErrorCode.TRANSACTIONAL_ID_NOT_FOUND], match="nobody"):
        await admin.force_terminate_transaction("nobody")
    assert [one.transactional_id for one in brokers.requests if isinstance(one, InitProducerIdRequest)] == ["a"]


async def test_an_error_that_no_retry_mends_is_told(brokers: Brokers, admin: Admin) -> None:
    brokers.add("a", 2)
    brokers.trouble = [(InitProducerIdRequest, ErrorCode.INVALID_TRANSACTION_TIMEOUT)]
    with pytest.raises(TidelogError, match=r"a: request_timeout_ms is over the broker's transaction.max.timeout.ms"):
        await admin.fence_producers(["a"])


# --- leaders -----------------------------------------------------------------------------------------


async def test_producers_are_described_by_the_leaders(brokers: Brokers, admin: Admin) -> None:
    brokers.producers[T0] = (
        ProducerDescription(ProducerId(9), ProducerEpoch(0), 4, 1_000, -1, Offset(12)),
        ProducerDescription(ProducerId(7), ProducerEpoch(2), -1, 2_000, 5),
    )
    found = await admin.describe_producers([T0, T1])
    assert found == {
        T0: (ProducerState(7, 2, -1, 2_000, 5, None), ProducerState(9, 0, 4, 1_000, None, 12)),
        T1: (),
    }
    assert brokers.asked["DescribeProducersRequest", 3] == 0
    assert AbortTransactionSpec.of(T0, found[T0][1]) == AbortTransactionSpec(T0, 9, 0, 0)
    assert AbortTransactionSpec.of(T0, found[T0][0]).coordinator_epoch == 5


@pytest.mark.parametrize("error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
async def test_a_leader_that_moved_is_looked_for(brokers: Brokers, admin: Admin, error: ErrorCode) -> None:
    brokers.told[T2] = 1
    brokers.trouble = [(DescribeProducersRequest, error)] * 3
    await admin.describe_producers([T0, T1])
    assert brokers.trouble == []
    del brokers.told[T2]
    await admin.abort_transaction(AbortTransactionSpec(T2, 7, 2, 5))
    assert [node for node, _ in brokers.markers] == [3]


async def test_a_leader_that_is_one_no_more_sends_us_on(brokers: Brokers, admin: Admin) -> None:
    await admin.describe_producers([T2])
    brokers.leaders[T2] = 1
    await admin.abort_transaction(AbortTransactionSpec(T2, 7, 2, 5))
    assert [node for node, _ in brokers.markers] == [1]
    assert brokers.asked["WriteTxnMarkersRequest", 3] >= 1


async def test_a_partition_that_is_not_there(admin: Admin) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="t-9: no such partition") as raised:
        await admin.describe_producers([T0, TopicPartition("t", 9), TopicPartition("t", -1)])
    assert set(raised.value.failures) == {"t-9", "t--1"}
    with pytest.raises(UnknownTopicOrPartitionError, match="elsewhere: no such topic"):
        await admin.describe_producers([TopicPartition("elsewhere", 0)], timeout=0.1)


async def test_a_partition_without_a_leader_is_waited_for(brokers: Brokers, admin: Admin) -> None:
    brokers.told[T2] = -1
    with pytest.raises(EXCEPTIONS[ErrorCode.LEADER_NOT_AVAILABLE], match="t-2 has no leader"):
        await admin.describe_producers([T2], timeout=0.1)
    assert await admin.describe_producers([T0]) == {T0: ()}


async def test_an_abort_is_a_marker_of_the_transactions_own_epoch(brokers: Brokers, admin: Admin) -> None:
    await admin.abort_transaction(SPEC)
    ((node, marker),) = brokers.markers
    assert node == 2
    assert marker == TransactionMarker(
        ProducerId(7), ProducerEpoch(2), False, 5, (GroupPartition("t", 1),), transaction_version=1
    )


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ErrorCode.INVALID_PRODUCER_EPOCH, "t-1: the producer has a later epoch"),
        (ErrorCode.TRANSACTION_COORDINATOR_FENCED, "t-1: a later coordinator has written a marker"),
    ],
)
async def test_a_transaction_that_is_over_is_not_aborted(
    brokers: Brokers, admin: Admin, error: ErrorCode, why: str
) -> None:
    brokers.trouble = [(WriteTxnMarkersRequest, error)]
    with pytest.raises(EXCEPTIONS[error], match=why):
        await admin.abort_transaction(SPEC)
    assert brokers.markers == []


@pytest.mark.parametrize(("numbers", "name"), [((-1, 0, 0), "producer id"), ((0, -1, 0), "producer epoch")])
async def test_numbers_that_no_producer_has(admin: Admin, numbers: tuple[int, int, int], name: str) -> None:
    with pytest.raises(ValueError, match=f"expected a {name} of 0 or more, found -1"):
        await admin.abort_transaction(AbortTransactionSpec(T0, *numbers))


async def test_trouble_that_lasts_is_told_when_time_is_over(brokers: Brokers, admin: Admin) -> None:
    brokers.add("a", 2)
    brokers.trouble = [(DescribeProducersRequest, ErrorCode.NOT_LEADER_OR_FOLLOWER)] * 10_000
    with pytest.raises(EXCEPTIONS[ErrorCode.NOT_LEADER_OR_FOLLOWER], match="t-0"):
        await admin.describe_producers([T0], timeout=0.1)
    brokers.trouble = [(InitProducerIdRequest, ErrorCode.CONCURRENT_TRANSACTIONS)] * 10_000
    with pytest.raises(EXCEPTIONS[ErrorCode.CONCURRENT_TRANSACTIONS], match="a: its transaction is still being ended"):
        await admin.fence_producers(["a"], timeout=0.1)


async def test_no_broker_at_all(brokers: Brokers, admin: Admin) -> None:
    for node in NODES:
        await brokers.kill(node)
    with pytest.raises((BrokerNotAvailableError, RequestTimedOutError)):
        await admin.describe_producers([T0], timeout=0.1)
    with pytest.raises((BrokerNotAvailableError, RequestTimedOutError)):
        await admin.fence_producers(["a"], timeout=0.1)
