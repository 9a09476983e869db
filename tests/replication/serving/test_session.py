"""The stream between a follower and its leader: the cost of messages, remembered state, refusals."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Sequence
from pathlib import Path

import pytest

from tests.replication.managers import Cluster, MakeCluster
from tests.virtual_time import in_virtual_time
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import BrokerEpoch, LeaderEpoch, NodeId, Offset, TopicId, TopicIdPartition
from tidelog.proto.transport.frames import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    decode_fetch_response,
    encode_fetch_request,
)
from tidelog.proto.transport.network import BadFrame, CallContext, Frame


class Follower:
    """Node 3's end of a stream to node 1's manager, by hand."""

    def __init__(self, c: Cluster) -> None:
        self.c = c
        self.topic_id = next(iter(c.states)).topic_id
        self.session = c[1].manager.replica_session(CallContext("REPLICATION", "test"))
        self.correlation = 0

    def send(
        self,
        *items: FetchPartition,
        wait_ms: int = 500,
        epoch: int | None = None,
        bytes_max: int = 1 << 20,
        forgotten: Sequence[TopicIdPartition] = (),
    ) -> asyncio.Future[Frame]:
        """Returns a future of the answer, done where it came at once."""
        self.correlation += 1
        request = FetchRequest(
            NodeId(3),
            BrokerEpoch(self.c[3].epoch if epoch is None else epoch),
            wait_ms,
            1,
            bytes_max,
            False,
            items,
            forgotten,
        )
        answer = self.session.on_frame(memoryview(b"".join(encode_fetch_request(self.correlation, request))))
        if asyncio.isfuture(answer):
            return answer
        assert isinstance(answer, tuple | list)
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        future.set_result(answer)
        return future

    def at(self, offset: int, partition: int = 0, *, last_epoch: int = 0, leader_epoch: int = 0) -> FetchPartition:
        last_epoch = last_epoch if offset else -1
        return FetchPartition(
            self.topic_id,
            partition,
            LeaderEpoch(leader_epoch),
            Offset(offset),
            LeaderEpoch(last_epoch),
            Offset(0),
            1 << 20,
        )


def read(answer: asyncio.Future[Frame]) -> tuple[int, FetchResponse]:
    return decode_fetch_response(memoryview(b"".join(answer.result())))


def by_partition(answer: asyncio.Future[Frame]) -> dict[int, FetchedPartition]:
    return {item.partition: item for item in read(answer)[1].partitions}


async def quiet(c: Cluster) -> None:
    """Only node 1 runs, and the test speaks for node 3."""
    for node in (2, 3):
        c[node].kill()
    c.fenced.add(NodeId(2))
    await asyncio.sleep(0.01)


@in_virtual_time
async def test_an_append_answers_the_waiting_fetch_once_for_all_partitions(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, partitions=3, isr=(1, 3))
        await quiet(c)
        follower = Follower(c)
        first = follower.send(*[follower.at(0, partition) for partition in range(3)])
        assert not first.done()
        for partition in (0, 2):
            c[1].begin(b"a", partition=partition)
        await asyncio.sleep(0.001)
        got = by_partition(first)
        assert sorted(got) == [0, 2] or sorted(got) == [0, 1, 2]
        assert got[0].records and got[2].records  # noqa: PT018


@in_virtual_time
async def test_naming_is_acknowledging_and_what_was_answered_waits_until_it_is_named_again(
    cluster: MakeCluster,
) -> None:
    async with cluster() as c:
        c.create(leader=1, isr=(1, 3))
        await quiet(c)
        follower = Follower(c)
        pending = c[1].begin(b"a")
        await asyncio.sleep(0.001)
        first = follower.send(follower.at(0))
        assert by_partition(first)[0].records
        second = follower.send(wait_ms=100)
        c[1].begin(b"b")
        await asyncio.sleep(0.01)
        assert not second.done(), "its position is not known: nothing may be sent twice"
        assert not pending.done()
        assert c[1].partition().high_watermark == 0
        third = follower.send(follower.at(1))
        assert second.done()
        await asyncio.sleep(0.001)
        assert pending.done()
        assert c[1].partition().high_watermark == 1
        assert by_partition(third)[0].high_watermark == 1


@in_virtual_time
async def test_a_new_fetch_ends_the_wait_of_the_one_before(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, partitions=2, isr=(1, 3))
        await quiet(c)
        follower = Follower(c)
        first = follower.send(follower.at(0, 0))
        assert not first.done()
        second = follower.send(follower.at(0, 1))
        assert first.done()
        assert read(first)[0] == 1
        assert not second.done()


@in_virtual_time
async def test_marks_alone_travel_when_the_wait_ends_and_only_those_that_changed(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, partitions=100, isr=(1, 3))
        await quiet(c)
        follower = Follower(c)
        first = follower.send(*[follower.at(0, partition) for partition in range(100)])
        await first
        assert len(by_partition(first)) == 100
        await follower.send()
        c[1].begin(b"a", partition=7)
        second = follower.send()
        await second
        assert list(by_partition(second)) == [7]
        third = follower.send(follower.at(1, 7))
        await third
        got = by_partition(third)
        assert list(got) == [7]
        assert (got[7].high_watermark, got[7].records) == (1, ())
        fourth = follower.send()
        await fourth
        assert by_partition(fourth) == {}


@in_virtual_time
async def test_marks_that_crossed_a_naming_are_sent_once_more(cluster: MakeCluster) -> None:
    """The follower passes over answers from before its last naming; with nothing written it would never hear."""
    async with cluster() as c:
        c.create(leader=1, isr=(1, 3))
        await quiet(c)
        follower = Follower(c)
        c[1].begin(b"a")
        await asyncio.sleep(0.001)
        assert by_partition(follower.send(follower.at(0)))[0].records
        second = follower.send(follower.at(1))
        third = follower.send(follower.at(1))
        assert by_partition(second)[0].high_watermark == 1
        await third
        assert by_partition(third)[0].high_watermark == 1
        fourth = follower.send()
        await fourth
        assert by_partition(fourth) == {}


@in_virtual_time
async def test_an_answer_keeps_to_its_size_and_nobody_starves(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, partitions=10, isr=(1, 3))
        for partition in range(10):
            for _ in range(3):
                c[1].begin(bytes(1_000), partition=partition)
        await asyncio.sleep(0)
        await quiet(c)
        follower = Follower(c)
        answer = follower.send(*[follower.at(0, partition) for partition in range(10)], bytes_max=4_000)
        served = []
        for _ in range(10):
            assert answer.done()
            got = by_partition(answer)
            assert sum(sum(map(len, item.records)) for item in got.values()) <= 4_000
            served += [number for number, item in got.items() if item.records]
            answer = follower.send(bytes_max=4_000)
        assert sorted(served) == list(range(10))


@in_virtual_time
async def test_a_batch_larger_than_every_bound_is_sent_whole(cluster: MakeCluster) -> None:
    async with cluster(replica_fetch_response_max_bytes=1_000) as c:
        c.create(leader=1, isr=(1, 3))
        c[1].begin(bytes(50_000))
        await asyncio.sleep(0)
        await quiet(c)
        follower = Follower(c)
        answer = follower.send(dataclasses.replace(follower.at(0), bytes_max=10))
        assert sum(map(len, by_partition(answer)[0].records)) > 50_000


@in_virtual_time
async def test_refusals(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, partitions=4, isr=(1, 3))
        c.change(1, leader=NodeId(2), isr=(2, 3))
        c.change(2, replicas=(NodeId(1), NodeId(2)), isr=(1,))
        await quiet(c)
        follower = Follower(c)
        unknown = dataclasses.replace(follower.at(0), topic_id=TopicId(bytes(16)))
        answer = follower.send(
            unknown,
            follower.at(0, 1, leader_epoch=1),
            follower.at(0, 2),
            follower.at(5, 3, last_epoch=0),
            follower.at(0, 0, leader_epoch=9),
        )
        errors = {(item.topic_id == bytes(16), item.partition): item for item in read(answer)[1].partitions}
        assert errors[True, 0].error is ErrorCode.UNKNOWN_TOPIC_ID
        assert errors[False, 1].error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert errors[False, 1].current_leader == 2
        assert errors[False, 2].error is ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (errors[False, 3].error, errors[False, 3].diverging_end_offset) == (ErrorCode.NONE, 0)
        assert errors[False, 0].error is ErrorCode.UNKNOWN_LEADER_EPOCH


@in_virtual_time
async def test_a_process_of_an_older_broker_epoch_is_refused_as_a_whole(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, isr=(1, 3))
        await quiet(c)
        c[1].begin(b"a")
        follower = Follower(c)
        answer = follower.send(follower.at(0), epoch=c[3].epoch - 1)
        assert read(answer)[1].error is ErrorCode.STALE_BROKER_EPOCH
        answer = follower.send(follower.at(1), epoch=c[3].epoch - 1)
        assert read(answer)[1].error is ErrorCode.STALE_BROKER_EPOCH
        assert c[1].partition().high_watermark == 0


@in_virtual_time
async def test_frames_that_are_no_followers_are_refused_with_what_was_expected(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, isr=(1, 3))
        follower = Follower(c)
        follower.send(follower.at(0))
        for replica, text in ((-1, "node id"), (2, "expected replica id 3")):
            request = FetchRequest(NodeId(replica), BrokerEpoch(1), 0, 1, 1, False, [])
            with pytest.raises(BadFrame, match=text):
                follower.session.on_frame(memoryview(b"".join(encode_fetch_request(1, request))))
        with pytest.raises(BadFrame):
            follower.session.on_frame(memoryview(b"garbage that is no frame at all"))


@in_virtual_time
async def test_a_stream_that_ends_leaves_nothing_behind(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, partitions=3, isr=(1, 3))
        await quiet(c)
        follower = Follower(c)
        answer = follower.send(*[follower.at(0, partition) for partition in range(3)])
        follower.session.on_close()
        assert answer.cancelled()
        assert all(not replica.followers for replica in c[1].manager.replicas.values())
        c[1].begin(b"a")
        await asyncio.sleep(1)


@in_virtual_time
async def test_a_second_stream_of_a_follower_takes_over_from_the_first(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, isr=(1, 3))
        await quiet(c)
        old, new = Follower(c), Follower(c)
        old.send(old.at(0))
        answer = new.send(new.at(0))
        old.session.on_close()
        c[1].begin(b"a")
        await asyncio.sleep(0.001)
        assert by_partition(answer)[0].records


@in_virtual_time
async def test_forgotten_partitions_are_not_sent(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, partitions=2, isr=(1, 3))
        await quiet(c)
        follower = Follower(c)
        follower.send(follower.at(0, 0), follower.at(0, 1))
        answer = follower.send(forgotten=[TopicIdPartition(follower.topic_id, 0)])
        for partition in (0, 1):
            c[1].begin(b"a", partition=partition)
        await asyncio.sleep(0.001)
        assert list(by_partition(answer)) == [1]


@in_virtual_time
async def test_losing_leadership_answers_the_waiting_fetch(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, isr=(1, 3))
        await quiet(c)
        follower = Follower(c)
        answer = follower.send(follower.at(0))
        c.change(leader=NodeId(2))
        await asyncio.sleep(0.001)
        got = by_partition(answer)[0]
        assert got.error is ErrorCode.FENCED_LEADER_EPOCH
        assert (got.current_leader, got.current_leader_epoch) == (2, 1)


@in_virtual_time
async def test_idle_partitions_cost_one_empty_message_per_long_poll(
    cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for 300 partitions as for one: nothing is named, nothing is answered, every two seconds."""
    async with cluster() as c:
        c.create(leader=1, partitions=300)
        await asyncio.sleep(3)
        sizes = []
        session = next(iter(c[1].manager._sessions))
        on_frame = session.on_frame

        def counted(frame: memoryview) -> Awaitable[Frame] | Frame:
            sizes.append(len(frame))
            return on_frame(frame)

        monkeypatch.setattr(session, "on_frame", counted)
        await asyncio.sleep(20)
        assert 9 <= len(sizes) <= 11
        assert max(sizes) < 60


