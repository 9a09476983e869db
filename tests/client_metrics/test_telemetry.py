"""Telemetry of clients on a driven clock: who is asked for what, how often, and what is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest
from immutables import Map

from tests.kafka.test_otlp import pushed
from tidelog.broker.client_metrics import figures, telemetry
from tidelog.broker.client_metrics.subscriptions import Client, Wanted
from tidelog.broker.client_metrics.telemetry import Push, Subscribed, Telemetry
from tidelog.metadata_quorum.image.change import MetadataDelta
from tidelog.metadata_quorum.image.image import CLIENT_METRICS, MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.api import ConfigResource
from tidelog.proto.records.compression import Compression, compress

ME = bytes(range(16))
ANYBODY = Client("", "app", "librdkafka", "2.16.1", "10.0.0.7", "4711")
MINUTE = 60_000
MAX_BYTES = 10_000


class Node:
    def __init__(self) -> None:
        self.ms = 1_000
        self.telemetry = Telemetry(self, random.Random(1), lambda: MAX_BYTES)
        self._configs: dict[ConfigResource, Map[str, str]] = {}

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms

    def subscribe(self, name: str, **settings: str) -> None:
        resource = ConfigResource(CLIENT_METRICS, name)
        self._configs[resource] = Map({each.replace("_", "."): value for each, value in settings.items()})
        if not settings:
            del self._configs[resource]
        delta = MetadataDelta(configs=frozenset((resource,)))
        list(self.telemetry.on_metadata(MetadataImage(configs=Map(self._configs)), delta))

    def ask(self, instance: bytes = ME, client: Client = ANYBODY) -> Subscribed:
        return self.telemetry.subscribe(instance, client)

    async def push(
        self,
        subscription_id: int,
        *metrics: dict[str, Any],
        instance: bytes = ME,
        client: Client = ANYBODY,
        terminating: bool = False,
        compression: int = 0,
        data: bytes | None = None,
    ) -> ErrorCode:
        data = pushed(*metrics) if data is None else data
        push = Push(instance, subscription_id, terminating, compression, memoryview(data))
        return await self.telemetry.push(push, client)

    def page(self) -> list[str]:
        text = b"".join(self.telemetry.page()).decode()
        return [line for line in text.splitlines() if not line.startswith("#")]


def counter(name: str, value: int, *, delta: bool = False) -> dict[str, Any]:
    body = {"data_points": [{"as_int": value}], "is_monotonic": True, "aggregation_temporality": 1 if delta else 2}
    return {"name": f"org.apache.kafka.{name}", "sum": body}


def gauge(name: str, *values: float) -> dict[str, Any]:
    return {"name": f"org.apache.kafka.{name}", "gauge": {"data_points": [{"as_double": value} for value in values]}}


@pytest.fixture
def node() -> Node:
    return Node()


def test_nobody_is_asked_for_anything_until_somebody_subscribes(node: Node) -> None:
    first = node.ask(bytes(16))
    assert first.error is ErrorCode.NONE
    assert first.client_instance_id not in telemetry.RESERVED_IDS
    assert first.wanted == Wanted((), 5 * MINUTE)


@pytest.mark.parametrize(
    ("match", "chosen"),
    [
        ("", True),
        ("client_id=app", True),
        ("client_id=ap", False),
        ("client_id=a.*,client_software_name=librd.*", True),
        ("client_id=a.*,client_software_name=apache.*", False),
        (r"client_source_address=10\.0\..*,client_source_port=4711,client_software_version=2\..*", True),
        ("client_instance_id=nobody", False),
    ],
)
def test_a_subscription_chooses_clients_by_whole_attributes(node: Node, match: str, chosen: bool) -> None:
    node.subscribe("some", metrics="org.apache.kafka.producer", interval_ms="1000", match=match)
    assert node.ask().wanted == (Wanted(("org.apache.kafka.producer",), 1_000) if chosen else Wanted())


def test_subscriptions_add_up_and_the_shortest_interval_counts(node: Node) -> None:
    node.subscribe("one", metrics="a,b", interval_ms="2000")
    node.subscribe("two", metrics="b,c", interval_ms="900000")
    one = node.ask()
    assert one.wanted == Wanted(("a", "b", "c"), 2_000)
    node.subscribe("all", metrics="*")
    node.ms += 2_000
    every = node.ask()
    assert every.wanted.metrics == ("*",)
    assert every.subscription_id != one.subscription_id
    assert node.ask(bytes(15) + b"\2").subscription_id != every.subscription_id


async def test_a_push_comes_once_an_interval_and_the_first_at_once(node: Node) -> None:
    node.subscribe("all", metrics="*", interval_ms="1000")
    me = node.ask().subscription_id
    assert node.ask().error is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert await node.push(me, counter("a", 1)) is ErrorCode.NONE
    node.ms += 999
    assert await node.push(me, counter("a", 2)) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    node.ms += 1
    assert await node.push(me, counter("a", 3)) is ErrorCode.NONE
    assert node.page() == ['kafka_client_a_total{client_id="app"} 3.0']
    assert (node.telemetry.pushes, node.telemetry.throttled) == (2, 2)


async def test_the_last_push_comes_at_any_time_and_nothing_behind_it(node: Node) -> None:
    node.subscribe("all", metrics="*", interval_ms="60000")
    me = node.ask().subscription_id
    assert await node.push(me, counter("a", 1)) is ErrorCode.NONE
    assert await node.push(me, counter("a", 5), terminating=True) is ErrorCode.NONE
    node.ms += MINUTE
    assert await node.push(me, counter("a", 6)) is ErrorCode.INVALID_REQUEST
    assert node.page() == ['kafka_client_a_total{client_id="app"} 5.0']


async def test_a_push_for_another_subscription_is_refused_and_the_new_one_told_at_once(node: Node) -> None:
    node.subscribe("some", metrics="org.apache.kafka.a", interval_ms="60000")
    old = node.ask().subscription_id
    assert await node.push(old, counter("a", 1)) is ErrorCode.NONE
    node.subscribe("some", metrics="org.apache.kafka.b", interval_ms="60000")
    assert await node.push(old, counter("a", 1)) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert node.page() == []
    node.subscribe("some", metrics="org.apache.kafka.b", interval_ms="50000")
    new = node.ask()
    assert new.error is ErrorCode.NONE
    assert await node.push(new.subscription_id, counter("a", 1), counter("b", 2)) is ErrorCode.NONE
    assert node.page() == ['kafka_client_b_total{client_id="app"} 2.0']
    node.subscribe("some")
    assert node.page() == []


@pytest.mark.parametrize("kind", list(Compression))
async def test_every_codec_is_read(node: Node, kind: Compression) -> None:
    node.subscribe("all", metrics="*")
    me = node.ask().subscription_id
    data = compress(kind, pushed(gauge("lag", 4.5)))
    assert await node.push(me, data=data, compression=kind) is ErrorCode.NONE
    assert node.page() == ['kafka_client_lag{client_id="app"} 4.5']


@pytest.mark.parametrize(
    ("data", "compression", "error"),
    [
        (bytes(MAX_BYTES + 1), 0, ErrorCode.TELEMETRY_TOO_LARGE),
        (compress(Compression.ZSTD, bytes(4 * MAX_BYTES + 1)), 4, ErrorCode.TELEMETRY_TOO_LARGE),
        (compress(Compression.GZIP, bytes(4 * MAX_BYTES + 1)), 1, ErrorCode.TELEMETRY_TOO_LARGE),
        (b"\x0a\x05abc", 0, ErrorCode.INVALID_RECORD),
        (b"no zstd", 4, ErrorCode.INVALID_RECORD),
        (b"x", 5, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (b"x", -1, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ],
)
async def test_what_cannot_be_read_is_refused(node: Node, data: bytes, compression: int, error: ErrorCode) -> None:
    node.subscribe("all", metrics="*")
    me = node.ask().subscription_id
    assert await node.push(me, data=data, compression=compression) is error
    assert node.page() == []
    assert await node.push(0, instance=bytes(16)) is ErrorCode.INVALID_REQUEST


async def test_one_series_a_client_id(node: Node) -> None:
    """Counters of its instances and points add up, of gauges the largest is shown; what ended still counts."""
    node.subscribe("all", metrics="*", interval_ms="1000")
    others = [bytes(15) + bytes((number,)) for number in (7, 8)]
    for number, instance in enumerate(others, 1):
        me = node.ask(instance).subscription_id
        found = await node.push(me, counter("sent", 10 * number), gauge("lag", number, 9 - number), instance=instance)
        assert found is ErrorCode.NONE
    lines = ['kafka_client_lag{client_id="app"} 8.0', 'kafka_client_sent_total{client_id="app"} 30.0']
    assert node.page() == lines
    for _ in range(60):
        node.ms += 1_000
        me = node.ask(others[1]).subscription_id
    assert node.telemetry.clients == 1
    assert node.page() == ['kafka_client_lag{client_id="app"} 7.0', lines[1]]
    node.ms += MINUTE
    assert node.telemetry.clients == 0
    assert (node.page(), node.telemetry.figures.values) == ([], 0)


async def test_differences_are_added_up(node: Node) -> None:
    node.subscribe("all", metrics="*", interval_ms="1000")
    me = node.ask().subscription_id
    for value in (3, 4):
        assert await node.push(me, counter("sent.total", value, delta=True)) is ErrorCode.NONE
        node.ms += 1_000
    assert node.page() == ['kafka_client_sent_total{client_id="app"} 7.0']


async def test_names_of_clients_and_metrics_do_no_harm(node: Node) -> None:
    node.subscribe("all", metrics="*")
    odd = ANYBODY._replace(client_id='a"b\\c\nd')
    me = node.ask(client=odd).subscription_id
    metric = gauge("x", 1) | {"name": "kafka_server_replicamanager_leadercount\n# TYPE"}
    assert await node.push(me, metric, client=odd) is ErrorCode.NONE
    assert b"".join(node.telemetry.page()).decode() == (
        "# HELP kafka_client_kafka_server_replicamanager_leadercount___TYPE"
        " kafka_server_replicamanager_leadercount\\n# TYPE\n"
        "# TYPE kafka_client_kafka_server_replicamanager_leadercount___TYPE gauge\n"
        'kafka_client_kafka_server_replicamanager_leadercount___TYPE{client_id="a\\"b\\\\c\\nd"} 1.0\n'
    )


async def test_clients_names_and_figures_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "CLIENTS_MAX", 3)
    monkeypatch.setattr(figures, "NAMES_MAX", 4)
    monkeypatch.setattr(figures, "VALUES_MAX", 6)
    node.subscribe("all", metrics="*")
    for number in range(5):
        instance, client = bytes(15) + bytes((number + 5,)), ANYBODY._replace(client_id=f"c{number}")
        me = node.ask(instance, client).subscription_id
        metrics = [gauge(f"m{which}", number) for which in range(3)]
        assert await node.push(me, *metrics, instance=instance, client=client) is ErrorCode.NONE
        node.ms += 1
    assert node.telemetry.clients == 3, "the oldest two had to go"
    assert node.telemetry.figures.values == 6
    assert node.telemetry.figures.dropped == 3
    assert {line.partition("{")[2] for line in node.page()} == {'client_id="c3"} 3.0', 'client_id="c4"} 4.0'}
    me = node.ask(ME, ANYBODY).subscription_id
    many = [gauge(f"n{which}", 1) for which in range(5)]
    assert await node.push(me, *many) is ErrorCode.NONE
    assert len({line.partition("{")[0] for line in node.page()}) <= 4
