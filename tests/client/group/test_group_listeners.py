"""Rebalance listeners of a group's members, against a scripted coordinator, in virtual time."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from tests.client.group_members import ALL, Heard, half_each, member, parts, polling, until, until_assigned, virtually
from tests.client.scripted_broker import ScriptedCluster, fill
from tidelog.aio import ConsumerRebalanceListener, TopicPartition
from tidelog.client.errors import (
    IllegalStateError,
    RebalanceCallbackError,
)
from tidelog.client.group.coordinator import GroupCoordinator
from tidelog.client.record import ConsumerRecord
from tidelog.model.errors import ErrorCode


@virtually
async def test_seek_and_pause_within_the_listener(cluster: ScriptedCluster) -> None:
    for p in range(4):
        fill(cluster, 30, topic="t", partition=p)

    class Seeks(ConsumerRebalanceListener):
        async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            for p in partitions:
                assert await c.position(p) == 0
                c.seek(p, 25)
            c.pause(ALL[3])

    async with member(cluster) as c:
        c.subscribe(["t"], listener=Seeks())
        found: list[ConsumerRecord] = []
        while len(found) < 15:
            found += await c.poll(1)
        assert {(r.partition, r.offset) for r in found} == {(p, o) for p in range(3) for o in range(25, 30)}
        assert c.paused() == {ALL[3]}
        c.resume(ALL[3])
        assert [r.offset for r in await c.poll(1)] == list(range(25, 30))


@virtually
async def test_pause_stays_with_what_stays(cluster: ScriptedCluster) -> None:
    for strategy, left in (("cooperative-sticky", 1), ("range", 0)):
        settings = {"partition_assignment_strategy": strategy, "group_id": strategy}
        async with member(cluster, **settings) as one, member(cluster, **settings) as two:
            one.subscribe(["t"])
            await until_assigned(one, {0, 1, 2, 3})
            one.pause(ALL[0])
            two.subscribe(["t"])
            async with polling(one, two):
                await until(partial(half_each, one, two))
            assert ALL[0] in one.assignment()
            assert len(one.paused()) == left, "an eager rebalance forgets, as in Kafka"


@pytest.mark.parametrize("when", ["assigned", "revoked", "lost"])
@pytest.mark.parametrize("form", ["function", "coroutine function"])
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_listener_that_raises_costs_nothing(when: str, form: str, strategy: str) -> None:
    @virtually
    async def run(cluster: ScriptedCluster) -> None:
        class Raises(Heard):
            def __getattribute__(self, name: str) -> Any:
                told = super().__getattribute__(name)
                if name != f"on_partitions_{when}" or sum(w == when for w, _ in self.told):
                    return told

                def raises(partitions: list[TopicPartition]) -> None:
                    told(partitions)
                    raise ZeroDivisionError("mine")

                async def raises_later(partitions: list[TopicPartition]) -> None:
                    await asyncio.sleep(1)
                    raises(partitions)

                return raises if form == "function" else raises_later

        heard = Raises()
        for p in range(4):
            fill(cluster, 5, topic="t", partition=p)
        errors: list[RebalanceCallbackError] = []
        async with member(cluster, partition_assignment_strategy=strategy) as one:
            one.subscribe(["t"], listener=heard)

            async def drain(count: int) -> list[ConsumerRecord]:
                found: list[ConsumerRecord] = []
                while len(found) < count:
                    try:
                        found += await one.poll(1)
                    except RebalanceCallbackError as error:
                        errors.append(error)
                return found

            assert len(await drain(20)) == 20
            await one.commit()
            if when == "lost":
                cluster.groups.remove("g", one.group_metadata().member_id)
                await asyncio.sleep(5)
            elif when == "revoked":
                async with member(cluster, partition_assignment_strategy=strategy) as two:
                    two.subscribe(["t"])
                    async with polling(two):
                        while not (len(parts(one)) == 2 and len(parts(two)) == 2):
                            try:
                                await one.poll(0.1)
                            except RebalanceCallbackError as error:
                                errors.append(error)
            for p in range(4):
                fill(cluster, 5, topic="t", partition=p)
            await drain(20)
            assert one.assignment() == set(ALL)
        (caught,) = errors
        assert isinstance(caught.__cause__, ZeroDivisionError)
        assert when in str(caught)

    run()


@virtually
async def test_one_that_is_cancelled_in_a_listener_has_its_assignment_all_the_same(cluster: ScriptedCluster) -> None:
    class Hangs(Heard):
        async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:  # type: ignore[override]
            super().on_partitions_assigned(partitions)
            await asyncio.sleep(1_000)

        async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:  # type: ignore[override]
            super().on_partitions_revoked(partitions)
            await asyncio.sleep(1_000)

    heard = Hangs()
    async with member(cluster) as c:
        c.subscribe(["t"], listener=heard)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await c.poll(100)
        assert c.assignment() == set(ALL)
        c.enforce_rebalance()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await c.poll(100)
        assert c.assignment() == set()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await c.poll(100)
        assert c.assignment() == set(ALL)
        assert [w for w, _ in heard.told] == ["assigned", "revoked", "assigned"]
        c.subscribe(["t"])


@virtually
async def test_poll_and_close_within_a_listener_are_refused(cluster: ScriptedCluster) -> None:
    refused: list[str] = []

    class Calls(ConsumerRebalanceListener):
        async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            for call in (c.poll, c.unsubscribe):
                try:
                    await call()
                except IllegalStateError as error:
                    refused.append(str(error))

    async with member(cluster) as c:
        c.subscribe(["t"], listener=Calls())
        await until_assigned(c, {0, 1, 2, 3})
        assert len(refused) == 2
        assert "within a rebalance listener" in refused[0]


@virtually
async def test_who_is_forgotten_right_before_its_join_tells_first_what_is_lost(
    cluster: ScriptedCluster,
) -> None:
    heard, find, forgotten = Heard(), GroupCoordinator.find, list[str]()

    async def forgetting(self: GroupCoordinator) -> int:
        node = await find(self)
        if self.joining and not forgotten:
            forgotten.append(self._membership.generation.member_id)
            self._membership.on_commit_error(self._membership.generation, ErrorCode.UNKNOWN_MEMBER_ID, "")
        return node

    async with member(cluster, partition_assignment_strategy="cooperative-sticky") as c:
        c.subscribe(["t"], listener=heard)
        await until_assigned(c, {0, 1, 2, 3})
        heard.told.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GroupCoordinator, "find", forgetting)
            c.enforce_rebalance()
            async with asyncio.timeout(60):
                while ("assigned", [0, 1, 2, 3]) not in heard.told:
                    await c.poll(0.05)
        assert forgotten
        assert heard.told == [("lost", [0, 1, 2, 3]), ("assigned", [0, 1, 2, 3])]
