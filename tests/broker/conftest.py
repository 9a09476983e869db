"""Whole clusters for tests, and a ledger that judges the fate of the records sent to them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Self, TypeVar

from tests.conftest import broker_of
from tidelog.broker.node.broker_role import BrokerRole
from tidelog.client.delivery import DeliveryFuture, RecordMetadata
from tidelog.client.record import ConsumerRecord
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, NodeId, Offset, ProducerEpoch, ProducerId, TopicPartition
from tidelog.proto.calls.group_api import (
    GROUP_COORDINATOR,
    TRANSACTION_COORDINATOR,
    Coordinator,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    GroupPartition,
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
from tidelog.proto.calls.request import Request, Response
from tidelog.proto.calls.transaction_api import (
    AddPartitionsToTxnRequest,
    AddPartitionsTransaction,
    DescribedTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    PrepareTransactionRequest,
    TxnOffsetCommitRequest,
)
from tidelog.proto.records.batches import Batch, split_batches
from tidelog.proto.records.control_batches import ControlKind, decode_control
from tidelog.proto.records.decoder import decode_records
from tidelog.proto.records.encoder import encode_values
from tidelog.proto.transport.caller import FrameCaller
from tidelog.proto.transport.frames import (
    ProducePartition,
    ProduceRequest,
    decode_produce_response,
    encode_produce_request,
)
from tidelog.proto.transport.network import Address, CallTimeout, Connection, ConnectionLost, StreamKind
from tidelog.storage.segments.log_read import LogRead
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
        self._waiting: list[DeliveryFuture] = []

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
        values = [int(record.value or b"") for record in found]
        doubled = [value for value, count in Counter(values).items() if count > 1]
        lost = sorted(set(self.acknowledged) - set(values))
        assert not lost, f"{len(lost)} of {len(self.acknowledged)} acknowledged records are lost: {lost[:5]}"
        assert not doubled, f"{len(doubled)} records are doubled: {doubled[:5]}"
        for partition in range(self.partitions):
            own = [int(r.value or b"") for r in found if r.partition == partition]
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

    def _heard(self, number: int) -> Callable[[RecordMetadata | None, BaseException | None], None]:
        def heard(metadata: RecordMetadata | None, error: BaseException | None) -> None:
            if metadata is not None:
                self.acknowledged[number] = metadata.offset
            else:
                assert error is not None
                self.failed[number] = error

        return heard


async def read_all(cluster: AsyncCluster, topic: str, partitions: int) -> list[ConsumerRecord]:
    """Every record of a topic, as a new consumer reads them."""
    async with cluster.consumer(auto_offset_reset="earliest") as consumer:
        where = [TopicPartition(topic, partition) for partition in range(partitions)]
        ends = await consumer.end_offsets(where)
        consumer.assign(where)
        found: list[ConsumerRecord] = []
        async with asyncio.timeout(60):
            left = {at: end for at, end in ends.items() if end > 0}
            while left:
                for record in await consumer.poll(1.0, max_records=100_000):
                    found.append(record)
                    at = record.topic_partition
                    if at in left and record.offset + 1 >= left[at]:
                        del left[at]
        return found


COORDINATOR_MOVES = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


LEADER_MOVES = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}


class GroupCalls:
    """Speaks the calls of groups to whichever node coordinates, as a client would."""

    def __init__(self, cluster: AsyncCluster) -> None:
        self.cluster = cluster
        self._network = cluster.client_network()
        self._connections: dict[Address, Connection] = {}
        self._found: dict[tuple[str, int], Address] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._connections.values():
            await connection.close()

    def broker(self, node_id: int) -> BrokerRole:
        return broker_of(self.cluster.nodes[NodeId(node_id)])

    def to(self, address: Address) -> Connection:
        if address not in self._connections:
            self._connections[address] = self._network.connect(address)
        return self._connections[address]

    def node(self, node_id: int) -> Connection:
        address = self.cluster.nodes[NodeId(node_id)].client_address
        assert address is not None
        return self.to(address)

    @property
    def _listening(self) -> list[NodeId]:
        return [node_id for node_id, node in self.cluster.nodes.items() if node.client_address is not None]

    async def find(self, group: str, node_id: int | None = None, key_type: int = GROUP_COORDINATOR) -> Coordinator:
        """One FindCoordinator, to any node that runs or to a certain one."""
        asked = min(self._listening) if node_id is None else node_id
        answer = await self.node(asked).call(FindCoordinatorRequest((group,), key_type), timeout_s=10)
        return answer.coordinators[0]

    async def coordinator(self, group: str) -> int:
        """Wait until the group has a coordinator that answers for it; its node id."""
        answer = await self.ask(group, DescribeGroupsRequest((group,)))
        assert answer.groups[0].error in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND), answer
        return int((await self.find(group)).node_id)

    async def ask(
        self, group: str, request: Request[R], timeout_s: float = 30, *, key_type: int = GROUP_COORDINATOR
    ) -> R:
        """Ask the group's coordinator, and the next one while it moves."""
        key = (group, key_type)
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    if key not in self._found:
                        found = await self.find(group, key_type=key_type)
                        if found.error is not ErrorCode.NONE:
                            assert found.error is ErrorCode.COORDINATOR_NOT_AVAILABLE, found
                            await asyncio.sleep(0.01)
                            continue
                        self._found[key] = Address(found.host, found.port)
                    answer = await self.to(self._found[key]).call(request, timeout_s=timeout_s)
                except (ConnectionLost, CallTimeout):
                    self._found.pop(key, None)
                    await asyncio.sleep(0.01)
                    continue
                if not errors_of(answer) & COORDINATOR_MOVES:
                    return answer
                self._found.pop(key, None)
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


