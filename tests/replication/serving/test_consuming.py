"""Consumers' fetches: what they see, when they wake, what bounds them."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
from typing import Any

from tests.replication.managers import Cluster, MakeCluster
from tests.virtual_time import in_virtual_time
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import BrokerEpoch, LeaderEpoch, NodeId, Offset, TopicId
from tidelog.proto.records.batches import split_batches
from tidelog.proto.records.decoder import decode_values
from tidelog.proto.records.encoder import encode_values
from tidelog.proto.transport.frames import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProducePartition,
    ProduceRequest,
    decode_fetch_response,
    encode_fetch_response,
)
from tidelog.replication.serving.consumer_fetch import ConsumerFetch


def values(response: FetchResponse) -> list[bytes | None]:
    return [
        value
        for part in response.partitions
        for piece in part.records
        for batch in split_batches(piece)
        for value in decode_values(batch)
    ]


@in_virtual_time
async def test_a_waiting_fetch_wakes_when_records_are_committed_and_not_when_they_are_appended(
    cluster: MakeCluster,
) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a")
        c.fabric.cut("node-3", "node-1")
        poll = c[1].poll(1, wait_ms=10_000)
        pending = c[1].begin(b"b")
        await asyncio.sleep(1)
        assert not poll.done()
        c.fabric.heal()
        response = await poll
        assert values(response) == [b"b"]
        assert response.partitions[0].high_watermark == 2
        assert (await pending).error is ErrorCode.NONE


@in_virtual_time
async def test_nobody_reads_past_the_high_watermark(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a")
        c.fabric.cut("node-3", "node-1")
        await c[1].produce(b"b", acks=1)
        response = await c[1].poll(0, wait_ms=0)
        assert values(response) == [b"a"]
        between = await c[1].poll(1, wait_ms=100)
        assert values(between) == []
        assert between.partitions[0].error is ErrorCode.NONE, "within the log, not yet readable"
        beyond = await c[1].poll(3, wait_ms=100)
        assert beyond.partitions[0].error is ErrorCode.OFFSET_OUT_OF_RANGE


@in_virtual_time
async def test_a_wait_ends_at_its_time_and_an_error_ends_it_at_once(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert values(await c[1].poll(0, wait_ms=300)) == []
        assert abs(loop.time() - begun - 0.3) < 0.01
        poll = c[1].poll(0, wait_ms=10_000)
        await asyncio.sleep(0.1)
        c.change(leader=NodeId(2))
        response = await poll
        assert response.partitions[0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert response.partitions[0].current_leader == 2
        assert loop.time() - begun < 1


@in_virtual_time
async def test_min_bytes_are_waited_for_and_each_byte_is_read_once(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        poll = c[1].poll(0, wait_ms=10_000, bytes_min=1_000)
        for number in range(9):
            await c[1].produce(b"%02d" % number + bytes(98))
        response = await poll
        got = values(response)
        assert got == [b"%02d" % number + bytes(98) for number in range(len(got))]
        assert 1_000 <= sum(len(piece) for piece in response.partitions[0].records) < 1_300
        assert c[1].manager.consuming.held_bytes == 0
        assert c[1].manager.consuming.waiting == 0
        assert len(response.partitions[0].records) > 3, "pieces as they were read"


@in_virtual_time
async def test_an_answered_fetch_is_gone_without_the_collector(cluster: MakeCluster) -> None:
    """It holds its answer's data, and a node's collector may take a gigabyte of answers to begin."""
    async with cluster(fetch_max_bytes=3_000) as c:
        c.create(leader=1)
        for _ in range(3):
            await c[1].produce(bytes(2_000))
        gc.collect()
        gc.disable()
        try:
            assert len(values(await c[1].poll(0, wait_ms=0))) == 1
            assert [one for one in gc.get_objects() if isinstance(one, ConsumerFetch)] == []
        finally:
            gc.enable()


@in_virtual_time
async def test_an_answer_is_cut_at_its_size_but_holds_at_least_one_batch(cluster: MakeCluster) -> None:
    async with cluster(fetch_max_bytes=3_000) as c:
        c.create(leader=1, partitions=2)
        for partition in (0, 1):
            for _ in range(5):
                await c[1].produce(bytes(900), partition=partition)
        first = await c[1].poll(0, bytes_max=10)
        assert len(values(first)) == 1
        topic_id = first.partitions[0].topic_id
        item = dataclasses.replace(_item(topic_id, 0), bytes_max=1 << 20)
        both = [item, dataclasses.replace(item, partition=1)]
        response = await c[1].manager.fetch(FetchRequest(NodeId(-1), BrokerEpoch(-1), 0, 1, 1 << 20, False, both))
        sizes = [sum(map(len, part.records)) for part in response.partitions]
        assert sum(sizes) <= 3_000
        assert sizes[0] > 0
        assert [part.error for part in response.partitions] == [ErrorCode.NONE, ErrorCode.NONE]


@in_virtual_time
async def test_an_answer_is_not_changed_by_what_happens_after_it(cluster: MakeCluster) -> None:
    """The frame is encoded later than the future is resolved."""
    async with cluster() as c:
        c.create(leader=1, isr=(1,))
        poll = c[1].poll(0, wait_ms=10_000)
        for node in (2, 3):
            c.fabric.cut(f"node-{node}", "node-1")
        c.fenced.update({NodeId(2), NodeId(3)})
        c[1].manager.produce(_produce(c, b"a"))
        assert poll.done()
        frame = b"".join(encode_fetch_response(1, poll.result()))
        c[1].manager.produce(_produce(c, b"b"))
        assert b"".join(encode_fetch_response(1, poll.result())) == frame
        _, read = decode_fetch_response(memoryview(frame))
        assert values(read) == [b"a"]


@in_virtual_time
async def test_epochs_of_consumers_are_judged(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        c.change(leader=NodeId(1))
        await c[1].produce(b"a")
        topic_id = next(iter(c.states)).topic_id

        async def ask(**fields: Any) -> FetchedPartition:
            item = dataclasses.replace(_item(topic_id, 0), **fields)
            response = await c[1].manager.fetch(FetchRequest(NodeId(-1), BrokerEpoch(-1), 0, 1, 100, False, [item]))
            return response.partitions[0]

        assert (await ask(current_leader_epoch=LeaderEpoch(0))).error is ErrorCode.FENCED_LEADER_EPOCH
        assert (await ask(current_leader_epoch=LeaderEpoch(1))).error is ErrorCode.NONE
        assert (await ask(current_leader_epoch=LeaderEpoch(2))).error is ErrorCode.UNKNOWN_LEADER_EPOCH
        diverged = await ask(fetch_offset=1, last_fetched_epoch=LeaderEpoch(0))
        assert (diverged.error, diverged.diverging_epoch, diverged.diverging_end_offset) == (0, 0, 0)


@in_virtual_time
async def test_min_bytes_beyond_a_mebibyte_are_waited_for(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        poll = c[1].poll(0, wait_ms=10_000, bytes_min=3 << 20, bytes_max=8 << 20)
        for _ in range(3):
            await c[1].produce(bytes(1_000_000))
        await asyncio.sleep(1)
        assert not poll.done(), "2.9 MiB are not enough"
        await c[1].produce(bytes(1_000_000))
        assert [len(value or b"") for value in values(await poll)] == [1_000_000] * 4


@in_virtual_time
async def test_a_fetch_that_is_full_waits_for_no_more(cluster: MakeCluster) -> None:
    """Whole batches seldom fill an answer to the byte."""
    async with cluster() as c:
        c.create(leader=1)
        for _ in range(2):
            await c[1].produce(bytes(700_000))
        assert c[1].poll(0, wait_ms=10_000, bytes_min=1 << 20, bytes_max=1 << 20).done()
        assert c[1].poll(0, wait_ms=10_000, bytes_min=1 << 30, bytes_max=1 << 20).done(), "it cannot hold more"
        assert not (last := c[1].poll(1, wait_ms=10_000, bytes_min=1 << 20, bytes_max=1 << 20)).done()
        await c[1].produce(bytes(700_000))
        assert len(values(await last)) == 1


@in_virtual_time
async def test_waiting_fetches_are_bounded_in_number_and_in_bytes(cluster: MakeCluster) -> None:
    async with cluster(fetch_waiters_max=2, fetch_held_bytes_max=500) as c:
        c.create(leader=1)
        waiting = [c[1].poll(0, wait_ms=10_000, bytes_min=10_000) for _ in range(2)]
        third = c[1].poll(0, wait_ms=10_000)
        assert third.done(), "beyond the bound nobody waits"
        await c[1].produce(bytes(300))
        assert any(poll.done() for poll in waiting), "they would hold more than they may"
        assert c[1].manager.consuming.held_bytes <= 500
        for poll in waiting:
            poll.cancel()


def _item(topic_id: TopicId, offset: int) -> FetchPartition:
    return FetchPartition(topic_id, 0, LeaderEpoch(-1), Offset(offset), LeaderEpoch(-1), Offset(-1), 1 << 20)


def _produce(c: Cluster, value: bytes) -> ProduceRequest:
    now_ms = 1_700_000_000_000
    return ProduceRequest(
        1, 1_000, [ProducePartition(next(iter(c.states)).topic_id, 0, encode_values([value], now_ms))]
    )
