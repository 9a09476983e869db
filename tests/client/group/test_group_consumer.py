"""Consumers in a group, against a scripted coordinator, in virtual time: joining, rebalances, assignors, leaving."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

import pytest

from tests.client.group_members import ALL, Heard, member, parts, polling, until, until_assigned, virtually
from tests.client.scripted_broker import ScriptedCluster, fill
from tidelog.aio import ConsumerRebalanceListener, OffsetAndMetadata, TopicPartition
from tidelog.client.errors import (
    ClientClosedError,
    CommitFailedError,
    IllegalStateError,
    RebalanceCallbackError,
    exception_for,
)
from tidelog.client.group.consumer_group import ConsumerGroup
from tidelog.client.record import ConsumerRecord
from tidelog.model.assignors import (
    Assignment,
    CooperativeStickyAssignor,
    RangeAssignor,
    RebalanceProtocol,
    Subscription,
)
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.group_api import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)

# --- joining and reading ----------------------------------------------------------------------------


@virtually
async def test_a_group_of_one_reads_everything_and_goes_on_where_it_committed(cluster: ScriptedCluster) -> None:
    for p in range(4):
        fill(cluster, 20, topic="t", partition=p)
    async with member(cluster) as c:
        c.subscribe(["t"])
        assert c.subscription() == {"t"}
        found: list[ConsumerRecord] = []
        while len(found) < 80:
            found += await c.poll(1)
        assert c.assignment() == set(ALL)
        metadata = c.group_metadata()
        assert (metadata.group_id, metadata.generation_id, metadata.member_id) == ("g", 1, "consumer-g-1")
        await c.commit()
        assert await c.committed(ALL) == {p: OffsetAndMetadata(20, 0) for p in ALL}
        assert await c.committed([TopicPartition("t", 9)]) == {TopicPartition("t", 9): None}
    assert cluster.groups.group("g").state == "Empty"
    assert cluster.groups.requests(LeaveGroupRequest)[0].members[0].reason == "the consumer is being closed"
    fill(cluster, 3, topic="t", partition=2)
    async with member(cluster) as c:
        c.subscribe(["t"])
        found = []
        while len(found) < 3:
            found += await c.poll(1)
        assert [(r.partition, r.offset) for r in found] == [(2, 20), (2, 21), (2, 22)]
        assert await c.position(ALL[0]) == 20


@virtually
async def test_members_share_and_take_over(cluster: ScriptedCluster) -> None:
    one, two = member(cluster), member(cluster)
    heard = Heard()
    async with one:
        one.subscribe(["t"], listener=heard)
        await until_assigned(one, {0, 1, 2, 3})
        async with two:
            two.subscribe(["t"])
            async with polling(one, two):
                await until(lambda: parts(one) == {0, 1} and parts(two) == {2, 3})
        await until_assigned(one, {0, 1, 2, 3})
    assert heard.told == [
        ("assigned", [0, 1, 2, 3]),
        ("revoked", [0, 1, 2, 3]),
        ("assigned", [0, 1]),
        ("revoked", [0, 1]),
        ("assigned", [0, 1, 2, 3]),
        ("revoked", [0, 1, 2, 3]),
    ]


@virtually
async def test_what_a_join_says(cluster: ScriptedCluster) -> None:
    async with member(cluster, client_id="me", session_timeout_ms=9_000, max_poll_interval_ms=70_000) as c:
        c.subscribe(["t"])
        await until_assigned(c, {0, 1, 2, 3})
        first, second = cluster.groups.requests(JoinGroupRequest)
        assert first.member_id == ""
        assert second.member_id == "me-1"
        assert (second.session_timeout_ms, second.rebalance_timeout_ms) == (9_000, 70_000)
        assert second.client_id == "me"
        assert [p.name for p in second.protocols] == ["range", "cooperative-sticky"]
        assert second.protocol_type == "consumer"


@virtually
async def test_heartbeats_go_on_without_poll(cluster: ScriptedCluster) -> None:
    async with member(cluster) as c:
        c.subscribe(["t"])
        await until_assigned(c, {0, 1, 2, 3})
        before = len(cluster.groups.requests(HeartbeatRequest))
        await asyncio.sleep(100)
        assert 30 <= len(cluster.groups.requests(HeartbeatRequest)) - before <= 36
        assert cluster.groups.group("g").state == "Stable"
        assert c.metrics()["heartbeat-total"] >= 30
        assert c.metrics()["assigned-partitions"] == 4
        assert c.metrics()["last-heartbeat-seconds-ago"] <= 3
        assert c.metrics()["last-poll-seconds-ago"] >= 100
        assert c.metrics()["rebalance-total"] == 1


@virtually
async def test_a_member_that_dies_is_replaced_after_its_session(cluster: ScriptedCluster) -> None:
    one, two = member(cluster, session_timeout_ms=6_000, heartbeat_interval_ms=1_000), member(cluster)
    await one.start()
    async with two:
        one.subscribe(["t"])
        two.subscribe(["t"])
        async with polling(one, two):
            await until(lambda: len(parts(one)) == 2 and len(parts(two)) == 2)
        await one._core.close()  # as kill -9: no word to anybody
        started = asyncio.get_running_loop().time()
        await until_assigned(two, {0, 1, 2, 3})
        assert 4 <= asyncio.get_running_loop().time() - started <= 11


# --- cooperative rebalances -------------------------------------------------------------------------

COOPERATIVE = {"partition_assignment_strategy": "cooperative-sticky"}


@virtually
async def test_cooperative_members_give_up_only_what_moves(cluster: ScriptedCluster) -> None:
    one, two = member(cluster, **COOPERATIVE), member(cluster, **COOPERATIVE)
    heard, heard_two = Heard(), Heard()
    async with one, two:
        one.subscribe(["t"], listener=heard)
        await until_assigned(one, {0, 1, 2, 3})
        two.subscribe(["t"], listener=heard_two)
        async with polling(one, two):
            await until(lambda: len(parts(one)) == 2 and len(parts(two)) == 2)
        moved = sorted(parts(two))
        assert heard.told == [
            ("assigned", [0, 1, 2, 3]),
            ("revoked", moved),
            ("assigned", []),
            ("assigned", []),
        ]
        assert heard_two.told == [("assigned", []), ("assigned", moved)]


@virtually
async def test_a_cooperative_rebalance_does_not_stop_what_stays(cluster: ScriptedCluster) -> None:
    """A member that is slow to join holds the rebalance up; the others' records come all the same."""
    one = member(cluster, **COOPERATIVE)
    async with one, member(cluster, **COOPERATIVE) as slow:
        one.subscribe(["t"])
        slow.subscribe(["t"])
        async with polling(one, slow):
            await until(lambda: len(parts(one)) == 2 and len(parts(slow)) == 2)
        one.enforce_rebalance()
        await one.poll(0.5)
        assert cluster.groups.group("g").state == "PreparingRebalance"
        mine = sorted(parts(one))
        for p in mine:
            fill(cluster, 10, topic="t", partition=p)
        found: list[ConsumerRecord] = []
        while len(found) < 20:
            found += await one.poll(1)
        assert cluster.groups.group("g").state == "PreparingRebalance", "it still waits for the slow one"
        assert {r.partition for r in found} == set(mine)
        async with polling(one, slow):
            await until(lambda: cluster.groups.group("g").state == "Stable")
        assert sorted(parts(one)) == mine


