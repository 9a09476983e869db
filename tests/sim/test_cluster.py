"""A cluster in virtual time: production nodes and clients, faults as calls, and a scenario of one's own."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tidelog.chaos.simulated.scenarios.clusters import REPLICATION, SETTINGS
from tidelog.chaos.simulated.scenarios.registry import load_file
from tidelog.chaos.simulated.simulation.cluster_scenario import ClusterScenario, scenario
from tidelog.chaos.simulated.simulation.simulation import Simulation
from tidelog.chaos.simulated.world.cluster import SimulatedCluster
from tidelog.chaos.simulated.world.world import World
from tidelog.storage.disk.memory_files import MemoryFiles

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


def test_the_scenarios_of_the_page_hold_and_are_judged_like_any_other(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text(encoding="utf-8")
    file = tmp_path / "of_the_page.py"
    file.write_text("".join(re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)), encoding="utf-8")
    dies_twice, alarms = load_file(file)
    assert (dies_twice.name, alarms.name) == ("leader-dies-twice", "alarms-are-heard-in-time")
    assert len(dies_twice.schedule(1)) == 3
    for seed in range(1, 4):
        outcome = dies_twice.run(seed)
        assert outcome.held, outcome.violations
        assert outcome.events["leader-change"] >= 2
        assert outcome.operations > 10
        outcome = alarms.run(seed)
        assert outcome.held, outcome.violations
        assert outcome.events["log-directory-failed"] == 1


def test_another_name_makes_no_other_schedule() -> None:
    async def body(sim: Simulation) -> None:
        """Nothing."""

    first, second = (scenario(name=name, faults=["kill", "cut"])(body) for name in ("first", "second"))
    assert first.schedule(7) == second.schedule(7)
    assert first.schedule(7) != first.schedule(8)
    assert first.schedule(7) != scenario(faults=["kill", "pause"])(body).schedule(7)


def test_a_scenario_that_raises_shows_what_happened_until_then() -> None:
    @scenario(name="raises", partitions=1, faults=["break"], fault_count=5, seconds=3.0)
    async def raises(sim: Simulation) -> None:
        sim.cluster.kill(await sim.cluster.wait_for_leader(sim.topic, 0))
        await sim.sleep(2.0)
        sim.violation("something is wrong")
        raise KeyError("lost")

    trace: list[str] = []
    outcome = raises.run(1, trace=trace.append)
    assert len(outcome.violations) == 2, "and all that was done before is mended and judged"
    assert outcome.violations[0].endswith(" s: something is wrong")
    assert re.search(r"s: scenario raised KeyError: 'lost' \(at test_cluster.py:\d+ raises\)$", outcome.violations[1])
    assert outcome.raised == "KeyError"
    assert outcome.faults["break"] > 0
    assert outcome.events["leader-change"] > 0
    assert outcome.operations > 0
    told = next(number for number, line in enumerate(trace) if "VIOLATION scenario raised KeyError" in line)
    assert 100 < told < len(trace) - 100


def test_a_run_that_raises_elsewhere_shows_what_happened_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    @scenario(name="unlucky", partitions=1, seconds=2.0)
    async def unlucky(sim: Simulation) -> None:
        await sim.sleep(1.0)

    def broken(self: Simulation) -> bool:
        raise ZeroDivisionError("of the judge")

    monkeypatch.setattr(Simulation, "_isr_whole", broken)
    outcome = unlucky.run(1)
    assert outcome.raised == "ZeroDivisionError"
    assert "run raised ZeroDivisionError: of the judge" in outcome.violations[0]
    assert outcome.operations > 0
    assert outcome.virtual_s > 2.0


def test_whatever_a_scenario_leaves_undone_the_end_of_the_run_undoes() -> None:
    @scenario(name="leaves-everything", nodes=5, controllers=3, partitions=1, log_dirs=2, seconds=1.0)
    async def leaves(sim: Simulation) -> None:
        cluster = sim.cluster
        cluster.isolate(1)
        cluster.fabric.delay("node2", "node3", 5.0)
        cluster.break_log_dir(2, 1)
        cluster.pause(3)
        cluster.jump_clock(4, -3600.0)
        cluster.slow_disk(4, 2.0)
        cluster.kill(5)
        cluster.replace_disk(5)

    for seed in range(1, 4):
        outcome = leaves.run(seed)
        assert outcome.held, outcome.violations


@scenario(partitions=1, log_dirs=2, seconds=1.0)
async def a_directory_fails_under_idle_partitions(sim: Simulation) -> None:
    """Records for partitions that were idle when a replica's directory failed do not wait for that replica."""
    cluster = sim.cluster
    await cluster.create_topic("idle", 6)
    async with cluster.producer(acks="all") as producer:

        async def send(what: bytes) -> None:
            for partition in range(6):
                await producer.send("idle", what, partition=partition)
            await producer.flush(100.0)

        await send(b"before")
        await sim.sleep(1.0)
        cluster.break_log_dir(2, 0)
        await sim.sleep(8.0)
        began = cluster.loop.now
        await send(b"after")
        assert cluster.loop.now - began < 6.0, f"acknowledged after {cluster.loop.now - began:.1f} s"


def test_idle_partitions_do_not_wait_for_a_replica_whose_directory_failed() -> None:
    """The leader brought it back into the ISR before it had heard, and noticed only by its lag. In the end it is in
    sync again by itself: the directory is mended."""
    for seed in range(1, 4):
        outcome = a_directory_fails_under_idle_partitions.run(seed)
        assert outcome.held, outcome.violations
        assert outcome.events["log-directory-failed"] == 1


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
    made = ClusterScenario(REPLICATION)
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
