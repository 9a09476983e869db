"""controller_mutation_rate, as clients of both protocols meet it. One partition a minute and a second: bursts of eleven
times that, so that no test waits for more than a few seconds and none depends on how fast it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka.admin
import kafka
import kafka.errors
import pytest

from tests.kafka.wire_client import WireClient
from tidelog import Admin, ClientQuotaEntity, NewTopic
from tidelog.client.errors import ThrottlingQuotaExceededError
from tidelog.model.errors import ErrorCode
from tidelog.testing.cluster import Cluster

CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS, METADATA = 19, 20, 37, 3
OVER = ErrorCode.THROTTLING_QUOTA_EXCEEDED
LEAST_MS = 60_000
"""What the slow quota has its clients wait at least."""
RATE = 0.01


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, transport="grpc") as found:
        yield found


@pytest.fixture
def client_id(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A client of its own for each test, that may change one partition and then waits for minutes."""
    name: str = request.node.name
    limit(cluster, name, RATE)
    return name


def limit(cluster: Cluster, client_id: str, rate: float) -> None:
    with cluster.admin() as admin:
        admin.alter_client_quotas({ClientQuotaEntity(client_id=client_id): {"controller_mutation_rate": rate}})


def topics(*names: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []} for name in names
    ]


def use_up(cluster: Cluster, client_id: str) -> None:
    with WireClient(cluster.kafka_bootstrap, client_id) as wire:
        wanted = topics(f"{client_id}-before")
        answer = wire.ask(CREATE_TOPICS, 7, topics=wanted, timeout=10_000, validate_only=False)
        assert answer.topics[0].error_code == 0


def test_new_versions_are_refused_and_old_ones_wait(cluster: Cluster, client_id: str) -> None:
    use_up(cluster, client_id)
    cluster.create_topic("there")

    def ask(key: int, version: int, **values: Any) -> tuple[list[int], int]:
        with WireClient(cluster.kafka_bootstrap, client_id) as wire:
            answer = wire.ask(key, version, timeout=10_000, **values)
        results = (
            answer.topics if key == CREATE_TOPICS else answer.responses if key == DELETE_TOPICS else answer.results
        )
        return [result.error_code for result in results], answer.throttle_time

    growth = [{"name": "there", "count": 2, "assignments": None}]
    named = {"name": "there", "topic_id": bytes(16)}
    for key, version, values in (
        (CREATE_TOPICS, 6, {"topics": topics("second"), "validate_only": False}),
        (CREATE_PARTITIONS, 3, {"topics": growth, "validate_only": False}),
        (DELETE_TOPICS, 5, {"topic_names": ["there"]}),
        (DELETE_TOPICS, 6, {"topics": [named]}),
    ):
        errors, wait_ms = ask(key, version, **values)
        assert (errors, wait_ms > LEAST_MS) == ([OVER], True), (key, version)
    waits = []
    for key, version, values in (
        (CREATE_TOPICS, 5, {"topics": topics("second"), "validate_only": False}),
        (CREATE_PARTITIONS, 2, {"topics": growth, "validate_only": False}),
        (DELETE_TOPICS, 4, {"topic_names": ["there"]}),
    ):
        errors, wait_ms = ask(key, version, **values)
        assert errors == [0], (key, version)
        waits.append(wait_ms)
    assert LEAST_MS < waits[0] < waits[1] < waits[2], "each one takes more"


def test_a_connection_is_held_for_as_long_as_its_client_is_told(cluster: Cluster, client_id: str) -> None:
    limit(cluster, client_id, 2.0)
    with WireClient(cluster.kafka_bootstrap, client_id) as wire:
        started = time.monotonic()
        names = [f"held-{number}" for number in range(26)]
        answer = wire.ask(CREATE_TOPICS, 5, topics=topics(*names), timeout=10_000, validate_only=False)
        assert {topic.error_code for topic in answer.topics} == {0}
        assert 0 < answer.throttle_time <= 2_000
        wire.ask(METADATA, 5, topics=[])
        assert time.monotonic() - started >= answer.throttle_time / 1_000


def test_a_topic_made_by_its_first_use_is_charged_too(cluster: Cluster, client_id: str) -> None:
    use_up(cluster, client_id)
    with WireClient(cluster.kafka_bootstrap, client_id) as wire:
        asked = [{"name": "by-use", "topic_id": bytes(16)}]
        answer = wire.ask(METADATA, 12, topics=asked, allow_auto_topic_creation=True)
        assert answer.topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE, "which clients try again after"
    with cluster.admin() as admin:
        assert "by-use" not in [topic.name for topic in admin.list_topics()]


def test_librdkafka_is_served_and_told_to_wait(cluster: Cluster, client_id: str) -> None:
    """It speaks a version without the error."""
    use_up(cluster, client_id)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.kafka_bootstrap, "client.id": client_id})
    made = admin.create_topics([confluent_kafka.admin.NewTopic("from-librdkafka", 1, 1)], request_timeout=30)
    assert made["from-librdkafka"].result(30) is None


def test_kafka_python_is_told(cluster: Cluster, client_id: str) -> None:
    use_up(cluster, client_id)
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.kafka_bootstrap, client_id=client_id)
    try:
        with pytest.raises(kafka.errors.ThrottlingQuotaExceededError):
            admin.create_topics([kafka.admin.NewTopic("from-kafka-python", 1, 1)], timeout_ms=5_000)
    finally:
        admin.close()


def test_the_sdk_asks_again_for_what_was_kept_back(cluster: Cluster) -> None:
    limit(cluster, "ours", 2.0)
    names = [f"ours-{number}" for number in range(3)]
    with Admin(cluster.bootstrap, client_id="ours") as admin:
        started = time.monotonic()
        made = admin.create_topics([NewTopic(name, 12, 1) for name in names])
        assert [topic.name for topic in made] == names
        assert time.monotonic() - started >= 1, "the second takes two more than there are, so that the third waits"
        limit(cluster, "ours", RATE)
        with pytest.raises(ThrottlingQuotaExceededError, match="controller_mutation_rate"):
            admin.delete_topics(names, timeout=2)
        assert set(names) <= {topic.name for topic in admin.list_topics()}