@virtually
async def test_an_eager_rebalance_hands_out_nothing_meanwhile(cluster: ScriptedCluster) -> None:
    one = member(cluster)
    async with one, member(cluster) as slow:
        one.subscribe(["t"])
        slow.subscribe(["t"])
        async with polling(one, slow):
            await until(lambda: len(parts(one)) == 2 and len(parts(slow)) == 2)
        one.enforce_rebalance()
        await one.poll(0.5)
        for p in range(4):
            fill(cluster, 10, topic="t", partition=p)
        assert await one.poll(5) == []
        assert parts(one) == set()


# --- subscriptions ----------------------------------------------------------------------------------


@virtually
async def test_a_pattern_finds_topics_that_come_later(cluster: ScriptedCluster) -> None:
    cluster.topic("orders.eu", 1)
    cluster.topic("orders", 1)
    async with member(cluster, metadata_max_age_ms=10_000) as c:
        c.subscribe(pattern=r"orders\..*")
        async with polling(c):
            await until(lambda: c.subscription() == {"orders.eu"} and len(c.assignment()) == 1)
            cluster.topic("orders.us", 2)
            await until(lambda: len(c.assignment()) == 3)
        assert c.subscription() == {"orders.eu", "orders.us"}
        reason = cluster.groups.requests(JoinGroupRequest)[-1].reason
        assert reason == "the subscription has changed"