def errors_of(answer: object) -> set[ErrorCode]:
    """Every error code in an answer."""
    own = {answer.error} if hasattr(answer, "error") else set()
    parts = (getattr(answer, name, ()) for name in ("results", "groups", "offsets", "transactions"))
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


class TransactionCalls(GroupCalls):
    """Speaks the calls of transactions as well, and writes batches as a producer of the second protocol does."""

    def __init__(self, cluster: AsyncCluster) -> None:
        super().__init__(cluster)
        self._streams: dict[Address, FrameCaller] = {}

    async def __aexit__(self, *details: object) -> None:
        for stream in self._streams.values():
            await stream.close()
        await super().__aexit__(*details)

    async def ask_transactions(self, transactional_id: str, request: Request[R], timeout_s: float = 30) -> R:
        """Ask the id's coordinator; again while it moves, or something else is under way."""
        async with asyncio.timeout(timeout_s):
            while True:
                answer = await self.ask(transactional_id, request, timeout_s, key_type=TRANSACTION_COORDINATOR)
                if ErrorCode.CONCURRENT_TRANSACTIONS not in errors_of(answer):
                    return answer
                await asyncio.sleep(0.005)

    async def transaction_coordinator(self, transactional_id: str) -> int:
        await self.describe(transactional_id)
        return int((await self.find(transactional_id, key_type=TRANSACTION_COORDINATOR)).node_id)

    async def describe(self, transactional_id: str) -> DescribedTransaction:
        answer = await self.ask_transactions(transactional_id, DescribeTransactionsRequest((transactional_id,)))
        return answer.transactions[0]

    async def wait_for_state(self, transactional_id: str, *states: str) -> DescribedTransaction:
        async with asyncio.timeout(100):
            while (found := await self.describe(transactional_id)).state not in states:
                await asyncio.sleep(0.01)
            return found

    async def open(self, transactional_id: str, *, timeout_ms: int = 60_000, **more: Any) -> TransactionalProducer:
        """InitProducerId; it must be granted."""
        producer = TransactionalProducer(self, transactional_id)
        request = InitProducerIdRequest(transactional_id, timeout_ms, **more)
        answer = await self.ask_transactions(transactional_id, request)
        assert answer.error is ErrorCode.NONE, answer
        producer.become(answer.producer_id, answer.producer_epoch)
        return producer

    async def produce(self, topic: str, partition: int, batch: bytes, transactional_id: str | None) -> ErrorCode:
        """To the leader, whoever it is; again while that moves. What else is said."""
        async with asyncio.timeout(100):
            while True:
                leader = self.cluster.leader_of(topic, partition)
                node = None if leader is None else self.cluster.nodes.get(leader)
                if node is not None and node.client_address is not None:
                    error = await self._produce(node.client_address, topic, partition, batch, transactional_id)
                    if error not in LEADER_MOVES:
                        return error
                await asyncio.sleep(0.01)

    async def _produce(
        self, address: Address, topic: str, partition: int, batch: bytes, transactional_id: str | None
    ) -> ErrorCode:
        if address not in self._streams:
            self._streams[address] = FrameCaller(self.to(address), StreamKind.PRODUCE)
        found = self.cluster.image.topic(topic)
        assert found is not None
        request = ProduceRequest(-1, 10_000, [ProducePartition(found.topic_id, partition, batch)], transactional_id)
        try:
            frame = await self._streams[address].submit(lambda number: encode_produce_request(number, request))
        except ConnectionLost:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return decode_produce_response(frame)[1][0].error

    def decided(self, topic: str, partition: int) -> tuple[list[bytes], set[int]]:
        """What the leader's log says, batch by batch: values that count in the order of the log, and the producer ids
        whose transaction is open."""
        leader = self.cluster.leader_of(topic, partition)
        assert leader is not None
        broker = self.cluster.nodes[leader].broker
        assert broker is not None
        found = broker.replicas.partition_named(topic, partition)
        assert found is not None
        log = found.log
        batches: list[Batch] = []
        while (at := batches[-1].next_offset if batches else log.log_start_offset) < log.log_end_offset:
            read = log.read(Offset(at), 2**20, offset_end=log.log_end_offset)
            assert isinstance(read, LogRead), read
            batches += split_batches(bytes(read.records))
        open_: dict[int, list[tuple[int, bytes]]] = {}
        values: list[tuple[int, bytes]] = []
        for batch in batches:
            if batch.is_control:
                ended = open_.pop(batch.producer_id, [])
                values += ended if decode_control(batch).kind is ControlKind.COMMIT else []
                continue
            into = open_.setdefault(batch.producer_id, []) if batch.is_transactional else values
            into += [(record.offset, record.value or b"") for record in decode_records(batch)]
        return [value for _, value in sorted(values)], set(open_)


