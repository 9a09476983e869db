"""Groups while their coordinator moves: killed, stopped, fenced, its disk gone, its ISR too small."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.broker.conftest import GroupCalls, GroupMember
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import Offset
from tidelog.model.names import GROUP_OFFSETS_TOPIC
from tidelog.proto.calls.group_api import DescribeGroupsRequest, OffsetCommitPartition, OffsetCommitRequest
from tidelog.testing.async_cluster import AsyncCluster

NONE = ErrorCode.NONE


@pytest.fixture
async def three() -> AsyncIterator[GroupCalls]:
    settings = {"min.insync.replicas": "2"}
    async with AsyncCluster(3, config=settings, log_dirs=2) as cluster, GroupCalls(cluster) as made:
        await cluster.create_topic("t", 12)
        yield made


def commit_request(group: str, offset: int) -> OffsetCommitRequest:
    return OffsetCommitRequest(group, -1, "", None, (OffsetCommitPartition("t", 0, Offset(offset)),))


async def settled(calls: GroupCalls, members: list[GroupMember], timeout_s: float = 30) -> None:
    """Wait until the members share all units in one generation, each by its own heartbeats."""
    stop = asyncio.Event()
    loops = [asyncio.ensure_future(member.keep_up(stop)) for member in members]

    def done() -> bool:
        generations = {member.generation for member in members}
        owned = sorted(unit for member in members for unit in member.owned)
        return len(generations) == 1 and owned == list(range(12))

    try:
        async with asyncio.timeout(timeout_s):
            while True:
                await asyncio.sleep(0.02)
                for loop in loops:
                    assert not loop.done(), loop.result()
                if done():
                    described = await calls.ask(members[0].group, DescribeGroupsRequest((members[0].group,)))
                    if described.groups[0].state == "Stable" and len(described.groups[0].members) == len(members):
                        return
    finally:
        stop.set()
        await asyncio.gather(*loops)


async def test_committed_offsets_and_members_outlive_a_killed_coordinator(three: GroupCalls) -> None:
    members = [three.member("g") for _ in range(3)]
    await asyncio.gather(*(member.join() for member in members))
    await settled(three, members)
    for partition in range(12):
        assert await members[0].commit(100 + partition, partition=partition) is NONE
    generation = members[0].generation
    home = await three.coordinator("g")
    await three.cluster.kill(home)
    assert await three.committed("g") == {("t", partition): 100 + partition for partition in range(12)}
    assert await three.coordinator("g") != home
    assert [await member.heartbeat() for member in members] == [NONE] * 3, "the generation goes on"
    assert {member.generation for member in members} == {generation}
    assert await members[0].commit(200) is NONE
    await three.cluster.restart(home)
    await settled(three, members)


async def test_a_kill_in_the_middle_of_a_rebalance_loses_no_committed_offset(three: GroupCalls) -> None:
    members = [three.member("g", rebalance_timeout_ms=3_000) for _ in range(3)]
    await asyncio.gather(*(member.join() for member in members))
    await settled(three, members)
    for partition in range(12):
        assert await members[0].commit(partition, partition=partition) is NONE
    home = await three.coordinator("g")
    late = three.member("g", rebalance_timeout_ms=3_000)
    joining = asyncio.ensure_future(late.join())  # the others hear of it by their heartbeats only
    async with asyncio.timeout(100):
        while await members[0].heartbeat() is not ErrorCode.REBALANCE_IN_PROGRESS:
            await asyncio.sleep(0.005)
    assert not joining.done()
    await three.cluster.kill(home)
    everyone = [*members, late]
    rejoining = [asyncio.ensure_future(member.join()) for member in members]
    await asyncio.gather(joining, *rejoining)
    await settled(three, everyone)
    assert await three.committed("g") == {("t", partition): partition for partition in range(12)}


async def test_commits_that_were_acknowledged_while_nodes_die_are_kept(three: GroupCalls) -> None:
    """Three groups commit rising offsets all the while; each coordinator dies and comes back in turn."""
    groups = ["g0", "g1", "g2"]
    for group in groups:
        await three.coordinator(group)
    acknowledged = dict.fromkeys(groups, 0)
    stop = asyncio.Event()

    async def commit_on(group: str) -> None:
        while not stop.is_set():
            wanted = acknowledged[group] + 1
            assert await three.commit(group, wanted) is NONE
            acknowledged[group] = wanted
            found = (await three.committed(group))[("t", 0)]
            assert found == wanted, f"{group}: {found} is committed, {wanted} was acknowledged"

    loops = [asyncio.ensure_future(commit_on(group)) for group in groups]
    try:
        for node in (1, 2, 3):
            before = dict(acknowledged)
            await three.cluster.kill(node)
            async with asyncio.timeout(100):
                while any(acknowledged[group] < before[group] + 3 for group in groups):
                    await asyncio.sleep(0.01)
                    assert not any(loop.done() for loop in loops)
            await three.cluster.restart(node)
            await three.cluster.wait_ready()
            for partition in range(50):
                await three.cluster.wait_for_isr(GROUP_OFFSETS_TOPIC, partition, 3)
    finally:
        stop.set()
        await asyncio.gather(*loops)
    for group in groups:
        assert await three.committed(group) == {("t", 0): acknowledged[group]}


async def test_everything_is_there_after_all_nodes_were_killed(three: GroupCalls) -> None:
    member = three.member("g", instance="static")
    await member.join()
    assert await member.commit(42) is NONE
    for node in (1, 2, 3):
        await three.cluster.kill(node)
    await three.cluster.start_many((1, 2, 3))
    assert await three.committed("g") == {("t", 0): 42}
    assert await member.heartbeat() is NONE
    described = (await three.ask("g", DescribeGroupsRequest(("g",)))).groups[0]
    assert [(found.group_instance_id, found.member_id) for found in described.members] == [("static", member.member_id)]


async def test_whoever_waits_at_a_stopping_node_is_told_to_look_elsewhere(three: GroupCalls) -> None:
    one = three.member("g", rebalance_timeout_ms=60_000, session_timeout_ms=60_000)
    await one.join()
    home = await three.coordinator("g")
    two = three.member("g")
    first = await three.ask("g", two.join_request())
    two.member_id = first.member_id
    waiting = asyncio.ensure_future(three.node(home).call(two.join_request(), timeout_s=60))
    async with asyncio.timeout(100):
        while await one.heartbeat() is not ErrorCode.REBALANCE_IN_PROGRESS:
            await asyncio.sleep(0.005)
    assert not waiting.done()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await three.cluster.stop_node(home)
    took = loop.time() - begun
    assert (await waiting).error is ErrorCode.NOT_COORDINATOR
    assert took < 10
    await asyncio.gather(one.join(), two.join())
    assert sorted(one.owned + two.owned) == list(range(12))


async def test_a_coordinator_that_is_cut_off_does_not_commit(three: GroupCalls) -> None:
    """It does not know that it was deposed: what it takes is never acknowledged, and gone when it returns."""
    cluster = three.cluster
    assert await three.commit("g", 1) is NONE
    home = await three.coordinator("g")
    partition = three.broker(home).groups.coordinator.partition_for("g")
    for other in {1, 2, 3} - {home}:
        cluster.partition(home, other)
    stale = await three.node(home).call(commit_request("g", 99), timeout_s=30)
    assert stale.results[0].error in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
    new_home = await cluster.wait_for_leader(GROUP_OFFSETS_TOPIC, partition, other_than=home)
    async with asyncio.timeout(100):
        while (await three.node(new_home).call(commit_request("g", 2), timeout_s=30)).results[0].error is not NONE:
            await asyncio.sleep(0.01)
    cluster.heal()
    await cluster.wait_for_isr(GROUP_OFFSETS_TOPIC, partition, 3)
    assert await three.committed("g") == {("t", 0): 2}


async def test_too_small_an_isr_is_no_coordinator() -> None:
    async with (
        AsyncCluster(3, controllers=1, config={"min.insync.replicas": "2"}) as cluster,
        GroupCalls(cluster) as calls,
    ):
        await cluster.create_topic("t")
        home = 0
        for n in range(200):
            group = f"g{n}"
            home = await calls.coordinator(group)
            if home == 1:
                break
        assert home == 1
        assert await calls.commit(group, 1) is NONE
        await cluster.kill(2)
        await cluster.kill(3)
        seen = set()
        for _ in range(2):
            answer = await calls.node(1).call(commit_request(group, 2), timeout_s=30)
            seen.add(answer.results[0].error)
        assert seen == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        await cluster.start_many((2, 3))
        assert await calls.commit(group, 3) is NONE
        assert await calls.committed(group) == {("t", 0): 3}


async def test_a_failed_disk_moves_the_coordinator(three: GroupCalls) -> None:
    assert await three.commit("g", 1) is NONE
    home = await three.coordinator("g")
    broker = three.broker(home)
    partition = broker.groups.coordinator.partition_for("g")
    places = [{(log.topic, log.partition) for log in each.logs} for each in broker.logs.describe()]
    (number,) = [n for n, held in enumerate(places) if (GROUP_OFFSETS_TOPIC, partition) in held]
    three.cluster.break_log_dir(home, number)
    three._found.clear()
    answer = await three.node(home).call(commit_request("g", 2), timeout_s=30)
    assert answer.results[0].error is ErrorCode.NOT_COORDINATOR
    await three.cluster.wait_for_leader(GROUP_OFFSETS_TOPIC, partition, other_than=home)
    assert await three.committed("g") == {("t", 0): 1}
    assert await three.commit("g", 3) is NONE


async def test_two_hundred_members_rebalance() -> None:
    async with AsyncCluster(3) as cluster, GroupCalls(cluster) as calls:
        await calls.coordinator("g")
        members = [
            calls.member("g", units=200, rebalance_timeout_ms=60_000, session_timeout_ms=60_000) for _ in range(200)
        ]
        loop = asyncio.get_running_loop()
        begun = loop.time()
        stop = asyncio.Event()

        async def live(member: GroupMember) -> None:
            await member.join()
            await member.keep_up(stop, pause_s=0.5)

        lives = [asyncio.ensure_future(live(member)) for member in members]

        def whole() -> bool:
            owned = sorted(unit for member in members for unit in member.owned)
            return len({member.generation for member in members}) == 1 and owned == list(range(200))

        await cluster.wait_for(whole, "200 members with a unit each", 60)
        formed = loop.time()
        members[0].generation = -1
        await members[0].leave()
        members[0].member_id, members[0].owned = "", []
        await cluster.wait_for(whole, "200 members again", 60)
        print(f"200 members: formed in {formed - begun:.2f} s, one replaced in {loop.time() - formed:.2f} s")
        stop.set()
        await asyncio.gather(*lives)
