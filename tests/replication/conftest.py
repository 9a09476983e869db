"""Three replicas of one partition that a test drives by hand, and an event loop whose time is virtual."""

from __future__ import annotations

import asyncio
import itertools
import random
import selectors
import shutil
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings as hypothesis_settings

from tidelog.model.errors import Refusal
from tidelog.model.ids import (
    NO_NODE,
    BrokerEpoch,
    LeaderEpoch,
    NodeId,
    Offset,
    PartitionEpoch,
    TopicId,
    TopicPartition,
)
from tidelog.model.topic_config import TopicConfig
from tidelog.proto.frames import FetchedPartition, FetchPartition
from tidelog.proto.record_decoder import decode_values
from tidelog.proto.record_encoder import encode_values
from tidelog.proto.records import split_batches
from tidelog.replication.answers import diverged, fetched, refused_fetch
from tidelog.replication.leader import Diverging, FollowerContact
from tidelog.replication.partition import Fetched, Partition, RoleChange
from tidelog.replication.partition_state import PartitionState
from tidelog.replication.replica import Replica
from tidelog.storage.files import SystemFiles
from tidelog.storage.handles import HandlePool
from tidelog.storage.log import Log, LogAppend
from tidelog.storage.log_errors import LogDirFailed
from tidelog.storage.recovery import load_log

hypothesis_settings.register_profile("replication", deadline=None)
hypothesis_settings.load_profile("replication")

TOPIC = "t"
TOPIC_ID = TopicId(bytes(range(16)))
LAG_MS = 30_000
R = TypeVar("R")


class Disk:
    """Where one node's replica lies; opening it again is what a new process does after a kill -9."""

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

    def store_points(self) -> None:
        pass

    def remove_later(self, path: str, delay_ms: int) -> None:
        Path(path).unlink()


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

    def produce(self, node: int, *values: bytes, acks: int = -1, **producer: int) -> LogAppend | Refusal:
        batches = split_batches(encode_values(list(values), self.now_ms, **producer))
        return self[node].p.append(batches, acks, self.now_ms, self.now_ms)

    def wrote(self, node: int, *values: bytes, acks: int = -1, **producer: int) -> LogAppend:
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
        """What ``leader`` answers to a fetch of ``follower``."""
        item = item or self.position(follower)
        p, host = self[leader].p, self[follower]
        host.contact.last_fetch_ms = self.now_ms
        replica = Replica(p, {})
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


@pytest.fixture
def rig(tmp_path: Path) -> Callable[..., Rig]:
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


@pytest.fixture
def virtual() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    return run_virtual


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)
