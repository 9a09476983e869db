"""A source whose unclean election has lost records: the link stops where the logs part. In virtual time."""

from __future__ import annotations

import asyncio

from tidelog.chaos.simulated.world.cluster import KAFKA, SimulatedCluster
from tidelog.chaos.simulated.world.loop import Process
from tidelog.chaos.simulated.world.world import World
from tidelog.client.config.security import ClientSecurity
from tidelog.client.config.settings import parse_bootstrap
from tidelog.client.links.linked import LinkAdmin
from tidelog.client.links.linking import LinkRunner
from tidelog.client.links.managing import create_link
from tidelog.client.links.source import Source

CONFIG = {"kafka.listener.names": KAFKA, "offsets.topic.num.partitions": "1"}
UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}


async def _write(cluster: SimulatedCluster, *values: bytes) -> None:
    async with cluster.producer() as producer:
        for value in values:
            await producer.send_and_wait("t", value)


def _end_of(cluster: SimulatedCluster) -> int:
    """Where the log of "t" ends on the node that has the most of it."""
    brokers = [node.broker for node in cluster.nodes.values() if node.broker is not None]
    return max((log.log_end_offset for broker in brokers for log in broker.logs.logs() if log.topic == "t"), default=0)


async def _lose_five(source: SimulatedCluster, target: SimulatedCluster) -> None:
    """The source has five records more, which come over; then a replica leads that has other ones in their place."""
    await _write(source, b"both")
    leader = await source.wait_for_leader("t", 0)
    (follower,) = [node for node in source.isr_of("t", 0) if node != leader]
    source.kill(follower)
    await source.wait_for_isr("t", 0, [leader])
    await _write(source, *(b"lost %d" % number for number in range(5)))
    await target.wait_for(lambda: _end_of(target) == 6, "the target has all")
    source.kill(leader)
    await source.start_node(follower)
    await source.wait_for_leader("t", 0, other_than=leader)
    await _write(source, *(b"other %d" % number for number in range(9)))


async def _run(
    process: Process, old: SimulatedCluster, new: SimulatedCluster, told: list[str], over: asyncio.Event
) -> None:
    """Make the link "dr" and run it."""
    source = Source(parse_bootstrap(old.kafka_bootstrap), ClientSecurity(), "link")
    async with LinkAdmin(new.bootstrap, **new.seams(process)) as admin:
        await create_link(admin, source, "dr", old.kafka_bootstrap, ["t"], [])
        await LinkRunner(admin, source, await admin.definition("dr"), told.append).run(over)
    source.close()


def test_a_link_takes_nothing_from_a_leader_that_lacks_what_is_here() -> None:
    """Otherwise the target would have a log that the source never had."""
    world = World(7, config=CONFIG)
    beside = world.beside(config=CONFIG, drift=0.0)

    async def main() -> None:
        old, new = world.cluster, beside.cluster
        await old.start()
        await new.start()
        await old.create_topic("t", 1, 2, UNCLEAN)
        told: list[str] = []
        over = asyncio.Event()
        process = new.client_process("link")
        running = new.run_in(process, _run(process, old, new, told, over))
        await _lose_five(old, new)
        await new.wait_for(lambda: _end_of(new) > 6 or any("lost records" in line for line in told), "it is noticed")
        assert _end_of(new) == 6
        over.set()
        await running

    world.run(main)
    assert world.violations == []
