"""Groups through random joins, leaves, deaths, stalls and errors, seeded and in virtual time.

Whatever happens: a member that reads a partition under a generation is the only one; what listeners are told
adds up to the assignment; a committed offset does not fall; afterwards the group is stable and every record
was handed out.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.client.group_members import ALL, Heard, member, virtually
from tests.client.scripted_broker import ScriptedCluster, fill
from tidelog.aio import Consumer, TopicPartition
from tidelog.client.errors import TidelogError
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.group_api import (
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)

TROUBLE = {
    JoinGroupRequest: (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR),
    SyncGroupRequest: (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.ILLEGAL_GENERATION),
    HeartbeatRequest: (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION),
    OffsetCommitRequest: (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR),
    OffsetFetchRequest: (ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.NOT_COORDINATOR),
}


class Owned(Heard):
    """A member's partitions, by the calls to its listener."""

    def __init__(self) -> None:
        super().__init__()
        self.owned: set[int] = set()

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        super().on_partitions_assigned(partitions)
        new = {p.partition for p in partitions}
        assert not self.owned & new, "assigned twice"
        self.owned |= new

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        super().on_partitions_revoked(partitions)
        gone = {p.partition for p in partitions}
        assert gone <= self.owned, "revoked without having been assigned"
        self.owned -= gone

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        super().on_partitions_lost(partitions)
        self.owned -= {p.partition for p in partitions}


class Life:
    """One member and the task that polls it."""

    def __init__(self, cluster: ScriptedCluster, rng: random.Random, strategy: str, seen: set[tuple[int, int]]) -> None:
        self.listener = Owned()
        self.stall_s = 0.0
        self._seen = seen
        self._rng = rng
        self.consumer: Consumer = member(
            cluster,
            partition_assignment_strategy=strategy,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=rng.choice((500, 1_000, 2_000)),
            max_poll_interval_ms=15_000,
            auto_commit_interval_ms=rng.choice((100, 1_000)),
            max_poll_records=rng.choice((1, 3, 500)),
        )
        self.task = asyncio.create_task(self._live())

    async def _live(self) -> None:
        await self.consumer.start()
        self.consumer.subscribe(["t"], listener=self.listener)
        while True:
            stall, self.stall_s = self.stall_s, 0.0
            await asyncio.sleep(stall)
            if self._rng.random() < 0.1:
                try:
                    await self.consumer.commit(timeout=5)
                except TidelogError as error:
                    assert not isinstance(error, AssertionError)
            for record in await self.consumer.poll(self._rng.choice((0.0, 0.05, 2.0))):
                assert record.partition in self.listener.owned, "handed out, but not owned"
                self._seen.add((record.partition, record.offset))

    async def end(self, *, politely: bool) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        if not self.task.cancelled():
            error = self.task.exception()
            assert error is not None
            raise error
        if politely:
            await self.consumer.close()
        else:
            await self.consumer._core.close()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("seed", range(12))
def test_a_group_lives_through_anything(seed: int, strategy: str) -> None:
    @virtually
    async def run(cluster: ScriptedCluster) -> None:
        rng = random.Random(seed)
        seen: set[tuple[int, int]] = set()
        lives = [Life(cluster, rng, strategy, seen)]
        trouble = 0.0
        highest: dict[tuple[str, int], int] = {}
        written = 0

        def judge(request: object) -> ErrorCode | None:
            codes = TROUBLE.get(type(request))
            return rng.choice(codes) if codes and rng.random() < trouble else None

        cluster.groups.judge = judge
        for _ in range(60):
            trouble = rng.choice((0.0, 0.0, 0.1, 0.4))
            act = rng.random()
            if act < 0.25 and len(lives) < 5:
                lives.append(Life(cluster, rng, strategy, seen))
            elif act < 0.4 and len(lives) > 1:
                await lives.pop(rng.randrange(len(lives))).end(politely=rng.random() < 0.5)
            elif act < 0.5:
                rng.choice(lives).stall_s = rng.choice((3.0, 20.0))
            elif act < 0.6:
                group = cluster.groups.group("g")
                if group.members:
                    cluster.groups.remove("g", rng.choice(list(group.members)))
            elif act < 0.65:
                rng.choice(lives).consumer.enforce_rebalance()
            elif act < 0.7:
                cluster.groups.node = 3 - cluster.groups.node
            if rng.random() < 0.5:
                fill(cluster, rng.randrange(1, 8), topic="t", partition=rng.randrange(4))
            await asyncio.sleep(rng.choice((0.01, 0.3, 2.0, 8.0)))
            for at, offset in cluster.groups.committed("g").items():
                assert offset >= highest.get(at, 0), f"{at} fell"
                highest[at] = offset
        trouble = 0.0
        for p in range(4):
            fill(cluster, 3, topic="t", partition=p)
            written += cluster.partitions["t", p].next_offset

        def quiet() -> bool:
            owned = sorted(p for life in lives for p in life.listener.owned)
            return (
                len(seen) == written
                and owned == [0, 1, 2, 3]
                and cluster.groups.group("g").state == "Stable"
                and len(cluster.groups.group("g").members) == len(lives)
            )

        async with asyncio.timeout(120):
            while not quiet():
                for life in lives:
                    if life.task.done():
                        life.task.result()
                await asyncio.sleep(0.1)
        for life in lives:
            assert {p.partition for p in life.consumer.assignment()} == life.listener.owned
        for life in lives:
            await life.end(politely=True)
        ends = {("t", p.partition): cluster.partitions["t", p.partition].next_offset for p in ALL}
        assert cluster.groups.committed("g") == ends

    run()
