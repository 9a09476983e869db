"""A leader freezes, and others take over: requests that wait for its answer go to them long before it resumes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tidelog import Admin, Consumer, NewTopic, Producer, RecordMetadata
from tidelog.cli.local.cluster import LocalCluster
from tidelog.model.ids import NodeId, TopicPartition
from tidelog.testing.async_cluster import AsyncCluster

RESUMED_S = 4.0
"""A node is fenced after 0.7 s, and its clients ask for the leader after 1, 1.5 and 2.25 s; the rest is for slow
machines. Without that they wait for ``request.timeout.ms``, which is 30 s."""

FROZEN_FROM_S, FROZEN_S = 1.0, 8.0


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[AsyncCluster]:
    async with AsyncCluster(nodes=3, seed=5) as found:
        await found.create_topic("t", 3, 3)
        yield found


def freeze(cluster: AsyncCluster, node: int) -> None:
    """Nothing that is sent to the node, or by it, arrives; no connection breaks."""
    cluster.isolate(node, clients=True)


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_producer_goes_on(cluster: AsyncCluster, idempotent: bool) -> None:
    async with cluster.producer(enable_idempotence=idempotent) as producer:
        for partition in range(3):
            await producer.send_and_wait("t", b"first", partition=partition)
        leader = cluster.leader_of("t", 0)
        assert leader is not None
        freeze(cluster, leader)
        began = time.monotonic()
        sent = [await producer.send("t", b"%d" % n, partition=0) for n in range(10)]
        offsets = [(await one).offset for one in sent]
        assert time.monotonic() - began < RESUMED_S
        assert offsets == list(range(1, 11))
        cluster.heal()


async def test_a_consumer_goes_on(cluster: AsyncCluster) -> None:
    async with cluster.producer() as producer, cluster.consumer(auto_offset_reset="earliest") as consumer:
        await producer.send_and_wait("t", b"first", partition=0)
        consumer.assign([TopicPartition("t", n) for n in range(3)])
        assert [r.value for r in await consumer.poll(20)] == [b"first"]
        leader = cluster.leader_of("t", 0)
        assert leader is not None
        freeze(cluster, leader)
        began = time.monotonic()
        await producer.send_and_wait("t", b"second", partition=0)
        found: list[bytes | None] = []
        while not found:
            found += [r.value for r in await consumer.poll(1)]
            assert time.monotonic() - began < RESUMED_S
        assert found == [b"second"]
        cluster.heal()


async def test_a_transaction_goes_on(cluster: AsyncCluster) -> None:
    async with cluster.producer(transactional_id="tx") as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"one", partition=0)
        await producer.commit_transaction()
        node = producer._core.require_transactions()._link._node
        assert node is not None
        freeze(cluster, node)
        began = time.monotonic()
        await producer.begin_transaction()
        await producer.send("t", b"two", partition=0)
        await producer.commit_transaction()
        assert time.monotonic() - began < RESUMED_S
        cluster.heal()


async def test_a_group_goes_on(cluster: AsyncCluster) -> None:
    settings: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    async with cluster.producer() as producer, cluster.consumer(**settings) as consumer:
        await producer.send_and_wait("t", b"first", partition=0)
        consumer.subscribe(["t"])
        assert [r.value for r in await consumer.poll(20)] == [b"first"]
        coordinator = consumer._core.group.coordinator._node  # type: ignore[union-attr]
        assert coordinator is not None
        freeze(cluster, coordinator)
        began = time.monotonic()
        await consumer.commit()
        assert time.monotonic() - began < RESUMED_S
        assert (await consumer.committed([TopicPartition("t", 0)]))[TopicPartition("t", 0)] is not None
        cluster.heal()


def test_a_stopped_process_holds_up_nobody(tmp_path: Path) -> None:
    """SIGSTOP to a leader of real processes: each partition goes on while it stands still, and has each record once."""
    longest: dict[int, float] = {}
    last: dict[int, float] = {}
    failed: list[BaseException] = []

    def delivered(metadata: RecordMetadata | None, error: BaseException | None) -> None:
        now = time.monotonic()
        if metadata is None:
            assert error is not None
            failed.append(error)
            return
        gap = now - last.get(metadata.partition, now)
        longest[metadata.partition] = max(longest.get(metadata.partition, 0.0), gap)
        last[metadata.partition] = now

    nodes = LocalCluster.create(tmp_path / "cluster", nodes=3)
    nodes.start()
    try:
        nodes.wait_ready()
        with Admin(nodes.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 6, 3)])
            leaders = {p.partition: p.leader for p in admin.describe_topics(["t"])[0].partitions}
        frozen = leaders[0]
        count = 0
        with Producer(nodes.bootstrap, acks="all", linger_ms=1) as producer:
            began = time.monotonic()
            while (passed := time.monotonic() - began) < FROZEN_FROM_S + FROZEN_S + 1:
                if frozen >= 0 and passed > FROZEN_FROM_S:
                    nodes.pause(frozen)
                    frozen, resumed = NodeId(-1), frozen
                for partition in range(6):
                    producer.send("t", b"%d" % count, partition=partition, on_delivery=delivered)
                count += 1
                time.sleep(0.01)
            now = time.monotonic()
            worst = {partition: max(longest[partition], now - last[partition]) for partition in range(6)}
            nodes.resume(resumed)
            producer.flush(30)
        assert not failed
        assert max(worst.values()) < RESUMED_S, worst
        with Consumer(nodes.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", n) for n in range(6)])
            found: dict[int, list[bytes | None]] = {n: [] for n in range(6)}
            until = time.monotonic() + 20
            while sum(map(len, found.values())) < 6 * count and time.monotonic() < until:
                for record in consumer.poll(1):
                    found[record.partition].append(record.value)
        assert found == {n: [b"%d" % number for number in range(count)] for n in range(6)}
    finally:
        for node in nodes.running():
            nodes.resume(node)
        nodes.stop()
