"""The seam on the event loop: three voters in memory and on real sockets, in threads and inline."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tidelog.metadata_quorum.quorum import Quorum, SnapshotNeeded
from tidelog.metadata_quorum.raft.driver import ThreadDriver
from tidelog.metadata_quorum.raft.types import (
    FIRST_OFFSET,
    PROPOSAL_BYTES_MAX,
    NotLeading,
    OutcomeUnknown,
    QuorumBusy,
    QuorumConfigurationError,
    QuorumLimits,
)
from tidelog.model.ids import ControllerEpoch, DirectoryId, NodeId, Offset
from tidelog.proto.transport.grpc_transport import GrpcNetwork
from tidelog.proto.transport.memory_transport import MemoryFabric
from tidelog.proto.transport.network import Address, ConnectionLost, Network, Server, Service, StreamKind
from tidelog.proto.transport.raft_messages import PROTOCOL_VERSION, Hello, decode_hello_answer, encode_hello
from tidelog.storage.disk.files import SystemFile, SystemFiles
from tidelog.testing.ports import LOOPBACK, free_ports

DIRECTORY = DirectoryId(bytes(range(16)))


class Listener:
    """Remembers what it hears; its state is the list of payloads."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.offset = 1
        self.events: list[tuple[str, int]] = []
        self.loads = 0
        self.fail_on = b""

    def on_load(self, offset: Offset, epoch: ControllerEpoch, snapshot: bytes) -> None:
        self.payloads = snapshot.split(b",") if snapshot else []
        self.offset = offset
        self.loads += 1

    def on_commit(self, offset: Offset, epoch: ControllerEpoch, payload: bytes) -> None:
        assert offset == self.offset + 1
        if payload and payload == self.fail_on:
            raise ValueError(f"cannot apply {payload!r}")
        self.offset = offset
        if payload:
            self.payloads.append(payload)

    def on_leading(self, epoch: ControllerEpoch) -> None:
        self.events.append(("leading", epoch))

    def on_resigned(self, epoch: ControllerEpoch) -> None:
        self.events.append(("resigned", epoch))

    def on_leader_change(self, leader: NodeId | None, epoch: ControllerEpoch) -> None:
        self.events.append((f"leader {leader}", epoch))


class Trio:
    """Voters on one carrier, each with a directory, that can be killed and started again."""

    def __init__(self, directory: Path, carrier: str, threaded: bool, voters: int) -> None:
        self.directory = directory
        self.carrier = carrier
        self.threaded = threaded
        self.fabric = MemoryFabric()
        self.ids = [NodeId(node) for node in range(1, voters + 1)]
        ports = free_ports(len(self.ids), random.Random())
        self.addresses = {node: Address(LOOPBACK, port) for node, port in zip(self.ids, ports, strict=True)}
        self.quorums: dict[NodeId, Quorum] = {}
        self.listeners: dict[NodeId, Listener] = {}
        self.servers: dict[NodeId, Server] = {}
        self.fatal: list[tuple[NodeId, BaseException]] = []
        self.limits = QuorumLimits()
        self.bugs: list[BaseException] = []

    def network(self, node: NodeId) -> Network:
        if self.carrier == "grpc":
            return GrpcNetwork(on_bug=self.bugs.append)
        return self.fabric.network(f"node-{node}", self.bugs.append)

    def make(self, node: NodeId, cluster_id: str = "c") -> Quorum:
        self.listeners[node] = Listener()
        return Quorum(
            cluster_id=cluster_id,
            node_id=node,
            voters=self.addresses,
            directory=self.directory / str(node),
            files=SystemFiles(),
            connect=self.network(node).connect,
            rng=random.Random(node),
            listener=self.listeners[node],
            on_fatal=lambda error: self.fatal.append((node, error)),
            limits=self.limits,
            threaded=self.threaded,
        )

    async def start(self, *nodes: NodeId) -> None:
        for node in nodes or self.ids:
            quorum = self.quorums[node] = self.make(node)
            service = Service({}, {StreamKind.RAFT: quorum.raft_session})
            self.servers[node] = await self.network(node).serve("CONTROLLER", self.addresses[node], service)
            await quorum.start()

    async def kill(self, node: NodeId) -> None:
        quorum = self.quorums.pop(node)
        if self.carrier == "memory":
            self.fabric.drop_node(f"node-{node}")
        await asyncio.gather(quorum.kill(), self.servers.pop(node).close(0))

    async def stop(self) -> None:
        for node, quorum in self.quorums.items():
            await asyncio.gather(quorum.stop(), self.servers[node].close(0))
        self.quorums.clear()
        assert self.bugs == []

    async def leader(self) -> Quorum:
        await until(lambda: any(quorum.leading is not None for quorum in self.quorums.values()))
        leading = [quorum for quorum in self.quorums.values() if quorum.leading is not None]
        return max(leading, key=lambda quorum: quorum.leading or 0)

    async def propose(self, payload: bytes) -> Offset:
        leader = await self.leader()
        assert leader.leading is not None
        return await leader.propose(payload, leader.leading)

    async def equal(self) -> None:
        await until(lambda: len({quorum.commit_offset for quorum in self.quorums.values()}) == 1)
        assert len({tuple(self.listeners[node].payloads) for node in self.quorums}) == 1


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.fixture(params=["memory-inline", "memory-threaded", "grpc-threaded"])
async def trio(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Trio]:
    carrier, mode = request.param.split("-")
    before = set(threading.enumerate())  # the cluster of another folder's session may run beside
    made = Trio(tmp_path, carrier, mode == "threaded", 3)
    yield made
    await made.stop()
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name.startswith("quorum-")]


