"""flush.messages, failing disks, deletion of records, bounds."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Sequence

from tests.virtual_time import in_virtual_time
from tidelog.model.buffer import Buffer
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import DirectoryId, NodeId, Offset
from tidelog.proto.calls.api import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsResponse
from tidelog.storage.disk.files import SystemFile, SystemFiles

from .managers import Cluster, MakeCluster


class Gate:
    """A disk whose fdatasync ends when the test says so."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.runs = 0

    async def __call__(self, action: Callable[[], None]) -> None:
        await self.open.wait()
        self.runs += 1
        action()


def gated(c: Cluster, *nodes: int) -> dict[int, Gate]:
    gates = {node: Gate() for node in nodes}
    for node, gate in gates.items():
        c[node].run_blocking = gate
    return gates


# --- flush.messages ---------------------------------------------------------------------------------


@in_virtual_time
async def test_with_flush_messages_1_an_acknowledged_record_is_on_every_acknowledging_disk(
    cluster: MakeCluster,
) -> None:
    async with cluster() as c:
        gates = gated(c, 1, 2, 3)
        c.create(leader=1, flush_messages=1)
        pending = c[1].begin(b"a")
        await asyncio.sleep(1)
        assert [c[node].values() for node in (1, 2, 3)] == [[b"a"]] * 3, "replication does not wait for the disk"
        assert not pending.done()
        for node in (2, 3):
            gates[node].open.set()
        await asyncio.sleep(1)
        assert not pending.done(), "the leader's own disk counts too"
        assert c[1].partition().high_watermark == 0
        gates[1].open.set()
        await asyncio.sleep(0.01)
        assert pending.result().error is ErrorCode.NONE
        assert [c[node].partition().log.recovery_point for node in (1, 2, 3)] == [1, 1, 1]


@in_virtual_time
async def test_a_follower_vouches_for_nothing_that_is_not_on_its_disk(cluster: MakeCluster) -> None:
    async with cluster() as c:
        gates = gated(c, 3)
        c.create(leader=1, flush_messages=1)
        pending = c[1].begin(b"a")
        await asyncio.sleep(2)
        assert not pending.done()
        assert c[3].values() == [b"a"]
        gates[3].open.set()
        await asyncio.sleep(0.01)
        assert pending.done()


@in_virtual_time
async def test_acks_1_waits_for_the_leaders_disk_alone(cluster: MakeCluster) -> None:
    async with cluster() as c:
        gates = gated(c, 1, 2, 3)
        c.create(leader=1, flush_messages=1)
        pending = c[1].begin(b"a", acks=1)
        await asyncio.sleep(1)
        assert not pending.done()
        gates[1].open.set()
        await asyncio.sleep(0.01)
        assert pending.done()
        for gate in gates.values():
            gate.open.set()


@in_virtual_time
async def test_flushes_are_grouped(cluster: MakeCluster) -> None:
    async with cluster() as c:
        gates = gated(c, 1)
        c.create(leader=1, isr=(1,), flush_messages=1)
        c.fenced.update({NodeId(2), NodeId(3)})
        pending = [c[1].begin(b"%d" % number, acks=1) for number in range(50)]
        await asyncio.sleep(1)
        gates[1].open.set()
        await asyncio.gather(*pending)
        assert gates[1].runs <= 2


@in_virtual_time
async def test_flush_messages_n_leaves_less_than_n_records_unsynced(cluster: MakeCluster) -> None:
    async with cluster() as c:
        gates = gated(c, 1)
        c.create(leader=1, isr=(1,), flush_messages=3)
        c.fenced.update({NodeId(2), NodeId(3)})
        assert (await c[1].produce(b"a", b"b", acks=1)).error is ErrorCode.NONE
        pending = c[1].begin(b"c", acks=1)
        await asyncio.sleep(1)
        assert not pending.done()
        gates[1].open.set()
        await asyncio.sleep(0.01)
        assert pending.done()


@in_virtual_time
async def test_flush_ms_syncs_in_time_and_holds_nothing_up(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, flush_ms=2_000)
        assert (await c[1].produce(b"a")).error is ErrorCode.NONE
        assert c[1].partition().log.recovery_point == 0
        await asyncio.sleep(3.5)
        assert [c[node].partition().log.recovery_point for node in (1, 2, 3)] == [1, 1, 1]


@in_virtual_time
async def test_a_partition_that_is_removed_while_its_flush_runs_goes_quietly(cluster: MakeCluster) -> None:
    async with cluster() as c:
        gates = gated(c, 1)
        c.create(leader=1, isr=(1,), flush_messages=1)
        pending = [c[1].begin(b"%d" % number, acks=1) for number in range(3)]
        await asyncio.sleep(0.01)
        for node in (1, 2, 3):
            c[node].manager.remove(list(c.states), delete=True)
        gates[1].open.set()
        answers = await asyncio.gather(*pending)
        assert {answer.error for answer in answers} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
        await asyncio.sleep(0.1)
        c.states.clear()


