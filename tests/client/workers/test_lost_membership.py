"""A member that is put out of its group in the middle of a transaction of dead letters, in virtual time."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from tests.client.producer.test_transactions import committed, requests, virtually
from tests.client.scripted_broker import ScriptedCluster, fill
from tests.virtual_time import LoopClock
from tidelog.aio import ConsumerRecord, Producer, Workers
from tidelog.proto.calls.transaction_api import TxnOffsetCommitRequest


class SlowWorkers(Workers):
    """Its first dead letter takes ten seconds, in which the group forgets the member."""

    def __init__(self, cluster: ScriptedCluster, **settings: Any) -> None:
        self._cluster: ScriptedCluster | None = cluster
        super().__init__(_refuse, cluster.bootstrap, topics="one", group_id="g", dead_letters="t", **settings)

    def _new_producer(self) -> Producer:
        made = super()._new_producer()
        send = made.send

        async def slowly(**letter: Any) -> Any:
            cluster, self._cluster = self._cluster, None
            if cluster is not None and self._consumer is not None:
                cluster.groups.remove("g", self._consumer.group_metadata().member_id)
                await asyncio.sleep(10)
            return await send(**letter)

        made.send = slowly  # type: ignore[assignment, method-assign]
        return made


async def _refuse(record: ConsumerRecord) -> None:
    raise ValueError("not this one")


@virtually
async def test_a_member_that_is_none_any_more_commits_nothing(cluster: ScriptedCluster) -> None:
    fill(cluster, 3)
    workers = SlowWorkers(cluster, _network=cluster.network("w"), _clock=LoopClock(), _rng=random.Random(1))
    running = asyncio.create_task(workers.run())
    async with asyncio.timeout(60):
        while workers.counts.dead < 3:
            await asyncio.sleep(0.1)
        workers.stop()
        await running
    asked = requests(cluster, TxnOffsetCommitRequest)
    assert all(request.generation_id > 0 and request.member_id for request in asked), asked
    assert len(asked) >= 2, "the first one was refused"
    assert committed(cluster) == [0, 1, 2]
