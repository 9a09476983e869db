"""What a running link may still do to a topic that is promoted under its hands: nothing. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tidelog import TopicPartition
from tidelog.chaos.simulated.world.cluster import SimulatedCluster
from tidelog.chaos.simulated.world.world import World
from tidelog.client.admin.importing import import_records
from tidelog.client.admin.types import OffsetSpec
from tidelog.client.errors import InvalidRequestError, OffsetOutOfRangeError
from tidelog.client.links.definition import define
from tidelog.client.links.linked import LINK_NAME, LINK_STATE, LinkAdmin
from tidelog.client.links.managing import promote, seal
from tidelog.model.settings.topic_config import LINK_STOPPED
from tidelog.proto.records.spans import gap_batch
from tidelog.proto.transport.network import StreamKind

AT = TopicPartition("t", 0)
OTHER = TopicPartition("other", 0)
LINK = define("dr", "elsewhere", "nowhere:1", ["t", "other"], [".*"])

Work = Callable[[SimulatedCluster, LinkAdmin, LinkAdmin], Awaitable[None]]


def linked(work: Work) -> None:
    """A cluster, an operator's client, and that of a process that runs the link "dr" into topics with five records."""
    world = World(7, config={"offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "3"})

    async def main() -> None:
        cluster = world.cluster
        await cluster.start()
        async with (
            LinkAdmin(cluster.bootstrap, **cluster.seams(None)) as operator,
            LinkAdmin(cluster.bootstrap, **cluster.seams(None)) as running,
        ):
            running.act_for("dr")
            await operator.keep_definition(LINK, "append")
            for name in ("t", "other"):
                await cluster.create_topic(name, 1)
                async with cluster.producer() as producer:
                    for number in range(5):
                        await producer.send(name, b"%d" % number)
                await operator.alter_topic_configs(name, {LINK_NAME: "dr"})
            await work(cluster, operator, running)

    world.run(main)
    assert world.violations == []


def slow_replication(cluster: SimulatedCluster) -> None:
    """Followers are seconds behind, and nobody else."""
    cluster.fabric.late_answers = (StreamKind.REPLICA_FETCH.value, 1.0, 4.0)


def test_a_promoted_topic_takes_no_groups_offsets_and_no_deletions_from_its_link() -> None:
    """The link read what the source's group had committed before the promotion, and writes it after."""

    async def work(cluster: SimulatedCluster, operator: LinkAdmin, running: LinkAdmin) -> None:
        await running.alter_consumer_group_offsets("readers", {AT: 1, OTHER: 1})
        await running.delete_records({AT: 1})
        await promote(operator, "dr", ["t"])
        await operator.alter_consumer_group_offsets("readers", {AT: 4})
        with pytest.raises(InvalidRequestError, match="t: expected a topic that is filled by link 'dr'"):
            await running.alter_consumer_group_offsets("readers", {AT: 2, OTHER: 2})
        found = await operator.list_consumer_group_offsets("readers")
        assert {at: one.offset for at, one in found.items()} == {AT: 4, OTHER: 2}
        with pytest.raises(InvalidRequestError, match="filled by link"):
            await running.delete_records({AT: 3})
        assert (await operator.list_offsets({AT: OffsetSpec.earliest()}))[AT].offset == 1
        await running.delete_records({OTHER: 3})
        await operator.delete_records({AT: 2})

    linked(work)


def test_a_promotion_waits_for_every_broker_that_may_coordinate_a_group() -> None:
    """One that has not heard of the promotion would take what the link commits, in whichever group."""

    async def work(cluster: SimulatedCluster, operator: LinkAdmin, running: LinkAdmin) -> None:
        await running.alter_consumer_group_offsets("readers", {AT: 1})
        coordinator = cluster.leader_of("__consumer_offsets", 0)
        assert coordinator is not None
        for node in cluster.node_ids:
            if node != coordinator:
                cluster.fabric.delay(f"node{node}", f"node{coordinator}", 1.5)
        promoting = asyncio.ensure_future(promote(operator, "dr", ["t"]))
        committed = 0
        while not promoting.done():
            try:
                await running.alter_consumer_group_offsets("readers", {AT: committed % 5})
                committed += not promoting.done()
            except InvalidRequestError:
                break
        await promoting
        before = await operator.list_consumer_group_offsets("readers")
        await asyncio.sleep(10.0)
        assert await operator.list_consumer_group_offsets("readers") == before
        assert committed, "the coordinator took some while the promotion was under way"

    linked(work)


def test_a_link_hears_that_it_may_not_commit_once_its_earlier_commits_have_ended() -> None:
    """Otherwise one of these would still show after the promotion."""

    async def work(cluster: SimulatedCluster, operator: LinkAdmin, running: LinkAdmin) -> None:
        await running.alter_consumer_group_offsets("readers", {AT: 1})
        slow_replication(cluster)
        under_way = asyncio.ensure_future(running.alter_consumer_group_offsets("readers", {AT: 2, OTHER: 2}))
        await operator.alter_topic_configs("t", {LINK_STATE: LINK_STOPPED})
        await asyncio.sleep(0.5)
        assert not under_way.done()
        with pytest.raises(InvalidRequestError):
            await running.alter_consumer_group_offsets("readers", {AT: 3})
        assert (await operator.list_consumer_group_offsets("readers"))[AT].offset == 2
        await under_way

    linked(work)


def test_a_sealed_partition_has_everything_in_sync_that_its_leader_took() -> None:
    """A drain would leave behind what the source's leader had taken and not acknowledged yet."""

    async def work(cluster: SimulatedCluster, operator: LinkAdmin, running: LinkAdmin) -> None:
        await operator.alter_topic_configs("t", {LINK_NAME: None})
        (topic,) = (await operator.target_topics(["t"], LINK)).values()
        async with cluster.producer() as producer:
            await producer.send_and_wait("t", b"before")
            slow_replication(cluster)
            under_way = asyncio.ensure_future(producer.send_and_wait("t", b"late"))
            await asyncio.sleep(0.2)
            await operator.alter_topic_configs("t", {LINK_NAME: "dr", LINK_STATE: LINK_STOPPED})
            end = await seal(operator, topic, AT, "")
            assert (await under_way).offset < end

    linked(work)


def test_a_linked_topic_takes_no_producers_records_until_it_is_promoted() -> None:
    """The source will have other ones at their offsets."""

    async def work(cluster: SimulatedCluster, operator: LinkAdmin, running: LinkAdmin) -> None:
        async with cluster.producer() as producer:
            with pytest.raises(InvalidRequestError, match="no records but those of link 'dr'"):
                await producer.send_and_wait("t", b"not the source's")
            ends = (await promote(operator, "dr", ["t"])).ends
            assert (await producer.send_and_wait("t", b"its own")).offset == ends[AT] == 5

    linked(work)


def test_a_leader_takes_a_links_records_right_at_its_logs_end() -> None:
    """Between there and where they would lie, nobody has compared it with the source."""

    async def work(cluster: SimulatedCluster, operator: LinkAdmin, running: LinkAdmin) -> None:
        (topic,) = (await operator.target_topics(["t"], LINK)).values()

        async def put(end: int) -> int:
            records = bytes(gap_batch(end, end + 1, 0))
            return await import_records(running.cluster, AT, topic.topic_id, end, records, patience_s=0, link="dr")

        for end in (3, 6):
            with pytest.raises(OffsetOutOfRangeError, match="expected a log that ends at"):
                await put(end)
        assert await put(5) == 6

    linked(work)