# --- failing disks ----------------------------------------------------------------------------------


class FailingFiles(SystemFiles):
    """A disk that is full below one directory, from when the test says so."""

    def __init__(self) -> None:
        self.full: str | None = None
        self.unreadable = False

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> SystemFile:
        return _FailingFile(super().open(path, create=create, exclusive=exclusive), path, self)


class _FailingFile(SystemFile):
    def __init__(self, file: SystemFile, path: str, disk: FailingFiles) -> None:
        super().__init__(file.fileno())
        self.path = path
        self.disk = disk

    def pread(self, size: int, offset: int) -> bytes:
        if self.disk.unreadable and self.path.endswith(".log"):
            raise OSError(errno.EIO, "Input/output error", self.path)
        return super().pread(size, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        if self.disk.full is not None and self.path.startswith(self.disk.full):
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        return super().pwritev(buffers, offset)


@in_virtual_time
async def test_a_full_disk_under_a_leader_takes_its_directory_out_of_service_alone(cluster: MakeCluster) -> None:
    made = cluster()
    made[1].files = files = FailingFiles()
    async with made as c:
        c.create(leader=1, partitions=4)
        for number in range(4):
            assert (await c[1].produce(b"a", partition=number)).error is ErrorCode.NONE
        homes = {number: c[1].partition(number).log.directory.rsplit("/", 1)[0] for number in range(4)}
        files.full = homes[0]
        c.fabric.cut("node-3", "node-1")
        other = next(number for number in range(4) if homes[number] == homes[0] and number)
        waiting = c[1].begin(b"never", partition=next(n for n in range(4) if homes[n] != homes[0]))
        poll = c[1].poll(1, partition=other, wait_ms=60_000)
        await asyncio.sleep(0.01)
        answer = await c[1].produce(b"b", partition=0)
        assert answer.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert "No space left" in answer.error_message
        assert (await poll).partitions[0].error is ErrorCode.KAFKA_STORAGE_ERROR
        assert {key.partition for key in c[1].manager.offline_partitions()} == {
            number for number in range(4) if homes[number] == homes[0]
        }
        c.fabric.heal()
        assert (await waiting).error is ErrorCode.NONE, "the other directory goes on"
        again = await c[1].produce(b"c", partition=other)
        assert again.error is ErrorCode.KAFKA_STORAGE_ERROR
        c.change(0, leader=NodeId(2), isr=(2, 3))
        assert (await c[2].produce(b"b", partition=0)).error is ErrorCode.NONE


@in_virtual_time
async def test_a_full_disk_under_a_follower_stops_that_follower_alone(cluster: MakeCluster) -> None:
    made = cluster(replica_lag_time_max_ms=2_000)
    made[3].files = files = FailingFiles()
    async with made as c:
        c.create(leader=1, partitions=2)
        for number in range(2):
            await c[1].produce(b"a", partition=number)
        homes = [c[3].partition(number).log.directory.rsplit("/", 1)[0] for number in range(2)]
        assert homes[0] != homes[1]
        files.full = homes[0]
        assert (await c[1].produce(b"b", partition=0)).error is ErrorCode.NONE
        state = c[1].partition(0).state
        assert set(state.isr) == {1, 2}
        assert (await c[1].produce(b"b", partition=1)).error is ErrorCode.NONE
        assert c[3].values(1) == [b"a", b"b"]
        assert [key.partition for key in c[3].manager.offline_partitions()] == [0]


@in_virtual_time
async def test_a_replica_whose_directory_is_gone_at_start_is_offline_and_the_rest_serves(cluster: MakeCluster) -> None:
    async with cluster() as c:
        gone = bytes([9]) * 16
        c.create(leader=1, partitions=2)
        for node in (1, 2, 3):
            c[node].manager.remove(list(c.states), delete=True)
        key = next(iter(c.states))
        c.change(key.partition, directory_id=DirectoryId(gone))
        c.tell(*c.states.values())
        assert [each.partition for each in c[1].manager.offline_partitions()] == [0]
        assert (await c[1].produce(b"a", partition=1)).error is ErrorCode.NONE


@in_virtual_time
async def test_a_read_that_fails_ends_every_wait_on_its_directory_once(cluster: MakeCluster) -> None:
    made = cluster()
    made[1].files = files = FailingFiles()
    async with made as c:
        c.create(leader=1)
        waiting = [c[1].poll(0, wait_ms=60_000, bytes_min=5_000) for _ in range(3)]
        await c[1].produce(b"a")
        files.unreadable = True
        c[1].begin(b"b")
        answers = await asyncio.gather(*waiting)
        assert {answer.partitions[0].error for answer in answers} == {ErrorCode.KAFKA_STORAGE_ERROR}
        assert c[1].manager.consuming.held_bytes == 0
        assert c[1].manager.consuming.waiting == 0


# --- deletion of records ----------------------------------------------------------------------------


def delete(
    c: Cluster, offset: int, timeout_ms: int = 30_000, node: int = 1, topic: str = "t"
) -> Awaitable[DeleteRecordsResponse]:
    return c[node].manager.delete_records(
        DeleteRecordsRequest((DeleteRecordsPartition(topic, 0, Offset(offset)),), timeout_ms)
    )


@in_virtual_time
async def test_deletion_is_answered_when_every_live_replica_has_followed(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        for number in range(5):
            await c[1].produce(b"%d" % number)
        c.fabric.cut("node-1", "node-3")
        pending = asyncio.ensure_future(delete(c, 3))
        await asyncio.sleep(2)
        assert not pending.done()
        assert c[2].partition().log.log_start_offset == 3
        c.fabric.heal()
        (result,) = (await pending).results
        assert (result.error, result.low_watermark) == (ErrorCode.NONE, 3)
        assert [c[node].partition().log.log_start_offset for node in (1, 2, 3)] == [3, 3, 3]
        assert (await c[1].poll(0)).partitions[0].error is ErrorCode.OFFSET_OUT_OF_RANGE


@in_virtual_time
async def test_deletion_to_the_high_watermark_and_without_the_dead(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a")
        c[3].kill()
        c.fenced.add(NodeId(3))
        c.change(isr=(1, 2))
        await c[1].produce(b"b")
        (result,) = (await delete(c, -1)).results
        assert (result.error, result.low_watermark) == (ErrorCode.NONE, 2)


@in_virtual_time
async def test_deletions_that_are_refused(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, cleanup_policy=frozenset({"delete"}))
        await c[1].produce(b"a")
        codes = []
        for more in ({"offset": 2}, {"offset": -2}, {"offset": 0, "node": 2}, {"offset": 0, "topic": "other"}):
            (result,) = (await delete(c, **more)).results
            codes.append(result.error)
        assert codes == [
            ErrorCode.OFFSET_OUT_OF_RANGE,
            ErrorCode.OFFSET_OUT_OF_RANGE,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]


@in_virtual_time
async def test_deletion_times_out_and_ends_with_the_leadership(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a")
        c.fabric.cut("node-1", "node-3")
        (result,) = (await delete(c, 1, timeout_ms=700)).results
        assert result.error is ErrorCode.REQUEST_TIMED_OUT
        pending = asyncio.ensure_future(delete(c, 1))
        await asyncio.sleep(0.1)
        c.change(leader=NodeId(2))
        (result,) = (await pending).results
        assert result.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await asyncio.sleep(0)
        assert c[1].manager._purges.waiting == 0


@in_virtual_time
async def test_a_topic_that_keeps_everything_lets_records_be_deleted_by_hand(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, cleanup_policy=())
        await c[1].produce(b"a")
        (result,) = (await delete(c, 1)).results
        assert (result.error, result.low_watermark) == (ErrorCode.NONE, 1)


@in_virtual_time
async def test_a_compacted_topic_keeps_its_records(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, cleanup_policy=("compact",))
        await c[1].produce(b"a")
        (result,) = (await delete(c, 1)).results
        assert result.error is ErrorCode.POLICY_VIOLATION


# --- bounds -----------------------------------------------------------------------------------------


@in_virtual_time
async def test_produce_beyond_the_bound_is_refused_before_it_is_appended(cluster: MakeCluster) -> None:
    async with cluster(produce_waiters_max=3) as c:
        c.create(leader=1)
        c.fabric.cut("node-3", "node-1")
        waiting = [c[1].begin(b"%d" % number) for number in range(3)]
        await asyncio.sleep(0.1)
        answer = await c[1].produce(b"no")
        assert answer.error is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert answer.error.retriable
        assert c[1].values() == [b"0", b"1", b"2"]
        c.fabric.heal()
        await asyncio.gather(*waiting)
        assert (await c[1].produce(b"yes")).error is ErrorCode.NONE


@in_virtual_time
async def test_deletions_beyond_the_bound_do_not_wait(cluster: MakeCluster) -> None:
    async with cluster(delete_records_waiters_max=1) as c:
        c.create(leader=1)
        await c[1].produce(b"a")
        c.fabric.cut("node-1", "node-3")
        first = asyncio.ensure_future(delete(c, 1))
        await asyncio.sleep(0)
        (second,) = (await delete(c, 1)).results
        assert second.error is ErrorCode.REQUEST_TIMED_OUT
        c.fabric.heal()
        await first


@in_virtual_time
async def test_many_partitions_are_named_in_several_messages(cluster: MakeCluster) -> None:
    async with cluster(fetch_partitions_max=7) as c:
        c.create(leader=1, partitions=40)
        answers = await asyncio.gather(*(c[1].produce(b"a", partition=number) for number in range(40)))
        assert {answer.error for answer in answers} == {ErrorCode.NONE}
