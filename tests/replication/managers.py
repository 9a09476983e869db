"""Three replica managers on a memory fabric, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from tests.replication.rig import TOPIC, TOPIC_ID, Host, ProduceFields, ProducerFields, StateFields, leading
from tests.virtual_time import LoopClock
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import (
    NO_NODE,
    BrokerEpoch,
    LeaderEpoch,
    NodeId,
    Offset,
    PartitionEpoch,
    ProducerEpoch,
    ProducerId,
    TopicIdPartition,
)
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.calls.controller_api import AlteredPartition, AlterPartitionItem, AlterPartitionResponse
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.proto.calls.transaction_api import AddPartitionsTransaction, TransactionMarker, WriteTxnMarkersRequest
from tidelog.proto.records.encoder import encode_values
from tidelog.proto.transport.frames import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
)
from tidelog.proto.transport.memory_transport import MemoryFabric
from tidelog.proto.transport.network import Address, Connection, Service, StreamKind
from tidelog.replication.flushing import RunBlocking, run_inline
from tidelog.replication.manager import ReplicaManager
from tidelog.replication.partition.leader import LeaderState
from tidelog.replication.partition.partition import Partition
from tidelog.replication.partition.partition_state import PartitionState
from tidelog.replication.partition.settings import ReplicationSettings
from tidelog.storage.disk.files import FileLayer, SystemFiles
from tidelog.storage.disk.format import format_directory
from tidelog.storage.log.log_manager import LogManager


class Broker:
    """One node's replica manager with its disk and its network, in one process with the others."""

    def __init__(self, node: int, cluster: Cluster) -> None:
        self.node = NodeId(node)
        self.cluster = cluster
        self.directories = [str(cluster.path / f"broker-{node}-{letter}") for letter in "ab"]
        self.files: FileLayer = SystemFiles()
        self.run_blocking: RunBlocking = run_inline
        self.epoch = BrokerEpoch(-1)
        self.alive = False
        self.asked: list[AddPartitionsTransaction] = []
        self.answer_verify: Callable[[AddPartitionsTransaction], Awaitable[ErrorCode] | ErrorCode]
        """The answer of a transaction coordinator for each requested partition."""
        self.answer_verify = lambda asked: ErrorCode.NONE
        for number, directory in enumerate(self.directories):
            format_directory(SystemFiles(), directory, "c", self.node, random.Random(10 * node + number))

    @property
    def name(self) -> str:
        return f"node-{self.node}"

    async def start(self) -> None:
        cluster = self.cluster
        cluster.last_broker_epoch += 1
        self.epoch = BrokerEpoch(cluster.last_broker_epoch)
        clock = LoopClock()
        self.logs = LogManager(
            self.files, clock, random.Random(self.node), self.directories, cluster_id="c", node_id=self.node
        )
        self.logs.start()
        self.network = cluster.fabric.network(self.name, cluster.bugs.append)
        self.manager = ReplicaManager(
            self.node,
            self.logs,
            clock,
            random.Random(self.node),
            cluster.settings,
            connect=self._connect,
            alter_partition=self._alter_partition,
            broker_epoch_of=lambda node: self.epoch if node == self.node else cluster.broker_epoch_of(node),
            has_directory=lambda key, node: cluster.has_directory(key, node),
            on_fatal=cluster.bugs.append,
            run_blocking=self._run_blocking,
            verify=self._verify,
            rack_of=lambda node: cluster.racks.get(node, ""),
        )
        self._connections: dict[NodeId, Connection] = {}
        self.server = await self.network.serve(
            "REPLICATION",
            Address("127.0.0.1", 20_000 + self.node),
            Service({}, {StreamKind.REPLICA_FETCH: self.manager.replica_session}),
        )
        self.alive = True
        self.manager.apply(tuple(cluster.states.values()))
        await self.manager.start()

    def kill(self) -> None:
        """As kill -9: nothing is written or said any more."""
        self.alive = False
        self.manager.kill()
        self.logs.close()
        self.cluster.fabric.drop_node(self.name)

    async def stop(self) -> None:
        if not self.alive:
            return
        self.alive = False
        await self.manager.stop()
        for connection in self._connections.values():
            await connection.close()
        await self.server.close(0)
        self.logs.close()

    def _connect(self, node: NodeId) -> Connection | None:
        if node not in self._connections:
            self._connections[node] = self.network.connect(Address("127.0.0.1", 20_000 + node))
        return self._connections[node]

    async def _run_blocking(self, action: Callable[[], None]) -> None:
        await self.run_blocking(action)

    async def _alter_partition(self, items: tuple[AlterPartitionItem, ...]) -> AlterPartitionResponse:
        return await self.cluster.alter_partition(self.node, items)

    async def _verify(self, asked: AddPartitionsTransaction) -> dict[tuple[str, int], ErrorCode]:
        self.asked.append(asked)
        answer = self.answer_verify(asked)
        code = answer if isinstance(answer, ErrorCode) else await answer
        return {(each.topic, each.partition): code for each in asked.partitions}

    # --- what a client does

    async def produce(
        self,
        *values: bytes,
        acks: int = -1,
        partition: int = 0,
        timeout_ms: int = 30_000,
        transactional_id: str | None = None,
        first_protocol: bool = False,
        **producer: Unpack[ProducerFields],
    ) -> ProducedPartition:
        records = encode_values(list(values), LoopClock().now_ms(), **producer)
        item = ProducePartition(TOPIC_ID, partition, records)
        request = ProduceRequest(acks, timeout_ms, [item], transactional_id)
        answers = await self.answers(request, first_protocol=first_protocol)
        return answers[0]

    async def answers(self, request: ProduceRequest, *, first_protocol: bool = False) -> list[ProducedPartition]:
        """The answers, available at once or later."""
        produced = self.manager.produce(request, first_protocol=first_protocol)
        return produced if isinstance(produced, list) else await produced

    async def mark(
        self,
        producer_id: int,
        epoch: int,
        *,
        committed: bool = True,
        coordinator_epoch: int = 0,
        partition: int = 0,
        version: int = 2,
    ) -> ErrorCode:
        """Have a transaction's marker written; answers once it is committed."""
        places = (GroupPartition(TOPIC, partition),)
        identity = ProducerId(producer_id), ProducerEpoch(epoch)
        marker = TransactionMarker(*identity, committed, coordinator_epoch, places, version)
        answer = await self.manager.write_markers(WriteTxnMarkersRequest((marker,)))
        return answer.markers[0].results[0].error

    def begin(self, *values: bytes, **more: Unpack[ProduceFields]) -> asyncio.Task[ProducedPartition]:
        """Produce, and wait for the answer later or not at all."""
        task = asyncio.ensure_future(self.produce(*values, **more))
        self.cluster.begun.append(task)
        return task

    def poll(
        self,
        offset: int = 0,
        *,
        partition: int = 0,
        wait_ms: int = 500,
        bytes_min: int = 1,
        bytes_max: int = 1 << 20,
        read_committed: bool = False,
        rack: str = "",
        last_epoch: int = -1,
    ) -> asyncio.Future[FetchResponse]:
        item = FetchPartition(
            TOPIC_ID, partition, LeaderEpoch(-1), Offset(offset), LeaderEpoch(last_epoch), Offset(-1), bytes_max
        )
        request = FetchRequest(
            NO_NODE, BrokerEpoch(-1), wait_ms, bytes_min, bytes_max, read_committed, [item], rack=rack
        )
        return self.manager.fetch(request)

    def partition(self, partition: int = 0) -> Partition:
        found = self.manager.partition(TopicIdPartition(TOPIC_ID, partition))
        assert found is not None
        return found

    def leading(self, partition: int = 0) -> LeaderState:
        return leading(self.partition(partition))

    def values(self, partition: int = 0, *, committed: bool = False) -> list[bytes]:
        found = self.partition(partition)
        host = Host.__new__(Host)
        host.partition = found
        return host.committed() if committed else host.values()


