"""Whoever waits until a link is level finds the groups' commits at the target, too. Two clusters in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tidelog import TopicPartition
from tidelog.chaos.simulated.world.cluster import SimulatedCluster
from tidelog.chaos.simulated.world.world import World
from tidelog.client.config.security import ClientSecurity
from tidelog.client.config.settings import parse_bootstrap
from tidelog.client.group_types import OffsetAndMetadata
from tidelog.client.links.definition import LinkError
from tidelog.client.links.linked import LinkAdmin
from tidelog.client.links.linking import LinkRunner
from tidelog.client.links.managing import create_link, level_status, promote
from tidelog.client.links.reversing import drain
from tidelog.client.links.source import Source

from .virtual_pair import AT, on_two_clusters

COMMITTED = {"readers": OffsetAndMetadata(4, -1, "here"), "others": OffsetAndMetadata(5, -1, "")}


class CommittedMeanwhile(Source):
    """A source at which groups commit right after the link has asked for commits, and a while before it goes on."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(parse_bootstrap(bootstrap), ClientSecurity(), "link")
        self.commit: Callable[[], Awaitable[None]] | None = None

    async def committed(self, groups: Sequence[str]) -> dict[str, dict[TopicPartition, tuple[int, str]]]:
        found = await super().committed(groups)
        if self.commit is not None:
            commit, self.commit = self.commit, None
            await commit()
            await asyncio.sleep(3)
        return found


@pytest.mark.parametrize("planned", [False, True], ids=["wait and promote", "drain"])
@pytest.mark.parametrize("running", [False, True], ids=["before the link runs", "while commits are copied"])
def test_commits_before_a_planned_promotion_come_over(running: bool, planned: bool) -> None:
    async def work(world: World, old: SimulatedCluster, new: SimulatedCluster) -> None:
        async with contextlib.AsyncExitStack() as stack:
            opened = stack.enter_async_context
            admin = await opened(LinkAdmin(new.bootstrap, **new.seams(None)))
            source_admin = await opened(LinkAdmin(old.bootstrap, **old.seams(None)))
            source = stack.enter_context(contextlib.closing(CommittedMeanwhile(old.kafka_bootstrap)))
            async with old.producer() as producer:
                for _ in range(5):
                    await producer.send_and_wait("t", b"x")

            async def commit() -> None:
                for group, offset in COMMITTED.items():
                    await source_admin.alter_consumer_group_offsets(group, {AT: offset})

            async def promoted() -> None:
                if planned:
                    await drain(admin, source_admin, "dr", (), 60.0)
                else:
                    await level_status(admin, "dr", 60.0)
                    await promote(admin, "dr")

            await create_link(admin, source, "dr", old.kafka_bootstrap, ["t"], [".*"])
            with pytest.raises(LinkError, match="1 of 1 partitions, or commits of groups there, behind, such as t-0"):
                await level_status(admin, "dr", 1.0)
            over, asked = asyncio.Event(), asyncio.Event()
            runner = LinkRunner(
                await opened(LinkAdmin(new.bootstrap, **new.seams(None))),
                source,
                await admin.definition("dr"),
                world.note,
            )
            if running:
                copying = asyncio.ensure_future(runner.run(over))
                await level_status(admin, "dr", 60.0)

                async def commit_now() -> None:
                    await commit()
                    asked.set()

                source.commit = commit_now
                await asked.wait()
                await promoted()
            else:
                await commit()
                promoting = asyncio.ensure_future(promoted())
                await asyncio.sleep(1)
                copying = asyncio.ensure_future(runner.run(over))
                await promoting
            there = await admin.list_consumer_group_offsets(dict.fromkeys(COMMITTED))
            assert {name: found.get(AT) for name, found in there.items()} == COMMITTED
            over.set()
            await copying

    on_two_clusters(work)
