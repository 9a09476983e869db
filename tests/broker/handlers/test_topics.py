"""Topics and settings on a running cluster: created, grown, deleted, changed, and refused."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.broker.conftest import read_all
from tidelog.aio import Admin, ConfigResource, NewTopic
from tidelog.client.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    TidelogError,
    UnknownTopicOrPartitionError,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import LeaderEpoch, Offset, TopicPartition
from tidelog.proto.calls.api import (
    AlterResource,
    ConfigChange,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    EpochEndPartition,
    IncrementalAlterConfigsRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
)
from tidelog.proto.calls.api import ConfigResource as WireResource
from tidelog.proto.calls.transaction_api import InitProducerIdRequest
from tidelog.testing.async_cluster import AsyncCluster


@pytest.fixture
async def cluster() -> AsyncIterator[AsyncCluster]:
    async with AsyncCluster(3, config={"log.retention.check.interval.ms": "100"}) as running:
        yield running


@pytest.fixture
async def admin(cluster: AsyncCluster) -> AsyncIterator[Admin]:
    async with cluster.admin() as made:
        yield made


def replica_dirs(cluster: AsyncCluster, *topics: str) -> list[Path]:
    return [
        found
        for node in cluster.node_ids
        for found in cluster.node_directory(node).iterdir()
        if found.name.startswith(tuple(f"{topic}-" for topic in topics))
    ]


async def test_who_asks_the_wrong_broker_for_offsets_hears_that_it_is_the_wrong_one(
    cluster: AsyncCluster, admin: Admin
) -> None:
    await admin.create_topics([NewTopic("narrow", 3, 1)])
    network = cluster.client_network()
    led = 0
    for node in cluster.node_ids:
        address = cluster.nodes[node].client_address
        assert address is not None
        connection = network.connect(address)
        ask_topic = MetadataRequest(("narrow",))
        async with asyncio.timeout(100):  # this one may not have heard of the topic yet
            while not (known := (await connection.call(ask_topic, timeout_s=10)).topics[0]).partitions:
                await asyncio.sleep(0.01)
        parts = [*range(3), 9]
        ask = ListOffsetsRequest(tuple(ListOffsetsPartition("narrow", part, -1) for part in parts))
        purge = DeleteRecordsRequest(tuple(DeleteRecordsPartition("narrow", part, Offset(0)) for part in parts))
        end = OffsetForLeaderEpochRequest(
            tuple(EpochEndPartition(known.topic_id, part, LeaderEpoch(0)) for part in parts)
        )
        mine = [p.leader == node for p in known.partitions]
        led += sum(mine)
        wanted = [ErrorCode.NONE if own else ErrorCode.NOT_LEADER_OR_FOLLOWER for own in mine]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        listed = (await connection.call(ask, timeout_s=10)).results
        purged = (await connection.call(purge, timeout_s=10)).results
        ends = (await connection.call(end, timeout_s=10)).results
        assert [found.error for found in listed] == [*wanted, unknown]
        assert [found.error for found in purged] == [*wanted, unknown]
        assert [found.error for found in ends] == [*wanted, ErrorCode.UNKNOWN_TOPIC_ID]
        await connection.close()
    assert led == 3


async def test_a_new_setting_is_known_at_once_where_it_was_made(cluster: AsyncCluster, admin: Admin) -> None:
    await admin.create_topics([NewTopic("t", 1, 3)])
    address = cluster.nodes[cluster.node_ids[2]].client_address
    assert address is not None
    connection = cluster.client_network().connect(address)
    at = WireResource("topic", "t")

    async def change(operation: str, value: str | None) -> tuple[str, ...]:
        altered = AlterResource(at, (ConfigChange("cleanup.policy", operation, value),))
        done = await connection.call(IncrementalAlterConfigsRequest((altered,)), timeout_s=10)
        assert done.resources[0].error is ErrorCode.NONE
        asked = DescribeConfigsRequest((at,), include_synonyms=True)
        (found,) = (await connection.call(asked, timeout_s=10)).resources
        return next(tuple(s.source for s in item.synonyms) for item in found.configs if item.name == "cleanup.policy")

    for _ in range(20):
        assert await change("set", " compact ") == ("DYNAMIC_TOPIC_CONFIG", "DEFAULT_CONFIG")
        assert await change("delete", None) == ("DEFAULT_CONFIG",)
    await connection.close()


async def test_a_new_topic_is_known_at_once_where_it_was_made(cluster: AsyncCluster) -> None:
    address = cluster.nodes[cluster.node_ids[2]].client_address
    assert address is not None
    connection = cluster.client_network().connect(address)
    for n in range(20):
        name = f"t{n}"
        made = await connection.call(CreateTopicsRequest((NewTopic(name, 2, 3).item(),)), timeout_s=10)
        assert made.topics[0].error is ErrorCode.NONE
        known = await connection.call(MetadataRequest((name,)), timeout_s=10)
        assert [p.leader >= 1 for p in known.topics[0].partitions] == [True, True]
        await connection.call(DeleteTopicsRequest((name,)), timeout_s=10)
        gone = await connection.call(MetadataRequest((name,)), timeout_s=10)
        assert gone.topics[0].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await connection.close()


async def test_growth_adds_partitions_and_keeps_records(cluster: AsyncCluster, admin: Admin) -> None:
    await admin.create_topics([NewTopic("t", 1, 2)])
    async with cluster.producer() as producer:
        await producer.send_and_wait("t", b"before")
        await admin.create_partitions({"t": 4})
    async with cluster.producer() as producer:
        for partition in range(4):
            await producer.send_and_wait("t", b"after", partition=partition)
    assert sorted(r.partition for r in await read_all(cluster, "t", 4)) == [0, 0, 1, 2, 3]


async def test_a_deleted_topic_leaves_nothing_behind_and_its_name_is_free(cluster: AsyncCluster, admin: Admin) -> None:
    await admin.create_topics([NewTopic("t", 2, 3)])
    async with cluster.producer() as producer:
        await producer.send_and_wait("t", b"old", partition=0)
    await admin.delete_topics(["t"])
    await cluster.wait_for(lambda: not replica_dirs(cluster, "t"), "the topic's directories are gone")
    await admin.create_topics([NewTopic("t", 2, 3)])
    async with cluster.producer() as producer:
        await producer.send_and_wait("t", b"new", partition=0)
    assert [r.value for r in await read_all(cluster, "t", 2)] == [b"new"]


async def test_a_topic_deleted_while_a_node_was_down_goes_from_its_disk_too(
    cluster: AsyncCluster, admin: Admin
) -> None:
    await admin.create_topics([NewTopic("t", 2, 3), NewTopic("kept", 2, 3)])
    async with cluster.producer() as producer:
        for topic, number in itertools.product(("t", "kept"), range(2)):
            await producer.send_and_wait(topic, b"x", partition=number)
    await cluster.wait_for(lambda: len(replica_dirs(cluster, "t", "kept")) == 12, "the topics' directories")
    await cluster.kill(3)
    await admin.delete_topics(["t"])
    await cluster.wait_for(lambda: len(replica_dirs(cluster, "t")) == 2, "only the dead node has the topic")
    await cluster.restart(3)
    await cluster.wait_for(lambda: not replica_dirs(cluster, "t"), "strays are removed")
    assert len(replica_dirs(cluster, "kept")) == 6


async def test_a_topic_is_made_on_first_use_and_not_where_that_is_switched_off() -> None:
    async with AsyncCluster(1, config={"num.partitions": "3"}) as cluster, cluster.producer() as producer:
        await producer.send_and_wait("fresh", b"x")
        topic = cluster.image.topic("fresh")
        assert topic is not None
        assert len(topic.partitions) == 3
    async with AsyncCluster(1, config={"auto.create.topics.enable": "false"}) as cluster:
        async with cluster.producer(max_block_ms=500) as producer:
            with pytest.raises(TidelogError):
                await producer.send_and_wait("fresh", b"x")
        assert cluster.image.topic("fresh") is None


async def test_a_topics_settings_change_while_it_runs(cluster: AsyncCluster, admin: Admin) -> None:
    await admin.create_topics([NewTopic("t", 1, 3)])
    async with cluster.producer() as producer:
        await producer.send_and_wait("t", b"x" * 5000)
        await admin.alter_topic_configs("t", {"max.message.bytes": "1000"})
        with pytest.raises(TidelogError) as refused:
            await producer.send_and_wait("t", b"x" * 5000)
        assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
        await admin.alter_topic_configs("t", {"max.message.bytes": None})
        await producer.send_and_wait("t", b"x" * 5000)


async def test_a_default_of_all_brokers_changes_and_a_topics_own_setting_wins(
    cluster: AsyncCluster, admin: Admin
) -> None:
    await admin.create_topics([NewTopic("plain", 1, 3), NewTopic("own", 1, 3, {"retention.ms": "111"})])
    everyone = ConfigResource("broker", "")
    await admin.alter_configs({everyone: {"log.retention.ms": "222"}})

    def retention(topic: str) -> set[int]:
        return {
            replica.partition.state.config.retention_ms
            for node in cluster.nodes.values()
            if node.broker is not None
            for replica in node.broker.replicas.replicas.values()
            if replica.partition.state.topic == topic
        }

    await cluster.wait_for(lambda: retention("plain") == {222}, "the default reached every node")
    assert retention("own") == {111}
    described = (await admin.describe_configs([ConfigResource("topic", "plain")]))[ConfigResource("topic", "plain")]
    assert (described["retention.ms"].value, described["retention.ms"].source) == (
        "222",
        "DYNAMIC_DEFAULT_BROKER_CONFIG",
    )
    own = (await admin.describe_configs([ConfigResource("topic", "own")]))[ConfigResource("topic", "own")]
    assert (own["retention.ms"].value, own["retention.ms"].source) == ("111", "DYNAMIC_TOPIC_CONFIG")
    assert own["segment.bytes"].source == "STATIC_BROKER_CONFIG", "this cluster's file sets log.segment.bytes"
    assert own["flush.ms"].source == "DEFAULT_CONFIG"


async def test_a_broker_describes_itself_only(cluster: AsyncCluster, admin: Admin) -> None:
    for node in (1, 2, 3):
        resource = ConfigResource("broker", str(node))
        described = (await admin.describe_configs([resource]))[resource]
        assert described["node.id"].value == str(node)
        assert described["node.id"].read_only
        assert described["log.retention.check.interval.ms"].source == "STATIC_BROKER_CONFIG"


async def test_retention_deletes_old_segments(cluster: AsyncCluster, admin: Admin) -> None:
    await admin.create_topics([NewTopic("t", 1, 3, {"segment.bytes": str(2**20), "retention.bytes": str(2**20)})])
    async with cluster.producer() as producer, cluster.consumer() as consumer:
        for _ in range(60):
            await producer.send_and_wait("t", b"x" * 100_000)

        async def start() -> int:
            return next(iter((await consumer.beginning_offsets([TopicPartition("t", 0)])).values()))

        for _ in range(200):
            if await start() > 0:
                break
        assert await start() > 0


async def test_deleted_records_are_gone_on_every_replica(cluster: AsyncCluster, admin: Admin) -> None:
    await admin.create_topics([NewTopic("t", 1, 3)])
    async with cluster.producer() as producer:
        for n in range(10):
            await producer.send_and_wait("t", b"%d" % n)
    at = next(iter(await admin.delete_records({("t", 0): 4})))  # type: ignore[dict-item]
    assert (at.topic, at.partition) == ("t", 0)
    assert [r.value for r in await read_all(cluster, "t", 1)] == [b"%d" % n for n in range(4, 10)]
    for node in cluster.nodes.values():
        assert node.broker is not None
        for replica in node.broker.replicas.replicas.values():
            assert replica.partition.log.log_start_offset == 4


BAD_TOPICS = [
    (NewTopic("a b", 1, 1), InvalidTopicError, "a b"),
    (NewTopic("x" * 250, 1, 1), InvalidTopicError, "249"),
    (NewTopic("t", 0, 1), InvalidPartitionsError, "0"),
    (NewTopic("t", 1, 4), InvalidReplicationFactorError, "4"),
    (NewTopic("t", 1, 0), InvalidReplicationFactorError, "0"),
    (NewTopic("t", 1, 1, {"retention.msx": "1"}), InvalidConfigError, "retention.ms"),
    (NewTopic("t", 1, 1, {"retention.ms": "soon"}), InvalidConfigError, "soon"),
    (NewTopic("t", 1, 2, {"min.insync.replicas": "3"}), TidelogError, "min.insync.replicas"),
]


@pytest.mark.parametrize(("topic", "error", "named"), BAD_TOPICS)
async def test_a_bad_topic_is_refused_with_what_was_expected(topic: NewTopic, error: type, named: str) -> None:
    async with AsyncCluster(3) as cluster, cluster.admin() as admin:
        with pytest.raises(error) as refused:
            await admin.create_topics([topic])
        assert "expected" in str(refused.value) or "did you mean" in str(refused.value)
        assert named in str(refused.value)
        assert cluster.image.topic(topic.name) is None
        await admin.create_topics([NewTopic("good", 1, 3)])


async def test_what_is_not_there_is_said(admin: Admin) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="nope"):
        await admin.delete_topics(["nope"])
    with pytest.raises(TidelogError, match="nope"):
        await admin.create_partitions({"nope": 3}, timeout=5)
    with pytest.raises(TidelogError, match="nope"):
        await admin.alter_topic_configs("nope", {"retention.ms": "1"})
    await admin.create_topics([NewTopic("t", 1, 1)])
    with pytest.raises(InvalidConfigError, match=r"retention\.ms"):
        await admin.alter_topic_configs("t", {"retention.mss": "1"})


async def test_producer_ids_are_unique_over_brokers_and_restarts(cluster: AsyncCluster) -> None:
    found: list[int] = []
    for _ in range(2):
        for node in list(cluster.nodes.values()):
            assert node.client_address is not None
            connection = cluster.client_network().connect(node.client_address)
            for _ in range(5):
                answer = await connection.call(InitProducerIdRequest(), timeout_s=10)
                assert answer.error is ErrorCode.NONE
                found.append(answer.producer_id)
            await connection.close()
        await cluster.restart(2)
        await cluster.wait_ready()
    assert len(set(found)) == len(found) == 30
