"""A drain of a link whose promotion has begun already. Two clusters in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from tidelog.chaos.simulated.world.cluster import SimulatedCluster
from tidelog.chaos.simulated.world.world import World
from tidelog.client.admin.transaction_types import AbortTransactionSpec
from tidelog.client.admin.types import OffsetSpec
from tidelog.client.config.security import ClientSecurity
from tidelog.client.config.settings import parse_bootstrap
from tidelog.client.errors import InvalidRequestError
from tidelog.client.links.definition import LinkError
from tidelog.client.links.linked import LINK_STATE, LinkAdmin
from tidelog.client.links.linking import LinkRunner
from tidelog.client.links.managing import create_link, promote
from tidelog.client.links.reversing import drain
from tidelog.client.links.source import Source
from tidelog.model.settings.topic_config import LINK_STOPPED

from .virtual_pair import AT, on_two_clusters


class Interrupted(Exception):
    """What ends a :class:`KilledAdmin`."""


class KilledAdmin(LinkAdmin):
    """Of an operator that is killed right after a transaction was aborted at the target."""

    async def abort_transaction(self, spec: AbortTransactionSpec, **more: Any) -> None:
        await super().abort_transaction(spec, **more)
        raise Interrupted


async def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("when", ["before the drain", "while the drain waits"])
def test_a_drain_does_not_take_an_interrupted_promotions_markers_for_the_sources(when: str) -> None:
    """The promotion aborts at the target what commits at the source then: both logs end at the same offset."""

    async def work(world: World, old: SimulatedCluster, new: SimulatedCluster) -> None:
        async with contextlib.AsyncExitStack() as stack:

            async def opened(client: Any) -> Any:
                return await stack.enter_async_context(client)

            admin = await opened(LinkAdmin(new.bootstrap, **new.seams(None)))
            killed = await opened(KilledAdmin(new.bootstrap, **new.seams(None)))
            running = await opened(LinkAdmin(new.bootstrap, **new.seams(None)))
            source_admin = await opened(LinkAdmin(old.bootstrap, **old.seams(None)))
            producer = await opened(old.producer())
            transactional = await opened(old.producer(transactional_id="x"))
            source = stack.enter_context(
                contextlib.closing(Source(parse_bootstrap(old.kafka_bootstrap), ClientSecurity(), "link"))
            )
            await create_link(admin, source, "dr", old.kafka_bootstrap, ["t"], [])
            over = asyncio.Event()
            runner = LinkRunner(running, source, await admin.definition("dr"), world.note)
            copying = asyncio.ensure_future(runner.run(over))

            async def end_of(one: LinkAdmin) -> int:
                return (await one.list_offsets({AT: OffsetSpec.latest()}))[AT].offset

            async def copied() -> bool:
                return await end_of(admin) == 1

            async def fenced() -> bool:
                (found,) = (await source_admin.target_topics(["t"], await admin.definition("dr"))).values()
                return bool(found.settings.get(LINK_STATE) == LINK_STOPPED)

            await transactional.init_transactions()
            await transactional.begin_transaction()
            await transactional.send_and_wait("t", b"committed at the source")
            await until(copied)
            draining = None
            if when == "while the drain waits":
                draining = asyncio.ensure_future(drain(admin, source_admin, "dr", (), 60.0))
                await until(fenced)
            with pytest.raises(Interrupted):
                await promote(killed, "dr")
            await transactional.commit_transaction()
            with pytest.raises(LinkError, match=r"a promotion of t has begun.*`tidelog links promote dr`"):
                await (draining or drain(admin, source_admin, "dr", (), 60.0))
            assert await end_of(admin) == await end_of(source_admin) == 2
            if draining is None:
                assert (await producer.send_and_wait("t", b"still writable")).offset == 2
            else:
                with pytest.raises(InvalidRequestError, match="no records but those of link 'dr'"):
                    await producer.send_and_wait("t", b"left behind")
            assert (await promote(admin, "dr")).ends == {AT: 2}
            over.set()
            await copying

    on_two_clusters(work)