@virtually
async def test_new_partitions_are_shared_out(cluster: ScriptedCluster) -> None:
    async with member(cluster, metadata_max_age_ms=10_000) as one, member(cluster) as two:
        one.subscribe(["t"])
        await until_assigned(one, {0, 1, 2, 3})
        two.subscribe(["t"])
        async with polling(one, two):
            await until(lambda: len(parts(one)) == 2 and len(parts(two)) == 2)
            cluster.topic("t", 6)
            await until(lambda: len(parts(one)) == 3 and len(parts(two)) == 3)


@virtually
async def test_a_topic_that_is_not_there_yet_is_waited_for(cluster: ScriptedCluster) -> None:
    async with member(cluster) as c:
        c.subscribe(["later", "t"])
        await until_assigned(c, {0, 1, 2, 3})
        cluster.topic("later", 1)
        async with polling(c):
            await until(lambda: TopicPartition("later", 0) in c.assignment(), 10)


@virtually
async def test_a_changed_subscription_takes_effect_with_the_next_poll(cluster: ScriptedCluster) -> None:
    cluster.topic("u", 2)
    for strategy in ("range", "cooperative-sticky"):
        heard = Heard()
        async with member(cluster, partition_assignment_strategy=strategy, group_id=strategy) as c:
            c.subscribe(["t"], listener=heard)
            await until_assigned(c, {0, 1, 2, 3})
            fill(cluster, 5, topic="t", partition=0)
            c.subscribe(["u"], listener=heard)
            async with polling(c) as found:
                await until(lambda: {p.topic for p in c.assignment()} == {"u"})
            assert all(r.topic == "u" for r in found[c]), "nothing more of what was given up"
            assert heard.told == [("assigned", [0, 1, 2, 3]), ("revoked", [0, 1, 2, 3]), ("assigned", [0, 1])]


@virtually
async def test_unsubscribe_leaves(cluster: ScriptedCluster) -> None:
    heard = Heard()
    async with member(cluster) as c:
        c.subscribe(["t"], listener=heard)
        await until_assigned(c, {0, 1, 2, 3})
        await c.unsubscribe()
        assert c.assignment() == set()
        assert c.subscription() == set()
        assert cluster.groups.group("g").state == "Empty"
        assert heard.told == [("assigned", [0, 1, 2, 3]), ("revoked", [0, 1, 2, 3])]
        with pytest.raises(IllegalStateError, match=r"assign\(\) some, or subscribe\(\)"):
            await c.poll()
        c.assign([ALL[0]])
        with pytest.raises(IllegalStateError, match="assigned manually"):
            c.subscribe(["t"])
        c.assign([])
        c.subscribe(["t"])
        with pytest.raises(IllegalStateError, match="unsubscribe"):
            c.assign([ALL[0]])
        await until_assigned(c, {0, 1, 2, 3})


@virtually
async def test_what_cannot_be_subscribed_to(cluster: ScriptedCluster) -> None:
    async with member(cluster) as c:
        with pytest.raises(TypeError, match="the string 't'"):
            c.subscribe("t")
        with pytest.raises(ValueError, match="found neither"):
            c.subscribe([])
        with pytest.raises(ValueError, match="found ''"):
            c.subscribe([""])
        with pytest.raises(ValueError, match="found both"):
            c.subscribe(["t"], pattern="t")
    async with member(cluster, group_id=None) as c:
        for call in (lambda: c.subscribe(["t"]), c.commit_async, c.group_metadata, c.enforce_rebalance):
            with pytest.raises(type(exception_for(ErrorCode.INVALID_GROUP_ID)), match="need a group_id"):
                call()