@pytest.fixture
async def single(tmp_path: Path) -> AsyncIterator[Trio]:
    made = Trio(tmp_path, "memory", True, 1)
    yield made
    await made.stop()


async def test_three_voters_elect_and_commit_everywhere(trio: Trio) -> None:
    await trio.start()
    payloads = [b"%d" % number for number in range(500)]
    for attempts_left in (2, 1, 0):
        leader = await trio.leader()
        epoch = leader.leading
        assert epoch is not None
        try:
            offsets = await asyncio.gather(*[leader.propose(payload, epoch) for payload in payloads])
            await trio.equal()
            assert {quorum.leader() for quorum in trio.quorums.values()} == {(leader.identity.node_id, epoch)}
            break
        except (NotLeading, OutcomeUnknown, AssertionError):  # a machine that stood still for longer than others wait
            if leader.leading == epoch or not attempts_left:
                raise
    assert list(offsets) == list(range(offsets[0], offsets[0] + 500))  # in order of the calls
    assert trio.listeners[NodeId(1)].payloads[-500:] == payloads


async def test_killed_leader_is_followed_by_another_and_comes_back(trio: Trio) -> None:
    await trio.start()
    acknowledged = []
    for round_ in range(3):
        leader = await trio.leader()
        for number in range(20):
            payload = b"%d-%d" % (round_, number)
            await trio.propose(payload)
            acknowledged.append(payload)
        node = leader.identity.node_id
        await trio.kill(node)
        await trio.propose(b"without %d" % round_)
        acknowledged.append(b"without %d" % round_)
        await trio.start(node)
    await trio.equal()
    assert trio.listeners[NodeId(2)].payloads == acknowledged


async def test_all_killed_at_once_lose_nothing(trio: Trio) -> None:
    await trio.start()
    for number in range(50):
        await trio.propose(b"%d" % number)
    await asyncio.gather(*(trio.kill(node) for node in trio.ids))
    await trio.start()
    await trio.propose(b"after")
    await trio.equal()
    assert trio.listeners[NodeId(3)].payloads == [b"%d" % number for number in range(50)] + [b"after"]


async def test_snapshot_is_loaded_by_who_is_too_far_behind(trio: Trio) -> None:
    trio.limits = QuorumLimits(retained_entries=1, snapshot_part_bytes=100)
    await trio.start()
    leader = await trio.leader()
    behind = next(node for node in trio.ids if node != leader.identity.node_id)
    await trio.propose(b"first")
    await trio.equal()
    await trio.kill(behind)
    for number in range(100):
        await trio.propose(b"%d" % number)
    leader = await trio.leader()
    for quorum in trio.quorums.values():
        await until(lambda quorum=quorum: quorum.commit_offset == leader.commit_offset)  # type: ignore[misc]
        state = b",".join(trio.listeners[quorum.identity.node_id].payloads)
        assert leader.leading is not None
        quorum.compact(quorum.commit_offset, leader.leading, state)
        await until(lambda quorum=quorum: quorum.snapshot_offset == quorum.commit_offset)  # type: ignore[misc]
    await trio.propose(b"last")
    await trio.start(behind)
    await trio.equal()
    assert trio.listeners[behind].loads == 1
    assert trio.listeners[behind].payloads == [b"first", *(b"%d" % number for number in range(100)), b"last"]


