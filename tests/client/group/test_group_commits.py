"""Commits of consumers in a group; against a scripted coordinator, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from tests.client.group_members import ALL, half_each, member, parts, polling, until, until_assigned, virtually
from tests.client.scripted_broker import ScriptedCluster, fill
from tidelog.aio import Consumer, ConsumerInterceptor, ConsumerRebalanceListener, OffsetAndMetadata, TopicPartition
from tidelog.client.errors import (
    ClientClosedError,
    CommitFailedError,
    RequestTimedOutError,
    RetriableCommitFailedError,
    exception_for,
)
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.group_api import OffsetCommitRequest, OffsetFetchRequest

MANUAL = {"enable_auto_commit": False}


async def reading(cluster: ScriptedCluster, c: Consumer, count: int = 10) -> None:
    """Have ``c`` read ``count`` records of partition 0, in one poll."""
    fill(cluster, count, topic="t", partition=0)
    c.subscribe(["t"])
    while not (found := await c.poll(1)):
        pass
    assert len(found) == count


# --- by hand ----------------------------------------------------------------------------------------


@virtually
async def test_commit_covers_what_was_handed_out(cluster: ScriptedCluster) -> None:
    async with member(cluster, max_poll_records=4, **MANUAL) as c:
        fill(cluster, 10, topic="t", partition=0)
        c.subscribe(["t"])
        found: list[Any] = []
        while not found:
            found = await c.poll(1)
        assert len(found) == 4
        await c.commit()
        assert cluster.groups.group("g").offsets["t", 0] == (4, 0, "")
        await c.commit({ALL[0]: 3, ALL[1]: OffsetAndMetadata(7, 2, "why")})
        assert cluster.groups.group("g").offsets["t", 0] == (3, -1, "")
        assert await c.committed([ALL[1]]) == {ALL[1]: OffsetAndMetadata(7, 2, "why")}
        bad: Any
        for bad in (-1, True, "x"):
            with pytest.raises(ValueError, match="expected an offset of 0 or more"):
                await c.commit({ALL[0]: bad})
        with pytest.raises(type(exception_for(ErrorCode.OFFSET_METADATA_TOO_LARGE))):
            await c.commit({ALL[0]: OffsetAndMetadata(1, metadata="x" * 5_000)})
    assert cluster.groups.committed("g")["t", 0] == 3, "close commits nothing by itself"


@virtually
async def test_commit_tries_again_until_it_is_done(cluster: ScriptedCluster) -> None:
    async with member(cluster, **MANUAL) as c:
        await reading(cluster, c)
        left = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE]
        cluster.groups.judge = lambda r: left.pop() if isinstance(r, OffsetCommitRequest) and left else None
        await c.commit()
        assert cluster.groups.committed("g")["t", 0] == 10
        cluster.groups.judge = lambda r: (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if isinstance(r, OffsetCommitRequest) else None
        )
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(RequestTimedOutError, match="COORDINATOR_LOAD_IN_PROGRESS"):
            await c.commit(timeout=7)
        assert 6 <= loop.time() - started <= 7.1


@virtually
async def test_async_commits_keep_their_order(cluster: ScriptedCluster) -> None:
    told: list[tuple[int, BaseException | None]] = []
    async with member(cluster, **MANUAL) as c:
        await reading(cluster, c)
        cluster.groups.hold = asyncio.Event()
        for offset in range(1, 9):
            c.commit_async({ALL[0]: offset}, lambda o, e: told.append((o[ALL[0]].offset, e)))
        await asyncio.sleep(1)
        assert [r.partitions[0].offset for r in cluster.groups.requests(OffsetCommitRequest)] == [1]
        cluster.groups.hold.set()
        await asyncio.sleep(1)
        assert told == [], "callbacks run within poll, commit and close"
        await c.commit({ALL[0]: 9})
        assert told == [(offset, None) for offset in range(1, 9)]
        assert [r.partitions[0].offset for r in cluster.groups.requests(OffsetCommitRequest)] == list(range(1, 10))


@virtually
async def test_an_async_commit_is_not_tried_again(cluster: ScriptedCluster) -> None:
    told: list[object] = []
    async with member(cluster, **MANUAL) as c:
        await reading(cluster, c)
        left = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
        cluster.groups.judge = lambda r: left.pop() if isinstance(r, OffsetCommitRequest) and left else None
        c.commit_async(callback=lambda o, e: told.append(e))
        await c.poll(1)
        assert isinstance(told[0], RetriableCommitFailedError)
        assert told[0].retriable
        assert cluster.groups.committed("g") == {}


@virtually
async def test_a_callback_that_raises_reaches_the_caller_and_loses_no_other(cluster: ScriptedCluster) -> None:
    told: list[int] = []

    async def raises(offsets: object, error: object) -> None:
        raise ZeroDivisionError("mine")

    async with member(cluster, **MANUAL) as c:
        await reading(cluster, c)
        c.commit_async({ALL[0]: 1}, raises)
        c.commit_async({ALL[0]: 2}, lambda o, e: told.append(2))
        await asyncio.sleep(1)
        with pytest.raises(ZeroDivisionError, match="mine"):
            await c.poll()
        assert told == []
        await c.poll()
        assert told == [2]


@virtually
async def test_commits_that_nobody_polls_for_are_bounded(cluster: ScriptedCluster) -> None:
    async with member(cluster, **MANUAL) as c:
        await reading(cluster, c)
        for _ in range(1_000):
            c.commit_async({ALL[0]: 1})
        with pytest.raises(RetriableCommitFailedError, match=r"poll\(\) calls them"):
            c.commit_async({ALL[0]: 1})
        async with polling(c):
            await until(lambda: len(cluster.groups.requests(OffsetCommitRequest)) == 1_000)
            await asyncio.sleep(1)
        c.commit_async({ALL[0]: 2})


@virtually
async def test_close_waits_for_async_commits_and_tells(cluster: ScriptedCluster) -> None:
    told: list[object] = []
    async with member(cluster, **MANUAL) as c:
        await reading(cluster, c)
        c.commit_async(callback=lambda o, e: told.append(e))
    assert told == [None]
    assert cluster.groups.committed("g")["t", 0] == 10
    c = member(cluster, **MANUAL)
    async with c:
        c.subscribe(["t"])
        await until_assigned(c, {0, 1, 2, 3})
        cluster.groups.hold = asyncio.Event()
        c.commit_async({ALL[0]: 11}, callback=lambda o, e: told.append(e))
        waits = asyncio.create_task(c.commit({ALL[0]: 12}))
        await asyncio.sleep(0)
        await c.close(timeout=2)
        with pytest.raises(ClientClosedError):
            await waits
    assert cluster.groups.committed("g")["t", 0] == 10


@virtually
async def test_a_commit_in_the_middle_of_a_rebalance_is_refused(cluster: ScriptedCluster) -> None:
    rebalancing = type(exception_for(ErrorCode.REBALANCE_IN_PROGRESS))
    async with member(cluster, **MANUAL) as one, member(cluster, **MANUAL) as two:
        await reading(cluster, one)
        two.subscribe(["t"])
        await two.poll(5)  # its join waits for the other member, which knows of it by now
        with pytest.raises(rebalancing, match="rebalancing"):
            await two.commit({ALL[0]: 1})
        await one.commit()
        assert cluster.groups.committed("g")["t", 0] == 10, "until it has joined again, the old generation may commit"
        await one.poll(0.5)
        async with polling(one, two):
            await until(lambda: len(parts(one)) == 2 and len(parts(two)) == 2)
        await one.commit({ALL[0]: 4})
        assert cluster.groups.committed("g")["t", 0] == 4


@virtually
async def test_a_commit_that_waits_while_its_generation_ends_is_refused(cluster: ScriptedCluster) -> None:
    told: list[object] = []
    async with member(cluster, **MANUAL) as c:
        await reading(cluster, c)
        cluster.groups.hold = asyncio.Event()
        c.commit_async({ALL[0]: 1})
        c.commit_async({ALL[0]: 2}, lambda o, e: told.append(e))
        c.enforce_rebalance()
        async with polling(c):
            await until(lambda: cluster.groups.group("g").generation == 2)
            await asyncio.sleep(1)
            cluster.groups.hold.set()
            await until(lambda: bool(told))
        assert isinstance(told[0], CommitFailedError)
        assert "the generation in which commit() was called is over" in str(told[0]), "it was sent all the same"
        assert ("t", 0) not in cluster.groups.committed("g"), "the first was of the old generation, too"


@virtually
async def test_without_a_subscription_commits_are_nobodys(cluster: ScriptedCluster) -> None:
    fill(cluster, 10, topic="t", partition=1)
    async with member(cluster, **MANUAL) as c:
        c.assign([ALL[1]])
        while not await c.poll(1):
            pass
        await c.commit()
        (request,) = cluster.groups.requests(OffsetCommitRequest)
        assert (request.generation_id, request.member_id, request.group_instance_id) == (-1, "", None)
    fill(cluster, 2, topic="t", partition=1)
    async with member(cluster, **MANUAL) as c:
        c.assign([ALL[1]])
        assert [r.offset for r in await c.poll(10)] == [10, 11], "positions start where the group committed"
        async with member(cluster, **MANUAL) as other:
            other.subscribe(["t"])
            await until_assigned(other, {0, 1, 2, 3})
            with pytest.raises(CommitFailedError, match="group_id of its own"):
                await c.commit()


class Noting(ConsumerInterceptor):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def configure(self, settings: Mapping[str, Any]) -> None:
        self.told.append(settings["group_id"])

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.told.append({at.partition: offset.offset for at, offset in offsets.items()})
        raise ValueError("ignored")

    def close(self) -> None:
        self.told.append("closed")


@virtually
async def test_an_interceptor_learns_of_commits_that_took_effect(cluster: ScriptedCluster) -> None:
    noting = Noting()
    async with member(cluster, interceptor_classes=[noting], **MANUAL) as c:
        await reading(cluster, c)
        await c.commit()
        c.commit_async({ALL[1]: 3})
        c.commit_async({ALL[0]: OffsetAndMetadata(1, metadata="x" * 5_000)}, lambda *_: None)
        c.commit_async({ALL[2]: 5})
        await c.close()
    assert noting.told[0] == "g"
    assert noting.told[1] == {0: 10, 1: 0, 2: 0, 3: 0}
    assert noting.told[2:] == [{1: 3}, {2: 5}, "closed"], "not of the one that was refused"


@virtually
async def test_an_interceptor_learns_of_automatic_commits(cluster: ScriptedCluster) -> None:
    noting = Noting()
    async with member(cluster, interceptor_classes=[noting], auto_commit_interval_ms=1_000) as c:
        await reading(cluster, c)
        await asyncio.sleep(2)
        await c.poll()
        await until(lambda: cluster.groups.committed("g").get(("t", 0)) == 10)
        await c.poll()
        assert noting.told[-1][0] == 10
        fill(cluster, 5, topic="t", partition=0)
        while not await c.poll(1):
            pass
    assert noting.told[-2][0] == 15, "the commit of close()"
    assert noting.told[-1] == "closed"


# --- automatically ----------------------------------------------------------------------------------


@virtually
async def test_automatic_commits_cover_earlier_polls_only(cluster: ScriptedCluster) -> None:
    async with member(cluster, max_poll_records=4) as c:
        fill(cluster, 10, topic="t", partition=0)
        c.subscribe(["t"])
        found: list[Any] = []
        while not found:
            found = await c.poll(1)
        await asyncio.sleep(6)
        assert cluster.groups.committed("g") == {}, "only poll commits"
        assert [r.offset for r in await c.poll(1)] == [4, 5, 6, 7]
        await asyncio.sleep(1)
        assert cluster.groups.committed("g")["t", 0] == 4, "not what this poll has returned"
        await c.poll(1)
        assert cluster.groups.committed("g")["t", 0] == 4, "not before the interval is over"
        assert await c.poll(20) == []
        assert cluster.groups.committed("g")["t", 0] == 10, "a poll that waits commits, too"


@virtually
async def test_close_commits_what_was_handed_out(cluster: ScriptedCluster) -> None:
    async with member(cluster, max_poll_records=4) as c:
        fill(cluster, 10, topic="t", partition=0)
        c.subscribe(["t"])
        while not await c.poll(1):
            pass
    assert cluster.groups.committed("g")["t", 0] == 4


@virtually
async def test_a_block_left_by_an_error_does_not_commit_its_last_poll(cluster: ScriptedCluster) -> None:
    fill(cluster, 10, topic="t", partition=0)

    async def fails() -> None:
        async with member(cluster, max_poll_records=4) as c:
            c.subscribe(["t"])
            polls = 0
            while polls < 2:
                polls += bool(await c.poll(1))
            raise ZeroDivisionError("while the second poll's records were processed")

    with pytest.raises(ZeroDivisionError):
        await fails()
    assert cluster.groups.committed("g")["t", 0] == 4


@virtually
async def test_a_record_of_an_iteration_counts_when_the_next_is_asked_for(cluster: ScriptedCluster) -> None:
    fill(cluster, 10, topic="t", partition=0)
    async with member(cluster) as c:
        c.subscribe(["t"])
        async for record in c:
            if record.offset == 3:
                assert await c.position(ALL[0]) == 4
                break
    assert cluster.groups.committed("g")["t", 0] == 3, "nobody asked for the next"
    async with member(cluster) as c:
        c.subscribe(["t"])
        async for record in c:
            if record.offset == 5:
                await c.commit()
                assert cluster.groups.committed("g")["t", 0] == 6, "who commits says that it is done"
                break
        assert [r.offset for r in await c.poll(1)] == [6, 7, 8, 9], "a poll goes on behind the iteration"
        c.seek(ALL[0], 0)
        seen = []
        async for record in c:
            seen.append(record.offset)
            if record.offset == 2:
                c.seek(ALL[0], 8)
                seen += [r.offset for r in await c.poll(5)]
                fill(cluster, 1, topic="t", partition=0)
            if record.offset == 10:
                break
        assert seen == [0, 1, 2, 8, 9, 10]


@virtually
async def test_before_partitions_go_what_was_handed_out_is_committed(cluster: ScriptedCluster) -> None:
    for strategy in ("range", "cooperative-sticky"):
        settings = {"partition_assignment_strategy": strategy, "group_id": strategy, "auto_commit_interval_ms": 10**9}
        at_revoke: list[dict[tuple[str, int], int]] = []

        class Looks(ConsumerRebalanceListener):
            def on_partitions_revoked(
                self, partitions: list[TopicPartition], looks: Any = at_revoke, group: str = strategy
            ) -> None:
                looks.append(cluster.groups.committed(group))

        for p in range(4):
            fill(cluster, 10, topic="t", partition=p)
        async with member(cluster, **settings) as one, member(cluster, **settings) as two:
            one.subscribe(["t"], listener=Looks())
            count = 0
            while count < cluster.partitions["t", 0].next_offset * 4:
                count += len(await one.poll(1))
            two.subscribe(["t"])
            async with polling(one, two) as found:
                await until(partial(half_each, one, two))
                await asyncio.sleep(1)
            end = cluster.partitions["t", 0].next_offset
            assert {at_revoke[0]["t", p] for p in parts(two)} == {end}
            assert found[two] == [], "nothing is handed out twice"


@virtually
async def test_an_automatic_commit_that_fails_is_tried_again_soon(cluster: ScriptedCluster) -> None:
    async with member(cluster) as c:
        await reading(cluster, c)
        left = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2
        cluster.groups.judge = lambda r: left.pop() if isinstance(r, OffsetCommitRequest) and left else None
        assert await c.poll(6) == []
        assert cluster.groups.committed("g")["t", 0] == 10
        assert c.metrics()["commit-total"] == 3


@virtually
async def test_automatic_commits_without_a_subscription(cluster: ScriptedCluster) -> None:
    fill(cluster, 10, topic="t", partition=0)
    async with member(cluster) as c:
        c.assign([ALL[0]])
        while not await c.poll(1):
            pass
        await asyncio.sleep(6)
        await c.poll(1)
        assert cluster.groups.committed("g") == {("t", 0): 10}
        fill(cluster, 5, topic="t", partition=0)
        assert len(await c.poll(1)) == 5
        c.assign([ALL[1]])
        await asyncio.sleep(1)
        assert cluster.groups.committed("g")["t", 0] == 15
    assert cluster.groups.committed("g") == {("t", 0): 15, ("t", 1): 0}


# --- where positions begin ----------------------------------------------------------------------------


@virtually
async def test_unstable_offsets_are_waited_for(cluster: ScriptedCluster) -> None:
    left = [ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    cluster.groups.judge = lambda r: left.pop() if isinstance(r, OffsetFetchRequest) and left else None
    cluster.groups.group("g").offsets["t", 0] = (7, 0, "")
    fill(cluster, 10, topic="t", partition=0)
    async with member(cluster) as c:
        c.subscribe(["t"])
        found: list[Any] = []
        while not found:
            found = await c.poll(1)
        assert found[0].offset == 7
        assert cluster.groups.requests(OffsetFetchRequest)[0].require_stable


@virtually
async def test_a_committed_offset_with_its_epoch_notices_a_truncated_log(cluster: ScriptedCluster) -> None:
    cluster.partitions["t", 0].leader_epoch = 3
    fill(cluster, 10, topic="t", partition=0)
    cluster.groups.group("g").offsets["t", 0] = (8, 3, "")
    asked = []

    def judge(node: int, topic: str, item: Any) -> None:
        if item.partition == 0:
            asked.append((item.fetch_offset, item.last_fetched_epoch))

    cluster.fetch_judge = judge
    async with member(cluster) as c:
        c.subscribe(["t"])
        while not await c.poll(1):
            pass
    assert asked[0] == (8, 3), "the leader compares the epoch with its own"
