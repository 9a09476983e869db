"""A follower's end of the stream, against a leader that the test plays."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import Any, cast

import pytest

from tests.virtual_time import in_virtual_time
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, NodeId, Offset
from tidelog.proto.records.batches import patch_batch
from tidelog.proto.records.encoder import encode_values
from tidelog.proto.transport.frames import (
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    decode_fetch_request,
    encode_fetch_response,
)
from tidelog.proto.transport.network import Connection, ConnectionLost, Frame, StreamKind

from .managers import Cluster, MakeCluster, until


class Leader:
    """A connection whose other end is the test: it takes fetches and gives answers."""

    def __init__(self) -> None:
        self.fetches: list[tuple[int, FetchRequest]] = []
        self.answers: asyncio.Queue[Frame | Exception] = asyncio.Queue()
        self.opened = 0
        self.refuses = False

    async def open(self, kind: StreamKind, *, timeout_s: float) -> Leader:
        if self.refuses:
            raise ConnectionLost("nobody there")
        self.opened += 1
        return self

    async def send(self, frame: Frame) -> None:
        self.fetches.append(decode_fetch_request(memoryview(b"".join(frame))))

    async def receive(self) -> memoryview:
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return memoryview(b"".join(answer))

    def close(self) -> None:
        pass

    def names_partitions(self, since: int) -> bool:
        return any(fetch.partitions for _, fetch in self.fetches[since:])

    def answer(self, correlation: int, *partitions: FetchedPartition, error: ErrorCode = ErrorCode.NONE) -> None:
        self.answers.put_nowait(encode_fetch_response(correlation, FetchResponse(error, partitions)))


def part(c: Cluster, error: ErrorCode = ErrorCode.NONE, **fields: Any) -> FetchedPartition:
    key = next(iter(c.states))
    return FetchedPartition(
        key.topic_id, 0, error, current_leader_epoch=LeaderEpoch(0), log_start_offset=Offset(0), **fields
    )


def records(*values: bytes, at: int = 0, epoch: int = 0) -> bytes:
    batch = bytearray(encode_values(list(values), 1_000))
    patch_batch(batch, 0, base_offset=at, leader_epoch=epoch)
    return bytes(batch)


async def follow(c: Cluster) -> Leader:
    """Node 3 follows node 1, which the test plays."""
    leader = Leader()
    c[3].manager.connect = lambda node: cast(Connection, leader)
    c.create(leader=1)
    await asyncio.sleep(0.01)
    return leader


@in_virtual_time
async def test_records_are_taken_and_the_next_fetch_names_what_is_held(cluster: MakeCluster) -> None:
    async with cluster() as c:
        leader = await follow(c)
        correlation, request = leader.fetches[-1]
        assert (request.replica_id, request.replica_epoch) == (3, c[3].epoch)
        assert [(item.fetch_offset, item.last_fetched_epoch) for item in request.partitions] == [(0, -1)]
        leader.answer(correlation, part(c, records=[records(b"a", b"b")], high_watermark=Offset(1)))
        await asyncio.sleep(0.001)
        assert c[3].values() == [b"a", b"b"]
        assert c[3].partition().high_watermark == 1
        _, request = leader.fetches[-1]
        assert [(item.fetch_offset, item.last_fetched_epoch) for item in request.partitions] == [(2, 0)]
        assert len(leader.fetches) == 2


@in_virtual_time
async def test_an_answer_to_an_earlier_naming_is_dropped(cluster: MakeCluster) -> None:
    """It is about a position that is no more; a divergence found there would cut good records."""
    async with cluster() as c:
        leader = await follow(c)
        first, _ = leader.fetches[-1]
        leader.answer(first, part(c, records=[records(b"a", b"b")]))
        await asyncio.sleep(0.001)
        second, _ = leader.fetches[-1]
        (replica,) = c[3].manager.replicas.values()
        c[3].manager.following.fetchers[NodeId(1)].add(replica)
        await asyncio.sleep(0.001)
        third, request = leader.fetches[-1]
        assert third != second
        assert [item.fetch_offset for item in request.partitions] == [2]
        leader.answer(second, part(c, diverging_epoch=LeaderEpoch(0), diverging_end_offset=Offset(0)))
        await asyncio.sleep(0.001)
        assert c[3].values() == [b"a", b"b"]
        leader.answer(third, part(c, diverging_epoch=LeaderEpoch(0), diverging_end_offset=Offset(0)))
        await asyncio.sleep(0.001)
        assert c[3].values() == []


@in_virtual_time
async def test_at_most_two_fetches_are_outstanding_and_one_in_the_usual_case(cluster: MakeCluster) -> None:
    async with cluster() as c:
        leader = await follow(c)
        await asyncio.sleep(1)
        assert len(leader.fetches) == 1
        (replica,) = c[3].manager.replicas.values()
        for _ in range(5):
            c[3].manager.following.fetchers[NodeId(1)].add(replica)
            await asyncio.sleep(0.001)
        assert len(leader.fetches) == 2


@in_virtual_time
async def test_refused_partitions_are_asked_for_again_at_growing_intervals(cluster: MakeCluster) -> None:
    async with cluster() as c:
        leader = await follow(c)
        loop = asyncio.get_running_loop()
        asked: list[float] = []
        answered = 0
        for _ in range(9):
            await until(partial(leader.names_partitions, answered), 2)
            asked.append(loop.time())
            for correlation, fetch in leader.fetches[answered:]:
                refusal = [part(c, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)] if fetch.partitions else []
                leader.answer(correlation, *refusal)
            answered = len(leader.fetches)
        gaps = [after - before for before, after in itertools.pairwise(asked)]
        assert gaps[0] < 0.05
        assert 0.9 < gaps[-1] < 1.1
        assert gaps == sorted(gaps)


@in_virtual_time
async def test_garbage_and_refusals_as_a_whole_open_a_new_stream(cluster: MakeCluster) -> None:
    async with cluster() as c:
        leader = await follow(c)
        leader.answers.put_nowait((b"garbage",))
        await asyncio.sleep(0.1)
        assert leader.opened == 2
        correlation, request = leader.fetches[-1]
        assert request.partitions, "a new stream remembers nothing"
        leader.answer(correlation, error=ErrorCode.STALE_BROKER_EPOCH)
        await asyncio.sleep(0.2)
        assert leader.opened == 3
        leader.answer(999, part(c))
        await asyncio.sleep(0.5)
        assert leader.opened == 4


@in_virtual_time
async def test_a_leader_that_never_answers_loses_the_stream(cluster: MakeCluster) -> None:
    async with cluster(replica_socket_timeout_ms=2_000) as c:
        leader = await follow(c)
        await asyncio.sleep(2.3)
        assert leader.opened == 1
        await asyncio.sleep(0.5)
        assert leader.opened == 2


@in_virtual_time
async def test_a_node_that_comes_back_is_tried_at_once(cluster: MakeCluster) -> None:
    async with cluster() as c:
        leader = await follow(c)
        leader.refuses = True
        leader.answers.put_nowait(ConnectionLost("killed"))
        await asyncio.sleep(20)
        assert leader.opened == 1
        leader.refuses = False
        c[3].manager.brokers_changed([NodeId(1)])
        await asyncio.sleep(0.001)
        assert leader.opened == 2


@in_virtual_time
async def test_records_that_do_not_follow_are_not_taken(cluster: MakeCluster) -> None:
    async with cluster() as c:
        leader = await follow(c)
        damaged = bytearray(records(b"a"))
        damaged[-1] ^= 1
        for bad in (records(b"a", at=5), bytes(damaged), b"no batch at all, though long enough for a header......"):
            while not leader.fetches[-1][1].partitions:
                leader.answer(leader.fetches[-1][0])
                await asyncio.sleep(0.1)
            leader.answer(leader.fetches[-1][0], part(c, records=[bad], high_watermark=Offset(9)))
            await asyncio.sleep(0.1)
            assert c[3].values() == []
            assert c[3].partition().high_watermark == 0


@in_virtual_time
async def test_damaged_records_are_not_taken_and_counted_and_asked_for_again(
    cluster: MakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster() as c:
        leader = await follow(c)
        good = records(b"a", b"b")
        spoiled = good[:-3] + b"?" + good[-2:]
        for _ in range(3):
            correlation, request = leader.fetches[-1]
            assert [item.fetch_offset for item in request.partitions] == [0]
            leader.answer(correlation, part(c, records=[spoiled], high_watermark=Offset(0)))
            await asyncio.sleep(1.5)
        assert c[3].values() == []
        assert c[3].manager.damaged_answers == 3
        assert sum("found damage" in text for text in caplog.messages) == 1
        leader.answer(leader.fetches[-1][0], part(c, records=[good], high_watermark=Offset(0)))
        await asyncio.sleep(0.01)
        assert c[3].values() == [b"a", b"b"]
