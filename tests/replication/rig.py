"""Three replicas of one partition that a test drives by hand."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from tidelog.model.errors import Refusal
from tidelog.model.ids import (
    NO_NODE,
    BrokerEpoch,
    DirectoryId,
    LeaderEpoch,
    NodeId,
    Offset,
    PartitionEpoch,
    TopicId,
    TopicPartition,
)
from tidelog.model.settings.topic_config import TopicConfig
from tidelog.proto.records.batches import split_batches
from tidelog.proto.records.decoder import decode_values
from tidelog.proto.records.encoder import encode_values
from tidelog.proto.transport.frames import FetchedPartition, FetchPartition
from tidelog.replication.partition.answers import diverged, fetched, refused_fetch
from tidelog.replication.partition.leader import Diverging, FollowerContact, LeaderState
from tidelog.replication.partition.partition import Fetched, Partition, RoleChange
from tidelog.replication.partition.partition_state import PartitionState
from tidelog.replication.partition.replica import Replica
from tidelog.replication.partition.topic_traffic import TopicTraffic
from tidelog.storage.disk.files import SystemFiles
from tidelog.storage.disk.handles import HandlePool
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.log.log import Log
from tidelog.storage.log.recovery import load_log
from tidelog.storage.producers.append_checks import LogAppend

TOPIC = "t"
TOPIC_ID = TopicId(bytes(range(16)))
LAG_MS = 30_000


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
