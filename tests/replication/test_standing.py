"""A fetch session's partitions between fetches: no progress is missed, what is idle costs nothing, nothing is left."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pytest

from tests.virtual_time import in_virtual_time
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, BrokerEpoch, LeaderEpoch, NodeId, Offset, TopicIdPartition
from tidelog.proto.records.batches import split_batches
from tidelog.proto.records.decoder import decode_values
from tidelog.proto.transport.frames import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from tidelog.replication.serving import consumer_fetch, standing
from tidelog.replication.serving.consumer_fetch import ConsumerFetch
from tidelog.replication.serving.standing import Standing, Watched

from .managers import Broker, Cluster, MakeCluster, until
from .rig import LAG_MS, TOPIC_ID


@pytest.fixture(autouse=True)
def nothing_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a partition whose progress was missed stays missed."""
    monkeypatch.setattr(standing, "SWEPT", 0)


class Session:
    """A client's session at one broker: it reads everything once and names what it has read."""

    def __init__(self, broker: Broker, partitions: int) -> None:
        self.broker = broker
        self.standing = Standing()
        self.watched = [Watched(self.standing, TOPIC_ID, number) for number in range(partitions)]
        self.values: dict[int, list[bytes]] = defaultdict(list)
        for each in self.watched:
            each.bytes_max = 1 << 20
            self.standing.name(each)

    def fetch(self, wait_ms: int = 0, bytes_min: int = 1, bytes_max: int = 1 << 20) -> asyncio.Future[FetchResponse]:
        request = FetchRequest(NO_NODE, BrokerEpoch(-1), wait_ms, bytes_min, bytes_max, False, ())
        return self.broker.manager.fetch_standing(self.standing, request)

    async def read(self, wait_ms: int = 0, **more: int) -> list[FetchedPartition]:
        found = list((await self.fetch(wait_ms, **more)).partitions)
        for part in found:
            for piece in part.records:
                for batch in split_batches(piece):
                    self.values[part.partition] += [value for value in decode_values(batch) if value is not None]
                    self.watched[part.partition].fetch_offset = Offset(batch.base_offset + batch.last_offset_delta + 1)
            if part.records:
                self.standing.name(self.watched[part.partition])
        return found


def watchers(c: Cluster, node: int, partitions: int) -> int:
    replicas = c[node].manager.replicas
    return sum(len(replicas[TopicIdPartition(TOPIC_ID, number)].consumers) for number in range(partitions))


