"""Replicas moved and leaders elected by librdkafka and kafka-python, on three nodes, in every version."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.kafka.wire_client import WireClient
from tidelog import TopicPartition
from tidelog.model.errors import ErrorCode
from tidelog.testing.cluster import Cluster

ELECT, ALTER, LIST = 43, 45, 46


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with Cluster(nodes=3, transport="grpc") as cluster:
        yield cluster


@pytest.fixture
def wire(three: Cluster) -> Iterator[WireClient]:
    with WireClient(three.kafka_bootstrap) as found:
        yield found


@pytest.fixture
def topic(three: Cluster, topic_name: Callable[..., str]) -> str:
    """One partition on 1, 2, 3, led by 1."""
    from tidelog import NewTopic

    name = topic_name("moved")
    with three.admin() as admin:
        admin.create_topics([NewTopic(name, assignments={0: [1, 2, 3]})])
    return name


def replicas(three: Cluster, topic: str, wanted: tuple[int, ...], leader: int | None = None) -> bool:
    """Wait until the topic's replicas are these, and in sync."""
    deadline = time.monotonic() + 20
    with three.admin() as admin:
        while time.monotonic() < deadline:
            (found,) = admin.describe_topics([topic])[0].partitions
            if (
                found.replicas == wanted
                and set(found.isr) == set(wanted)
                and (leader is None or found.leader == leader)
                and not admin.list_partition_reassignments()
            ):
                return True
            time.sleep(0.01)
    return False


def at(topic: str, **more: Any) -> list[dict[str, Any]]:
    return [{"name": topic, "partitions": [{"partition_index": 0, **more}]}]


@pytest.mark.parametrize("version", range(2))
def test_moving_and_cancelling(wire: WireClient, three: Cluster, topic: str, version: int) -> None:
    def alter(nodes: list[int] | None, **more: Any) -> tuple[int, str | None]:
        answer = wire.ask(ALTER, version, timeout=20_000, topics=at(topic, replicas=nodes), **more)
        assert (answer.error_code, answer.error_message) == (0, None)
        (found,) = answer.responses[0].partitions
        assert (answer.responses[0].name, found.partition_index) == (topic, 0)
        return found.error_code, found.error_message

    assert alter(None)[0] == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert alter([]) == (ErrorCode.INVALID_REPLICA_ASSIGNMENT, "expected 1 to 32767 replicas, found none")
    assert alter([1, 9])[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    if version:
        refused, text = alter([1], allow_replication_factor_change=False)
        assert (refused, text) == (
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "expected 3 replicas, as many as there are, found 1",
        )
    assert alter([2, 3]) == (0, None)
    assert replicas(three, topic, (2, 3), leader=2)


def test_what_is_under_way_is_listed(wire: WireClient, three: Cluster, topic: str) -> None:
    """It cannot end while the node that is to have a replica is down."""
    with three.admin() as admin:
        admin.alter_partition_reassignments({TopicPartition(topic, 0): [1, 2]})
        assert replicas(three, topic, (1, 2))
        three.kill(3)
        admin.alter_partition_reassignments({TopicPartition(topic, 0): [3, 2]})
        every = wire.ask(LIST, 0, timeout=20_000, topics=None)
        named = [{"name": topic, "partition_indexes": [0, 5]}, {"name": "nobody", "partition_indexes": [0]}]
        assert wire.ask(LIST, 0, timeout=20_000, topics=named) == every
        (found,) = every.topics
        (part,) = found.partitions
        assert (found.name, part.partition_index) == (topic, 0)
        sets = [list(nodes) for nodes in (part.replicas, part.adding_replicas, part.removing_replicas)]
        assert sets == [[3, 2, 1], [3], [1]]
        three.restart(3)
        assert replicas(three, topic, (3, 2))


@pytest.mark.parametrize("version", range(3))
def test_electing(wire: WireClient, three: Cluster, topic: str, version: int) -> None:
    def elect(named: list[dict[str, Any]] | None, kind: int = 0) -> list[tuple[str, int, int]]:
        more = {"election_type": kind} if version else {}
        answer = wire.ask(ELECT, version, topic_partitions=named, timeout=20_000, **more)
        assert not version or answer.error_code == 0
        return [
            (found.topic, part.partition_id, part.error_code)
            for found in answer.replica_election_results
            for part in found.partition_result
        ]

    here = [{"topic": topic, "partitions": [0, 7]}]
    needless = [(topic, 0, ErrorCode.ELECTION_NOT_NEEDED), (topic, 7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert elect(here) == needless
    if version:
        assert elect(here, 1) == needless
        bad = wire.ask(ELECT, version, topic_partitions=None, timeout=20_000, election_type=5)
        assert bad.error_code == ErrorCode.INVALID_REQUEST
    with three.admin() as admin:
        admin.alter_partition_reassignments({TopicPartition(topic, 0): [2, 1, 3]})
    assert elect(None) == [(topic, 0, 0)]
    assert replicas(three, topic, (2, 1, 3), leader=2)


def test_librdkafka_elects(three: Cluster, topic: str) -> None:
    from confluent_kafka import ElectionType, KafkaError
    from confluent_kafka import TopicPartition as Place
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": three.kafka_bootstrap})
    place = Place(topic, 0)
    (needless,) = admin.elect_leaders(ElectionType.PREFERRED, [place]).result(20).values()
    assert needless.code() == KafkaError.ELECTION_NOT_NEEDED
    with three.admin() as own:
        own.alter_partition_reassignments({TopicPartition(topic, 0): [3, 1, 2]})
    (done,) = admin.elect_leaders(ElectionType.PREFERRED, [place]).result(20).values()
    assert done is None
    assert replicas(three, topic, (3, 1, 2), leader=3)


def test_kafka_python_moves_lists_and_elects(three: Cluster, topic: str) -> None:
    from kafka import KafkaAdminClient
    from kafka import TopicPartition as Place
    from kafka.errors import NoReassignmentInProgressError

    admin = KafkaAdminClient(bootstrap_servers=three.kafka_bootstrap)
    try:
        place = Place(topic, 0)
        assert admin.alter_partition_reassignments({place: None}) == {place: NoReassignmentInProgressError}
        assert admin.alter_partition_reassignments({place: [2, 1]}) == {place: None}
        assert replicas(three, topic, (2, 1))
        assert admin.list_partition_reassignments() == {}
        assert admin.elect_leaders(0, {topic: [0]}, raise_errors=False) is not None
        assert replicas(three, topic, (2, 1), leader=2)
    finally:
        admin.close()
