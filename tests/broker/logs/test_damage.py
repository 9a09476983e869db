"""Damage on a disk is found, named and refused, and mended from an intact replica."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.conftest import broker_of
from tidelog.client.errors import CorruptRecordError
from tidelog.model.ids import NodeId, TopicPartition
from tidelog.proto.records.batches import split_batches
from tidelog.storage.log.log import Log
from tidelog.testing.async_cluster import GRPC, AsyncCluster

SCRUB = {"log.scrub.interval.ms": "0", "log.segment.bytes": str(2**20)}
TOPIC = "t"


def log_of(cluster: AsyncCluster, node: int) -> Log:
    broker = cluster.nodes[NodeId(node)].broker
    assert broker is not None
    partition = broker.replicas.partition_named(TOPIC, 0)
    assert partition is not None
    return partition.log


def segment(log: Log, number: int) -> Path:
    return Path(log.directory) / f"{log.segment_offsets[number]:020d}.log"


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x20
    with path.open("r+b") as file:
        file.write(content)


async def fill(cluster: AsyncCluster, replicas: int, **config: str) -> list[bytes]:
    """A topic of one partition with several segments."""
    await cluster.create_topic(TOPIC, 1, replicas, config)
    values = [b"%d " % number + b"x" * 20_000 for number in range(200)]
    async with cluster.producer(batch_size=40_000, linger_ms=0) as producer:
        for value in values:
            await producer.send(TOPIC, value=value, partition=0)
        await producer.flush()
    leader = log_of(cluster, cluster.leader_of(TOPIC, 0) or 1)
    end = leader.log_end_offset
    await cluster.wait_for(
        lambda: all(log_of(cluster, node).log_end_offset == end for node in cluster.isr_of(TOPIC, 0)), "replicated"
    )
    assert leader.segment_count > 3
    return values


async def mended(cluster: AsyncCluster, node: int, ranges: int, timeout_s: float = 30) -> None:
    """Wait until the node has mended so many ranges and knows of no damage."""
    broker = broker_of(cluster.nodes[NodeId(node)])
    await cluster.wait_for(
        lambda: broker.mending.ranges_mended >= ranges and not broker.scrubbing.damaged, "mended", timeout_s
    )


async def read(cluster: AsyncCluster, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, 0)])
        while len(found) < count:
            found += [record.value for record in await consumer.poll(timeout=1)]
    return found


def content_of(cluster: AsyncCluster, node: int) -> bytes:
    log = log_of(cluster, node)
    return b"".join(segment(log, number).read_bytes() for number in range(log.segment_count))


@pytest.mark.parametrize("who", ["leader", "follower"])
@pytest.mark.parametrize(("number", "position"), [(0, 8), (1, 200), (-1, 16)])
async def test_a_replica_is_mended_from_another(who: str, number: int, position: int) -> None:
    async with AsyncCluster(3, config=SCRUB) as cluster:
        values = await fill(cluster, 3)
        leader = cluster.leader_of(TOPIC, 0)
        victim = leader if who == "leader" else next(node for node in cluster.isr_of(TOPIC, 0) if node != leader)
        assert victim is not None
        log = log_of(cluster, victim)
        epoch = cluster.image.topic(TOPIC).partitions[0].leader_epoch  # type: ignore[union-attr]
        flip(segment(log, number), position)
        broker = broker_of(cluster.nodes[NodeId(victim)])
        await cluster.wait_for(lambda: broker.mending.ranges_mended == 1, "mended", 20)
        assert broker.scrubbing.damage_found == 1
        assert not broker.scrubbing.damaged
        assert content_of(cluster, victim) == content_of(cluster, next(n for n in (1, 2, 3) if n != victim))
        assert await read(cluster, len(values)) == values
        assert cluster.image.topic(TOPIC).partitions[0].leader_epoch == epoch  # type: ignore[union-attr]
        await cluster.kill(victim)
        await cluster.start_node(victim)
        assert content_of(cluster, victim) == content_of(cluster, next(n for n in (1, 2, 3) if n != victim))


async def test_mending_keeps_to_the_rate_of_the_scrub() -> None:
    rate = 2**20
    config = {**SCRUB, "log.scrub.interval.ms": "-1", "log.scrub.io.max.bytes.per.second": str(rate)}
    async with AsyncCluster(2, config=config) as cluster:
        await fill(cluster, 2)
        victim = cluster.leader_of(TOPIC, 0)
        assert victim is not None
        log, broker = log_of(cluster, victim), broker_of(cluster.nodes[NodeId(victim)])
        size = segment(log, 1).stat().st_size
        flip(segment(log, 1), 200)
        began = time.monotonic()
        log.suspect(log.segment_offsets[1])
        await mended(cluster, victim, 1)
        assert time.monotonic() - began > 0.8 * size / rate
        assert not broker.scrubbing.damaged


async def test_each_replica_may_be_damaged_in_another_place() -> None:
    async with AsyncCluster(3, config=SCRUB, transport=GRPC) as cluster:
        values = await fill(cluster, 3)
        for node in (1, 2, 3):
            for number in range(log_of(cluster, node).segment_count - 1):
                flip(segment(log_of(cluster, node), number), 100 + 200_000 * node)
        for node in (1, 2, 3):
            await mended(cluster, node, 3)
        assert content_of(cluster, 1) == content_of(cluster, 2) == content_of(cluster, 3)
        assert await read(cluster, len(values)) == values


async def test_a_single_replica_refuses_the_damage_and_hands_out_all_else(caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncCluster(1, config=SCRUB) as cluster:
        values = await fill(cluster, 1)
        log = log_of(cluster, 1)
        flip(segment(log, 1), 300)
        broker = cluster.nodes[NodeId(1)].broker
        assert broker is not None
        await cluster.wait_for(lambda: not log.mendable, "found, and nobody has it", 20)
        [[damage]] = broker.scrubbing.damaged.values()
        async with cluster.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([(TOPIC, 0)])
            found: list[bytes | None] = []
            while len(found) < damage.first_offset:
                found += [record.value for record in await consumer.poll(timeout=1)]
            with pytest.raises(CorruptRecordError, match=f"the batch at offset {damage.first_offset} cannot be read"):
                await consumer.poll(timeout=20)
            assert found == values[: damage.first_offset]
            consumer.seek(TopicPartition(TOPIC, 0), damage.next_offset)
            while len(found) < len(values) - (damage.next_offset - damage.first_offset):
                found += [record.value for record in await consumer.poll(timeout=1)]
        assert found == values[: damage.first_offset] + values[damage.next_offset :]
        await asyncio.sleep(1)
        assert sum("damage in" in message for message in caplog.messages) == 1


async def test_what_no_replica_has_whole_is_refused_and_mended_once_one_is_back() -> None:
    async with AsyncCluster(3, config=SCRUB) as cluster:
        values = await fill(cluster, 3)
        leader = cluster.leader_of(TOPIC, 0)
        assert leader is not None
        away = next(node for node in (1, 2, 3) if node != leader)
        await cluster.kill(away)
        for node in {1, 2, 3} - {away}:
            flip(segment(log_of(cluster, node), 1), 300)
        broker = cluster.nodes[NodeId(leader)].broker
        assert broker is not None
        log = log_of(cluster, leader)
        await cluster.wait_for(lambda: bool(broker.scrubbing.damaged), "found", 20)
        await asyncio.sleep(2)
        assert broker.scrubbing.damaged
        assert log.mendable  # one has not answered
        await cluster.start_node(away)
        for node in {1, 2, 3} - {away}:
            await mended(cluster, node, 0, timeout_s=40)
        assert await read(cluster, len(values)) == values


async def test_a_compacted_log_is_mended() -> None:
    async with AsyncCluster(3, config={**SCRUB, "log.cleaner.backoff.ms": "100"}) as cluster:
        await cluster.create_topic(
            TOPIC, 1, 3, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "200"}
        )
        last: dict[bytes, bytes] = {}
        async with cluster.producer(batch_size=500, linger_ms=0) as producer:
            for number in range(600):
                key, value = b"k%d" % (number % 37 if number % 3 else number), b"%d" % number
                last[key] = value
                await producer.send(TOPIC, key=key, value=value, partition=0)
                if not number % 100:
                    await asyncio.sleep(0.3)
            await producer.flush()
        victim = cluster.leader_of(TOPIC, 0)
        assert victim is not None
        broker = broker_of(cluster.nodes[NodeId(victim)])
        cleaning = broker.cleaning
        assert cleaning is not None
        await cluster.wait_for(lambda: cleaning.passes > 0, "compacted", 60)
        passes = 0
        while passes != cleaning.passes:  # a pass would write a new file while this one is damaged
            passes = cleaning.passes
            await asyncio.sleep(1)
        log = log_of(cluster, victim)
        flip(segment(log, 0), 150)
        await mended(cluster, victim, ranges=1, timeout_s=60)
        found: dict[bytes | None, bytes | None] = {}
        async with cluster.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([(TOPIC, 0)])
            while found != last:
                found |= {record.key: record.value for record in await consumer.poll(timeout=1)}
        assert all(batch.crc_ok() for batch in split_batches(segment(log, 0).read_bytes()))
