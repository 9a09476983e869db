"""The steps of "Migrate from Kafka" against Apache Kafka itself, whose leader is killed on the way.

Skipped where Kafka's jars are not there: ``./dev beside-kafka --jars`` brings them, with Java and Maven.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tidelog.bench.kafka_side.kafka import KafkaMissing, class_path, running
from tidelog.cli.local.process import ProcessMark

from .test_operations import Operator, reader, steps
from .test_readme import Reader

__all__ = ["reader"]

WAIT_S: Final = 60.0
SMALL_JVM: Final = ("-Xmx256M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
SETTINGS: Final = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.min.isr": 1,
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
    "log.cleaner.backoff.ms": 500,
}
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS: Final = 3
KEYS: Final = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}


class Kafka(NamedTuple):
    """Two brokers; the first is the controller as well."""

    bootstrap: str
    marks: list[ProcessMark]


class Seen(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp: int


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Kafka]:
    try:
        classes = class_path(bring=False)
    except KafkaMissing as missing:
        pytest.skip(str(missing))
    with running(classes, tmp_path, brokers=2, controllers=1, jvm=SMALL_JVM, settings=SETTINGS) as (bootstrap, marks):
        yield Kafka(bootstrap, marks)


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


def read(bootstrap: str, topic: str) -> dict[tuple[int, int], Seen]:
    """What a reader of committed records gets, by partition and offset."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer: Any = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "judge", "enable.auto.commit": False, "check.crcs": True,
         "isolation.level": "read_committed", "enable.partition.eof": True}
    )  # fmt: skip
    found: dict[tuple[int, int], Seen] = {}
    try:
        partitions = sorted(consumer.list_topics(topic, WAIT_S).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        ended: set[int] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(WAIT_S)
            assert message is not None, f"{topic}: {len(found)} records, partitions {ended} ended"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
                continue
            seen = Seen(message.key(), message.value(), tuple(message.headers() or ()), message.timestamp()[1])
            found[message.partition(), message.offset()] = seen
    finally:
        consumer.close()
    return found


def transactional(bootstrap: str, name: str) -> Any:
    from confluent_kafka import Producer

    producer: Any = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 2, "transaction.timeout.ms": 300_000}
    )
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for number in range(10):
        producer.produce("orders", f"{name} {number}".encode(), partition=number % PARTITIONS)
    assert producer.flush(WAIT_S) == 0
    return producer


def make_topics(bootstrap: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    kinds = {"orders": (PARTITIONS, {"retention.ms": "-1"}), "keys": (1, KEYS)}
    wanted = [NewTopic(name, count, 2, config=config) for name, (count, config) in kinds.items()]
    for made in admin.create_topics(wanted).values():
        made.result(WAIT_S)


def fill(bootstrap: str) -> None:
    """Every codec, a compacted log, a group, transactions that were committed and aborted."""
    from confluent_kafka import Consumer, Producer

    for codec in CODECS:
        producer: Any = Producer(
            {"bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": True}
        )
        for number in range(60):
            value = f"{codec} {number} {'x' * 200}".encode()
            headers = [("n", str(number).encode())]
            producer.produce("orders", value, b"k", number % PARTITIONS, headers=headers, timestamp=1_700_000_000_000)
            if number < 10:
                producer.produce("keys", f"{codec} {number}".encode(), str(number % 3).encode())
        assert producer.flush(WAIT_S) == 0
        time.sleep(0.15)  # so that the compacted topic's next record rolls a segment
    transactional(bootstrap, "committed").commit_transaction(WAIT_S)
    transactional(bootstrap, "aborted").abort_transaction(WAIT_S)
    until(lambda: len(read(bootstrap, "keys")) < 10 * len(CODECS), "Kafka compacts")

    consumer: Any = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    assert len(consumer.consume(100, WAIT_S)) == 100
    consumer.close()  # commits


def committed(bootstrap: str) -> dict[int, int]:
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap})
    (found,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("readers")]).values()
    return {one.partition: one.offset for one in found.result(WAIT_S).topic_partitions}


class Load:
    """Produces while the link runs. Kills the second broker, which leads some partitions, produces on, and stops."""

    def __init__(self, kafka: Kafka, home: Path) -> None:
        self._kafka = kafka
        self._home = home
        self._thread = threading.Thread(target=self._work)
        self.failure: BaseException | None = None
        self.led: list[int] = []
        self.sent: set[bytes] = set()

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(2 * WAIT_S)
        assert self.failure is None, self.failure

    def _work(self) -> None:
        try:
            self._produce()
        except BaseException as failure:
            self.failure = failure
        finally:
            (self._home / "producers-stopped").touch()

    def _produce(self) -> None:
        from confluent_kafka import Producer

        producer: Any = Producer(
            {
                "bootstrap.servers": self._kafka.bootstrap,
                "enable.idempotence": True,
                "compression.type": "lz4",
                "log_level": 2,
            }
        )

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            self.sent.add(message.value())

        def produce(name: str, count: int) -> None:
            for number in range(count):
                producer.produce(
                    "orders", f"{name} {number}".encode(), partition=number % PARTITIONS, on_delivery=delivered
                )
                producer.poll(0.002)

        rounds = itertools.count()
        until((self._home / "link.log").exists, "the link runs")
        while not (self._home / "producers-must-stop").exists():
            produce(f"early {next(rounds)}", 30)
        partitions = producer.list_topics("orders", WAIT_S).topics["orders"].partitions
        self.led = [number for number, one in partitions.items() if one.leader == 2]
        os.kill(self._kafka.marks[1].pid, signal.SIGKILL)
        produce("late", 300)
        assert producer.flush(WAIT_S) == 0


@pytest.mark.timeout(300)
def test_kafka_is_left_as_the_page_says(reader: Reader, kafka: Kafka, tmp_path: Path) -> None:
    operator = Operator(reader, tmp_path)
    make_topics(kafka.bootstrap)
    fill(kafka.bootstrap)
    left_open = transactional(kafka.bootstrap, "open")
    operator.run("tidelog cluster start --free-ports --nodes 1")
    text = steps("Migrate from Kafka", tmp_path).text
    stopping = "# 2. Stop the producers there"
    assert stopping in text
    waiting = "touch producers-must-stop; until [ -e producers-stopped ]; do sleep 0.1; done\n"
    with Load(kafka, reader.home) as load:
        said = operator.run(f"export OLD={kafka.bootstrap}\n" + text.replace(stopping, waiting + stopping))
    assert said.splitlines()[-1].endswith("is deleted")
    assert load.led, "the killed broker has led partitions"

    here = json.loads((reader.data / "cluster.json").read_text())["nodes"]["1"]["kafka"]
    found = read(f"127.0.0.1:{here}", "orders")
    left_open.abort_transaction(WAIT_S)  # as the promotion did here; readers there wait for it
    there = read(kafka.bootstrap, "orders")
    assert found == there
    values = [one.value for one in found.values()]
    assert len(values) == len(set(values))
    assert load.sent <= set(values)
    assert len(load.sent) >= 330
    names = {value.split()[0] for value in values if value is not None}
    assert names == {*(codec.encode() for codec in CODECS), b"committed", b"early", b"late"}
    latest = {one.key: one.value for one in read(f"127.0.0.1:{here}", "keys").values()}
    assert latest == {one.key: one.value for one in read(kafka.bootstrap, "keys").values()}
    assert committed(f"127.0.0.1:{here}") == committed(kafka.bootstrap)
    assert sum(committed(kafka.bootstrap).values()) >= 100
    operator.run("echo new | tidelog produce orders")