async def test_restart_loads_the_snapshot_and_what_follows(single: Trio) -> None:
    single.limits = QuorumLimits(retained_entries=1)
    node = NodeId(1)
    await single.start()
    for number in range(10):
        await single.propose(b"%d" % number)
    quorum = single.quorums[node]
    assert quorum.leading is not None
    quorum.compact(Offset(8), quorum.leading, b",".join(b"%d" % number for number in range(5)))
    await until(lambda: quorum.snapshot_offset == 8)
    await single.kill(node)
    await single.start()
    await single.propose(b"10")
    listener = single.listeners[node]
    assert (listener.loads, listener.payloads) == (1, [b"%d" % number for number in range(11)])
    assert isinstance(single.quorums[node].entries(Offset(0), ControllerEpoch(-1), 1000), SnapshotNeeded)
    found = single.quorums[node].entries(Offset(9), ControllerEpoch(1), 10_000)
    assert not isinstance(found, SnapshotNeeded)
    assert [entry.payload for entry in found if entry.payload] == [b"5", b"6", b"7", b"8", b"9", b"10"]


async def test_brokers_fetch_entries_from_any_voter(trio: Trio) -> None:
    await trio.start()
    for number in range(10):
        await trio.propose(b"%d" % number)
    await trio.equal()
    for quorum in trio.quorums.values():
        found = quorum.entries(Offset(0), ControllerEpoch(-1), 1 << 20)
        assert not isinstance(found, SnapshotNeeded)
        assert found[0].offset == FIRST_OFFSET
        assert [entry.payload for entry in found if entry.payload] == [b"%d" % number for number in range(10)]
        last = found[-1]
        assert quorum.entries(Offset(last.offset + 1), last.epoch, 1) == ()


async def test_single_voter_leads_when_start_returns_and_soon(single: Trio) -> None:
    began = time.monotonic()
    await single.start()
    await single.propose(b"x")
    assert time.monotonic() - began < 0.3
    events = single.listeners[NodeId(1)].events
    assert ("leading", 1) in events
    assert ("leader 1", 1) in events


async def test_three_voters_lead_within_a_few_tenths_of_a_second(tmp_path: Path) -> None:
    for carrier, bound in (("memory", 0.3), ("grpc", 1.0)):
        trio = Trio(tmp_path / carrier, carrier, True, 3)
        began = time.monotonic()
        await trio.start()
        await trio.leader()
        assert time.monotonic() - began < bound
        await trio.stop()


async def test_barrier_hears_everything_committed_before_it(trio: Trio) -> None:
    await trio.start()
    leader = await trio.leader()
    assert leader.leading is not None
    future = leader.propose(b"before", leader.leading)
    offset = await leader.barrier()
    assert offset > await future
    assert trio.listeners[leader.identity.node_id].payloads == [b"before"]
    together = await asyncio.gather(*(leader.barrier() for _ in range(20)))
    assert len(set(together)) <= 3  # shared, not one each
    follower = next(quorum for quorum in trio.quorums.values() if quorum is not leader)
    with pytest.raises(NotLeading, match=f"leader is node {leader.identity.node_id}"):
        await follower.barrier()


async def test_a_barrier_under_way_does_not_serve_who_comes_later(single: Trio) -> None:
    await single.start()
    quorum = await single.leader()
    assert quorum.leading is not None
    early = asyncio.ensure_future(quorum.barrier())
    await asyncio.sleep(0)
    proposed = quorum.propose(b"between", quorum.leading)
    late = asyncio.ensure_future(quorum.barrier())
    assert await early < await proposed < await late


async def test_only_the_leader_takes_proposals_and_only_of_its_epoch(trio: Trio) -> None:
    await trio.start()
    leader = await trio.leader()
    assert leader.leading is not None
    follower = next(quorum for quorum in trio.quorums.values() if quorum is not leader)
    for quorum, epoch in ((follower, leader.leading), (leader, leader.leading - 1), (leader, leader.leading + 1)):
        with pytest.raises(NotLeading, match=f"node {quorum.identity.node_id} does not lead under epoch {epoch}"):
            await quorum.propose(b"x", ControllerEpoch(epoch))