class Cluster:
    """Three brokers on a memory fabric, and a controller of a few lines that fences by partition epoch."""

    def __init__(self, path: Path, **settings: int) -> None:
        self.path = path
        self.fabric = MemoryFabric()
        self.settings = ReplicationSettings(**settings)
        self.states: dict[TopicIdPartition, PartitionState] = {}
        self.bugs: list[BaseException] = []
        self.racks: dict[int, str] = {}
        self.last_broker_epoch = 100
        self.fenced: set[NodeId] = set()
        self.offline: set[tuple[TopicIdPartition, NodeId]] = set()
        """Replicas whose directory has failed, as the metadata say."""
        self.alter_requests: list[tuple[NodeId, tuple[AlterPartitionItem, ...]]] = []
        self.answer_alter: Callable[[NodeId, tuple[AlterPartitionItem, ...]], AlterPartitionResponse | Exception | None]
        self.answer_alter = lambda node, items: None
        self.begun: list[asyncio.Task[ProducedPartition]] = []
        self.deaf: set[NodeId] = set()
        """Nodes that hear nothing from the controller."""
        self.brokers = {NodeId(node): Broker(node, self) for node in (1, 2, 3)}

    def __getitem__(self, node: int) -> Broker:
        return self.brokers[NodeId(node)]

    async def __aenter__(self) -> Cluster:
        for broker in self.brokers.values():
            await broker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            await broker.stop()
        assert not self.bugs, self.bugs

    def broker_epoch_of(self, node: NodeId) -> BrokerEpoch:
        return BrokerEpoch(-1) if node in self.fenced else self.brokers[node].epoch

    def has_directory(self, key: TopicIdPartition, node: NodeId) -> bool:
        return (key, node) not in self.offline

    # --- the controller

    def create(self, leader: int = 1, *, partitions: int = 1, isr: Sequence[int] = (1, 2, 3), **config: Any) -> None:
        made = TopicConfig(**config)
        for number in range(partitions):
            state = PartitionState(
                TOPIC,
                TOPIC_ID,
                number,
                tuple(self.brokers),
                tuple(NodeId(node) for node in isr),
                NodeId(leader),
                LeaderEpoch(0),
                PartitionEpoch(0),
                made,
                is_new=True,
            )
            self.states[state.key] = state
        self.tell(*self.states.values())

    def change(
        self, partition: int = 0, *, isr: Sequence[int] | None = None, **fields: Unpack[StateFields]
    ) -> PartitionState:
        """A new leader (and leader epoch), another ISR, or any other field."""
        key = TopicIdPartition(TOPIC_ID, partition)
        state = self.states[key]
        if "leader" in fields:
            fields["leader_epoch"] = LeaderEpoch(state.leader_epoch + 1)
        members = state.isr if isr is None else tuple(NodeId(node) for node in isr)
        state = replace(state, isr=members, partition_epoch=PartitionEpoch(state.partition_epoch + 1), **fields)
        self.states[key] = state
        self.tell(state)
        return state

    def tell(self, *states: PartitionState) -> None:
        for broker in self.brokers.values():
            if broker.alive and broker.node not in self.deaf:
                broker.manager.apply(states)

    async def alter_partition(self, node: NodeId, items: tuple[AlterPartitionItem, ...]) -> AlterPartitionResponse:
        self.alter_requests.append((node, items))
        await asyncio.sleep(0.002)
        answer = self.answer_alter(node, items)
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            return answer
        return AlterPartitionResponse(ErrorCode.NONE, tuple(self.altered(item) for item in items))

    def altered(self, item: AlterPartitionItem) -> AlteredPartition:
        key = TopicIdPartition(item.topic_id, item.partition)
        state = self.states[key]
        if item.leader_epoch != state.leader_epoch:
            return AlteredPartition(*key, ErrorCode.FENCED_LEADER_EPOCH)
        if item.partition_epoch != state.partition_epoch:
            return AlteredPartition(*key, ErrorCode.INVALID_UPDATE_VERSION)
        if any(self.broker_epoch_of(member.node_id) != member.broker_epoch for member in item.new_isr):
            return AlteredPartition(*key, ErrorCode.INELIGIBLE_REPLICA)
        state = self.change(item.partition, isr=[member.node_id for member in item.new_isr])
        return AlteredPartition(
            *key, ErrorCode.NONE, state.leader, state.leader_epoch, state.isr, state.partition_epoch
        )


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait in virtual time for a condition; fails after ``seconds``."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not condition():
        assert loop.time() < end, "the condition never became true"
        await asyncio.sleep(0.001)


MakeCluster = Callable[..., Cluster]
