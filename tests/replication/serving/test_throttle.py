"""The throttle of replication: its arithmetic, and three brokers of which one catches up under it. KIP-73."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replication.managers import Cluster, MakeCluster
from tests.virtual_time import in_virtual_time
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import NodeId
from tidelog.model.settings.config_def import LONG_MAX
from tidelog.model.settings.throttled_replicas import ThrottledReplicas
from tidelog.replication.following.throttle import CHECK_MS_MAX, Throttle

EVERY = ThrottledReplicas(every=True)


def test_without_a_rate_there_is_no_bound() -> None:
    throttle = Throttle()
    throttle.moved(1 << 40)
    assert throttle.room(0) == LONG_MAX
    assert throttle.bytes == 1 << 40


def test_what_was_moved_too_much_is_waited_for() -> None:
    throttle = Throttle()
    throttle.set_rate(1_000)
    assert throttle.room(0) == 1_000
    throttle.moved(1_100)
    assert throttle.room(0) == 0
    assert throttle.wait_ms() == 102
    assert throttle.room(50) == 0
    assert throttle.room(102) == 2
    assert throttle.room(100_000) == 1_000, "a quiet time brings one second's worth, not more"


def test_a_rate_of_nothing_lets_nothing_pass_and_is_looked_at_again() -> None:
    throttle = Throttle()
    throttle.set_rate(0)
    assert throttle.room(0) == throttle.room(10**6) == 0
    assert throttle.wait_ms() == CHECK_MS_MAX
    throttle.set_rate(LONG_MAX)
    assert throttle.room(10**6) == LONG_MAX


@given(
    rate=st.integers(1, 10**6),
    batch=st.integers(1, 10**5),
    gaps=st.lists(st.integers(0, 3_000), min_size=1, max_size=200),
)
def test_never_more_than_the_rate_allows(rate: int, batch: int, gaps: list[int]) -> None:
    """In any time: what that time brings, one second's worth saved, and one batch that did not fit."""
    throttle = Throttle()
    throttle.set_rate(rate)
    now_ms = total = 0
    for gap in gaps:
        now_ms += gap
        if throttle.room(now_ms):
            throttle.moved(batch)
            total += batch
        else:
            assert throttle.wait_ms() >= 1
    assert total <= rate * (now_ms / 1000 + 1) + batch


@pytest.mark.parametrize(
    ("text", "found", "written"),
    [
        ("", ThrottledReplicas(), ""),
        ("none", ThrottledReplicas(), ""),
        ("*", EVERY, "*"),
        ("1:2, 0:3", ThrottledReplicas(named=frozenset({(0, 3), (1, 2)})), "0:3,1:2"),
    ],
)
def test_who_is_throttled(text: str, found: ThrottledReplicas, written: str) -> None:
    assert ThrottledReplicas.parse(text) == found
    assert found.format() == written
    assert found.has(0, 3) is (text not in ("", "none"))


@pytest.mark.parametrize("text", ["1", "1:", "a:b", "*,1:2", "1:2:3", "-1:2", "٣:1"])
def test_who_cannot_be_throttled(text: str) -> None:
    with pytest.raises(ValueError, match="expected '\\*' or partition:node pairs"):
        ThrottledReplicas.parse(text)