# --- assignors --------------------------------------------------------------------------------------


class Backwards(RangeAssignor):
    """A user's assignor: gives the first member everything."""

    name = "backwards"

    def assign(self, partitions_of: Mapping[str, int], members: Mapping[str, Subscription]) -> dict[str, Assignment]:
        every = tuple(TopicPartition(topic, p) for topic in partitions_of for p in range(partitions_of[topic]))
        first = min(members)
        return {m: Assignment(every if m == first else ()) for m in members}


@virtually
async def test_assignors_of_the_users_own(cluster: ScriptedCluster) -> None:
    one, two = (member(cluster, partition_assignment_strategy=[Backwards, "range"]) for _ in range(2))
    async with one, two:
        one.subscribe(["t"])
        two.subscribe(["t"])
        async with polling(one, two):
            await until(
                lambda: (
                    len(cluster.groups.group("g").members) == 2 and sorted(map(len, map(parts, (one, two)))) == [0, 4]
                )
            )
        assert cluster.groups.group("g").protocol == "backwards"


@virtually
async def test_an_assignor_that_raises_is_reported_and_asked_again(cluster: ScriptedCluster) -> None:
    class Raises(RangeAssignor):
        times = 0

        def assign(
            self, partitions_of: Mapping[str, int], members: Mapping[str, Subscription]
        ) -> Mapping[str, Assignment]:
            Raises.times += 1
            if Raises.times < 3:
                raise ZeroDivisionError("mine")
            return super().assign(partitions_of, members)

    async with member(cluster, partition_assignment_strategy=Raises()) as c:
        c.subscribe(["t"])
        for _ in range(2):
            with pytest.raises(RebalanceCallbackError, match="mine"):
                await c.poll(10)
        await until_assigned(c, {0, 1, 2, 3})


@virtually
async def test_a_cooperative_assignor_that_robs_an_owner_is_refused(cluster: ScriptedCluster) -> None:
    class Robs(CooperativeStickyAssignor):
        name = "robs"

        def assign(
            self, partitions_of: Mapping[str, int], members: Mapping[str, Subscription]
        ) -> dict[str, Assignment]:
            last = max(members)
            return {m: Assignment(tuple(ALL) if m == last else ()) for m in members}

    one, two = (member(cluster, partition_assignment_strategy=Robs) for _ in range(2))
    async with one, two:
        one.subscribe(["t"])
        await until_assigned(one, {0, 1, 2, 3})
        two.subscribe(["t"])
        async with polling(two):
            with pytest.raises(IllegalStateError, match="moved t-0, t-1, t-2, t-3"):
                await one.poll(100)
        assert isinstance(one._core.group, ConsumerGroup)
        assert one._core.group.protocol is RebalanceProtocol.COOPERATIVE


# --- being late, being forgotten, being fenced ---------------------------------------------------


@virtually
async def test_poll_must_come_in_time(cluster: ScriptedCluster) -> None:
    heard = Heard()
    fill(cluster, 10, topic="t", partition=0)
    async with member(cluster, max_poll_interval_ms=20_000, enable_auto_commit=False) as one:
        one.subscribe(["t"], listener=heard)
        while not await one.poll(1):
            pass
        await asyncio.sleep(19)
        assert cluster.groups.group("g").state == "Stable"
        await one.poll()
        await asyncio.sleep(21)
        assert cluster.groups.group("g").state == "Empty", "it has left by itself"
        assert cluster.groups.requests(LeaveGroupRequest)[0].members[0].reason.startswith("consumer poll timeout")
        with pytest.raises(CommitFailedError, match="not part of an active group"):
            await one.commit()
        told: list[object] = []
        one.commit_async(callback=lambda offsets, error: told.append(error))
        assert heard.told == [("assigned", [0, 1, 2, 3])]
        async with polling(one) as found:
            await until(lambda: len(heard.told) == 3 and len(found[one]) == 10)
        assert heard.told[1:] == [("lost", [0, 1, 2, 3]), ("assigned", [0, 1, 2, 3])]
        assert isinstance(told[0], CommitFailedError)
        assert cluster.groups.committed("g") == {}
        await one.commit()