async def test_proposals_pending_when_leadership_ends_are_of_unknown_outcome(trio: Trio) -> None:
    await trio.start()
    await trio.propose(b"first")
    leader = await trio.leader()
    epoch = leader.leading
    assert epoch is not None
    others = [node for node in trio.ids if node != leader.identity.node_id]
    for node in others:
        await trio.kill(node)
    future = leader.propose(b"pending", epoch)
    began = time.monotonic()
    with pytest.raises(OutcomeUnknown):
        await future
    assert time.monotonic() - began < 2.0
    assert leader.leading is None
    assert (
        trio.listeners[leader.identity.node_id].events[-1][0] in ("leader None", "resigned 1")
        or leader.leader()[0] is None
    )
    with pytest.raises(NotLeading):
        await leader.propose(b"later", ControllerEpoch(1))
    await trio.start(*others)
    await trio.propose(b"after")
    await trio.equal()


async def test_stop_fails_what_is_pending_with_unknown_outcome(trio: Trio) -> None:
    await trio.start()
    leader = await trio.leader()
    assert leader.leading is not None
    future = leader.propose(b"x", leader.leading)
    await leader.stop()
    with pytest.raises(OutcomeUnknown, match="stopping"):
        await future
    with pytest.raises(NotLeading):
        await leader.propose(b"y", ControllerEpoch(1))


async def test_a_listener_that_raises_stops_the_node(single: Trio) -> None:
    await single.start()
    single.listeners[NodeId(1)].fail_on = b"poison"
    quorum = await single.leader()
    assert quorum.leading is not None
    await quorum.propose(b"fine", quorum.leading)
    with pytest.raises(OutcomeUnknown, match="cannot apply"):
        await quorum.propose(b"poison", quorum.leading)
    assert [(node, type(error)) for node, error in single.fatal] == [(1, ValueError)]
    assert single.listeners[NodeId(1)].payloads == [b"fine"]


async def test_a_disk_that_fails_stops_the_node(tmp_path: Path) -> None:
    class FailingFiles(SystemFiles):
        failing = False

        def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> SystemFile:
            return FailingFile(super().open(path, create=create, exclusive=exclusive).fileno())

    class FailingFile(SystemFile):
        def fdatasync(self) -> None:
            if files.failing:
                raise OSError(28, "No space left on device")
            super().fdatasync()

    fatal: list[BaseException] = []
    files = FailingFiles()

    def made() -> Quorum:
        return quorum_on(files, tmp_path, fatal)

    files.failing = True
    with pytest.raises(OSError, match="No space left"):
        await made().start()
    assert fatal == []  # the caller that starts it gets the error
    files.failing = False
    quorum = made()
    await quorum.start()
    assert quorum.leading is not None
    files.failing = True
    with pytest.raises(OutcomeUnknown, match="No space left"):
        await quorum.propose(b"x", quorum.leading)
    assert [type(error) for error in fatal] == [OSError]
    await quorum.stop()


def quorum_on(files: SystemFiles, directory: Path, fatal: list[BaseException]) -> Quorum:
    return Quorum(
        cluster_id="c",
        node_id=NodeId(1),
        voters={NodeId(1): Address("127.0.0.1", 1)},
        directory=directory,
        files=files,
        connect=MemoryFabric().network("n").connect,
        rng=random.Random(1),
        listener=Listener(),
        on_fatal=fatal.append,
    )


async def test_bounds_of_proposals(single: Trio) -> None:
    await single.start()
    quorum = await single.leader()
    epoch = quorum.leading
    assert epoch is not None
    for payload in (b"", bytes(PROPOSAL_BYTES_MAX + 1)):
        with pytest.raises(
            ValueError, match=f"expected a payload of 1 to {PROPOSAL_BYTES_MAX} bytes, found {len(payload)}"
        ):
            quorum.propose(payload, epoch)
    await quorum.propose(bytes(PROPOSAL_BYTES_MAX), epoch)
    futures: list[Awaitable[Offset]] = []

    def flood() -> None:
        while True:
            futures.append(quorum.propose(b"x", epoch))

    with pytest.raises(QuorumBusy, match="expected at most 4096"):
        flood()
    assert len(futures) == 4096
    await asyncio.gather(*futures)


