"""Three nodes through kills, failovers and restarts: no acknowledged record is lost or doubled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.proto.calls.controller_api import BrokerHeartbeatRequest
from tidelog.testing.async_cluster import AsyncCluster

from .conftest import Ledger, read_all

MIN_ISR_2 = {"min.insync.replicas": "2"}


@pytest.fixture(params=["memory", "grpc"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[AsyncCluster]:
    async with AsyncCluster(3, transport=request.param) as running:
        yield running


@pytest.fixture
async def memory() -> AsyncIterator[AsyncCluster]:
    async with AsyncCluster(3) as running:
        yield running


async def test_records_come_back_as_they_were_sent(cluster: AsyncCluster) -> None:
    await cluster.create_topic("t", 3, 3, MIN_ISR_2)
    async with cluster.producer(compression_type="lz4") as producer:
        for n in range(300):
            await producer.send("t", b"v%d" % n, key=b"k%d" % n, headers=[("n", b"%d" % n)])
        await producer.flush(30)
    found = await read_all(cluster, "t", 3)
    assert sorted((r.key, r.value, r.headers) for r in found) == sorted(
        (b"k%d" % n, b"v%d" % n, (("n", b"%d" % n),)) for n in range(300)
    )


async def test_a_killed_leader_loses_and_doubles_nothing(cluster: AsyncCluster) -> None:
    await cluster.create_topic("t", 2, 3, MIN_ISR_2)
    async with Ledger(cluster, "t", 2) as sent:
        await sent.more(200)
        victim = await cluster.wait_for_leader("t", 0)
        await cluster.kill(victim)
        await cluster.wait_for_leader("t", 0, other_than=victim)
        await sent.more(200)
        await cluster.restart(victim)
        await cluster.wait_for_isr("t", 0, 3)
        await sent.more(200)
        await sent.finish()
    assert not sent.failed
    await sent.judge()


async def test_a_killed_controller_does_not_stop_the_brokers(cluster: AsyncCluster) -> None:
    await cluster.create_topic("t", 3, 3, MIN_ISR_2)
    async with Ledger(cluster, "t", 3) as sent:
        await sent.more(200)
        victim = await cluster.wait_for_controller()
        await cluster.kill(victim)
        await cluster.wait_for(lambda: cluster.controller() not in (None, victim), "another active controller")
        await sent.more(200)
        await cluster.create_topic("made-after", 1, 2)
        await cluster.restart(victim)
        await cluster.wait_for_isr("t", 0, 3)
        await sent.finish()
    assert not sent.failed
    await sent.judge()


async def test_every_node_killed_one_after_the_other(memory: AsyncCluster) -> None:
    await memory.create_topic("t", 3, 3, MIN_ISR_2)
    async with Ledger(memory, "t", 3) as sent:
        for victim in memory.node_ids:
            await sent.more(100)
            await memory.kill(victim)
            await sent.more(100)
            await memory.restart(victim)
            for partition in range(3):
                await memory.wait_for_isr("t", partition, 3)
        await sent.finish()
    assert not sent.failed
    await sent.judge()


async def test_all_nodes_killed_at_once_come_back_with_everything(memory: AsyncCluster) -> None:
    await memory.create_topic("t", 3, 3, MIN_ISR_2)
    async with Ledger(memory, "t", 3, delivery_timeout_ms=60_000) as sent:
        await sent.more(300)
        for victim in memory.node_ids:
            await memory.kill(victim)
        await memory.start_many(memory.node_ids)
        await memory.wait_ready()
        await sent.more(100)
        await sent.finish()
    await sent.judge()


async def test_a_controlled_shutdown_moves_leaders_first_and_is_remembered(memory: AsyncCluster) -> None:
    await memory.create_topic("t", 3, 3, MIN_ISR_2)
    leader = await memory.wait_for_leader("t", 0)
    epoch_before = memory.image.brokers[leader].broker_epoch
    async with Ledger(memory, "t", 3) as sent:
        await sent.more(100)
        await memory.stop_node(leader)
        assert all(memory.leader_of("t", p) != leader for p in range(3)), "leaders moved before the node went"
        await sent.more(100)
        node = await memory.restart(leader)
        assert node.broker is not None
        assert node.broker.logs.clean_shutdown_epoch() == epoch_before
        assert node.broker.logs.recovered_logs == 0
        await memory.wait_for_isr("t", 0, 3)
        await sent.finish()
    assert not sent.failed
    await sent.judge()


async def test_a_killed_node_registers_as_unclean(memory: AsyncCluster) -> None:
    await memory.create_topic("t", 1, 3)
    await memory.kill(2)
    node = await memory.restart(2)
    assert node.broker is not None
    assert node.broker.logs.clean_shutdown_epoch() == -1


async def test_a_zombie_with_an_old_epoch_is_refused_and_stops_leading(memory: AsyncCluster) -> None:
    await memory.create_topic("t", 1, 3, MIN_ISR_2)
    zombie = await memory.wait_for_leader("t", 0)
    # What waits at the zombie is given up after the request timeout, as in Kafka.
    async with Ledger(memory, "t", 1, request_timeout_ms=1_000) as sent:
        await sent.more(50)
        memory.isolate(zombie)
        await memory.wait_for(
            lambda: any(n != zombie and _leads(memory, n) for n in memory.nodes), "a new leader on the other side"
        )
        assert _leads(memory, zombie), "the zombie does not know yet"
        zombie_end = _log_end(memory, zombie)
        await sent.more(50)
        memory.heal()
        await memory.wait_for(lambda: not _leads(memory, zombie), "the zombie follows")
        await memory.wait_for_isr("t", 0, 3)
        await sent.finish()
    assert _log_end(memory, zombie) > zombie_end
    await sent.judge()


async def test_a_heartbeat_of_an_older_incarnation_is_refused(memory: AsyncCluster) -> None:
    old = memory.image.brokers[NodeId(2)].broker_epoch
    await memory.kill(2)
    await memory.restart(2)
    controller = memory.nodes[await memory.wait_for_controller()].controller
    assert controller is not None
    beat = BrokerHeartbeatRequest(NodeId(2), old, memory.image.offset, want_fence=False, want_shut_down=True)
    answer = await controller.handle(beat, None)  # type: ignore[arg-type]
    assert answer.error is ErrorCode.STALE_BROKER_EPOCH
    assert memory.image.is_active(NodeId(2))


async def test_a_wiped_disk_under_the_same_id_comes_back_as_a_follower(memory: AsyncCluster) -> None:
    await memory.create_topic("t", 1, 3, MIN_ISR_2)
    async with Ledger(memory, "t", 1) as sent:
        await sent.more(200)
        victim = await memory.wait_for_leader("t", 0)
        await memory.kill(victim)
        memory.wipe_logs(victim)
        await memory.wait_for_leader("t", 0, other_than=victim)
        await sent.more(50)
        await memory.restart(victim)
        assert memory.leader_of("t", 0) != victim
        await memory.wait_for_isr("t", 0, 3)
        assert _log_end(memory, victim) > 0
        await sent.finish()
    assert not sent.failed
    await sent.judge()


async def test_a_wiped_last_replica_does_not_lead_with_an_empty_log(memory: AsyncCluster) -> None:
    await memory.create_topic("t", 1, 1)
    only = await memory.wait_for_leader("t", 0)
    async with memory.producer() as producer:
        await producer.send_and_wait("t", b"precious")
    await memory.kill(only)
    memory.wipe_logs(only)
    await memory.restart(only)
    await memory.wait_ready()
    assert memory.leader_of("t", 0) is None, "an empty log must not pass for the topic's"


async def test_replication_hears_of_a_broker_that_is_fenced_and_of_one_that_comes_back(memory: AsyncCluster) -> None:
    """A follower that was about to join and is fenced must not hold the high watermark until the lag time."""
    await memory.create_topic("t", 1, 3)
    leader = await memory.wait_for_leader("t", 0)
    broker = memory.nodes[leader].broker
    assert broker is not None
    heard: list[tuple[int, int]] = []
    act = broker.replicas.brokers_changed

    def listen(nodes: Iterable[NodeId]) -> None:
        known = list(nodes)
        heard.extend((node, broker.replicas.broker_epoch_of(node)) for node in known)
        act(known)

    broker.replicas.brokers_changed = listen  # type: ignore[method-assign]
    victim = next(node for node in memory.node_ids if node != leader)
    await memory.kill(victim)
    await memory.wait_for(lambda: (victim, -1) in heard, "word of the fencing")
    await memory.restart(victim)
    await memory.wait_for(lambda: any(n == victim and epoch >= 0 for n, epoch in heard), "word of the return")


def _leads(cluster: AsyncCluster, node_id: int) -> bool:
    node = cluster.nodes[NodeId(node_id)]
    assert node.broker is not None
    return any(replica.partition.leading is not None for replica in node.broker.replicas.replicas.values())


def _log_end(cluster: AsyncCluster, node_id: int) -> int:
    node = cluster.nodes[NodeId(node_id)]
    assert node.broker is not None
    return sum(replica.partition.log.log_end_offset for replica in node.broker.replicas.replicas.values())