@in_virtual_time
async def test_an_idle_fetch_looks_at_no_partition_and_answers_nothing(
    cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []
    read = ConsumerFetch._read

    def noted(self: ConsumerFetch, part: consumer_fetch.Part) -> None:
        looked.append(part)
        read(self, part)

    monkeypatch.setattr(ConsumerFetch, "_read", noted)
    async with cluster() as c:
        c.create(leader=1, partitions=20)
        session = Session(c[1], 20)
        assert len(await session.read()) == 20, "first it tells the high watermarks"
        assert await session.read() == []
        looked.clear()
        assert await session.read(wait_ms=200) == []
        assert looked == []
        await c[1].produce(b"a", partition=7)
        assert [part.partition for part in await session.read()] == [7]
        assert len(looked) == 1
        assert watchers(c, 1, 20) == 20
        session.standing.close()
        assert watchers(c, 1, 20) == 0


@in_virtual_time
async def test_a_waiting_fetch_answers_with_what_moves_and_a_high_watermark_alone_is_news(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, partitions=3)
        session = Session(c[1], 3)
        await session.read()
        waiting = asyncio.ensure_future(session.read(wait_ms=10_000))
        await asyncio.sleep(0.1)
        await c[1].produce(b"a", partition=2)
        (part,) = await waiting
        assert (part.partition, session.values) == (2, {2: [b"a"]})
        session.watched[1].fetch_offset = Offset(1)
        await c[1].produce(b"b", partition=1)
        session.standing.name(session.watched[1])
        (moved,) = await session.read()
        assert (moved.partition, moved.high_watermark, moved.size) == (1, 1, 0)
        assert await session.read() == []


@in_virtual_time
async def test_an_error_is_told_at_each_fetch_and_the_watermark_after_it_again(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, partitions=2)
        session = Session(c[1], 2)
        await session.read()
        waiting = session.fetch(wait_ms=10_000)
        c.change(1, leader=NodeId(2))
        assert [part.error for part in (await waiting).partitions] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        for _ in range(2):
            found = await session.read(wait_ms=10_000)
            assert [(part.partition, part.error) for part in found] == [(1, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
        c.change(1, leader=NodeId(1))
        await until(lambda: c[1].partition(1).leading is not None)
        assert [(part.partition, part.error) for part in await session.read()] == [(1, ErrorCode.NONE)]
        assert await session.read() == []


@in_virtual_time
async def test_a_session_that_its_client_has_left_costs_its_partitions_nothing(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, partitions=2)
        session = Session(c[1], 2)
        await session.read()
        left = session.fetch(wait_ms=10_000)
        left.cancel()
        await asyncio.sleep(0)
        assert c[1].manager.consuming.waiting == 0
        await c[1].produce(b"a", partition=0)
        assert watchers(c, 1, 2) == 1, "the other has not moved"
        assert [part.partition for part in await session.read()] == [0]


@in_virtual_time
async def test_a_second_fetch_of_the_session_ends_the_wait_of_the_first(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        session = Session(c[1], 1)
        await session.read()
        first = session.fetch(wait_ms=10_000)
        second = session.fetch(wait_ms=10_000)
        assert list((await first).partitions) == []
        await c[1].produce(b"a")
        assert len((await second).partitions) == 1


@in_virtual_time
async def test_partitions_take_turns_when_an_answer_holds_one_only(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, partitions=3)
        for number in range(3):
            for _ in range(3):
                await c[1].produce(bytes(500), partition=number)
        session = Session(c[1], 3)
        order: list[int] = []
        while sum(map(len, session.values.values())) < 9:
            order += [part.partition for part in await session.read(bytes_max=600) if part.records]
        assert order == [0, 1, 2] * 3


@pytest.mark.parametrize("seed", range(6))
@in_virtual_time
async def test_whatever_happens_each_record_is_read_once(
    cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Leaders change, clients go away, answers are small, and looking and answering are cut into slices."""
    rng = random.Random(seed)
    for module in (consumer_fetch, standing):
        monkeypatch.setattr(module, "SLICE", rng.choice((1, 2, 500)))
    partitions = 8
    async with cluster(replica_lag_time_max_ms=LAG_MS) as c:
        c.create(leader=1, partitions=partitions)
        session = Session(c[1], partitions)
        sent: dict[int, list[bytes]] = defaultdict(list)

        async def produce() -> None:
            for number in range(60):
                at = rng.randrange(partitions)
                if c[1].partition(at).leading is not None:
                    value = b"%d" % number + bytes(rng.choice((1, 400)))
                    sent[at].append(value)
                    assert (await c[1].produce(value, partition=at)).error is ErrorCode.NONE
                await asyncio.sleep(rng.choice((0, 0, 0.001, 0.05)))
                if rng.random() < 0.1:
                    c.change(at, leader=NodeId(1))

        producing = asyncio.ensure_future(produce())
        while not producing.done():
            if rng.random() < 0.2:
                left = session.fetch(wait_ms=1_000)
                await asyncio.sleep(rng.choice((0, 0.001)))
                left.cancel()
                await asyncio.sleep(0)
            else:
                await session.read(
                    rng.choice((0, 20)), bytes_min=rng.choice((1, 300)), bytes_max=rng.choice((500, 9000))
                )
        await producing
        end = asyncio.get_running_loop().time() + 30
        while session.values != sent and asyncio.get_running_loop().time() < end:
            await session.read(wait_ms=100, bytes_max=9000)
        assert session.values == sent
        assert (c[1].manager.consuming.waiting, c[1].manager.consuming.held_bytes) == (0, 0)


@in_virtual_time
async def test_what_moves_while_an_answer_is_made_is_looked_at_next(
    cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster() as c:
        c.create(leader=1, partitions=3)
        session = Session(c[1], 3)
        monkeypatch.setattr(standing, "SLICE", 1)
        waiting = asyncio.ensure_future(session.read(wait_ms=50))
        result = ConsumerFetch._result

        def moves_first(self: ConsumerFetch, part: consumer_fetch.Part) -> FetchedPartition:
            if part.item.partition == 1:
                c.begun.append(asyncio.ensure_future(c[1].produce(b"a", partition=2)))
            return result(self, part)

        monkeypatch.setattr(ConsumerFetch, "_result", moves_first)
        c.fabric.cut("node-3", "node-1")
        c.fabric.cut("node-2", "node-1")
        c.change(2, isr=[1])
        await waiting
        await asyncio.gather(*c.begun)
        await session.read()
        assert session.values == {2: [b"a"]}


@in_virtual_time
async def test_a_whole_fetch_in_slices_misses_nothing_either(
    cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_fetch, "SLICE", 2)
    async with cluster() as c:
        c.create(leader=1, partitions=7)
        items = [
            FetchPartition(TOPIC_ID, number, LeaderEpoch(-1), Offset(0), LeaderEpoch(-1), Offset(-1), 1 << 20)
            for number in range(7)
        ]
        request = FetchRequest(NO_NODE, BrokerEpoch(-1), 10_000, 1, 1 << 20, False, items)
        waiting = c[1].manager.fetch(request)
        assert c[1].manager.consuming.waiting == 0, "it still looks"
        await c[1].produce(b"a", partition=0)
        found = (await waiting).partitions
        assert [bool(part.records) for part in found] == [True] + [False] * 6
        assert watchers(c, 1, 7) == 0
        gone = c[1].manager.fetch(request)
        gone.cancel()
        await asyncio.sleep(0.1)
        assert watchers(c, 1, 7) == 0
