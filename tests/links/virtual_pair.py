"""Two clusters in virtual time, and a topic at the first one, for tests of links."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from tidelog import TopicPartition
from tidelog.chaos.simulated.world.cluster import KAFKA, SimulatedCluster
from tidelog.chaos.simulated.world.world import World

AT: Final = TopicPartition("t", 0)
CONFIG: Final = {
    "kafka.listener.names": KAFKA,
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}

Work = Callable[[World, SimulatedCluster, SimulatedCluster], Coroutine[Any, Any, None]]


def on_two_clusters(work: Work) -> None:
    """Run ``work(world, source, target)`` in a process of the source."""
    world = World(7, config=CONFIG)
    old, new = world.cluster, world.beside(config=CONFIG).cluster

    async def main() -> None:
        await old.start()
        await new.start()
        await old.create_topic("t", 1)
        await old.run_in(old.client_process("operator"), work(world, old, new))

    world.run(main)
    assert world.violations == []
