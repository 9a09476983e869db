"""Consumers in a rack read from the replica there: ours and librdkafka, on nodes of three racks (KIP-392)."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import confluent_kafka
import pytest

from tidelog import Admin, Consumer, NewTopic, Producer
from tidelog.cli.local.cluster import LocalCluster, rack_of
from tidelog.model.ids import TopicPartition

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
RECORDS, SIZE = 400, 5_000
WAIT_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"replica.selector.class": SELECTOR}
    found = LocalCluster.create(tmp_path_factory.mktemp("racks"), nodes=3, settings=settings, rng=random.Random())
    found.spread_over_racks(3)
    try:
        found.start()
        found.wait_ready()
        yield found
    finally:
        for node in found.nodes:
            found.kill(node)


class Filled:
    """A topic of one partition with records on three nodes."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(topic, 1, 3)])
            with Producer(cluster.bootstrap) as producer:
                self.sent = [b"%06d" % number + bytes(SIZE - 6) for number in range(RECORDS)]
                producer.send_many(topic, self.sent).result()
            (description,) = admin.describe_topics([topic])
        self.leader = description.partitions[0].leader
        self.followers = [node for node in cluster.nodes if node != self.leader]

    def sent_to_consumers(self, node: int) -> int:
        """Bytes of this topic that consumers got from that node."""
        status, text = self.cluster.nodes[node].get("/metrics")
        assert status == 200
        name = f'kafka_server_brokertopicmetrics_bytesout_total{{topic="{self.topic}"}} '
        return int(
            float(next((line[len(name) :] for line in text.decode().splitlines() if line.startswith(name)), "0"))
        )


def read_by_ours(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        found += [record.value for record in consumer.poll(timeout=1)]
    return found


def test_our_consumer_reads_from_its_rack_and_from_the_leader_once_that_node_is_dead(cluster: LocalCluster) -> None:
    filled = Filled(cluster, "ours")
    near, other = filled.followers
    settings = {"client_rack": rack_of(near, 3), "auto_offset_reset": "earliest", "max_partition_fetch_bytes": 50_000}
    with Consumer(cluster.bootstrap, **settings) as consumer:  # type: ignore[arg-type]
        consumer.assign([TopicPartition("ours", 0)])
        found = read_by_ours(consumer, RECORDS // 2)
        assert filled.sent_to_consumers(near) >= RECORDS // 2 * SIZE
        assert filled.sent_to_consumers(filled.leader) == filled.sent_to_consumers(other) == 0
        cluster.kill(near)
        found += read_by_ours(consumer, RECORDS - len(found))
        assert found == filled.sent
        with Producer(cluster.bootstrap) as producer:
            producer.send("ours", b"last").result()
        assert read_by_ours(consumer, 1) == [b"last"]
        assert filled.sent_to_consumers(filled.leader) > 0
    cluster.start([near])
    cluster.wait_ready([near])


def test_a_consumer_of_no_rack_or_of_another_one_reads_from_the_leader(cluster: LocalCluster) -> None:
    filled = Filled(cluster, "far")
    for rack in ("", "rack-9"):
        with Consumer(cluster.bootstrap, client_rack=rack, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("far", 0)])
            assert read_by_ours(consumer, RECORDS) == filled.sent
    assert [filled.sent_to_consumers(node) for node in filled.followers] == [0, 0]


def test_librdkafka_reads_from_its_rack(cluster: LocalCluster) -> None:
    filled = Filled(cluster, "theirs")
    near, other = filled.followers
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "rack",
            "client.rack": rack_of(near, 3),
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition("theirs", 0, 0)])
        found: list[bytes | None] = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < RECORDS and time.monotonic() < deadline:
            for message in consumer.consume(RECORDS, 1.0):
                assert message.error() is None, message.error()
                found.append(message.value())
    finally:
        consumer.close()
    assert found == filled.sent
    assert filled.sent_to_consumers(near) >= RECORDS * SIZE
    assert filled.sent_to_consumers(filled.leader) == filled.sent_to_consumers(other) == 0
