"""A client of others that reads through a fetch session while partitions come, fill and are paused."""

from __future__ import annotations

import time
from collections.abc import Callable

from kafka import KafkaConsumer, TopicPartition

from tidelog.testing.cluster import Cluster

BOUND_S = 60.0


def test_kafka_python_reads_everything_once_through_one_session(
    kafka_cluster: Cluster, topic_name: Callable[..., str]
) -> None:
    topic = topic_name("fetched")
    kafka_cluster.create_topic(topic, partitions=6)
    broker = kafka_cluster.node(1).broker
    assert broker is not None
    before = len(broker.fetch_sessions)
    consumer = KafkaConsumer(
        bootstrap_servers=kafka_cluster.kafka_bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=100
    )
    places = [TopicPartition(topic, number) for number in range(6)]
    sent: list[bytes] = []
    read: list[bytes] = []
    most = 0
    with kafka_cluster.producer() as producer:

        def send(partition: int, value: bytes) -> None:
            producer.send(topic, value, partition=partition).result()
            sent.append(value)

        def poll_until_read() -> None:
            nonlocal most
            end = time.monotonic() + BOUND_S
            while len(read) < len(sent) and time.monotonic() < end:
                for records in consumer.poll(timeout_ms=200).values():
                    read.extend(record.value for record in records)
                most = max(most, broker.fetch_sessions.partitions)
            assert sorted(read) == sorted(sent)

        consumer.assign(places[:3])
        for round_number in range(3):
            for partition in range(3):
                send(partition, b"%d-%d" % (round_number, partition))
            poll_until_read()
        consumer.pause(places[0])
        send(1, b"while another is paused")
        poll_until_read()
        consumer.resume(places[0])
        consumer.assign(places)
        for partition in range(6):
            send(partition, b"to all, %d" % partition)
        poll_until_read()
    assert len(broker.fetch_sessions) == before + 1
    assert most >= 6
    consumer.close()
