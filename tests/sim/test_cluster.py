"""A cluster in virtual time: production nodes and clients, faults as calls, and a scenario of one's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tidelog.chaos.sim.cluster import SimulatedCluster
from tidelog.chaos.sim.cluster_scenario import scenario
from tidelog.chaos.sim.cluster_settings import SETTINGS, replication
from tidelog.chaos.sim.simulation import Simulation
from tidelog.chaos.sim.world import World
from tidelog.storage.memory_files import MemoryFiles

TOPIC = "orders"
Run = Callable[[Callable[[SimulatedCluster], Awaitable[None]]], World]


@pytest.fixture
def simulate() -> Run:
    def run(main: Callable[[SimulatedCluster], Awaitable[None]]) -> World:
        world = World(7)
        world.run(lambda: main(world.cluster))
        return world

    return run


async def _ready(cluster: SimulatedCluster) -> None:
    await cluster.start()
    await cluster.create_topic(TOPIC, 1, 3)


async def _send(cluster: SimulatedCluster, values: list[bytes]) -> None:
    async with cluster.producer() as producer:
        for value in values:
            await producer.send(TOPIC, value, partition=0)
        await producer.flush(20.0)


async def _read(cluster: SimulatedCluster, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, 0)])
        while len(found) < count:
            found += [record.value for record in await consumer.poll(5.0)]
    return found


def test_a_minute_of_a_whole_cluster_takes_no_time(simulate: Run) -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await _ready(cluster)
        values = [b"%d" % number for number in range(100)]
        await _send(cluster, values)
        began = cluster.loop.now
        assert await _read(cluster, 100) == values
        await cluster.wait_for(lambda: cluster.loop.now > began + 60.0, "a minute", 61.0)
        assert cluster.failures == []

    world = simulate(main)
    assert world.violations == []
    assert world.now_s > 60.0


def test_a_killed_leader_is_replaced_and_comes_back(simulate: Run) -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await _ready(cluster)
        leader = await cluster.wait_for_leader(TOPIC, 0)
        await _send(cluster, [b"before"])
        cluster.kill(leader)
        assert not cluster.is_up(leader)
        killed = cluster.loop.now
        await cluster.wait_for_leader(TOPIC, 0, other_than=leader)
        assert cluster.loop.now - killed < 2.0
        await _send(cluster, [b"after"])
        await cluster.start_node(leader)
        await cluster.wait_for_isr(TOPIC, 0, 3)
        assert await _read(cluster, 2) == [b"before", b"after"]

    assert simulate(main).violations == []


def test_a_process_that_dies_in_the_midst_of_a_disk_call_comes_back(simulate: Run) -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await _ready(cluster)
        leader = await cluster.wait_for_leader(TOPIC, 0)
        assert cluster.kill_in(leader, 1)
        await _send(cluster, [b"%d" % number for number in range(10)])
        assert not cluster.is_up(leader)
        await cluster.start_node(leader)
        await cluster.wait_for_isr(TOPIC, 0, 3)
        assert await _read(cluster, 10) == [b"%d" % number for number in range(10)]

    assert simulate(main).violations == []


def test_a_host_that_lost_its_power_has_what_it_synced(simulate: Run) -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.start()
        await cluster.create_topic(TOPIC, 1, 3, {"flush.messages": "1"})
        values = [b"%d" % number for number in range(20)]
        await _send(cluster, values)
        for node in cluster.node_ids:
            files = MemoryFiles(cluster.hosts[node].disk)
            logs = [path for path in files.paths(cluster.log_directory(node)) if path.endswith(".log")]
            assert [files.synced_size(path) for path in logs] == [files.size(path) for path in logs]
        for node in cluster.node_ids:
            cluster.lose_power(node)
        for node in cluster.node_ids:
            cluster.start_soon(node)
        await cluster.wait_ready()
        await cluster.wait_for_leader(TOPIC, 0)
        assert await _read(cluster, 20) == values

    assert simulate(main).violations == []


def test_a_paused_node_is_fenced_and_catches_up(simulate: Run) -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await _ready(cluster)
        leader = await cluster.wait_for_leader(TOPIC, 0)
        other = next(node for node in cluster.node_ids if node != leader)
        assert cluster.pause(leader)
        await cluster.wait_for(lambda: not cluster.nodes[other].view.image.is_active(leader), "fenced", 5.0)
        await _send(cluster, [b"meanwhile"])
        cluster.resume(leader)
        await cluster.wait_for_isr(TOPIC, 0, 3)

    assert simulate(main).violations == []


def test_what_a_user_does_wrong_is_said(simulate: Run) -> None:
    async def main(cluster: SimulatedCluster) -> None:
        with pytest.raises(ValueError, match="expected a node of"):
            cluster.kill(9)
        await cluster.start()
        with pytest.raises(ValueError, match="runs already"):
            await cluster.start_node(1)

    simulate(main)


# --- scenarios --------------------------------------------------------------------------------------------


@scenario(partitions=1, faults=["break", "delay"], fault_count=3)
async def leader_dies_twice(sim: Simulation) -> None:
    """Orders survive a leader that dies twice within seconds."""
    for _ in range(2):
        await sim.sleep(2.0)
        leader = await sim.cluster.wait_for_leader(sim.topic, 0)
        sim.cluster.kill(leader)
        await sim.sleep(0.5)
        await sim.cluster.start_node(leader)


def test_a_scenario_of_ones_own_is_judged_like_any_other() -> None:
    for seed in range(1, 4):
        outcome = leader_dies_twice.run(seed)
        assert outcome.held, outcome.violations
        assert outcome.events["leader-change"] >= 2
        assert outcome.operations > 10
    assert leader_dies_twice.name == "leader-dies-twice"
    assert len(leader_dies_twice.schedule(1)) == 3


def test_a_scenario_that_destroys_what_was_acknowledged_fails() -> None:
    @scenario(name="all-disks-are-replaced", partitions=1, seconds=6.0)
    async def destroy(sim: Simulation) -> None:
        await sim.sleep(3.0)
        for node in sim.cluster.node_ids:
            sim.cluster.kill(node)
            sim.cluster.replace_disk(node)
        for node in sim.cluster.node_ids:
            sim.cluster.start_soon(node)

    outcome = destroy.run(1)
    assert not outcome.held


def test_a_schedule_is_made_before_the_run_and_can_be_run_in_part() -> None:
    made = replication()
    schedule = made.schedule(11)
    assert schedule == made.schedule(11)
    assert schedule != made.schedule(12)
    assert len(schedule) >= 10
    kills = tuple(fault for fault in schedule if fault.kind.startswith("kill"))
    outcome = made.run(11, kills)
    assert outcome.held, outcome.violations
    assert set(outcome.faults) <= {fault.kind for fault in kills}
    assert outcome.virtual_s >= 60.0
    assert outcome.operations >= 200


def test_scenarios_have_names_of_their_own() -> None:
    names = [setting.name for setting in SETTINGS]
    assert len(set(names)) == len(names)