@virtually
async def test_a_poll_that_waits_long_is_in_time(cluster: ScriptedCluster) -> None:
    async with member(cluster, max_poll_interval_ms=20_000) as one:
        one.subscribe(["t"])
        assert await one.poll(200) == []
        assert cluster.groups.requests(LeaveGroupRequest) == []
        assert cluster.groups.group("g").generation == 1


@virtually
async def test_a_listener_that_takes_too_long_is_late(cluster: ScriptedCluster) -> None:
    heard = Heard()

    class Slow(Heard):
        async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:  # type: ignore[override]
            if not heard.told:
                heard.on_partitions_assigned(partitions)
                await asyncio.sleep(30)

        def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
            heard.on_partitions_lost(partitions)

    async with member(cluster, max_poll_interval_ms=20_000) as one:
        one.subscribe(["t"], listener=Slow())
        async with polling(one):
            await until(lambda: len(heard.told) == 2)
            assert heard.told[1] == ("lost", [0, 1, 2, 3])
            await until(lambda: cluster.groups.group("g").state == "Stable")


@virtually
async def test_a_member_that_the_group_forgot_is_a_zombie(cluster: ScriptedCluster) -> None:
    heard = Heard()
    fill(cluster, 10, topic="t", partition=0)
    async with member(cluster, heartbeat_interval_ms=40_000) as one:
        one.subscribe(["t"], listener=heard)
        while not await one.poll(1):
            pass
        cluster.groups.remove("g", one.group_metadata().member_id)
        with pytest.raises(CommitFailedError, match="UNKNOWN_MEMBER_ID"):
            await one.commit()
        assert cluster.groups.committed("g") == {}
        async with polling(one):
            await until(lambda: len(heard.told) == 3)
        assert heard.told[1:] == [("lost", [0, 1, 2, 3]), ("assigned", [0, 1, 2, 3])]


@virtually
async def test_static_members_keep_their_place(cluster: ScriptedCluster) -> None:
    async with member(cluster, group_instance_id="a") as one, member(cluster, group_instance_id="b") as two:
        one.subscribe(["t"])
        two.subscribe(["t"])
        async with polling(one, two):
            await until(lambda: len(parts(one)) == 2 and len(parts(two)) == 2)
        mine, generation = parts(one), cluster.groups.group("g").generation
        await one.close()
        assert cluster.groups.requests(LeaveGroupRequest) == []
        async with member(cluster, group_instance_id="a") as again:
            again.subscribe(["t"])
            async with polling(again, two):
                await until(lambda: parts(again) == mine)
            assert cluster.groups.group("g").generation == generation, "nobody else noticed"
            assert again.group_metadata().group_instance_id == "a"


@virtually
async def test_two_with_one_instance_id(cluster: ScriptedCluster) -> None:
    fenced = type(exception_for(ErrorCode.FENCED_INSTANCE_ID))
    fill(cluster, 10, topic="t", partition=0)
    async with member(cluster, group_instance_id="a") as one, member(cluster, group_instance_id="a") as two:
        one.subscribe(["t"])
        while not await one.poll(1):
            pass
        two.subscribe(["t"])
        await until_assigned(two, {0, 1, 2, 3})
        with pytest.raises(fenced, match="group_instance_id"):
            await one.commit()
        with pytest.raises(fenced, match="another consumer has joined"):
            await one.poll(50)


# --- coordinators in trouble --------------------------------------------------------------------------


@virtually
async def test_a_coordinator_that_moves_is_followed(cluster: ScriptedCluster) -> None:
    async with member(cluster) as one:
        one.subscribe(["t"])
        await until_assigned(one, {0, 1, 2, 3})
        cluster.groups.node = 2
        await one.commit({ALL[0]: 5})
        assert cluster.groups.committed("g") == {("t", 0): 5}
        await asyncio.sleep(60)
        assert cluster.groups.group("g").generation == 1, "the members stay"
        await cluster.kill(1)
        cluster.groups.node = 2
        await asyncio.sleep(60)
        assert await one.committed([ALL[0]]) == {ALL[0]: OffsetAndMetadata(5)}
        assert cluster.groups.group("g").generation == 1


