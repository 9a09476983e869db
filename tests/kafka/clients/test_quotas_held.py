"""Quotas on a running node, as clients of both protocols meet them.

Bounds on time are lower ones: a slow machine only makes them easier to keep.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

import confluent_kafka
import kafka
import pytest

from tidelog import ClientQuotaEntity, Consumer, Producer
from tidelog.proto.kafka.headers import API_VERSIONS, is_flexible
from tidelog.proto.kafka.messages import decode_response, request_frame
from tidelog.proto.records.encoder import encode_values
from tidelog.testing.cluster import Cluster

PRODUCE, FETCH, METADATA, LIST_GROUPS = 0, 1, 3, 16
LONG_MS = 60_000
"""A wait that no test sits out."""


class Limit(Protocol):
    """Sets quotas of a user or client."""

    def __call__(self, values: dict[str, float], **entity: str) -> None: ...


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, transport="grpc") as found:
        yield found


@pytest.fixture
def limit(cluster: Cluster) -> Iterator[Limit]:
    with cluster.admin() as admin:

        def set_quota(values: dict[str, float], **entity: str) -> None:
            admin.alter_client_quotas({ClientQuotaEntity(**entity): values})

        yield set_quota
        found = admin.describe_client_quotas()
        admin.alter_client_quotas({entity: dict.fromkeys(values) for entity, values in found.items()})


class Wire:
    """A Kafka connection with a client id."""

    def __init__(self, cluster: Cluster, client_id: str) -> None:
        host, _, port = cluster.kafka_bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 20)
        self._client_id = client_id.encode()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def frame(self, key: int, version: int, **values: Any) -> bytes:
        return request_frame(key, version, 1, values, self._client_id)

    def send(self, key: int, version: int, **values: Any) -> int:
        """Return the request's size."""
        data = self.frame(key, version, **values)
        self.socket.sendall(data)
        return len(data) - 4

    def answer(self, key: int, version: int) -> Any:
        (size,) = struct.unpack(">i", self._read(4))
        start = 5 if is_flexible(key, version) and key != API_VERSIONS else 4
        return decode_response(key, version, self._read(size)[start:])

    def ask(self, key: int, version: int, **values: Any) -> Any:
        self.send(key, version, **values)
        return self.answer(key, version)

    @property
    def silent(self) -> bool:
        return not select.select([self.socket], [], [], 0)[0]

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            piece = self.socket.recv(size - len(found))
            assert piece, "the connection was closed instead of an answer"
            found += piece
        return found


def produce_values(topic: str, size: int) -> dict[str, Any]:
    records = bytes(encode_values([b"x" * size], 0))
    return {"acks": -1, "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]}


def wait_ms(used: float, limit: float) -> int:
    """Kafka's formula, for what is used at once."""
    return round((used / 10 - limit) / limit * 10_000)


@pytest.mark.parametrize("version", [3, 8, 12])
def test_a_producer_over_its_quota_is_told_to_wait_and_not_read(cluster: Cluster, limit: Limit, version: int) -> None:
    topic = f"produced-{version}"
    cluster.create_topic(topic)
    limit({"producer_byte_rate": 200.0}, client_id="slow")
    with Wire(cluster, "slow") as slow, Wire(cluster, "fast") as fast:
        size = slow.send(PRODUCE, version, **produce_values(topic, 14_000))
        answer = slow.answer(PRODUCE, version)
        assert answer.responses[0].partition_responses[0].error_code == 0, "it was appended"
        assert answer.throttle_time == wait_ms(size, 200) > LONG_MS
        slow.send(METADATA, 5, topics=[])
        assert fast.ask(PRODUCE, version, **produce_values(topic, 100_000)).throttle_time == 0
        assert fast.ask(METADATA, 5, topics=[]).throttle_time == 0
        assert slow.silent, "its next request was answered before its time"


def test_a_held_connection_is_read_again_after_its_time(cluster: Cluster, limit: Limit) -> None:
    cluster.create_topic("resumed")
    limit({"producer_byte_rate": 10_000.0}, user="ANONYMOUS")
    with Wire(cluster, "any") as wire:
        started = time.monotonic()
        values = produce_values("resumed", 112_000)
        told = wire.ask(PRODUCE, 12, **values).throttle_time
        assert 1_000 < told < 1_500
        assert wire.ask(METADATA, 9, topics=[]).throttle_time == 0
        assert time.monotonic() - started >= told / 1000


def fetch_values(topic: str, offset: int) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 2**20}
    return {
        "replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 2**20,
        "topics": [{"topic": topic, "partitions": [partition]}],
    }  # fmt: skip


