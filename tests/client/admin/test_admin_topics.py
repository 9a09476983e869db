"""The admin client's changes of topics: what failed for now is asked for again, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import pytest

from tests.client.scripted_broker import ScriptedCluster, on_a_virtual_cluster
from tests.virtual_time import LoopClock
from tidelog import NewTopic
from tidelog.aio import Admin
from tidelog.client.cluster.cluster import STAYS_MS, Cluster
from tidelog.client.errors import (
    InvalidTopicError,
    ThrottlingQuotaExceededError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.api import CreateTopicsRequest
from tidelog.proto.calls.request import Request, Response
from tidelog.proto.transport.network import Address, ConnectionLost
from tidelog.testing import AsyncCluster

BUSY, THROTTLED = ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED

R = TypeVar("R", bound=Response)


def admin(cluster: ScriptedCluster, **settings: Any) -> Admin:
    return Admin(cluster.bootstrap, _network=cluster.network("admin"), _clock=LoopClock(), **settings)


async def create(cluster: ScriptedCluster, *names: str, timeout: float = 60.0) -> list[str]:
    async with admin(cluster) as client:
        made = await client.create_topics([NewTopic(name, 1, 1) for name in names], timeout=timeout)
    return [topic.name for topic in made]


@on_a_virtual_cluster(1)
async def test_only_topics_that_failed_for_now_are_asked_for_again(cluster: ScriptedCluster) -> None:
    cluster.create_errors = {"b": [BUSY, BUSY], "c": [BUSY]}
    assert await create(cluster, "a", "b", "c") == ["a", "b", "c"]
    assert cluster.creates == [["a", "b", "c"], ["b", "c"], ["b"]]


@on_a_virtual_cluster(1)
async def test_a_topic_that_fails_for_good_is_not_asked_for_again_and_the_others_are_made(
    cluster: ScriptedCluster,
) -> None:
    cluster.create_errors = {"bad": [ErrorCode.INVALID_TOPIC_EXCEPTION], "b": [BUSY]}
    with pytest.raises(InvalidTopicError) as failed:
        await create(cluster, "a", "bad", "b")
    assert failed.value.failures.keys() == {"bad"}
    assert cluster.creates == [["a", "bad", "b"], ["b"]]
    assert {"a", "b"} <= cluster.topic_ids.keys()


@on_a_virtual_cluster(1)
async def test_throttled_topics_wait_for_as_long_as_they_are_told_others_do_not(cluster: ScriptedCluster) -> None:
    cluster.create_throttle_ms = 7_000
    cluster.create_errors = {"slow": [THROTTLED], "b": [BUSY]}
    started = asyncio.get_running_loop().time()
    assert await create(cluster, "slow", "a", "b") == ["slow", "a", "b"]
    assert cluster.creates == [["slow", "a", "b"], ["b"], ["slow"]]
    assert 7.0 <= asyncio.get_running_loop().time() - started < 8.0


@on_a_virtual_cluster(1)
async def test_a_topic_throttled_for_longer_than_there_is_time_fails_at_once(cluster: ScriptedCluster) -> None:
    cluster.create_throttle_ms = 7_000
    cluster.create_errors = {"slow": [THROTTLED]}
    started = asyncio.get_running_loop().time()
    with pytest.raises(ThrottlingQuotaExceededError):
        await create(cluster, "a", "slow", timeout=5.0)
    assert cluster.creates == [["a", "slow"]]
    assert asyncio.get_running_loop().time() - started < 1.0


@on_a_virtual_cluster(1)
async def test_no_topics_are_no_error(cluster: ScriptedCluster) -> None:
    assert await create(cluster) == []


@on_a_virtual_cluster(5)
async def test_the_broker_that_made_a_topic_is_asked_about_it(cluster: ScriptedCluster) -> None:
    """Others may not know of it yet."""
    cluster.others_lag = True
    async with admin(cluster) as client:
        for name in map(str, range(20)):
            await client.create_topics([NewTopic(name, 3, 1)])
            (found,) = await client.describe_topics([name])
            assert len(found.partitions) == 3
            await asyncio.sleep(1)


@on_a_virtual_cluster(5)
async def test_others_are_asked_once_the_broker_that_made_a_topic_is_gone(cluster: ScriptedCluster) -> None:
    cluster.others_lag = True
    async with admin(cluster) as client:
        await client.create_topics([NewTopic("t", 1, 1)])
        maker = cluster.known_only_to.pop("t")
        await cluster.kill(maker)
        (found,) = await client.describe_topics(["t"])
        assert found.name == "t"


@on_a_virtual_cluster(5)
async def test_a_broker_that_reaches_no_controller_is_not_asked_again_and_again(cluster: ScriptedCluster) -> None:
    cluster.others_lag = True
    async with admin(cluster) as client:
        for name in map(str, range(10)):
            await client.create_topics([NewTopic(name, 1, 1)])
            cluster.busy = {cluster.known_only_to[name]}
            started = asyncio.get_running_loop().time()
            await client.create_topics([NewTopic(f"{name}-next", 1, 1)])
            cluster.busy = {cluster.known_only_to[f"{name}-next"]}
            await client.unregister_broker(9)
            assert asyncio.get_running_loop().time() - started < 5
            cluster.busy.clear()


@on_a_virtual_cluster(5)
async def test_after_a_while_any_broker_is_asked_again(cluster: ScriptedCluster) -> None:
    cluster.others_lag = True
    async with admin(cluster) as client:
        await client.create_topics([NewTopic("t", 1, 1)])
        await asyncio.sleep(STAYS_MS / 1_000)
        answers = [await asyncio.gather(client.describe_topics(["t"]), return_exceptions=True) for _ in range(50)]
        assert any(isinstance(found, UnknownTopicOrPartitionError) for (found,) in answers)


async def test_a_topic_whose_answer_was_lost_is_found_by_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Cluster._call
    asked: list[Request[Response]] = []

    async def lose_the_first(self: Cluster, address: Address, request: Request[R], timeout_s: float) -> R:
        answer = await ask(self, address, request, timeout_s)
        if isinstance(request, CreateTopicsRequest):
            asked.append(request)
            if len(asked) == 1:
                raise ConnectionLost("the broker died when it had passed the request on")
        return answer

    monkeypatch.setattr(Cluster, "_call", lose_the_first)
    async with AsyncCluster() as cluster, cluster.admin() as client:
        (made,) = await client.create_topics([NewTopic("t", 2, 1)])
        (found,) = await client.list_topics()
        assert (made.name, found.topic_id, found.partition_count) == ("t", made.topic_id, 2)
        assert asked == [asked[0]] * 2
        with pytest.raises(TopicExistsError):
            await client.create_topics([NewTopic("t", 2, 1)])