async def follows(
    c: Cluster, *, leader_rate: int = LONG_MAX, follower_rate: int = LONG_MAX, size: int = 20_000
) -> float:
    """Node 3 begins with nothing while 1 and 2 have ``size`` bytes and go on; returns the seconds until it is in
    the ISR. What is produced meanwhile is acknowledged at once: nobody in sync is held back."""
    c[3].kill()
    c.change(isr=(1, 2))
    for _ in range(size // 1_000):
        await c[1].produce(bytes(920))
    loop = asyncio.get_running_loop()
    await c[3].start()
    c[1].manager.set_throttles(leader_rate, LONG_MAX)
    c[2].manager.set_throttles(leader_rate, follower_rate)
    c[3].manager.set_throttles(LONG_MAX, follower_rate)
    begun = loop.time()
    while NodeId(3) not in c[1].leading().isr.committed:
        asked = loop.time()
        answer = await c[1].produce(b"a")
        assert answer.error is ErrorCode.NONE
        assert loop.time() - asked < 0.05, "an in-sync follower was held back"
        await asyncio.sleep(0.3)
        assert loop.time() - begun < 600
    return loop.time() - begun


@pytest.mark.parametrize("side", ["leader", "follower"])
@in_virtual_time
async def test_who_catches_up_keeps_to_the_rate_and_holds_nobody_up(cluster: MakeCluster, side: str) -> None:
    async with cluster() as c:
        config: dict[str, Any] = {f"{side}_replication_throttled_replicas": EVERY}
        c.create(leader=1, **config)
        took = await follows(c, **{f"{side}_rate": 2_000})
        assert 8 < took < 25
        throttle = getattr(c[1 if side == "leader" else 3].manager, f"{side}_throttle")
        assert throttle.holds > 5
        assert 19_000 < throttle.bytes < 30_000
        done = throttle.bytes
        await c[1].produce(bytes(9_000))
        await asyncio.sleep(0.5)
        assert c[3].partition().log.log_end_offset == c[1].partition().log.log_end_offset
        assert throttle.bytes == done, "in sync, it is not throttled any more"


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"leader_replication_throttled_replicas": ThrottledReplicas.parse("0:2,1:1")},
        {"follower_replication_throttled_replicas": ThrottledReplicas.parse("0:1,0:2,1:3")},
    ],
)
@in_virtual_time
async def test_a_rate_counts_for_replicas_that_are_named_only(cluster: MakeCluster, config: dict[str, Any]) -> None:
    async with cluster() as c:
        c.create(leader=1, **config)
        assert await follows(c, leader_rate=100, follower_rate=100) < 2


@in_virtual_time
async def test_a_throttle_that_is_lifted_is_felt_at_once(cluster: MakeCluster) -> None:
    async with cluster() as c:
        c.create(leader=1, leader_replication_throttled_replicas=EVERY)
        catching_up = asyncio.ensure_future(follows(c, leader_rate=0))
        await asyncio.sleep(60)
        assert not catching_up.done()
        assert c[3].partition().log.log_end_offset == 0
        c[1].manager.set_throttles(LONG_MAX, LONG_MAX)
        assert await catching_up < 62


@in_virtual_time
async def test_a_throttled_partition_does_not_keep_another_one(cluster: MakeCluster) -> None:
    """Both come on one stream; the other one's records pass what is held back."""
    async with cluster() as c:
        c.create(leader=1, partitions=2, leader_replication_throttled_replicas=ThrottledReplicas.parse("0:1"))
        c[1].manager.set_throttles(1, LONG_MAX)
        c.change(0, isr=(1, 2))
        c[3].kill()
        for partition in (0, 0, 0, 1):
            c[1].begin(bytes(5_000), partition=partition)
        c.change(1, isr=(1, 2))
        await asyncio.sleep(0.1)
        await c[3].start()
        await asyncio.sleep(5)
        assert [c[3].partition(number).log.log_end_offset for number in (0, 1)] == [1, 1]
        for _ in range(5):
            answer = await c[1].produce(b"b", partition=1)
            assert answer.error is ErrorCode.NONE
        assert NodeId(3) in c[1].leading(1).isr.committed


@in_virtual_time
async def test_a_replica_that_goes_and_comes_back_is_not_taken_for_what_it_was(cluster: MakeCluster) -> None:
    """Node 3 is taken away and given back before its leader hears of either: its log is gone, and the leader must
    not count on what it once fetched. That is why the controller raises the leader epoch when a replica goes."""
    async with cluster() as c:
        c.create(leader=1)
        await c[1].produce(b"a")
        await asyncio.sleep(1)
        c.deaf.add(NodeId(1))
        replicas = c.states[next(iter(c.states))].replicas
        c.change(isr=(1, 2), leader=NodeId(1), replicas=replicas[:2])
        c[3].manager.remove(tuple(c.states), delete=True)
        c.deaf.clear()
        c.deaf.add(NodeId(3))
        c.change(isr=(1, 2), replicas=replicas, adding=replicas[2:])
        assert NodeId(3) not in c[1].leading().isr.maximal
        await asyncio.sleep(1)
        assert NodeId(3) not in c[1].leading().isr.maximal, "its log is empty"
        assert c[1].leading().followers[NodeId(3)].log_end_offset < 0
        c.deaf.clear()
        c.tell(*c.states.values())
        await asyncio.sleep(2)
        assert NodeId(3) in c[1].leading().isr.committed
        assert c[3].values() == [b"a"]
