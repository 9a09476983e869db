"""Admin clients of three kinds on three nodes: each request finds the broker that it is for, and errors are Kafka's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.kafka.wire_client import WireClient
from tidelog.model.ids import NO_NODE
from tidelog.proto.calls.api import BrokerEndpoint, MetadataResponse
from tidelog.testing.cluster import Cluster

TIMEOUT_S = 30.0

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[Cluster]:
    with Cluster(nodes=3, transport="grpc") as cluster:
        yield cluster


@pytest.fixture
def admin(three_nodes: Cluster) -> AdminClient:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": three_nodes.kafka_bootstrap})


def results(futures: dict[Any, Any]) -> dict[Any, Any]:
    """The result of each item; refusals by the error's name."""
    from confluent_kafka import KafkaException

    found = {}
    for item, future in futures.items():
        try:
            found[item] = future.result(TIMEOUT_S)
        except KafkaException as refused:
            found[item] = refused.args[0].name()
    return found


def spread(three_nodes: Cluster, name: str) -> str:
    """A topic whose three partitions are led by the three nodes, with three records in each."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": three_nodes.kafka_bootstrap})
    assignment = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    assert results(admin.create_topics([NewTopic(name, 3, replica_assignment=assignment)])) == {name: None}
    producer = Producer({"bootstrap.servers": three_nodes.kafka_bootstrap, "acks": "all"})
    for number in range(9):
        producer.produce(name, b"%d" % number, partition=number % 3, timestamp=1_000 + number)
    assert producer.flush(TIMEOUT_S) == 0
    return name


def test_a_topic_stands_where_it_was_put(
    three_nodes: Cluster, admin: AdminClient, topic_name: Callable[..., str]
) -> None:
    from confluent_kafka import TopicCollection

    name = spread(three_nodes, topic_name("put"))
    found = results(admin.describe_topics(TopicCollection([name, "nobody"])))
    shown = found[name]
    assert [(p.id, p.leader.id, [r.id for r in p.replicas], sorted(r.id for r in p.isr)) for p in shown.partitions] == [
        (0, 1, [1, 2, 3], [1, 2, 3]),
        (1, 2, [2, 3, 1], [1, 2, 3]),
        (2, 3, [3, 1, 2], [1, 2, 3]),
    ]
    assert len(str(shown.topic_id)) == 22
    assert found["nobody"] == "UNKNOWN_TOPIC_OR_PART"
    cluster = admin.describe_cluster(request_timeout=TIMEOUT_S).result(TIMEOUT_S)
    assert sorted(f"{node.host}:{node.port}" for node in cluster.nodes) == sorted(
        three_nodes.kafka_bootstrap.split(",")
    )
    assert (cluster.cluster_id, cluster.controller.id in {1, 2, 3}) == (three_nodes.cluster_id, True)


def test_offsets_of_partitions_that_different_brokers_lead(
    three_nodes: Cluster, admin: AdminClient, topic_name: Callable[..., str]
) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    name = spread(three_nodes, topic_name("offsets"))

    def offsets(spec: Any) -> list[int]:
        found = results(admin.list_offsets({TopicPartition(name, number): spec for number in range(3)}))
        return [found[TopicPartition(name, number)].offset for number in range(3)]

    assert offsets(OffsetSpec.earliest()) == [0, 0, 0]
    assert offsets(OffsetSpec.latest()) == [3, 3, 3]
    assert offsets(OffsetSpec.max_timestamp()) == [2, 2, 2]
    assert offsets(OffsetSpec.for_timestamp(1_004)) == [2, 1, 1]
    deleted = results(admin.delete_records([TopicPartition(name, 0, 1), TopicPartition(name, 1, -1)]))
    assert [found.low_watermark for _, found in sorted(deleted.items(), key=lambda item: item[0].partition)] == [1, 3]
    beyond = results(admin.delete_records([TopicPartition(name, 2, 99)]))
    assert list(beyond.values()) == ["OFFSET_OUT_OF_RANGE"]
    assert offsets(OffsetSpec.earliest()) == [1, 3, 0]


def test_a_brokers_settings_come_from_that_broker(three_nodes: Cluster, admin: AdminClient) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource

    brokers = [ConfigResource(ConfigResource.Type.BROKER, str(node)) for node in (1, 2, 3)]
    found = {}
    for broker in brokers:  # librdkafka takes one at a time
        found.update(results(admin.describe_configs([broker])))
    assert [found[broker]["node.id"].value for broker in brokers] == ["1", "2", "3"]
    assert found[brokers[0]]["node.id"].is_read_only

    def alter(resource: Any, name: str, value: str | None) -> Any:
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry(name, value or "", incremental_operation=operation)
        changed = ConfigResource(resource.restype, resource.name, incremental_configs=[entry])
        (outcome,) = results(admin.incremental_alter_configs([changed])).values()
        return outcome

    assert alter(brokers[1], "log.retention.ms", "77000") is None
    settings = results(admin.describe_configs([brokers[1]]))[brokers[1]]
    assert settings["log.retention.ms"].value == "77000"
    assert ConfigSource(settings["log.retention.ms"].source) is ConfigSource.DYNAMIC_BROKER_CONFIG
    assert alter(brokers[1], "log.retention.ms", None) is None
    assert alter(brokers[1], "node.id", "9") == "INVALID_REQUEST"


def test_kafka_pythons_admin(three_nodes: Cluster, topic_name: Callable[..., str]) -> None:
    from kafka import KafkaAdminClient, TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, OffsetSpec
    from kafka.errors import InvalidPartitionsError, UnknownTopicOrPartitionError

    name = spread(three_nodes, topic_name("python"))
    admin = KafkaAdminClient(bootstrap_servers=three_nodes.kafka_bootstrap)
    try:
        at = [TopicPartition(name, number) for number in range(3)]
        listed = admin.list_partition_offsets(dict.fromkeys(at, OffsetSpec.LATEST))
        assert [listed[one].offset for one in at] == [3, 3, 3]
        admin.create_partitions({name: NewPartitions(5)})
        with pytest.raises(InvalidPartitionsError):
            admin.create_partitions({name: NewPartitions(4)})
        (shown,) = admin.describe_topic_partitions([name])["topics"]
        assert len(shown["partitions"]) == 5
        topic = ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "5000"})
        admin.alter_configs([topic])
        end = time.monotonic() + TIMEOUT_S
        while "5000" not in repr(found := admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])):
            assert time.monotonic() < end, "the broker that was asked never heard of the setting"
        assert "retention.ms" in repr(found)
        dirs = admin.describe_log_dirs()
        assert repr(dirs).count(name) >= 3
        quorum = admin.describe_metadata_quorum()
        assert "leader_id" in repr(quorum)
        admin.delete_topics([name])
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.delete_topics([name])
    finally:
        admin.close()


def test_aiokafkas_admin(three_nodes: Cluster, topic_name: Callable[..., str]) -> None:
    from aiokafka import TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, RecordsToDelete

    name = spread(three_nodes, topic_name("aio"))

    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=three_nodes.kafka_bootstrap)
        await admin.start()
        try:
            assert name in await admin.list_topics()
            (shown,) = await admin.describe_topics([name])
            assert [part["leader"] for part in sorted(shown["partitions"], key=lambda part: part["partition"])] == [
                1,
                2,
                3,
            ]
            deleted = await admin.delete_records(
                {TopicPartition(name, number): RecordsToDelete(number) for number in range(3)}
            )
            assert sorted(deleted.values()) == [0, 1, 2]
            await admin.create_partitions({name: NewPartitions(4)})
            async with asyncio.timeout(TIMEOUT_S):  # any broker may be asked, also one that has not heard of it
                while len((await admin.describe_topics([name]))[0]["partitions"]) != 4:
                    await asyncio.sleep(0.05)
                await admin.delete_topics([name])
                while name in await admin.list_topics():
                    await asyncio.sleep(0.05)
        finally:
            await admin.close()

    asyncio.run(run())


@pytest.mark.parametrize("which", ["the controller", "the broker that is asked"])
def test_topics_are_made_while_a_node_dies(
    three_nodes: Cluster, admin: AdminClient, topic_name: Callable[..., str], which: str
) -> None:
    from confluent_kafka.admin import NewTopic

    asked = admin.describe_cluster(request_timeout=TIMEOUT_S).result(TIMEOUT_S).controller.id
    dead = three_nodes.wait_for_controller() if which == "the controller" else asked
    three_nodes.kill(dead)
    try:
        name = topic_name("moved")
        made = results(admin.create_topics([NewTopic(name, 3, 2)], operation_timeout=20, request_timeout=25))
        assert made == {name: None}
    finally:
        three_nodes.restart(dead)


def test_clients_send_to_a_broker_that_they_can_reach_what_is_for_the_controller() -> None:
    from tidelog.broker.kafka.calls.cluster.metadata import reachable_controller

    brokers = tuple(BrokerEndpoint(node, "h", 1) for node in (4, 5))  # type: ignore[arg-type]

    def named(controller: int, own: int) -> int:
        return reachable_controller(MetadataResponse("c", controller, brokers, ()), own)  # type: ignore[arg-type]

    assert [named(5, 4), named(1, 5), named(5, 3), named(1, 3)] == [4, 5, 5, 4]
    assert reachable_controller(MetadataResponse("c", NO_NODE, (), ()), NO_NODE) == NO_NODE


def test_brokers_without_a_vote_are_observers_of_the_quorum() -> None:
    asked = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    with Cluster(nodes=3, controllers=1, transport="grpc") as cluster, WireClient(cluster.kafka_bootstrap) as wire:
        cluster.create_topic("t")
        deadline_s = time.monotonic() + 60
        while True:
            (part,) = wire.ask(55, 2, topics=asked).topics[0].partitions
            ends = [(observer.replica_id, observer.log_end_offset) for observer in part.observers]
            if ends == [(2, part.high_watermark), (3, part.high_watermark)]:
                break
            assert time.monotonic() < deadline_s, "both apply everything and say so"
        assert [voter.replica_id for voter in part.current_voters] == [1]
        assert all(0 < one.last_caught_up_timestamp <= one.last_fetch_timestamp for one in part.observers)
