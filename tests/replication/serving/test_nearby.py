"""Consumers that name their rack: where leaders send them, and what followers show (KIP-392)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.replication.managers import Cluster, MakeCluster
from tests.replication.serving.test_consuming import values
from tests.virtual_time import in_virtual_time
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NO_NODE, NodeId
from tidelog.proto.transport.frames import FetchedPartition, FetchResponse

WEST = {1: "east", 2: "west", 3: "west"}


def only(response: FetchResponse) -> FetchedPartition:
    (found,) = response.partitions
    return found


async def preferred(c: Cluster, offset: int = 0, rack: str = "west") -> int:
    found = only(await c[1].poll(offset, wait_ms=0, rack=rack))
    assert found.error is ErrorCode.NONE
    assert found.preferred_read_replica == NO_NODE or not found.records
    return found.preferred_read_replica


async def settled(c: Cluster) -> None:
    """Followers hear of the high watermark."""
    await asyncio.sleep(5)


@in_virtual_time
async def test_a_leader_sends_a_consumer_to_a_follower_in_its_rack(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        c.racks = WEST
        await c[1].produce(b"a")
        assert await preferred(c) in (2, 3)
        assert await preferred(c, rack="east") == NO_NODE, "the leader is there itself"
        assert await preferred(c, rack="north") == NO_NODE, "nobody is there"
        assert values(await c[1].poll(0, wait_ms=0, rack="east")) == [b"a"]
        assert only(await c[1].poll(0, wait_ms=0)).preferred_read_replica == NO_NODE, "it named no rack"


@in_virtual_time
async def test_of_several_the_one_that_is_furthest_and_none_that_lags_is_dead_or_out_of_sync(
    cluster: MakeCluster,
) -> None:
    async with cluster() as c:
        c.create(leader=1)
        c.racks = WEST
        await c[1].produce(b"a")
        c.fabric.cut("node-3", "node-1")
        await c[1].produce(b"b", acks=1)
        await asyncio.sleep(1)
        assert {await preferred(c, offset) for offset in (0, 1, 2)} == {2}
        c.fabric.cut("node-2", "node-1")
        await c[1].produce(b"c", acks=1)
        assert await preferred(c, 3) == NO_NODE, "none of them has it yet"
        c.change(isr=[1])
        assert await preferred(c) == NO_NODE
        c.change(isr=[1, 2])
        assert await preferred(c) == 2
        c.fenced.add(NodeId(2))
        assert await preferred(c) == NO_NODE


@in_virtual_time
async def test_a_follower_shows_what_is_below_its_high_watermark_and_waits_for_more(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        c.racks = WEST
        await c[1].produce(b"a")
        await settled(c)
        assert values(await c[2].poll(0, rack="west")) == [b"a"]
        assert only(await c[2].poll(0)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER, "it named no rack"
        c.fabric.cut("node-3", "node-1")
        await c[1].produce(b"b", acks=1)
        await asyncio.sleep(1)
        assert c[2].partition().log.log_end_offset == 2
        waiting = c[2].poll(1, wait_ms=60_000, rack="west")
        assert values(await c[2].poll(0, wait_ms=0, rack="west")) == [b"a"], "node 3 may still lead without the other"
        c.fabric.heal()
        assert values(await waiting) == [b"b"]


@in_virtual_time
async def test_what_a_follower_cannot_judge_is_for_the_leader(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a")
        await settled(c)
        for offset, epoch in ((7, -1), (1, 4)):
            found = only(await c[2].poll(offset, wait_ms=0, rack="west", last_epoch=epoch))
            assert (found.error, found.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
            assert found.diverging_epoch == -1
        assert only(await c[2].poll(1, wait_ms=0, rack="west", last_epoch=0)).error is ErrorCode.NONE


@pytest.mark.parametrize("what", ["leader", "removed", "may be cut off"])
def test_a_wait_at_a_follower_ends_with_its_role(cluster: MakeCluster, what: str) -> None:
    @in_virtual_time
    async def scene(cluster: MakeCluster) -> None:
        async with cluster() as c:
            c.create(leader=1)
            await c[1].produce(b"a")
            await settled(c)
            waiting = c[2].poll(0, wait_ms=60_000, bytes_min=1 << 20, rack="west")
            await asyncio.sleep(0)
            assert not waiting.done()
            if what == "leader":
                c.change(leader=NodeId(3))
            elif what == "removed":
                c[2].manager.remove([c[2].partition().state.key], delete=True)
            else:
                c[2].manager.serve_nearby(False)
            found = only(await asyncio.wait_for(waiting, 1))
            assert (found.error, found.records) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, ())

    run: Any = scene
    run(cluster)
