"""Brokers without the controller role: they pull metadata, and go on serving while there is no controller."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.broker.conftest import Ledger
from tidelog.aio import NewTopic
from tidelog.broker.metadata.lifecycle_state import BrokerStanding
from tidelog.model.ids import NodeId
from tidelog.testing.async_cluster import AsyncCluster

CONTROLLER = 1


@pytest.fixture(params=["memory", "grpc"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[AsyncCluster]:
    """Node 1 is the only controller and a broker as well; nodes 2 to 4 are brokers."""
    async with AsyncCluster(4, controllers=1, transport=request.param) as running:
        yield running


async def on_brokers(cluster: AsyncCluster) -> None:
    """A topic whose partitions lie on the nodes that are brokers only."""
    async with cluster.admin() as admin:
        placement = {0: [2, 3, 4], 1: [3, 4, 2], 2: [4, 2, 3]}
        await admin.create_topics([NewTopic("t", assignments=placement, configs={"min.insync.replicas": "2"})])
    await cluster.wait_for(lambda: all(cluster.leader_of("t", p) for p in range(3)), "leaders")


async def test_brokers_go_on_serving_without_a_controller(cluster: AsyncCluster) -> None:
    await on_brokers(cluster)
    async with Ledger(cluster, "t", 3) as sent:
        await sent.more(200)
        await cluster.kill(CONTROLLER)
        await sent.more(500)
        assert all(cluster.nodes[NodeId(n)].standing is BrokerStanding.RUNNING for n in (2, 3, 4))
        await cluster.restart(CONTROLLER)
        await cluster.wait_ready()
        await sent.more(200)
        await cluster.create_topic("made-after", 2, 3)
        await sent.finish()
    assert not sent.failed
    await sent.judge()


async def test_a_broker_that_was_down_catches_up_with_the_metadata(cluster: AsyncCluster) -> None:
    await on_brokers(cluster)
    async with Ledger(cluster, "t", 3) as sent:
        await sent.more(100)
        await cluster.kill(4)
        await cluster.wait_for_isr("t", 0, {2, 3})
        for n in range(5):
            await cluster.create_topic(f"other{n}", 2, 2)
        await cluster.restart(4)
        await cluster.wait_for_isr("t", 0, 3)
        assert len(cluster.nodes[NodeId(4)].view.image.topics) == 6
        await sent.finish()
    assert not sent.failed
    await sent.judge()


async def test_a_broker_far_behind_loads_a_snapshot() -> None:
    config = {"metadata.log.max.record.bytes.between.snapshots": "2000"}
    async with AsyncCluster(2, controllers=1, config=config) as cluster:
        await cluster.kill(2)
        for n in range(60):
            await cluster.create_topic(f"t{n}", 1, 1)
        controller = cluster.nodes[NodeId(CONTROLLER)].controller
        assert controller is not None
        await cluster.wait_for(lambda: controller.quorum.snapshot_offset > 10, "a snapshot of the metadata")
        await cluster.restart(CONTROLLER)
        await cluster.restart(2)
        await cluster.wait_ready()
        assert len(cluster.nodes[NodeId(2)].view.image.topics) == 60
        await cluster.create_topic("last", 2, 2)
