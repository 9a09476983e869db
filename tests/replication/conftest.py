"""Three replicas of one partition that a test drives by hand, and an event loop whose time is virtual."""

from __future__ import annotations

import asyncio
import itertools
import random
import selectors
import shutil
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack

import pytest
from hypothesis import settings as hypothesis_settings

from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import (
    NO_NODE,
    BrokerEpoch,
    DirectoryId,
    LeaderEpoch,
    NodeId,
    Offset,
    PartitionEpoch,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicIdPartition,
    TopicPartition,
)
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.calls.controller_api import AlteredPartition, AlterPartitionItem, AlterPartitionResponse
from tidelog.proto.calls.group_api import GroupPartition
from tidelog.proto.calls.transaction_api import AddPartitionsTransaction, TransactionMarker, WriteTxnMarkersRequest
from tidelog.proto.records.batches import split_batches
from tidelog.proto.records.decoder import decode_values
from tidelog.proto.records.encoder import encode_values
from tidelog.proto.transport.frames import (
    FetchedPartition,
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
from tidelog.replication.partition.answers import diverged, fetched, refused_fetch
from tidelog.replication.partition.leader import Diverging, FollowerContact, LeaderState
from tidelog.replication.partition.partition import Fetched, Partition, RoleChange
from tidelog.replication.partition.partition_state import PartitionState
from tidelog.replication.partition.replica import Replica
from tidelog.replication.partition.settings import ReplicationSettings
from tidelog.replication.partition.topic_traffic import TopicTraffic
from tidelog.storage.disk.files import FileLayer, SystemFiles
from tidelog.storage.disk.format import format_directory
from tidelog.storage.disk.handles import HandlePool
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_manager import LogManager
from tidelog.storage.log.recovery import load_log
from tidelog.storage.producers.append_checks import LogAppend

hypothesis_settings.register_profile("replication", deadline=None)
hypothesis_settings.load_profile("replication")

TOPIC = "t"
TOPIC_ID = TopicId(bytes(range(16)))
LAG_MS = 30_000
P = ParamSpec("P")
R = TypeVar("R")


class ProducerFields(TypedDict, total=False):
    """The producer fields of an idempotent or transactional batch."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool


class TransactionFields(ProducerFields, total=False):
    transactional_id: str | None


class ProduceFields(TransactionFields, total=False):
    """The arguments of :meth:`Broker.produce`."""

    acks: int
    partition: int
    timeout_ms: int
    first_protocol: bool


class StateFields(TypedDict, total=False):
    """Fields of a partition's state that a controller changes, besides its ISR and partition epoch."""

    leader: NodeId
    leader_epoch: LeaderEpoch
    replicas: tuple[NodeId, ...]
    adding: tuple[NodeId, ...]
    leader_recovery: bool
    directory_id: DirectoryId


class Disk:
    """The disk of one node's replica; opening it again is what a new process does after a kill -9."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.directory = str(path / "t-0")
        self.failure: LogDirFailed | None = None
        self.pool = HandlePool(SystemFiles())
        self.log: Log | None = None
        Path(self.directory).mkdir(parents=True)

    def open(self, config: TopicConfig) -> Log:
        if self.log is not None:
            self.log.abandon()
        loaded = load_log(
            self.pool,
            self.directory,
            config,
            clean=False,
            recovery_point=0,
            log_start_offset=0,
            producers_max=1_000,
            now_ms=0,
        )
        self.log = Log(
            TopicPartition(TOPIC, 0),
            TOPIC_ID,
            self.directory,
            config,
            loaded,
            self,
            self.pool,
            random.Random(1),
            is_new=False,
        )
        return self.log

    def wipe(self) -> None:
        """A new disk in the old one's place."""
        if self.log is not None:
            self.log.abandon()
            self.log = None
        shutil.rmtree(self.directory)
        Path(self.directory).mkdir()

    # --- what a log asks of its directory

    def fail(self, cause: OSError) -> LogDirFailed:
        self.failure = LogDirFailed(str(self.path), cause)
        return self.failure

    def lower_clean_offset(self, name: TopicPartition, offset: int) -> None:
        """Nothing is compacted here."""

    def store_points(self) -> None:
        pass

    def remove_later(self, path: str, delay_ms: int) -> None:
        Path(path).unlink()


def leading(partition: Partition) -> LeaderState:
    assert partition.leading is not None, "expected a leader"
    return partition.leading


class Host:
    """One node's replica of the partition and what surrounds it."""

    def __init__(self, node: int, rig: Rig) -> None:
        self.node = NodeId(node)
        self.rig = rig
        self.broker_epoch = BrokerEpoch(100 + node)
        self.contact = FollowerContact(0)
        self.partition: Partition | None = None

    @property
    def p(self) -> Partition:
        assert self.partition is not None, f"node {self.node} is down"
        return self.partition

    @property
    def log(self) -> Log:
        return self.p.log

    @property
    def leading(self) -> LeaderState:
        return leading(self.p)

    def values(self, end: int | None = None) -> list[bytes]:
        """Every record's value in the log, below ``end``."""
        found: list[bytes] = []
        offset = self.log.log_start_offset
        limit = self.log.log_end_offset if end is None else end
        while offset < limit:
            read = self.log.read(offset, 1 << 20, offset_end=Offset(limit))
            assert not isinstance(read, Refusal)
            for batch in split_batches(read.records):
                found += [value for value in decode_values(batch) if value is not None]
            assert read.next_offset > offset
            offset = read.next_offset
        return found

    def committed(self) -> list[bytes]:
        return self.values(self.p.high_watermark)


class Rig:
    """Node 1, 2 and 3, one partition, and a controller that does what the test says."""

    def __init__(self, path: Path, min_isr: int = 1, config: TopicConfig | None = None) -> None:
        self.disks = {node: Disk(path / f"node-{node}") for node in (1, 2, 3)}
        self.now_ms = 1_000_000
        self.config = config or TopicConfig(min_insync_replicas=min_isr)
        self.hosts = {NodeId(node): Host(node, self) for node in (1, 2, 3)}
        self.fenced: set[NodeId] = set()
        self.state = PartitionState(
            TOPIC,
            TOPIC_ID,
            0,
            tuple(self.hosts),
            tuple(self.hosts),
            NO_NODE,
            LeaderEpoch(0),
            PartitionEpoch(0),
            self.config,
        )
        for host in self.hosts.values():
            self.start(host.node)

    def __getitem__(self, node: int) -> Host:
        return self.hosts[NodeId(node)]

    # --- processes

    def start(self, node: int, high_watermark: int = 0) -> None:
        """A process of this node comes up over its disk, knowing the present state."""
        host = self[node]
        host.partition = Partition(
            host.node,
            self.disks[node].open(self.config),
            self.state,
            high_watermark=Offset(high_watermark),
            lag_time_max_ms=LAG_MS,
            broker_epoch_of=self.broker_epoch_of,
        )
        host.partition.begin(self.now_ms)

    def restart(self, node: int, *, checkpointed_high_watermark: int = 0) -> None:
        """kill -9 and a new process, which registers under a new broker epoch. The page cache survives."""
        self[node].broker_epoch = BrokerEpoch(self[node].broker_epoch + 100)
        self.start(node, checkpointed_high_watermark)

    def wipe(self, node: int) -> None:
        """The machine comes back under its old id with an empty disk."""
        self.disks[node].wipe()
        self.restart(node)

    def broker_epoch_of(self, node: NodeId) -> BrokerEpoch:
        return BrokerEpoch(-1) if node in self.fenced else self.hosts[node].broker_epoch

    # --- the controller

    def lead(
        self, leader: int, isr: Sequence[int] | None = None, *, to: Sequence[int] = (1, 2, 3), **more: Any
    ) -> None:
        """A new leader under a new leader epoch; only the nodes in ``to`` hear of it."""
        self.state = replace(
            self.state,
            leader=NodeId(leader),
            isr=tuple(NodeId(node) for node in isr) if isr is not None else self.state.isr,
            leader_epoch=LeaderEpoch(self.state.leader_epoch + 1),
            partition_epoch=PartitionEpoch(self.state.partition_epoch + 1),
            **more,
        )
        self.tell(to)

    def set_isr(self, *isr: int, to: Sequence[int] = (1, 2, 3)) -> None:
        self.state = replace(
            self.state,
            isr=tuple(NodeId(node) for node in isr),
            partition_epoch=PartitionEpoch(self.state.partition_epoch + 1),
        )
        self.tell(to)

    def tell(self, to: Sequence[int] = (1, 2, 3)) -> None:
        for node in to:
            if (
                self[node].partition is not None
                and self[node].p.update(self.state, self.now_ms) is not RoleChange.STALE
            ):
                self[node].p.advance(self.now_ms)

    # --- data

    def produce(
        self, node: int, *values: bytes, acks: int = -1, **producer: Unpack[ProducerFields]
    ) -> LogAppend | Refusal:
        batches = split_batches(encode_values(list(values), self.now_ms, **producer))
        return self[node].p.append(batches, acks, self.now_ms, self.now_ms)

    def wrote(self, node: int, *values: bytes, acks: int = -1, **producer: Unpack[ProducerFields]) -> LogAppend:
        appended = self.produce(node, *values, acks=acks, **producer)
        assert isinstance(appended, LogAppend), appended
        return appended

    def position(self, follower: int) -> FetchPartition:
        p = self[follower].p
        assert p.following is not None
        return FetchPartition(
            TOPIC_ID,
            0,
            p.following.epoch,
            p.log.log_end_offset,
            p.log.latest_epoch,
            p.log.log_start_offset,
            1 << 20,
        )

    def ask(
        self, follower: int, leader: int, item: FetchPartition | None = None, *, bytes_max: int = 1 << 20
    ) -> FetchedPartition:
        """The answer of ``leader`` to a fetch by ``follower``."""
        item = item or self.position(follower)
        p, host = self[leader].p, self[follower]
        host.contact.last_fetch_ms = self.now_ms
        replica = Replica(p, {}, TopicTraffic("t"))
        verdict = p.follower_fetch(host.node, host.broker_epoch, item, self.now_ms, host.contact)
        if isinstance(verdict, Diverging):
            return diverged(replica, verdict)
        if isinstance(verdict, Refusal):
            return refused_fetch(replica, verdict.code, leader_log_end=p.log.log_end_offset)
        read = p.read_for_follower(item.fetch_offset, bytes_max, at_least_one=True)
        assert not isinstance(read, Refusal), read
        return fetched(replica, (read.records,) if len(read.records) else ())

    def fetch(self, follower: int, leader: int | None = None, *, bytes_max: int = 1 << 20) -> Fetched:
        """One whole round: position, answer, what the follower does with it."""
        p = self[follower].p
        assert p.following is not None
        answer = self.ask(follower, leader or p.following.leader, bytes_max=bytes_max)
        return p.take(answer, self.now_ms)

    def sync(self, *followers: int) -> None:
        """Fetch until everybody has everything and knows how far that is committed."""
        for _ in range(100):
            outcomes = [self.fetch(node) for node in followers]
            if all(outcome is Fetched.NOTHING_NEW for outcome in outcomes):
                break
        else:
            raise AssertionError(f"no end of fetching: {outcomes}")
        for node in followers:
            self.fetch(node)


MakeRig = Callable[..., Rig]


@pytest.fixture
def rig(tmp_path: Path) -> MakeRig:
    """Makes rigs; the arguments are :class:`Rig`'s but for the path."""
    count = itertools.count()
    return lambda **more: Rig(tmp_path / str(next(count)), **more)


# --- virtual time ---------------------------------------------------------------------------------


class _VirtualSelector(selectors.SelectSelector):
    """Never waits: what a wait would have taken is added to the loop's time."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise AssertionError("everything waits and no timer is set: a deadlock")
            self.passed_s += max(timeout, 0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which timers fire as soon as nothing else can run."""

    def __init__(self) -> None:
        self.virtual = _VirtualSelector()
        super().__init__(self.virtual)

    def time(self) -> float:
        return 1_000.0 + self.virtual.passed_s


class LoopClock:
    """A node's clocks in virtual time."""

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)


def run_virtual(work: Coroutine[Any, Any, R]) -> R:
    """Run to the end in virtual time; what is still running then is cancelled."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test as a coroutine that is run as :func:`run_virtual` does."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtual(test(*args, **kwargs))

    return run


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)


# --- managers ---------------------------------------------------------------------------------------


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


@pytest.fixture
def cluster(tmp_path: Path) -> MakeCluster:
    """Makes clusters, to be used as ``async with cluster() as c``; arguments are replication settings."""
    return lambda **settings: Cluster(tmp_path, **settings)
