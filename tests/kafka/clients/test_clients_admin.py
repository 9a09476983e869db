"""Topics, settings, groups and the cluster through the admin clients of librdkafka and kafka-python."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.kafka.kafka_clients import Sent, confluent_produce
from tidelog.testing.cluster import Cluster

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


@pytest.fixture
def admin(kafka_cluster: Cluster) -> AdminClient:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": kafka_cluster.kafka_bootstrap})


def only(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(20)


def partitions_of(admin: AdminClient, topic: str) -> int:
    return len(admin.list_topics(topic, timeout=20).topics[topic].partitions)


def test_the_life_of_a_topic(kafka_cluster: Cluster, admin: AdminClient, topic_name: Callable[..., str]) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import ConfigResource, ConfigSource, NewPartitions, NewTopic

    topic = topic_name("life")
    only(admin.create_topics([NewTopic(topic, 2, 1, config={"retention.ms": "12345"})]))
    with pytest.raises(KafkaException) as refused:
        only(admin.create_topics([NewTopic(topic, 2, 1)]))
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    assert partitions_of(admin, topic) == 2
    only(admin.create_partitions([NewPartitions(topic, 5)]))
    deadline = time.monotonic() + 20
    while partitions_of(admin, topic) != 5:  # a broker may be asked before it has heard of them
        assert time.monotonic() < deadline
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    settings = only(admin.describe_configs([resource]))
    assert settings["retention.ms"].value == "12345"
    assert ConfigSource(settings["retention.ms"].source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert settings["cleanup.policy"].value == "delete"
    assert settings["cleanup.policy"].is_default
    only(admin.delete_topics([topic], operation_timeout=20))
    with pytest.raises(KafkaException) as unknown:
        only(admin.delete_topics([topic]))
    assert unknown.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_settings_of_a_group(admin: AdminClient, topic_name: Callable[..., str]) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    name, group = "consumer.session.timeout.ms", topic_name("group")

    def setting() -> str:
        return str(only(admin.describe_configs([ConfigResource("group", group)]))[name].value)

    assert setting() == "45000"
    entry = ConfigEntry(name, "50000", incremental_operation=AlterConfigOpType.SET)
    only(admin.incremental_alter_configs([ConfigResource("group", group, incremental_configs=[entry])]))
    deadline = time.monotonic() + 20
    while setting() != "50000":  # a broker may be asked before it has heard of it
        assert time.monotonic() < deadline


def test_settings_are_changed_one_by_one(
    kafka_cluster: Cluster, admin: AdminClient, topic_name: Callable[..., str]
) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    topic = topic_name("settings")
    kafka_cluster.create_topic(topic, config={"retention.ms": "1000000"})

    def change(name: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        only(admin.incremental_alter_configs([ConfigResource("topic", topic, incremental_configs=[entry])]))

    def setting(name: str) -> str:
        return str(only(admin.describe_configs([ConfigResource("topic", topic)]))[name].value)

    change("max.message.bytes", "5000", AlterConfigOpType.SET)
    change("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    assert setting("max.message.bytes") == "5000"
    assert setting("retention.ms") == "1000000"
    assert set(setting("cleanup.policy").split(",")) == {"delete", "compact"}
    change("retention.ms", None, AlterConfigOpType.DELETE)
    assert setting("retention.ms") == "604800000"
    with pytest.raises(KafkaException) as refused:
        change("no.such.setting", "1", AlterConfigOpType.SET)
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG


def test_groups_are_listed_described_and_deleted(
    kafka_cluster: Cluster, admin: AdminClient, topic_name: Callable[..., str]
) -> None:
    from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition

    topic, group, bootstrap = topic_name("grouped"), topic_name("described"), kafka_cluster.kafka_bootstrap
    kafka_cluster.create_topic(topic)
    confluent_produce(bootstrap, topic, 0, [Sent(None, b"value", (), 1)], "none")
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "client.id": "witness"}
    )
    try:
        consumer.subscribe([topic])
        message = consumer.poll(20)
        assert message is not None
        assert message.value() == b"value"
        found = only(admin.describe_consumer_groups([group]))
        assert found.state is ConsumerGroupState.STABLE
        assert found.partition_assignor == "range"
        (member,) = found.members
        assert member.client_id == "witness"
        assert [(one.topic, one.partition) for one in member.assignment.topic_partitions] == [(topic, 0)]
        listed = admin.list_consumer_groups().result(20)
        assert group in {one.group_id for one in listed.valid}
    finally:
        consumer.close()
    wanted = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 0)])]
    assert only(admin.alter_consumer_group_offsets(wanted)).topic_partitions[0].error is None
    asked = [ConsumerGroupTopicPartitions(group)]
    assert [one.offset for one in only(admin.list_consumer_group_offsets(asked)).topic_partitions] == [0]
    only(admin.delete_consumer_groups([group]))
    listed = admin.list_consumer_groups().result(20)
    assert group not in {one.group_id for one in listed.valid}


def test_the_cluster_describes_itself(kafka_cluster: Cluster, admin: AdminClient) -> None:
    from kafka import KafkaAdminClient

    found = admin.describe_cluster().result(20)
    assert found.cluster_id == kafka_cluster.cluster_id
    assert [f"{node.host}:{node.port}" for node in found.nodes] == [kafka_cluster.kafka_bootstrap]
    plain = KafkaAdminClient(bootstrap_servers=kafka_cluster.kafka_bootstrap)
    try:
        assert plain.describe_cluster()["cluster_id"] == kafka_cluster.cluster_id
    finally:
        plain.close()
