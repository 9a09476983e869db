"""A simulated cluster to which something wrong is done on purpose: each wrong is found and named."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any

from tidelog.chaos.simulated.simulation.cluster_scenario import scenario
from tidelog.chaos.simulated.simulation.simulation import Simulation
from tidelog.chaos.simulated.world.cluster import SimulatedCluster
from tidelog.client.delivery import RecordMetadata
from tidelog.model.ids import LeaderEpoch, NodeId, Offset, TopicPartition
from tidelog.storage.disk.memory_files import MemoryFiles


async def _at_work(sim: Simulation) -> None:
    """Until every producer was heard."""
    await sim.cluster.wait_for(lambda: all(sender.acknowledged for sender in sim.senders), "clients at work")


def _found(outcome_violations: list[str], *expected: str) -> None:
    missing = [text for text in expected if not any(text in found for found in outcome_violations)]
    assert not missing, f"{missing} not in {outcome_violations}"


def test_what_clients_are_told_wrong_is_found() -> None:
    @scenario(name="lies-to-clients", partitions=2, seconds=3.0)
    async def lies(sim: Simulation) -> None:
        await _at_work(sim)
        sender, reader = sim.senders[0], sim.readers[0]
        at = TopicPartition(sim.topic, 0)
        metadata = RecordMetadata(sim.topic, 1, 0, 0)
        sender._heard(10**6)(metadata, None)
        sender._under_way[10**6] = (at, {"value": b"p1:1000000:"}, sim.cluster.loop.now)
        sender._heard(10**6)(metadata, None)
        sim.observer.acknowledged(at, 10**6)
        ends = reader.consumer.end_offsets

        async def one_less(partitions: Any, **options: Any) -> dict[TopicPartition, Offset]:
            return {at: Offset(end - 1) for at, end in (await ends(partitions, **options)).items()}

        reader.consumer.end_offsets = one_less  # type: ignore[method-assign, assignment]

    _found(
        lies.run(1).violations,
        "p1:1000000 had its outcome already, and now RecordMetadata(",
        "p1:1000000 was sent to orders-0 and acknowledged at ",
        "orders-0 offset 1000000 was acknowledged; nodes [1, 2, 3] do not have it",
        "c0 got the ends ",
    )


def test_what_nodes_do_wrong_is_found() -> None:
    @scenario(name="damage", partitions=1, seconds=4.0)
    async def damage(sim: Simulation) -> None:
        await _at_work(sim)
        cluster = sim.cluster
        first, second, _ = cluster.node_ids
        (key, replica), *_ = _broker(cluster, first).replicas.replicas.items()
        replica.partition.counts.truncations_below_high_watermark += 1
        cluster.kill(first)
        path = f"{replica.partition.log.directory}/{0:020}.log"
        del MemoryFiles(cluster.hosts[first].disk).content(path)[-1:]
        cluster.start_soon(first)
        _broker(cluster, second).replicas.consuming.waiting += 1
        node = cluster.nodes[second]
        image = node.view.image
        topic = image.topic(sim.topic)
        assert topic is not None
        other = dataclasses.replace(topic.partitions[0], leader_epoch=LeaderEpoch(9))
        fields = ("offset", "epoch", "brokers", "next_producer_id")
        forged = SimpleNamespace(
            **{name: getattr(image, name) for name in fields},
            topics={key.topic_id: SimpleNamespace(name=sim.topic, partitions={0: other})},
        )
        watch = sim.observer._metadata
        stranger: Any = SimpleNamespace(controller=None, view=SimpleNamespace(image=forged))
        watch.look(NodeId(7), stranger)
        stranger.view.image = SimpleNamespace(**{**vars(forged), "offset": image.offset - 1})
        watch.look(NodeId(7), stranger)
        failing = asyncio.get_running_loop().create_future()
        failing.set_exception(OSError("nobody asked"))

    _found(
        damage.run(1).violations,
        "cut ",
        " below its high watermark",
        "node 1 died with ",
        "left after the clients: node 2: 1 fetches wait",
        "have different images at ",
        "node 7's image went back from ",
        "the event loop reports: Future exception was never retrieved: OSError('nobody asked')",
    )


def test_a_cluster_that_does_not_get_on_is_found() -> None:
    @scenario(name="silence", partitions=1, seconds=2.0)
    async def silence(sim: Simulation) -> None:
        await _at_work(sim)
        for sender in sim.senders:
            sender.stopping = True

    (found,) = silence.run(3).violations
    assert "no progress after healing: expected within 40" in found
    assert "every producer heard again" in found


def _broker(cluster: SimulatedCluster, node_id: NodeId) -> Any:
    broker = cluster.nodes[node_id].broker
    assert broker is not None
    return broker
