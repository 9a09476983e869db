"""A coordinator's side of a replica manager: when it hears of its partitions, and what it appends to them."""

from __future__ import annotations

import asyncio

from tests.replication.managers import Broker, Cluster, MakeCluster
from tests.virtual_time import in_virtual_time
from tidelog.model.errors import ErrorCode, Refusal
from tidelog.model.ids import NO_NODE, LeaderEpoch, NodeId, Offset, TopicId, TopicIdPartition, TopicPartition
from tidelog.model.names import GROUP_OFFSETS_TOPIC
from tidelog.proto.records.batches import split_batches
from tidelog.proto.records.decoder import decode_values
from tidelog.proto.records.encoder import encode_values
from tidelog.proto.transport.frames import ProducePartition, ProduceRequest
from tidelog.replication.manager import ReplicaManager

AT = TopicPartition("t", 0)
KEY = TopicIdPartition(TopicId(bytes(range(16))), 0)


class Heard:
    """A listener that keeps what it hears; ``elected`` holds only if the log can be used at once."""

    def __init__(self, manager: ReplicaManager) -> None:
        self.manager = manager
        self.calls: list[tuple[str, int, int]] = []

    def elected(self, partition: int, leader_epoch: int) -> None:
        bounds = self.manager.coordinating.bounds(TopicPartition("t", partition), LeaderEpoch(leader_epoch))
        assert not isinstance(bounds, Refusal)
        self.calls.append(("elected", partition, leader_epoch))

    def resigned(self, partition: int, leader_epoch: int) -> None:
        bounds = self.manager.coordinating.bounds(TopicPartition("t", partition), LeaderEpoch(leader_epoch))
        assert isinstance(bounds, Refusal)
        self.calls.append(("resigned", partition, leader_epoch))

    def take(self) -> list[tuple[str, int, int]]:
        taken, self.calls = self.calls, []
        return taken


def watch(broker: Broker) -> Heard:
    heard = Heard(broker.manager)
    broker.manager.watch_roles("t", heard)
    return heard


def cut(c: Cluster, a: int, b: int) -> None:
    c.fabric.cut(f"node-{a}", f"node-{b}")
    c.fabric.cut(f"node-{b}", f"node-{a}")


def batch(*values: bytes) -> bytearray:
    return encode_values(list(values), 0)


# --- roles ------------------------------------------------------------------------------------------


@in_virtual_time
async def test_elections_and_resignations_alternate(cluster: MakeCluster) -> None:
    async with cluster() as c:
        one, two = watch(c[1]), watch(c[2])
        c.create(leader=1, partitions=2)
        assert one.take() == [("elected", 0, 0), ("elected", 1, 0)]
        assert two.take() == []
        c.change(isr=[1, 2])
        assert one.take() == [], "another ISR is no election"
        c.change(leader=NodeId(2))
        assert (one.take(), two.take()) == ([("resigned", 0, 0)], [("elected", 0, 1)])
        c.change(leader=NodeId(2))
        assert two.take() == [("resigned", 0, 1), ("elected", 0, 2)], "the same leader under a newer epoch"
        c.change(leader=NO_NODE)
        assert two.take() == [("resigned", 0, 2)]


@in_virtual_time
async def test_fencing_deletion_a_failed_disk_and_the_stop_are_resignations(cluster: MakeCluster) -> None:
    async with cluster() as c:
        heard = watch(c[1])
        c.create(leader=1, partitions=4)
        heard.take()
        c[1].manager.fence()
        assert heard.take() == [("resigned", n, 0) for n in range(4)]
        c[1].manager.fence()
        assert heard.take() == []
        for n in range(4):
            c.change(n, leader=NodeId(1))
        assert heard.take() == [("elected", n, 1) for n in range(4)]
        c[1].manager.remove([KEY], True)
        assert heard.take() == [("resigned", 0, 1)]
        failed = c[1].partition(1).log.directory.rsplit("/", 1)[0]
        held = [n for n in (1, 2, 3) if c[1].partition(n).log.directory.startswith(failed)]
        c[1].manager.directory_failed(failed)
        assert heard.take() == [("resigned", n, 1) for n in held]
        left = [n for n in (1, 2, 3) if n not in held]
        await c[1].stop()
        assert heard.take() == [("resigned", n, 1) for n in left]


@in_virtual_time
async def test_a_killed_node_tells_nobody(cluster: MakeCluster) -> None:
    async with cluster() as c:
        heard = watch(c[1])
        c.create(leader=1)
        heard.take()
        c[1].kill()
        assert heard.take() == []


# --- appends ----------------------------------------------------------------------------------------


