"""Metrics that clients push by themselves (KIP-714): librdkafka's, and requests as they are on the wire."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.in_process import runs_commands
from tests.kafka.test_otlp import pushed
from tests.kafka.wire_client import WireClient
from tidelog.model.errors import ErrorCode
from tidelog.testing.cluster import Cluster

SUBSCRIPTIONS, PUSH, VERSIONS, ALTER, DESCRIBE, LIST = 71, 72, 18, 44, 32, 74
CLIENT_METRICS = 16
BOUND_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, transport="grpc", config={"http.listener": "HTTP://127.0.0.1:0"}) as found:
        yield found


@pytest.fixture
def tidelog(
    cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str]]:
    called = runs_commands(cluster.bootstrap, capfd, monkeypatch)

    def run(*arguments: str) -> tuple[int, str]:
        code, out, err = called("client-metrics", *arguments)
        return code, out + err

    return run


def page(cluster: Cluster) -> dict[str, dict[str, float]]:
    """Metric → client id → value."""
    address = cluster.node(1).http_address
    with urllib.request.urlopen(f"http://{address}/client-metrics", timeout=10) as answer:
        text = str(answer.read(), "utf-8")
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert list(sample.labels) == ["client_id"]
            found.setdefault(sample.name, {})[sample.labels["client_id"]] = sample.value
    return found


def test_librdkafka_pushes_what_somebody_subscribed_to(
    cluster: Cluster, tidelog: Callable[..., tuple[int, str]]
) -> None:
    """The producer is there before the subscription, as it would be in a running cluster, but not chosen by it."""
    cluster.create_topic("t")
    assert tidelog("list", "--json") == (0, "[]\n")
    asked = ("--metrics", "org.apache.kafka.producer,org.apache.kafka.consumer", "--interval", "200")
    assert (
        tidelog("alter", "ours", *asked, "--match", "client_id=orders-.*,client_software_name=confluent-kafka-.*")[0]
        == 0
    )
    address = {"bootstrap.servers": cluster.kafka_bootstrap}
    producer = confluent_kafka.Producer({**address, "client.id": "orders-1"})
    other = confluent_kafka.Producer({**address, "client.id": "payments-1"})
    consumer = confluent_kafka.Consumer({**address, "client.id": "orders-2", "group.id": "g"})
    consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
    made = "kafka_client_producer_connection_creation_total"
    polled = "kafka_client_consumer_connection_creation_total"
    deadline = time.monotonic() + BOUND_S
    found: dict[str, dict[str, float]] = {}
    while found.get(made, {}).get("orders-1", 0) < 1 or found.get(polled, {}).get("orders-2", 0) < 1:
        assert time.monotonic() < deadline, found
        for each in (producer, other):
            each.produce("t", b"x")
            each.poll(0)
        consumer.poll(0.1)
        found = page(cluster)
    assert {client for values in found.values() for client in values} == {"orders-1", "orders-2"}
    assert all(name.startswith("kafka_client_") for name in found)
    consumer.close()
    assert tidelog("delete", "ours")[0] == 0
    deadline = time.monotonic() + BOUND_S
    while page(cluster):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_subscriptions_are_kept_shown_and_deleted(tidelog: Callable[..., tuple[int, str]]) -> None:
    assert tidelog("alter", "a", "--metrics", "*", "--interval", "1000")[0] == 0
    assert tidelog("alter", "a", "--match", "client_id=x.*", "--reset", "interval.ms")[0] == 0
    code, out = tidelog("describe", "--json")
    assert (code, json.loads(out)) == (
        0,
        [{"name": "a", "metrics": "*", "interval.ms": "300000", "match": "client_id=x.*"}],
    )
    for arguments, said in (
        (("alter", "a", "--interval", "99"), "whole number between 100 and 3600000"),
        (("alter", "a", "--match", "colour=red"), "ATTRIBUTE=REGEX"),
        (("alter", "a", "--match", "client_id=(?=x)"), "regular expression of RE2"),
        (("alter", "", "--metrics", "*"), "named by 1 to 1024 bytes"),
        (("alter", "a"), "found none"),
        (("describe", "b"), "expected a subscription that exists, found 'b'"),
        (("delete", "b"), "expected a subscription that exists, found 'b'"),
    ):
        code, out = tidelog(*arguments)
        assert code != 0
        assert said in out.replace("\n", " "), out
    assert tidelog("delete", "a")[0] == 0
    assert tidelog("list") == (0, "")


def test_the_requests_as_kafkas_tool_sends_them(cluster: Cluster) -> None:
    resource = {"resource_type": CLIENT_METRICS, "resource_name": "wire"}
    with WireClient(cluster.kafka_bootstrap, "raw") as wire:
        wire.ask(VERSIONS, 3, client_software_name="raw-client", client_software_version="7")
        configs = [
            {"name": "metrics", "config_operation": 0, "value": "org.apache.kafka."},
            {"name": "interval.ms", "config_operation": 0, "value": "60000"},
            {"name": "match", "config_operation": 0, "value": "client_software_name=raw-client"},
        ]
        (altered,) = wire.ask(ALTER, 1, resources=[{**resource, "configs": configs}]).responses
        assert altered.error_code == 0, altered.error_message
        (described,) = wire.ask(DESCRIBE, 4, resources=[{**resource, "configuration_keys": None}]).results
        assert {each.name: (each.value, each.config_source) for each in described.configs} == {
            "metrics": ("org.apache.kafka.", 7),
            "interval.ms": ("60000", 7),
            "match": ("client_software_name=raw-client", 7),
        }
        assert [each.resource_name for each in wire.ask(LIST, 0).config_resources] == ["wire"]
        listed = wire.ask(LIST, 1, resource_types=[CLIENT_METRICS]).config_resources
        assert [(each.resource_name, each.resource_type) for each in listed] == [("wire", CLIENT_METRICS)]
        told = wire.ask(SUBSCRIPTIONS, 0)
        assert (told.error_code, told.requested_metrics, told.push_interval) == (0, ("org.apache.kafka.",), 60_000)
        assert told.accepted_compression_types == (4, 3, 1, 2)
        assert told.telemetry_max_bytes == 2**20
        assert not told.delta_temporality
        again = wire.ask(SUBSCRIPTIONS, 0, client_instance_id=told.client_instance_id)
        assert again.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        me = {"client_instance_id": told.client_instance_id, "subscription_id": told.subscription_id}
        metrics = pushed({"name": "org.apache.kafka.x", "gauge": {"data_points": [{"as_int": 3}]}})
        assert wire.ask(PUSH, 0, **me | {"subscription_id": 1}).error_code == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        last = me | {"terminating": True, "metrics": metrics}
        assert wire.ask(PUSH, 0, **last).error_code == 0
        assert wire.ask(PUSH, 0, **last).error_code == ErrorCode.INVALID_REQUEST
        assert page(cluster)["kafka_client_x"] == {"raw": 3.0}
        gone = [{**each, "config_operation": 1, "value": None} for each in configs]
        assert wire.ask(ALTER, 1, resources=[{**resource, "configs": gone}]).responses[0].error_code == 0
        assert wire.ask(LIST, 0).config_resources == ()