async def test_bytes_of_proposals_under_way_are_bounded(single: Trio) -> None:
    await single.start()
    quorum = await single.leader()
    epoch = quorum.leading
    assert epoch is not None
    futures = [quorum.propose(bytes(PROPOSAL_BYTES_MAX), epoch) for _ in range(8)]
    with pytest.raises(
        QuorumBusy, match="expected at most 67108864 proposed bytes under way, found 67108864 and 1 more"
    ):
        quorum.propose(b"x", epoch)
    await asyncio.gather(*futures)
    await quorum.propose(b"x", epoch)


async def test_streams_are_not_read_while_the_engine_is_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A voter whose engine stands still holds few frames, not all that its peers could send."""
    trio = Trio(tmp_path, "memory", True, 3)
    await trio.start()
    await trio.propose(b"first")
    await trio.equal()
    leader = await trio.leader()
    epoch = leader.leading
    assert epoch is not None
    slow = next(quorum for quorum in trio.quorums.values() if quorum is not leader)
    driver = slow._driver
    assert isinstance(driver, ThreadDriver)
    most = 0
    with driver._condition, monkeypatch.context() as patched:  # the engine's thread cannot take its inputs
        submitted = driver._inputs
        patched.setattr(driver, "submit", submitted.append)
        patched.setattr(type(driver), "backlog", property(lambda self: len(self._inputs)))
        for number in range(400):
            await leader.propose(b"%d" % number, epoch)
            most = max(most, len(submitted))
    assert 60 <= most <= 70
    await trio.equal()
    await trio.stop()


async def test_compaction_beyond_what_was_heard_is_refused(single: Trio) -> None:
    await single.start()
    with pytest.raises(ValueError, match="expected a snapshot of at most offset 3, found 4"):
        single.quorums[NodeId(1)].compact(Offset(4), ControllerEpoch(1), b"")


# --- what does not belong together -----------------------------------------------------------------------------


async def test_a_directory_in_use_is_refused(single: Trio) -> None:
    await single.start()
    with pytest.raises(QuorumConfigurationError, match="in use by another process"):
        await single.make(NodeId(1)).start()


async def test_a_directory_of_another_cluster_is_refused(single: Trio) -> None:
    await single.start()
    await single.kill(NodeId(1))
    with pytest.raises(QuorumConfigurationError, match="another cluster: expected other, found c"):
        await single.make(NodeId(1), cluster_id="other").start()
    await single.start()


async def test_a_voter_must_be_among_the_voters(single: Trio) -> None:
    with pytest.raises(ValueError, match=r"expected rising voters with node 9 among them, found \(1,\)"):
        single.make(NodeId(9))


@pytest.mark.parametrize(
    ("hello", "refusal"),
    [
        (
            Hello(PROTOCOL_VERSION, "other", NodeId(2), NodeId(1), (NodeId(1), NodeId(2), NodeId(3)), DIRECTORY),
            "expected cluster c, found other",
        ),
        (
            Hello(9, "c", NodeId(2), NodeId(1), (NodeId(1), NodeId(2), NodeId(3)), DIRECTORY),
            "expected Raft stream version 2, found 9",
        ),
        (
            Hello(PROTOCOL_VERSION, "c", NodeId(2), NodeId(3), (NodeId(1), NodeId(2), NodeId(3)), DIRECTORY),
            "expected a stream to node 1, found 3",
        ),
        (
            Hello(PROTOCOL_VERSION, "c", NodeId(2), NodeId(1), (NodeId(1), NodeId(2)), DIRECTORY),
            "expected controller.quorum.voters with the ids [1, 2, 3], found [1, 2]",
        ),
        (
            Hello(PROTOCOL_VERSION, "c", NodeId(7), NodeId(1), (NodeId(1), NodeId(2), NodeId(3)), DIRECTORY),
            "expected a stream from one of the controllers [2, 3], found node 7",
        ),
    ],
    ids=["cluster", "version", "peer", "voters", "stranger"],
)
async def test_a_stream_that_does_not_belong_is_refused(trio: Trio, hello: Hello, refusal: str) -> None:
    await trio.start(NodeId(1))
    connection = trio.network(NodeId(2)).connect(trio.addresses[NodeId(1)])
    stream = await connection.open(StreamKind.RAFT, timeout_s=5)
    await stream.send([encode_hello(hello)])
    assert decode_hello_answer(await stream.receive()).refusal == refusal
    stream.close()
    await connection.close()


async def test_garbage_ends_the_stream_and_nothing_else(trio: Trio) -> None:
    await trio.start()
    connection = trio.network(NodeId(2)).connect(trio.addresses[NodeId(1)])
    rng = random.Random(1)
    for _ in range(20):
        stream = await connection.open(StreamKind.RAFT, timeout_s=5)
        await stream.send([b"\xff" + rng.randbytes(rng.randrange(100))])
        with pytest.raises(ConnectionLost):
            await stream.receive()
        stream.close()
    await connection.close()
    await trio.propose(b"unharmed")
    assert trio.fatal == []


async def test_a_peer_of_another_cluster_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trio = Trio(tmp_path, "memory", True, 3)
    stranger = trio.make(NodeId(2), cluster_id="other")
    await trio.start(NodeId(1))
    with caplog.at_level(logging.ERROR, "tidelog.metadata_quorum"):
        await stranger.start()
        await asyncio.sleep(0.5)
        await stranger.stop()
    said = [record.getMessage() for record in caplog.records if "refuses our Raft stream" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("controller 1, reached at ")
    assert said[0].endswith(" refuses our Raft stream: expected cluster c, found other")
    await trio.stop()


# --- links -------------------------------------------------------------------------------------------------------


async def test_a_leader_cut_off_in_silence_resigns_and_the_others_go_on(tmp_path: Path) -> None:
    trio = Trio(tmp_path, "memory", True, 3)
    await trio.start()
    await trio.propose(b"before")
    old = await trio.leader()
    name = f"node-{old.identity.node_id}"
    others = [f"node-{node}" for node in trio.ids if node != old.identity.node_id]
    for other in others:
        trio.fabric.cut(name, other)
        trio.fabric.cut(other, name)
    began = time.monotonic()
    await until(lambda: old.leading is None)
    assert time.monotonic() - began < 0.6
    await until(lambda: any(quorum.leading is not None for quorum in trio.quorums.values()))
    await trio.propose(b"meanwhile")
    trio.fabric.heal()
    await trio.equal()
    assert trio.listeners[old.identity.node_id].payloads == [b"before", b"meanwhile"]
    await trio.stop()


async def test_broken_streams_come_back_and_change_no_leader(tmp_path: Path) -> None:
    trio = Trio(tmp_path, "memory", True, 3)
    await trio.start()
    await trio.propose(b"first")
    await trio.equal()  # all have heard the leader
    leader = await trio.leader()
    follower = next(node for node in trio.ids if node != leader.identity.node_id)
    for number in range(10):
        trio.fabric.break_connections(f"node-{leader.identity.node_id}", f"node-{follower}")
        await trio.propose(b"%d" % number)
    await trio.equal()
    assert {quorum.leader() for quorum in trio.quorums.values()} == {(leader.identity.node_id, leader.leading)}
    await trio.stop()


async def test_commits_reach_followers_without_waiting_for_a_heartbeat(tmp_path: Path) -> None:
    trio = Trio(tmp_path, "memory", True, 3)
    await trio.start()
    await trio.propose(b"first")
    await trio.equal()
    began = time.monotonic()
    for number in range(20):
        offset = await trio.propose(b"%d" % number)
        await until(lambda offset=offset: all(q.commit_offset >= offset for q in trio.quorums.values()))  # type: ignore[misc]
    assert time.monotonic() - began < 20 * 0.1  # a heartbeat is 0.2 s
    await trio.stop()


async def test_a_loop_that_is_held_up_costs_nobody_the_leadership(tmp_path: Path) -> None:
    trio = Trio(tmp_path, "grpc", True, 3)
    await trio.start()
    await trio.propose(b"first")
    await trio.equal()
    leader = await trio.leader()
    for _ in range(3):
        time.sleep(1.5)  # noqa: ASYNC251  # longer than any election timeout
        await asyncio.sleep(0.2)
        await trio.propose(b"x")
    assert {quorum.leader() for quorum in trio.quorums.values()} == {(leader.identity.node_id, leader.leading)}
    assert ("resigned", leader.leading) not in trio.listeners[leader.identity.node_id].events
    await trio.stop()
