"""What a cut reads in which order, while groups and producers go on. In virtual time."""

from __future__ import annotations

import asyncio

from tidelog import TopicPartition
from tidelog.chaos.simulated.world.cluster import SimulatedCluster
from tidelog.chaos.simulated.world.world import World
from tidelog.client.admin.types import OffsetSpec
from tidelog.client.backup.cut import take_cut
from tidelog.client.links.linked import LinkAdmin

AT = TopicPartition("t", 0)
CUTS = 2
SLOW_S = 0.05
"""How late what the backup asks for arrives: others get on meanwhile."""


async def _move_on(cluster: SimulatedCluster) -> None:
    """A group commits the end of a log that grows, again and again."""
    async with cluster.producer() as producer, cluster.admin() as admin:
        while True:
            await producer.send_and_wait("t", b"another")
            end = (await admin.list_offsets({AT: OffsetSpec.latest()}))[AT].offset
            await admin.alter_consumer_group_offsets("readers", {AT: end})


def test_what_groups_have_committed_lies_below_the_ends() -> None:
    """A restored group would otherwise go on beyond the records that are there, and miss those that come next."""
    world = World(7, config={"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"})

    async def main() -> None:
        cluster = world.cluster
        await cluster.start()
        await cluster.create_topic("t", 1)
        moving = asyncio.ensure_future(_move_on(cluster))
        process = cluster.client_process("backup")
        for node in cluster.node_ids:
            cluster.fabric.delay("backup", f"node{node}", SLOW_S)
        async with LinkAdmin(cluster.bootstrap, **cluster.seams(process)) as admin:
            committed = []
            for _ in range(CUTS):
                await asyncio.sleep(0.2)
                cut = await take_cut(admin.cluster)
                (part,) = cut.groups["readers"]
                assert part.offset <= cut.ends[AT]
                committed.append(part.offset)
        moving.cancel()
        assert committed == sorted(set(committed)), "the group went on from cut to cut"

    world.run(main)
    assert world.violations == []