class TransactionalProducer:
    """One identity. Each call asks again until it is answered for good, and asserts nothing of the answer."""

    def __init__(self, calls: TransactionCalls, transactional_id: str) -> None:
        self.calls = calls
        self.transactional_id = transactional_id
        self.become(ProducerId(-1), ProducerEpoch(-1))

    def become(self, producer_id: ProducerId, epoch: ProducerEpoch) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self._sequences: dict[tuple[str, int], int] = {}

    async def write(self, partition: int, *values: bytes, topic: str = "t") -> ErrorCode:
        sequence = self._sequences.get((topic, partition), 0)
        batch = encode_values(
            list(values),
            0,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        error = await self.calls.produce(topic, partition, bytes(batch), self.transactional_id)
        if error is ErrorCode.NONE:
            self._sequences[topic, partition] = sequence + len(values)
        return error

    async def add(self, *partitions: int, topic: str = "t", verify_only: bool = False) -> list[ErrorCode]:
        """AddPartitionsToTxn, as a client of the first protocol."""
        places = tuple(GroupPartition(topic, partition) for partition in partitions)
        given = AddPartitionsTransaction(self.transactional_id, self.producer_id, self.epoch, places, verify_only)
        answer = await self.calls.ask_transactions(self.transactional_id, AddPartitionsToTxnRequest((given,)))
        return [result.error for result in answer.transactions[0].results]

    async def commit_offsets(
        self, group: str, offset: int, *, topic: str = "t", partition: int = 0, generation: int = -1, member: str = ""
    ) -> ErrorCode:
        item = OffsetCommitPartition(topic, partition, Offset(offset))
        request = TxnOffsetCommitRequest(
            self.transactional_id, group, self.producer_id, self.epoch, generation, member, None, (item,)
        )
        return (await self.calls.ask(group, request)).results[0].error

    async def prepare(self) -> ErrorCode:
        request = PrepareTransactionRequest(self.transactional_id, self.producer_id, self.epoch)
        return (await self.calls.ask_transactions(self.transactional_id, request)).error

    async def end(self, *, committed: bool) -> ErrorCode:
        """EndTxn, and on to the next identity."""
        request = EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, committed)
        answer = await self.calls.ask_transactions(self.transactional_id, request)
        if answer.error is ErrorCode.NONE:
            self.become(answer.producer_id, answer.producer_epoch)
        return answer.error