@in_virtual_time
async def test_followers_forget_what_moved_to_another_leader(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, partitions=2)
        await c[1].produce(b"a")
        c.change(0, leader=NodeId(2))
        assert (await c[2].produce(b"b")).error is ErrorCode.NONE
        assert (await c[1].produce(b"c", partition=1)).error is ErrorCode.NONE
        key = TopicIdPartition(next(iter(c.states)).topic_id, 0)
        await asyncio.sleep(1)
        assert not c[1].manager.replicas[key].followers
        assert set(c[2].manager.replicas[key].followers) == {1, 3}


@in_virtual_time
async def test_a_leader_that_was_deposed_sends_no_marks(cluster: MakeCluster) -> None:
    """They would carry the new epoch, and look as if they came from the new leader."""
    async with cluster() as c:
        c.create(leader=1, isr=(1, 3))
        await quiet(c)
        c[1].begin(b"a")
        await asyncio.sleep(0)
        follower = Follower(c)
        assert by_partition(follower.send(follower.at(0)))[0].records
        next(iter(c[1].manager.replicas.values())).log_start_moved()
        c.change(leader=NodeId(2))
        answer = follower.send(wait_ms=0)
        assert by_partition(answer) == {}


@pytest.mark.parametrize(("at", "asks"), [(7, 1), (15, 1), (90, 2)], ids=["offset", "leader epoch", "record"])
@in_virtual_time
async def test_a_leader_sends_no_header_that_is_wrong_and_no_record_that_was_not_taken(
    cluster: MakeCluster, at: int, asks: int
) -> None:
    """What a CRC covers the follower checks: an offset that it names again tells the leader that it sent damage."""
    async with cluster() as c:
        c.create(leader=1, isr=(1, 3))
        await quiet(c)
        follower = Follower(c)
        c[1].begin(b"a" * 100)
        await asyncio.sleep(0.001)
        log = c[1].partition().log
        path = Path(log.directory) / f"{0:020d}.log"
        whole = path.read_bytes()
        path.write_bytes(whole[:at] + b"?" + whole[at + 1 :])
        for _ in range(asks - 1):
            assert by_partition(follower.send(follower.at(0)))[0].error is ErrorCode.NONE
            assert log.take_suspect() is None
        answer = by_partition(follower.send(follower.at(0)))[0]
        assert (answer.error, list(answer.records)) == (ErrorCode.CORRUPT_MESSAGE, [])
        assert log.take_suspect() == 0
        path.write_bytes(whole)
        assert by_partition(follower.send(follower.at(0)))[0].records