@pytest.mark.parametrize("version", [4, 8, 12])
def test_a_fetch_over_its_quota_is_answered_empty(cluster: Cluster, limit: Limit, version: int) -> None:
    topic = f"fetched-{version}"
    cluster.create_topic(topic)
    with Wire(cluster, "writer") as writer:
        for _ in range(6):
            assert writer.ask(PRODUCE, 8, **produce_values(topic, 3_000)).throttle_time == 0
    limit({"consumer_byte_rate": 1_000.0}, user="", client_id="")
    with Wire(cluster, "reader") as reader:
        first = reader.ask(FETCH, version, **fetch_values(topic, 0))
        (partition,) = first.responses[0].partitions
        assert first.throttle_time == 0
        assert 3_000 <= len(partition.records) <= 10_000, "no more than ten seconds' worth"
        second = reader.ask(FETCH, version, **fetch_values(topic, 3))
        assert 0 < second.throttle_time < 20_000
        assert second.responses == ()
        reader.send(FETCH, version, **fetch_values(topic, 3))
        assert reader.silent
    with Wire(cluster, "another") as another:
        answer = another.ask(FETCH, version, **fetch_values(topic, 0))
        assert answer.responses[0].partitions[0].records, "each client id has a share of its own"


def test_request_time_is_bounded_for_every_api(cluster: Cluster, limit: Limit) -> None:
    cluster.create_topic("timed")
    limit({"request_percentage": 1e-7}, client_id="busy")
    asked: list[tuple[int, int, dict[str, Any]]] = [
        (METADATA, 5, {"topics": []}),
        (METADATA, 12, {"topics": []}),
        (LIST_GROUPS, 3, {}),
        (PRODUCE, 8, produce_values("timed", 10)),
        (FETCH, 8, fetch_values("timed", 0)),
    ]
    for key, version, values in asked:
        with Wire(cluster, "busy") as wire:
            assert wire.ask(key, version, **values).throttle_time == 1_000, f"API {key}: a window at most"
    with Wire(cluster, "busy") as wire:
        started = time.monotonic()
        wire.ask(METADATA, 2, topics=[])
        wire.ask(METADATA, 2, topics=[])
        assert time.monotonic() - started >= 1, "it is held, though its version cannot say so"


def test_librdkafka_hears_how_long_it_waits(cluster: Cluster, limit: Limit) -> None:
    limit({"producer_byte_rate": 5_000.0}, client_id="rdkafka")
    told: list[float] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.kafka_bootstrap,
            "client.id": "rdkafka",
            "linger.ms": 0,
            "batch.num.messages": 1,
            "throttle_cb": lambda event: told.append(event.throttle_time),
        }
    )
    started = time.monotonic()
    failed: list[object] = []
    for _ in range(16):
        producer.produce("heard", b"x" * 4_000, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(60) == 0
    assert failed == []
    assert max(told) > 0
    assert time.monotonic() - started >= 16 * 4_000 / 5_000 - 11 - 1, "64 kB came faster than the quota allows"
    assert time.monotonic() - started >= 1


def test_kafka_python_reads_everything_at_its_rate(cluster: Cluster, limit: Limit) -> None:
    topic, rate, count = "read", 20_000, 30
    cluster.create_topic(topic)
    with Wire(cluster, "writer") as writer:
        for _ in range(count):
            writer.ask(PRODUCE, 8, **produce_values(topic, 9_000))
    limit({"consumer_byte_rate": float(rate)}, client_id="python")
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=cluster.kafka_bootstrap, client_id="python", auto_offset_reset="earliest",
        max_partition_fetch_bytes=30_000,
    )  # fmt: skip
    offsets: list[int] = []
    started = time.monotonic()
    try:
        while len(offsets) < count and time.monotonic() - started < 120:
            for records in consumer.poll(1_000).values():
                offsets += [record.offset for record in records]
    finally:
        consumer.close()
    assert offsets == list(range(count))
    assert time.monotonic() - started >= count * 9_000 / rate - 11


def test_the_sdk_is_held_back_on_its_streams(cluster: Cluster, limit: Limit) -> None:
    cluster.create_topic("sdk")
    limit({"producer_byte_rate": 2_000.0}, client_id="writer")
    with Producer(cluster.bootstrap, client_id="other") as other:
        for _ in range(3):
            other.send("sdk", b"x" * 20_000).result(20)
    started = time.monotonic()
    with Producer(cluster.bootstrap, client_id="writer") as producer:
        for _ in range(3):
            producer.send("sdk", b"x" * 11_000).result(60)
    assert time.monotonic() - started >= 1, "33 kB at 2 kB a second came within the burst of 20 kB"
    limit({"consumer_byte_rate": 7_000.0}, client_id="reader")
    started = time.monotonic()
    with Consumer(
        cluster.bootstrap, client_id="reader", auto_offset_reset="earliest", max_partition_fetch_bytes=20_000
    ) as consumer:
        consumer.assign([("sdk", 0)])
        found = 0
        while found < 6:
            found += len(list(consumer.poll(1)))
    assert time.monotonic() - started >= 1, "93 kB at 7 kB a second came within the burst of 70 kB"


def test_a_held_connection_is_closed_with_its_node() -> None:
    with Cluster(nodes=1, transport="grpc") as cluster:
        cluster.create_topic("t")
        with cluster.admin() as admin:
            admin.alter_client_quotas({ClientQuotaEntity(client_id="slow"): {"producer_byte_rate": 1.0}})
        before = threading.active_count()
        with Wire(cluster, "slow") as wire:
            assert wire.ask(PRODUCE, 12, **produce_values("t", 10_000)).throttle_time > LONG_MS
            wire.send(METADATA, 9, topics=[])
            cluster.stop_node(1)
            assert wire.socket.recv(1) == b"", "the node went and the connection stayed"
        assert threading.active_count() <= before