@in_virtual_time
async def test_appends_are_in_the_order_of_the_calls_and_answered_once_replicated(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        coordinating = c[1].manager.coordinating
        appends = [coordinating.append(AT, LeaderEpoch(0), batch(b"%d" % n, b"x")) for n in range(50)]
        assert c[1].values()[::2] == [b"%d" % n for n in range(50)], "before anything was awaited"
        assert not any(append.done() for append in appends)
        done: list[asyncio.Future[ErrorCode]] = []
        for append in appends:
            append.add_done_callback(done.append)
        assert await asyncio.gather(*appends) == [ErrorCode.NONE] * 50
        assert done == appends
        assert c[1].values(committed=True) == c[1].values()
        assert not c[1].manager.replicas[KEY].consumers


@in_virtual_time
async def test_an_append_waits_as_long_as_it_takes(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a")
        cut(c, 1, 3)
        append = c[1].manager.coordinating.append(AT, LeaderEpoch(0), batch(b"b"))
        await asyncio.sleep(20)
        assert not append.done()
        c.fabric.heal()
        assert await append is ErrorCode.NONE


@in_virtual_time
async def test_where_leadership_ends_first_the_outcome_is_unknown(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a")
        cut(c, 1, 2)
        cut(c, 1, 3)
        coordinating = c[1].manager.coordinating
        append = coordinating.append(AT, LeaderEpoch(0), batch(b"b"))
        caught_up = coordinating.committed(AT, LeaderEpoch(0), Offset(2))
        c.change(leader=NodeId(2), isr=[1, 2, 3])
        assert (await append, await caught_up) == (ErrorCode.NOT_COORDINATOR,) * 2
        assert c[1].values() == [b"a", b"b"]


@in_virtual_time
async def test_the_same_leader_under_a_newer_epoch_is_another_one(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a")
        cut(c, 1, 2)
        cut(c, 1, 3)
        coordinating = c[1].manager.coordinating
        append = coordinating.append(AT, LeaderEpoch(0), batch(b"b"))
        c.change(leader=NodeId(1))
        assert await append is ErrorCode.NOT_COORDINATOR
        for epoch in (0, 2):
            assert await coordinating.append(AT, LeaderEpoch(epoch), batch(b"c")) is ErrorCode.NOT_COORDINATOR
            assert await coordinating.committed(AT, LeaderEpoch(epoch), Offset(0)) is ErrorCode.NOT_COORDINATOR
            refused = coordinating.read(AT, LeaderEpoch(epoch), Offset(0), 100)
            assert isinstance(refused, Refusal)
            assert refused.code is ErrorCode.NOT_COORDINATOR
        assert c[1].values() == [b"a", b"b"]
        later = coordinating.append(AT, LeaderEpoch(1), batch(b"c"))
        c.fabric.heal()
        assert await later is ErrorCode.NONE


@in_virtual_time
async def test_a_refused_append_writes_nothing(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, isr=[1], min_insync_replicas=2, max_message_bytes=200)
        coordinating = c[1].manager.coordinating
        assert await coordinating.append(AT, LeaderEpoch(0), batch(b"x")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await coordinating.append(AT, LeaderEpoch(0), batch(b"x" * 200)) is ErrorCode.MESSAGE_TOO_LARGE
        assert await c[2].manager.coordinating.append(AT, LeaderEpoch(0), batch(b"x")) is ErrorCode.NOT_COORDINATOR
        unknown = TopicPartition("nope", 0)
        assert await coordinating.append(unknown, LeaderEpoch(0), batch(b"x")) is ErrorCode.NOT_COORDINATOR
        assert c[1].values() == []


@in_virtual_time
async def test_a_cancelled_wait_holds_up_nobody(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a")
        cut(c, 1, 3)
        coordinating = c[1].manager.coordinating
        appends = [coordinating.append(AT, LeaderEpoch(0), batch(b"b")) for _ in range(3)]
        appends[1].cancel()
        c.fabric.heal()
        assert (await appends[0], await appends[2]) == (ErrorCode.NONE, ErrorCode.NONE)


# --- loading ----------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_new_leader_reads_all_there_is_and_knows_when_it_is_committed(cluster: MakeCluster) -> None:
    """Reads the old leader's uncommitted appends too; they are committed once the ISR has them."""
    async with cluster() as c:
        c.create(leader=1)
        for n in range(10):
            await c[1].produce(b"%d" % n * 30)
        cut(c, 1, 3)
        uncommitted = c[1].begin(b"tail")
        while c[2].partition().log.log_end_offset < 11:
            await asyncio.sleep(0.01)
        c[1].kill()
        c.change(leader=NodeId(2), isr=[2, 3])
        coordinating = c[2].manager.coordinating
        bounds = coordinating.bounds(AT, LeaderEpoch(1))
        assert bounds == (0, 11)
        caught_up = coordinating.committed(AT, LeaderEpoch(1), bounds.end)
        assert not caught_up.done()
        offset, values = bounds.start, []
        while offset < bounds.end:
            found = coordinating.read(AT, LeaderEpoch(1), offset, 100)
            assert not isinstance(found, Refusal)
            assert found.next_offset > offset
            values += [value for part in split_batches(found.records) for value in decode_values(part)]
            offset = found.next_offset
        assert values == [*(b"%d" % n * 30 for n in range(10)), b"tail"]
        assert await caught_up is ErrorCode.NONE
        assert c[2].partition().high_watermark == 11
        uncommitted.cancel()


# --- clients ----------------------------------------------------------------------------------------


@in_virtual_time
async def test_clients_do_not_write_to_internal_topics(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        partition = c[1].partition()
        object.__setattr__(partition.state, "topic", GROUP_OFFSETS_TOPIC)
        answer = await c[1].answers(ProduceRequest(-1, 100, [ProducePartition(*KEY, batch(b"x"))]))
        assert answer[0].error is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert c[1].values() == []