@pytest.mark.parametrize("kind", [JoinGroupRequest, SyncGroupRequest])
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ],
)
def test_joins_go_on_through_trouble(kind: type[Any], code: ErrorCode) -> None:
    @virtually
    async def run(cluster: ScriptedCluster) -> None:
        left = [code] * 3

        def judge(request: object) -> ErrorCode | None:
            if not isinstance(request, kind) or not left:
                return None
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                cluster.groups.remove("g", request.member_id)
            return left.pop()

        cluster.groups.judge = judge
        async with member(cluster) as one:
            one.subscribe(["t"])
            await until_assigned(one, {0, 1, 2, 3})
            assert not left

    run()


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.FENCED_INSTANCE_ID,
    ],
)
def test_what_no_retry_mends_is_raised_by_poll(code: ErrorCode) -> None:
    @virtually
    async def run(cluster: ScriptedCluster) -> None:
        cluster.groups.judge = lambda request: code if isinstance(request, JoinGroupRequest) else None
        async with member(cluster) as one:
            one.subscribe(["t"])
            for _ in range(2):
                with pytest.raises(type(exception_for(code))):
                    await one.poll(10)
            cluster.groups.judge = None
            await until_assigned(one, {0, 1, 2, 3})

    run()


# --- closing ------------------------------------------------------------------------------------------


@virtually
async def test_close_is_bounded_when_nobody_answers(cluster: ScriptedCluster) -> None:
    fill(cluster, 10, topic="t", partition=0)
    heard = Heard()
    async with member(cluster) as one:
        one.subscribe(["t"], listener=heard)
        while not await one.poll(1):
            pass
        await cluster.stop()
        loop = asyncio.get_running_loop()
        started = loop.time()
        await one.close(timeout=5)
        assert loop.time() - started < 6
        assert heard.told[1:] == [("revoked", [0, 1, 2, 3])]
        with pytest.raises(ClientClosedError):
            await one.poll()


@virtually
async def test_close_ends_a_poll_of_another_task(cluster: ScriptedCluster) -> None:
    one = member(cluster)
    await one.start()
    one.subscribe(["t"])
    await until_assigned(one, {0, 1, 2, 3})
    waits = asyncio.create_task(one.poll(1_000))
    await asyncio.sleep(1)
    await one.close()
    with pytest.raises(ClientClosedError):
        await waits
    assert cluster.groups.group("g").state == "Empty"


@virtually
async def test_close_while_a_join_is_under_way_leaves(cluster: ScriptedCluster) -> None:
    async with member(cluster) as slow:
        slow.subscribe(["t"])
        await until_assigned(slow, {0, 1, 2, 3})
        one = member(cluster)
        async with one:
            one.subscribe(["t"])
            assert await one.poll(1) == []
            assert len(cluster.groups.group("g").members) == 2
        assert len(cluster.groups.group("g").members) in (1, 2)
        async with polling(slow):
            await until(lambda: cluster.groups.group("g").state == "Stable")
            await until(lambda: len(cluster.groups.group("g").members) == 1)
            await until(lambda: parts(slow) == {0, 1, 2, 3})


@virtually
async def test_a_listener_that_raises_does_not_keep_close_from_closing(cluster: ScriptedCluster) -> None:
    class Raises(ConsumerRebalanceListener):
        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
            raise ZeroDivisionError("mine")

    one = member(cluster)
    await one.start()
    one.subscribe(["t"], listener=Raises())
    await until_assigned(one, {0, 1, 2, 3})
    with pytest.raises(RebalanceCallbackError, match="mine"):
        await one.close()
    assert cluster.groups.group("g").state == "Empty"
    assert one.assignment() == set()
    await one.close()
    assert not cluster.groups.requests(OffsetCommitRequest) or cluster.groups.committed("g")
